"""Verdicts: what values over seeds say about a claim's threshold.

With the 95 % t interval of the mean over seeds, in this order of precedence:

| direction | supported | reversed | no effect |
|---|---|---|---|
| greater, less | interval beyond the threshold | beyond, other side | within threshold +- margin |
| equal | interval within threshold +- margin | wholly outside it | |

All other cases, and all with fewer than `MIN_SEEDS` seeds, are *undecided*. Where an interval is
beyond the threshold and yet wholly within the margin, the direction is certain and the size does
not matter: *supported, negligible* or *reversed, negligible*.

A statement about *each* of several cells (levels, methods, groups) is an intersection-union test:
it is supported, or has no effect, if every cell does, each at the full level (Berger 1982); it is
reversed if one cell is, its interval widened for the number of cells (Bonferroni). It is negligible
if all cells that decide it are. A statement that must *hold* (a bound, an identity) is a search for
counterexamples: it is reversed by one value outside the margin, whatever the others.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy

from fairlib.statistics import Interval, t_interval
from whopays.seeds import seeds_needed, sign_flip_test

MIN_SEEDS = 10
LEVEL = 0.95
Test = Callable[..., float]
NEGLIGIBLE = ", negligible"
DECIDED = (
    *("supported", f"supported{NEGLIGIBLE}", "reversed", f"reversed{NEGLIGIBLE}"),
    "no effect",
)
VERDICTS = (*DECIDED, "undecided", "undecided (floor)", "not testable here")
"""All verdicts. The last two come from :mod:`whopays.claims`, which knows floors and reasons."""


def side(verdict: str) -> str:
    """Return a verdict without its size: ``"supported"`` for *supported, negligible*."""
    return verdict.removesuffix(NEGLIGIBLE)


class Criterion(NamedTuple):
    """Criterion of a claim: direction, threshold, margin of equivalence.

    ``holds`` is True for a statement that one exception refutes.
    """

    direction: str
    threshold: float
    margin: float
    holds: bool = False

    @property
    def ends(self) -> tuple[float, float]:
        """Lower and upper end of the margin of equivalence."""
        return self.threshold - self.margin, self.threshold + self.margin

    def in_margins(self, value: Any) -> Any:
        """Express a value in margins from the threshold on, positive on the claimed side."""
        unit = -self.margin if self.direction == "less" else self.margin
        return (value - self.threshold) / unit


class Verdict(NamedTuple):
    """Verdict of values on a claim.

    Attributes:
        name: One of `VERDICTS`.
        reason: Why the claim is undecided or not testable, or a reservation; may be empty.
        interval: Mean over seeds, and over cells if there are several, and its 95 % t interval; NaN
            where nothing was computed.
        seeds: Number of values.
        p_value: P-value of the sign-flip test that the verdict rests on: two-sided against the
            threshold, or the larger of the two one-sided ones against the ends of the margin where
            equivalence is asserted; of several cells the largest, or the smallest times their
            number where one cell reverses; with and without what chance gives the larger. NaN where
            one exception refutes.
        needed: Number of seeds at which an undecided claim has a verdict with 80 % power; None if
            no number up to 100,000 is enough.
        equivalence: Whether the test asserts equality.
        worst_cell: Name of the cell that speaks most against the claim; empty if there is only one.
        worst_estimate: Mean over seeds in this cell.
    """

    name: str
    reason: str = ""
    interval: Interval = Interval(math.nan, math.nan, math.nan)
    seeds: int = 0
    p_value: float = math.nan
    needed: int | None = None
    equivalence: bool = False
    worst_cell: str = ""
    worst_estimate: float = math.nan


def judge(
    values: Iterable[float] | pd.DataFrame,
    criterion: Criterion,
    by_chance: Sequence[pd.Series | pd.DataFrame] = (),
    *,
    overlap: float = 0.0,
    test: Test = sign_flip_test,
) -> Verdict:
    """Compare one value per seed, or one per seed and cell, with a threshold.

    The interval is Student's: over 10 seeds the percentile bootstrap covers 90 % where it says 95
    %.

    Args:
        values: One value per seed, ``(n,)``, or a table with seeds in rows and cells in columns.
        criterion: Direction, threshold and margin.
        by_chance: What chance alone would give in place of each value
            (:func:`whopays.effects.by_chance`): a verdict that does not hold without each of these
            is *undecided*.
        overlap: Number of test samples for each training sample where every seed splits the same
            data anew (`resplit_interval`); 0 where seeds are independent.
        test: Test of the p-value, :func:`whopays.seeds.sign_flip_test` or `t_test`.

    Raises:
        ValueError: If there is no value, or one is missing or not finite.

    Example:
        Ten seeds, and whether their mean is above 0, where less than 0.01 is as good as nothing:

        >>> from whopays.verdict import Criterion, judge
        >>> greater = Criterion("greater", threshold=0.0, margin=0.01)
        >>> judge([0.05, 0.06, 0.07, 0.08, 0.09] * 2, greater).name
        'supported'
        >>> judge([0.001, -0.001] * 5, greater).name
        'no effect'
        >>> judge([0.3, -0.2] * 5, greater).name
        'undecided'
        >>> judge([0.05, 0.06, 0.07, 0.08, 0.09], greater).reason
        '5 seeds; a verdict takes 10'
    """
    if len(by_chance):
        # Chance is asked only where it could take back a verdict.
        found = judge(values, criterion, overlap=overlap, test=test)
        for part in by_chance if found.name in DECIDED else ():
            without = judge(values - part, criterion, overlap=overlap, test=test)
            found = found._replace(p_value=max(found.p_value, without.p_value))
            if side(found.name) != side(without.name):
                reason = f"{found.name}, but {without.name} without what chance alone gives"
                return without._replace(
                    name="undecided", reason=reason, interval=found.interval, p_value=found.p_value
                )
        return found
    if isinstance(values, pd.DataFrame):
        return _of_cells(values, criterion, overlap, test)
    values = np.asarray(list(values), dtype=np.float64)
    interval = resplit_interval(values, overlap)
    name = _held(values, criterion) if criterion.holds else _compare(interval, criterion)
    # The test that the verdict rests on: one that finds no effect asserts equality as well.
    equivalence = name == "no effect" or (criterion.direction == "equal" and name != "reversed")
    p_value, reason = math.nan, "the interval reaches across a bound"
    needed: int | None = MIN_SEEDS
    # A counterexample refutes whatever the number of seeds.
    if len(values) < MIN_SEEDS and not (criterion.holds and name == "reversed"):
        name, reason = "undecided", f"{len(values)} seeds; a verdict takes {MIN_SEEDS}"
    if not criterion.holds:
        p_value = _p_value(values, interval.estimate, criterion, equivalence, test)
    if name != "undecided":
        reason, needed = "", None
    elif not criterion.holds:
        needed = _seeds_until_decided(values, interval.estimate, criterion)
    return Verdict(name, reason, interval, len(values), p_value, needed, equivalence)


def resplit_interval(values: np.ndarray, overlap: float, level: float = LEVEL) -> Interval:
    r"""Compute the t interval of a mean over seeds that split the same data anew.

    Two seeds share most of their training samples and some of their test samples, so that more
    seeds do not make the mean as much more certain as n independent samples would. Nadeau and
    Bengio (2003) take :math:`s^2 (1 / n + n_{test} / n_{train})` for its variance.

    Args:
        values: Values (n,), one per seed.
        overlap: :math:`n_{test} / n_{train}`; 0 gives Student's interval.
        level: Coverage, in (0, 1).
    """
    found = t_interval(values, level=level)
    if not overlap:  # Infinite for a single seed, which 0 times infinity would not be.
        return found
    half = (found.high - found.estimate) * math.sqrt(1 + len(values) * overlap)
    return Interval(found.estimate, found.estimate - half, found.estimate + half)


def t_test(values: np.ndarray, center: float = 0.0, *, alternative: str = "two-sided") -> float:
    """Compute the p-value of Student's test, as small as few seeds can make it."""
    # Constant values have no spread to divide by; they are as far from the center as can be.
    error = max(scipy.stats.sem(values), np.finfo(float).tiny)
    ratio = (np.mean(values) - center) / error
    tails = {"two-sided": -abs(ratio), "greater": -ratio, "less": ratio}
    share = scipy.stats.t.cdf(tails[alternative], len(values) - 1)
    return float(share * (1 + (alternative == "two-sided")))


