"""Statistics over seeds, one value per run: sign flips, power, false discoveries, and texts."""

import math

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from fairlib._validation import lookup
from fairlib.statistics.seeds import Interval, finite_sample, t_interval

RESAMPLES = 10_000
"""Random sign patterns of a test of more than 14 values."""

MOST_SEEDS = 100_000
"""Largest number of seeds to report."""

_EXACT = 14  # Largest number of values for which all 2^n sign patterns are enumerated.
_SIDES = {"two-sided": np.abs, "greater": np.positive, "less": np.negative}


def sign_flip_test(
    values: ArrayLike,
    center: float = 0.0,
    *,
    alternative: str = "two-sided",
) -> float:
    """Compute the p-value of symmetry about ``center``, by random signs (Fisher 1935).

    It is exact, over all ``2 ** n`` sign patterns, up to n = 14; beyond, it comes from
    10,000 random patterns with the +1 correction. The smallest two-sided p-value is ``2 **
    (1 - n)``: five seeds cannot reach .05.

    Args:
        values: Values (n,), one per seed.
        center: Mean under the null hypothesis.
        alternative: ``"two-sided"``, ``"greater"`` or ``"less"``: the side of ``center`` that is
            evidence against the null.

    Raises:
        ValueError: If there is no value or one is not finite or ``alternative`` is unknown.

    Example:
        Where all n values have one sign, 2 of the 2 ** n patterns are as extreme.

        >>> from whopays.seeds import sign_flip_test
        >>> [sign_flip_test([1.0] * seeds) for seeds in (2, 5, 6)]
        [0.5, 0.0625, 0.03125]
    """
    values = finite_sample(values)
    differences = values - center
    n = len(differences)
    if n <= _EXACT:
        # Each number below 2 ** n has the signs of one pattern as its binary digits.
        signs = 1.0 - 2 * (np.arange(2**n)[:, None] >> np.arange(n) & 1)
    else:
        signs = np.random.default_rng(0).choice((1.0, -1.0), size=(RESAMPLES, n))
    side = lookup("alternative", alternative, _SIDES)
    # Rounding must not decide: patterns that give the observed sum up to the order of summation
    # count as extreme.
    extreme = side(signs @ differences) >= side(differences.sum()) - n * _rounding(
        [*values, center]
    )
    return float(
        extreme.mean() if n <= _EXACT else (1 + np.count_nonzero(extreme)) / (1 + RESAMPLES)
    )


def seeds_needed(
    values: ArrayLike,
    threshold: float = 0.0,
    *,
    power: float = 0.8,
    level: float = 0.95,
) -> int | None:
    r"""Count the seeds until the t interval is beyond ``threshold`` with a given power.

    The observed mean and standard deviation are taken for the true ones. The count is the smallest
    n with :math:`P(T_{n-1,\delta} > t_{n-1}) \ge` ``power``, :math:`\delta = |\bar x -
    \text{threshold}| \sqrt n / s`.

    Args:
        values: Values (n,), one per seed.
        threshold: Number beyond which the interval should be, on the side of the mean.
        power: Wanted probability, in (0, 1).
        level: Coverage of the interval, in (0, 1).

    Returns:
        A count of at least 2; None for a single value, a mean on the threshold, or a count above
        100,000.

    Raises:
        ValueError: If there is no value or one is not finite.

    Example:
        >>> from whopays.seeds import seeds_needed
        >>> seeds_needed([0.0, 1.0, 2.0])  # The mean is one standard deviation above the threshold.
        10
        >>> seeds_needed([0.0, 0.1, 0.2], threshold=-0.9) < seeds_needed([0.0, 0.1, 0.2])
        True
    """
    values = finite_sample(values)
    effect = abs(values.mean() - threshold)
    if len(values) < 2 or effect <= _rounding([*values, threshold]):
        return None
    deviation = values.std(ddof=1)
    tail = (1 + level) / 2
    # The normal approximation is a few seeds short of the noncentral t, never above it.
    normal = ((scipy.stats.norm.ppf(tail) + scipy.stats.norm.ppf(power)) * deviation / effect) ** 2
    if normal > MOST_SEEDS:
        return None
    n = max(2, math.ceil(normal))
    while deviation > 0 and t_power(n, effect / deviation, level=level) < power:
        n += 1
    return n


