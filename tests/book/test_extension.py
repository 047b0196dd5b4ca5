"""Figures become part of the page: its colours and font, ids of their own, a text for those who do
not see them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from docutils import nodes
from docutils.utils import new_document

pages = pytest.importorskip("pages")

DRAWN = """<?xml version="1.0"?>
<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"
 width="100pt" height="50pt" viewBox="0 0 100 50">
 <style>*{stroke: red}</style>
 <defs><path id="m1" d="M0 0" style="stroke: #000000"/><clipPath id="c"><rect/></clipPath></defs>
 <g id="patch_1">
  <path d="M0 0" style="fill: #ffffff"/></g>
 <g id="unused" clip-path="url(#c)"><use xlink:href="#m1" style="fill: #0072b2"/></g>
 <rect fill="#FFFFFF" stroke="#D55E00" style="opacity: 0.5"/>
 <text style="font: 10px 'DejaVu Sans', sans-serif; text-anchor: middle">a</text>
</svg>"""


@pytest.fixture
def inlined() -> str:
    return pages.inline_svg(DRAWN, 'a "b" & c', "s1")


def test_it_is_one_element_with_a_text(inlined: str):
    (svg,) = ElementTree.fromstring(inlined)
    assert svg.attrib["role"] == "img" and svg.attrib["aria-label"] == 'a "b" & c'
    assert (
        "--natural: 133px; max-width: 133px" in svg.attrib["style"]
        and svg.attrib["viewBox"] == "0 0 100 50"
    )


def test_colours_and_font_are_the_pages(inlined: str):
    assert "#" not in inlined.replace('"#s1-', "").replace("(#s1-", "")
    assert "fill: var(--plot-1)" in inlined and '<path d="M0 0" style="fill: none"/>' in inlined
    assert (
        'style="fill: var(--pst-color-background); stroke: var(--plot-2); opacity: 0.5"' in inlined
    )
    assert "font-size: 10px; text-anchor: middle" in inlined and "DejaVu" not in inlined
    assert "<style" not in inlined


def test_ids_are_its_own(inlined: str):
    assert 'id="s1-m1"' in inlined and 'xlink:href="#s1-m1"' in inlined and "url(#s1-c)" in inlined
    assert "unused" not in inlined


def test_a_figure_of_a_notebook_has_both_of_its_shapes(tmp_path):
    stacked = f'<metadata class="narrow">{DRAWN[DRAWN.index("<svg") :]}</metadata></svg>'
    (tmp_path / "drawn.svg").write_text(DRAWN.replace("</svg>", stacked))
    builder = SimpleNamespace(srcdir=tmp_path, images={})
    translator = SimpleNamespace(builder=builder, body=[])
    pages.visit_image(translator, nodes.image(uri="drawn.svg", alt="a"))
    (shapes,) = translator.body
    assert 'class="wide"' in shapes and 'id="s0-m1"' in shapes
    assert 'class="narrow"' in shapes and 'id="s0n-m1"' in shapes
    assert shapes.count("<svg") == shapes.count("</svg>")


def test_folds_say_what_they_show_and_none_comes_before_the_finding():
    """Two folds of set-up, the finding, its figure, a table."""
    outputs = [], [], nodes.block_quote(), nodes.figure(), nodes.raw("", 'class="dataframe"')
    section = nodes.section()
    for name, output in zip("abcde", outputs, strict=True):
        code = nodes.container("", nodes.literal_block("", name))
        look = {"classes": ["cell"], "hide_mode": "input", "prompt_show": "Show the code"}
        section += nodes.container("", code, **look)
        section[-1] += output
    setup, _, finding, figure, table = section
    document = new_document("page")
    document += section
    config = SimpleNamespace(nb_code_prompt_show="Show the code")
    pages.order_folds(SimpleNamespace(config=config), document)
    assert section.children == [finding, figure, setup, table]
    assert setup.astext().split() == ["a", "b"] and "moved-2" in setup["classes"]
    names = ["code of this figure", "set-up", "code of this table"]
    assert [cell["prompt_show"][9:] for cell in section[1:]] == names


@pytest.mark.slow
def test_a_build_of_the_sources_ends_with_the_command_that_makes_the_book(tmp_path):
    """The sources alone have no number, figure or result: without an end the pages look right."""
    root = Path(__file__).parents[2]
    command = [
        str(Path(sys.executable).with_name("jupyter-book")),
        "build",
        ".",
        "--path-output",
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=200)
    assert done.returncode and "`make book` runs the notebooks" in done.stdout + done.stderr
    assert not list(tmp_path.rglob("*.html"))
