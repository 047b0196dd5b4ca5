"""Verdicts worked by hand: what values over seeds, and over cells, say about a threshold."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from claim_samples import spread
from scipy import stats

from whopays.seeds import seeds_needed
from whopays.verdict import Criterion, judge, resplit_interval, t_test

GREATER, LESS, EQUAL = (
    Criterion(direction, 0.0, 0.03) for direction in ("greater", "less", "equal")
)
BOUND = Criterion("equal", 0.0, 0.03, holds=True)


def cells(**values) -> pd.DataFrame:
    return pd.DataFrame(values)


@pytest.mark.parametrize(
    ("criterion", "center", "half", "name"),
    [
        (GREATER, 0.1, 0.05, "supported"),
        (GREATER, -0.1, 0.05, "reversed"),
        (GREATER, 0.0, 0.02, "no effect"),
        (GREATER, 0.01, 0.01, "supported, negligible"),
        (GREATER, -0.01, 0.01, "reversed, negligible"),
        (GREATER, 0.02, 0.02, "supported"),
        (LESS, -0.01, 0.01, "supported, negligible"),
        (GREATER, 0.0, 0.1, "undecided"),
        (LESS, -0.1, 0.05, "supported"),
        (LESS, 0.1, 0.05, "reversed"),
        (EQUAL, 0.01, 0.02, "supported"),
        (EQUAL, 0.1, 0.05, "reversed"),
        (EQUAL, 0.03, 0.01, "undecided"),
    ],
)
def test_the_interval_of_ten_seeds_decides(criterion, center, half, name):
    """The values lie ``half`` to either side of ``center``, their interval .754 times as far."""
    values = spread(center, half)
    found = judge(values, criterion)
    assert found.name == name and found.seeds == 10
    low, high = stats.t.interval(0.95, 9, loc=values.mean(), scale=stats.sem(values))
    assert found.interval == pytest.approx((center, low, high))


def test_fewer_than_ten_seeds_decide_nothing():
    found = judge(spread(0.1, 0.01, n=9), GREATER)
    assert found.name == "undecided" and found.reason == "9 seeds; a verdict takes 10"
    found = judge(cells(a=spread(0.1, 0.01, n=9), b=spread(-0.1, 0.01, n=9)), GREATER)
    assert found.name == "undecided" and found.reason == "9 seeds; a verdict takes 10"


def test_a_mean_that_passes_does_not_hide_a_cell_that_reverses():
    """All ten values of c are negative: 2 of the 1,024 patterns of signs are as extreme, times
    three cells."""
    table = cells(a=spread(0.3, 0.05), b=spread(0.3, 0.05), c=spread(-0.1, 0.05))
    assert judge(table.mean(axis=1), GREATER).name == "supported"
    found = judge(table, GREATER)
    assert found.name == "reversed" and found.reason == "in 1 of 3 cells"
    assert found.worst_cell == "c" and found.worst_estimate == pytest.approx(-0.1)
    assert found.p_value == pytest.approx(3 * 2 / 1024)
    assert found.interval.estimate == pytest.approx(0.5 / 3)


def test_a_statement_about_each_cell_is_supported_if_all_pass():
    """The five values of b that are below 0 are small: its p-value, the largest, is that of the
    claim."""
    table = cells(a=spread(0.3, 0.05), b=spread(0.1, 0.12))
    found = judge(table, GREATER)
    assert found.name == "supported" and found.worst_cell == "b"
    assert found.p_value == judge(table["b"], GREATER).p_value > judge(table["a"], GREATER).p_value
    assert judge(-table, LESS).name == "supported" and judge(-table, LESS).worst_cell == "b"
    assert found.reason == ""
    little = judge(table.assign(b=spread(0.01, 0.005)), GREATER)
    assert (little.name, little.reason) == ("supported", "negligible in 1 of 2 cells")
    both = judge(cells(a=spread(0.01, 0.005), b=spread(0.015, 0.005)), GREATER)
    assert (both.name, both.reason) == ("supported, negligible", "")


def test_a_verdict_must_stand_without_what_chance_gives():
    """An interval of .1 -+ .038: .05 by chance leaves it beyond 0, .08 does not; the other way it
    decides nothing."""
    values = pd.Series(spread(0.1, 0.05))
    for chance, name in (
        (0.05, "supported"),
        (0.08, "undecided"),
        (0.2, "undecided"),
        (-0.1, "supported"),
    ):
        found = judge(values, GREATER, [pd.Series([chance] * 10)])
        assert found.name == name and found.interval == judge(values, GREATER).interval
    small = judge(
        values, GREATER, [pd.Series([0.06] * 10)]
    )  # Some values less .06 are below 0: the larger p-value.
    assert small.name == "supported"
    assert small.p_value == judge(values - 0.06, GREATER).p_value > judge(values, GREATER).p_value
    assert found.reason == "" and judge(values, GREATER, [values]).reason == (
        "supported, but no effect without what chance alone gives"
    )
    nothing = pd.Series(spread(0.01, 0.1))
    assert judge(nothing, GREATER, [pd.Series([-0.2] * 10)]) == judge(nothing, GREATER)
    table = cells(a=spread(0.3, 0.05), b=spread(0.1, 0.05))
    assert judge(table, GREATER, [table * 0 + 0.05]).name == "supported"
    assert judge(table, GREATER, [table * 0 + 0.05, table * 0 + 0.08]).name == "undecided"


def test_one_undecided_cell_leaves_the_statement_undecided():
    table = cells(a=spread(0.3, 0.05), b=spread(0.3, 0.05), c=spread(0.02, 0.1))
    found = judge(table, GREATER)
    assert (
        found.name == "undecided"
        and found.reason == "2 of 3 cells pass"
        and found.worst_cell == "c"
    )
    assert found.needed == judge(table["c"], GREATER).needed > 10
    assert judge(cells(a=spread(0.3, 0.05), b=spread(0.0, 0.02)), GREATER).name == "undecided"


def test_all_cells_within_the_margin_have_no_effect():
    found = judge(cells(a=spread(0.0, 0.02), b=spread(0.005, 0.02)), GREATER)
    assert found.name == "no effect" and found.equivalence
    assert judge(cells(a=spread(0.0, 0.02), b=spread(0.005, 0.02)), EQUAL).name == "supported"


def test_a_cell_barely_beyond_the_threshold_does_not_reverse_three():
    """The interval of c ends at -.0046; widened from 95 % to 98.3 %, times 1.30, it reaches
    .018."""
    table = cells(a=spread(0.3, 0.05), b=spread(0.3, 0.05), c=spread(-0.08, 0.1))
    assert (
        judge(table["c"], GREATER).name == "reversed" and judge(table, GREATER).name == "undecided"
    )
    assert judge(table["c"], GREATER).interval.high == pytest.approx(-0.0046, abs=1e-4)
    assert judge(table.assign(c=spread(-0.1, 0.1)), GREATER).name == "reversed"  # Ends at -.0025.
    needed = judge(table, GREATER).needed  # Of c alone, at 98.3 %.
    assert needed == seeds_needed(table["c"], level=1 - 0.05 / 3) > 10


def test_the_worst_cell_is_the_furthest_against_the_claim():
    table = cells(a=spread(-0.2, 0.05), b=spread(0.1, 0.05), c=spread(0.25, 0.05))
    assert [judge(table, criterion).worst_cell for criterion in (GREATER, LESS, EQUAL)] == [
        "a",
        "c",
        "c",
    ]
    shared = judge(table.assign(d=spread(-0.3, 1.0)), GREATER)
    assert (
        shared.name == "reversed" and shared.worst_cell == "a"
    )  # d is lower, but its interval decides nothing.


def test_one_violation_among_ten_refutes_a_bound():
    values = [0.0] * 9 + [1.0]
    found = judge(values, BOUND)
    assert (
        found.name == "reversed"
        and math.isnan(found.p_value)
        and found.interval.estimate == pytest.approx(0.1)
    )
    assert judge(values, EQUAL).name == "undecided"
    assert judge([0.0] * 9 + [0.03], BOUND).name == "supported"
    assert judge([0.0, 0.0, 1.0], BOUND).name == "reversed"
    assert judge([0.0] * 9, BOUND).name == "undecided"
    found = judge(cells(a=[0.0] * 10, b=values), BOUND)
    assert found.name == "reversed" and found.worst_cell == "b" and math.isnan(found.p_value)


def test_equivalence_rests_on_the_larger_of_two_one_sided_tests():
    """All values lie within the margin, so that of 1,024 patterns of signs only one is as extreme,
    on each side."""
    found = judge(spread(0.01, 0.01), EQUAL)
    assert found.equivalence and found.p_value == pytest.approx(1 / 1024)
    found = judge(spread(0.0, 0.02), GREATER)
    assert found.name == "no effect" and found.p_value == pytest.approx(1 / 1024)


def test_a_cell_reverses_negligibly_only_if_its_widened_interval_is_within_the_margin():
    """The half width of c is .0151; times 1.30, for three cells, .0196, which -.0085 does not
    bear."""
    table = cells(a=spread(0.3, 0.05), b=spread(0.3, 0.05), c=spread(-0.01, 0.005))
    assert judge(table, GREATER).name == "reversed, negligible"
    assert judge(table.assign(c=spread(-0.02, 0.012)), GREATER).name == "reversed"
    assert judge(table["c"] * 0 - 0.02, GREATER).name == "reversed, negligible"


def test_chance_may_take_the_size_of_a_verdict_but_not_its_side():
    values = pd.Series(spread(0.04, 0.01))
    assert judge(values - 0.025, GREATER).name == "supported, negligible"
    assert judge(values, GREATER, [pd.Series([0.025] * 10)]).name == "supported"
    assert judge(values, GREATER, [pd.Series([0.038] * 10)]).name == "undecided"


def test_the_interval_of_one_split_data_set_is_that_of_nadeau_and_bengio():
    """Over ten seeds with a quarter as many test as training samples the variance is 3.5 times as
    large; an interval that reaches 0 then decides nothing."""
    values = np.random.default_rng(0).normal(0.05, 0.06, 10)
    mean, variance = values.mean(), ((values - values.mean()) ** 2).sum() / 9
    half = 2.2621571628 * math.sqrt(variance * (1 / 10 + 0.25))
    assert resplit_interval(values, 0.25) == pytest.approx((mean, mean - half, mean + half))
    assert resplit_interval(values, 0.0) == judge(values, GREATER).interval
    assert resplit_interval(values[:1], 0.0).high == math.inf
    assert judge(values, GREATER).name == "supported" and mean - half < 0
    found = judge(values, GREATER, overlap=0.25)
    assert found.name == "undecided" and found.interval == resplit_interval(values, 0.25)
    table = pd.DataFrame({"a": values, "b": values + 1})
    assert judge(table, GREATER).name == "supported"
    assert judge(table, GREATER, overlap=0.25).name == "undecided"
    again = judge(values, GREATER, [pd.Series(values * 0)], overlap=0.25)
    assert again.name == "undecided"


def test_students_p_value_is_that_of_scipy_and_of_constants_zero_or_one():
    values = np.random.default_rng(1).normal(0.1, 1, 12)
    for alternative in ("two-sided", "greater", "less"):
        expected = stats.ttest_1samp(values, 0.3, alternative=alternative).pvalue
        assert t_test(values, 0.3, alternative=alternative) == pytest.approx(expected)
    constant = np.full(10, 0.5)
    assert t_test(constant) == 0 and t_test(constant, 0.5) == 1
    assert t_test(constant, alternative="less") == 1
    assert judge(spread(0.1, 0.05), GREATER, test=t_test).p_value == pytest.approx(
        stats.ttest_1samp(spread(0.1, 0.05), 0).pvalue
    )


def test_missing_values_are_refused():
    with pytest.raises(ValueError, match="finite"):
        judge([*spread(0.1, 0.05, n=9), np.nan], GREATER)
