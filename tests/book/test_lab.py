"""Copies for JupyterLab: new where the source is, never over what the user changed."""

from __future__ import annotations

import json
from pathlib import Path

import lab
import pytest
from built import ROOT

BIBLIOGRAPHY = """
@article{two, author = {van Dam, A. and {\\"O}z, B.}, year = {2001}}
@article{many, author = {Li, A. and B, C. and D, E.}, year = {2002}}
"""
PAGE = "notebooks/part/page.ipynb"


def notebook(text: str) -> str:
    cells = [
        {"source": text, "metadata": {}},
        {"source": "plot()", "metadata": {"tags": ["hide-input"]}},
    ]
    return json.dumps({"cells": cells})


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
    (tmp_path / "book" / "references.bib").write_text(BIBLIOGRAPHY)
    return tmp_path


def test_citations_become_names(project):
    known = lab.names(project)
    assert lab.cited("{cite:t}`many` say", known) == "Li *et al.* (2002) say"
    assert (
        lab.cited("so {cite:p}`many, two`.", known)
        == "so (Li *et al.*, 2002; van Dam and \u00d6z, 2001)."
    )


def test_every_citation_of_the_book_has_authors_and_a_year():
    known = lab.names(ROOT)
    assert not [key for key, (authors, year) in known.items() if authors == key or not year]
    for path in ROOT.glob("notebooks/*/*.ipynb"):
        made = lab.cited(path.read_text(encoding="utf-8"), known)
        assert "{cite" not in made and json.loads(made)


def test_what_is_missing_or_has_changed_is_copied(project):
    copies = project / "copies"
    assert lab.renew(project, copies) == []
    found = {path.relative_to(copies).as_posix() for path in copies.rglob("*") if path.is_file()}
    # Without the claims, so that the project is found above the copies, with its tables.
    assert found == {PAGE, "book/data.md", ".copies.json"}
    hidden = [
        cell["metadata"].get("jupyter") for cell in json.loads((copies / PAGE).read_text())["cells"]
    ]
    assert hidden == [None, {"source_hidden": True}]
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
