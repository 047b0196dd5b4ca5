from __future__ import annotations

import pytest
import torch

import fairlib
from fairlib import Arm, study
from fairlib.network import masks, quantizers
from fairlib.network.cost import stored_bytes
from fairlib.studies import RunSettings

SMALL = dict(
    data=("digits", {"size": 200}),
    model=("cnn", {"channels": (4, 8), "hidden": (16, 8)}),
    train={"epochs": 30, "lr": 0.05, "batch_size": 16},
    finetune={"epochs": 2},
    seeds=[0],
    run=RunSettings(cache=None, workers=1),
)
NOT_TUNED = {"finetune": {"epochs": 0}}


@pytest.fixture
def trainings(monkeypatch):
    """Arguments of the trainings of dense networks and of students."""
    calls, fit = [], fairlib.fit

    def noted(model, data, **arguments):
        calls.append(arguments)
        return fit(model, data, **arguments)

    def fit_all(asked, cache):
        return [
            noted(one.model, one.data, **one.settings) if one.settings["epochs"] else one.model
            for one in asked
        ]

    monkeypatch.setattr("fairlib.compression.student.fit", noted)
    monkeypatch.setattr("fairlib.studies.stages.fit_all", fit_all)
    return calls


def test_the_methods_of_a_pipeline_hold_together():
    seen = []
    method = ["prune:magnitude", "quantize:weights"]
    study(**SMALL, method=method, levels=[(0.8, 3)], measure=lambda run: seen.append(run) or {})
    run = seen[-1]
    assert (run.stage, run.level) == ("compressed", (0.8, 3.0))
    assert fairlib.sparsity(run.model) >= 0.8 - 1e-3
    for weight in masks.prunable(run.model).values():
        assert all(len(channel.unique()) <= 7 for channel in weight.detach())


def test_kept_is_the_share_of_bytes_and_the_level_is_text():
    arms = {
        "both": Arm(["prune:magnitude", "quantize:weights"], levels=[(0.8, 3), (0.0, 3)]),
        "one": Arm(),
    }
    table = study(**SMALL, method="quantize:weights", levels=[3], arms=arms)
    rows = table[table["stage"] == "compressed"].groupby(["arm", "level"])["kept"].first()
    assert set(rows.index) == {("both", "0 + 3"), ("both", "0.8 + 3"), ("one", "3")}
    assert rows["both", "0 + 3"] == rows["one", "3"]
    assert rows["both", "0.8 + 3"] < rows["one", "3"] < 0.3
    assert set(table.loc[table["stage"] == "control", "level"]) == {"0 + 32", "32"}
    assert table.loc[table["arm"] == "both", "method"].unique().tolist() == [
        "prune:magnitude + quantize:weights"
    ]


@pytest.mark.slow
def test_a_pipeline_with_one_method_at_its_control_is_the_other_method():
    arms = {"both": Arm(["prune:magnitude", "quantize:weights"], levels=[(0.0, 3), (0.8, 32)]),
            "prune": Arm("prune:magnitude", levels=[0.8]), "quantize": Arm("quantize:weights", levels=[3])}  # fmt: skip
    table = study(**SMALL, arms=arms)
    losses = table[table["stage"] == "compressed"].groupby(["arm", "level"])["loss"].apply(list)
    assert losses["both", "0 + 3"] == losses["quantize", "3"]
    assert losses["both", "0.8 + 32"] == losses["prune", "0.8"]


@pytest.mark.slow
def test_every_kind_runs_in_one_study_and_shares_the_control():
    arms = {
        "prune": Arm("prune:magnitude", levels=[0.5]),
        "linearize": Arm("linearize:random", levels=[0.5], finetune={"epochs": 2}),
        "quantize": Arm("quantize:weights", levels=[4]),
        "factorize": Arm("factorize:svd", levels=[0.5]),
        "distil": Arm("distil:logits", levels=[0.5]),
        "alone": Arm("distil:alone", levels=[0.5]),
        "int8": Arm("quantize:int8-static", levels=[8], finetune={"epochs": 0}),
        "three": Arm(
            ["distil:logits", "factorize:svd", "quantize:weights"], levels=[(0.5, 0.5, 4)]
        ),
    }
    table = study(**SMALL, arms=arms)
    kept = table[table["stage"] == "compressed"].groupby("arm")["kept"].first()
    assert kept.between(0.01, 1, inclusive="neither").all()
    assert kept["three"] < min(kept["distil"], kept["quantize"], kept["factorize"])
    control = table[(table["stage"] == "control") & ~table["arm"].isin(["int8", "linearize"])]
    assert control.groupby(["split", "group"])["loss"].nunique().eq(1).all()
    assert table["loss"].notna().all()


