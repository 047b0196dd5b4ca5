"""Every page of the built book, opened from the disk in headless Chromium, as readers without a
network open it.

On a laptop and on a telephone, light and dark: a page is loaded once at each width and changes its
colours there. Links and anchors are tested without a browser (``test_html.py``)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

import pytest
from built import HTML, built_pages, needs_book, needs_browser

LAPTOP = {"width": 1366, "height": 768}
PHONE = {"width": 390, "height": 844}
# Name of a screen: its size, the colours with which a page is loaded there, and those that it is
# turned to.
SCREENS = {"laptop": (LAPTOP, "light", "dark"), "phone": (PHONE, "dark", "light")}
# What axe finds in the own parts of the theme and of Sphinx, by rule: their selector.
OF_THE_THEME = {
    "region": ".logo__title, .logo__image",  # The book's title, above the menu, is in no landmark.
    # The bibliography, as Sphinx writes it.
    "aria-allowed-role": "div.citation",
    "aria-deprecated-role": "div.citation",
    "aria-required-children": ".citation-list",
    "image-redundant-alt": ".logo__image",  # The logo beside the title has the title as its text.
}
IN_PAGE = (Path(__file__).parent / "in_page.js").read_text(encoding="utf-8")
TYPESET = "async () => { if (window.MathJax && MathJax.startup) await MathJax.startup.promise; }"
FIRST = HTML / "book" / "intro.html"
WITH_SLIDER = {"book/explore.html", "notebooks/explanation/toy-boundary.html"}

pytestmark = [needs_book, needs_browser, pytest.mark.slow]


@dataclass
class Visit:
    """A page as it was seen on both screens: what it held, complained of and asked for."""

    name: str
    facts: dict = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    sideways: dict[str, list[str]] = field(default_factory=dict)
    faults: list[list[str]] = field(default_factory=list)
    sliders: list[dict] = field(default_factory=list)
    drawings: list[list] = field(default_factory=list)


def watch(tab, visit: Visit) -> Visit:
    """Note what goes wrong in a tab, and what it loads, from now on."""
    tab.on(
        "console", lambda message: message.type == "error" and visit.complaints.append(message.text)
    )
    tab.on("pageerror", lambda error: visit.complaints.append(str(error)))
    tab.on("request", lambda request: visit.requests.append(request.url))
    return visit


def open_page(tab, page: Path, query: str = "") -> None:
    tab.goto(page.as_uri() + query, wait_until="load")
    tab.evaluate(TYPESET)
    tab.evaluate(IN_PAGE)


@pytest.fixture(scope="module")
def screens(browser) -> Iterator[dict]:
    """One context for each screen, for all pages."""
    contexts = {
        name: browser.new_context(viewport=size, color_scheme=colours, reduced_motion="reduce")
        for name, (size, colours, _) in SCREENS.items()
    }
    yield contexts
    for context in contexts.values():
        context.close()


@pytest.fixture
def tab(screens) -> Iterator:
    tab = screens["laptop"].new_page()
    yield tab
    tab.close()


@pytest.fixture
def phone(screens) -> Iterator:
    tab = screens["phone"].new_page()
    yield tab
    tab.close()


# A page is opened once, by the process that takes its tests.
@pytest.fixture(
    scope="module",
    params=[pytest.param(page, marks=pytest.mark.xdist_group(page)) for page in built_pages()],
)
def visit(request, screens) -> Visit:
    seen = Visit(request.param)
    for screen, (_, colours, others) in SCREENS.items():
        tab = screens[screen].new_page()
        watch(tab, seen)
        open_page(tab, HTML / seen.name)
        if screen == "laptop":
            seen.sliders = [
                moved(tab, slider)
                for slider in tab.locator("figure.interactive input[type=range]").all()
            ]
        facts = tab.evaluate("inPage.facts()")
        seen.facts = {
            key: seen.facts.get(key, []) + facts[key] if key in LISTS else facts[key]
            for key in facts
        }
        seen.sideways[f"{screen}, {colours}"] = tab.evaluate("inPage.sideways()")
        tab.evaluate(
            files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
        )
        tab.evaluate("inPage.box()")
        found = tab.evaluate("known => inPage.faults(known, false)", OF_THE_THEME)
        contrast = "known => inPage.faults(known, true)"
        # Colours are those of the laptop on a telephone, too: their contrast is measured once.
        if screen == "laptop":
            found += tab.evaluate(contrast, OF_THE_THEME)
        tab.emulate_media(color_scheme=others)
        tab.wait_for_function(
            "theme => document.documentElement.dataset.theme === theme", arg=others
        )
        seen.sideways[f"{screen}, {others}"] = tab.evaluate("inPage.sideways()")
        if screen == "laptop":
            found += tab.evaluate(contrast, OF_THE_THEME)
        seen.faults += [[screen, *fault] for fault in found]
        seen.drawings += [[screen, *drawing] for drawing in tab.evaluate("inPage.drawings()")]
        tab.close()
    return seen


LISTS = {"unset", "failed", "images", "cut", "raw"}  # Facts that both screens add to.


def moved(tab, slider) -> dict:
    """What a slider's figure shows and says before and after a press of an arrow key, and whether
    it has a name."""
    figure = slider.locator("xpath=ancestor::figure[1]")
    state = "figure => [figure.querySelector('.stage').outerHTML, "
    state += "figure.querySelector('output')?.textContent, figure.querySelector('input[type=range]').value]"
    before = figure.evaluate(state)
    slider.focus()
    tab.keyboard.press(
        "ArrowLeft" if slider.evaluate("input => input.value === input.max") else "ArrowRight"
    )
    after = figure.evaluate(state)
    changed = [one != other for one, other in zip(before, after, strict=True)]
    return dict(zip(("picture", "words", "value"), changed, strict=True))


def test_nothing_is_asked_of_the_network(visit: Visit):
    assert not [url for url in visit.requests if not url.startswith(("file:", "data:", "blob:"))]


def test_the_console_has_no_error(visit: Visit):
    assert not visit.complaints


def test_no_page_scrolls_sideways(visit: Visit):
    assert not {screen: found for screen, found in visit.sideways.items() if found}


def test_axe_finds_nothing_but_the_theme_s_own(visit: Visit):
    assert not visit.faults


def test_sliders_move_by_keyboard_and_change_picture_and_words(visit: Visit):
    assert all(all(slider.values()) for slider in visit.sliders), visit.sliders
    assert visit.sliders or visit.name not in WITH_SLIDER


def test_the_ledger_shows_one_paper_and_on_paper_all(tab):
    open_page(tab, HTML / "book" / "ledger.html", "#D-fig-1")
    first, last = tab.locator("div.claim").first, tab.locator("div.claim").last
    tab.locator("[id='D-fig-1']").first.wait_for()
    assert not last.is_visible()
    tab.emulate_media(media="print")
    assert first.is_visible() and last.is_visible()


def test_a_heading_sorts_the_table_on_scale_by_keyboard(tab):
    open_page(tab, HTML / "book" / "what-scale-changes.html")
    tab.locator(".sortable th button").last.focus()
    tab.keyboard.press("Enter")
    effects = tab.locator(".sortable td:last-child").all_text_contents()
    numbers = [float(effect.split()[0]) for effect in effects]
    assert numbers == sorted(numbers, reverse=True)


@pytest.mark.parametrize("touch", [False, True])
def test_a_word_of_the_glossary_is_explained_by_key_and_by_touch(browser, touch: bool):
    tab = browser.new_page(viewport=PHONE, has_touch=touch)
    open_page(tab, FIRST)
    word = tab.locator("a.term").first
    word.tap() if touch else word.focus()
    assert tab.locator("#term-meaning").is_visible() and tab.url.endswith("intro.html")
    tab.keyboard.press("Escape")
    assert not tab.locator("#term-meaning").is_visible()
    tab.close()


def test_every_formula_is_typeset(visit: Visit):
    assert not visit.facts["unset"]
    assert not visit.facts["failed"]


def test_no_raw_tex_is_left(visit: Visit):
    assert not re.findall(
        r"\$\$|\$[^$\n]{1,200}\$|\\[\[\](){}]|\\[a-zA-Z]{2,}", visit.facts["prose"]
    )


def test_images_are_shown_and_described(visit: Visit):
    assert all(image["shown"] for image in visit.facts["images"])
    file_name = re.compile(r"\S+\.(?:png|svg|jpe?g|gif|webp)|[0-9a-f/_.-]{16,}", re.IGNORECASE)
    assert not [
        image["alt"]
        for image in visit.facts["images"]
        if not image["alt"] or file_name.fullmatch(image["alt"])
    ]


def test_drawings_can_be_read_on_both_screens(visit: Visit):
    most = 3 if visit.name.startswith("notebooks/") else 4
    assert not [found for found in visit.drawings if found[2] < 10 or found[3] > most]


def test_tables_fit_on_a_laptop_and_hold_no_raw_values(visit: Visit):
    assert not visit.facts["cut"]
    if visit.name.startswith("notebooks/"):
        assert not visit.facts["raw"] and "NaN" not in visit.facts["prose"]


def test_headings_start_once_and_skip_no_level_and_the_menu_has_one_button(visit: Visit):
    assert visit.facts["toggles"] == 1
    levels = visit.facts["headings"]
    assert levels[0] == levels.count(1) == 1
    assert all(below <= above + 1 for above, below in itertools.pairwise(levels))


def test_the_notation_has_formulas(tab):
    open_page(tab, HTML / "book" / "notation.html")
    assert tab.evaluate("inPage.facts()")["formulas"] > 20
    assert tab.locator("mjx-container").count() > 20


def test_the_index_leads_to_the_introduction(tab):
    tab.goto((HTML / "index.html").as_uri())
    tab.wait_for_url("**/book/intro.html")
    assert "Who Pays?" in tab.title()


def test_the_menu_opens_on_a_telephone(phone):
    open_page(phone, FIRST)
    entry = phone.locator("nav.bd-docs-nav summary").first  # A part, of which all are folded here.
    assert not entry.is_visible()
    phone.locator(".primary-toggle").focus()
    phone.keyboard.press("Enter")
    entry.wait_for(state="visible", timeout=5000)
    phone.keyboard.press("Escape")
    entry.wait_for(state="hidden", timeout=5000)


FOCUSED = """() => {
  const here = document.activeElement;
  const parts = {skip: "#pst-skip-link a, a#pst-skip-link", search: ".search-button__button", menu: "nav.bd-links summary",
                 content: "article.bd-article *"};
  const {outlineStyle, outlineWidth, boxShadow} = getComputedStyle(here);
  return {
    part: Object.keys(parts).find((name) => here.matches(parts[name])),
    seen: here.checkVisibility() && (boxShadow !== "none" || (outlineStyle !== "none" && outlineWidth !== "0px")),
  };
}"""


def test_the_tab_key_reaches_everything_and_one_sees_where_it_is(tab):
    open_page(tab, FIRST)
    passed: list[str] = []
    for _ in range(150):
        tab.keyboard.press("Tab")
        focus = tab.evaluate(FOCUSED)
        if focus["part"]:
            assert focus["seen"], (
                f"after {passed} the focus is on {focus['part']} and cannot be seen"
            )
            passed += [focus["part"]] * (focus["part"] not in passed)
        if "content" in passed:
            break
    assert passed[0] == "skip"
    assert set(passed) == {"skip", "search", "menu", "content"}


def test_the_skip_link_leads_to_the_content(tab):
    open_page(tab, FIRST)
    tab.keyboard.press("Tab")
    tab.keyboard.press("Enter")
    tab.keyboard.press("Tab")
    assert tab.evaluate("() => Boolean(document.activeElement.closest('main'))")


def test_escape_closes_the_search(tab):
    open_page(tab, FIRST)
    field = tab.locator("#pst-search-dialog input")
    tab.keyboard.press("Control+k")
    field.wait_for(state="visible", timeout=5000)
    assert field.evaluate("field => field === document.activeElement")
    tab.keyboard.press("Escape")
    field.wait_for(state="hidden", timeout=5000)


def test_what_is_folded_opens_by_enter(tab):
    folded = next(
        (page for page in built_pages() if "<details class=" in (HTML / page).read_text("utf-8")),
        None,
    )
    if folded is None:
        pytest.skip("nothing is folded")
    open_page(tab, HTML / folded)
    fold = tab.locator("article details").first
    before = fold.evaluate("fold => fold.open")
    fold.locator("summary").first.focus()
    tab.keyboard.press("Enter")
    assert fold.evaluate("fold => fold.open") is not before


def found(tab) -> str:
    """Links of the pages that the search has found, once it is done."""
    tab.locator("#search-results .search-summary").wait_for(timeout=10_000)
    return tab.locator("#search-results li a").evaluate_all(
        "all => all.map((link) => link.href).join(' ')"
    )


SEARCH = """words => {
  document.querySelector("#search-results").replaceChildren();
  Search.performSearch(words);
}"""


def test_search_finds_a_page(tab):
    seen = watch(tab, Visit("search.html"))
    tab.goto((HTML / "search.html").as_uri() + "?q=sparsity", wait_until="load")
    assert "notation.html" in found(tab)
    assert not seen.complaints
    assert all(url.startswith(("file:", "data:")) for url in seen.requests)


def test_search_finds_what_the_glossary_names(tab):
    glossary = HTML / "book" / "glossary.html"
    if not glossary.is_file():
        pytest.skip("the book has no glossary")
    open_page(tab, glossary)
    terms = tab.locator("dl.glossary dt").evaluate_all(
        "all => all.map((term) => term.firstChild.textContent.trim())"
    )
    assert terms
    tab.goto((HTML / "search.html").as_uri(), wait_until="load")
    for term in terms:
        tab.evaluate(SEARCH, term)
        assert "glossary.html" in found(tab), term
