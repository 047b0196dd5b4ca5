"""Intervals, nulls, tests and power: how far a number can be trusted.

Two units of resampling occur in this library, and they are never mixed. Over *seeds*, one value per run:
`t_interval`, `bootstrap`, `sign_flip_test`, `seeds_needed`, `t_power`. Over *samples* within one run, each in its
group: `resample_group_means`, `permutation_null`. A paired comparison is made by passing differences.
"""

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairlib._validation import check_number

Alternative = Literal["two-sided", "greater", "less"]

_BLOCK = 4_000_000  # entries of the largest temporary array: 32 MB of float64
_EXACT = 14  # up to so many values all 2^n sign patterns are enumerated


class Interval(NamedTuple):
    """An estimate between its bounds; three floats, or three arrays of one shape.

    In a format string the specification is that of each of three floats: ``f"{interval:.2f}"`` gives ``0.40 [0.31,
    0.49]``.
    """

    estimate: Any
    low: Any
    high: Any

    def __format__(self, spec: str) -> str:
        return f"{self.estimate:{spec}} [{self.low:{spec}}, {self.high:{spec}}]" if spec else str(self)


class Null(NamedTuple):
    """A max-min gap when groups do not matter: mean, 95th percentile, and the p-value of what was seen."""

    mean: float
    upper: float
    p_value: float


def t_interval(values: ArrayLike, *, level: float = 0.95) -> Interval:
    r"""Student's interval of the mean, :math:`\bar x \pm t_{n-1} s / \sqrt n`.

    At the 5 to 10 seeds of a typical study it keeps its level where the percentile bootstrap is too narrow,
    since that one divides by n, not n - 1, and knows no heavier tail. One value alone says nothing of its
    spread: its interval is infinite.

    Args:
        values: (n,), one per seed.
        level: coverage, in (0, 1).

    Raises:
        ValueError: If there is no value or one is not finite, or ``level`` is not in (0, 1).
    """
    from scipy import stats

    values = _sample(values)
    _check_level(level)
    n, mean = len(values), values.mean()
    if n == 1:
        return Interval(float(mean), -math.inf, math.inf)
    half = stats.t.ppf((1 + level) / 2, n - 1) * values.std(ddof=1) / math.sqrt(n)
    return Interval(float(mean), float(mean - half), float(mean + half))


