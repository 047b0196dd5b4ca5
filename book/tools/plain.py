"""Make plain notebooks of the built book: its words in Markdown, between the code cells.

Colab, GitHub and plain Jupyter know neither the directives nor the citations and numbers of the
book; the built pages have them all. `python book/tools/plain.py [BUILD]` converts every notebook of
the book built in `BUILD/html` into `BUILD/plain/notebooks`, and into
`BUILD/html/_sources/notebooks`, which the download button of a page gives.
"""

from __future__ import annotations

import base64
import copy
import mimetypes
import re
import shutil
import sys
from collections import deque
from collections.abc import Iterator
from html import escape
from itertools import groupby
from pathlib import Path
from urllib.parse import urljoin

import nbformat
import yaml
from address import site, wheel
from bs4 import BeautifulSoup, NavigableString, Tag
from nbformat import NotebookNode

from whopays.plots import COLOURS

ROOT = Path(__file__).parents[2]
DROPPED = ".headerlink, button, script, style, nav, .sd-summary-icon, .sd-summary-state-marker"
STANDING = {
    "p",
    "div",
    "section",
    "ul",
    "ol",
    "table",
    "pre",
    "details",
    "aside",
    "figure",
}
STANDING |= {f"h{depth}" for depth in range(1, 7)}
HIDDEN = {"hide-input", "hide-cell", "remove-input", "remove-cell"}
QUOTED = {"proof", "exercise", "admonition"}
SPECIAL = re.compile(r"([\\`*_\[\]<>$|])")


