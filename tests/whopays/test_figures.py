"""Figures of single pages, on numbers worked by hand."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from claim_samples import study_table

from whopays import figures


@pytest.fixture
def study() -> pd.DataFrame:
    """Two seeds of two groups. Pruned, the small one loses 20 and 40 points and the large one 10;
    in two bits both lose nothing."""
    sizes, dense = {0: [90, 10], 1: [90, 10]}, {0: [0.9, 0.8], 1: [0.9, 0.8]}
    pruned = study_table(sizes, dense, {0: [0.8, 0.6], 1: [0.8, 0.4]}).assign(arm="prune")
    rounded = study_table(sizes, dense, dense).assign(arm="quantize")
    both = pd.concat([pruned, rounded], ignore_index=True)
    both = both[both["level"] != 0.5]
    both.loc[(both["arm"] == "quantize") & (both["level"] == 0.9), "level"] = 2.0
    return both


def test_the_small_group_beside_the_large_one_in_points_by_way(study):
    found = figures.small_beside_large(study)
    assert list(found) == ["pruned, 0.9", "2 bits"]
    assert found["pruned, 0.9"].tolist() == pytest.approx([10, 30])
    assert found["2 bits"].tolist() == pytest.approx([0, 0])
    assert list(figures.small_beside_large(study, arm="quantize")) == ["2 bits"]


def test_a_row_a_way_and_a_colour_a_question(study):
    questions = {"all": {}, "one way": {"arm": ["prune"]}}
    figure = figures.who_pays(study, questions)
    (axis,) = figure.axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["pruned, 0.9", "2 bits"]
    assert axis.get_legend_handles_labels()[1] == list(questions)
    assert "points" in axis.get_xlabel()
    plt.close(figure)
