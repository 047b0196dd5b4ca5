from __future__ import annotations

import copy
import json

import numpy as np
import pandas as pd
import pytest
import torch
from test_measures import predicted
from torch import nn
from torch.nn.functional import cross_entropy

import fairlib
from fairlib import statistics


@pytest.fixture
def pair(cnn, images):
    dense = fairlib.fit(cnn, images, epochs=10, batch_size=12)
    return dense, fairlib.prune(dense, "magnitude", sparsity=0.8)


def _losses(model: nn.Module, data: fairlib.GroupedDataset) -> tuple[np.ndarray, np.ndarray]:
    with torch.no_grad():
        logits = model(data.inputs.float() / 255)
    loss = cross_entropy(logits.double(), data.targets, reduction="none")
    return loss.numpy(), (logits.argmax(1) == data.targets).numpy().astype(float)


def test_table_is_the_definition_of_every_column(pair, images):
    table = fairlib.audit(*pair, images, resamples=50).table
    (loss, right), (small_loss, small_right) = (_losses(model, images) for model in pair)
    names = [*images.group_names, "all"]
    assert list(table.index) == names and table.index.name == "group"
    quantities = [
        "accuracy_before",
        "accuracy_after",
        "drop",
        "relative_drop",
        "loss_before",
        "loss_after",
        "excessive_loss",
    ]
    expected_columns = ["size", *(f"{q}{end}" for q in quantities for end in ("", "_low", "_high"))]
    assert list(table)[: len(expected_columns)] == expected_columns
    assert list(table)[len(expected_columns) :] == [
        "gradient_norm",
        "gradient_noise_floor",
        "gradient_debiased_square",
    ]
    for code, name in enumerate(names):
        members = images.groups.numpy() == code if name != "all" else np.ones(120, dtype=bool)
        row = table.loc[name]
        assert row["size"] == members.sum()
        assert row["drop"] == pytest.approx(right[members].mean() - small_right[members].mean())
        assert row["relative_drop"] == pytest.approx(row["drop"] / right[members].mean())
        assert row["excessive_loss"] == pytest.approx(
            small_loss[members].mean() - loss[members].mean(), rel=1e-4
        )
        for quantity in quantities:
            assert row[f"{quantity}_low"] <= row[quantity] + 1e-9
            assert row[f"{quantity}_high"] >= row[quantity] - 1e-9


def test_violations_are_max_minus_min_beside_their_null(pair, images):
    report = fairlib.audit(*pair, images, resamples=200)
    groups = report.table.iloc[:-1]
    assert list(report.violations.index) == [
        "excessive_loss",
        "accuracy_before",
        "accuracy_after",
        "drop",
    ]
    for name, row in report.violations.iterrows():
        assert row["estimate"] == pytest.approx(groups[name].max() - groups[name].min())
        assert row["null_mean"] >= 0 and 0 < row["p_value"] <= 1
        many, some, few = groups[name]
        assert row["pairs"] == pytest.approx(
            (abs(many - some) + abs(many - few) + abs(some - few)) / 3
        )
        assert 0 <= row["pairs_low"] <= row["pairs"] <= row["pairs_high"]
    (loss, _), (small_loss, _) = (_losses(model, images) for model in pair)
    excess = statistics.numbers(small_loss - loss, images.groups.numpy(), 3)
    null = statistics.permuted(excess, small_loss - loss, permutations=200)
    assert report.violations.loc["excessive_loss", "p_value"] == pytest.approx(
        statistics.gap(excess, null).p_value, 0.05
    )


def scripted(before, after):
    """Two models and two groups of 1,000; a model is right about the first so many of a group."""
    inputs = torch.zeros(2000, 2)
    for column, shares in enumerate((before, after)):
        for group, share in enumerate(shares):
            inputs[1000 * group : 1000 * group + round(1000 * share), column] = 2.0
    inputs -= 1
    models = []
    for column in (0, 1):
        models.append(nn.Linear(2, 2, bias=False))
        with torch.no_grad():
            models[-1].weight.zero_()[1, column] = 1
    data = fairlib.GroupedDataset(
        inputs, torch.ones(2000, dtype=torch.long), torch.arange(2000) // 1000
    )
    return models, data


