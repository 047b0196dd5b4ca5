"""Fold the reference: a line with a name and what it does, which opens.

Signature, parameters and example are below it. On the pages of ``book/reference`` the first
paragraph of the docstring of a function, class or module becomes the line. On paper nothing is
folded.
"""

from __future__ import annotations

from itertools import dropwhile, takewhile
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

FOLDER = "book/reference/"


class Fold(nodes.General, nodes.Element):
    """Element that can be folded; its first child is a :class:`Line`, which is always seen."""


class Line(nodes.General, nodes.TextElement):
    """Line that stays of a folded element."""


NAME_PARTS = addnodes.desc_addname | addnodes.desc_name
"""Parts of the full name in a signature."""

ENDS = nodes.section | nodes.target | addnodes.desc | addnodes.index | Fold
"""Nodes that end the docstring of a module."""


def fold_page(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Fold every docstring on a page of the reference that is not part of another one."""
    if not docname.startswith(FOLDER) or app.builder.format != "html":
        return
    # A description within another one, such as a method, opens with the whole.
    for description in list(doctree.findall(addnodes.desc)):
        if isinstance(description.parent, nodes.section | nodes.document):
            signature, content = description.next_node(addnodes.desc_signature), description[-1]
            names = signature.findall(lambda node: isinstance(node, NAME_PARTS))
            fold("".join(part.astext() for part in names), content, [description])
    for module in list(doctree.findall(addnodes.index)):
        # Sphinx leaves the docstring of a module in the section, between its anchor and what
        # follows.
        # A module whose members are documented elsewhere has an index without entries.
        anchor = module["entries"][0][2] if module["entries"] else ""
        if anchor.startswith("module-"):
            after = module.parent[module.parent.index(module) + 1 :]
            rest = dropwhile(lambda node: isinstance(node, nodes.target), after)
            text = list(takewhile(lambda node: not isinstance(node, ENDS), rest))
            if text:
                fold(anchor.removeprefix("module-"), text, text)


def fold(name: str, described: nodes.Element | list[nodes.Node], folded: list[nodes.Node]) -> None:
    """Fold nodes that follow each other, under a line.

    Args:
        name: Full name; without that of the library it begins the line.
        described: Docstring, whose first paragraph goes on the line.
        folded: What is folded.
    """
    line, parent = Line("", "", nodes.literal("", name.removeprefix("fairlib."))), folded[0].parent
    place, anchors = parent.index(folded[0]), []
    for node in folded:
        parent.remove(node)
    # The anchor has to stay with the line: a link to something folded must find it, and opens it.
    if described and isinstance(described[0], nodes.paragraph):
        anchors = described[0]["ids"]
        line += [nodes.Text(" "), *without_links(described.pop(0))]
    parent.insert(place, Fold("", line, *folded, ids=anchors))


def without_links(paragraph: nodes.paragraph) -> list[nodes.Node]:
    """Return the content of a paragraph without links, since the line itself opens on a click."""
    for reference in list(paragraph.findall(nodes.reference)):
        reference.parent.replace(reference, reference.children)
    return paragraph.children


def element(tag: str) -> tuple[Any, Any]:
    """Return the functions that write the start and the end of an HTML element."""

    def start(translator: Any, node: nodes.Element) -> None:
        translator.body.append(translator.starttag(node, tag, CLASS=f"reference-{tag}"))

    return start, lambda translator, node: translator.body.append(f"</{tag}>\n")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_node(Fold, html=element("details"))
    app.add_node(Line, html=element("summary"))
    # Before words are linked to the glossary, which happens at 500.
    app.connect("doctree-resolved", fold_page, priority=400)
    app.add_css_file("reference.css")
    app.add_js_file("unfold.js")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