class Page:
    """A built page, read from its article, and what its Markdown refers to.

    Args:
        path: Path of the HTML file.
        address: Public address of the page, from which links lead on; without one a link within the
            book is its text.
    """

    def __init__(self, path: Path, address: str) -> None:
        self.path, self.address = path, address
        self.pictures: dict[str, dict[str, str]] = {}
        self.article = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser").find(
            "article"
        )
        # Buttons, anchors and scripts of the theme would become text.
        for node in self.article.select(DROPPED):
            node.extract()

    def inline(self, node: Tag | NavigableString) -> str:
        """Write a node within a paragraph."""
        if isinstance(node, NavigableString):
            return re.sub(r"\s+", " ", SPECIAL.sub(r"\\\1", node))
        kinds = node.get("class", [])
        if "math" in kinds:
            tex = re.sub(
                r"\s+", " ", node.text.strip().removeprefix(r"\(").removesuffix(r"\)")
            ).strip()
            # A bar within a table would begin a new cell.
            return "$" + (tex.replace("|", r" \vert ") if node.find_parent("table") else tex) + "$"
        if node.name == "code":
            text = node.text.replace("|", r"\|") if node.find_parent("table") else node.text
            return f"`` {text} ``" if "`" in text else f"`{text}`"
        if node.name == "svg":
            return self.drawn(node)
        inner = "".join(map(self.inline, node.children))
        bare = inner.strip()
        # A caption's number is bold on the page by the style sheet alone.
        strong = node.name in ("strong", "b") or (
            "caption-number" in kinds and node.find_parent("figcaption")
        )
        if bare and (strong or node.name in ("em", "i", "cite")):
            mark = "**" if strong else "*"
            return inner.replace(bare, f"{mark}{bare}{mark}")
        if node.name == "img":
            return self.image(node)
        if node.name == "a" and inner and (target := self.target(node.get("href", ""))):
            return f"[{inner}]({target})"
        return inner

    def target(self, link: str) -> str:
        """Find where a link leads from outside the book; empty if nowhere, without an address."""
        return urljoin(self.address, link) if self.address or re.match(r"\w+:", link) else ""

    def link(self, found: re.Match[str]) -> str:
        """Rewrite a link to another page in a Markdown output."""
        target = self.target(re.sub(r"\.(ipynb|md)(?=#|$)", ".html", found[2]))
        return f"[{found[1]}]({target})" if target else found[1]

    def image(self, node: Tag) -> str:
        """Attach a picture of the book."""
        source = self.path.parent / node["src"]
        kind = mimetypes.guess_type(source.name)[0] or "image/png"
        return self.attached(node.get("alt", ""), source.name, kind, source.read_bytes())

    def drawn(self, node: Tag) -> str:
        """Attach a drawing that is part of the page, with colours instead of variables."""
        svg = re.sub(
            r"var\(--([\w-]+)\)", lambda found: COLOURS.get(found[1], "#dddddd"), str(node)
        )
        svg = svg.replace("viewbox=", "viewBox=").replace(
            "<svg ", '<svg font-family="sans-serif" ', 1
        )
        # Attachments are found by name, so each drawing of a notebook has another one.
        name = f"drawing-{len(self.pictures) + 1}.svg"
        return self.attached(node.get("aria-label", ""), name, "image/svg+xml", svg.encode())

    def attached(self, alt: str, name: str, kind: str, content: bytes) -> str:
        self.pictures[name] = {kind: base64.b64encode(content).decode()}
        words = SPECIAL.sub(r"\\\1", " ".join(alt.split()))
        return f"![{words}](attachment:{name})"

    def words(self, text: str) -> NotebookNode:
        """Make a cell of Markdown, with the pictures that it shows."""
        shown = {
            name: picture
            for name, picture in self.pictures.items()
            if f"(attachment:{name})" in text
        }
        return nbformat.v4.new_markdown_cell(text, **{"attachments": shown} if shown else {})

    def block(self, node: Tag) -> list[str]:
        """Write a block, such as a heading or a table, as blocks of Markdown."""
        kinds = set(node.get("class", []))
        if "math" in kinds:
            return [display(node)]
        if re.fullmatch(r"h[1-6]", node.name):
            return ["#" * int(node.name[1]) + " " + self.inline(node).strip()]
        if node.name == "p":
            return [self.inline(node).strip()]
        if node.name == "pre" or any(kind.startswith("highlight") for kind in kinds):
            language = next((kind[10:] for kind in kinds if kind.startswith("highlight-")), "")
            return [f"```{language.replace('default', '')}\n{node.text.strip()}\n```"]
        if node.name in ("ul", "ol"):
            return ["\n".join(self.items(node))]
        if node.name == "table":
            return [self.table(node)]
        if kinds & QUOTED or node.name == "details":
            return self.framed(node, kinds)
        return self.blocks(node)

    def blocks(self, node: Tag) -> list[str]:
        """Write the blocks of a node's children; neighbours within a line make one paragraph."""
        found, line = [], ""
        for child in node.children:
            if isinstance(child, Tag) and child.name in STANDING:
                found += [line.strip(), *self.block(child)]
                line = ""
            else:
                line += self.inline(child)
        return [text for text in (*found, line.strip()) if text]

    def items(self, node: Tag) -> Iterator[str]:
        for number, item in enumerate(
            node.find_all("li", recursive=False), int(node.get("start", 1))
        ):
            # Lines of an item are indented by its mark, or they would end the list.
            mark = "- " if node.name == "ul" else f"{number}. "
            yield mark + "\n\n".join(self.blocks(item)).replace("\n", "\n" + " " * len(mark))

    def table(self, node: Tag) -> str:
        rows = [
            [self.inline(cell).strip() for cell in row.find_all(["th", "td"])]
            for row in node.find_all("tr")
        ]
        first, *rest = ["| " + " | ".join(row) + " |" for row in rows]
        return "\n".join([first, "| " + " | ".join("---" for _ in rows[0]) + " |", *rest])

    def framed(self, node: Tag, kinds: set[str]) -> list[str]:
        """Write a box with a title: theorems and exercises quoted, folded boxes folded."""
        # The title is a summary where the box opens, and a paragraph of a class where it does not.
        head = node.find(
            ["summary", "p"], class_=["admonition-title", "sd-summary-title"], recursive=False
        )
        head = head or node.find("summary", recursive=False)
        title = [] if head is None else [head.extract()]
        body = self.blocks(node)
        if title and (node.name == "details" or kinds & {"dropdown", "toggle"}):
            return [
                f"<details>\n<summary>{escape(' '.join(title[0].text.split()))}</summary>",
                *body,
                "</details>",
            ]
        return [quoted([*(f"**{' '.join(self.inline(head).split())}**" for head in title), *body])]


def display(node: Tag) -> str:
    """Write a formula on one line: within a quotation, a second line would begin with a mark."""
    number = node.find(class_="eqno")
    tag = r" \tag{" + number.extract().text.strip(" ()#\n") + "}" if number else ""
    tex = node.text.strip().removeprefix(r"\[").removesuffix(r"\]").strip()
    # Sphinx puts every formula into an environment for several lines, which one line does not need,
    # and which GitHub does not know.
    if r"\\" not in tex:
        tex = tex.removeprefix(r"\begin{split}").removesuffix(r"\end{split}")
    return "$$ " + re.sub(r"\s+", " ", tex.strip() + tag) + " $$"


def quoted(blocks: list[str]) -> str:
    return "\n>\n".join("> " + text.replace("\n", "\n> ") for text in blocks)


