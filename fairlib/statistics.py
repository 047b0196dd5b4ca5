"""Intervals, nulls, tests and power: how far a number can be trusted.

Two units of resampling are used, and never mixed. Over *seeds*, one value per run: `t_interval`, `bootstrap`,
`sign_flip_test`, `seeds_needed`, `t_power`. Over *samples* within one run, each in its group: `resample_group_means`,
`permutation_null`. For a paired comparison pass the differences.

Five seeds of one number: its interval, a test, and how many seeds it would take to see it.

>>> from fairlib import statistics
>>> drops = [0.01, 0.03, 0.02, 0.05, -0.01]
>>> f"{statistics.t_interval(drops):.3f}"
'0.020 [-0.008, 0.048]'
>>> statistics.sign_flip_test(drops)  # 6 of the 32 patterns of signs are as extreme.
0.1875
>>> statistics.seeds_needed(drops)
12
"""

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from fairlib._validation import check_number, lookup

_BLOCK = 4_000_000  # Entries of the largest temporary array: 32 MB of float64.
_EXACT = 14  # Largest number of values for which all 2^n sign patterns are enumerated.
_SIDES = {"two-sided": np.abs, "greater": np.positive, "less": np.negative}


class Interval(NamedTuple):
    """An estimate with the bounds of its interval: three floats, or three arrays of one shape.

    A format specification applies to each of the three floats: ``f"{interval:.2f}"`` gives ``0.40 [0.31, 0.49]``.
    """

    estimate: Any
    low: Any
    high: Any

    def __format__(self, spec: str) -> str:
        return f"{self.estimate:{spec}} [{self.low:{spec}}, {self.high:{spec}}]" if spec else str(self)


class Null(NamedTuple):
    """Max-min gaps if groups did not matter: their mean and 95th percentile, and the p-value of the observed gap."""

    mean: float
    upper: float
    p_value: float


def t_interval(values: ArrayLike, *, level: float = 0.95) -> Interval:
    r"""Compute Student's interval of the mean, :math:`\bar x \pm t_{n-1} s / \sqrt n`.

    At the 5 to 10 seeds of a typical study it keeps its level, where the percentile bootstrap is too narrow, since that
    divides by n, not n - 1, and has no heavier tail. One value alone says nothing of its spread: its interval is
    infinite.

    Args:
        values: Values (n,), one per seed.
        level: Coverage, in (0, 1).

    Raises:
        ValueError: If there is no value or one is not finite, or ``level`` is not in (0, 1).

    Example:
        >>> from fairlib.statistics import t_interval
        >>> f"{t_interval([0.0, 1.0, 2.0]):.2f}"  # 1 plus and minus 4.30 / sqrt(3).
        '1.00 [-1.48, 3.48]'
    """
    values = _sample(values)
    check_number("level", level, 0, 1, low_open=True)
    n, mean = len(values), values.mean()
    half = scipy.stats.t.ppf((1 + level) / 2, n - 1) * values.std(ddof=1) / math.sqrt(n) if n > 1 else math.inf
    return Interval(float(mean), float(mean - half), float(mean + half))


