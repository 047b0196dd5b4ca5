from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import fairlib
from fairlib.network import masks


def _gradient_of_an_explicit_mask(
    model: nn.Module, data: fairlib.GroupedDataset
) -> dict[str, torch.Tensor]:
    """|dL/dc| at c = 1, with the factors c as parameters of their own."""
    weights = {name: weight.detach() for name, weight in masks.prunable(model).items()}
    factors = {
        name: torch.ones_like(weight, requires_grad=True) for name, weight in weights.items()
    }
    masked = {name: weights[name] * factors[name] for name in weights}
    inputs = data.batch(torch.arange(len(data)), dtype=torch.float32)
    loss = cross_entropy(torch.func.functional_call(model.eval(), masked, (inputs,)), data.targets)
    gradients = torch.autograd.grad(loss, list(factors.values()))
    return {name: gradient.abs() for name, gradient in zip(factors, gradients, strict=True)}


@pytest.mark.parametrize("trained", [False, True])
def test_the_score_is_the_gradient_of_an_explicit_mask(cnn, images, trained):
    model = fairlib.fit(cnn, images, epochs=3 if trained else 0)
    scores = _gradient_of_an_explicit_mask(model, images)
    pruned = fairlib.prune(model, "snip", sparsity=0.8, data=images)
    flat = torch.cat([score.flatten() for score in scores.values()])
    kept = torch.cat([mask.flatten() for mask in masks.read_masks(pruned).values()])
    best = torch.cat([(score == score.max()).flatten() for score in scores.values()])
    assert int((~kept).sum()) == round(0.8 * len(flat))
    assert flat[~kept].max() <= flat[kept & ~best].min() * (1 + 1e-4)


def test_scoring_leaves_the_model_and_the_generators_alone(images):
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)
    ).train()
    before = copy.deepcopy(model.state_dict())
    state = torch.random.get_rng_state()
    fairlib.prune(model, "snip", sparsity=0.5, data=images)
    assert model.training and all(
        torch.equal(value, before[name]) for name, value in model.state_dict().items()
    )
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(state, torch.random.get_rng_state())


def test_a_batch_normalization_without_statistics_uses_those_of_the_batch(images):
    """With statistics of 0 and 1 an affine change of the inputs would change the score."""
    layers = (
        nn.Conv2d(1, 4, 3, bias=False),
        nn.BatchNorm2d(4, eps=1e-12),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(144, 3),
    )
    model = nn.Sequential(*layers)
    values = images.inputs.float() / 255
    one = fairlib.GroupedDataset(values, images.targets, images.groups)
    other = fairlib.GroupedDataset(7 * values, images.targets, images.groups)
    kept = [
        masks.read_masks(fairlib.prune(model, "snip", sparsity=0.5, data=data))
        for data in (one, other)
    ]
    agreement = [(kept[0][name] == kept[1][name]).float().mean() for name in kept[0]]
    assert min(agreement) > 0.99


def test_a_trained_batch_normalization_uses_its_statistics_whatever_its_counter_says(images):
    """Old checkpoints have no counter of batches, which is then loaded as 0."""
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)
    trained = fairlib.fit(nn.Sequential(*layers), images, epochs=2)
    reloaded = copy.deepcopy(trained)
    reloaded[1].num_batches_tracked.zero_()
    one, other = (
        masks.read_masks(fairlib.prune(m, "snip", sparsity=0.5, data=images))
        for m in (trained, reloaded)
    )
    assert all(torch.equal(mask, other[name]) for name, mask in one.items())


def test_at_initialization_the_inputs_are_normalized_as_the_training_will(cnn, images):
    ready = fairlib.fit(cnn, images, epochs=0)
    assert ready.normalize.fitted and not cnn.normalize.fitted
    one, other = (
        masks.read_masks(fairlib.prune(m, "snip", sparsity=0.8, data=images)) for m in (cnn, ready)
    )
    assert all(torch.equal(mask, other[name]) for name, mask in one.items())


def test_one_sample_more_than_a_chunk(images):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    index = torch.arange(257) % 120
    data = fairlib.GroupedDataset(images.inputs[index], images.targets[index], images.groups[index])
    assert fairlib.sparsity(fairlib.prune(model, "snip", sparsity=0.5, data=data)) == pytest.approx(
        0.5, abs=0.01
    )


def test_scores_that_are_all_zero_are_refused(images):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    with torch.no_grad():
        model[1].weight.zero_()
    with pytest.raises(ValueError, match=r"all scores of 1\.weight are zero"):
        fairlib.prune(model, "snip", sparsity=0.5, data=images)


def test_bad_input(cnn, images):
    with pytest.raises(ValueError, match="method 'snip' needs data=, the training set"):
        fairlib.prune(cnn, "snip", sparsity=0.5)