def converted(page: Page, notebook: NotebookNode, wheel: str = "") -> NotebookNode:
    """Make a plain notebook: words of the built page, code and outputs of the executed one.

    Args:
        page: Built page; it is modified.
        notebook: Executed notebook that the page was built from.
        wheel: Address of fairlib's wheel, which the first code cell installs where fairlib is
            missing.

    Raises:
        ValueError: If the page has other code cells than the notebook.
    """
    code = deque(cell for cell in notebook.cells if cell.cell_type == "code")

    def hidden() -> Iterator[NotebookNode]:
        """Copy cells that the page does not show: they still have to run in the plain notebook."""
        while code and "remove-cell" in code[0].metadata.get("tags", []):
            yield runnable(code.popleft(), page, wheel)

    def walk(node: Tag) -> Iterator[str | NotebookNode]:
        for child in node.children:
            if isinstance(child, Tag) and {"cell", "docutils"} <= set(child.get("class", [])):
                joined = re.search(r"moved-(\d+)", " ".join(child["class"]))
                for _ in range(int(joined[1]) if joined else 1):
                    yield from hidden()
                    if not code:
                        raise ValueError(f"{page.path} has more code cells than its notebook")
                    yield runnable(code.popleft(), page, wheel)
                for caption in child.select("figcaption"):
                    yield " ".join(page.inline(caption).split())
            # Sections nest: the cells may be anywhere below.
            elif isinstance(child, Tag) and child.select_one("div.cell.docutils"):
                yield from walk(child)
            elif getattr(child, "name", None) in STANDING:
                yield from page.block(child)
            else:
                yield page.inline(child).strip()

    # Set-up that stands below the first figure of the page runs before all else.
    if moved := page.article.select_one('div.cell[class*="moved-"]'):
        page.article.select_one("div.cell.docutils").insert_before(moved.extract())
    source = f"[a page]({page.address}) of the book" if page.address else "a page of the book"
    end = f"---\n\n*This notebook is a plain copy of {source} Who Pays?*"
    parts = filter(None, [*walk(page.article), end, *hidden()])
    if code:
        raise ValueError(f"{len(code)} code cells of the notebook are not on {page.path}")
    cells: list[NotebookNode] = []
    for is_text, group in groupby(parts, lambda part: isinstance(part, str)):
        own = list(group)
        cells += [page.words("\n\n".join(own))] if is_text else own
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kept = {"kernelspec", "language_info"}
    known = {name: value for name, value in notebook.metadata.items() if name in kept}
    made = nbformat.v4.new_notebook(metadata=known, cells=cells)
    nbformat.validate(made)
    return made


def runnable(cell: NotebookNode, page: Page, wheel: str) -> NotebookNode:
    """Copy a code cell with the simplest form of each output, folded if it is on the page."""
    tags = set(cell.metadata.get("tags", []))
    metadata: dict = {"tags": ["parameters"]} if "parameters" in tags else {}
    if tags & HIDDEN:
        metadata |= {"jupyter": {"source_hidden": True}, "cellView": "form"}
    source = cell.source
    if "remove-cell" in tags:
        # The first cell installs fairlib where it is missing, from the published wheel if there is
        # one.
        source = source.replace('default=""', f'default="{wheel}"')
    outputs = copy.deepcopy(cell.outputs)
    for output in outputs:
        data = output.get("data", {})
        # A notebook outside of the book shows the first form that it knows: the picture has to be
        # the only one.
        if "image/png" in data:
            for other in ("image/svg+xml", "text/html"):
                data.pop(other, None)
        if "text/markdown" in data:
            data["text/markdown"] = re.sub(
                r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)", page.link, data["text/markdown"]
            )
    return nbformat.v4.new_code_cell(
        source, metadata=metadata, outputs=outputs, execution_count=cell.execution_count
    )


def convert(html: Path, source: Path, plain: Path, config: dict) -> int:
    """Write the plain copies of all notebooks of a built book; returns their number."""
    notebooks = sorted(source.glob("notebooks/*/*.ipynb"))
    shutil.rmtree(plain, ignore_errors=True)
    for path in notebooks:
        name = path.relative_to(source)
        address = (
            urljoin(site(config), name.with_suffix(".html").as_posix()) if site(config) else ""
        )
        made = converted(
            Page(html / name.with_suffix(".html"), address), nbformat.read(path, 4), wheel(config)
        )
        text = nbformat.writes(made) + "\n"
        for folder in (plain, html / "_sources"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
    return len(notebooks)


def main() -> int:
    """Convert the notebooks of the book in `html` of a folder, `_build` by default."""
    build = Path(*sys.argv[1:]) if len(sys.argv) > 1 else ROOT / "_build"
    if not (build / "html" / "index.html").is_file():
        print("the book is not built: make book", file=sys.stderr)
        return 1
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    count = convert(build / "html", build / "source", build / "plain", config)
    print(f"{count} plain notebooks: {build / 'plain' / 'notebooks'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
