from __future__ import annotations

import pytest
import torch
from scipy.stats import chisquare
from torch import nn
from torch.nn import functional as F

from fairlib import gates
from fairlib.linearization import count
from fairlib.linearization.preactivation import changes, preactivation
from fairlib.linearization.random import random


def test_random_gates_are_drawn_uniformly_exactly_and_nested(gated):
    small, large = (gates.read(random(gated, relus=relus, seed=3)) for relus in (200, 900))
    assert sum(int(mask.sum()) for mask in small.values()) == 200
    assert all(not (mask & ~large[name]).any() for name, mask in small.items())
    drawn = sum(
        torch.cat([mask.flatten() for mask in gates.read(random(gated, relus=230, seed=seed)).values()]).double()
        for seed in range(60)
    )
    by_place = drawn.reshape(-1, 64).sum(1).numpy()  # 36 runs of 64 ReLUs, 383 draws expected in each.
    assert chisquare(by_place).pvalue > 0.01


def test_the_change_is_the_mean_negative_part_of_what_a_relu_gets(dense, gated, images):
    """Against hooks on the ReLUs of the model without gates, all images at once."""
    seen = {}
    for name, module in dense.named_modules():
        if isinstance(module, nn.ReLU):
            module.register_forward_pre_hook(lambda _, inputs, name=name: seen.update({name: inputs[0]}))
    with torch.no_grad():
        dense(images.batch(slice(None)))
    for name, change in changes(gated, images).items():
        assert torch.allclose(change, F.relu(-seen[name]).mean(0), atol=1e-5)


def test_preactivation_keeps_the_largest_changes_and_linearizing_the_smallest_changes_little(gated, images):
    linear = preactivation(gated, relus=400, data=images)
    values = torch.cat([change.flatten() for change in changes(gated, images).values()])
    chosen = torch.cat([mask.flatten() for mask in gates.read(linear).values()])
    assert int(chosen.sum()) == 400 and values[chosen].min() >= values[~chosen].max()
    inputs = images.batch(slice(None))
    gentle, blind = preactivation(gated, relus=2000, data=images), random(gated, relus=2000, seed=0)
    with torch.no_grad():
        original = gated(inputs)
        assert (gentle(inputs) - original).norm() < 0.5 * (blind(inputs) - original).norm()


@pytest.mark.parametrize("granularity", ["channel", "layer"])
def test_what_is_kept_as_a_whole(gated, images, granularity):
    for linear in (
        random(gated, relus=1000, granularity=granularity),
        preactivation(gated, relus=1000, data=images, granularity=granularity),
    ):
        for mask in gates.read(linear).values():
            rows = mask.flatten(1) if granularity == "channel" else mask.flatten()[None]
            assert torch.equal(rows.any(1), rows.all(1))
        assert 700 <= count(linear).attrs["total"] <= 1000


def test_an_unknown_granularity_is_refused(gated):
    with pytest.raises(ValueError, match="unknown granularity 'row'; known: pixel, channel, layer"):
        random(gated, relus=5, granularity="row")
