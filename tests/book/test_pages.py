"""Every page of the built book, opened from the disk in headless Chromium, as a reader without a network opens it."""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from built import HTML, built_pages, needs_book

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

pytestmark = [
    needs_book,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH (Debian: apt install chromium)"),
    pytest.mark.xdist_group("pages"),  # One browser for all of them.
]

# What a page shows once its formulas are set; code may hold dollars and backslashes, prose may not.
FACTS = """async () => {
  if (window.MathJax && MathJax.startup) await MathJax.startup.promise;
  const article = document.querySelector("article.bd-article") || document.querySelector("main");
  const all = (selector) => [...article.querySelectorAll(selector)];
  const prose = article.cloneNode(true);
  prose.querySelectorAll("pre, code, script, style, mjx-container").forEach((node) => node.remove());
  return {
    formulas: all(".math").length,
    unset: all(".math").filter((node) => !node.querySelector("mjx-container")).map((node) => node.textContent),
    failed: all("mjx-merror, [data-mjx-error]").map((node) => node.textContent),
    prose: prose.textContent,
    images: all("img").map((image) => ({alt: image.alt.trim(), shown: image.complete && image.naturalWidth > 0})),
    headings: all("h1, h2, h3, h4, h5, h6").map((heading) => Number(heading.tagName[1])),
    toggles: document.querySelectorAll(".primary-toggle").length,
  };
}"""


@dataclass
class Visit:
    """A page as it was seen: what it contained, what it complained of and what it asked for."""

    name: str
    facts: dict = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def browser() -> Iterator:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def tab(browser) -> Iterator:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    yield context.new_page()
    context.close()


def watch(tab, name: str) -> Visit:
    """Note what goes wrong in a tab, and what it loads, from now on."""
    visit = Visit(name)
    tab.on("console", lambda message: message.type == "error" and visit.complaints.append(message.text))
    tab.on("pageerror", lambda error: visit.complaints.append(str(error)))
    tab.on("request", lambda request: visit.requests.append(request.url))
    return visit


@pytest.fixture(scope="module", params=built_pages())
def visit(request, browser) -> Visit:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    tab = context.new_page()
    seen = watch(tab, request.param)
    tab.goto((HTML / request.param).as_uri(), wait_until="load")
    seen.facts = tab.evaluate(FACTS)
    context.close()
    return seen


def test_nothing_is_asked_of_the_network(visit: Visit):
    assert not [url for url in visit.requests if not url.startswith(("file:", "data:", "blob:"))]


def test_the_console_has_no_error(visit: Visit):
    assert not visit.complaints


def test_every_formula_is_typeset(visit: Visit):
    assert not visit.facts["unset"]
    assert not visit.facts["failed"]


def test_no_raw_tex_is_left(visit: Visit):
    assert not re.findall(r"\$\$|\$[^$\n]{1,200}\$|\\[\[\](){}]|\\[a-zA-Z]{2,}", visit.facts["prose"])


def test_images_are_shown_and_described(visit: Visit):
    assert all(image["shown"] for image in visit.facts["images"])
    file_name = re.compile(r"\S+\.(?:png|svg|jpe?g|gif|webp)|[0-9a-f/_.-]{16,}", re.IGNORECASE)
    assert not [
        image["alt"] for image in visit.facts["images"] if not image["alt"] or file_name.fullmatch(image["alt"])
    ]


def test_headings_start_once_and_skip_no_level(visit: Visit):
    levels = visit.facts["headings"]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(below <= above + 1 for above, below in itertools.pairwise(levels))


def test_there_is_one_button_for_the_menu(visit: Visit):
    assert visit.facts["toggles"] == 1


def test_the_notation_has_formulas(tab):
    tab.goto((HTML / "book" / "notation.html").as_uri(), wait_until="load")
    assert tab.evaluate(FACTS)["formulas"] > 20
    assert tab.locator("mjx-container").count() > 20


def test_the_index_leads_to_the_introduction(tab):
    tab.goto((HTML / "index.html").as_uri())
    tab.wait_for_url("**/book/intro.html")
    assert "Who Pays?" in tab.title()


def test_the_menu_opens_on_a_telephone(browser):
    context = browser.new_context(viewport={"width": 390, "height": 844})
    tab = context.new_page()
    tab.goto((HTML / "book" / "intro.html").as_uri(), wait_until="load")
    entry = tab.get_by_role("link", name="Bibliography").first
    assert not entry.is_visible()
    tab.locator(".primary-toggle").click()
    entry.wait_for(state="visible", timeout=5000)
    context.close()


def test_search_finds_a_page(tab):
    seen = watch(tab, "search.html")
    tab.goto((HTML / "search.html").as_uri() + "?q=sparsity", wait_until="load")
    tab.locator("#search-results li a").first.wait_for(timeout=10_000)
    tab.locator("#search-results .search-summary").wait_for(timeout=10_000)
    assert "notation.html" in " ".join(link.get_attribute("href") for link in tab.locator("#search-results li a").all())
    assert not seen.complaints
    assert all(url.startswith(("file:", "data:")) for url in seen.requests)
