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


def unrecorded(source: str) -> set[str]:
    """Names that a cell gives to tables of which one is not recorded yet."""
    if "results/" not in source:
        return set()
    assigned = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assign)]
    return {
        name.id
        for node in assigned
        for text in ast.walk(node.value)
        if isinstance(text, ast.Constant)
        and str(text.value).startswith("results/")
        and not (ROOT / str(text.value)).is_file()
        for target in node.targets
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    }


def drawn(page: Path) -> set[str]:
    """Names of the figures that a page draws in any case: of cells that do not begin with a
    condition, nor name a table whose runs are registered and not recorded yet."""
    cells = json.loads(page.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) * (cell["cell_type"] == "code") for cell in cells]
    missing = set().union(*map(unrecorded, code))
    names = set()
    for cell, source in zip(cells, code, strict=True):
        name = cell["metadata"].get("mystnb", {}).get("figure", {}).get("name")
        conditional = name and isinstance(ast.parse(source).body[0], ast.If)
        if name and not conditional and not missing & set(re.findall(r"\w+", source)):
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
