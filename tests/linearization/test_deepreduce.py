from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import nn

import fairlib
from fairlib.diagnostics import predict
from fairlib.linearization import count, gate
from fairlib.linearization.deepreduce import (
    criticality,
    culled_and_thinned,
    deepreduce,
    masks_of,
    reshape,
)
from fairlib.network import gates

STAGES = ("layer1", "layer2", "layer3")
TRAIN = {"epochs": 1, "lr": 0.02}


def test_criticality_is_the_gain_over_the_worst_stage_by_relus(gated, images, objective):
    """Each stage's network by hand."""
    settings = {"objective": objective, "seed": 0} | TRAIN
    found = criticality(gated, images, None, 0.5, settings, seed=1)
    rest, held = images.hold_out(0.2, seed=1)
    accuracy = {}
    for stage in STAGES:
        keep = {
            name: mask & name.startswith(stage) for name, mask in gates.read_gates(gated).items()
        }
        accuracy[stage] = predict(
            fairlib.fit(gates.with_gates(gated, keep), rest, **settings), held
        ).correct.mean()
    relus = dict(zip(STAGES, (1024, 512, 256), strict=True))
    worst = min(accuracy.values())
    assert found == pytest.approx(
        {stage: (accuracy[stage] - worst) / relus[stage] ** 0.5 for stage in STAGES}
    )
    assert len(set(accuracy.values())) > 1 and min(found.values()) == 0


def test_criticality_is_measured_on_held_out_data_if_there_are_any(gated, images, objective):
    settings = {"objective": objective, "seed": 0} | TRAIN
    train, val = images.hold_out(0.4, seed=5)
    found = criticality(gated, train, val, 0.5, settings, seed=1)
    keep = {stage: masks_of(gated, gates.stages(gated)[stage]) for stage in STAGES}
    networks = {
        stage: fairlib.fit(gates.with_gates(gated, keep[stage]), train, **settings)
        for stage in STAGES
    }
    accuracy = {stage: predict(network, val).correct.mean() for stage, network in networks.items()}
    relus = dict(zip(STAGES, (1024, 512, 256), strict=True))
    worst = min(accuracy.values())
    assert found == pytest.approx(
        {stage: (accuracy[stage] - worst) / relus[stage] ** 0.5 for stage in STAGES}
    )


def test_culling_and_thinning_each_have_a_training(gated, images, objective):
    settings = {"objective": objective, "seed": 0} | TRAIN
    scores = criticality(gated, images, None, 0.07, settings, seed=0)
    left = max(STAGES, key=scores.get)
    names = gates.stages(gated)[left]
    relus = sum(int(gates.read_gates(gated)[name].sum()) for name in names) // 2
    culled = fairlib.fit(gates.with_gates(gated, masks_of(gated, names)), images, **settings)
    thinned = fairlib.fit(gates.with_gates(culled, masks_of(culled, names[:1])), images, **settings)
    found = deepreduce(gated, relus=relus, data=images, objective=objective, train=TRAIN, seed=0)
    assert all(
        torch.equal(value, thinned.state_dict()[name]) for name, value in found.state_dict().items()
    )


@pytest.mark.slow
@pytest.mark.parametrize("budget", [2304, 1792, 900, 600, 300, 200, 128])
def test_the_network_is_the_largest_that_culling_in_order_and_thinning_can_give(
    gated, images, objective, budget
):
    """Against all that may be reached: the stages left are the most critical ones, and no larger
    choice fits."""
    settings = dict(data=images, objective=objective, train=TRAIN, seed=0)
    scores = criticality(
        gated, images, None, 0.07, {"objective": objective, "seed": 0} | TRAIN, seed=0
    )
    order = sorted(STAGES, key=scores.get)
    sizes = {"layer1": 1024, "layer2": 512, "layer3": 256}
    reachable = [
        sum(sizes[stage] for stage in order[culled:]) // (2 if thinned else 1)
        for culled, thinned in product(range(3), (False, True))
    ]
    fitting = [size for size in reachable if size <= budget]
    if not fitting:
        with pytest.raises(
            ValueError,
            match=f"cannot come down to {budget} ReLUs.*has {min(reachable)}; give widths=",
        ):
            deepreduce(gated, relus=budget, **settings)
        return
    linear = deepreduce(gated, relus=budget, **settings)
    table = count(linear)
    assert table.attrs["total"] == max(fitting) and table["relus"]["stem"] == 0


def test_thinning_takes_the_relu_after_the_sum_of_every_block(gated):
    _, left, *_ = culled_and_thinned(gated, STAGES, relus=1)
    thinned = masks_of(gated, left)
    assert {name for name, mask in thinned.items() if mask.any()} == {
        f"{stage}.0.relu1" for stage in STAGES
    }


