from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import fairlib
from fairlib.network import masks
from fairlib.pruning.granularity import Filters, Weights, capped_simplex


@pytest.fixture
def dense(cnn, images):
    return fairlib.fit(cnn, images, seed=0, epochs=3, lr=0.05)


def test_the_gradient_in_a_removed_channel_tells_what_its_return_would_do(images):
    """Of a channel that is gone its readers alone are zero: the objective's change with them is
    descended on."""
    model = fairlib.fit(
        fairlib.build("tiny-resnet", num_classes=3, in_channels=1, image_size=8), images, epochs=2
    )
    model = model.double()
    form = Filters(model, images)
    entries = form.choose(form.start(), 0.6)
    inputs = images.batch(slice(None), dtype=torch.float64)

    def objective(entries):
        weights = dict(zip(form.weights, form.expand(entries), strict=True))
        products = {name: mask * form.weights[name] for name, mask in weights.items()}
        return cross_entropy(torch.func.functional_call(model, products, (inputs,)), images.targets)

    leaves = [entry.clone().requires_grad_() for entry in entries]
    found = torch.autograd.grad(objective(leaves), leaves)
    slopes, ours = [], []
    for place, entry in enumerate(entries):
        for channel in (entry == 0).nonzero().flatten().tolist():
            moved = [part.clone() for part in entries]
            moved[place][channel] = 1e-5
            slopes.append((objective(moved) - objective(entries)).item() / 1e-5)
            ours.append(found[place][channel].item())
    assert ours == pytest.approx(slopes, rel=1e-3, abs=1e-4)
    assert np.abs(slopes).max() > 1e-2
    # In the search the readers of a channel are masked, at its end what makes it is, too, which
    # changes nothing.
    one = dict(zip(form.weights, form.expand(form.final(form.start(), 0.6)), strict=True))
    both = masks.with_masks(model, form.kept)
    products = {name: mask * form.weights[name] for name, mask in one.items()}
    assert torch.allclose(torch.func.functional_call(model, products, (inputs,)), both(inputs))


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


def test_a_relaxed_mask_leaves_something_of_every_layer(dense, images):
    """At 99 % the projection alone would empty the first layer, whose weights were made small."""
    small = copy.deepcopy(dense)
    with torch.no_grad():
        next(iter(masks.prunable(small).values())).mul_(1e-3)
    form = Weights(small, images)
    assert all(part.any() for part in form.project(form.start(), 0.99))
