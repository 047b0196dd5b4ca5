from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import fairlib
from fairlib.network import masks
from fairlib.pruning.granularity import ChannelGranularity


def test_the_gradient_in_a_removed_channel_tells_what_its_return_would_do(images):
    """Of a channel that is gone its readers alone are zero: the objective's change with them is
    descended on."""
    model = fairlib.fit(
        fairlib.build("tiny-resnet", num_classes=3, in_channels=1, image_size=8), images, epochs=2
    )
    model = model.double()
    units = ChannelGranularity(model, images)
    entries = units.choose(units.start(), 0.6)
    inputs = images.batch(slice(None), dtype=torch.float64)

    def objective(entries):
        weights = dict(zip(units.weights, units.expand(entries), strict=True))
        products = {name: mask * units.weights[name] for name, mask in weights.items()}
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
    chosen, keep = units.final(units.start(), 0.6)
    one = dict(zip(units.weights, units.expand(chosen), strict=True))
    both = masks.with_masks(model, keep)
    products = {name: mask * units.weights[name] for name, mask in one.items()}
    assert torch.allclose(torch.func.functional_call(model, products, (inputs,)), both(inputs))
