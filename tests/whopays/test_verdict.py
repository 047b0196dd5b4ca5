"""Verdicts worked by hand: what values over seeds, and over cells, say about a threshold."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from claim_samples import spread
from scipy import stats

from whopays.seeds import seeds_needed
from whopays.verdict import Criterion, judge

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
    assert little.name == "supported" and little.reason.startswith(
        "in some cell beyond the threshold, yet within"
    )


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


def test_support_within_the_margin_is_given_with_a_reservation():
    found = judge(spread(0.01, 0.01), GREATER)
    assert (
        found.name == "supported"
        and found.reason == "beyond the threshold, yet within the margin of 0.03"
    )


def test_missing_values_are_refused():
    with pytest.raises(ValueError, match="finite"):
        judge([*spread(0.1, 0.05, n=9), np.nan], GREATER)
