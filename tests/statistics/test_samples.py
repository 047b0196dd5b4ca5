"""Every interval against its definition, solved by another way; every test against an enumeration
or scipy."""

from __future__ import annotations

import math
from itertools import combinations

import audit_coverage
import numpy as np
import pandas as pd
import pytest
from scipy import optimize, stats

from fairlib import statistics

RNG = np.random.default_rng(20)
Z = statistics.normal_z(0.95)
FLAGS = pd.Series([0, 1])


def test_the_mean_of_each_group_is_numpys():
    groups = np.repeat([0, 1, 3], [900, 100, 400])
    values = RNG.normal(loc=groups, size=len(groups))
    means = statistics.group_means(values, groups, 4)
    assert means[[0, 1, 3]] == pytest.approx(
        [values[groups == group].mean() for group in (0, 1, 3)]
    )
    assert np.isnan(means[2])


def test_accuracies_by_chance_are_binomial():
    drawn = statistics.accuracies_by_chance([10, 50], 0.8, draws=20_000, seed=1)
    assert drawn.shape == (20_000, 2)
    for accuracies, size in zip(drawn.T, (10, 50), strict=True):
        counts = np.bincount((accuracies * size).round().astype(int), minlength=size + 1)
        expected = stats.binom.pmf(np.arange(size + 1), size, 0.8) * len(drawn)
        common = expected > 5
        assert (
            stats.chisquare(
                counts[common], expected[common] * counts[common].sum() / expected[common].sum()
            ).pvalue
            > 0.01
        )


def test_the_interval_of_a_share_is_scipys():
    for count, size in ((0, 30), (3, 30), (30, 30), (500, 1000)):
        expected = stats.binomtest(count, size).proportion_ci(0.9, method="wilson")
        assert statistics.wilson(count, size, statistics.normal_z(0.9)) == pytest.approx(
            (expected.low, expected.high)
        )
    assert np.isnan(statistics.wilson(0, 0, Z)).all()


def most_likely(lost, gained, size, difference):
    """The share that is gained, given the difference, which makes what was seen the most likely; by
    a search."""

    def surprise(q):
        p = q + difference
        rest = 1 - p - q
        counts = ((lost, p), (gained, q), (size - lost - gained, rest))
        return -sum(count * math.log(max(share, 1e-300)) for count, share in counts if count)

    low, high = max(0, -difference), (1 - difference) / 2
    return optimize.minimize_scalar(
        surprise, bounds=(low, high), method="bounded", options={"xatol": 1e-12}
    ).x


@pytest.mark.parametrize(
    ("lost", "gained", "size"), [(7, 1, 21), (3, 5, 40), (0, 4, 60), (12, 0, 30), (90, 10, 1000)]
)
def test_the_bounds_of_a_drop_are_where_its_score_is_as_large_as_the_critical_value(
    lost, gained, size
):
    for bound in statistics.tango(lost, gained, size, Z):
        q = most_likely(lost, gained, size, float(bound))
        variance = size * (2 * q + bound - bound**2)
        assert abs(lost - gained - size * bound) == pytest.approx(Z * math.sqrt(variance), rel=2e-3)


def test_the_interval_of_a_drop_is_tangos_example_and_never_of_zero_width():
    assert statistics.tango(7, 1, 21, Z) == pytest.approx((0.0260, 0.5172), abs=1e-4)
    low, high = statistics.tango([0, 0], [0, 0], [30, 109], Z)
    assert high == pytest.approx(Z**2 / (np.array([30, 109]) + Z**2)) and low == pytest.approx(
        -high
    )
    assert statistics.tango(3, 8, 40, Z) == pytest.approx(
        [-bound for bound in statistics.tango(8, 3, 40, Z)[::-1]]
    )


def test_the_interval_of_a_ratio_of_paired_shares_covers_it():
    """900 right before and 720 after in expectation, and a small group, where it covers at least as
    often."""
    for size in (1000, 40):
        cells = np.random.default_rng(1).multinomial(size, [0.7, 0.2, 0.02, 0.08], 3000)
        low, high = statistics.ratio(cells[:, 1], cells[:, 2], cells[:, 0] + cells[:, 1], Z)
        covered = np.mean((low <= 0.72 / 0.9) & (high >= 0.72 / 0.9))
        assert 0.94 < covered < 0.985
    assert np.isnan(statistics.ratio(0, 3, 0, Z)[0])