def _of_cells(values: pd.DataFrame, criterion: Criterion, overlap: float, test: Test) -> Verdict:
    own = {cell: judge(values[cell], criterion, overlap=overlap, test=test) for cell in values}
    mean = resplit_interval(values.mean(axis=1).to_numpy(), overlap)
    p_value = max(found.p_value for found in own.values())
    few = f"{len(values)} seeds; a verdict takes {MIN_SEEDS}" * (len(values) < MIN_SEEDS)
    # A reversal by one of k cells has k chances: its interval is widened (Bonferroni). Support by
    # all cells needs no correction, since each has to pass (Berger 1982).
    level = 1 - (1 - LEVEL) / len(own)
    compared = {cell: found.name for cell, found in own.items()}
    if not criterion.holds:
        wide = {cell: resplit_interval(values[cell], overlap, level) for cell in own}
        compared = {cell: _compare(wide[cell], criterion) * (not few) for cell in own}
    overturned = [cell for cell in own if side(compared[cell]) == "reversed"]
    worst = max(overturned or own, key=lambda cell: _against(own[cell], criterion))
    summary = Verdict("undecided", few, mean, len(values), p_value)
    summary = summary._replace(worst_cell=worst, worst_estimate=own[worst].interval.estimate)
    if overturned:
        p_value = min(1.0, len(own) * min(own[cell].p_value for cell in overturned))
        return summary._replace(
            name="reversed" + NEGLIGIBLE * all(NEGLIGIBLE in compared[cell] for cell in overturned),
            reason=f"in {len(overturned)} of {len(own)} cells",
            p_value=math.nan if criterion.holds else p_value,
        )
    sides = [side(found.name) for found in own.values()]
    if sides[0] in DECIDED and len({*sides}) == 1:
        small = sum(NEGLIGIBLE in found.name for found in own.values())
        return summary._replace(
            name=sides[0] + NEGLIGIBLE * (small == len(own)),
            reason=f"negligible in {small} of {len(own)} cells" * (0 < small < len(own)),
            equivalence=own[worst].equivalence,
        )
    passed = f"{sides.count('supported')} of {len(own)} cells pass"
    return summary._replace(reason=few or passed, needed=_seeds_until_all(values, own, criterion))


