"""No result is typed into the prose of a page, and each page opens with what it found."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted(ROOT.glob("notebooks/*/*.ipynb"))
EXPERIMENTS = [path for path in NOTEBOOKS if path.parent.name != "theory"]

# What is no result: the number of a theorem, code, formulas, citations and other roles, links.
NO_RESULT = re.compile(
    r"\b(?:Theorem|Proposition|Lemma|Section|Equation)s?\s[\d.]+"
    r"|^```python$.*?^```$|\$\$.*?\$\$|\$[^$]+\$|\{[a-z:]+\}`[^`]*`|(?<!`)`[^`\n]+`(?!`)|\]\([^)]*\)|<[^>]*>",
    re.MULTILINE | re.DOTALL,
)
TYPED = re.compile(r"\d+\.\d+|\d+ ?(?:%|percent\b|points\b)|\[[-\d]")


def named(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def cells(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def source(cell: dict) -> str:
    return "".join(cell["source"])


def typed(text: str) -> list[str]:
    """Numbers in Markdown that may be results: decimals, percentages, points and intervals."""
    return [
        found for line in NO_RESULT.sub(" ", text).splitlines() for found in TYPED.findall(line)
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It loses 3.1 points [1.4, 4.8].", ["3.1", "[1", "4.8"]),
        ("It keeps 90 % of them", ["90 %"]),
        ("At a sparsity of $0.9$ or `0.9`, {cite:p}`a2.5`, [Figure](x1.5.md), in 2022", []),
        ("It loses 42 percent, or 13 points", ["42 percent", "13 points"]),
        ("```{solution} a\nSee\n```python\nlr=0.1\n```\nthat it is 0.5.\n```", ["0.5"]),
    ],
)
def test_a_typed_number_is_found(text: str, found: list[str]):
    assert typed(text) == found


@pytest.mark.parametrize("page", EXPERIMENTS, ids=named)
def test_no_result_is_typed(page: Path):
    assert not typed(
        "\n\n".join(source(cell) for cell in cells(page) if cell["cell_type"] == "markdown")
    )


def shown(code: ast.Module) -> list[list[ast.expr]]:
    """The parts of each text that a cell shows by ``prose.say`` or ``prose.in_short``."""
    calls = [node for node in ast.walk(code) if isinstance(node, ast.Call)]
    texts = [
        call.args[0] for call in calls if ast.unparse(call.func) in ("prose.say", "prose.in_short")
    ]
    return [text.values if isinstance(text, ast.JoinedStr) else [text] for text in texts]


def typed_beside_code(codes: list[str]) -> list[str]:
    """Numbers typed into the texts that cells show, but for the constants of their code: the
    settings of the page."""
    trees = [ast.parse(code) for code in codes]
    texts = [parts for tree in trees for parts in shown(tree)]
    own = {id(part) for parts in texts for part in parts}
    constants = [
        node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)
    ]
    settings = re.findall(
        r"\d+\.\d+", " ".join(str(node.value) for node in constants if id(node) not in own)
    )
    words = [
        "".join(part.value if isinstance(part, ast.Constant) else "X" for part in parts)
        for parts in texts
    ]
    return [number for text in words for number in typed(text) if number not in settings]


def test_a_number_typed_into_a_computed_text_is_found():
    codes = [
        "level = 0.9",
        'prose.say(f"At 0.9 they lose {points(0.7)}, at 0.7 and 0.8 it is 2.5 points [1, 2]")',
    ]
    assert typed_beside_code(codes) == ["0.8", "2.5", "[1"]


@pytest.mark.parametrize("page", EXPERIMENTS, ids=named)
def test_no_result_is_typed_into_a_computed_text(page: Path):
    codes = [source(cell) for cell in cells(page) if cell["cell_type"] == "code"]
    assert not typed_beside_code(codes[1:])  # The first has a line for IPython.


@pytest.mark.parametrize("page", NOTEBOOKS, ids=named)
def test_a_page_opens_with_the_question_and_what_it_found(page: Path):
    title, *rest = cells(page)
    assert len(re.sub(r"^# .*", "", source(title)).split()) <= 80, "the question is too long"
    first = next(place for place, cell in enumerate(rest) if "prose.in_short(" in source(cell))
    shown = [cell for cell in rest[:first] if cell["cell_type"] == "markdown"]
    assert not shown, "something stands before what was found"
    drawn = [
        cell
        for cell in rest[first : first + 3]
        if "mystnb" in cell["metadata"] or "{image}" in source(cell)
    ]
    assert drawn, "no picture follows what was found"


@pytest.mark.parametrize("page", NOTEBOOKS, ids=named)
def test_texts_hide_their_code(page: Path):
    for cell in cells(page):
        if re.search(r"prose\.(say|in_short)\(", source(cell)):
            assert cell["metadata"]["tags"] == ["remove-input"]
            assert cell["metadata"]["jupyter"] == {"source_hidden": True}
