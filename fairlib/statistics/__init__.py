"""Intervals, nulls, tests and power: how far a number can be trusted.

Two units are never mixed. Over *seeds*, one value per run: `t_interval`, `sign_flip_test`, `seeds_needed`,
`t_power`. Over *samples* within one run, each in its group: a `Quantity` (`share`, `drop`, `numbers`) with its
intervals, the `gap` between groups and the `contrast` of one group with all others.

Five seeds of one number: its interval, a test, and how many seeds it would take to see it.

>>> from fairlib import statistics
>>> drops = [0.01, 0.03, 0.02, 0.05, -0.01]
>>> f"{statistics.t_interval(drops):.3f}"
'0.020 [-0.008, 0.048]'
>>> statistics.sign_flip_test(drops)  # 6 of the 32 patterns of signs are as extreme.
0.1875
>>> statistics.seeds_needed(drops)
12

Thirty samples of a small group, of which compression cost five, beside three hundred, of which it cost ten:

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
from fairlib.statistics.seeds import Interval, benjamini_hochberg, seeds_needed, sign_flip_test, t_interval, t_power

__all__ = [
    "Contrast", "Gap", "Interval", "Quantity", "accuracies_by_chance", "benjamini_hochberg", "contrast",
    "detectable_drop", "drop", "gap", "group_means", "holm", "normal_z", "numbers", "permuted", "range_tail", "range_z",
    "ratio", "seeds_needed", "share", "sign_flip_test", "skewed", "t_interval", "t_power", "tango", "wilson",
]  # fmt: skip
