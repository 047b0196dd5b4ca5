"""No built page misses a figure, or a table that it announces."""

from __future__ import annotations

import ast
import html
import json
import re
from pathlib import Path

import pytest
from built import HTML, ROOT, built_pages, needs_book
from test_html import parsed

NOTEBOOKS = sorted(ROOT.glob("notebooks/*/*.ipynb"))
UNTESTED = re.compile("not tested yet", re.IGNORECASE)
EXPLAINED = {"book/notation", "book/ledger"}
"""Pages that may speak of untested claims: one defines the words, the other computes them."""


def drawn(page: Path) -> set[str]:
    """Names of the figures that a page draws in any case: of cells that do not begin with a
    condition."""
    names = set()
    for cell in json.loads(page.read_text(encoding="utf-8"))["cells"]:
        name = cell["metadata"].get("mystnb", {}).get("figure", {}).get("name")
        if name and not isinstance(ast.parse("".join(cell["source"])).body[0], ast.If):
            names.add(name)
    return names


@needs_book
@pytest.mark.parametrize("name", built_pages())
def test_no_built_page_misses_a_table_or_speaks_of_untested_claims(name: str):
    text = html.unescape((HTML / name).read_text(encoding="utf-8"))
    assert "There is no recorded table" not in text
    assert name.removesuffix(".html") in EXPLAINED or not UNTESTED.search(text)


@needs_book
@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_every_figure_that_a_page_draws_is_on_the_built_page(page: Path):
    built = HTML / page.relative_to(ROOT).with_suffix(".html")
    assert drawn(page) <= parsed(built).anchors