def bootstrap(
    values: ArrayLike,
    *,
    statistic: Callable[..., NDArray[np.float64]] = np.mean,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap of a sample, the unit being the seed (Efron 1979).

    Args:
        values: (n,), one per seed; for paired runs the differences.
        statistic: called as ``statistic(array, axis=-1)``.
        level: coverage, in (0, 1).
        resamples: number of bootstrap samples.
        seed: of the resampling.

    Raises:
        ValueError: If there is no value or one is not finite, or ``level`` is not in (0, 1).
    """
    values = _sample(values)
    index = np.random.default_rng(seed).integers(0, len(values), size=(resamples, len(values)))
    low, high = percentile(statistic(values[index], axis=-1), level)
    return Interval(float(statistic(values, axis=-1)), float(low), float(high))


def resample_group_means(
    values: ArrayLike, groups: ArrayLike, num_groups: int, *, resamples: int = 1000, seed: int = 0
) -> NDArray[np.float64]:
    """Bootstrap draws of the group means, samples being resampled within their group.

    All columns see the same resampled samples, so that a difference of columns (before and after
    compression) is paired. Any quantity derived from the draws gets its interval by `percentile`: a drop
    ``d[..., 0] - d[..., 1]``, a relative drop, a max-min gap ``np.ptp(d, axis=1)``.

    Args:
        values: (N,) or (N, K), numbers or booleans.
        groups: (N,), integer codes in [0, num_groups).
        num_groups: number of groups; one without samples gets NaN.
        resamples: number of draws.
        seed: of the resampling.

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
    """The central ``level`` of the draws along their first axis, as (low, high).

    Raises:
        ValueError: If ``level`` is not in (0, 1).
    """
    _check_level(level)
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def group_means(values: ArrayLike, groups: ArrayLike, num_groups: int) -> NDArray[np.float64]:
    """Mean of the values in each group, (num_groups,) or (num_groups, K); NaN where a group has no sample."""
    values, groups = _grouped(values, groups, num_groups)
    means = np.full((num_groups, *values.shape[1:]), np.nan)
    for group in np.unique(groups):
        means[group] = values[groups == group].mean(axis=0)
    return means


def accuracies_by_chance(
    sizes: ArrayLike, accuracy: float, *, draws: int = 200, seed: int | np.random.Generator = 0
) -> NDArray[np.float64]:
    r"""Accuracies that groups have by chance when all have the same true one: :math:`\operatorname{Bin}(n_a, A) / n_a`.

    Args:
        sizes: (k,), the samples :math:`n_a` of each group.
        accuracy: :math:`A`, in [0, 1].
        draws: number of draws.
        seed: of the draws, or the generator that makes them.

    Returns:
        (draws, k).

    Raises:
        ValueError: If a size or ``draws`` is not a positive whole number, or the accuracy is not in [0, 1].
    """
    sizes = np.asarray(sizes)
    if not sizes.size or (sizes < 1).any() or (sizes % 1 != 0).any():
        raise ValueError(f"sizes must be positive whole numbers, got {sizes.tolist()}")
    check_number("draws", draws, 1, whole=True)
    if not 0 <= accuracy <= 1:
        raise ValueError(f"accuracy must be in [0, 1], got {accuracy}")
    return np.random.default_rng(seed).binomial(sizes.astype(int), accuracy, (draws, len(sizes))) / sizes


def permutation_null(
    values: ArrayLike, groups: ArrayLike, num_groups: int, *, permutations: int = 1000, seed: int = 0
) -> NDArray[np.float64]:
    """Max-min over group means under permuted group labels: the gap that group sizes and noise produce.

    A maximum of noisy estimates is biased upward, the more so with many small groups. Groups without samples
    are left out.

    Args:
        values: (N,), numbers or booleans, for instance losses, correctness, or per-sample excessive losses.
        groups: (N,), integer codes in [0, num_groups).
        num_groups: number of groups.
        permutations: number of draws.
        seed: of the permutations.

    Returns:
        (permutations,), float64.

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
    """The max-min gap of group means against its permutation null; arguments as in `permutation_null`.

    The p-value is (1 + number of null gaps >= the observed one) / (1 + permutations), never 0 (Phipson and
    Smyth 2010).
    """
    null = permutation_null(values, groups, num_groups, permutations=permutations, seed=seed)
    observed = np.ptp(group_means(values, groups, num_groups)[np.unique(groups)])
    reached = np.count_nonzero(null >= observed - _rounding(values))
    return Null(float(null.mean()), float(np.quantile(null, 0.95)), (1 + reached) / (1 + permutations))


def sign_flip_test(
    values: ArrayLike,
    center: float = 0.0,
    *,
    alternative: Alternative = "two-sided",
    resamples: int = 10_000,
    seed: int = 0,
) -> float:
    """P-value of the values being symmetric about ``center``, from the mean under random signs (Fisher 1935).

    Exact over all ``2 ** n`` sign patterns up to n = 14; beyond, ``resamples`` random patterns and the +1
    correction. The smallest two-sided p-value is ``2 ** (1 - n)``: five seeds cannot reach .05.

    Args:
        values: (n,), one per seed.
        center: the mean under the null.
        alternative: the side on which large differences speak against the null.
        resamples: number of random sign patterns when n > 14.
        seed: of the random patterns.

    Raises:
        ValueError: If there is no value or one is not finite or ``alternative`` is unknown.
    """
    values = _sample(values)
    differences = values - center
    n = len(differences)
    if n <= _EXACT:
        signs = np.array(list(product((1.0, -1.0), repeat=n)))
    else:
        signs = np.random.default_rng(seed).choice((1.0, -1.0), size=(resamples, n))
    side = _side(alternative)
    extreme = side(signs @ differences) >= side(differences.sum()) - n * _rounding([*values, center])
    if n <= _EXACT:
        return float(extreme.mean())
    return float((1 + np.count_nonzero(extreme)) / (1 + resamples))


def seeds_needed(
    values: ArrayLike, threshold: float = 0.0, *, power: float = 0.8, level: float = 0.95, most: int = 100_000
) -> int | None:
    r"""How many seeds until the t interval would lie beyond ``threshold`` with probability ``power``.

    Takes the observed mean and standard deviation for true: the smallest n with
    :math:`P(T_{n-1,\delta} > t_{n-1}) \ge` ``power``, :math:`\delta = |\bar x - \text{threshold}| \sqrt n / s`.

    Args:
        values: (n,), one per seed.
        threshold: what the interval should clear, on the side where the mean lies.
        power: probability asked for, in (0, 1).
        level: coverage of the interval, in (0, 1).
        most: the largest number worth naming.

    Returns:
        At least 2; None where none helps: a single value, a mean on the threshold, or more than ``most``.

    Raises:
        ValueError: If there is no value or one is not finite, or ``level`` or ``power`` is not in (0, 1).
    """
    from scipy import stats

    values = _sample(values)
    _check_level(level)
    _check_level(power, "power")
    effect = abs(values.mean() - threshold)
    if len(values) < 2 or effect <= _rounding([*values, threshold]):
        return None
    deviation = values.std(ddof=1)
    tail = (1 + level) / 2
    # The normal approximation is a few seeds short of the noncentral t, never above it.
    normal = ((stats.norm.ppf(tail) + stats.norm.ppf(power)) * deviation / effect) ** 2
    if normal > most:
        return None
    n = max(2, math.ceil(normal))
    while deviation > 0 and t_power(n, effect / deviation, level=level) < power:
        n += 1
    return n


def t_power(seeds: int, effect: float, *, level: float = 0.95) -> float:
    r"""Probability that the t interval of so many values lies beyond a threshold, on the side of their true mean.

    :math:`P(T_{n-1,\delta} > t_{n-1})`, :math:`\delta = d \sqrt n`, for normal values; it takes no account of the
    interval lying beyond on the other side.

    Args:
        seeds: n, at least 2.
        effect: d, the distance of the true mean from the threshold in standard deviations, 0 or more.
        level: coverage of the interval, in (0, 1).

    Raises:
        ValueError: If a number is out of range.
    """
    from scipy import stats

    check_number("seeds", seeds, 2, whole=True)
    check_number("effect", effect, 0)
    _check_level(level)
    power = float(stats.nct.sf(stats.t.ppf((1 + level) / 2, seeds - 1), seeds - 1, effect * math.sqrt(seeds)))
    return 1.0 if math.isnan(power) else power  # The distribution overflows where the effect is very large.


def benjamini_hochberg(p_values: ArrayLike, rate: float = 0.05) -> NDArray[np.bool_]:
    r"""Which hypotheses are rejected at a false-discovery rate of ``rate`` (Benjamini and Hochberg 1995).

    Rejects the k smallest, k the largest with :math:`p_{(k)} \le k \cdot \text{rate} / m`.

    Args:
        p_values: (m,), in [0, 1]; m may be 0.
        rate: in (0, 1).

    Raises:
        ValueError: If a p-value is not in [0, 1] or ``rate`` is not in (0, 1).
    """
    from scipy import stats

    _check_level(rate, "rate")
    p_values = np.asarray(p_values, dtype=np.float64)
    if not np.all((p_values >= 0) & (p_values <= 1)):
        raise ValueError(f"p-values must lie between 0 and 1, got {p_values.tolist()}")
    return stats.false_discovery_control(p_values) <= rate if len(p_values) else np.zeros(0, dtype=bool)


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


def _check_level(level: float, name: str = "level") -> None:
    if not 0 < level < 1:
        raise ValueError(f"{name} must lie strictly between 0 and 1, got {level}")


def _blocks(total: int, width: int) -> Iterator[slice]:
    """Slices of range(total) such that ``slice x width`` entries stay within _BLOCK."""
    step = max(1, _BLOCK // width)
    for start in range(0, total, step):
        yield slice(start, min(start + step, total))


def _side(alternative: str) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    sides = {"two-sided": np.abs, "greater": np.positive, "less": np.negative}
    if alternative not in sides:
        raise ValueError(f"unknown alternative {alternative!r}; known: {', '.join(sides)}")
    return sides[alternative]


def _rounding(values: ArrayLike) -> float:
    """Sums of these values in another order differ by less than this per value; ties must count as ties."""
    return 1e-12 * float(np.max(np.abs(np.asarray(values, dtype=np.float64)), initial=0.0))