def test_the_interval_of_symmetric_numbers_is_students():
    values = np.concatenate([RNG.normal(size=40), []])
    values = np.concatenate([values, -values]) + 3
    moments = [(values**power).sum() for power in (1, 2, 3)]
    low, high = statistics.skewed(moments, len(values), Z)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (low, high) == pytest.approx((expected.low, expected.high))
    assert np.isnan(statistics.skewed([1.0, 1.0, 1.0], 1, Z)).all()


def test_the_interval_of_skewed_numbers_undoes_halls_transformation():
    values = RNG.gamma(0.3, 1, 50)
    n, mean = len(values), values.mean()
    low, high = statistics.skewed([(values**power).sum() for power in (1, 2, 3)], n, Z)
    skewness, quantile = stats.skew(values), stats.t.ppf(0.975, n - 1)

    def transformed(bound):
        t = (mean - bound) * math.sqrt(n) / values.std(ddof=1)
        flat = t**2 * skewness / (3 * math.sqrt(n)) + skewness**2 * t**3 / (27 * n)
        return t + flat + skewness / (6 * math.sqrt(n))

    assert transformed(high) == pytest.approx(-quantile)
    student = mean - quantile * values.std(ddof=1) / math.sqrt(n)
    assert low == pytest.approx(student)  # On this side Hall's bound lies within Student's.


def test_the_critical_value_of_all_pairs_is_that_of_the_studentized_range():
    for groups in (2, 3, 10, 40):
        expected = stats.studentized_range.ppf(0.95, groups, np.inf) / math.sqrt(2)
        assert statistics.range_z(groups) == pytest.approx(expected, rel=1e-6)
    assert statistics.range_tail(2, 1.96) == pytest.approx(2 * stats.norm.sf(1.96), rel=1e-4)
    assert statistics.range_tail(5, 0.0) == pytest.approx(1)


def test_holms_p_values_are_those_of_a_hand_worked_case_and_nan_is_no_test():
    assert statistics.holm([0.01, 0.04, 0.03, math.nan]) == pytest.approx(
        [0.03, 0.06, 0.06, math.nan], nan_ok=True
    )
    assert statistics.holm([0.6, 0.9]).tolist() == [1.0, 1.0]
    assert statistics.holm([]).shape == (0,)


def tables(quantity, marked, size):
    """The studentized difference of two groups for every way to choose the first, and for the given
    one."""
    samples = np.zeros(size)
    samples[:marked] = 1
    found = []
    for first in combinations(range(size), int(quantity.sizes[0])):
        inside = np.isin(np.arange(size), first)
        means, errors = [], []
        for part in (samples[inside], samples[~inside]):
            means.append(part.mean())
            share = (part.sum() + 2) / (len(part) + 4)
            errors.append(share * (1 - share) / (len(part) + 4))
        found.append(abs(means[0] - means[1]) / math.sqrt(sum(errors)))
    return np.array(found)


def test_the_permutation_test_matches_a_full_enumeration():
    """Five of twelve samples count, four of these in the first group of five; score intervals
    reject more surely."""
    marked, groups = np.array([1, 1, 1, 1, 0, 1, 0, 0, 0, 0, 0, 0]), np.repeat([0, 1], [5, 7])
    quantity = statistics.share(marked, groups, 2)
    every = tables(quantity, 5, 12)
    shares, prior = np.array([4 / 5, 1 / 7]), (np.array([4, 1]) + 2) / (np.array([5, 7]) + 4)
    observed = (shares[0] - shares[1]) / math.sqrt(
        sum(prior * (1 - prior) / (np.array([5, 7]) + 4))
    )
    gap = statistics.gap(quantity, statistics.permuted(quantity, permutations=20_000))
    assert gap.p_value == pytest.approx(np.mean(every >= observed - 1e-9), abs=0.005)
    assert gap.estimate == pytest.approx(4 / 5 - 1 / 7)


def test_numbers_are_permuted_and_counts_scattered_alike():
    """Drops as numbers and as counts: the same sums under random labels, in mean and spread."""
    before, after = RNG.random(300) < 0.8, RNG.random(300) < 0.6
    groups = np.repeat([0, 1, 2], [200, 60, 40])
    counted = statistics.drop(before, after, groups, 3)
    summed = statistics.numbers(before.astype(float) - after, groups, 3)
    assert counted.mean == pytest.approx(summed.mean)
    sums, squares = statistics.permuted(counted, permutations=4000)
    others, _ = statistics.permuted(summed, before.astype(float) - after, permutations=4000, seed=1)
    centered = sums - counted.sizes * (before.mean() - after.mean())
    assert centered.mean(0) == pytest.approx(others.mean(0), abs=0.35)
    assert centered.std(0) == pytest.approx(others.std(0), rel=0.06)
    assert (sums.sum(1) == (before.sum() - after.sum())).all() and (
        squares.sum(1) == (before != after).sum()
    ).all()