def test_no_relu_at_all(gated, images, objective):
    linear = deepreduce(gated, relus=0, data=images, objective=objective, train=TRAIN)
    assert count(linear).attrs["total"] == 0


def test_a_network_that_is_still_too_large_is_reshaped(gated, images, objective):
    settings = dict(data=images, objective=objective, train=TRAIN, seed=0)
    linear = deepreduce(gated, relus=40, widths=(1.0, 0.5, 0.25, 0.125), **settings)
    assert 0 < count(linear).attrs["total"] <= 40
    assert (
        sum(p.numel() for p in linear.parameters()) < sum(p.numel() for p in gated.parameters()) / 3
    )
    assert predict(linear, images).logits.shape == (120, 3)


def test_a_reshaped_network_has_a_training_of_its_own(gated, images, objective):
    """By hand: the network that is chosen, at an eighth of the width, trained for five epochs."""
    settings = dict(data=images, objective=objective, train=TRAIN, seed=0)
    linear = deepreduce(
        gated, relus=100, widths=(1.0, 0.125), from_scratch={"epochs": 5, "lr": 0.05}, **settings
    )
    left = tuple(name for name, mask in gates.read_gates(linear).items() if mask.any())
    small = reshape(gated, left, width=0.125, seed=0)
    by_hand = fairlib.fit(small, images, objective=objective, epochs=5, lr=0.05, seed=0)
    assert all(
        torch.equal(value, by_hand.state_dict()[name])
        for name, value in linear.state_dict().items()
    )
    with pytest.raises(TypeError, match="unknown setting 'epoch' for from_scratch="):
        deepreduce(gated, relus=40, from_scratch={"epoch": 5}, **settings)


def test_the_reshaped_counts_of_resnet18():
    """Stage 1 culled, thinned, half the width: 57,344 (Jha et al.)."""
    model = gate(fairlib.build("resnet18", num_classes=10, image_size=32))
    *_, left = list(culled_and_thinned(model, [f"layer{number}" for number in "1234"], relus=1))[:4]
    assert count(reshape(model, left, width=0.5, seed=0)).attrs["total"] == 57_344


def test_a_model_from_elsewhere_cannot_be_reshaped_nor_one_stage_reduced(images, objective):
    layers = [
        nn.Flatten(),
        nn.Linear(64, 8),
        nn.ReLU(),
        nn.Linear(8, 8),
        nn.ReLU(),
        nn.Linear(8, 3),
    ]
    model = gate(nn.Sequential(*layers), images)
    with pytest.raises(ValueError, match="has 1 stage of ReLUs"):
        deepreduce(model, relus=5, data=images, objective=objective, train=TRAIN)
    with pytest.raises(
        ValueError, match=r"a Sequential cannot be reshaped unless it is as fairlib\.build gave it"
    ):
        reshape(model, ["2"], width=0.5, seed=0)


def test_what_was_changed_since_it_was_built_is_not_reshaped(dense, gated, images):
    """A network of the old recipe would have weights, channels and ReLUs again that this one has
    lost."""
    compact = fairlib.compact(
        fairlib.prune(dense, "filter-norm", sparsity=0.5, data=images), images
    )
    linear = gates.with_gates(gated, {"relu": torch.zeros((), dtype=torch.bool)})
    for model in (compact, fairlib.prune(gated, "magnitude", sparsity=0.5), linear):
        with pytest.raises(ValueError, match="cannot be reshaped"):
            reshape(gate(model, images) if model is compact else model, ["relu"], width=0.5, seed=0)


@pytest.mark.parametrize("widths", [(), 0.5])
def test_factors_come_in_sequences(gated, images, objective, widths):
    with pytest.raises(ValueError, match="widths must be a sequence of factors"):
        deepreduce(gated, relus=9, data=images, objective=objective, train=TRAIN, widths=widths)


@pytest.mark.slow
def test_a_small_budget_never_loses_all_relus_where_stages_are_told_by_resolution(images):
    gated = gate(
        fairlib.build("mobilenetv2", num_classes=3, in_channels=1, image_size=8, width=0.25, seed=0)
    )
    plain = {
        "data": images,
        "objective": lambda inputs, logits, targets: logits.square().sum(1),
        "train": {"epochs": 0},
    }
    for relus in (8000, 4000, 2000, 1290):
        linear = deepreduce(gated, relus=relus, widths=(1.0, 0.5, 0.25), **plain)
        assert 0 < count(linear).attrs["total"] <= relus
    with pytest.raises(ValueError, match="cannot come down to 10 ReLUs"):
        deepreduce(gated, relus=10, widths=(1.0, 0.5, 0.25), **plain)
