"""Add to Sphinx: figures in the colours of the page, words that explain themselves, and folds.

An SVG image becomes part of the page: its texts take the page's font, and the colours of
:mod:`whopays.plots` those of the style sheet (``--plot-1`` to ``--plot-7``), which differ in the
dark. A figure wider than a phone scrolls, by keyboard too. The first use of a word of the glossary
leads there, and shows its meaning beside it (``terms.js``). Figures, tables and theorems are
numbered from 1 on each page, and the search knows prose: neither code nor texts of figures.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.search import IndexBuilder

from whopays import plots

COLOURS = {color: f"var(--{name})" for name, color in plots.COLOURS.items()}
collect_words = IndexBuilder._word_collector
GLOSSARY, BIBLIOGRAPHY = "book/glossary", "book/bibliography"
# Words that a page uses in another sense than the glossary.
OTHER_SENSE = {
    "book/intro": ("loss",),
    "book/course": ("student",),
    "book/start-here": ("student",),
    "notebooks/explanation/group-curvature": ("margin",),
    "notebooks/linearization/private-inference": ("drop", "gate", "group", "mask"),
}
NOT_LINKED = (
    nodes.reference,
    nodes.literal,
    nodes.title,
    nodes.math,
    nodes.caption,
    nodes.strong,
    nodes.table,
)


def inline_svg(svg: str, alt: str, name: str) -> str:
    """Rewrite an SVG document as an element of a page.

    Args:
        svg: The document, of Matplotlib or drawn by hand, whose colours are written as six
            hexadecimal digits.
        alt: What it shows, for those who do not see it.
        name: Prefix of its ids, unique on the page.

    Returns:
        HTML that takes the colours and the font of the page.
    """
    svg = svg[svg.index("<svg") :]
    gone = r"<(metadata|style|title|desc)\b[^>]*>.*?</\1>|<!--.*?-->\s*"
    svg = re.sub(gone, "", svg, flags=re.DOTALL)
    # Behind a figure of Matplotlib and its axes.
    paper = r'(<g id="patch_\d+">\s*<path [^>]*style=")fill: #ffffff'
    svg = re.sub(paper, r"\g<1>fill: none", svg)
    svg = re.sub(r"<\w+ [^>]*>", _styled, svg)
    svg = re.sub(
        "|".join(COLOURS), lambda found: COLOURS[found[0].lower()], svg, flags=re.IGNORECASE
    )
    svg = re.sub(r'(<g) id="axes_\d+"', r'\1 class="axes"', svg)
    # Ids must be unique on a page that has several figures, and Matplotlib numbers them alike in
    # each. Only ids that something refers to are kept.
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
    svg = re.sub(
        r' id="([^"]+)"', lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", svg
    )
    svg = re.sub(r'(href="#|url\(#)([^")]+)', rf"\g<1>{name}-\g<2>", svg)
    # Only the size of the font is the figure's: its family is that of the page.
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", svg)
    svg = re.sub(r"\n\s*", "\n", svg)
    left, top, width, height = re.search(r'viewBox="([^"]+)"', svg)[1].split()
    # Matplotlib writes points; a pixel of the page is three quarters of one.
    natural = f"{(4 / 3 if 'pt' in svg[: svg.index('>')] else 1) * float(width):.0f}px"
    style = f"--natural: {natural}; max-width: {natural}"
    head = f'<svg viewBox="{left} {top} {width} {height}" style="{style}" role="img" '
    head += f'aria-label="{escape(alt)}" xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
    return f'<div class="plot" tabindex="0">{head}{svg[svg.index(">") + 1 :]}</div>'


def _styled(tag: re.Match[str]) -> str:
    """Move the colours of a tag into its style, since only there can they be variables."""
    colours = re.findall(r' (fill|stroke)="(#[0-9A-Fa-f]{6})"', tag[0])
    if not colours:
        return tag[0]
    # An attribute cannot hold a CSS variable, so the colours move to the style.
    bare = re.sub(r' ((fill|stroke)="#[0-9A-Fa-f]{6}"|style="[^"]*")', "", tag[0])
    own = re.findall(r' style="([^"]*)"', tag[0])
    style = "; ".join([*map("{0[0]}: {0[1]}".format, colours), *own])
    return re.sub(r"(/?>)$", rf' style="{style}"\1', bare)


def visit_image(translator: Any, node: nodes.image) -> None:
    """Write an SVG image into the page; leave all others to the theme."""
    path = Path(translator.builder.srcdir, node["uri"])
    if path.suffix != ".svg" or not path.is_file():
        type(translator).visit_image(translator, node)
        return
    translator.builder.images.pop(node["uri"], None)  # Nothing refers to a file of its own.
    # A figure of a notebook has the shape for a phone in its metadata (`whopays.plots.shapes`).
    wide, _, narrow = path.read_text(encoding="utf-8").partition('<metadata class="narrow">')
    name, alt = f"s{len(translator.body)}", node.get("alt", "")
    drawn = inline_svg(wide + "</svg>" * bool(narrow), alt, name)
    if narrow:
        stacked = inline_svg(narrow.rpartition("</metadata>")[0], alt, f"{name}n")
        drawn = f'<div class="wide">{drawn}</div><div class="narrow">{stacked}</div>'
        drawn = f'<div class="shapes">{drawn}</div>'
    translator.body.append(drawn)


def depart_image(translator: Any, node: nodes.image) -> None:
    """Do nothing: the image has been written."""


def explain(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Link the first use of each word of the glossary, with its meaning as the title."""
    if docname in (GLOSSARY, BIBLIOGRAPHY) or GLOSSARY not in app.env.found_docs:
        return
    words = {
        word: own for word, own in glossary(app).items() if word not in OTHER_SENSE.get(docname, ())
    }
    # The longest words first: "group gap" has to win over "group".
    pattern = re.compile(
        rf"\b({'|'.join(sorted(map(re.escape, words), key=len, reverse=True))})s?\b", re.IGNORECASE
    )
    page = app.builder.get_relative_uri(docname, GLOSSARY)
    for paragraph in list(doctree.findall(nodes.paragraph)):
        for text in list(paragraph.findall(nodes.Text)):
            # Headings, code and links are left alone, and text within them too.
            if not words or any(isinstance(outer, NOT_LINKED) for outer in above(text)):
                continue
            parts, said, end = [], text.astext(), 0
            for found in pattern.finditer(said):
                meaning, anchor = words.get(found[1].lower(), ("", ""))
                if not anchor:
                    continue
                # Synonyms share an anchor: once one of them is linked, the others are known as
                # well.
                words = {word: own for word, own in words.items() if own[1] != anchor}
                uri = f"{page}#{anchor}"
                link = nodes.reference("", found[0], internal=True, refuri=uri, reftitle=meaning)
                link["classes"] = ["term"]
                parts += [nodes.Text(said[end : found.start()]), link]
                end = found.end()
            if parts:
                text.parent.replace(text, [*parts, nodes.Text(said[end:])])


