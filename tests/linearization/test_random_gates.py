from __future__ import annotations

import pytest
import torch
from scipy.stats import chisquare

from fairlib.linearization.random import random
from fairlib.network import gates


def test_random_gates_are_drawn_uniformly_exactly_and_nested(gated):
    small, large = (gates.read_gates(random(gated, relus=relus, seed=3)) for relus in (200, 900))
    assert sum(int(mask.sum()) for mask in small.values()) == 200
    assert all(not (mask & ~large[name]).any() for name, mask in small.items())
    drawn = sum(
        torch.cat(
            [
                mask.flatten()
                for mask in gates.read_gates(random(gated, relus=230, seed=seed)).values()
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
        random(gated, relus=5, granularity="row")
