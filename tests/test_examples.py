"""Every example in a docstring of the library runs and gives what it shows; every public name has
one."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

import pytest

import fairlib
import whopays


def examples(module: ModuleType) -> list[doctest.DocTest]:
    """The examples of a module, by function and class."""
    return [test for test in doctest.DocTestFinder().find(module, module.__name__) if test.examples]


MODULES = [
    info.name
    for package in (fairlib, whopays)
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if not info.name.endswith("__main__")
]
EXAMPLES = {test.name: test for name in MODULES for test in examples(importlib.import_module(name))}
NAMES = [name for name in fairlib.__all__ if name != "__version__"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_gives_what_it_shows(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FAIRLIB_RUN", raising=False)
    said: list[str] = []
    # Tables of pandas have spaces at the ends of lines, which no source has.
    runner = doctest.DocTestRunner(
        verbose=False, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.REPORT_NDIFF
    )
    runner.run(EXAMPLES[name], out=said.append)
    assert not runner.failures, "".join(said)


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_has_an_example(name: str):
    public = getattr(fairlib, name)
    if isinstance(public, ModuleType):
        assert [found for found in EXAMPLES if f"{found}.".startswith(f"{public.__name__}.")]
    else:
        assert f"{public.__module__}.{public.__qualname__}" in EXAMPLES
