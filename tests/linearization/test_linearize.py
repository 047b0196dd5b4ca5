from __future__ import annotations

import copy

import pytest
import torch

import fairlib
from fairlib.diagnostics import predict
from fairlib.linearization import LINEARIZERS, count, gate
from fairlib.network import gates
from fairlib.training.compressors import Method
from fairlib.training.distillation import Distillation

TRAIN = {
    "snl": {"epochs": 60, "lr": 0.02, "batch_size": 40},
    "deepreduce": {"epochs": 1},
    "senet": {"epochs": 1},
}


def linearize(dense, images, method="random", **settings):
    if method in TRAIN:
        settings = {"train": TRAIN[method]} | settings
    if method == "snl":
        settings = {"penalty": 1e-2} | settings
    return fairlib.linearize(dense, method, data=images, **settings)


@pytest.mark.parametrize("method", LINEARIZERS)
def test_every_method_leaves_the_model_and_the_generators_alone_and_repeats_itself(
    dense, images, method
):
    before, state = copy.deepcopy(dense.state_dict()), torch.random.get_rng_state()
    one, two = (
        linearize(dense, images, method, budget=0.3, seed=2, finetune={"epochs": 1})
        for _ in range(2)
    )
    assert all(torch.equal(value, before[name]) for name, value in dense.state_dict().items())
    assert torch.equal(state, torch.random.get_rng_state()) and not one.training
    assert all(
        torch.equal(value, two.state_dict()[name]) for name, value in one.state_dict().items()
    )
    total = count(one).attrs["total"]
    assert total <= round(0.3 * 2304) and (
        total == round(0.3 * 2304) or method in ("snl", "deepreduce")
    )


def test_linearizing_is_gating_choosing_and_finetuning_by_distillation(dense, images):
    linear = linearize(
        dense,
        images,
        budget=0.2,
        seed=4,
        finetune={"epochs": 3, "lr": 0.01},
        distillation={"weight": 2},
    )
    gated = gate(dense)
    chosen = gates.with_gates(
        gated, gates.keep_relus(gated, gates.drawn(gated, "pixel", 4), round(0.2 * 2304))
    )
    by_hand = fairlib.fit(
        chosen, images, epochs=3, lr=0.01, seed=4, objective=Distillation(dense, images, weight=2)
    )
    assert all(
        torch.equal(value, by_hand.state_dict()[name])
        for name, value in linear.state_dict().items()
    )
    untuned = linearize(dense, images, budget=0.2, seed=4, finetune=0)
    assert all(
        torch.equal(value, chosen.state_dict()[name])
        for name, value in untuned.state_dict().items()
    )


def test_a_share_or_a_count_exactly_one(dense, images):
    assert count(linearize(dense, images, budget=0.25, finetune=0)).attrs["total"] == 576
    assert count(linearize(dense, images, relus=577, finetune=0)).attrs["total"] == 577
    for settings in ({}, {"budget": 0.5, "relus": 5}):
        with pytest.raises(ValueError, match=r"exactly one of budget= .* and relus="):
            linearize(dense, images, **settings)
    with pytest.raises(
        ValueError,
        match="relus must lie between 0 and 2304, the ReLUs that the model has, got 2305",
    ):
        linearize(dense, images, relus=2305)
    for budget in (-0.1, 1.1):
        with pytest.raises(ValueError, match=r"budget must lie in \[0, 1\]"):
            linearize(dense, images, budget=budget)
    with pytest.raises(TypeError, match="relus must be an integer"):
        linearize(dense, images, relus=0.5)


def test_a_budget_is_a_share_of_all_relus_also_of_a_linearized_model(dense, images):
    half = linearize(dense, images, budget=0.5, finetune=0)
    fifth = linearize(half, images, budget=0.2, seed=1, finetune=0)
    assert count(fifth).attrs["total"] == round(0.2 * 2304)
    with pytest.raises(ValueError, match="between 0 and 1152"):
        linearize(half, images, budget=0.6, finetune=0)


def test_all_and_none(dense, images):
    inputs = images.batch(slice(10))
    every = linearize(dense, images, budget=1.0, finetune=0)
    assert torch.allclose(every(inputs), dense(inputs), atol=1e-6)
    assert count(linearize(dense, images, budget=0.0, finetune=0)).attrs["total"] == 0


def test_the_history_is_that_of_the_method_and_then_of_the_finetuning(dense, images):
    linear = linearize(dense, images, "snl", budget=0.5, finetune={"epochs": 2})
    history = fairlib.history(linear)
    assert history.index.tolist() == list(range(1, len(history) + 1))
    assert history["relus"].notna().sum() == len(history) - 2


