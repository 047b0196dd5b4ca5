"""The names at the top of the package: there, light, and the same for people, programs and type
checkers."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import fairlib

PACKAGES = {
    "auditing",
    "compression",
    "data",
    "diagnostics",
    "linearization",
    "mitigation",
    "models",
    "network",
    "pruning",
    "statistics",
    "training",
}
MODULES = {"cli", "environment", "randomness", "studies"}


def python(code: str) -> str:
    """Return the output of a new process."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_importing_fairlib_imports_nothing_else():
    assert (
        python("import sys, fairlib; print({'torch', 'pandas', 'numpy'} & set(sys.modules))")
        == "set()\n"
    )


def test_type_checkers_see_the_names_where_they_come_from_at_run_time():
    stub = Path(fairlib.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    imports = [node for node in ast.parse(stub).body if isinstance(node, ast.ImportFrom)]
    seen = {alias.asname: f".{node.module or ''}" for node in imports for alias in node.names}
    assert sorted(seen) == sorted(fairlib.__all__)
    for name, module in seen.items():
        home = importlib.import_module(module, "fairlib") if module != "." else fairlib
        assert getattr(fairlib, name) is getattr(home, name)


def test_every_module_is_reached_after_importing_fairlib_only():
    """Each package has a process of its own, since imports of one are there for the next."""
    code = f"""
import os, pkgutil, torch, pandas, fairlib
for name in {sorted(PACKAGES)}:
    if os.fork() == 0:
        package = getattr(fairlib, name)
        modules = [module.name for module in pkgutil.iter_modules(package.__path__)]
        print(name, [module for module in modules if not hasattr(package, module)], flush=True)
        os._exit(0)
    os.wait()
fairlib.statistics.t_interval, fairlib.environment.clock
"""
    assert python(code) == "".join(f"{name} []\n" for name in sorted(PACKAGES))


def test_what_is_offered_are_the_names_and_the_modules():
    assert set(dir(fairlib)) == set(fairlib.__all__)
    assert set(fairlib.__all__) >= PACKAGES | MODULES


def test_an_unknown_name_is_an_error_of_the_ordinary_kind():
    with pytest.raises(AttributeError, match=r"fairlib.*quantise"):
        _ = fairlib.quantise
    with pytest.raises(ImportError, match="cannot import name 'quantise' from 'fairlib'"):
        from fairlib import quantise  # noqa: F401


@pytest.mark.parametrize(
    ("name", "place"), [("record", "whopays.record"), ("factorization", "fairlib.compression")]
)
def test_a_name_that_has_moved_is_refused_with_its_new_place(name, place):
    with pytest.raises(AttributeError, match=place):
        getattr(fairlib, name)
