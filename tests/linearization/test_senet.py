from __future__ import annotations

import copy
from contextlib import ExitStack

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize

import fairlib
from fairlib.linearization import count, gate
from fairlib.linearization.senet import Location, budgets, feeding_layers, senet, sensitivity
from fairlib.network import gates
from fairlib.training import Batch

TRAIN = {"epochs": 3, "lr": 0.02}


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_budgets_sum_exactly_within_the_layers_and_follow_the_sensitivity(data):
    capacities = data.draw(st.lists(st.integers(0, 400), min_size=1, max_size=7))
    sensitivities = data.draw(
        st.lists(st.floats(0, 1), min_size=len(capacities), max_size=len(capacities))
    )
    relus = data.draw(st.integers(0, sum(capacities)))
    layers = [f"layer{number}" for number in range(len(capacities))]
    sizes, eta = (
        dict(zip(layers, capacities, strict=True)),
        dict(zip(layers, sensitivities, strict=True)),
    )
    given_ = budgets(eta, sizes, relus)
    assert sum(given_.values()) == relus
    assert all(0 <= given_[layer] <= sizes[layer] for layer in layers)
    for one in layers:
        for other in layers:
            if eta[one] > eta[other] and sizes[one]:
                below_limit = given_[one] < sizes[one]
                share = (given_[one] + 1) / sizes[one]
                assert not below_limit or given_[other] <= share * sizes[other] + 1


def test_budgets_by_hand():
    """60 by 50 : 20 are 42.9 and 17.1; where 20 is cut off at its limit the other gets the rest."""
    assert budgets({"a": 0.5, "b": 1.0}, {"a": 100, "b": 20}, 60) == {"a": 43, "b": 17}
    assert budgets({"a": 0.1, "b": 1.0}, {"a": 100, "b": 20}, 60) == {"a": 40, "b": 20}
    assert budgets({"a": 0.0, "b": 0.5}, {"a": 100, "b": 20}, 60) == {"a": 40, "b": 20}
    with pytest.raises(ValueError, match="between 0 and 120"):
        budgets({"a": 0.5, "b": 1.0}, {"a": 100, "b": 20}, 121)


def test_an_activation_belongs_to_the_convolution_before_it(gated, images):
    layers = feeding_layers(gated, images)
    assert layers["relu"] == "conv1"
    for stage in (1, 2, 3):
        assert layers[f"layer{stage}.0.relu1"] == f"layer{stage}.0.conv1"
        assert layers[f"layer{stage}.0.relu2"] == f"layer{stage}.0.conv2"


@pytest.mark.parametrize(
    ("name", "pairs"),
    [
        ("resnet50", {"layer2.0.relu3": "layer2.0.conv3", "layer2.0.relu1": "layer2.0.conv1"}),
        (
            "mobilenetv2",
            {
                "features.4.conv.0.2": "features.4.conv.0.0",
                "features.4.conv.1.2": "features.4.conv.1.0",
            },
        ),
        ("wrn-22-8", {"layer2.0.relu2": "layer2.0.conv1", "layer2.1.relu1": "layer2.0.conv2"}),
    ],
)
def test_shortcuts_and_projections_do_not_mislead(name, pairs):
    model = gate(fairlib.build(name, num_classes=3, in_channels=1, image_size=16, width=0.125))
    layers = feeding_layers(model, torch.zeros(1, 1, 16, 16))
    assert {gate_: layers[gate_] for gate_ in pairs} == pairs


def test_a_relu_before_any_layer_has_no_sensitivity():
    model = gate(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(3, 3)), torch.zeros(1, 3))
    with pytest.raises(ValueError, match="0 comes before any layer"):
        feeding_layers(model, torch.zeros(1, 3))


def test_sensitivity_is_the_share_of_weights_that_a_sparse_training_prunes(
    gated, images, objective
):
    eta = sensitivity(gated, images, {"objective": objective, "seed": 0} | TRAIN)
    sizes = {
        name: gated.get_submodule(layer).weight.numel()
        for name, layer in feeding_layers(gated, images).items()
    }
    rest = {"downsample": 0, "fc": 0}
    assert all(0 <= value <= 1 for value in eta.values())
    pruned = sum(eta[name] * sizes[name] for name in eta)
    others = sum(
        p.numel()
        for n, p in gated.named_parameters()
        if any(key in n for key in rest) and p.ndim > 1
    )
    total = sum(sizes.values()) + others
    assert 0.9 * total - others <= pruned <= 0.9 * total + 1