def test_blocks_of_permutations_do_not_change_their_distribution(monkeypatch):
    values, groups = RNG.normal(size=40), np.repeat([0, 1], 20)
    quantity = statistics.numbers(values, groups, 2)
    monkeypatch.setattr(statistics.samples, "_BLOCK", 41)  # One permutation a block.
    sums, squares = statistics.permuted(quantity, values, permutations=500)
    assert len(np.unique(sums[:, 0])) > 490
    assert squares.sum(1) == pytest.approx(((values - values.mean()) ** 2).sum())


def test_random_groups_of_sixty_give_the_gap_that_theory_expects():
    """Ten groups of 60 samples at accuracy .85: the expected range of ten normals is 3.078 standard
    errors."""
    quantity = statistics.share(
        np.arange(600) % 20 >= 3, RNG.permutation(np.repeat(np.arange(10), 60)), 10
    )
    gap = statistics.gap(quantity, statistics.permuted(quantity))
    assert gap.null_mean == pytest.approx(3.078 * math.sqrt(0.85 * 0.15 / 60), rel=0.05)


def test_the_gap_of_two_groups_is_bounded_by_square_and_add():
    """Newcombe's (1998) method 10 for two independent shares: 56 of 70 and 48 of 80."""
    quantity = statistics.share([1] * 56 + [0] * 14 + [1] * 48 + [0] * 32, [0] * 70 + [1] * 80, 2)
    gap = statistics.gap(quantity, statistics.permuted(quantity))
    assert (gap.estimate, gap.low, gap.high) == pytest.approx((0.2000, 0.0524, 0.3339), abs=1e-4)
    assert (gap.pairs, gap.pairs_low, gap.pairs_high) == gap[:3]


def test_a_contrast_compares_a_group_with_all_others_together():
    right, groups = RNG.random(600) < 0.7, np.repeat([0, 1, 2], [400, 150, 50])
    quantity = statistics.share(right, groups, 3)
    contrast = statistics.contrast(quantity, statistics.permuted(quantity))
    for group in range(3):
        inside = groups == group
        pair = statistics.share(right, np.where(inside, 0, 1), 2)
        alone = statistics.gap(pair, statistics.permuted(pair))
        assert contrast.estimate[group] == pytest.approx(
            right[inside].mean() - right[~inside].mean()
        )
        assert contrast.p_value[group] == pytest.approx(alone.p_value, abs=0.05)
        assert max(abs(contrast.low[group]), abs(contrast.high[group])) == pytest.approx(alone.high)


def test_a_detectable_drop_is_found_about_half_the_time():
    """Groups of 2,000 and of 40, of which a tenth flips, and the smaller one loses as much more."""
    generator, found, flips = np.random.default_rng(3), [], 0.1
    for _ in range(12):
        counts = [generator.multinomial(n, [flips / 2, flips / 2, 1 - flips]) for n in (2000, 40)]
        quantity = statistics.Quantity(np.array(counts, dtype=float)[:, :2], np.array([2000, 40]))
        difference = statistics.detectable_drop(quantity)[1]
        lost = [flips / 2 + difference, flips / 2, 1 - flips - difference]
        quantity.sums[1] = generator.multinomial(40, lost)[:2]
        test = statistics.contrast(quantity, statistics.permuted(quantity, permutations=100))
        found.append(test.p_value[1] <= 0.05)
    assert 0.25 < np.mean(found) < 0.8


def test_intervals_cover_and_gaps_are_rarely_found_where_there_is_none(monkeypatch):
    """A small form of ``benchmarks/audit_coverage.py``, which records all settings."""
    monkeypatch.setattr(audit_coverage, "DRAWS", 60)
    chosen = [
        audit_coverage.Setting("accuracy", (50,) * 10, 0.9, 0.9, 0.0),
        audit_coverage.Setting("drop", (1000, 30), 0.05, 0.05, 0.05),
        audit_coverage.Setting("loss", (2000, 100, 50, 40), 1.0, 0.25, 0.0),
    ]
    table = pd.concat([audit_coverage.measure(setting, 10) for setting in chosen])
    covers = table[~table["counted"].str.contains(":|found")]
    assert covers["share"].mean() > 0.94
    assert audit_coverage.missed(table).to_dict("records") == []