@pytest.mark.parametrize(
    ("before", "after", "performance", "degradation"),
    [
        ((0.9, 0.7), (0.8, 0.6), "unfair", "fair"),
        ((0.9, 0.6), (0.7, 0.7), "fair", "unfair"),
        ((0.8, 0.8), (0.7, 0.5), "unfair", "unfair"),
        ((0.8, 0.8), (0.75, 0.70), "undecided", "undecided"),
    ],
)
@pytest.mark.filterwarnings("ignore:the model before compression cannot be told from chance")
def test_the_definitions_of_a_fair_model(before, after, performance, degradation):
    """The pairs of the chapter on theory, tau 0.05."""
    models, data = scripted(before, after)
    report = fairlib.audit(*models, data, diagnostics=(), resamples=300)
    found = report.fairness(0.05)
    assert found["verdict"].tolist() == [performance, degradation]
    differences = [abs(after[0] - after[1]), abs(before[0] - after[0] - before[1] + after[1])]
    assert found["difference"].tolist() == pytest.approx(differences)
    assert report.violations.loc[["accuracy_after", "drop"], "pairs"].tolist() == pytest.approx(
        differences
    )


@pytest.mark.filterwarnings("ignore:the model before compression cannot be told from chance")
def test_nothing_is_called_fair_or_unfair_that_was_not_measured():
    """One group; a second of a few samples, too few to judge; and of enough of them, all right or
    all wrong."""

    def found(size, right=1.0):
        models, data = scripted((1.0, 1.0), (1.0, right))
        report = fairlib.audit(
            *models, data.subset(range(1000 + size)), diagnostics=(), resamples=50
        )
        assert report.violations["estimate"].isna().all() == (size < 10)
        return report.fairness(0.05)

    alone = found(0)
    assert set(alone["verdict"]) == {"not computable"}
    assert alone[["difference", "low", "high"]].isna().all(axis=None)
    assert set(found(9)["verdict"]) == {"not computable"}
    # All thirty are right, but could be wrong one time in ten.
    assert set(found(30)["verdict"]) == {"undecided"}
    assert set(found(200)["verdict"]) == {"fair"}
    assert set(found(10, right=0.0)["verdict"]) == {"unfair"}


@pytest.mark.filterwarnings("ignore:the model before compression cannot be told from chance")
def test_nobody_is_called_fair_while_a_group_is_too_small():
    """Three groups, all right before and after, the third of five samples: it is listed and not
    compared."""
    targets, groups = [1] * 2005, ["a"] * 1000 + ["b"] * 1000 + ["c"] * 5
    report = fairlib.audit(targets, targets, targets=[0, *targets[1:]], groups=groups)
    assert (
        report.too_small == ("c",)
        and list(report.contrasts.index) == ["a", "b"]
        and "c" in report.table.index
    )
    assert set(report.fairness()["verdict"]) == {"undecided"}
    assert any(
        note.startswith("too small to be judged, with fewer than 10 samples: c (5)")
        for note in report.notes
    )


def test_a_tolerance_is_not_negative(pair, images):
    report = fairlib.audit(*pair, images, resamples=20, diagnostics=())
    with pytest.raises(ValueError, match="tau must lie in"):
        report.fairness(-0.1)


def test_an_identical_model_costs_nobody_anything(pair, images):
    report = fairlib.audit(pair[0], pair[0], images, resamples=50)
    assert (report.table[["drop", "excessive_loss", "excessive_loss_high"]] == 0).all().all()
    assert (report.table["drop_low"] < 0).all() and (report.table["drop_high"] > 0).all()
    assert report.violations.loc["drop", "p_value"] == 1


def test_training_set_beside_the_test_set(pair, images):
    report = fairlib.audit(*pair, images.subset(range(60, 120)), train=images, resamples=20)
    assert report.table.loc["all", "size"] == 60 and report.train.table.loc["all", "size"] == 120


def test_json_is_strict_and_complete(pair, images, tmp_path):
    report = fairlib.audit(*pair, images.subset(range(81)), resamples=20)

    def refuse(constant):
        raise AssertionError(constant)

    read = json.loads(report.to_json(tmp_path / "audit.json").read_text(), parse_constant=refuse)
    assert [row["group"] for row in read["groups"]] == ["many", "some", "few", "all"]
    assert read["groups"][0]["drop"] == pytest.approx(report.table.loc["many", "drop"])
    assert read["groups"][2]["drop"] is None
    assert "no sample here: few" in read["notes"]
    assert read["provenance"]["input"] == "(1, 8, 8), uint8 divided by 255"


def test_the_figure_shows_every_group_with_its_size(pair, images):
    import matplotlib.pyplot as plt

    figure = fairlib.audit(*pair, images, resamples=20).plot()
    labels = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert labels == ["many (n=80)", "some (n=30)", "few (n=10)", "all (n=120)"]
    assert figure.axes[1].get_xlabel() == "excessive loss (nats)"
    plt.close(figure)


def test_a_dense_model_at_chance_is_called_out(cnn, images):
    with pytest.warns(UserWarning, match="cannot be told from chance"):
        report = fairlib.audit(cnn, cnn, images, resamples=20)
    assert any("chance" in note for note in report.notes)


