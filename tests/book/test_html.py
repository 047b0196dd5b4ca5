"""The built pages need nothing from outside, and no link in them leads nowhere."""

from __future__ import annotations

import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from bs4 import BeautifulSoup
from built import HTML, built_pages, needs_book

pytestmark = needs_book

LOADED = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
}
NOT_LOADED = {
    "author",
    "next",
    "prev",
    "index",
    "search",
    "canonical",
    "license",
}  # Kinds of <link> that fetch nothing.
OUTSIDE = re.compile(r"\s*(?:[a-z]+:)?//", re.IGNORECASE)
ELSEWHERE = re.compile(r"(?:[a-z][a-z0-9+.-]*:|//)", re.IGNORECASE)


class Page(HTMLParser):
    """What a page loads, where its links lead, and what can be linked to in it."""

    def __init__(self, path: Path):
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag in LOADED and LOADED[tag] in given:
            self.loads.append(given[LOADED[tag]])
        if tag == "link" and not NOT_LOADED & set(given.get("rel", "").split()):
            self.loads.append(given["href"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])


@cache
def parsed(path: Path) -> Page:
    return Page(path)


def leads_nowhere(link: str, page: Path) -> bool:
    """Whether a link within the book names a file or an anchor that is not there."""
    address, anchor = urldefrag(link)
    target = (page.parent / unquote(address.partition("?")[0])).resolve() if address else page
    if not target.is_file():
        return True
    return (
        bool(anchor) and target.suffix == ".html" and unquote(anchor) not in parsed(target).anchors
    )


@pytest.mark.parametrize("name", built_pages())
def test_a_page_loads_only_what_lies_beside_it(name: str):
    page = HTML / name
    assert not [load for load in parsed(page).loads if OUTSIDE.match(load)]
    missing = [
        load
        for load in parsed(page).loads
        if not load.startswith("data:") and leads_nowhere(load, page)
    ]
    assert not missing


@pytest.mark.parametrize("name", built_pages())
def test_links_within_the_book_lead_somewhere(name: str):
    page = HTML / name
    inside = [link for link in parsed(page).links if link != "#" and not ELSEWHERE.match(link)]
    assert not [link for link in inside if leads_nowhere(link, page)]


def test_style_sheets_load_only_what_lies_beside_them():
    fetched = re.compile(
        r"""(?:url\(|@import)\s*["']?\s*((?:[a-z]+:)?//[^"')\s]+)""", re.IGNORECASE
    )
    sheets = list(HTML.rglob("*.css"))
    assert sheets
    assert not [
        (sheet.name, found)
        for sheet in sheets
        for found in fetched.findall(sheet.read_text(encoding="utf-8"))
    ]


def article(name: str) -> BeautifulSoup:
    return BeautifulSoup((HTML / name).read_text(encoding="utf-8"), "html.parser").find("article")


NOTEBOOKS = [
    name for name in built_pages() if re.match(r"notebooks/(?!labs/)", name)
]  # Labs report nothing.


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_what_was_found_is_said_in_fifty_words_and_three_numbers(name: str):
    (quoted,) = [
        quote
        for quote in article(name).find_all("blockquote")
        if quote.text.strip().startswith("In short.")
    ]
    assert not quoted.find_previous("details", class_="hide")
    text = quoted.text.strip().removeprefix("In short.")
    assert 1 <= len(re.findall(r"[.?!](?=\s|$)", text)) <= 3
    assert not re.search(r"\[[-\d.]+, [-\d.]+\]", text)
    assert len(re.findall(r"[^\W_]\S*", text)) <= 50
    # Names such as VGG-19 and Table 2 are no results.
    results = re.sub(r"[A-Za-z]+-\d+|\b(?:Table|Figure) \d+", "", text)
    assert len(re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?", results)) <= 3


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_what_we_saw_is_short(name: str):
    headings = [
        heading for heading in article(name).find_all("h2") if "What we saw" in heading.text
    ]
    for seen in (heading.parent for heading in headings):
        for node in seen.select(
            "table, details, .cell_input, figure, pre, script, section section"
        ):
            node.decompose()
        assert len(re.findall(r"[^\W_]\S*", seen.get_text(" "))) <= 250


@pytest.mark.parametrize("name", ["book/intro.html", "notebooks/pruning/matthew-effect.html"])
def test_words_of_the_glossary_lead_there_and_say_what_they_mean(name: str):
    meanings = {
        term["id"]: term.find_next_sibling("dd").text
        for term in article("book/glossary.html").select("dt[id]")
    }
    links = article(name).select("a.term")
    assert len(links) >= 3
    for link in links:
        path, anchor = urldefrag(link["href"])
        assert path.endswith("glossary.html")
        assert " ".join(meanings[anchor].split()) == link["title"]
