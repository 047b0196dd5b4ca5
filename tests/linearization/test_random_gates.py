from __future__ import annotations

import pytest
import torch
from scipy.stats import chisquare

from fairlib.linearization import count
from fairlib.linearization.random import random_gates
from fairlib.network import gates


def test_random_gates_are_drawn_uniformly_exactly_and_nested(gated):
    small, large = (
        gates.read_gates(random_gates(gated, relus=relus, seed=3)) for relus in (200, 900)
    )
    assert sum(int(mask.sum()) for mask in small.values()) == 200
    assert all(not (mask & ~large[name]).any() for name, mask in small.items())
    drawn = sum(
        torch.cat(
            [
                mask.flatten()
                for mask in gates.read_gates(random_gates(gated, relus=230, seed=seed)).values()
            ]
        ).double()
        for seed in range(60)
    )
    by_place = (
        drawn.reshape(-1, 64).sum(1).numpy()
    )  # 36 runs of 64 ReLUs, 383 draws expected in each.
    assert chisquare(by_place).pvalue > 0.01


def test_an_unknown_granularity_is_refused(gated):
    with pytest.raises(ValueError, match="unknown granularity 'row'; known: pixel, channel, layer"):
        random_gates(gated, relus=5, granularity="row")


@pytest.mark.parametrize("granularity", ["channel", "layer"])
def test_channels_and_layers_are_kept_as_a_whole(gated, granularity):
    linear = random_gates(gated, relus=1000, granularity=granularity)
    for mask in gates.read_gates(linear).values():
        rows = mask.flatten(1) if granularity == "channel" else mask.flatten()[None]
        assert torch.equal(rows.any(1), rows.all(1))
    assert 700 <= count(linear).attrs["total"] <= 1000
