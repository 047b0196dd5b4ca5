"""Figures and tables of single pages, on numbers worked by hand."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from claim_samples import study_table

from whopays.figures import mitigation, pruning


def test_answers_are_changes_of_accuracy_times_size():
    rows = [
        (stage, mitigation_, 0 if mitigation_ == "none" else 2, group, size, accuracy)
        for stage in ("control", "compressed")
        for mitigation_, accuracies in (("none", (0.9, 0.2)), ("equal-loss", (0.8, 0.5)))
        for group, size, accuracy in zip(("many", "few"), (930, 70), accuracies, strict=True)
    ]
    columns = ["stage", "mitigation", "strength", "group", "size", "accuracy"]
    table = pd.DataFrame(rows, columns=columns)
    table = table.assign(seed=0, split="test", budget="epochs", train_size=table["size"])
    found = mitigation.answer_changes(table)["equal-loss"]
    assert found.loc[0].to_dict() == {"many": -93, "few": 21, "all": -72}
    assert mitigation.net_answers(table).index.tolist() == [
        ("equal-loss", "pruned"),
        ("equal-loss", "not pruned"),
    ]


def test_the_share_that_remains_with_equal_sizes():
    rows = [
        (seed, setting, stage, split, group, size, 0.9 - drop * (stage == "compressed"))
        for seed in (0, 1)
        for setting, lost in (("unequal", 0.2), ("equal", 0.05))
        for stage in ("control", "compressed")
        for split in ("train", "test")
        for group, size, drop in (("many", 900, 0.0), ("few", 100, lost))
    ]
    columns = ["seed", "setting", "stage", "split", "group", "size", "accuracy"]
    table = pd.DataFrame(rows, columns=columns).assign(when="never")
    table["level"] = (table["stage"] == "compressed") * 0.9
    found = pruning.size_differences(table).loc[0.9]
    assert float(found["share that remains"]) == pytest.approx(0.25)
    assert found["equal minus unequal"].startswith("-15.0")


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
    found = pruning.small_beside_large(study)
    assert list(found) == ["pruned, 0.9", "2 bits"]
    assert found["pruned, 0.9"].tolist() == pytest.approx([10, 30])
    assert found["2 bits"].tolist() == pytest.approx([0, 0])
    assert list(pruning.small_beside_large(study, arm="quantize")) == ["2 bits"]


def test_a_row_a_way_and_a_colour_a_question(study):
    questions = {"all": {}, "one way": {"arm": ["prune"]}}
    figure = pruning.who_pays(study, questions)
    (axis,) = figure.axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["pruned, 0.9", "2 bits"]
    assert axis.get_legend_handles_labels()[1] == list(questions)
    assert "points" in axis.get_xlabel()
    plt.close(figure)
