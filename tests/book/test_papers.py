"""Pages of the papers: every claim once, in the paper's order, with what each table says."""

from __future__ import annotations

import re

import pandas as pd
import papers
import pytest

from whopays import claims


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Figures 4a, 5 and 7 to 9 of [T]: ours", {4, 5, 7, 8, 9}),
        ("Figures 3b and 3f of [T].", {3}),
        ("Figure 1 of [B], Table 2 of [D]", set()),
        ("our counterpart of Figures 12 and 13 of [T] with VGG-19", {12, 13}),
    ],
)
def test_figures_are_read_from_the_words_of_a_caption(text, expected):
    assert papers.items(text, "T") == {("Figure", number) for number in expected}


ROWS = pd.DataFrame(
    {
        "claim": ["T-fig-1", "T-fig-1", "T-fig-4a"],
        "reading": "printed",
        "evidence": ["embedded study", "default run", "embedded study"],
        "table": ["results/pruning/matthew-effect-study.csv", "", ""],
        "data": ["digits", "digits", "digits"],
        "decides": [False, True, True],
        "verdict": ["supported", "undecided", "no effect"],
        "estimate": [0.2, 0.1, 0.0],
        "low": [0.1, -0.1, -0.01],
        "high": [0.3, 0.3, 0.01],
        "in_points": True,
        "seeds": [30, 5, 10],
    }
)


@pytest.mark.parametrize("paper", [letter for letter in claims.PAPERS if letter != "H"])
def test_a_page_has_every_claim_of_its_paper_once_and_in_order(paper):
    text = papers.page(paper, ROWS)
    listed = re.findall(r"(?m)^- \[([\w.-]+)\]\(#\1\)", text)
    known = [name for name, claim in claims.registered().items() if claim.paper == paper]
    assert sorted(listed) == sorted(known)
    figures = [int(number) for number in re.findall(r"(?m)^## Figure (\d+)$", text)]
    assert figures == sorted(set(figures)) and len(figures) > 7


def test_a_claim_shows_each_table_and_those_of_its_own_data_first():
    text = papers.page("T", ROWS)
    first = text[text.index("- [T-fig-1](#T-fig-1)") : text.index("- [T-fig-1-minority]")]
    assert re.findall(r"\*\*(.*?)\*\*.*: (.*)", first) == [
        ("undecided", "10.0 [-10.0, 30.0] points"),
        ("supported", "20.0 [10.0, 30.0] points"),
    ]
    assert ":::{dropdown} Setting of t-fig-1: not run as printed\n" in text
    assert "`make sweep GRID=params/paper/pruning/t-fig-1.yml`" in text
    assert "{numref}`matthew-utkface`" in text
    assert "No table of it has been recorded." in text
