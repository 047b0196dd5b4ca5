"""The book on paper: a PDF of each part, printed by Chromium from the built pages.

`python book/tools/pdf.py [BUILD]` joins the pages of each part in `BUILD/html` to one, and prints
it as `BUILD/pdf/PART.pdf`. A link to a page of the same part arrives inside the PDF; any other
leads to the published book, or becomes plain text while the book has no address. What is folded is
open on paper, but folded code is gone (`print.css`).
"""

from __future__ import annotations

import posixpath
import re
import shutil
import sys
from html import escape
from pathlib import Path
from urllib.parse import urljoin

import yaml
from address import site
from bs4 import BeautifulSoup, Tag
from chromium import CHROMIUM, FLAGS

ROOT = Path(__file__).parents[2]
READY = """async () => {
  document.documentElement.dataset.theme = "light";
  if (window.MathJax && MathJax.startup) await MathJax.startup.promise;
  await Promise.all([...document.images].map((image) => image.decode().catch(() => {})));
}"""
FOOT = (
    '<p style="width: 100%; font: 8px sans-serif; text-align: center">'
    'TITLE, <span class="pageNumber"></span></p>'
)
REFERS = ("for", "aria-labelledby", "aria-describedby", "aria-controls")


def parts(contents: dict) -> dict[str, list[str]]:
    """List the pages of each part, by its title; the front page opens the first one."""
    found = {
        part["caption"]: [
            page["file"]
            for chapter in part["chapters"]
            for page in (chapter, *chapter.get("sections", []))
        ]
        for part in contents["parts"]
    }
    first = next(iter(found))
    return found | {first: [contents["root"], *found[first]]}


def named(page: str, anchor: str = "") -> str:
    """Name the anchor in the joined page of a place on a page."""
    return re.sub(r"\W", "-", page) + (f"--{anchor}" if anchor else "")


def joined(html: Path, title: str, pages: list[str], address: str) -> str:
    """Join pages to one, for the top of the folder of the built book.

    Args:
        html: Folder of the built book.
        title: Title of the whole.
        pages: Paths of the pages from there, without suffix.
        address: Address of the published book, or nothing.
    """
    texts = {page: (html / f"{page}.html").read_text(encoding="utf-8") for page in pages}
    # The head of a page with formulas: only these load MathJax.
    first = next((page for page in pages if "/mathjax/" in texts[page]), pages[0])
    whole = BeautifulSoup(texts[first], "html.parser")
    for node in whole.head.select("[src], [href]"):
        for key in {"src", "href"} & set(node.attrs):
            node[key] = moved(first, node[key])
    articles = [article(text, page, set(pages), address) for page, text in texts.items()]
    whole.title.string = title
    whole.body.clear()
    whole.body.extend(articles)
    return str(whole)


def article(text: str, page: str, pages: set[str], address: str) -> Tag:
    """Make the content of a page a section of the joined page, with the page in its anchors."""
    content = BeautifulSoup(text, "html.parser").find("article")
    for node in content.select("script, button, .headerlink"):
        node.decompose()
    # These classes would fold, by the scripts of the theme, what paper cannot open.
    for node in content.select(".dropdown, .toggle"):
        node["class"] = [kind for kind in node["class"] if kind not in ("dropdown", "toggle")]
    for node in content.select("details"):
        node["open"] = ""
    for node in content.find_all(True):
        if "id" in node.attrs:
            node["id"] = named(page, node["id"])
        # Two pages may have the same anchors: each anchor, and all that refers to it, gets the name
        # of its page.
        for key, value in list(node.attrs.items()):
            if key in REFERS:
                node[key] = " ".join(named(page, anchor) for anchor in value.split())
            elif isinstance(value, str) and "url(#" in value:
                node[key] = re.sub(
                    r"url\(#([^)]+)\)", lambda found: f"url(#{named(page, found[1])})", value
                )
            elif key == "src":
                node[key] = moved(page, value)
            elif key in ("href", "xlink:href"):
                node[key] = target(page, value, pages, address)
                if not node[key]:
                    del node[key]
    content.name, content["id"] = "section", named(page)
    content["class"] = ["bd-article", "printed"]
    return content


def moved(page: str, link: str) -> str:
    """Rewrite a link of a page as it is from the top of the book."""
    if re.match(r"[\w.+-]+:|#|//", link) or not link:
        return link
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))


def target(page: str, link: str, pages: set[str], address: str) -> str:
    """Find where a link leads on paper; empty if nowhere."""
    if link.startswith("#"):
        return f"#{named(page, link[1:])}"
    path, _, anchor = moved(page, link).partition("#")
    if path.removesuffix(".html") in pages:
        return f"#{named(path.removesuffix('.html'), anchor)}"
    if re.match(r"[\w.+-]+:", link):
        return link
    # While the book has no address, a link out of the part would lead nowhere.
    return urljoin(address, moved(page, link)) if address else ""


def main() -> int:
    """Print every part of the built book."""
    build = Path(*sys.argv[1:]).resolve() if len(sys.argv) > 1 else ROOT / "_build"
    html, out = build / "html", build / "pdf"
    if not (html / "index.html").is_file() or not CHROMIUM:
        print(
            "the book is not built: make book" if CHROMIUM else "there is no Chromium on the PATH",
            file=sys.stderr,
        )
        return 1
    from playwright.sync_api import sync_playwright

    contents, config = (
        yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))
        for name in ("_toc.yml", "_config.yml")
    )
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for number, (title, pages) in enumerate(parts(contents).items()):
            name = f"{number}-{re.sub(r'[^a-z0-9]+', '-', title.lower()).strip('-')}"
            print_page(
                browser,
                joined(html, f"Who Pays? {title}", pages, site(config)),
                html,
                out / f"{name}.pdf",
                title,
            )
            print(out / f"{name}.pdf", flush=True)
        browser.close()
    return 0


def print_page(browser, text: str, html: Path, out: Path, title: str) -> None:
    """Print a page, put for that time where the book has its scripts and pictures."""
    # Beside index.html, since a page elsewhere would not find its scripts, styles and pictures.
    page = html / f".{out.stem}.html"
    page.write_text(text, encoding="utf-8")
    tab = browser.new_page()
    # A part with many formulas takes MathJax minutes.
    tab.set_default_timeout(300_000)
    try:
        tab.goto(page.as_uri(), wait_until="load")
        tab.evaluate(READY)
        tab.pdf(
            path=out,
            format="A4",
            scale=0.75,
            print_background=True,
            outline=True,
            tagged=True,
            margin={"top": "16mm", "bottom": "18mm", "left": "14mm", "right": "14mm"},
            display_header_footer=True,
            header_template="<span></span>",
            footer_template=FOOT.replace("TITLE", escape(title)),
        )
    finally:
        tab.close()
        page.unlink()


if __name__ == "__main__":
    sys.exit(main())
