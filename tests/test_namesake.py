"""Where the other distribution that installs a package called `fairlib` is present, ours says
so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import fairlib

SOURCE = Path(fairlib.__file__).parents[1]
SAID = "another distribution called 'fairlib' (0.1.0) is installed; it and 'who-pays'"


@pytest.fixture
def beside(tmp_path):
    """A folder of installed packages that holds the other distribution's metadata, and what it is
    called there."""
    folder = tmp_path / "fairlib-0.1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: fairlib\nVersion: 0.1.0\n")
    return tmp_path


def said(code: str, *path: Path) -> str:
    """What a new process that finds packages in `path` writes to standard error."""
    code = f"import sys; sys.path[:0] = {[str(folder) for folder in path]}; {code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stderr


@pytest.mark.slow
def test_the_other_distribution_is_named_once_where_fairlib_is_imported(beside):
    error = said(
        "import fairlib, fairlib.environment, fairlib.data; print(len(sys.modules))", SOURCE, beside
    )
    assert error.count(SAID) == 1
    assert error.startswith("<string>:1: UserWarning: ")
    assert "uninstall both, then install 'who-pays' again" in error


def test_it_is_named_by_our_modules_also_where_its_init_has_taken_the_place_of_ours(beside):
    package = beside / "fairlib"
    package.mkdir()
    (package / "__init__.py").write_text(f"__path__.append({str(SOURCE / 'fairlib')!r})\n")
    error = said(
        "import fairlib; assert not hasattr(fairlib, 'audit'); from fairlib import cli",
        beside,
        SOURCE,
    )
    assert error.count(SAID) == 1


def test_nothing_is_said_where_ours_is_alone():
    assert said("import fairlib, fairlib.cli", SOURCE) == ""