def test_every_layer_has_the_budget_of_its_sensitivity(gated, images, objective):
    linear = senet(gated, relus=300, data=images, objective=objective, train=TRAIN, seed=0)
    eta = sensitivity(gated, images, {"objective": objective, "seed": 0} | TRAIN)
    wanted = budgets(
        eta, {name: mask.numel() for name, mask in gates.read_gates(gated).items()}, 300
    )
    assert {name: int(mask.sum()) for name, mask in gates.read_gates(linear).items()} == wanted


@pytest.mark.parametrize("batch", [9, 13])
def test_a_search_that_diverges_says_so_shortly(gated, images, objective, batch):
    """The sparse training before the search has nine batches."""
    calls = []

    def broken(inputs, logits, targets):
        calls.append(len(inputs))
        losses = objective(inputs, logits, targets)
        return losses * torch.nan if len(calls) > batch else losses

    with pytest.raises(fairlib.DivergenceError, match="diverged at epoch") as caught:
        senet(gated, relus=300, data=images, objective=broken, train=TRAIN | {"batch_size": 40})
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("relus", [1, 230, 1500])
def test_the_budget_is_met_exactly_and_nothing_is_left_behind(gated, images, objective, relus):
    before = copy.deepcopy(gated.state_dict())
    linear = senet(gated, relus=relus, data=images, objective=objective, train=TRAIN)
    assert count(linear).attrs["total"] == relus
    assert not any(
        one._forward_hooks for model in (linear, gated) for one in gates.gates(model).values()
    )
    assert all(torch.equal(value, before[name]) for name, value in gated.state_dict().items())
    assert {"mismatch", "settled"} <= set(fairlib.history(linear))


def test_places_go_to_the_largest_mismatch_and_settled_layers_stay(gated, images, objective):
    shares = {name: 10 for name in gates.read_gates(gated)}
    start = gates.with_gates(gated, {})
    for name, scores in gates.drawn(start, "pixel", 0).items():
        gates.set_gates(start, gates.keep_relus(start, {name: scores}, 10))
    before = {name: mask.clone() for name, mask in gates.read_gates(start).items()}
    inputs = images.batch(slice(40))
    with ExitStack() as hooks:
        location = Location(gated, shares, hooks)
        run = location.start(start, images, objective)
        outputs = {}
        for role, model in (("partial", start), ("full", gated)):
            for name, one in gates.gates(model).items():
                hooks.callback(one.register_forward_hook(_store(outputs, role, name)).remove)
        logits = start(inputs)
        gated(inputs)
        losses = objective(inputs, logits, images.targets[:40])
        loss = run.loss(Batch(inputs, images.targets[:40], images.groups[:40], logits, losses))
        wanted = {name: normalize(outputs["full", name].detach().flatten(1)) for name in shares}
        mismatch = sum(
            (normalize(outputs["partial", n].flatten(1)) - wanted[n]).norm(dim=1).mean()
            for n in shares
        )
        expected = losses.mean() + 0.5 * mismatch
        assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
        weights = list(start.parameters())
        found, by_hand = (
            torch.autograd.grad(value, weights, retain_graph=True) for value in (loss, expected)
        )
        assert all(
            torch.allclose(one, other, atol=1e-6) for one, other in zip(found, by_hand, strict=True)
        )
        seen = run.end_epoch()
        assert seen["mismatch"] == pytest.approx(mismatch.item(), rel=1e-5)
    for name, mask in gates.read_gates(start).items():
        difference = (
            (outputs["partial", name] - outputs["full", name]).detach().abs().mean(0).flatten()
        )
        assert int(mask.sum()) == 10
        assert difference[mask.flatten()].min() >= difference[~mask.flatten()].max()
        assert (name in run.settled) == torch.equal(mask, before[name])


def _store(outputs, role, name):
    def hook(module, inputs, output):
        outputs[role, name] = output

    return hook


def test_a_training_of_no_epoch_is_refused(gated, images, objective):
    with pytest.raises(ValueError, match=r"train\['epochs'\] must lie in \[1, inf\), got 0"):
        senet(gated, relus=5, data=images, objective=objective, train={"epochs": 0})
