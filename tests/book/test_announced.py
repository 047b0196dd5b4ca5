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


def unrecorded(node: ast.AST) -> bool:
    """Whether code names a table that is not recorded yet."""
    named = re.findall(r"""['"](results/[^'"]+)""", ast.unparse(node))
    return not all((ROOT / table).is_file() for table in named)


def drawn(page: Path) -> set[str]:
    """Names of the figures that a page draws in any case: of cells that do not begin with a
    condition, and need no table whose runs are registered and not recorded yet."""
    cells = json.loads(page.read_text(encoding="utf-8"))["cells"]
    texts = ["".join(cell["source"]) * (cell["cell_type"] == "code") for cell in cells]
    code = [ast.parse(re.sub("%pip.*", "pass", text)) for text in texts]
    missing = {
        name.id
        for tree in code
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and unrecorded(node.value)
        for target in node.targets
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    }
    names = set()
    for cell, tree in zip(cells, code, strict=True):
        name = cell["metadata"].get("mystnb", {}).get("figure", {}).get("name")
        if not name or isinstance(tree.body[0], ast.If) or unrecorded(tree):
            continue
        if not missing & {getattr(node, "id", "") for node in ast.walk(tree)}:
            names.add(name)
    return names


@needs_book
@pytest.mark.parametrize("name", built_pages())
def test_no_built_page_misses_a_table_or_speaks_of_untested_claims(name: str):
    text = html.unescape((HTML / name).read_text(encoding="utf-8"))
    assert "There is no recorded table" not in text
    assert "dtype: " not in re.sub("(?s)<pre>.*?</pre>", "", text)
    assert name.removesuffix(".html") in EXPLAINED or not UNTESTED.search(text)


@needs_book
@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_every_figure_that_a_page_draws_is_on_the_built_page(page: Path):
    built = HTML / page.relative_to(ROOT).with_suffix(".html")
    assert drawn(page) <= parsed(built).anchors
