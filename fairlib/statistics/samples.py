"""Intervals, tests and power over samples within one run, each in its group.

A :class:`Quantity` is a mean in every group, of which only sums are kept: a share (an accuracy, a
rate of errors), a drop of it (before and after compression, of the same samples), or the mean of
numbers (a loss). Everything follows from its interval by group, which is a score interval for
shares and drops, so that it is never of zero width:

- the difference of two groups, by the square-and-add rule of Zou and Donner (2008): with bounds
  :math:`l_a, u_a` around :math:`m_a` it reaches from :math:`m_a - m_b` down by :math:`\\sqrt{(m_a -
  l_a)^2 + (u_b - m_b)^2}`;
- the largest difference, from all pairs at once: bounds with the critical value of the studentized
  range (:func:`range_z`) cover all pairs together, hence the largest one;
- its p-value: the larger one of a permutation test, of the studentized range, and of the test that
  these bounds are. The first is exact where groups differ in nothing, the second holds where few
  samples flip; each alone rejects too often somewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri, stdtrit
from tqdm import tqdm

from fairlib._tables import refuse_other_index
from fairlib._validation import check_number
from fairlib.statistics.seeds import Interval

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Bounds = tuple[Floats, Floats]

_BLOCK = 4_000_000  # Entries of the largest temporary array: 32 MB of float64.
_STEPS = 40  # Halvings of a bisection.
_FAR, _GRID = 12.8, 32  # Largest critical value that is looked at, and points of a grid.


def _floats(values: ArrayLike) -> Floats:
    return np.asarray(values, dtype=np.float64)


def group_means(values: ArrayLike, groups: ArrayLike, num_groups: int) -> Floats:
    """Average values ``(N,)`` or ``(N, K)`` in each group: ``(num_groups, ...)``, NaN if empty."""
    refuse_other_index(values=values, groups=groups)
    values, groups = _floats(values), np.asarray(groups)
    if values.ndim not in (1, 2) or groups.shape != values.shape[:1]:
        raise ValueError(
            f"values (N,) or (N, K), groups (N,) needed, got {values.shape} and {groups.shape}"
        )
    if len(groups) and (groups.min() < 0 or groups.max() >= num_groups):
        raise ValueError(
            f"groups must be codes in [0, {num_groups}), got {groups.min()} to {groups.max()}"
        )
    means = np.full((num_groups, *values.shape[1:]), np.nan)
    for group in np.unique(groups).astype(np.int64):
        means[group] = values[groups == group].mean(axis=0)
    return means


def accuracies_by_chance(
    sizes: ArrayLike, accuracy: float, *, draws: int = 200, seed: int | np.random.Generator = 0
) -> Floats:
    r"""Draw the accuracies of groups that share one true accuracy A: :math:`\operatorname{Bin}(n_a,
    A) / n_a`.

    Args:
        sizes: Numbers of samples :math:`n_a` of the groups, (k,).
        accuracy: True accuracy :math:`A`, in [0, 1].
        draws: Number of draws.
        seed: Seed of the draws, or a random generator.

    Returns:
        Accuracies (draws, k), float64.

    Raises:
        ValueError: If a size or ``draws`` is not a positive whole number, or the accuracy is not in
            [0, 1].
    """
    sizes = np.asarray(sizes)
    if not sizes.size or (sizes < 1).any() or (sizes % 1 != 0).any():
        raise ValueError(f"sizes must be positive whole numbers, got {sizes.tolist()}")
    check_number("draws", draws, 1, whole=True)
    check_number("accuracy", accuracy, 0, 1, high_closed=True)
    generator = np.random.default_rng(seed)
    return generator.binomial(sizes.astype(int), accuracy, (draws, len(sizes))) / sizes


def normal_z(level: float = 0.95) -> float:
    """Compute the critical value of a two-sided interval: 1.96 for a level of 0.95."""
    check_number("level", level, 0, 1, low_open=True)
    return float(ndtri((1 + level) / 2))


def wilson(count: ArrayLike, size: ArrayLike, z: float | Floats) -> Bounds:
    r"""Compute the score interval of a share (Wilson 1927).

    It has the shares :math:`p` with :math:`|\hat p - p| \le z \sqrt{p (1 - p) / n}`.

    Args:
        count: Numbers of samples that count, of any shape.
        size: Numbers of samples :math:`n`; 0 gives NaN.
        z: Critical value.

    Example:
        All of thirty right is no proof of 100 %:

        >>> from fairlib.statistics import normal_z, wilson
        >>> [round(float(bound), 3) for bound in wilson(30, 30, normal_z(0.95))]
        [0.886, 1.0]
    """
    n = _positive(size)
    share = _floats(count) / n
    # The two solutions of a quadratic equation in p. Unlike Wald's interval, with the estimated
    # variance, it has a width where all or none count.
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2)
    return np.clip(middle - half, 0, 1), np.clip(middle + half, 0, 1)


def tango(lost: ArrayLike, gained: ArrayLike, size: ArrayLike, z: float | Floats) -> Bounds:
    r"""Compute the score interval of a difference of paired shares (Tango 1998).

    Of :math:`n` samples, :math:`b` are right only before and :math:`c` only after. The interval of
    :math:`(b - c) / n` has the differences :math:`d` with :math:`|b - c - n d| \le z \sqrt{n (2 q +
    d - d^2)}`, where :math:`q` is the most likely share of the samples that are right only after,
    given :math:`d`.

    Args:
        lost: Numbers :math:`b`, of any shape.
        gained: Numbers :math:`c`.
        size: Numbers of samples :math:`n`; 0 gives NaN.
        z: Critical value.

    Example:
        Tango's example has 7 and 1 of 21; no flip among thirty leaves a tenth either way possible.

        >>> from fairlib.statistics import normal_z, tango
        >>> [round(float(bound), 3) for bound in tango(7, 1, 21, normal_z(0.95))]
        [0.026, 0.517]
        >>> [round(float(bound), 3) for bound in tango(0, 0, 30, normal_z(0.95))]
        [-0.114, 0.114]
    """
    b, c, n = np.broadcast_arrays(_floats(lost), _floats(gained), _positive(size))
    estimate = (b - c) / n

    def inside(d: Floats) -> Flags:
        # Under the hypothesis d the share q is the larger root of the likelihood's quadratic
        # equation. The variance under d, not the estimated one, keeps the interval from collapsing
        # where no sample flips: there the estimated variance is zero.
        half = (2 * n + c - b) * d - b - c
        q = (np.sqrt(np.maximum(half**2 + 8 * n * c * d * (1 - d), 0)) - half) / (4 * n)
        return (b - c - n * d) ** 2 <= z**2 * n * np.maximum(2 * q + d - d**2, 0)

    # No closed form: each bound is searched from the estimate outwards.
    start = estimate + np.zeros(np.shape(z))
    return _farthest(inside, start, -1.0), _farthest(inside, start, 1.0)


def ratio(lost: ArrayLike, gained: ArrayLike, before: ArrayLike, z: float | Floats) -> Bounds:
    r"""Compute an interval of the ratio of paired shares, after to before (Bonett and Price 2006).

    It divides Wilson's bounds of the two shares, among the samples that are right at least once, at
    a critical value that takes account of the pairing.

    Args:
        lost: Numbers of samples that are right only before, of any shape.
        gained: Numbers of samples that are right only after.
        before: Numbers of samples that are right before; 0 gives NaN.
        z: Critical value.
    """
    lost, gained, first = _floats(lost), _floats(gained), _floats(before)
    once, second = _positive(first) + gained, first - lost + gained
    spread = np.sqrt((lost + gained + 2) / ((first + 1) * (second + 1)))
    apart = sum(np.sqrt((1 - (count + 1) / (once + 2)) / (count + 1)) for count in (first, second))
    # Two independent intervals would ignore that the same samples are right before and after. Their
    # critical value shrinks by the standard error of the paired log ratio over the sum of theirs.
    paired = z * spread / apart
    low, high = wilson(second, once, paired)
    low_before, high_before = wilson(first, once, paired)
    return low / high_before, high / np.where(low_before > 0, low_before, np.nan)


def skewed(moments: ArrayLike, size: ArrayLike, z: float | Floats, whole: float = 0.0) -> Bounds:
    r"""Compute an interval of a mean of skewed numbers: Student's and Hall's together.

    Hall's (1992) transformation of :math:`t = \sqrt n (\bar x - \mu) / s` with the skewness
    :math:`g`, :math:`t + g t^2 / (3 \sqrt n) + g^2 t^3 / (27 n) + g / (6 \sqrt n)`, has nearly
    Student's distribution. Where numbers are skewed (losses are) its interval covers better than
    Student's and than the bootstrap's, where they are symmetric with heavy tails Student's does:
    the interval is the smallest one that has both.

    Args:
        moments: Sums of the numbers, their squares and their cubes, ``(..., 3)``.
        size: Numbers :math:`n`; below 2 there is no interval, but NaN.
        z: Critical value of the normal distribution; Student's at the same tail is taken.
        whole: Variance of all groups' numbers: n equal ones do not vary less than one of all among
            them would.
    """
    n = _floats(size)
    n = np.where(n > 1, n, np.nan)
    mean, square, cube = np.moveaxis(_floats(moments) / n[..., None], -1, 0)
    variance = np.maximum(square - mean**2, whole / n)
    error = np.sqrt(variance / (n - 1))
    third = cube - 3 * mean * square + 2 * mean**3
    # A variance that is rounding alone would make a skewness of any size of it.
    varied = variance > 1e-15 * square
    skewness = np.divide(third, variance**1.5, out=np.zeros_like(third), where=varied)
    a = skewness / np.sqrt(n)
    with np.errstate(divide="ignore", invalid="ignore"):
        quantile = -stdtrit(n - 1, ndtr(-z))

    def inverse(y: Floats) -> Floats:
        # Hall's polynomial is a cube in t, so that its inverse is a cubic root. It is one to one
        # for any skewness, which the Edgeworth expansion without the cubic term is not. As the
        # skewness vanishes the quotient becomes 0 / 0, and its limit is y.
        flat = np.abs(a) < 1e-6
        slope = np.where(flat, 1.0, a)
        return np.where(flat, y, 3 * (np.cbrt(1 + slope * (y - slope / 6)) - 1) / slope)

    low = np.maximum(quantile, inverse(quantile))
    high = np.maximum(quantile, -inverse(-quantile))
    return mean - error * low, mean + error * high


@dataclass(frozen=True)
class Quantity:
    """A mean in every group, known by sums over its samples.

    Attributes:
        sums: By group ``(k, j)``: of a share the count, of a drop the counts lost and gained, of
            numbers the sums of the numbers, their squares and their cubes.
        sizes: Numbers of samples, ``(k,)``.
        center: Number that was subtracted from numbers before they were summed.
    """

    sums: Floats
    sizes: NDArray[np.int64]
    center: float = 0.0

    @property
    def moments(self) -> tuple[Floats, Floats]:
        """Sums of the numbers and of their squares, each ``(k,)``."""
        first, second = self.sums[..., 0], self.sums[..., min(1, self.sums.shape[-1] - 1)]
        # A drop has numbers 1 for lost and -1 for gained, whose squares are all 1. The number of a
        # share is its square.
        return (first - second, first + second) if self.sums.shape[-1] == 2 else (first, second)

    @property
    def prior(self) -> tuple[float, float, float]:
        """Sum, sum of squares and number of the samples that are added before a variance is taken.

        Shares get two samples of either kind (Agresti and Coull 1998), drops one lost and one
        gained (Bonett and Price 2012), numbers one with the variance of all: few samples without a
        flip do not have no variance."""
        sums, squares, size = (values.sum() for values in (*self.moments, self.sizes))
        whole = max(0, squares / size - (sums / size) ** 2)
        return ((2, 2, 4), (0, 2, 2), (0, whole, 1))[self.sums.shape[-1] - 1]

    @property
    def mean(self) -> Floats:
        """Means by group, ``(k,)``; NaN where a group has no sample."""
        return self.center + self.moments[0] / _positive(self.sizes)

    def bounds(self, z: float | Floats) -> Bounds:
        """Compute the interval of every group's mean at a critical value (:func:`wilson`,
        :func:`tango`, ...)."""
        if self.sums.shape[-1] == 3:
            low, high = skewed(self.sums, self.sizes, z, self.prior[1])
            return low + self.center, high + self.center
        if self.sums.shape[-1] == 2:
            return tango(self.sums[:, 0], self.sums[:, 1], self.sizes, z)
        return wilson(self.sums[:, 0], self.sizes, z)

    def interval(self, level: float = 0.95) -> Interval:
        """Compute the mean of every group with its interval."""
        return Interval(self.mean, *self.bounds(normal_z(level)))

    def of(self, groups: NDArray[np.int64]) -> Quantity:
        """Return the quantity of some groups, by their codes."""
        return Quantity(self.sums[groups], self.sizes[groups], self.center)

    def others(self) -> Quantity:
        """Return, for every group, the quantity of all the others together."""
        return Quantity(self.sums.sum(0) - self.sums, self.sizes.sum() - self.sizes, self.center)

    def with_all(self) -> Quantity:
        """Append all groups together as one more."""
        sums = np.concatenate([self.sums, self.sums.sum(0, keepdims=True)])
        return Quantity(sums, np.append(self.sizes, self.sizes.sum()), self.center)


def share(counts: ArrayLike, groups: ArrayLike, num_groups: int) -> Quantity:
    """Sum what counts (booleans) by group: an accuracy, a rate."""
    refuse_other_index(counts=counts, groups=groups)
    return _quantity([counts], groups, num_groups)


def drop(before: ArrayLike, after: ArrayLike, groups: ArrayLike, num_groups: int) -> Quantity:
    """Sum by group what was lost and gained, of booleans before and after, of the same samples."""
    refuse_other_index(before=before, after=after, groups=groups)
    before, after = np.asarray(before, dtype=bool), np.asarray(after, dtype=bool)
    return _quantity([before & ~after, after & ~before], groups, num_groups)


def numbers(values: ArrayLike, groups: ArrayLike, num_groups: int) -> Quantity:
    """Sum numbers, their squares and their cubes by group, around their mean over all."""
    refuse_other_index(values=values, groups=groups)
    values = _floats(values)
    # Cubes of numbers far from zero would cancel to rounding.
    center = float(values.mean()) if len(values) else 0.0
    apart = values - center
    return _quantity([apart, apart**2, apart**3], groups, num_groups, center)


def _quantity(columns: list, groups: ArrayLike, num_groups: int, center: float = 0.0) -> Quantity:
    groups = np.asarray(groups)
    sums = [np.bincount(groups, weights=column, minlength=num_groups) for column in columns]
    return Quantity(np.stack(sums, axis=-1), np.bincount(groups, minlength=num_groups), center)


class Gap(NamedTuple):
    """The largest difference between two groups, its interval and test; then the mean of all pairs.

    ``null_mean`` is the largest difference between random groups of these sizes, on average."""

    estimate: float
    low: float
    high: float
    null_mean: float
    p_value: float
    pairs: float
    pairs_low: float
    pairs_high: float


class Contrast(NamedTuple):
    """Every group's mean minus that of all others together, its interval and tests; each ``(k,)``.

    ``p_holm`` is ``p_value`` corrected for the number of groups; two groups make one test."""

    estimate: Floats
    low: Floats
    high: Floats
    p_value: Floats
    p_holm: Floats


def gap(quantity: Quantity, null: tuple[Floats, Floats], *, level: float = 0.95) -> Gap:
    """Measure and test the largest difference between the means of two groups.

    Args:
        quantity: Means of at least two groups, each with samples.
        null: Sums and sums of squares under random labels (:func:`permuted`).
        level: Coverage of the intervals of the differences of all pairs together, hence of the
            largest one and of their mean; these cover more often.

    Returns:
        The gap; its bounds and its p-value are NaN where a group has no interval.
    """
    mean, sizes = quantity.mean, quantity.sizes
    one, other = np.triu_indices(len(sizes), 1)

    def bounds(z: float | Floats) -> Bounds:
        low, high = quantity.bounds(z)
        first = mean[one], low[..., one], high[..., one]
        return _apart(first, (mean[other], low[..., other], high[..., other]))

    low, high = bounds(range_z(len(mean), level))
    # From signed differences to absolute ones: an interval on both sides of zero begins at zero.
    low, high = np.maximum(0, np.maximum(low, -high)), np.maximum(np.abs(low), np.abs(high))
    differences = np.abs(mean[one] - mean[other])
    # The largest critical value at which any pair is told apart still, as a p-value of all pairs.
    (excluded,) = _last(lambda z: np.any(_excludes_zero(bounds(z)), axis=-1, keepdims=True))
    by_permutation = float(_reached(_studentized_range, quantity, null))
    p_value = max(by_permutation, range_tail(len(mean), float(excluded)))
    by_chance = float(np.ptp(null[0] / sizes, axis=-1).mean())
    largest, largest_low, largest_high, *averages = (
        float(f(values)) for f in (np.max, np.mean) for values in (differences, low, high)
    )
    p_value = p_value if np.isfinite(high).all() else math.nan
    return Gap(largest, largest_low, largest_high, by_chance, p_value, *averages)


def contrast(quantity: Quantity, null: tuple[Floats, Floats], *, level: float = 0.95) -> Contrast:
    """Compare the mean of every group with that of all others together, one group at a time.

    The p-value is, as that of a gap, the larger one of a studentized permutation test and of the
    test that the interval is. Many groups are many tests: ``p_holm`` accounts for it.

    Args:
        quantity: Means of at least two groups, each with samples.
        null: Sums and sums of squares under random labels (:func:`permuted`).
        level: Coverage of each interval.
    """
    others = quantity.others()

    def bounds(z: float | Floats) -> Bounds:
        return _apart((quantity.mean, *quantity.bounds(z)), (others.mean, *others.bounds(z)))

    excluded = _last(lambda z: _excludes_zero(bounds(z)), len(quantity.sizes))
    by_permutation = _reached(_studentized_contrasts, quantity, null)
    p_values = np.maximum(by_permutation, 2 * ndtr(-excluded))
    low, high = bounds(normal_z(level))
    p_values = np.where(np.isfinite(high - low), p_values, np.nan)
    corrected = holm(p_values) if len(p_values) > 2 else p_values
    return Contrast(quantity.mean - others.mean, low, high, p_values, corrected)


def holm(p_values: ArrayLike) -> Floats:
    """Adjust p-values for being several (Holm 1979).

    With a probability of 0.95 no true hypothesis has an adjusted p-value below 0.05.
    The i-th smallest of m is multiplied by m - i + 1, and none becomes smaller than one before it.
    NaN are no tests.

    Example:
        >>> from fairlib.statistics import holm
        >>> holm([0.01, 0.04, 0.03]).round(2).tolist()
        [0.03, 0.06, 0.06]
    """
    p_values = _floats(p_values)
    order = np.argsort(p_values)[: np.count_nonzero(np.isfinite(p_values))]  # NaN are last.
    adjusted = np.full(len(p_values), np.nan)
    multiplied = p_values[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(1, np.maximum.accumulate(multiplied))
    return adjusted


def detectable_drop(quantity: Quantity, *, level: float = 0.95) -> Floats:
    """Find how much more than all others a group must lose to be told apart half of the time.

    The group loses as many of its samples as is expected then and gains as many as it did; the
    answer is the smallest difference at which the interval of :func:`contrast` then excludes 0, at
    Holm's level for the first of k groups.

    Args:
        quantity: Drops (:func:`drop`) of at least two groups.
        level: 1 minus the error rate of the test.

    Returns:
        Differences by group, ``(k,)``, in (0, 2]; 2 where none suffices.
    """
    others, gained, size = quantity.others(), quantity.sums[:, 1], quantity.sizes
    z = normal_z(1 - (1 - level) / (1 if len(size) == 2 else len(size)))
    other = (others.mean, *others.bounds(z))

    def missed(difference: Floats) -> Flags:
        lost = np.clip(gained + size * (others.mean + difference), 0, size - gained)
        shifted = Quantity(np.stack([lost, gained], axis=-1), size)
        return _apart((shifted.mean, *shifted.bounds(z)), other)[0] <= 0

    return _farthest(missed, np.zeros(len(size)), 2.0)


def permuted(
    quantity: Quantity, values: ArrayLike | None = None, *, permutations: int = 1000, seed: int = 0
) -> tuple[Floats, Floats]:
    """Draw sums and sums of squares by group under random labels, group sizes kept.

    Counts fall into groups by a hypergeometric distribution, whatever their number; numbers are
    permuted.

    Args:
        quantity: Quantity of the groups.
        values: The numbers themselves, ``(N,)`` in any order; only for :func:`numbers`.
        permutations: Number of draws.
        seed: Seed of the draws.

    Returns:
        Two arrays ``(permutations, k)``.
    """
    generator = np.random.default_rng(seed)
    if values is None:
        drawn = _scattered(quantity.sums.sum(0), quantity.sizes, permutations, generator)
        return Quantity(drawn, quantity.sizes).moments
    values = _floats(values) - quantity.center
    present = quantity.sizes > 0
    starts = np.cumsum(quantity.sizes[present]) - quantity.sizes[present]
    sums = np.zeros((2, permutations, len(quantity.sizes)))
    step = max(1, _BLOCK // len(values))
    blocks = range(0, permutations, step)
    for start in tqdm(blocks, "permuting", leave=False, disable=None, delay=2):
        rows = slice(start, min(start + step, permutations))
        shuffled = generator.permuted(np.tile(values, (rows.stop - rows.start, 1)), axis=1)
        # Groups are runs of the shuffled numbers. An empty group has none: `reduceat` would give it
        # the first number of the next.
        sums[0][rows, present] = np.add.reduceat(shuffled, starts, axis=1)
        sums[1][rows, present] = np.add.reduceat(shuffled**2, starts, axis=1)
    return sums[0], sums[1]


def range_z(groups: int, level: float = 0.95) -> float:
    """Compute the critical value that holds for the differences of all pairs together.

    It is the quantile of the studentized range over the square root of 2.
    For two groups it is that of one difference, 1.96 for a level of 0.95.
    """
    check_number("level", level, 0, 1, low_open=True)

    def likely(z: Floats) -> Flags:
        return np.asarray(range_tail(groups, float(z)) > 1 - level)

    return float(_farthest(likely, np.zeros(()), _FAR))


def range_tail(groups: int, z: float) -> float:
    r"""Compute the probability that one of all differences of standard normal means exceeds
    :math:`z \sqrt 2`.

    With the normal density :math:`\varphi` and distribution :math:`\Phi` it is :math:`1 - k \int
    \varphi(x) [\Phi(x) - \Phi(x - z \sqrt 2)]^{k - 1} dx`. Unequal variances make it smaller
    (Hayter 1984)."""
    # By the trapezoidal rule: the integrand is smooth and vanishes at both ends, where the rule is
    # exact to many digits. scipy's studentized range takes a thousand times as long.
    x = np.linspace(-9, 9 + z * math.sqrt(2), 2000)
    density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    others = (ndtr(x) - ndtr(x - z * math.sqrt(2))) ** (groups - 1)
    inside = groups * np.trapezoid(density * others, x)
    return float(np.clip(1 - inside, 0, 1))


def _apart(first: Sequence[Floats], second: Sequence[Floats]) -> Bounds:
    """Bound a difference of means, each given with its bounds, by square-and-add.

    The distance of each bound is the hypotenuse of the two distances that lead to it (Zou and
    Donner 2008): variances add, and are taken on the side where they matter.
    """
    (a, low_a, high_a), (b, low_b, high_b) = first, second
    return a - b - np.hypot(a - low_a, high_b - b), a - b + np.hypot(high_a - a, b - low_b)


def _excludes_zero(bounds: Bounds) -> Flags:
    return np.asarray((bounds[0] > 0) | (bounds[1] < 0))


def _squared_errors(moments: Sequence[Floats], sizes: NDArray, prior: Sequence[float]) -> Floats:
    """Compute squared standard errors of means, prior samples added (``Quantity.prior``)."""
    sums, squares, n = (
        values + more for values, more in zip((*moments, sizes), prior, strict=True)
    )
    return np.maximum(squares / n - (sums / n) ** 2, 0) / n


def _studentized_range(moments: Sequence[Floats], sizes: NDArray, prior: Sequence[float]) -> Floats:
    """Compute the largest difference of two means in its standard errors, of each row.

    The errors are Welch's, for each pair.
    """
    means, errors = moments[0] / sizes, _squared_errors(moments, sizes, prior)
    largest = np.zeros(means.shape[:-1])
    # One group against all later ones at a time: all pairs at once would take memory of their
    # number times that of the draws.
    for group in range(len(sizes) - 1):
        apart = np.abs(means[..., group, None] - means[..., group + 1 :])
        error = np.sqrt(errors[..., group, None] + errors[..., group + 1 :])
        largest = np.maximum(largest, _divided(apart, error).max(-1))
    return largest


def _studentized_contrasts(
    moments: Sequence[Floats], sizes: NDArray, prior: Sequence[float]
) -> Floats:
    """Compute each mean's difference from that of all others together, in standard errors."""
    others = [values.sum(-1, keepdims=True) - values for values in moments]
    rest = sizes.sum() - sizes
    error = np.sqrt(_squared_errors(moments, sizes, prior) + _squared_errors(others, rest, prior))
    return _divided(np.abs(moments[0] / sizes - others[0] / rest), error)


