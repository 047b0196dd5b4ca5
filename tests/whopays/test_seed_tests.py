"""Tests over seeds, against scipy, a closed form or a brute-force count."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from whopays.seeds import benjamini_hochberg, seeds_needed, sign_flip_test, t_power

RNG = np.random.default_rng(20)
SEEDS = RNG.normal(0.4, 1.0, size=10)


def test_sign_flip_test_counts_every_pattern():
    values = SEEDS[:9]
    flipped = [np.dot(signs, values - 0.1) for signs in product((-1, 1), repeat=9)]
    observed = (values - 0.1).sum()
    assert sign_flip_test(values, 0.1) == np.mean(np.abs(flipped) >= abs(observed) - 1e-9)
    greater = sign_flip_test(values, 0.1, alternative="greater")
    assert greater == np.mean(np.array(flipped) >= observed - 1e-9)
    assert sign_flip_test(-values, -0.1, alternative="less") == greater
    assert sign_flip_test([1.0, 2.0, 3.0, 4.0, 5.0]) == 2 / 2**5
    assert sign_flip_test([0.1, 0.1, 0.1], 0.1) == 1.0


def test_sign_flip_test_agrees_with_scipy_beyond_enumeration():
    values = RNG.normal(0.3, 1, size=30)
    expected = stats.permutation_test(
        (values,), np.mean, permutation_type="samples", n_resamples=50_000, rng=0
    ).pvalue
    assert sign_flip_test(values) == pytest.approx(expected, abs=0.015)
    assert sign_flip_test(np.full(30, 1.0)) == 1 / 10_001


def test_seeds_needed_is_the_smallest_number_with_the_power():
    values = np.array([-1.0, 1.0]) * math.sqrt(0.5) + 0.5  # mean .5, standard deviation 1
    n = seeds_needed(values, power=0.8)
    assert n == 34  # the textbook answer for d = .5, one sample, two-sided .05
    rng = np.random.default_rng(0)
    for seeds, reached in ((n, True), (n - 2, False)):
        runs = rng.normal(0.5, 1, size=(40_000, seeds))
        t = runs.mean(axis=1) / runs.std(axis=1, ddof=1) * math.sqrt(seeds)
        assert (np.mean(t > stats.t.ppf(0.975, seeds - 1)) >= 0.8) == reached
    assert seeds_needed(values + 1, threshold=1.0) == n
    assert seeds_needed(-values) == n


def test_seeds_needed_says_when_no_number_helps():
    assert seeds_needed([1.0]) is None
    assert seeds_needed([0.1 + 0.2, 0.3], threshold=0.3) is None
    assert seeds_needed([1e-6, 1.0, -1.0]) is None
    assert seeds_needed([1.0, 1.0, 1.0]) == 2
    assert seeds_needed([1.0, 1.0 + 1e-12]) == 2  # the noncentral t overflows here


@pytest.mark.parametrize(
    ("seeds", "effect", "level"), [(5, 1.0, 0.95), (20, 0.5, 0.95), (8, 0.7, 0.8)]
)
def test_t_power_is_how_often_the_interval_clears_the_threshold(seeds, effect, level):
    runs = np.random.default_rng(1).normal(effect, 1, size=(20_000, seeds))
    half = stats.t.ppf((1 + level) / 2, seeds - 1) * runs.std(axis=1, ddof=1) / math.sqrt(seeds)
    assert t_power(seeds, effect, level=level) == pytest.approx(
        np.mean(runs.mean(axis=1) > half), abs=0.012
    )


def test_t_power_without_an_effect_is_one_tail():
    assert t_power(7, 0.0) == pytest.approx(0.025)
    assert t_power(2, 1e12) == 1
    with pytest.raises(ValueError, match="seeds must"):
        t_power(1, 0.5)


def test_benjamini_hochberg_is_scipys_adjusted_p_value_below_the_rate():
    for count in (1, 7, 40):
        p_values = RNG.uniform(size=count) ** 3
        expected = stats.false_discovery_control(p_values) <= 0.05
        np.testing.assert_array_equal(benjamini_hochberg(p_values), expected)
    assert benjamini_hochberg([0.04, 0.045, 0.05]).all()
    assert benjamini_hochberg([]).shape == (0,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: seeds_needed([1.0], power=80), "power must lie .* got 80"),
        (lambda: sign_flip_test([1.0], alternative="up"), "known: two-sided, greater, less"),
        (lambda: benjamini_hochberg([1.2]), "between 0"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
