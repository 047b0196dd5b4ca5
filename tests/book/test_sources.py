"""The book's sources agree with each other; nothing needs to be built."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GENERATED = {"book/ledger"}  # Written from the claims when the book is built.
TOC = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
LISTED = [TOC["root"], *(chapter["file"] for part in TOC["parts"] for chapter in part["chapters"])]
PAGES = sorted((ROOT / "book").rglob("*.md"))
NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.ipynb"))
CITATION = re.compile(r"\{cite(?::\w+)?\}`([^`]+)`")


def cited() -> set[str]:
    texts = (path.read_text(encoding="utf-8") for path in chain(PAGES, NOTEBOOKS))
    return {
        key.strip() for text in texts for keys in CITATION.findall(text) for key in keys.split(",")
    }


def test_every_entry_of_the_table_of_contents_exists_once():
    assert len(LISTED) == len(set(LISTED))
    missing = [
        name
        for name in set(LISTED) - GENERATED
        if not any((ROOT / f"{name}{suffix}").is_file() for suffix in (".md", ".ipynb"))
    ]
    assert not missing


def test_every_page_and_notebook_is_in_the_table_of_contents():
    found = {path.relative_to(ROOT).with_suffix("").as_posix() for path in chain(PAGES, NOTEBOOKS)}
    assert found | GENERATED == set(LISTED)


def test_no_warning_of_the_build_is_suppressed():
    assert "suppress_warnings" not in CONFIG["sphinx"]["config"]


def test_notebooks_are_never_executed_by_the_book_builder():
    assert CONFIG["execute"]["execute_notebooks"] == "off"


def test_citations_are_in_the_bibliography():
    text = (ROOT / "book" / "references.bib").read_text(encoding="utf-8")
    keys = re.findall(r"^@\w+\{([^,]+),", text, flags=re.MULTILINE)
    assert len(keys) == len(set(keys))
    assert cited() <= set(keys)


@pytest.mark.parametrize(
    "name", [page.relative_to(ROOT).as_posix() for page in (*ROOT.glob("*.md"), *PAGES)]
)
def test_prose_is_plain(name: str):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert not re.findall("[\u2018\u2019\u201c\u201d\u2013\u2014\u00a0]", text), (
        "typographic quotes, dashes or spaces"
    )
    assert not re.findall(r"(?<![\w.])/(?:home|root|tmp|work|Users)/", text), (
        "a path of somebody's machine"
    )


def test_mathjax_is_complete():
    folder = ROOT / "book" / "_static" / "mathjax"
    script = folder / CONFIG["sphinx"]["config"]["mathjax_path"].removeprefix("mathjax/")
    assert 'VERSION="3.2.2"' in script.read_text(encoding="utf-8")
    assert len(list((folder / "output" / "chtml" / "fonts" / "woff-v2").glob("*.woff"))) >= 20
    assert (folder / "input" / "tex" / "extensions" / "boldsymbol.js").is_file()
    assert "Apache License" in (folder / "LICENSE").read_text(encoding="utf-8")
