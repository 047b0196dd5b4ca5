"""The reference in lines that open: a name and what it does; signature, parameters and example
stand below, folded.

On the pages of ``book/reference`` the first paragraph of the docstring of a function, class or
module becomes the line. On paper nothing is folded.
"""

from __future__ import annotations

from itertools import dropwhile, takewhile
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

FOLDER = "book/reference/"


class Fold(nodes.General, nodes.Element):
    """What can be folded; its first child is a :class:`Line`, which is always seen."""


class Line(nodes.General, nodes.TextElement):
    """What is seen of something folded."""


def fold_page(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Fold every docstring on a page of the reference that is not part of another one."""
    if not docname.startswith(FOLDER) or app.builder.format != "html":
        return
    for description in list(doctree.findall(addnodes.desc)):
        if isinstance(description.parent, nodes.section | nodes.document):
            signature, content = description.next_node(addnodes.desc_signature), description[-1]
            fold(
                "".join(part.astext() for part in signature.findall(is_name)),
                content,
                [description],
            )
    for module in [node for node in doctree.findall(addnodes.index) if is_module(node)]:
        after = module.parent[module.parent.index(module) + 1 :]
        text = list(takewhile(is_text, dropwhile(is_target, after)))
        if text:
            fold(module["entries"][0][2].removeprefix("module-"), text, text)


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
    if described and isinstance(described[0], nodes.paragraph):
        anchors = described[0]["ids"]
        line += [nodes.Text(" "), *without_links(described.pop(0))]
    parent.insert(place, Fold("", line, *folded, ids=anchors))


def is_module(node: addnodes.index) -> bool:
    """Tell whether an entry of the index is that of a module."""
    return any(anchor.startswith("module-") for _, _, anchor, *_ in node["entries"])


def is_target(node: nodes.Node) -> bool:
    """Tell whether a node is one that only links lead to."""
    return isinstance(node, nodes.target)


def is_text(node: nodes.Node) -> bool:
    """Tell whether a node can belong to the docstring of the module before it."""
    return not isinstance(
        node, nodes.section | nodes.target | addnodes.desc | addnodes.index | Fold
    )


def is_name(node: nodes.Node) -> bool:
    """Tell whether a node is a part of the full name in a signature."""
    return isinstance(node, addnodes.desc_addname | addnodes.desc_name)


def without_links(paragraph: nodes.paragraph) -> list[nodes.Node]:
    """The content of a paragraph; a line that opens on a click holds nothing else to click on."""
    for reference in list(paragraph.findall(nodes.reference)):
        reference.parent.replace(reference, reference.children)
    return paragraph.children


def element(tag: str) -> tuple[Any, Any]:
    """Functions that write the start and the end of an HTML element of the reference."""
    return (
        lambda translator, node: translator.body.append(
            translator.starttag(node, tag, CLASS=f"reference-{tag}")
        ),
        lambda translator, node: translator.body.append(f"</{tag}>\n"),
    )


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_node(Fold, html=element("details"))
    app.add_node(Line, html=element("summary"))
    app.connect(
        "doctree-resolved", fold_page, priority=400
    )  # Before words are linked to the glossary.
    app.add_css_file("reference.css")
    app.add_js_file("unfold.js")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
