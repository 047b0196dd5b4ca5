from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import fairlib
from fairlib import channels, masks
from fairlib.groups import AccuracyDifference
from fairlib.pruning.bifp import capped_simplex

TRAIN = dict(epochs=3, lr=0.05, batch_size=30)


@pytest.fixture
def dense(cnn, images):
    return fairlib.fit(cnn, images, seed=0, epochs=3, lr=0.05)


@pytest.fixture
def vectors() -> fairlib.GroupedDataset:
    generator = np.random.default_rng(0)
    inputs, groups = generator.normal(size=(40, 6)), np.repeat([0, 1], [28, 12])
    return fairlib.GroupedDataset(inputs, ((inputs[:, 0] > 0) ^ (groups == 1)).astype(int), groups)


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def one_step(model, data, val, **settings):
    """A training of one step on all data, whose mask takes one step on all of ``val``."""
    train = dict(epochs=1, lr=0.1, batch_size=len(data), momentum=0.0, weight_decay=0.0, schedule="constant")
    plain = dict(data=data, val=val, val_batch_size=len(val), mask_momentum=0.0, search=1.0, **settings)
    return fairlib.prune(model, "bifp", train=train, **plain)


def level(model, weights, data, term):
    """The objective with the prunable weights replaced, by a forward pass written out."""
    (first, bias), (second, other) = [(weights[name], model.get_parameter(f"{name[0]}.bias")) for name in weights]
    logits = torch.tanh(data.inputs @ first.T + bias) @ second.T + other
    return cross_entropy(logits, data.targets) + term(logits, data.targets, data.groups, 2)


def by_hand(model, data, val, sparsity, hypergradient, gamma, mask_lr, terms):
    """Scores and masks after one step, and the weights after theirs."""
    theta = {name: weight.detach() for name, weight in masks.prunable(model).items()}
    flat = torch.cat([part.abs().flatten() for part in theta.values()])
    scores = flat / flat.mean()
    kept = len(flat) - round(sparsity * len(flat))

    def mask(scores):
        chosen = torch.zeros_like(scores)
        chosen[scores.argsort(descending=True)[:kept]] = 1
        return dict(zip(theta, chosen.split([p.numel() for p in theta.values()]), strict=True))

    m = {name: part.reshape(theta[name].shape) for name, part in mask(scores).items()}
    products = {name: (m[name] * theta[name]).requires_grad_() for name in theta}
    lower = torch.autograd.grad(level(model, products, data, terms[1]), list(products.values()))
    upper = torch.autograd.grad(level(model, products, val, terms[0]), list(products.values()))
    found = []
    for name, g1, g2 in zip(theta, lower, upper, strict=True):
        answer = m[name] * g1 / gamma if hypergradient == "hessian-free" else 0
        found.append(((theta[name] - answer) * g2).flatten())
    found = torch.cat(found)
    scores = scores - mask_lr * found / found.square().mean().sqrt()
    after = {name: part.reshape(theta[name].shape) for name, part in mask(scores).items()}
    moved = {name: theta[name] - 0.1 * m[name] * g for (name, g) in zip(theta, lower, strict=True)}
    return after, moved


@pytest.mark.parametrize("hypergradient", ["hessian-free", "direct"])
@pytest.mark.parametrize("constrain", ["both", "masks", "weights", "neither"])
def test_a_step_of_both_levels_by_hand(vectors, hypergradient, constrain):
    """The weights follow the old mask; what the new one lets back is what the weight was."""
    data, val = vectors.subset(range(0, 40, 2)), vectors.subset(range(1, 40, 2))
    model, term, nothing = network(), AccuracyDifference(2.0, penalty="square"), AccuracyDifference(0.0)
    terms = (term if constrain in ("both", "masks") else nothing, term if constrain in ("both", "weights") else nothing)
    after, moved = by_hand(model, data, val, 0.6, hypergradient, 0.5, 0.8, terms)
    pruned = one_step(
        model,
        data,
        val,
        sparsity=0.6,
        fairness=2.0,
        penalty="square",
        constrain=constrain,
        hypergradient=hypergradient,
        gamma=0.5,
        mask_lr=0.8,
    )
    for name, weight in masks.prunable(pruned).items():
        assert torch.equal(masks.read(pruned)[name], after[name] > 0)
        assert torch.allclose(weight, after[name] * moved[name])
    magnitude = masks.read(fairlib.prune(model, "magnitude", sparsity=0.6))
    assert any((magnitude[name] != (mask > 0)).any() for name, mask in after.items())


