"""The book on paper: pages joined to a part, whose links arrive inside its PDF."""

from __future__ import annotations

import pdf
import pytest
from built import CHROMIUM, FLAGS, needs_browser

ADDRESS = "https://org.github.io/repo/"
PAGE = """<html><head><title>x</title><link rel="stylesheet" href="{up}_static/book.css"></head><body>
<nav>menu</nav><article class="bd-article"><h1 id="top">{title}<a class="headerlink" href="#top">#</a></h1>{content}
</article></body></html>"""
ONE = """<p><a class="near" href="#below">near</a> <a class="far" href="b/two.html#below">far</a>
<a class="page" href="b/two.html">page</a> <a class="other" href="c.html#x">other</a> <a class="web" href="https://a.org">w</a></p>
<svg><clipPath id="clip"></clipPath><g clip-path="url(#clip)"></g><use xlink:href="#clip"></use></svg>
<details><summary>folded</summary>Seen on paper.</details><div class="admonition dropdown">So is this.</div>
<h2 id="below">Below</h2>"""
TWO = (
    '<p><a class="back" href="../one.html#below">back</a><img src="../_images/x.png"></p>'
    '<h2 id="below">Below, too</h2>'
)


@pytest.fixture
def html(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "one.html").write_text(
        PAGE.format(up="", title="One", content=ONE), encoding="utf-8"
    )
    (tmp_path / "b" / "two.html").write_text(
        PAGE.format(up="../", title="Two", content=TWO), encoding="utf-8"
    )
    return tmp_path


def joined(html, address=""):
    return pdf.BeautifulSoup(pdf.joined(html, "A part", ["one", "b/two"], address), "html.parser")


def test_a_part_has_the_content_of_its_pages_alone(html):
    whole = joined(html)
    assert whole.title.text == "A part"
    assert [heading.text for heading in whole.find_all("h1")] == ["One", "Two"]
    assert not whole.select("nav, .headerlink, .dropdown, details:not([open])")


def test_links_and_pictures_follow_their_pages(html):
    whole = joined(html)
    ids = [node["id"] for node in whole.select("[id]")]
    assert len(ids) == len(set(ids))
    for kind in ("near", "far", "page", "back"):
        assert whole.select_one(f".{kind}")["href"].removeprefix("#") in ids
    assert whole.select_one(".far")["href"] != whole.select_one(".near")["href"]
    assert (
        whole.find(clip_path=None).find("g")["clip-path"] == f"url(#{whole.find('clippath')['id']})"
    )
    assert whole.find("img")["src"] == "_images/x.png"


def test_what_leads_out_of_a_part_leads_to_the_published_book(html):
    assert "href" not in joined(html).select_one(".other").attrs
    assert joined(html, ADDRESS).select_one(".other")["href"] == f"{ADDRESS}c.html#x"
    assert joined(html).select_one(".web")["href"] == "https://a.org"


def test_the_parts_are_those_of_the_contents():
    contents = {
        "root": "front",
        "parts": [{"caption": "A", "chapters": [{"file": "a"}]}, {"caption": "B", "chapters": []}],
    }
    assert pdf.parts(contents) == {"A": ["front", "a"], "B": []}


@needs_browser
def test_links_arrive_inside_the_pdf_and_its_pages_are_numbered(html):
    from playwright.sync_api import sync_playwright
    from pypdf import PdfReader

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        style = "<style>.printed { break-before: page }</style>"
        pdf.print_page(browser, style + str(joined(html)), html, html / "part.pdf", "A part")
        browser.close()
    printed = PdfReader(html / "part.pdf")
    links = [link.get_object() for sheet in printed.pages for link in sheet.get("/Annots", [])]
    inside = [str(link["/Dest"]).removeprefix("/") for link in links if "/Dest" in link]
    known = {name.removeprefix("/") for name in printed.named_destinations}
    assert len(inside) == 4
    assert set(inside) <= known
    assert [
        f"A part, {number}" in sheet.extract_text() for number, sheet in enumerate(printed.pages, 1)
    ] == [
        True,
        True,
    ]
    assert "Seen on paper." in printed.pages[0].extract_text()
    assert not list(html.glob(".*.html"))