PINNED = {
    "share": [
        0.358934451833,
        0.917781075996,
        0.0566666666667,
        0.0,
        0.473204019635,
        0.1505,
        0.751243781095,
        0.0377777777778,
        0.0,
        0.356444041235,
        -0.00879120879121,
        -0.367761450067,
        0.202628341008,
        1.0,
        1.0,
    ],
    "drop": [
        -0.169853416513,
        0.641065548167,
        0.252380952381,
        0.0,
        0.704879334975,
        0.204021428571,
        0.408212510173,
        0.168253968254,
        0.0,
        0.531334895163,
        0.162637362637,
        -0.29854246634,
        0.525236868816,
        0.457711442786,
        0.588154901849,
        0.28697197086,
    ],
    "numbers": [
        -0.0755316094889,
        0.563851661343,
        0.160354680198,
        0.0,
        1.02771722213,
        0.181621090942,
        0.482104887471,
        0.106903120132,
        0.0,
        0.753663763052,
        -0.157710091226,
        -0.395851865374,
        0.26320210246,
        0.248756218905,
        0.746268656716,
    ],
}


@pytest.mark.parametrize("kind", PINNED)
def test_numbers_of_a_small_test_set_are_those_that_were_calibrated(kind):
    """Coverage was simulated with these formulas and constants: another number asks for it anew."""
    generator, groups = np.random.default_rng(5), np.repeat([0, 1, 2], [200, 60, 7])
    before, after = generator.random(267) < 0.85, generator.random(267) < 0.7
    losses = generator.gamma(0.3, 1, 267)
    quantity = {
        "share": statistics.share(after, groups, 3),
        "drop": statistics.drop(before, after, groups, 3),
        "numbers": statistics.numbers(losses, groups, 3),
    }[kind]
    values = losses if kind == "numbers" else None
    null = statistics.permuted(quantity, values, permutations=200, seed=2)
    contrast = statistics.contrast(quantity, null)
    found = [
        quantity.interval().low[2],
        quantity.interval().high[2],
        *statistics.gap(quantity, null),
        *(numbers[2] for numbers in contrast),
    ]
    if kind == "drop":
        found.append(statistics.detectable_drop(quantity)[1])
    assert found == pytest.approx(PINNED[kind], rel=1e-9)


def test_of_gaps_without_a_difference_in_means_spread_alone_makes_none():
    """What a test of exchangeability takes for a gap in half of all cases: a group that varies four
    times as much."""
    setting = audit_coverage.Setting("loss", (1000, 60), 1.0, 4.0, 0.0)
    found = audit_coverage.measure(setting, 40).set_index("counted")["share"]
    assert found["gap found"] < 0.15


def test_nulls_have_the_calibrated_numbers_of_draws():
    quantity = statistics.share([1, 0, 1, 0], [0, 0, 1, 1], 2)
    assert statistics.permuted(quantity)[0].shape == (1000, 2)
    assert statistics.accuracies_by_chance([3, 4], 0.5).shape == (200, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: statistics.group_means([1.0, 2.0], [0], 1), r"\(2,\) and \(1,\)"),
        (lambda: statistics.group_means([1.0], [2], 2), r"codes in \[0, 2\), got 2 to 2"),
        (
            lambda: statistics.share(FLAGS, FLAGS[::-1], 2),
            "groups and counts must have the same index",
        ),
        (lambda: statistics.numbers(FLAGS, FLAGS[::-1], 2), "groups and values must have the same"),
        (lambda: statistics.group_means(FLAGS, FLAGS[::-1], 2), "groups and values must have the"),
        (lambda: statistics.drop(FLAGS, FLAGS[::-1], [0, 1], 2), "after and before must have the"),
        (lambda: statistics.accuracies_by_chance([3, 0], 0.5), "positive whole numbers"),
        (lambda: statistics.accuracies_by_chance([3, 4], 0.5, draws=0), "draws must lie in"),
        (
            lambda: statistics.accuracies_by_chance([3, 4], 1.5),
            r"accuracy must lie in \[0, 1\], got 1.5",
        ),
        (lambda: statistics.normal_z(95), r"level must lie in \(0, 1\), got 95"),
        (lambda: statistics.range_z(3, 0), r"level must lie in \(0, 1\), got 0"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
