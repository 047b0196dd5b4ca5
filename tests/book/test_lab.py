"""Copies for JupyterLab: new where the source is, never over what the user changed."""

from __future__ import annotations

import json
from pathlib import Path

import lab
import pytest

PAGE = "notebooks/part/page.ipynb"


def notebook(text: str) -> str:
    return json.dumps({"cells": [{"source": text, "metadata": {}}]})


def source(path: Path) -> str:
    return json.loads(path.read_text())["cells"][0]["source"]


@pytest.fixture
def project(tmp_path):
    for name, text in {
        PAGE: notebook("one"),
        "book/data.md": "text",
        "book/claims.yml": "",
        "book/_static/a.svg": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_what_is_missing_or_has_changed_is_copied(project):
    copies = project / "copies"
    assert lab.renew(project, copies) == []
    found = {path.relative_to(copies).as_posix() for path in copies.rglob("*") if path.is_file()}
    # Without the claims, so that the project is found above the copies, with its tables.
    assert found == {f"{at}{name}" for name in (PAGE, "book/data.md") for at in ("", ".originals/")}
    (project / PAGE).write_text(notebook("two"))
    assert lab.renew(project, copies) == [] and source(copies / PAGE) == "two"
    (copies / PAGE).unlink()
    assert lab.renew(project, copies) == [] and source(copies / PAGE) == "two"


def test_a_copy_that_was_changed_stays_and_that_is_said(project):
    copies = project / "copies"
    lab.renew(project, copies)
    (copies / PAGE).write_text(notebook("mine"))
    assert lab.renew(project, copies) == [] and source(copies / PAGE) == "mine"
    (project / PAGE).write_text(notebook("two"))
    for _ in range(2):
        assert lab.renew(project, copies) == [PAGE] and source(copies / PAGE) == "mine"
    (copies / PAGE).unlink()
    assert lab.renew(project, copies) == [] and source(copies / PAGE) == "two"