def order_folds(app: Sphinx, doctree: nodes.document) -> None:
    """Name what is folded, and put what comes before *In short* into one fold below its figure.

    The cells run in the order of the notebook; on the page the finding and its picture come first.
    """
    cells = [node for node in doctree.findall(nodes.container) if "cell" in node["classes"]]
    for cell in cells:
        if cell.get("prompt_show") == app.config.nb_code_prompt_show:
            what = "parameters" if "tag_parameters" in cell["classes"] else "set-up"
            what = "code of this table" if 'class="dataframe"' in cell.astext() else what
            what = "code of this figure" if cell.next_node(nodes.figure) else what
            cell["prompt_show"] = f"Show the {what}"
    found = next((at for at, cell in enumerate(cells) if cell.next_node(nodes.block_quote)), 0)
    if folds := [cell for cell in cells[:found] if cell.get("hide_mode")]:
        section, short = cells[found].parent, cells[found]
        drawn = [cell for cell in cells[found:] if cell.next_node(nodes.figure)]
        place = drawn[0] if drawn and drawn[0].parent is section else short
        for fold in folds:
            fold.parent.remove(fold)
        section.insert(section.index(place) + 1, folds[0])
        for fold in folds[1:]:
            folds[0][0].extend(fold[0].children)
            folds[0].extend(fold[1:])
        folds[0]["classes"].append(f"moved-{len(folds)}")  # Read by `plain.py`.


def name_headings(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Turn the empty corner headings of pandas' tables into plain cells: a heading needs a name."""
    for raw in doctree.findall(nodes.raw):
        if 'class="dataframe"' in raw.astext():
            raw[:] = [nodes.Text(raw.astext().replace("<th></th>", "<td></td>"))]


def glossary(app: Sphinx) -> dict[str, tuple[str, str]]:
    """Read the words of the glossary in small letters, with their meanings and anchors."""
    words = {}
    for item in app.env.get_doctree(GLOSSARY).findall(nodes.definition_list_item):
        meaning = " ".join(item.next_node(nodes.definition).astext().split())
        terms = list(item.findall(nodes.term))
        words |= {term.astext().lower(): (meaning, terms[0]["ids"][0]) for term in terms}
    return words


def above(node: nodes.Node) -> list[nodes.Node]:
    """List the nodes that a node is part of."""
    found = []
    while (node := node.parent) is not None:
        found.append(node)
    return found


def refuse_sources(app: Sphinx, config: Any) -> None:
    """Stop a build of the sources, which would end well and have no number and no figure.

    Raises:
        ExtensionError: If the settings hold no numbers for the prose, as ``make book`` computes.
    """
    if not config.myst_substitutions:
        raise ExtensionError(
            "these are the book's sources: its numbers, figures and ledger are computed. `make "
            "book` runs the notebooks by papermill, gathers the pages in _build/source and compiles"
            " them; then `jupyter-book build _build/source` compiles them again"
        )


def number_by_page(app: Sphinx, env: Any) -> list[str]:
    """Number figures, tables and theorems from 1 on each page, since chapters have no numbers."""
    for kinds in env.toc_fignumbers.values():
        for numbers in kinds.values():
            numbers.update({name: (place,) for place, name in enumerate(numbers, 1)})
    return []


def words_of_prose(index: IndexBuilder, doctree: nodes.document) -> Any:
    """Collect the words that the search finds on a page: neither code nor texts of figures."""
    prose = doctree.deepcopy()  # The page itself is written from the original.
    for node in list(prose.findall()):
        drawn = isinstance(node, nodes.raw) and "<svg" in node.astext()
        if drawn or isinstance(node, nodes.literal_block):
            node.parent.remove(node)
    return collect_words(index, prose)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    IndexBuilder._word_collector = words_of_prose
    app.connect("config-inited", refuse_sources)
    app.connect("env-get-updated", number_by_page, priority=900)
    app.add_node(nodes.image, override=True, html=(visit_image, depart_image))
    app.connect("doctree-read", order_folds)
    app.connect("doctree-resolved", explain)
    app.connect("doctree-resolved", name_headings)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
