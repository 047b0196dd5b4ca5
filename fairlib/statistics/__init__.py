"""Intervals, nulls, tests and power: how far a number can be trusted.

Two units are never mixed. Over *seeds*, one value per run: `t_interval`. Over *samples* within one
run, each in its group: a `Quantity` (`share`, `drop`, `numbers`) with its intervals, the `gap`
between groups and the `contrast` of one group with all others.

Five seeds of one number, and the interval of their mean.

>>> from fairlib import statistics
>>> drops = [0.01, 0.03, 0.02, 0.05, -0.01]
>>> f"{statistics.t_interval(drops):.3f}"
'0.020 [-0.008, 0.048]'

Thirty samples of a small group, of which compression cost five, beside three hundred, of which it
cost ten:

>>> few, many = [True] * 5 + [False] * 25, [True] * 10 + [False] * 290
>>> lost = statistics.share(few + many, [1] * 30 + [0] * 300, 2)
>>> gap = statistics.gap(lost, statistics.permuted(lost))
>>> f"{gap.estimate:.2f} [{gap.low:.2f}, {gap.high:.2f}]", bool(gap.p_value < 0.05)
('0.13 [0.04, 0.30]', True)
"""

from fairlib.statistics.samples import (
    Contrast,
    Gap,
    Quantity,
    accuracies_by_chance,
    contrast,
    detectable_drop,
    drop,
    gap,
    group_means,
    holm,
    normal_z,
    numbers,
    permuted,
    range_tail,
    range_z,
    ratio,
    share,
    skewed,
    tango,
    wilson,
)
from fairlib.statistics.seeds import Interval, t_interval

__all__ = [
    "Contrast", "Gap", "Interval", "Quantity", "accuracies_by_chance", "contrast",
    "detectable_drop", "drop", "gap", "group_means", "holm", "normal_z", "numbers", "permuted",
    "range_tail", "range_z", "ratio", "share", "skewed", "t_interval", "tango", "wilson",
]  # fmt: skip