def bootstrap(
    values: ArrayLike, *, statistic: Callable = np.mean, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """Compute a percentile bootstrap interval by resampling seeds (Efron 1979).

    Args:
        values: Values (n,), one per seed; for paired runs the differences.
        statistic: Function that is called as ``statistic(array, axis=-1)``.
        level: Coverage, in (0, 1).
        resamples: Number of bootstrap samples.
        seed: Seed of the resampling.

    Raises:
        ValueError: If there is no value or one is not finite, or ``level`` is not in (0, 1).

    Example:
        >>> from fairlib.statistics import bootstrap
        >>> bootstrap([2.0, 2.0, 2.0])
        Interval(estimate=2.0, low=2.0, high=2.0)
    """
    values = _sample(values)
    index = np.random.default_rng(seed).integers(0, len(values), size=(resamples, len(values)))
    low, high = percentile(statistic(values[index], axis=-1), level)
    return Interval(float(statistic(values, axis=-1)), float(low), float(high))


def resample_group_means(
    values: ArrayLike, groups: ArrayLike, num_groups: int, *, resamples: int = 1000, seed: int = 0
) -> NDArray[np.float64]:
    """Draw bootstrap means of every group, by resampling samples within their group.

    All columns see the same resampled samples, so that a difference of columns (before and after compression) is
    paired. `percentile` gives the interval of any quantity derived from the draws: a drop ``d[..., 0] - d[..., 1]``, a
    relative drop, a max-min gap ``np.ptp(d, axis=1)``.

    Args:
        values: Numbers or booleans, (N,) or (N, K).
        groups: Integer codes (N,) in [0, num_groups).
        num_groups: Number of groups; the means of a group without samples are NaN.
        resamples: Number of draws.
        seed: Seed of the resampling.

    Returns:
        (resamples, num_groups) or (resamples, num_groups, K), float64.

    Raises:
        ValueError: If shapes disagree or a code is out of range.
    """
    values, groups = _grouped(values, groups, num_groups)
    generator = np.random.default_rng(seed)
    draws = np.full((resamples, num_groups, *values.shape[1:]), np.nan)
    for group in range(num_groups):
        members = values[groups == group]
        n = len(members)
        for rows in _blocks(resamples, n) if n else ():
            size = rows.stop - rows.start
            index = generator.integers(0, n, size=(size, n)) + n * np.arange(size)[:, None]
            times = np.bincount(index.ravel(), minlength=size * n).reshape(size, n)
            draws[rows, group] = times.astype(np.float64) @ members / n
    return draws


def percentile(draws: ArrayLike, level: float = 0.95) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute the bounds (low, high) of the central ``level`` of draws along their first axis.

    Raises:
        ValueError: If ``level`` is not in (0, 1).
    """
    check_number("level", level, 0, 1, low_open=True)
    low, high = np.quantile(np.asarray(draws), [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def group_means(values: ArrayLike, groups: ArrayLike, num_groups: int) -> NDArray[np.float64]:
    """Average the values in each group: (num_groups,) or (num_groups, K); NaN where a group has no sample."""
    values, groups = _grouped(values, groups, num_groups)
    means = np.full((num_groups, *values.shape[1:]), np.nan)
    for group in np.unique(groups):
        means[group] = values[groups == group].mean(axis=0)
    return means


def accuracies_by_chance(
    sizes: ArrayLike, accuracy: float, *, draws: int = 200, seed: int | np.random.Generator = 0
) -> NDArray[np.float64]:
    r"""Draw the accuracies of groups that share one true accuracy A: :math:`\operatorname{Bin}(n_a, A) / n_a`.

    Args:
        sizes: Numbers of samples :math:`n_a` of the groups, (k,).
        accuracy: True accuracy :math:`A`, in [0, 1].
        draws: Number of draws.
        seed: Seed of the draws, or a random generator.

    Returns:
        Accuracies (draws, k), float64.

    Raises:
        ValueError: If a size or ``draws`` is not a positive whole number, or the accuracy is not in [0, 1].
    """
    sizes = np.asarray(sizes)
    if not sizes.size or (sizes < 1).any() or (sizes % 1 != 0).any():
        raise ValueError(f"sizes must be positive whole numbers, got {sizes.tolist()}")
    check_number("draws", draws, 1, whole=True)
    check_number("accuracy", accuracy, 0, 1, high_closed=True)
    return np.random.default_rng(seed).binomial(sizes.astype(int), accuracy, (draws, len(sizes))) / sizes


def permutation_null(
    values: ArrayLike, groups: ArrayLike, num_groups: int, *, permutations: int = 1000, seed: int = 0
) -> NDArray[np.float64]:
    """Draw max-min gaps of group means under permuted group labels: what group sizes and noise alone produce.

    A maximum of noisy estimates is biased upward, the more so with many small groups. Groups without samples are left
    out.

    Args:
        values: Numbers or booleans (N,), for instance losses, correctness, or per-sample excessive losses.
        groups: Integer codes (N,) in [0, num_groups).
        num_groups: Number of groups.
        permutations: Number of draws.
        seed: Seed of the permutations.

    Returns:
        Gaps (permutations,), float64.

    Raises:
        ValueError: If shapes disagree, a code is out of range, there is no sample, or a value is not finite.
    """
    values, groups = _grouped(_sample(values), groups, num_groups)
    sizes = np.bincount(groups)
    sizes = sizes[sizes > 0]
    starts = np.cumsum(sizes) - sizes
    generator = np.random.default_rng(seed)
    gaps = np.empty(permutations)
    for rows in _blocks(permutations, len(values)):
        shuffled = generator.permuted(np.tile(values, (rows.stop - rows.start, 1)), axis=1)
        gaps[rows] = np.ptp(np.add.reduceat(shuffled, starts, axis=1) / sizes, axis=1)
    return gaps


def permutation_test(
    values: ArrayLike, groups: ArrayLike, num_groups: int, *, permutations: int = 1000, seed: int = 0
) -> Null:
    """Test the max-min gap of group means against its permutation null.

    The p-value is (1 + number of null gaps >= the observed one) / (1 + permutations), never 0 (Phipson and Smyth 2010).

    Args:
        values, groups, num_groups, permutations, seed: Arguments of `permutation_null`.

    Raises:
        ValueError: If shapes disagree, a code is out of range, there is no sample, or a value is not finite.

    Example:
        The same gap of 1 in two groups of twenty, and in two of a single sample each:

        >>> from fairlib.statistics import permutation_test
        >>> test = permutation_test([1] * 20 + [0] * 20, [0] * 20 + [1] * 20, 2)
        >>> bool(test.p_value < 0.01)
        True
        >>> float(permutation_test([1, 0], [0, 1], 2).p_value)
        1.0
    """
    null = permutation_null(values, groups, num_groups, permutations=permutations, seed=seed)
    observed = np.ptp(group_means(values, groups, num_groups)[np.unique(groups)])
    reached = np.count_nonzero(null >= observed - _rounding(values))
    return Null(float(null.mean()), float(np.quantile(null, 0.95)), (1 + reached) / (1 + permutations))


def sign_flip_test(
    values: ArrayLike, center: float = 0.0, *, alternative: str = "two-sided", resamples: int = 10_000, seed: int = 0
) -> float:
    """Compute the p-value of values being symmetric about ``center``, from their mean under random signs (Fisher 1935).

    It is exact, over all ``2 ** n`` sign patterns, up to n = 14; beyond, it comes from ``resamples`` random patterns
    with the +1 correction. The smallest two-sided p-value is ``2 ** (1 - n)``: five seeds cannot reach .05.

    Args:
        values: Values (n,), one per seed.
        center: Mean under the null hypothesis.
        alternative: ``"two-sided"``, ``"greater"`` or ``"less"``: the side of ``center`` that is evidence against the
            null.
        resamples: Number of random sign patterns when n > 14.
        seed: Seed of the random patterns.

    Raises:
        ValueError: If there is no value or one is not finite or ``alternative`` is unknown.

    Example:
        Where all n values have one sign, 2 of the 2 ** n patterns are as extreme.

        >>> from fairlib.statistics import sign_flip_test
        >>> [sign_flip_test([1.0] * seeds) for seeds in (2, 5, 6)]
        [0.5, 0.0625, 0.03125]
    """
    values = _sample(values)
    differences = values - center
    n = len(differences)
    if n <= _EXACT:
        signs = np.array(list(product((1.0, -1.0), repeat=n)))
    else:
        signs = np.random.default_rng(seed).choice((1.0, -1.0), size=(resamples, n))
    side = lookup("alternative", alternative, _SIDES)
    extreme = side(signs @ differences) >= side(differences.sum()) - n * _rounding([*values, center])
    return float(extreme.mean() if n <= _EXACT else (1 + np.count_nonzero(extreme)) / (1 + resamples))


def seeds_needed(
    values: ArrayLike, threshold: float = 0.0, *, power: float = 0.8, level: float = 0.95, most: int = 100_000
) -> int | None:
    r"""Count the seeds it takes until the t interval lies beyond ``threshold`` with probability ``power``.

    The observed mean and standard deviation are taken for the true ones. The count is the smallest n with
    :math:`P(T_{n-1,\delta} > t_{n-1}) \ge` ``power``, :math:`\delta = |\bar x - \text{threshold}| \sqrt n / s`.

    Args:
        values: Values (n,), one per seed.
        threshold: Number beyond which the interval should lie, on the side where the mean lies.
        power: Wanted probability, in (0, 1).
        level: Coverage of the interval, in (0, 1).
        most: Largest count to report.

    Returns:
        A count of at least 2; None for a single value, a mean on the threshold, or a count above ``most``.

    Raises:
        ValueError: If there is no value or one is not finite, or ``level`` or ``power`` is not in (0, 1).

    Example:
        >>> from fairlib.statistics import seeds_needed
        >>> seeds_needed([0.0, 1.0, 2.0])  # The mean is one standard deviation above the threshold.
        10
        >>> seeds_needed([0.0, 0.1, 0.2], threshold=-0.9) < seeds_needed([0.0, 0.1, 0.2])
        True
    """
    values = _sample(values)
    check_number("level", level, 0, 1, low_open=True)
    check_number("power", power, 0, 1, low_open=True)
    effect = abs(values.mean() - threshold)
    if len(values) < 2 or effect <= _rounding([*values, threshold]):
        return None
    deviation = values.std(ddof=1)
    tail = (1 + level) / 2
    # The normal approximation is a few seeds short of the noncentral t, never above it.
    normal = ((scipy.stats.norm.ppf(tail) + scipy.stats.norm.ppf(power)) * deviation / effect) ** 2
    if normal > most:
        return None
    n = max(2, math.ceil(normal))
    while deviation > 0 and t_power(n, effect / deviation, level=level) < power:
        n += 1
    return n


def t_power(seeds: int, effect: float, *, level: float = 0.95) -> float:
    r"""Compute the probability that a t interval lies beyond a threshold, on the side of the true mean.

    It is :math:`P(T_{n-1,\delta} > t_{n-1})`, :math:`\delta = d \sqrt n`, for normal values; intervals beyond the
    threshold on the other side are not counted.

    Args:
        seeds: Number of values n, at least 2.
        effect: Distance d of the true mean from the threshold in standard deviations, 0 or more.
        level: Coverage of the interval, in (0, 1).

    Raises:
        ValueError: If a number is out of range.
    """
    check_number("seeds", seeds, 2, whole=True)
    check_number("effect", effect, 0)
    check_number("level", level, 0, 1, low_open=True)
    power = float(
        scipy.stats.nct.sf(scipy.stats.t.ppf((1 + level) / 2, seeds - 1), seeds - 1, effect * math.sqrt(seeds))
    )
    return 1.0 if math.isnan(power) else power  # The distribution overflows where the effect is very large.


def benjamini_hochberg(p_values: ArrayLike, rate: float = 0.05) -> NDArray[np.bool_]:
    r"""Reject hypotheses at a false-discovery rate of ``rate`` (Benjamini and Hochberg 1995).

    The k smallest p-values are rejected, k the largest with :math:`p_{(k)} \le k \cdot \text{rate} / m`.

    Args:
        p_values: P-values (m,) in [0, 1]; m may be 0.
        rate: False-discovery rate, in (0, 1).

    Returns:
        Whether each hypothesis is rejected, bool (m,).

    Raises:
        ValueError: If a p-value is not in [0, 1] or ``rate`` is not in (0, 1).

    Example:
        One of twenty p-values is expected below 0.05 where there is nothing to find:

        >>> from fairlib.statistics import benjamini_hochberg
        >>> benjamini_hochberg([0.04, *[0.5] * 19]).tolist()[:2]
        [False, False]
        >>> benjamini_hochberg([0.001, *[0.5] * 19]).tolist()[:2]
        [True, False]
    """
    check_number("rate", rate, 0, 1, low_open=True)
    p_values = np.asarray(p_values, dtype=np.float64)
    if not np.all((p_values >= 0) & (p_values <= 1)):
        raise ValueError(f"p-values must lie between 0 and 1, got {p_values.tolist()}")
    return scipy.stats.false_discovery_control(p_values) <= rate if len(p_values) else np.zeros(0, dtype=bool)


def _sample(values: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise ValueError(f"values must be one-dimensional and not empty, got shape {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError(f"values must be finite, got {np.count_nonzero(~np.isfinite(values))} that are not")
    return values


def _grouped(values: ArrayLike, groups: ArrayLike, num_groups: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    values, groups = np.asarray(values, dtype=np.float64), np.asarray(groups)
    if values.ndim not in (1, 2) or groups.shape != values.shape[:1]:
        raise ValueError(f"values (N,) or (N, K), groups (N,) needed, got {values.shape} and {groups.shape}")
    if len(groups) and (groups.min() < 0 or groups.max() >= num_groups):
        raise ValueError(f"groups must be codes in [0, {num_groups}), got {groups.min()} to {groups.max()}")
    return values, groups.astype(np.int64)


def _blocks(total: int, width: int) -> Iterator[slice]:
    """Split range(total) into slices such that ``slice x width`` entries stay within _BLOCK."""
    step = max(1, _BLOCK // width)
    return (slice(start, min(start + step, total)) for start in range(0, total, step))


def _rounding(values: ArrayLike) -> float:
    """Bound, per value, on what another order of summation changes in a sum of these values: ties must stay ties."""
    return 1e-12 * float(np.max(np.abs(np.asarray(values, dtype=np.float64)), initial=0.0))