def test_conjugate_gradients_take_the_dense_hypergradient(vectors):
    """With gamma so large that the curvature does not matter both are the direct gradient, and else they differ."""
    data, val = vectors.subset(range(0, 40, 2)), vectors.subset(range(1, 40, 2))
    same = dict(sparsity=0.6, mask_lr=0.8)
    direct, far, near = (
        one_step(network(), data, val, hypergradient=name, gamma=gamma, **same)
        for name, gamma in (("direct", 1.0), ("conjugate-gradient", 1e6), ("conjugate-gradient", 0.05))
    )
    kept = [torch.cat([mask.flatten() for mask in masks.read(model).values()]) for model in (direct, far, near)]
    assert torch.equal(kept[0], kept[1])
    assert not torch.equal(kept[0], kept[2])


def test_bip_is_bifp_without_fairness(dense, images):
    one = fairlib.prune(dense, "bip", sparsity=0.8, data=images, train=TRAIN)
    other = fairlib.prune(dense, "bifp", sparsity=0.8, data=images, train=TRAIN, fairness=0.0)
    fair = fairlib.prune(dense, "bifp", sparsity=0.8, data=images, train=TRAIN)
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
    assert any(not torch.equal(a, b) for a, b in zip(one.parameters(), fair.parameters(), strict=True))
    with pytest.raises(TypeError, match="unknown setting 'surrogate' for pruning method 'bip'"):
        fairlib.prune(dense, "bip", sparsity=0.8, data=images, train=TRAIN, surrogate="affine")


@pytest.mark.parametrize("relaxed", [False, True])
@pytest.mark.parametrize("gradual", [False, True])
@pytest.mark.parametrize("hypergradient", ["hessian-free", "conjugate-gradient", "direct"])
def test_exactly_as_many_weights_are_kept(dense, images, relaxed, gradual, hypergradient):
    state = {name: tensor.clone() for name, tensor in dense.state_dict().items()}
    settings = dict(relaxed=relaxed, gradual=gradual, hypergradient=hypergradient, search=0.5)
    small = fairlib.prune(dense, "bifp", sparsity=0.9, data=images, train=TRAIN, **settings)
    total = sum(mask.numel() for mask in masks.read(small).values())
    assert sum(int((~mask).sum()) for mask in masks.read(small).values()) == round(0.9 * total)
    assert small.state_dict().keys() == fairlib.prune(dense, "magnitude", sparsity=0.9).state_dict().keys()
    assert not small.training and all(torch.equal(state[name], tensor) for name, tensor in dense.state_dict().items())
    history = fairlib.history(small)
    assert np.isfinite(history).all(axis=None) and history["moved"].iloc[-1] == 0


@pytest.mark.parametrize("relaxed", [False, True])
def test_whole_channels_go_at_one_rate(images, relaxed):
    model = fairlib.fit(fairlib.build("tiny-resnet", num_classes=3, in_channels=1, image_size=8), images, epochs=2)
    settings = dict(data=images, train=TRAIN, granularity="filter", relaxed=relaxed, gradual=relaxed)
    small = fairlib.prune(model, "bifp", sparsity=0.7, **settings)
    same = masks.read(fairlib.prune(model, "filter-norm", sparsity=0.7, data=images))
    kept = masks.read(small)
    assert fairlib.sparsity(small) >= 0.7
    assert {name: int(mask.sum()) for name, mask in kept.items()} == {n: int(mask.sum()) for n, mask in same.items()}
    sets = channels.coupled_channels(model, channels.example_inputs(model, images))
    gone = [
        ~torch.stack([kept[name].flatten(1).any(1)[rows] for name, (_, rows) in one.producers.items()]).any(0)
        for one in sets
    ]
    expected = channels.masks_for(sets, gone, model)
    assert all(torch.equal(kept[name], mask) for name, mask in expected.items())