def test_what_cannot_be_computed_is_nan_with_a_reason(pair, images):
    frozen = copy.deepcopy(pair[0]).requires_grad_(False)
    report = fairlib.audit(frozen, pair[1], images, resamples=20)
    assert (
        report.table[["gradient_norm", "gradient_noise_floor", "gradient_debiased_square"]]
        .isna()
        .all()
        .all()
    )
    assert any("gradient: could not be computed" in note for note in report.notes)


def test_relative_drop_is_undefined_at_zero(images):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    nn.init.zeros_(model[1].weight)
    with torch.no_grad():
        model[1].bias.copy_(torch.tensor([1.0, 0.0, 0.0]))
    by_class = fairlib.GroupedDataset(images.inputs, images.targets, images.targets)
    with pytest.warns(UserWarning, match="chance"):
        report = fairlib.audit(model, model, by_class, resamples=20)
    assert report.table["relative_drop"].isna().tolist() == [False, True, True, False]
    assert any("relative_drop is undefined" in note for note in report.notes)


def test_bad_input(pair, cnn, images):
    with pytest.raises(ValueError, match="unknown diagnostic 'hessian'; known: gradient"):
        fairlib.audit(*pair, images, diagnostics=["hessian"])
    with torch.no_grad():
        cnn.classifier[4].bias[0] = torch.nan
    named = fairlib.GroupedDataset(
        images.inputs, images.targets, images.groups, group_names=["all", "b", "c"]
    )
    with pytest.raises(ValueError, match="no group may be called 'all'"):
        fairlib.audit(*pair, named)
    with pytest.raises(
        FloatingPointError, match=r"scores after compression are NaN or infinite on 120 of 120"
    ):
        fairlib.audit(pair[0], cnn, images)
    with pytest.raises(TypeError, match="test must be a GroupedDataset, got 'digits'"):
        fairlib.audit(*pair, "digits")
    with pytest.raises(TypeError, match="give a test set"):
        fairlib.audit(*pair)
    with pytest.raises(TypeError, match="before is asked about a test set"):
        fairlib.audit(*pair, targets=[0, 1], groups=[0, 1])
    with pytest.raises(TypeError, match="targets and groups are in test"):
        fairlib.audit(*pair, images, targets=images.targets)
    with pytest.raises(TypeError, match=r"diagnostics must hold several values, .* got 'gradient'"):
        fairlib.audit(*pair, images, diagnostics="gradient")
    with pytest.raises(ValueError, match="unknown reference group 'most'; known: many, some, few"):
        fairlib.audit(*pair, images, reference="most")
    for name, values in {
        "level": (0, 1, 95, True, None),
        "resamples": (0, 1, 1.5, None),
        "seed": (-1, None),
    }.items():
        for value in values:
            with pytest.raises((TypeError, ValueError), match=f"{name} must"):
                fairlib.audit(*pair, images, **{name: value})


def test_losses_are_those_of_scikit_learn():
    from sklearn.metrics import log_loss

    targets, groups, before, after = predicted(1)
    soft = np.exp(after) / np.exp(after).sum(1, keepdims=True)
    table = fairlib.audit(before, soft, targets=targets, groups=groups).table
    for name in "abc":
        assert table.loc[name, "loss_after"] == pytest.approx(
            log_loss(targets[groups == name], soft[groups == name])
        )


def test_several_attributes_are_crossed_and_reported_one_by_one():
    targets, groups, before, after = predicted(3)
    people = pd.DataFrame({"letter": groups, "age": np.arange(len(groups)) % 2})
    report = fairlib.audit(before, after, targets=targets, groups=people)
    assert list(report.table.index) == ["a x 0", "a x 1", "b x 0", "b x 1", "c x 0", "c x 1", "all"]
    assert list(report.attributes) == ["letter", "age"]
    alone = fairlib.audit(before, after, targets=targets, groups=groups)
    pd.testing.assert_frame_equal(report.attributes["letter"].table, alone.table)
    cell = (groups == "b") & (people["age"] == 1)
    assert report.table.loc["b x 1", "accuracy_after"] == (after.argmax(1) == targets)[cell].mean()


def test_without_scores_losses_are_nan_and_the_reason_is_given():
    targets, groups, before, after = predicted(4)
    report = fairlib.audit(before.argmax(1), after.argmax(1), targets=targets, groups=groups)
    assert report.table.filter(like="loss").isna().all(axis=None) and report.calibration.isna().all(
        axis=None
    )
    assert report.violations.loc["excessive_loss"].isna().all()
    assert "only labels are known before compression: no loss, no calibration" in report.notes
    scored = fairlib.audit(before, after, targets=targets, groups=groups)
    pd.testing.assert_frame_equal(report.rates, scored.rates)
    assert report.contrasts["p_holm"].to_list() == scored.contrasts["p_holm"].to_list()
