"""The reference: every public name on a page and in the overview; lines that open; under three
screens a page."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest
from built import HTML, needs_book, needs_browser

import fairlib

ROOT = Path(__file__).parents[2]
OVERVIEW = (ROOT / "book" / "api.md").read_text("utf-8")
PAGES = sorted((ROOT / "book" / "reference").glob("*.md"))
DESCRIBED = re.findall(
    r"\.\. auto\w+:: fairlib\.(\w+)$", "\n".join(page.read_text("utf-8") for page in PAGES), re.M
)
NAMES = [
    name
    for name in fairlib.__all__
    if name != "__version__" and not isinstance(getattr(fairlib, name), ModuleType)
]
SIZES = """() => [document.documentElement.scrollHeight / innerHeight,
  document.querySelectorAll("summary.reference-summary").length]"""
OPENED = """() => {
  for (const folded of document.querySelectorAll("details")) folded.open = true;
  return document.documentElement.scrollWidth - innerWidth;
}"""


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_described_and_in_the_overview(name: str):
    assert DESCRIBED.count(name) == 1
    assert f"   {name}\n" in OVERVIEW


def test_every_page_is_in_the_overview():
    assert {page.stem for page in PAGES} == set(re.findall(r"\(reference/([\w-]+)\.md\)", OVERVIEW))


def test_a_description_is_folded_under_its_name_and_first_paragraph():
    nodes = pytest.importorskip("docutils.nodes")
    addnodes = pytest.importorskip("sphinx.addnodes")
    import reference

    link = nodes.reference("", "", nodes.literal("", "fairlib.fit"), classes=["term"])
    content = addnodes.desc_content(
        "", nodes.paragraph("", "As ", link), nodes.paragraph("", "More.")
    )
    description = addnodes.desc("", addnodes.desc_signature("", ""), content)
    section = nodes.section("", nodes.title("", "Data"), description)
    reference.fold("fairlib.load", content, [description])
    folded = section.children[-1]
    assert [type(node) for node in folded.children] == [reference.Line, addnodes.desc]
    assert folded[0].astext() == "load As fairlib.fit" and not list(
        folded[0].findall(nodes.reference)
    )
    assert content.astext() == "More."


@needs_book
@needs_browser
@pytest.mark.parametrize("page", ["api", *(f"reference/{page.stem}" for page in PAGES)])
def test_a_page_is_under_three_screens_and_no_wider_than_a_phone(page: str, browser):
    for width, height in ((1366, 768), (390, 844)):
        tab = browser.new_page(viewport={"width": width, "height": height})
        tab.goto((HTML / "book" / f"{page}.html").as_uri(), wait_until="load")
        screens, lines = tab.evaluate(SIZES)
        assert width == 390 or screens < 3
        assert page == "api" or lines
        assert tab.evaluate(OPENED) <= 0
        tab.close()


@needs_book
@needs_browser
def test_an_address_opens_what_it_leads_to(browser):
    tab = browser.new_page()
    tab.goto(
        (HTML / "book" / "reference" / "pruning.html").as_uri() + "#fairlib.pruning.snip",
        wait_until="load",
    )
    assert tab.locator("details:has([id='fairlib.pruning.snip'])").evaluate("folded => folded.open")
    tab.close()