def test_the_gradient_in_a_channel_is_that_of_the_weights_that_make_and_read_it(images):
    """By differences of the objective in the mask of one channel."""
    from fairlib.pruning.bifp import Filters

    model = fairlib.build("cnn", num_classes=3, in_channels=1, image_size=8).double()
    form = Filters(model, images)
    generator = torch.Generator().manual_seed(0)
    entries = [torch.rand(len(score), generator=generator, dtype=torch.float64) for score in form.start()]
    slopes = [torch.randn(w.shape, generator=generator, dtype=torch.float64) for w in form.weights.values()]

    def total(entries):
        return sum((mask * slope).sum() for mask, slope in zip(form.expand(entries), slopes, strict=True))

    leaves = [entry.clone().requires_grad_() for entry in entries]
    found = torch.autograd.grad(total(leaves), leaves)
    for place in range(len(entries)):
        for channel in (0, len(entries[place]) - 1):
            moved = [entry.clone() for entry in entries]
            moved[place][channel] += 1e-6
            slope = (total(moved) - total(entries)) / 1e-6
            assert slope == pytest.approx(found[place][channel].item(), rel=1e-4, abs=1e-6)


def test_without_val_a_part_of_every_cell_is_held_out(dense, images, monkeypatch):
    seen = {}

    def watch(model, data, *, constraint, **settings):
        seen.update(train=data, val=constraint.val)
        return fairlib.fit(model, data, constraint=constraint, **settings)

    monkeypatch.setattr(sys.modules["fairlib.pruning.bifp"], "fit", watch)
    fairlib.prune(dense, "bifp", sparsity=0.5, data=images, train=TRAIN, held_out=0.3, seed=4)
    assert len(seen["val"]) == 36 and len(seen["train"]) == 84
    assert seen["val"].group_sizes.tolist() == [24, 9, 3]
    both = torch.cat([seen["train"].inputs, seen["val"].inputs]).flatten(1)
    assert torch.equal(both.sort(0).values, images.inputs.flatten(1).sort(0).values)
    fairlib.prune(dense, "bifp", sparsity=0.5, data=images, val=images, train=TRAIN)
    assert seen["train"] is images and seen["val"] is images


def test_the_gradients_of_both_levels_are_counted(dense, images):
    """A fit of 3 epochs of 90 samples; of 3 batches an epoch, 6 in the search, each with one of 30 held out."""
    before = fairlib.gradient_evaluations(dense)
    small = fairlib.prune(dense, "bifp", sparsity=0.5, data=images, train=TRAIN, search=0.6)
    assert fairlib.history(small)["gradients"].tolist() == [180, 180, 90]
    assert fairlib.gradient_evaluations(small) == before + 450
    every = fairlib.prune(dense, "bifp", sparsity=0.5, data=images, train=TRAIN, search=0.6, every=2)
    assert fairlib.gradient_evaluations(every) == before + 270 + 3 * 30


def test_statistics_of_batch_normalization_come_from_the_lower_level_alone(images):
    """With a held-out part of other brightness they are those that a plain training of the same masks has."""
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)
    torch.manual_seed(0)
    model = nn.Sequential(*layers)
    bright = fairlib.GroupedDataset(
        torch.full_like(images.inputs, 255), images.targets, images.groups, group_names=images.group_names
    )
    kinds = [
        fairlib.prune(model, "bifp", sparsity=0.0, data=images, val=val, train=TRAIN, constrain="weights")
        for val in (images, bright)
    ]
    one, other = (kind.state_dict() for kind in kinds)
    assert one["1.num_batches_tracked"] == other["1.num_batches_tracked"] == 12
    assert all(torch.allclose(one[name], other[name], atol=1e-5) for name in ("1.running_mean", "1.running_var"))


