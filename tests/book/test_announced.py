"""No page announces a run or a figure that is not there."""

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
PAGES = [*NOTEBOOKS, *sorted(ROOT.glob("book/*.md")), ROOT / "README.md"]
UNTESTED = re.compile("not tested yet", re.IGNORECASE)
EXPLAINED = {
    "book/notation",
    "book/ledger",
}  # One defines the words, the other computes where they hold.

every_page = pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix()
)


def cells(page: Path) -> list[dict]:
    return json.loads(page.read_text(encoding="utf-8"))["cells"]


def announced(page: Path) -> str:
    """What a page says and what it runs; the examples in the fences of a text are not meant."""
    if page.suffix == ".ipynb":
        return "\n".join("".join(cell["source"]) for cell in cells(page))
    return re.sub(
        r"^(`{3,}|:{3,}).*?^\1$",
        "",
        page.read_text(encoding="utf-8"),
        flags=re.MULTILINE | re.DOTALL,
    )


def missing(text: str, pattern: str) -> list[str]:
    return [path for path in re.findall(pattern, text) if not (ROOT / path).is_file()]


def drawn(page: Path) -> set[str]:
    """Names of the figures that a page draws whatever happens: those of cells that do not begin
    with a condition."""
    found = set()
    for cell in cells(page):
        name = cell["metadata"].get("mystnb", {}).get("figure", {}).get("name")
        if name and not isinstance(ast.parse("".join(cell["source"])).body[0], ast.If):
            found.add(name)
    return found


@every_page
def test_every_table_that_a_page_names_is_recorded(page: Path):
    assert not missing(announced(page), r"results/[\w./-]+\.(?:csv|json)")


@every_page
def test_every_parameter_file_that_a_page_names_exists(page: Path):
    assert not missing(announced(page), r"params/[\w./-]+\.yml")


@every_page
def test_no_page_calls_claims_untested_but_those_that_explain_the_words(page: Path):
    name = page.relative_to(ROOT).with_suffix("").as_posix()
    assert name in EXPLAINED or not UNTESTED.search(announced(page))


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