@pytest.mark.slow
def test_mitigation_reaches_a_student_and_its_finetuning():
    seen = {}
    fair = ("equal-loss", {"step": 0.05})

    def measure(run):
        seen[run.stage, run.when] = fairlib.history(run.model)
        return {}

    gentle = ("distil:logits", {"distillation": {"weight": 0.25, "hard": 0.5}})
    mitigated = {"mitigation": fair, "measure": measure, "method": gentle, "levels": [0.5]}
    study(**SMALL | NOT_TUNED, **mitigated, when="before")
    study(**SMALL, **mitigated, when="after")
    held = {run for run, curves in seen.items() if "multiplier[0]" in curves}
    assert {("dense", "before"), ("compressed", "after"), ("control", "after")} <= held
    assert ("dense", "after") not in held


@pytest.mark.slow
def test_a_student_is_held_to_the_constraint_of_a_training_before(trainings):
    fair = {"mitigation": ("equal-loss", {"step": 0.05}), "when": "before"}
    study(**SMALL | NOT_TUNED, method="distil:alone", levels=[0.5], **fair)
    assert [isinstance(one.get("constraint"), fairlib.EqualLoss) for one in trainings] == [
        True,
        True,
    ]


def test_bytes_are_counted_as_they_are_stored():
    model = fairlib.build("cnn", num_classes=3, in_channels=1, image_size=8)
    quantized = fairlib.quantize(model, "weights", bits=3)
    wanted = 0
    for name, parameter in quantized.named_parameters():
        if name in quantizers.read_bits(quantized):
            wanted += -(-parameter.numel() * 3 // 8) + 4 * len(parameter)
        else:
            wanted += 4 * parameter.numel()
    wanted += sum(4 * b.numel() for n, b in model.named_buffers() if b.is_floating_point())
    assert stored_bytes(quantized) == wanted
    assert torch.equal(
        model.features[0].weight, fairlib.restore(model, model.state_dict()).features[0].weight
    )


@pytest.mark.parametrize(
    "asked",
    [{"arms": {"a": Arm(compress="initial")}}, {"mitigation": "equal-loss", "when": "after"}],
)
def test_int8_cannot_be_trained(asked):
    with pytest.raises(ValueError, match="gives cannot be trained"):
        study(**SMALL | NOT_TUNED, method="quantize:int8-static", levels=[8], **asked)


@pytest.mark.parametrize(
    ("method", "levels", "message"),
    [
        (["quantize:weights", "prune:magnitude"], [(4, 0.5)], "cannot follow 'quantize:weights'"),
        (
            ["prune:magnitude", "factorize:svd"],
            [(0.5, 0.5)],
            "'factorize:svd' cannot follow 'prune:magnitude'",
        ),
        (["prune:magnitude", "distil:logits"], [(0.5, 0.5)], "distil first"),
        (["prune:magnitude", "quantize:weights"], [0.5], "levels must have 2 entries each"),
        (
            ["quantize:weights", "quantize:int8-static"],
            [(4, 8)],
            "cannot follow 'quantize:weights'",
        ),
        ("factorize:svd", [0.0], r"levels must lie in \(0, 1\)"),
        ("distil:alone", [0.0], r"levels must lie in \(0, 1\)"),
        ("quantize:int8-static", [4], "levels must be 8, the bits of int8, got 4"),
        (["prune:magnitude", "quantize:weights"], [(0.5, 0)], r"levels must lie in \[1, 16\]"),
        ([], [], "at least one method"),
        ("quantize:int8-static", [8], "cannot be finetuned: give finetune={'epochs': 0}"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_trained(method, levels, message):
    with pytest.raises(ValueError, match=message):
        study(**SMALL, method=method, levels=levels)