@pytest.mark.parametrize("total", [0.5, 2.0, 3.5, 10.0])
def test_the_projection_is_the_nearest_point(total):
    """Against scipy's solution of the quadratic program."""
    from scipy.optimize import minimize

    point = torch.randn(6, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2
    found = capped_simplex(point, total)
    best = minimize(
        lambda m: ((m - point.numpy()) ** 2).sum(),
        np.full(6, min(total, 6) / 12),
        bounds=[(0, 1)] * 6,
        constraints={"type": "ineq", "fun": lambda m: total - m.sum()},
        tol=1e-14,
    )
    assert found.numpy() == pytest.approx(best.x, abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        (dict(sparsity=1.0), ValueError, "sparsity must lie in"),
        (dict(held_out=0.0), ValueError, "held_out must lie in"),
        (dict(tau=-0.1), ValueError, "tau must lie in"),
        (dict(constrain="mask"), ValueError, "unknown level to constrain 'mask'"),
        (dict(granularity="layer"), ValueError, "unknown granularity 'layer'"),
        (dict(hypergradient="exact"), ValueError, "unknown hypergradient 'exact'"),
        (dict(gamma=0.0), ValueError, "gamma must lie in"),
        (dict(train=dict(epochs=0)), ValueError, r"train\['epochs'\] must lie in"),
        (dict(granularity="filter", sparsity=0.9999), ValueError, "out of reach: with a single channel left"),
        (dict(train=TRAIN | {"constraint": fairlib.EqualLoss()}), ValueError, "has a fairness term of its own"),
        (dict(train=TRAIN | {"lr": 1e30}), fairlib.DivergenceError, "lower"),
    ],
)
def test_what_cannot_be_done_is_refused(dense, images, settings, error, message):
    with pytest.raises(error, match=message):
        fairlib.prune(dense, "bifp", **dict(sparsity=0.5, data=images, train=TRAIN) | settings)


def test_a_single_group_is_refused_unless_nothing_is_asked_of_it(dense, images):
    alone = images.subset((images.groups == 0).nonzero().flatten())
    with pytest.raises(ValueError, match="at least two groups with members; data have only: many"):
        fairlib.prune(dense, "bifp", sparsity=0.5, data=alone, train=TRAIN)
    with pytest.raises(ValueError, match="the held-out data have only: many"):
        fairlib.prune(dense, "bifp", sparsity=0.5, data=images, val=alone, train=TRAIN)
    assert fairlib.sparsity(fairlib.prune(dense, "bip", sparsity=0.5, data=alone, train=TRAIN)) >= 0.49


def test_scores_that_are_no_number_are_refused(dense, images):
    broken = fairlib.restore(dense, dense.state_dict())
    with torch.no_grad():
        next(iter(masks.prunable(broken).values())).flatten()[0] = torch.nan
    with pytest.raises(ValueError, match="hold NaN"):
        fairlib.prune(broken, "bifp", sparsity=0.5, data=images, train=TRAIN)


def test_what_a_mask_has_pruned_stays_pruned(dense, images):
    half = fairlib.prune(dense, "magnitude", sparsity=0.5)
    for relaxed in (False, True):
        small = fairlib.prune(half, "bifp", sparsity=0.8, data=images, train=TRAIN, relaxed=relaxed, mask_lr=0.1)
        assert fairlib.sparsity(small) == pytest.approx(0.8, abs=1e-3)
        assert all(not (masks.read(small)[name] & ~mask).any() for name, mask in masks.read(half).items())
    with pytest.raises(ValueError, match="are pruned already"):
        fairlib.prune(half, "bifp", sparsity=0.3, data=images, train=TRAIN)
