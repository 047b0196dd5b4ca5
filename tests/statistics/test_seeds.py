"""Every estimate against scipy, a closed form or a brute-force count."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fairlib import statistics

RNG = np.random.default_rng(20)
SEEDS = RNG.normal(0.4, 1.0, size=10)


def test_t_interval_is_scipys():
    low, high = stats.ttest_1samp(SEEDS, 0).confidence_interval(0.9)
    assert statistics.t_interval(SEEDS, level=0.9) == pytest.approx((SEEDS.mean(), low, high))
    assert statistics.t_interval([2.0]) == (2.0, -math.inf, math.inf)


def test_an_interval_is_written_with_its_bounds():
    assert f"{statistics.Interval(0.4, -0.125, 1.0):+.2f}" == "+0.40 [-0.12, +1.00]"


def test_at_ten_seeds_the_t_interval_keeps_its_level_and_the_bootstrap_does_not():
    runs = RNG.normal(size=(600, 10))
    covered = {"t": 0, "bootstrap": 0}
    for run in runs:
        drawn = run[RNG.integers(0, 10, (500, 10))].mean(axis=1)
        bounds = {
            "t": statistics.t_interval(run)[1:],
            "bootstrap": np.quantile(drawn, [0.025, 0.975]),
        }
        for name, (low, high) in bounds.items():
            covered[name] += low <= 0 <= high
    assert covered["t"] / len(runs) == pytest.approx(0.95, abs=0.025)
    assert covered["bootstrap"] / len(runs) < 0.925


@pytest.mark.parametrize(
    ("values", "message"), [([], "not empty"), ([1.0, math.nan], "finite, got 1")]
)
def test_bad_input_is_named(values, message):
    with pytest.raises(ValueError, match=message):
        statistics.t_interval(values)
