"""Measure the pages of the built book as a laptop of 1366 x 768 shows them.

    python book/tools/measure.py [HTML] [--csv]

One line a page: its height in screens; where its first figure begins, in screens ("-": it has
none); how much of its height is visible code, in percent (folded code does not count, nor does what
code printed); words of prose; size of the page and its own images in KiB. The medians at the end
leave pages without a figure out of that column.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from chromium import CHROMIUM, FLAGS

SCREEN = {"width": 1366, "height": 768}
COLUMNS = ("page", "screens", "first figure", "code %", "words", "KiB")
FACTS = """async () => {
  if (window.MathJax && MathJax.startup) await MathJax.startup.promise;
  await Promise.all([...document.images].map((image) => image.decode().catch(() => {})));
  const article = document.querySelector("article.bd-article") || document.querySelector("main");
  const shown = (node) => node.checkVisibility({visibilityProperty: true}) && node.getBoundingClientRect().height > 0;
  const all = (selector) => [...article.querySelectorAll(selector)].filter(shown);
  const prose = article.cloneNode(true);
  prose.querySelectorAll("pre, script, style, svg, mjx-container, .cell_output").forEach((node) => node.remove());
  const figures = all("figure, img, svg[role=img], svg[role=group]")
    .map((figure) => figure.getBoundingClientRect().top + scrollY);
  return {
    height: document.documentElement.scrollHeight,
    figure: figures.length ? Math.min(...figures) : null,
    code: all(".highlight").filter((block) => !block.parentElement.closest(".cell_output, .highlight"))
      .reduce((sum, block) => sum + block.getBoundingClientRect().height, 0),
    words: (prose.textContent.match(/[\\p{L}\\p{N}][^\\s]*/gu) || []).length,
    images: [...new Set([...article.querySelectorAll("img")].map((image) => image.src))],
  };
}"""


def measure(html: Path) -> Iterator[tuple[str, float, float, float, int, float]]:
    """The columns of each page in a folder of the book; a figure's place is NaN where there is
    none.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        tab = browser.new_page(viewport=SCREEN)
        for page in sorted(
            page for folder in ("book", "notebooks") for page in (html / folder).rglob("*.html")
        ):
            tab.goto(page.as_uri(), wait_until="load")
            facts = tab.evaluate(FACTS)
            files = [
                page,
                *(
                    Path(unquote(urlsplit(url).path))
                    for url in facts["images"]
                    if url.startswith("file:")
                ),
            ]
            yield (
                page.relative_to(html).with_suffix("").as_posix(),
                facts["height"] / SCREEN["height"],
                math.nan if facts["figure"] is None else facts["figure"] / SCREEN["height"],
                100 * facts["code"] / facts["height"],
                facts["words"],
                sum(file.stat().st_size for file in files) / 1024,
            )
        browser.close()


def medians(name: str, rows: list[tuple]) -> tuple:
    """The median of each column over the pages that have a value in it."""
    columns = [
        [value for value in column if not math.isnan(value)]
        for column in list(zip(*rows, strict=True))[1:]
    ]
    return (name, *(statistics.median(column) if column else math.nan for column in columns))


def formatted(row: tuple) -> list[str]:
    page, screens, figure, code, words, size = row
    return [
        page,
        f"{screens:.1f}",
        "-" if math.isnan(figure) else f"{figure:.1f}",
        *(f"{x:.0f}" for x in (code, words, size)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    default = Path(__file__).parents[2] / "_build" / "html"
    parser.add_argument(
        "html", nargs="?", type=Path, default=default, help="the folder of the built book"
    )
    parser.add_argument(
        "--csv", action="store_true", help="commas instead of columns, without medians"
    )
    arguments = parser.parse_args()
    html = arguments.html.resolve()
    if not (html / "index.html").is_file():
        sys.exit(f"no book is built in {html}: make book")
    rows = list(measure(html))
    if arguments.csv:
        csv.writer(sys.stdout).writerows([COLUMNS, *map(formatted, rows)])
        return
    notebooks = [row for row in rows if row[0].startswith("notebooks/")]
    rows += [medians(f"median of {len(rows)} pages", rows)]
    rows += [medians(f"median of {len(notebooks)} notebooks", notebooks)] * bool(notebooks)
    table = [list(COLUMNS), *map(formatted, rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for page, *numbers in table:
        print(
            page.ljust(widths[0]),
            *(text.rjust(width) for text, width in zip(numbers, widths[1:], strict=True)),
            sep="  ",
        )


if __name__ == "__main__":
    main()
