from __future__ import annotations

import numpy as np
import torch
from torch import nn

import fairlib
from fairlib.diagnostics import diagnose, error_rates, group_performance
from fairlib.diagnostics.performance import constant_accuracy

GROUPS, TARGETS = (
    [0, 0, 0, 0, 1, 1, 1],
    [0, 0, 0, 1, 0, 1, 1],
)  # Class 0 four times, class 1 three times.


def _data(targets=TARGETS) -> fairlib.GroupedDataset:
    names = {"target_names": ["no", "yes"], "group_names": ["a", "b", "empty"]}
    return fairlib.GroupedDataset(np.zeros((7, 1, 8, 8), np.float32), targets, GROUPS, **names)


def test_the_constant_answer_is_the_most_frequent_class_of_all_groups_together():
    found = constant_accuracy(_data())["constant"]
    assert found.index.tolist() == ["a", "b", "empty"]
    np.testing.assert_allclose(found, [3 / 4, 1 / 3, np.nan])
    np.testing.assert_allclose(
        constant_accuracy(_data([1 - y for y in TARGETS]))["constant"], [3 / 4, 1 / 3, np.nan]
    )


def test_the_constant_answer_has_the_accuracy_of_a_network_that_gives_it():
    always = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))  # The inputs are zero: the bias decides.
    nn.init.zeros_(always[1].bias)
    always[1].bias.data[0] = 1.0
    expected = group_performance(always, _data())["accuracy"]
    np.testing.assert_allclose(constant_accuracy(_data())["constant"], expected)


def test_a_column_that_has_the_name_of_its_diagnostic_keeps_it():
    table, reason = diagnose("constant", nn.Identity(), _data())
    assert table.columns.tolist() == ["constant"] and reason is None
    study = fairlib.study(
        ("digits", {"limit": 300}),
        ("cnn", {"width": 0.25}),
        "prune:magnitude",
        [0.5],
        seeds=[0],
        train={"epochs": 1},
        finetune={"epochs": 0},
        diagnostics=["constant"],
    )
    splits = fairlib.load("digits", limit=300, seed=0)
    for split, part in (("train", splits.train), ("test", splits.test)):
        rows = study[(study["split"] == split) & (study["stage"] == "dense")].set_index("group")
        np.testing.assert_allclose(
            rows["constant"], constant_accuracy(part)["constant"].loc[rows.index]
        )


def test_error_rates_are_those_of_a_confusion_matrix_in_each_group():
    from sklearn.metrics import confusion_matrix

    rng = np.random.default_rng(0)
    inputs, groups = rng.normal(size=(200, 5)).astype(np.float32), rng.integers(0, 3, 200)
    targets = rng.integers(0, 2, 200)
    model = nn.Linear(5, 2)
    found = error_rates(model, fairlib.GroupedDataset(inputs, targets, groups))
    answers = model(torch.from_numpy(inputs)).argmax(1).numpy()
    for group, row in enumerate(found.itertuples()):
        own = groups == group
        (tn, fp), (fn, tp) = confusion_matrix(targets[own], answers[own])
        np.testing.assert_allclose(row.true_positive, tp / (tp + fn))
        np.testing.assert_allclose(row.false_positive, fp / (fp + tn))
        assert row.positives == tp + fn


def test_a_group_without_positives_has_no_true_positive_rate():
    found = error_rates(nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), _data([0] * 4 + [0, 1, 1]))
    assert found["true_positive"].isna().tolist() == [True, False, True]
    assert found["false_positive"].isna().tolist() == [False, False, True]
    assert found["positives"].tolist() == [0, 2, 0]


def test_rates_of_more_than_two_classes_are_missing_and_the_study_says_why():
    data = fairlib.load("digits", limit=300).train
    table, reason = diagnose("rate", fairlib.build("cnn", like=data, width=0.25), data)
    assert table["rate_true_positive"].isna().all()
    assert reason == (
        "rate: could not be computed for this model (rates of errors need two classes, got 10)"
    )