def test_a_constraint_holds_in_the_finetuning(dense, images):
    settings = dict(budget=0.1, finetune={"epochs": 4, "lr": 0.02})
    plain = linearize(dense, images, **settings)
    held = linearize(dense, images, **settings, constraint=fairlib.EqualLoss(step=1.0))
    assert "multiplier[few]" in fairlib.history(held) and "multiplier[few]" not in fairlib.history(
        plain
    )
    by_hand = fairlib.fit(
        linearize(dense, images, budget=0.1, finetune=0),
        images,
        epochs=4,
        lr=0.02,
        objective=Distillation(dense, images),
        constraint=fairlib.EqualLoss(step=1.0),
    )
    assert torch.equal(held.fc.weight, by_hand.fc.weight) and not torch.equal(
        held.fc.weight, plain.fc.weight
    )


@pytest.mark.parametrize(("method", "least"), [("snl", 1), ("senet", 2), ("deepreduce", 4)])
def test_every_training_follows_the_objective(gated, images, objective, method, least):
    """120 images in batches of 40, and 96 of them in three as well."""
    calls = []

    def counted(inputs, logits, targets):
        calls.append(len(inputs))
        return objective(inputs, logits, targets)

    train = {"epochs": 1, "batch_size": 40}
    exact = {"exact": True} if method == "snl" else {}
    LINEARIZERS[method].function(
        gated, relus=300, data=images, objective=counted, train=train, **exact
    )
    assert len(calls) % 3 == 0 and len(calls) >= 3 * least and set(calls) <= {40, 16}


def test_held_out_data_reach_the_method(dense, images, monkeypatch):
    def method(model, *, relus, val, train):
        seen.append(val)
        return gates.with_gates(model, {})

    seen = []
    monkeypatch.setitem(LINEARIZERS, "deepreduce", Method(method, takes=("train", "val")))
    fairlib.linearize(dense, "deepreduce", data=images, val=images, budget=1.0, finetune=0)
    assert seen == [images]


def test_an_untrained_teacher_is_refused(images):
    fresh = fairlib.build("tiny-resnet", num_classes=3, in_channels=1, image_size=8)
    for parameter in fresh.fc.parameters():
        parameter.data.zero_()
    for method in ("random", "snl"):
        with pytest.raises(ValueError, match="the teacher performs at chance"):
            linearize(fresh, images, method, budget=0.5)
    assert count(linearize(fresh, images, budget=0.5, finetune=0)).attrs["total"] == 1152


@pytest.mark.parametrize(
    ("method", "settings", "error", "message"),
    [
        (
            "relu",
            {},
            ValueError,
            "unknown linearization method 'relu'; known: snl, deepreduce, senet, random",
        ),
        (
            "random",
            {"penalty": 1},
            TypeError,
            "unknown setting 'penalty' for linearization method 'random'",
        ),
        ("random", {"train": {"epochs": 1}}, ValueError, "trains nothing but the finetuning"),
        ("snl", {"train": 5}, TypeError, "train= must be a mapping from names to values, got 5"),
        (
            "snl",
            {"distillation": 4},
            TypeError,
            "distillation= must be a mapping from names to values, got 4",
        ),
        ("snl", {"train": {"epoch": 1}}, TypeError, "unknown setting 'epoch' for train="),
        (
            "snl",
            {"finetune": {"objective": None}},
            TypeError,
            "unknown setting 'objective' for finetune=",
        ),
        ("snl", {"finetune": 3}, ValueError, "or be 0 to switch it off; got 3"),
        ("snl", {"finetune": "no"}, ValueError, "or be 0 to switch it off; got 'no'"),
        ("snl", {"distillation": {"temperature": 0}}, ValueError, "temperature must lie in"),
        (
            "random",
            {"distillation": {"heat": 4}},
            TypeError,
            "unknown setting 'heat' for distillation=",
        ),
        (
            "random",
            {"finetune": 0, "constraint": fairlib.EqualLoss()},
            ValueError,
            "constraint belongs to the finetuning",
        ),
    ],
)
def test_what_is_not_understood_is_refused_before_anything_is_trained(
    dense, images, method, settings, error, message
):
    with pytest.raises(error, match=message):
        fairlib.linearize(dense, method, budget=0.5, data=images, **settings)


def test_a_pruned_network_can_be_linearized_and_a_linear_one_audited(dense, images, tmp_path):
    sparse = fairlib.prune(dense, "magnitude", sparsity=0.5)
    linear = linearize(sparse, images, budget=0.5, finetune={"epochs": 1})
    assert fairlib.sparsity(linear) == pytest.approx(0.5, abs=1e-3)
    report = fairlib.audit(
        dense, linear, images, diagnostics=["gradient", "curvature", "boundary"], resamples=50
    )
    assert report.cost["relus"].to_dict() == {"before": 2304, "after": 1152}
    assert predict(linear, images).correct.mean() == report.table.loc["all", "accuracy_after"]
