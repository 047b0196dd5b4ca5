"""No result is typed into the prose of a page, and each page opens with what it found."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted(ROOT.glob("notebooks/*/*.ipynb"))
EXPERIMENTS = [path for path in NOTEBOOKS if path.parent.name != "theory"]

# What is no result: the number of a theorem, code, formulas, citations and other roles, links, exercises and solutions.
NO_RESULT = re.compile(
    r"\b(?:Theorem|Proposition|Lemma|Section|Equation)s? [\d.]+"
    r"|^(`{3,}|:{3,}).*?^\1$|\$\$.*?\$\$|\$[^$]+\$|\{[a-z:]+\}`[^`]*`|`[^`]*`|\]\([^)]*\)|<[^>]*>",
    re.MULTILINE | re.DOTALL,
)
TYPED = re.compile(r"\d+\.\d+|\d+ ?%|\[[-\d]")


def named(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def cells(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def source(cell: dict) -> str:
    return "".join(cell["source"])


def typed(text: str) -> list[str]:
    """Numbers in Markdown that may be results: decimals, percentages and intervals."""
    return [found for line in NO_RESULT.sub(" ", text).splitlines() for found in TYPED.findall(line)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It loses 3.1 points [1.4, 4.8].", ["3.1", "[1", "4.8"]),
        ("It keeps 90 % of them", ["90 %"]),
        ("At a sparsity of $0.9$ or `0.9`, {cite:p}`a2.5`, [Figure](x1.5.md), in 2022", []),
        ("```{exercise} A\nSet it to 0.5.\n```\nand 0.5", ["0.5"]),
    ],
)
def test_a_typed_number_is_found(text: str, found: list[str]):
    assert typed(text) == found


@pytest.mark.parametrize("page", EXPERIMENTS, ids=named)
def test_no_result_is_typed(page: Path):
    assert not typed("\n\n".join(source(cell) for cell in cells(page) if cell["cell_type"] == "markdown"))


@pytest.mark.parametrize("page", NOTEBOOKS, ids=named)
def test_a_page_opens_with_the_question_and_what_it_found(page: Path):
    title, *rest = cells(page)
    assert len(re.sub(r"^# .*", "", source(title)).split()) <= 80, "the question is too long"
    first = next(place for place, cell in enumerate(rest) if "prose.in_short(" in source(cell))
    shown = [cell for cell in rest[:first] if cell["cell_type"] == "markdown"]
    assert not shown, "something stands before what was found"
    drawn = [cell for cell in rest[first : first + 3] if "mystnb" in cell["metadata"] or "{image}" in source(cell)]
    assert drawn, "no picture follows what was found"


@pytest.mark.parametrize("page", NOTEBOOKS, ids=named)
def test_texts_hide_their_code(page: Path):
    for cell in cells(page):
        if re.search(r"prose\.(say|in_short)\(", source(cell)):
            assert cell["metadata"]["tags"] == ["remove-input"]
            assert cell["metadata"]["jupyter"] == {"source_hidden": True}
