"""Tables of single pages, by hand."""

import pandas as pd
import pytest

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
    assert found["equal minus unequal"].startswith("-0.150")