def _seeds_until_all(
    values: pd.DataFrame, own: Mapping[str, Verdict], criterion: Criterion
) -> int | None:
    """Count seeds until a cell reverses the claim, or else until all have a verdict."""
    against = [cell for cell, found in own.items() if side(found.name) == "reversed"]
    if against and not criterion.holds:
        level = 1 - (1 - LEVEL) / len(own)
        means = {cell: own[cell].interval.estimate for cell in against}
        reached = [
            _seeds_until_decided(values[cell], mean, criterion, level)
            for cell, mean in means.items()
        ]
        return min((n for n in reached if n is not None), default=None)
    # The cell that takes longest decides, unless one of them is not expected to be decided at all.
    needed = [found.needed or math.inf for found in own.values() if found.name == "undecided"]
    most = max(needed, default=math.inf)
    return None if most == math.inf else int(most)


def _against(found: Verdict, criterion: Criterion) -> float:
    """Measure how far a cell speaks against the claim; the larger, the worse for it."""
    margins = criterion.in_margins(found.interval.estimate)
    return abs(margins) if criterion.direction == "equal" else -margins


def _held(values: np.ndarray, criterion: Criterion) -> str:
    # Every value, not their mean: a bound that fails once is no bound.
    low, high = criterion.ends
    return "supported" if ((low <= values) & (values <= high)).all() else "reversed"


def _compare(interval: Interval, criterion: Criterion) -> str:
    (low, high), threshold = criterion.ends, criterion.threshold
    inside = low <= interval.low and interval.high <= high
    if criterion.direction == "equal":
        outside = interval.low > high or interval.high < low
        return "supported" if inside else "reversed" if outside else "undecided"
    if interval.low > threshold or interval.high < threshold:
        claimed = (interval.low > threshold) == (criterion.direction == "greater")
        return ("supported" if claimed else "reversed") + NEGLIGIBLE * inside
    return "no effect" if inside else "undecided"


def _p_value(
    values: np.ndarray, mean: float, criterion: Criterion, equivalence: bool, test: Test
) -> float:
    low, high = criterion.ends
    if equivalence:  # Two one-sided tests (Schuirmann 1987).
        return max(test(values, low, alternative="greater"), test(values, high, alternative="less"))
    if criterion.direction == "equal":
        # Outside the margin on one side: the nearer end is the null hypothesis.
        return test(values, low if mean < criterion.threshold else high)
    return test(values, criterion.threshold)


def _seeds_until_decided(
    values: np.ndarray, mean: float, criterion: Criterion, level: float = LEVEL
) -> int | None:
    """Count seeds until the interval leaves the nearest bound whose crossing decides."""
    bounds = [] if criterion.direction == "equal" else [criterion.threshold]
    if criterion.direction == "equal" or abs(mean - criterion.threshold) < criterion.margin:
        bounds.append(
            criterion.threshold + math.copysign(criterion.margin, mean - criterion.threshold)
        )
    needed = [n for bound in bounds if (n := seeds_needed(values, bound, level=level)) is not None]
    return max(MIN_SEEDS, min(needed)) if needed else None
