"""What is measured by group: against fairlearn, scikit-learn and loops."""

from __future__ import annotations

import numpy as np
import pytest

import fairlib
from fairlib import statistics


def predicted(seed, classes=3, size=3000):
    """Targets, groups, and logits before and after, of classes and groups that differ in size."""
    generator = np.random.default_rng(seed)
    targets = generator.choice(classes, size, p=np.arange(1, classes + 1) / sum(range(classes + 1)))
    groups = generator.choice(["a", "b", "c"], size, p=[0.6, 0.3, 0.1])
    before = generator.normal(size=(size, classes)) + 2 * np.eye(classes)[targets]
    return (
        targets,
        groups,
        before,
        before + generator.normal(size=(size, classes)) * (1 + (groups == "c"))[:, None],
    )


def test_rates_are_those_of_fairlearn_and_scikit_learn():
    from fairlearn import metrics
    from sklearn.metrics import recall_score

    targets, groups, before, after = predicted(0)
    report = fairlib.audit(before, after, targets=targets, groups=groups)
    functions = {
        "selection_rate": metrics.selection_rate,
        "false_negative_rate": metrics.false_negative_rate,
        "false_positive_rate": metrics.false_positive_rate,
    }
    for when, scores in (("before", before), ("after", after)):
        for label in range(3):
            binary = {"y_true": targets == label, "y_pred": scores.argmax(1) == label}
            for name, function in functions.items():
                frame = metrics.MetricFrame(metrics=function, **binary, sensitive_features=groups)
                found = report.rates.xs(str(label), level="class")[f"{name}_{when}"]
                assert found[["a", "b", "c"]].to_numpy() == pytest.approx(
                    frame.by_group.to_numpy(float), abs=1e-12
                )
                assert found["all"] == pytest.approx(frame.overall, abs=1e-12)
            recall = 1 - report.rates.loc[("all", str(label)), f"false_negative_rate_{when}"]
            assert recall == pytest.approx(recall_score(**binary), abs=1e-12)
        accuracy = metrics.MetricFrame(
            metrics=lambda y_true, y_pred: np.mean(y_true == y_pred),
            y_true=targets, y_pred=scores.argmax(1), sensitive_features=groups,
        )  # fmt: skip
        assert report.table.loc["a":"c", f"accuracy_{when}"].to_numpy() == pytest.approx(
            accuracy.by_group.to_numpy()
        )
        worst = report.table.drop("all")[f"accuracy_{when}"].min()
        assert worst == pytest.approx(accuracy.group_min(), abs=1e-12)
        gap = report.violations.loc[f"accuracy_{when}", "estimate"]
        assert gap == pytest.approx(accuracy.difference(method="between_groups"), abs=1e-12)
        ratios = report.contrasts[f"ratio_{when}"]
        expected = accuracy.by_group / accuracy.by_group["a"]  # The largest group.
        assert ratios.to_numpy() == pytest.approx(expected.to_numpy(float), abs=1e-12)
    other = fairlib.audit(before, after, targets=targets, groups=groups, reference="c").contrasts[
        "ratio_after"
    ]
    assert other["c"] == 1 and other["a"] == pytest.approx(ratios["a"] / ratios["c"])


def test_flips_are_counted_by_what_became_of_them():
    """Of nine samples three stay, two are lost, one is gained, two are wrong in another way, one
    changes nothing."""
    targets = ["x", "x", "x", "x", "x", "y", "y", "y", "z"] * 20
    before = ["x", "x", "x", "x", "x", "x", "x", "z", "z"] * 20
    after = ["x", "x", "x", "y", "z", "y", "z", "x", "z"] * 20
    report = fairlib.audit(before, after, targets=targets, groups=(["g"] * 9 + ["h"] * 9) * 10)
    row = report.flips.loc["g"]
    assert row[["lost", "gained", "other"]].tolist() == [20, 10, 20] and row[
        "changed"
    ] == pytest.approx(5 / 9)
    assert report.flips.loc["all", ["lost", "gained", "other"]].tolist() == [40, 20, 40]
    low, high = statistics.wilson(50, 90, statistics.normal_z(0.95))
    assert (row["changed_low"], row["changed_high"]) == pytest.approx((low, high))


def test_calibration_errors_are_those_of_a_loop_over_bins_and_perfect_models_are_within_the_null():
    _, groups, before, _ = predicted(2)
    soft = np.exp(before) / np.exp(before).sum(1, keepdims=True)
    generator = np.random.default_rng(0)
    perfect = np.array([generator.choice(3, p=row) for row in soft])
    report = fairlib.audit(soft, before * 3, targets=perfect, groups=groups)
    confidence, right = soft.max(1), soft.argmax(1) == perfect
    for name, members in {"a": groups == "a", "all": np.ones(len(groups), dtype=bool)}.items():
        error = 0.0
        for low in np.arange(15) / 15:
            within = (
                members & (confidence >= low) & ((confidence < low + 1 / 15) | (low == 14 / 15))
            )
            if within.any():
                error += (
                    within.sum()
                    * abs(right[within].mean() - confidence[within].mean())
                    / members.sum()
                )
        assert report.calibration.loc[name, "before"] == pytest.approx(error)
    assert (report.calibration["before"] <= report.calibration["before_null_upper"] * 1.2).all()
    assert (
        report.calibration["after"] > report.calibration["after_null_upper"]
    ).all()  # Three times too sure.