def t_power(seeds: int, effect: float, *, level: float = 0.95) -> float:
    r"""Compute the probability that a t interval is beyond a threshold on the mean's side.

    It is :math:`P(T_{n-1,\delta} > t_{n-1})`, :math:`\delta = d \sqrt n`, for normal values;
    intervals beyond the threshold on the other side are not counted.

    Args:
        seeds: Number of values n, at least 2.
        effect: Distance d of the true mean from the threshold in standard deviations, 0 or more.
        level: Coverage of the interval, in (0, 1).
    """
    critical = scipy.stats.t.ppf((1 + level) / 2, seeds - 1)
    power = float(scipy.stats.nct.sf(critical, seeds - 1, effect * math.sqrt(seeds)))
    return (
        1.0 if math.isnan(power) else power
    )  # The distribution overflows where the effect is very large.


def benjamini_hochberg(p_values: ArrayLike, rate: float = 0.05) -> NDArray[np.bool_]:
    r"""Reject hypotheses at a false-discovery rate of ``rate`` (Benjamini and Hochberg 1995).

    The k smallest p-values are rejected, k the largest with :math:`p_{(k)} \le k \cdot \text{rate}
    / m`.

    Args:
        p_values: P-values (m,) in [0, 1]; m may be 0.
        rate: False-discovery rate, in (0, 1).

    Returns:
        Whether each hypothesis is rejected, bool (m,).

    Raises:
        ValueError: If a p-value is not in [0, 1].

    Example:
        One of twenty p-values is expected below 0.05 where there is nothing to find:

        >>> from whopays.seeds import benjamini_hochberg
        >>> benjamini_hochberg([0.04, *[0.5] * 19]).tolist()[:2]
        [False, False]
        >>> benjamini_hochberg([0.001, *[0.5] * 19]).tolist()[:2]
        [True, False]
    """
    return scipy.stats.false_discovery_control(p_values) <= rate


def holm(p_values: ArrayLike, level: float = 0.05) -> NDArray[np.bool_]:
    r"""Reject hypotheses so that any false rejection has probability ``level`` (Holm 1979).

    The smallest p-values are rejected, up to the first :math:`p_{(k)}` above :math:`\text{level} /
    (m - k + 1)`.

    Args:
        p_values: P-values (m,) in [0, 1]; m may be 0.
        level: Probability of a false rejection.

    Example:
        >>> from whopays.seeds import holm
        >>> holm([0.01, 0.02, 0.03, 0.9]).tolist()  # .02 is above .05 / 3.
        [True, False, False, False]
    """
    p_values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p_values)
    passed = p_values[order] * np.arange(len(order), 0, -1) <= level
    rejected = np.zeros(len(order), dtype=bool)
    rejected[order] = np.logical_and.accumulate(passed)
    return rejected


def _rounding(values: ArrayLike) -> float:
    """Bound, per value, how much the order of summation changes a sum: ties must stay ties."""
    return 1e-12 * float(np.max(np.abs(np.asarray(values, dtype=np.float64)), initial=0.0))


def estimate(values: ArrayLike, digits: int | None = None, sign: bool = False) -> str:
    """Format a mean with its 95 % interval: ``-5.0 [-6.5, -3.6]``, or the mean if all are alike.

    Args:
        values: One value per seed, ``(n,)``; or a mean with its interval.
        digits: Digits after the decimal point; None for shares, shown in percentage points.
        sign: Whether positive numbers have a sign.

    Raises:
        ValueError: If a value is missing or not finite.
    """
    scale, digits = (100, 1) if digits is None else (1, digits)
    found = values if isinstance(values, Interval) else t_interval(values)
    # Zero has no sign: what rounds to -0.0 is no loss.
    found = Interval(*(round(scale * end, digits) + 0.0 for end in found))
    text = format(found, f"{'+' * sign},.{digits}f")
    # The interval of one seed has no ends.
    return text if found.low < found.high < np.inf else text.split()[0]