def _divided(apart: Floats, error: Floats) -> Floats:
    return np.divide(apart, error, out=np.zeros_like(apart), where=error > 0)


def _reached(
    statistic: Callable[..., Floats], quantity: Quantity, null: Sequence[Floats]
) -> Floats:
    """Compute the p-value of a statistic under random labels, never 0; ties count."""
    observed, drawn = (
        statistic(moments, quantity.sizes, quantity.prior) for moments in (quantity.moments, null)
    )
    # The data count as one more draw (Phipson and Smyth 2010). The tolerance lets ties count that
    # rounding breaks: counts of few samples tie often.
    return (1 + (drawn >= observed * (1 - 1e-9)).sum(0)) / (1 + len(drawn))


def _scattered(
    counts: Floats, sizes: NDArray, draws: int, generator: np.random.Generator
) -> Floats:
    """Draw the numbers of marked samples in each group, ``(draws, k, marks)``, mark by mark.

    A sample has one mark at most: samples that an earlier mark took are not free for a later one.
    """
    free = np.tile(sizes, (draws, 1))
    found = np.zeros((*free.shape, len(counts)))
    for mark, count in enumerate(counts.astype(np.int64)):
        left = np.full(draws, count)
        for group in range(len(sizes)):
            here, later = free[:, group], free[:, group + 1 :].sum(1)
            drawn = generator.hypergeometric(here, later, left)
            found[:, group, mark] = drawn
            left -= drawn
        free -= found[:, :, mark].astype(np.int64)
    return found


def _farthest(inside: Callable[[Floats], Flags], start: Floats, end: float) -> Floats:
    """Find the last point from ``start`` towards ``end`` that is inside, by bisection, for each.

    ``start`` counts as inside. Forty halvings of an interval of length 2 are 2e-12.
    """
    near, far = np.array(start, dtype=np.float64), np.full(np.shape(start), end)
    for _ in range(_STEPS):
        middle = (near + far) / 2
        fits = inside(middle)
        near, far = np.where(fits, middle, near), np.where(fits, far, middle)
    return near


def _last(excluded: Callable[[Floats], Flags], several: int = 1) -> Floats:
    """Find the largest critical value at which something is excluded still; 0 where none is.

    ``excluded`` is asked about grids ``(m, several)``, each as fine as a step of the one before:
    bisection would need as many calls as a grid has points, one after another.
    """
    last, step = np.zeros(several), _FAR / _GRID
    for _ in range(3):
        holds = excluded(last + step * np.arange(_GRID)[:, None])
        last, step = last + step * np.maximum(holds.sum(0) - 1, 0), step / _GRID
    return last


def _positive(size: ArrayLike) -> Floats:
    size = np.asarray(size, dtype=np.float64)
    return np.where(size > 0, size, np.nan)
