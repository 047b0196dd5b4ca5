"""Effects of compression on groups, one number per seed: the statistics behind the claims.

Everywhere *the control* is the network of ratio 0: finetuned like the compressed one, but not
compressed.

A study of one seed, written by hand. Of 1,000 people 70 lose 20 points, and the average loses 1.4:

>>> import pandas as pd
>>> from whopays import effects
>>> runs = [("control", 0.0, (0.9, 0.9)), ("compressed", 0.9, (0.9, 0.7))]
>>> rows = [
...     (0, "never", stage, level, split, group, size, accuracy)
...     for stage, level, accuracies in runs
...     for split in ("train", "test")
...     for group, size, accuracy in zip(("many", "few"), (930, 70), accuracies)
... ]
>>> columns = ["seed", "when", "stage", "level", "split", "group", "size", "accuracy"]
>>> table = pd.DataFrame(rows, columns=columns)
>>> effects.overall_change(table, level=0.9).round(3).to_dict()  # By seed.
{0: -0.014}
>>> effects.accuracy_change(table, level=0.9, groups="smallest").round(3).to_dict()
{0: -0.2}
>>> effects.drop_difference(table, level=0.9).round(3).to_dict()
{0: 0.2}
>>> effects.group_gap(table, where={"stage": "compressed", "split": "test"}).round(3).to_dict()
{0: 0.2}
>>> sorted(effects.STATISTICS)[:3]  # What a claim may name.
['accuracy_change', 'column_mean', 'contrast']
"""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame, Series

from fairlib._validation import lookup
from fairlib.statistics import accuracies_by_chance

STUDY_COLUMNS = ("seed", "stage", "split", "level", "group", "size")
"""Columns of a study table that a change against the control needs, beside the one that is
measured.
"""

RUN_COLUMNS = ("seed", "stage", "level", "when")
"""Columns that identify a run of a study with one mitigation."""

ARM_COLUMNS = ("arm", "pruner")
"""Columns that name the arms of a study; where a table has them they identify its runs, too."""

OF_ACCURACIES = {"accuracy_change", "degradation_gap", "drop_difference", "group_gap"}
"""Names of the statistics whose unit, and that of a claim's margin, is an accuracy of a group."""

THIRD = 1 / 3
FLOOR = 0.1
"""Share of the errors of a constant answer that the control must avoid in a group for it to have
something to lose.
"""

Rows = Mapping[str, Any]
"""Values of columns that select rows; a list selects the rows with any of its values."""

ALL: Rows = {}
"""Condition that selects all rows."""

Arguments = dict[str, Any]
"""Arguments of a function, by name."""

Accuracies = tuple[
    DataFrame, DataFrame
]  # Accuracies, and numbers of samples, with groups in columns.


class UndefinedError(ValueError):
    """Raised for a statistic that does not exist, such as the correlation of a constant."""


class NothingToLoseError(ValueError):
    """Raised for a relative drop if the control recognizes nobody of the groups."""


class MissingRowsError(ValueError):
    """Raised for a table of another run, which lacks columns or rows that a statistic needs."""


def select(table: DataFrame, **where: Any) -> DataFrame:
    """Select rows of a table: ``select(study, split="test", level=[0.5, 0.9])``.

    Args:
        table: Any table.
        where: Value of each column; a list selects the rows with any of its values.

    Raises:
        ValueError: If there is no such column, or no row with one of the values.

    Example:
        >>> import pandas as pd
        >>> from whopays import effects
        >>> table = pd.DataFrame({"split": "test", "level": [0.5, 0.9], "accuracy": [0.8, 0.7]})
        >>> effects.select(table, split="test", level=0.9)["accuracy"].tolist()
        [0.7]
        >>> effects.select(table, split="test", level=0.95)
        Traceback (most recent call last):
            ...
        whopays.effects.MissingRowsError: the table has no row with level = 0.95
    """
    return _select(table, where, ())


def attach(
    table: DataFrame, columns: Mapping[str, str], *, on: Iterable[str], where: Rows
) -> DataFrame:
    """Add columns that are looked up in other rows of the same table.

    To put the training size of a group beside each row of its test part: ``attach(study,
    {"train_size": "size"}, on=["seed", "group"], where={"stage": "dense", "split": "train"})``.

    Args:
        table: Any table.
        columns: By the name of each new column, the name of the column that is looked up.
        on: Names of the columns in which a row and the one that it looks up agree.
        where: Values of columns that select the rows to look up.

    Returns:
        A new table; NaN where there is no row to look up.

    Raises:
        ValueError: If a column is missing, or rows that agree on ``on`` have different values.
    """
    on = list(on)
    asked = list(dict.fromkeys(columns.values()))
    found = _select(table, where, (*on, *asked))[[*on, *asked]].drop_duplicates()
    if found.duplicated(on).any():
        raise ValueError(
            f"several values of {', '.join(asked)} where {', '.join(on)} are the same; "
            "select rows with `where`"
        )
    found = found.set_index(on)
    new = DataFrame({name: found[column] for name, column in columns.items()})
    return table.join(new, on=on)


def against_control(table: DataFrame, *, on: Iterable[str] = ("seed", "group")) -> DataFrame:
    """Add the training size of each group, and what each row of a study lost against the control.

    Args:
        table: Table of :func:`fairlib.study` with the rows of controls and of both parts of the
            data.
        on: Names of the columns in which a row and its control agree, beside the part of the data.

    Returns:
        A new table with ``train_size``; ``drop``, the control's accuracy minus the row's; and
        ``excessive_loss``, the row's loss minus the control's, in nats. NaN where there is no
        control.

    Raises:
        ValueError: If a column or the controls are missing, or rows that agree on ``on`` have
            several controls.

    Example:
        >>> import pandas as pd
        >>> from whopays import effects
        >>> table = pd.DataFrame({
        ...     "seed": 0, "group": "few", "stage": ["control", "compressed"] * 2,
        ...     "split": ["train", "train", "test", "test"], "size": [700, 700, 70, 70],
        ...     "accuracy": [1.0, 0.9, 0.9, 0.7], "loss": [0.0, 0.2, 0.3, 1.0],
        ... })
        >>> shown = ["stage", "split", "train_size", "drop", "excessive_loss"]
        >>> effects.against_control(table)[shown]
                stage  split  train_size  drop  excessive_loss
        0     control  train         700   0.0             0.0
        1  compressed  train         700   0.1             0.2
        2     control   test         700   0.0             0.0
        3  compressed   test         700   0.2             0.7
    """
    on, control = list(on), {"stage": "control"}
    table = attach(table, {"train_size": "size"}, on=on, where=control | {"split": "train"})
    table = attach(
        table, {"drop": "accuracy", "excessive_loss": "loss"}, on=[*on, "split"], where=control
    )
    # Equal drops have to be ties, whatever the last digit of their subtraction.
    drop = (table["drop"] - table["accuracy"]).round(12)
    return table.assign(drop=drop, excessive_loss=table["loss"] - table["excessive_loss"])


def price(table: DataFrame) -> Series:
    """Compute the cost of each row beyond the dense training, in dense trainings.

    This is gradients / gradients of the dense network - 1.

    The dense network of a seed is the one with the fewest gradients, trained without a constraint.

    Args:
        table: Table of :func:`fairlib.study` with the diagnostic ``gradients`` and the rows of
            dense networks.

    Returns:
        Series with the index of the table.

    Raises:
        ValueError: If a column or the dense rows are missing.
    """
    dense = _select(table, {"stage": "dense"}, ("seed", "gradients"))
    dense = dense.groupby("seed")["gradients"].min()
    return (table["gradients"] / table["seed"].map(dense) - 1).rename("price")


def by_level(
    table: DataFrame,
    *,
    of: str,
    where: Rows = ALL,
    control: bool = False,
    settings: Rows = ALL,
    **arguments: Any,
) -> DataFrame:
    """Compute a statistic at every level of a study.

    Args:
        table: Table of :func:`fairlib.study`.
        of: Name of one of `STATISTICS` that takes a ``level`` or a ``where``; the latter is
            computed on the test part unless ``where`` names another.
        where: Values of columns that select the rows.
        control: Also compute it for the control, at its level; for statistics that do not compare
            with it.
        settings: Arguments of the statistic whose names are taken here, such as ``of`` of a
            contrast.
        arguments: Further arguments of the statistic.

    Returns:
        DataFrame with seeds in rows and levels in columns, as :func:`whopays.plots.line` draws
        it.

    Raises:
        ValueError: If the name of the statistic is unknown, or the statistic refuses the table.
    """
    function, arguments = lookup("statistic", of, STATISTICS), {**settings, **arguments}
    chosen = _select(table, where, ("stage", "level"))
    levels = sorted(set(chosen.loc[chosen["stage"] == "compressed", "level"]))
    if function in CHANGES or STATISTICS.get(arguments.get("of", "")) in CHANGES:
        found = {level: function(table, level=level, where=where, **arguments) for level in levels}
        return DataFrame(found)
    stages = dict.fromkeys(levels, "compressed")
    if control:
        controls = chosen.loc[chosen["stage"] == "control", "level"]
        stages = dict.fromkeys(controls, "control") | stages
    found = {}
    for level in sorted(stages):
        at = {"split": "test", **where, "stage": stages[level], "level": level}
        found[level] = function(table, where=at, **arguments)
    return DataFrame(found)


def drop_difference(
    table: DataFrame,
    *,
    level: float,
    share: float = THIRD,
    others: bool = False,
    relative: bool = False,
    column: str = "accuracy",
    where: Rows = ALL,
    rank_where: Rows | None = None,
) -> Series:
    """Compute how much more test accuracy the smallest groups lose than the largest, by seed.

    The drop of a group is its accuracy under the control of the same seed minus its accuracy
    compressed at ``level``; the value is the mean drop of the smallest groups minus that of the
    largest.

    Args:
        table: Table of :func:`fairlib.study`.
        level: Compression level that is compared with the control.
        share: Of k groups, the ceil(share * k) smallest and as many largest are taken, by their
            size in the *training* split of the seed; ties are broken at random by the seed, never
            by name.
        others: Compare all groups but the largest with these, in the place of the smallest: with a
            share that leaves one group, everybody else with the majority.
        relative: Divide the drop by the mean accuracy of the same groups under the control. This is
            the relative drop of [D], taken over several groups since it is undefined for a single
            one that is never right.
        column: Name of the column that falls; of two groups with the same answers,
            ``rate_true_positive`` or ``rate_false_positive``.
        where: Values of columns that select the rows, for instance ``{"setting": "equal"}``.
        rank_where: Values of columns that select the rows whose sizes rank the groups; by default
            those of ``where``. A setting with equal sizes is ranked by the sizes that the same
            groups have, with the same seed, in the unequal setting, and so shows whatever else sets
            these groups apart.

    Returns:
        Series indexed by seed.

    Raises:
        ValueError: If a column, the level or the control is missing, a seed is incomplete, several
            runs per seed are selected, or a relative drop would divide by 0.
    """
    minority = "others" if others else "smallest"
    changed = _change(table, column, level, where, rank_where)
    ends = _changes_of([minority, "largest"], changed, share, relative)
    return ends["largest"] - ends[minority]


def loss_difference(table: DataFrame, *, level: float, where: Rows = ALL) -> Series:
    """Compute how much more test loss (nats) small groups gain than large ones, by seed.

    This is `drop_difference` for the rise of the mean cross-entropy in place of the drop of
    accuracy: both are positive where the small groups pay. They can disagree in sign, since a loss
    has no upper end.

    Args:
        table: Table of :func:`fairlib.study`.
        level: Compression level that is compared with the control.
        where: Values of columns that select the rows.

    Returns:
        Series indexed by seed.

    Raises:
        ValueError: If a column, the level or the control is missing, a seed is incomplete, or
            several runs per seed are selected.
    """
    return -drop_difference(table, level=level, column="loss", where=where)


def accuracy_change(
    table: DataFrame,
    *,
    level: float,
    groups: str,
    share: float = THIRD,
    relative: bool = False,
    where: Rows = ALL,
    rank_where: Rows | None = None,
) -> Series:
    """Compute test accuracy minus that of the control for groups chosen by size, by seed.

    Args:
        table: Table of :func:`fairlib.study`.
        level: Compression level that is compared with the control.
        groups: ``"smallest"``, ``"largest"``, or ``"others"`` for all but the largest.
        share: Share of groups that are the smallest, and the largest (`drop_difference`).
        relative: Divide by the mean accuracy of these groups under the control.
        where: Values of columns that select the rows.
        rank_where: Values of columns that select the rows whose sizes rank the groups.

    Returns:
        Series indexed by seed.

    Raises:
        ValueError: If ``groups`` is unknown, a column, the level or the control is missing, a seed
            is incomplete, several runs per seed are selected, or a relative change would divide by
            0.
    """
    lookup("choice of groups", groups, dict.fromkeys(("smallest", "largest", "others")))
    changed = _change(table, "accuracy", level, where, rank_where)
    return _changes_of([groups], changed, share, relative)[groups]


def _changes_of(
    names: Iterable[str], changed: tuple[DataFrame, ...], share: float, relative: bool
) -> DataFrame:
    """Average a change (`_change`) over the groups at each end, some of them by name (`_ends`)."""
    change, before, sizes = changed
    ends, bases = (_ends(values, sizes, share) for values in (change, before))
    for groups in names if relative else ():
        if not (bases[groups] > 0).all():
            raise NothingToLoseError(
                f"a relative change of the {groups} groups needs an accuracy above 0 in the control"
            )
    return ends / bases if relative else ends


def group_difference(
    table: DataFrame, *, column: str, share: float = THIRD, relative: bool = False, where: Rows
) -> Series:
    """Compute the mean of a column over the smallest groups minus that over the largest, by seed.

    Args:
        table: One row per seed and group, once ``where`` has selected, with a column
            ``train_size``, which ranks the groups; ties are broken at random by the seed.
        column: Name of the column.
        share: Share of groups that are the smallest, and the largest (`drop_difference`).
        relative: Divide by the mean of the column over all groups, which must be positive: for
            columns whose scale changes from run to run.
        where: Values of columns that select the rows.

    Returns:
        Series indexed by seed.

    Raises:
        ValueError: If a column is missing, the selection holds several rows per seed and group, or
            a mean to divide by is not positive.
    """
    rows = _select(table, where, ())
    ends = smallest_and_largest(rows, column=column, share=share)
    difference = ends["smallest"] - ends["largest"]
    return difference / _means(_by_seed_and_group(rows, column), column) if relative else difference


def _means(values: DataFrame, column: str) -> Series:
    """Average a column over the groups, to divide by."""
    means = values.mean(axis=1)
    if not (means > 0).all():
        raise ValueError(
            f"a relative value needs a positive mean over the groups; that of {column} is not"
        )
    return means


def smallest_and_largest(
    table: DataFrame, *, column: str, rank: str = "train_size", share: float = THIRD
) -> DataFrame:
    """Compute the means of a column over the smallest and over the largest groups, by seed.

    Args:
        table: Table with one row per seed and group.
        column: Name of the column whose means are taken.
        rank: Name of the column that holds the group sizes.
        share: Share of the groups at each end, rounded up to a whole number of groups.

    Returns:
        DataFrame with seeds in rows and the columns ``smallest`` and ``largest``.

    Raises:
        ValueError: If a column is missing, or there are several rows per seed and group.
    """
    return _ends(*_values_and_sizes(table, column, rank), share)[["smallest", "largest"]]


def group_correlation(
    table: DataFrame, *, x: str, y: str, where: Rows, x_where: Rows | None = None
) -> Series:
    """Compute Spearman's correlation of two columns over the groups, by seed.

    Args:
        table: One row per seed and group, once ``where`` has selected.
        x, y: Names of the columns.
        where: Values of columns that select the rows.
        x_where: Values of columns that select the rows of ``x``; by default those of ``where``.
            With the rows of the dense network: what was known of a group before compression, with
            what happened to it.

    Returns:
        Series indexed by seed, in [-1, 1].

    Raises:
        ValueError: If a column is missing, the selection holds several rows per seed and group,
            there are fewer than three groups, a column has a missing value or is constant over the
            groups of a seed, or the rows of ``x`` do not cover the same seeds and groups.
    """
    chosen = {x: where if x_where is None else x_where, y: where}
    rows = {name: _select(table, chosen[name], ("seed", "group", name)) for name in chosen}
    ranks = {name: _by_seed_and_group(rows[name], name).rank(axis=1) for name in chosen}
    if len(ranks[y].columns) < 3:
        raise UndefinedError(
            f"a correlation over groups needs three groups, got {len(ranks[y].columns)}"
        )
    _check_alike(ranks[x], ranks[y], f"the rows of {x} and of {y}")
    for name, values in ranks.items():
        if values.isna().any(axis=None) or (values.nunique(axis=1) < 2).any():
            raise UndefinedError(
                f"the column {name} has a missing value or is constant over the groups of a seed"
            )
    return ranks[x].corrwith(ranks[y], axis=1)


def drop_correlation(table: DataFrame, *, level: float, where: Rows = ALL) -> Series:
    """Compute the rank correlation of accuracy before and drop, over groups, by seed.

    It is negative where the groups that were low lose the most. The original network is the dense
    one, before any finetuning; the drop is the control's test accuracy minus that at ``level``. A
    group's accuracy is the mean over the dense networks of the *other* seeds: those of the same
    seed answer the same test samples as the drop is counted on, and by chance alone a group that is
    low among these has less to lose.

    Args:
        table: Table of :func:`fairlib.study` with the rows of dense networks.
        level: Compression level that is compared with the control.
        where: Values of columns that select the rows.

    Returns:
        Series indexed by seed, in [-1, 1]; 0 for a seed in which all groups lose the same.

    Raises:
        ValueError: If a column, the level, the control or the dense network is missing, a seed is
            incomplete, several runs per seed are selected, there is only one seed, there are fewer
            than three groups, or these do not differ in accuracy.
    """
    change, _, _ = _change(table, "accuracy", level, where, None)
    dense = _select(table, {**where, "stage": "dense", "split": "test"}, ())
    before = _by_seed_and_group(dense, "accuracy")
    if len(before) < 2:
        raise UndefinedError("a correlation with the accuracy under other seeds needs two seeds")
    # Dense networks of other seeds only: those of the same seed answer the very samples that the
    # drop is counted on, and a group that is low there by chance has less to lose.
    before = ((before.sum() - before) / (len(before) - 1)).round(12)
    if len(before.columns) < 3 or (before.nunique(axis=1) < 2).any():
        raise UndefinedError("a correlation over groups needs three groups that differ in accuracy")
    _check_alike(before, change, "dense and compressed rows")
    # Equal drops have to be ties, whatever the last digit of their subtraction.
    drops = (-change).round(12)
    varies = drops.nunique(axis=1) >= 2
    found = before[varies].rank(axis=1).corrwith(drops[varies].rank(axis=1), axis=1)
    return found.reindex(drops.index, fill_value=0.0)


def column_mean(table: DataFrame, *, column: str, where: Rows = ALL) -> Series:
    """Compute the mean of a column over the rows of each seed.

    Args:
        table: One row or more per seed, once ``where`` has selected.
        column: Name of the column.
        where: Values of columns that select the rows.

    Returns:
        Series indexed by seed.

    Raises:
        ValueError: If the column is missing or has missing values.
    """
    rows = _select(table, where, ("seed", column))
    if rows[column].isna().any():
        raise ValueError(f"the column {column} has missing values")
    return rows.groupby("seed")[column].mean().astype(float)


def spread_change(table: DataFrame, *, level: float, where: Rows = ALL) -> Series:
    """Compute how much more the accuracies of groups vary than under the control, by seed.

    The value is the variance between the groups (`spread`) at ``level`` minus that of the control,
    both equally noisy (`contrast_rows`).

    Args:
        table: Table of :func:`fairlib.study`.
        level: Compression level that is compared with the control.
        where: Values of columns that select the rows.

    Returns:
        Series indexed by seed.

    Raises:
        ValueError: If a column, the level or the control is missing, a seed is incomplete, several
            runs per seed are selected, there is only one group, or one has fewer than two samples.
    """
    test = {"split": "test", **where}
    compressed = test | {"stage": "compressed", "level": level}
    return contrast_rows(table, of="spread", where=compressed, against=test | {"stage": "control"})


def spread(table: DataFrame, *, where: Rows) -> Series:
    r"""Compute the variance of accuracy between groups, free of sampling noise, by seed.

    The gap between the best and the worst of several noisy accuracies (`group_gap`) is large by
    chance alone, and the larger the lower they are. The variance between k groups has no such bias:
    with accuracy :math:`A_a` on :math:`n_a` samples and :math:`\bar A` the mean over groups,

    .. math::
        V = \frac{1}{k-1} \sum_a (A_a - \bar A)^2 - \frac1k \sum_a \frac{A_a (1 - A_a)}{n_a - 1}

    is an unbiased estimate of the variance of the true accuracies, whatever they are; it may be
    negative. Two groups whose accuracies lie d apart have a V of :math:`d^2 / 2`. The difference of
    two networks (`contrast_rows`) is therefore that of the true variances on average, even where
    one network is less accurate than the other.

    Args:
        table: One row per run and group, once ``where`` has selected (`group_gap`).
        where: Values of columns that select the rows.

    Returns:
        Series indexed by seed.

    Raises:
        ValueError: If a column or a value is missing, a run has several rows for a group, the seeds
            do not have the same runs, there is only one group, or one has fewer than two samples.
    """
    return _mean_over_runs(_variance_between(*_accuracies(table, where)))


def _accuracies(table: DataFrame, where: Rows) -> Accuracies:
    rows = _select(table, where, (*RUN_COLUMNS, "group", "size", "accuracy"))
    return _by_run_and_group(rows, "accuracy"), _by_run_and_group(rows, "size")


def _mean_over_runs(values: Series) -> Series:
    return values.groupby("seed").mean()


def _overall(accuracy: DataFrame, sizes: DataFrame) -> Series:
    """Accuracy over all samples of a run."""
    return (accuracy * sizes).sum(axis=1) / sizes.sum(axis=1)


def _variance_between(accuracy: DataFrame, sizes: DataFrame) -> Series:
    return accuracy.var(axis=1, ddof=1, skipna=False) - _sampling_variance(accuracy, sizes)


def _sampling_variance(accuracy: DataFrame, sizes: DataFrame) -> Series:
    if len(accuracy.columns) < 2 or not (sizes >= 2).all(axis=None):
        raise ValueError(
            "a variance between groups needs two groups or more, with two samples or more in each"
        )
    return (accuracy * (1 - accuracy) / (sizes - 1)).mean(axis=1, skipna=False)


def _equally_noisy(one: Accuracies, other: Accuracies) -> tuple[Accuracies, Accuracies]:
    """Thin the test samples of the less noisy side until both sampling variances agree."""
    # An estimated variance is skewed, the more so the noisier it is. With different noise on both
    # sides the mean difference would be right, but t intervals would exclude 0 too often.
    noise, against = (_sampling_variance(*side).mean() for side in (one, other))
    if noise <= against:
        return _thinned(one, noise / against if against else 1.0), other
    return one, _thinned(other, against / noise)


def _thinned(side: Accuracies, share: float) -> Accuracies:
    """Draw a share of each group's samples without replacement, two at least: accuracies, sizes."""
    accuracy, sizes = side
    right = (accuracy * sizes).round()
    if (abs(right - accuracy * sizes) > 0.1).any(axis=None):
        raise ValueError(
            "an accuracy is no number of right answers among as many samples as its group has"
        )
    kept = (sizes * share).round().clip(lower=2)
    seeds = right.index.get_level_values("seed")
    counts = [frame.to_numpy(int) for frame in (right, sizes - right, kept)]
    # A generator for each run, from its seed: the draws of a run must not depend on which other
    # runs the table has.
    drawn = [
        np.random.default_rng(int(seed)).hypergeometric(*run)
        for seed, *run in zip(seeds, *counts, strict=True)
    ]
    return DataFrame(drawn, right.index, right.columns) / kept, kept


def group_gap(
    table: DataFrame, *, where: Rows, column: str = "accuracy", relative: bool = False
) -> Series:
    r"""Compute the gap between groups, :math:`\max_a x_a - \min_a x_a`, by seed.

    It is the mean over the runs selected.

    For test accuracies this is what the experiments of [T] call the fairness violation. It is
    biased upward, the more so the smaller the groups, the closer their true values and, above one
    half, the lower the accuracy. Two gaps of the same groups have the same bias only at equal
    accuracy and equal true values. A less accurate network has a wider gap by chance alone: ten
    groups of 55 samples whose true accuracies all fall from .95 to .80 widen by .077 on average. A
    verdict on the `contrast_rows` of two gaps allows for it (`by_chance`); `spread` has no such
    bias.

    Args:
        table: One row per run and group, once ``where`` has selected; a run is a seed, stage, level
            and time of mitigation.
        where: Values of columns that select the rows.
        column: Name of the column :math:`x`.
        relative: Divide by the mean of :math:`x` over the groups, which must be positive: for
            columns whose scale changes from run to run.

    Returns:
        Series indexed by seed.

    Raises:
        ValueError: If a column or a value is missing, a run has several rows for a group, the seeds
            do not have the same runs, or a mean to divide by is not positive.
    """
    values = _by_run_and_group(_select(table, where, (*RUN_COLUMNS, "group", column)), column)
    gaps = values.max(axis=1) - values.min(axis=1)
    return _mean_over_runs(gaps / _means(values, column) if relative else gaps)


def degradation_gap(table: DataFrame, *, where: Rows, dense: Rows) -> Series:
    r"""Compute how unequally the groups lose, :math:`\max_a R_a - \min_a R_a`, by seed.

    With :math:`R_a` the accuracy of the group under the dense network of the seed minus that under
    the selected one, this is, for two groups, the left side of Definition 3 of [B], :math:`|R_+ -
    R_-|`; the mean over the runs selected. Like every such gap it is biased upward (`group_gap`).

    Args:
        table: One row per run and group, once ``where`` has selected (`group_gap`); or a table
            without groups, whose column ``signed`` has the accuracy of the one group minus that of
            the other (`by_run`).
        where: Values of columns that select the rows.
        dense: Values of columns that select the rows of the dense network, one run per seed.

    Returns:
        Series indexed by seed.

    Raises:
        ValueError: If a column, a value or the dense network of a seed is missing, or the groups
            are not the same.
    """
    if "group" in table:
        after = _by_run_and_group(
            _select(table, where, (*RUN_COLUMNS, "group", "accuracy")), "accuracy"
        )
        rows = _select(table, dense, ("seed", "group", "accuracy"))
        before = _by_seed_and_group(rows, "accuracy")
    else:
        # Only the signed gap of two groups is known: with 0 for the accuracy of one group both
        # drops are off by the same number, which cancels in max - min.
        after, before = (
            _select(table, rows, ("seed", "signed")).set_index("seed")[["signed"]].assign(other=0.0)
            for rows in (where, dense)
        )
    if not before.columns.equals(after.columns) or before.index.has_duplicates:
        raise ValueError(
            f"the rows of {dict(dense)} are not one run per seed with the groups of {dict(where)}"
        )
    drops = before.reindex(after.index.get_level_values("seed")).set_axis(after.index) - after
    if drops.isna().any(axis=None):
        raise ValueError(f"an accuracy is missing, or a seed has no run {dict(dense)}")
    return _mean_over_runs(drops.max(axis=1) - drops.min(axis=1))


def group_gap_by_chance(
    table: DataFrame,
    *,
    where: Rows,
    dense: Rows | None = None,
    nested: bool = False,
    draws: int = 200,
) -> Series:
    """Compute the gap that chance alone gives to equally accurate groups, by seed.

    Args:
        table: One row per run and group, once ``where`` has selected (`group_gap`).
        where: Values of columns that select the rows.
        dense: Values of columns that select the dense network of each seed, for the gap of what the
            groups lose against it (`degradation_gap`); its accuracies are drawn as well.
        nested: With ``dense``: whether all that the less accurate network answers rightly the other
            does, too, so that the loss of a group of n samples is a binomial share of them.
            Otherwise the two are drawn independently.
        draws: Number of times that the accuracies of a run's groups are drawn
            (:func:`fairlib.statistics.accuracies_by_chance`), always the same; the gap is the mean
            over these, and over the runs.

    Returns:
        Series indexed by seed.

    Raises:
        ValueError: If a column or a value is missing, a run has several rows for a group, the seeds
            do not have the same runs, or a group of a run has no samples.
    """
    accuracy, sizes = _accuracies(table, where)
    overall = DataFrame({"after": _overall(accuracy, sizes)})
    if dense is not None:
        overall = overall.join(overall_accuracy(table, where=dense).rename("before"), on="seed")
    generator = np.random.default_rng(0)
    gaps = []
    for run, counts in sizes.iterrows():
        # Nested: the samples that only one of the two networks answers rightly are one binomial
        # share. Independent: each network has its draws.
        shares = [np.ptp(overall.loc[run])] if nested and dense is not None else overall.loc[run]
        drawn = [accuracies_by_chance(counts, each, draws=draws, seed=generator) for each in shares]
        gaps.append(np.ptp(drawn[0] - sum(drawn[1:]), axis=1).mean())
    return _mean_over_runs(Series(gaps, sizes.index))


def overall_accuracy(table: DataFrame, *, where: Rows) -> Series:
    r"""Compute the accuracy over all samples, :math:`\sum_a n_a A_a / \sum_a n_a`, by seed.

    It is the mean over the runs selected.

    Args:
        table: One row per run and group, once ``where`` has selected (`group_gap`).
        where: Values of columns that select the rows.

    Returns:
        Series indexed by seed.

    Raises:
        ValueError: If a column or a value is missing, a run has several rows for a group, the seeds
            do not have the same runs, or a run has no samples.
    """
    accuracy, sizes = _accuracies(table, where)
    if not (sizes.sum(axis=1) > 0).all():
        raise ValueError("an overall accuracy needs groups with samples")
    return _mean_over_runs(_overall(accuracy, sizes))


def overall_change(table: DataFrame, *, level: float, where: Rows = ALL) -> Series:
    """Compute test accuracy over all samples at ``level`` minus that of the control, by seed.

    Args:
        table: Table of :func:`fairlib.study`.
        level: Compression level that is compared with the control.
        where: Values of columns that select the rows.

    Returns:
        Series indexed by seed.

    Raises:
        ValueError: If a column, a value, the level or the control is missing, or the seeds do not
            have the same runs.
    """
    test = {"split": "test", **where}
    after = overall_accuracy(table, where=test | {"stage": "compressed", "level": level})
    return after - overall_accuracy(table, where=test | {"stage": "control"})


def by_run(table: DataFrame, keys: Iterable[str]) -> DataFrame:
    r"""Compute the overall accuracy and the gap of every run of a study.

    Args:
        table: Table of :func:`fairlib.study`, or rows of it.
        keys: Columns that identify a run, for instance split, level and seed.

    Returns:
        One row per run, in the order of the table: ``keys``, ``accuracy`` :math:`\sum_a n_a A_a /
        \sum_a n_a`, ``bias`` :math:`\max_a A_a - \min_a A_a`, and ``signed``, the accuracy of the
        first group by name minus that of the last, which for two groups is not biased upward.
        Groups without samples do not count.

    Raises:
        ValueError: If a column, a key or the accuracy of a group with samples is missing, or a run
            has several rows for a group.

    Example:
        >>> import pandas as pd
        >>> from whopays import effects
        >>> table = pd.DataFrame({
        ...     "seed": 0, "group": ["few", "many"], "size": [70, 930], "accuracy": [0.7, 0.9]
        ... })
        >>> effects.by_run(table, ["seed"]).round(3)
           seed  accuracy  bias  signed
        0     0     0.886   0.2    -0.2
    """
    keys = list(keys)
    rows = _select(table, {}, (*keys, "group", "size", "accuracy"))
    rows = rows[rows["size"] > 0]
    if empty := [name for name in (*keys, "accuracy") if rows[name].isna().any()]:
        raise ValueError(f"the column {empty[0]} has missing values")
    if rows.duplicated([*keys, "group"]).any():
        raise ValueError(f"several rows per group where {', '.join(keys)} are the same")
    # In the order of the table, which groupby would lose where keys are sorted.
    order = rows[keys].drop_duplicates()
    rows = rows.sort_values("group").assign(right=rows["accuracy"] * rows["size"])
    runs = rows.groupby(keys)
    sums, accuracy = runs[["right", "size"]].sum(), runs["accuracy"]
    found = DataFrame(
        {"accuracy": sums["right"] / sums["size"], "bias": accuracy.max() - accuracy.min()}
    )
    # For two groups the signed gap is not biased upward, as the gap is.
    found["signed"] = accuracy.first() - accuracy.last()
    return order.merge(found.reset_index(), on=keys, how="left")


def by_arm(table: DataFrame, keys: Iterable[str]) -> DataFrame:
    """Compute accuracy and gaps between groups of each arm of a study, by seed.

    Args:
        table: Rows of one stage of a study, with its test and its training part.
        keys: Names of the columns that distinguish the arms.

    Returns:
        One row per arm and seed, arms in the order of the table: ``keys``, ``seed``; ``accuracy``,
        ``gap`` and ``gap_by_chance`` of the test part (`overall_accuracy`, `group_gap`,
        `group_gap_by_chance`); ``loss_gap``, the gap of the losses in the training part;
        ``smallest`` and ``largest``, test accuracies of the groups that are smallest and largest in
        the training part (`smallest_and_largest`).

    Raises:
        ValueError: If a column or a part is missing, or an arm has several rows per seed and group.
    """
    keys, found = list(keys), {}
    table = attach(
        table, {"trained_on": "size"}, on=[*keys, "seed", "group"], where={"split": "train"}
    )
    for arm, rows in table.groupby(keys, sort=False):
        test = _select(rows, {"split": "test"}, ())
        parts = {"accuracy": overall_accuracy(test, where={}), "gap": group_gap(test, where={})}
        parts["gap_by_chance"] = group_gap_by_chance(test, where={})
        parts["loss_gap"] = group_gap(rows, where={"split": "train"}, column="loss")
        found[arm] = DataFrame(parts).join(
            smallest_and_largest(test, column="accuracy", rank="trained_on")
        )
    return pd.concat(found, names=[*keys, "seed"]).reset_index()


def arm_losses(table: DataFrame) -> DataFrame:
    """Compute what each arm costs the average, and how much more small groups, by seed.

    Args:
        table: Table of :func:`fairlib.study` with the rows of controls and a column of
            `ARM_COLUMNS` (the last of them).

    Returns:
        One row per arm, level and seed, arms and levels in the order of the table: the column of
        the arm, ``level``, ``seed``; ``average``, what the overall accuracy loses against the
        control (`overall_change`), and ``difference``, how much more the smallest third of the
        groups loses than the largest (`drop_difference`).

    Raises:
        ValueError: If a column or the controls are missing, or a seed is incomplete.
    """
    arms = (name for name in reversed(ARM_COLUMNS) if name in table)
    column, found = next(arms, " or ".join(ARM_COLUMNS)), {}
    for arm in _select(table, {"stage": "compressed"}, (column,))[column].unique():
        own = select(table, **{column: arm})
        average = -by_level(own, of="overall_change").unstack()
        found[arm] = DataFrame(
            {"average": average, "difference": by_level(own, of="drop_difference").unstack()}
        )
    return pd.concat(found, names=[column, "level", "seed"]).reset_index()


def contrast_rows(
    table: DataFrame,
    *,
    of: str,
    where: Rows,
    against: Rows,
    beyond: Mapping[str, Rows] | None = None,
    **arguments: Any,
) -> Series:
    r"""Subtract a statistic of some rows from the same statistic of other rows, by seed.

    A bias that depends on accuracy does not cancel: compare networks of different accuracy by their
    `spread`, not by their `group_gap`. An estimated variance is skewed, the more so the noisier it
    is, and with it the difference of a noisy and a less noisy one: the t interval over seeds would
    find the less accurate network's groups *closer together* in up to 11 % of tables without an
    effect. Of the side whose accuracies vary less by chance, :math:`\frac1k \sum_a A_a (1 - A_a) /
    (n_a - 1)`, only as many samples of each group are therefore used, drawn by the seed without
    replacement, as make both sides vary alike. On average over such draws the value is the
    difference of the two spreads.

    Args:
        table: Table of :func:`fairlib.study`.
        of: Name of one of `STATISTICS`.
        where: Values of columns that select the rows.
        against: Values of columns that select the rows whose value is subtracted.
        beyond: ``where`` and ``against`` of a second contrast, which is subtracted from the first:
            how much more a constraint returns after one linearizer than after another.
        arguments: Further arguments of the statistic.

    Returns:
        Series indexed by seed.

    Raises:
        ValueError: If the statistic is unknown or refuses the table, or the two sides do not cover
            the same seeds, or not the same groups where gaps, spreads or overall accuracies are
            compared.
    """
    function = lookup("statistic", of, STATISTICS)
    if function in (group_gap, overall_accuracy, spread):
        one, other = (
            set(_select(table, rows, ("group",))["group"].unique()) for rows in (where, against)
        )
        if one != other:
            raise ValueError(
                f"the rows of {dict(where)} and of {dict(against)} do not cover the same groups"
            )
    if function is spread:
        sides = _equally_noisy(_accuracies(table, where), _accuracies(table, against))
        one, other = (_mean_over_runs(_variance_between(*side)) for side in sides)
    else:
        one, other = (function(table, where=rows, **arguments) for rows in (where, against))
    if not one.index.equals(other.index):
        raise ValueError(
            f"the rows of {dict(where)} and of {dict(against)} do not cover the same seeds"
        )
    difference = one - other
    if beyond:
        difference = difference - contrast_rows(table, of=of, **beyond, **arguments)
    return difference


def level_trend(
    table: DataFrame,
    *,
    statistic: str,
    control: float = 0.0,
    where: Rows = ALL,
    **arguments: Any,
) -> Series:
    """Compute the rank correlation of a statistic and the distance from the control.

    Over three levels it has only four values, and a t interval of ten of them excludes 0 in 6.0 %
    of tables without a trend (200,000 draws; 5.4 % over four levels or twenty seeds).

    Args:
        table: Table of :func:`fairlib.study` with three levels or more.
        statistic: Name of one of `STATISTICS` that takes a ``level`` or a ``where`` (`by_level`).
        control: Level of the control: 0 for pruning, 1 for linearization.
        where: Values of columns that select the rows.
        arguments: Further arguments of the statistic.

    Returns:
        Series indexed by seed, in [-1, 1]; 0 for a seed in which the statistic is the same at all
        levels.

    Raises:
        ValueError: If the statistic is unknown or refuses the table, or there are fewer than three
            levels.
    """
    # Equal values have to be ties, whatever their last digit.
    values = by_level(table, of=statistic, where=where, settings=arguments).T.round(12)
    if len(values) < 3:
        raise MissingRowsError(
            f"a trend over levels needs three of them, got {values.index.tolist()}"
        )
    order = Series(abs(values.index - control), index=values.index).rank()
    trend = values.loc[:, values.nunique() >= 2].rank().corrwith(order)
    return trend.reindex(values.columns, fill_value=0.0)


def cells(table: DataFrame, *, name: str, each: Rows, **arguments: Any) -> DataFrame:
    """Compute a statistic in every cell of a statement about *each* of several levels or methods.

    Args:
        table: Table of :func:`fairlib.study`.
        name: Name of one of `STATISTICS`.
        each: Values by column, or ``"all"`` for all that the selected rows have; a cell is a
            combination of them. A value becomes the argument of that name if the statistic has one
            (``level``), else a condition of ``where``, and of ``against`` unless that has one for
            the column. What is under the key ``against`` varies in ``against`` alone: one
            method against each of its rivals.
        arguments: Further arguments of the statistic.

    Returns:
        DataFrame with seeds in rows and cells in columns, named ``"level 0.9, when after, against
        SNIP"``.

    Raises:
        ValueError: If the name is unknown, the table lacks a cell, or the cells do not have the
            same seeds.
    """
    lookup("statistic", name, STATISTICS)
    sides = [("where", column, wanted) for column, wanted in each.items() if column != "against"]
    sides += [("against", column, wanted) for column, wanted in each.get("against", {}).items()]
    choices = []
    for side, column, wanted in sides:
        if wanted == "all":
            wanted = _present(table, arguments.get(side) or ALL, column)
        choices.append([(side, column, value) for value in wanted])
    found: dict[str, Series] = {}
    for cell in product(*choices):
        label = ", ".join(
            f"{'against ' * (side == 'against')}{column} {value}" for side, column, value in cell
        )
        try:
            found[label] = STATISTICS[name](table, **_in_cell(name, arguments, cell))
        except MissingRowsError as error:
            raise MissingRowsError(f"cell {label!r}: {error}") from None
        except ValueError as error:
            raise type(error)(f"cell {label!r}: {error}") from None
    values = DataFrame(found)
    lacking = values.columns[values.isna().any()]
    if len(lacking):
        raise ValueError(f"the cells do not have the same seeds: {lacking[0]!r} lacks one")
    return values


def by_chance(table: DataFrame, *, name: str, **arguments: Any) -> list[Series] | list[DataFrame]:
    """Compute the contrast of gaps in accuracy that chance gives to equally accurate groups.

    The gaps of two networks of different accuracy differ by chance (`group_gap`): a verdict on
    their `contrast_rows` must hold without that part. How often a network and the dense one are
    right on the same samples no table says; for what groups lose (`degradation_gap`) it must hold
    whether they answer independently or as alike as they can.

    Args:
        table: Table of :func:`fairlib.study`.
        name: Name of one of `STATISTICS`.
        arguments: Its arguments, as `contrast_rows` or `cells` take them.

    Returns:
        Values as the statistic has, by seed or by seed and cell, each of which is to be subtracted;
        none for a statistic that chance does not move with accuracy.

    Raises:
        ValueError: If the table does not give the statistic, or does not say how many samples its
            groups have; or if the gaps are relative.
    """
    # Only a gap between accuracies grows by chance as accuracy falls.
    gaps = STATISTICS.get(arguments.get("of", "")) in (group_gap, degradation_gap)
    if name != "contrast" or not gaps or arguments.get("column", "accuracy") != "accuracy":
        return []
    if arguments.get("relative"):
        raise ValueError(
            "what chance gives a relative gap of accuracies is not computed; compare the gaps "
            "themselves"
        )
    arguments.pop("column", None)
    arguments["of"] = "group_gap_by_chance"
    function: Any = partial(cells, name=name) if "each" in arguments else contrast_rows
    ways = (False, True) if "dense" in arguments else (False,)
    return [function(table, **arguments, nested=way) for way in ways]


def at_floor(
    table: DataFrame,
    *,
    where: Rows = ALL,
    classes: bool = True,
    column: str = "accuracy",
    least: float = 0.0,
    overall: bool = False,
) -> list[Any]:
    r"""List the groups with too little to lose for a loss to be seen.

    A group has test accuracy :math:`A` under the control, and the answer that is most frequent in
    the data is right for a share :math:`A_0` of it. It is at the floor if the control avoids less
    than a tenth (`FLOOR`) of that answer's errors, :math:`(A - A_0) / (1 - A_0) < 0.1`: a network
    that knew nothing of the group would be about as right. It can lose :math:`A - A_0` by falling
    back to that answer, and is at the floor, too, if this is less than the margin within which a
    loss does not matter. If the first holds for all samples together, all groups are at the floor.

    In a group of a single class, :math:`A` is the recall of this class, which falls to 0 if the
    class is never named: :math:`A_0 = 0` there, also for the class that is most frequent.

    Args:
        table: Table of :func:`fairlib.study`, with the column ``constant``, :math:`A_0` of each row
            (the diagnostic of this name).
        where: Values of columns that select the rows; ``stage: control`` and ``split: test`` unless
            given.
        classes: Whether the groups are the classes. If so, a table may lack the column: then
            :math:`A_0 = 0`, and the test of all samples together is left out.
        column: Name of the column in the place of the accuracy, a rate: then :math:`A_0 = 0`.
        least: Loss below which nothing is seen, the margin of a claim about accuracies.
        overall: Whether the claim is about all samples together: then no single group counts.

    Returns:
        Names of these groups, those with the fewest test samples first.

    Raises:
        ValueError: If a column, a value or the control is missing.
    """
    rows = {"stage": "control", "split": "test", **where}
    needed = ("group", "size", column, *(() if classes else ("constant",)))
    found = _select(table, rows, needed)
    # A rate is one class's own: an answer that is always the same is never right about the other.
    if column != "accuracy" or "constant" not in found:
        found = found.assign(constant=0.0)
    if (empty := found[["size", column, "constant"]].isna().any()).any():
        raise ValueError(f"the column {empty.idxmax()} has missing values")
    own = found["constant"].mask(found["constant"] == 1, 0.0)
    found = found[["group", "size", "constant"]].assign(accuracy=found[column], own=own)
    means = found.groupby("group", sort=False).mean().sort_values("size")
    together = means.mul(means["size"], axis=0).sum() / means["size"].sum()
    # A network that is no better than a constant answer on all samples has nothing to lose in any
    # group.
    if "constant" in table and _skill(together, together["constant"]) < FLOOR:
        return means.index.tolist()
    if overall:
        return []
    lost = means["accuracy"] - means["own"]
    return means.index[(_skill(means, means["own"]) < FLOOR) | (lost < least)].tolist()


def _skill(means: Any, constant: Any) -> Any:
    """Compute the share of the errors of a constant answer that a network avoids."""
    return (means["accuracy"] - constant) / (1 - constant)


def _present(table: DataFrame, where: Rows, column: str) -> list[Any]:
    """List the values of a column in the selected rows; levels of compressed networks only."""
    rows = _select(table, where, (column,))
    if column == "level" and "stage" in rows:
        rows = rows[rows["stage"] == "compressed"]
    if rows.empty:
        raise MissingRowsError(f"the table has no {column} where {dict(where)}")
    values = rows[column].drop_duplicates()
    return list(values.sort_values() if column == "level" else values)


def _in_cell(name: str, arguments: Rows, cell: Iterable[tuple[str, str, Any]]) -> Arguments:
    """Arguments of a statistic in one cell."""
    given = dict(arguments)
    functions = (STATISTICS[name], STATISTICS[arguments.get("of", name)])
    # A value of a cell is an argument if the statistic has one of that name, a condition otherwise.
    own = {key for function in functions for key in inspect.signature(function).parameters}
    fixed = set(given.get("against") or {})
    for side, column, value in cell:
        if side == "where" and column in own:
            given[column] = value
            continue
        given[side] = {**(given.get(side) or {}), column: value}
        if side == "where" and "against" in given and column not in fixed:
            # The rival of a cell is in the same cell, unless the claim says otherwise.
            given["against"] = {**given["against"], column: value}
    return given


def _change(
    table: DataFrame, value: str, level: float, where: Rows, rank_where: Rows | None
) -> tuple[DataFrame, DataFrame, DataFrame]:
    """Compute the change of a column against the control, by seed and group.

    Returns:
        The change, the column under the control, and the training sizes.
    """
    rows = _select(table, where, (*STUDY_COLUMNS, value))
    ranked = rows if rank_where is None else _select(table, rank_where, STUDY_COLUMNS)
    in_training = (ranked["stage"] == "control") & (ranked["split"] == "train")
    sizes = _by_seed_and_group(ranked[in_training], "size")
    test = rows[rows["split"] == "test"]
    before = _by_seed_and_group(test[test["stage"] == "control"], value)
    change = _by_seed_and_group(_compressed(test, level), value) - before
    _check_alike(change, sizes, "control (train and test) and compressed rows")
    return change, before, sizes


def _check_alike(one: DataFrame, other: DataFrame, rows: str) -> None:
    if not (one.index.equals(other.index) and one.columns.equals(other.columns)):
        raise ValueError(f"{rows} do not cover the same seeds and groups")


CHANGES = (
    accuracy_change,
    drop_correlation,
    drop_difference,
    loss_difference,
    overall_change,
    spread_change,
)
"""Statistics that compare a level with the control."""

BY_CONTRAST = (degradation_gap, group_gap, group_gap_by_chance, spread)
"""Statistics that decide a claim only by `contrast_rows`.

Chance keeps a gap above 0, and a variance of 0 is estimated with a skewed error: over ten seeds one
in ten intervals would be below 0.
"""

STATISTICS: dict[str, Callable[..., Series]] = {
    function.__name__: function
    for function in (
        accuracy_change, column_mean, degradation_gap, drop_correlation, drop_difference,
        group_correlation, group_difference, group_gap, group_gap_by_chance, level_trend,
        loss_difference, overall_accuracy, overall_change, spread, spread_change,
    )
} | {"contrast": contrast_rows}  # fmt: skip
"""Functions that turn a study table into one value per seed, by the name that a claim gives."""


def _select(table: DataFrame, where: Rows, columns: Iterable[str]) -> DataFrame:
    if missing := sorted({*columns, *where} - set(table.columns)):
        raise MissingRowsError(f"the table has no column {', '.join(missing)}")
    found, asked = np.ones(len(table), dtype=bool), []
    for column, own in where.items():
        values = own if isinstance(own, list | tuple) else [own]
        marks = [(table[column] == value).to_numpy() for value in values]
        asked += [(column, *pair) for pair in zip(values, marks, strict=True)]
        found &= np.logical_or.reduce(marks)
    # A value may occur in the table, but not together with the other conditions.
    for rows, rest in ((True, ""), (found, f" and the rest of {dict(where)}")):
        for column, value, mark in asked:
            if not (mark & rows).any():
                raise MissingRowsError(f"the table has no row with {column} = {value!r}{rest}")
    return table[found] if where else table


def _compressed(rows: DataFrame, level: float) -> DataFrame:
    """Select the compressed rows of a level, which must exist."""
    compressed = rows[rows["stage"] == "compressed"]
    # Levels of a recorded table were rounded to six digits.
    found = compressed[np.isclose(compressed["level"], level)]
    if found.empty:
        levels = sorted(compressed["level"].unique().tolist())
        raise MissingRowsError(
            f"the table has no compressed test rows at level {level}; its levels: {levels}"
        )
    return found


def _by_seed_and_group(rows: DataFrame, value: str) -> DataFrame:
    """Pivot a column to seeds in rows and groups in columns, one value for each."""
    if rows.duplicated(["seed", "group"]).any():
        measured = ["seed", "group", "size", "accuracy", "loss"]
        settings = rows.columns.difference(measured, sort=False)
        varying = [column for column in settings if rows[column].astype(str).nunique() > 1]
        raise ValueError(
            f"several rows per seed and group; select with `where` one of: {', '.join(varying)}"
        )
    return rows.pivot(index="seed", columns="group", values=value)


def _by_run_and_group(rows: DataFrame, value: str) -> DataFrame:
    """Pivot a column to runs in rows and groups in columns, the same runs for all seeds."""
    run = [*RUN_COLUMNS, *(name for name in ARM_COLUMNS if name in rows)]
    if rows.duplicated([*run, "group"]).any():
        raise ValueError(
            "several rows per run and group; select one split, setting and mitigation with `where`"
        )
    values = rows.pivot(index=run, columns="group", values=value)
    # Means over runs would compare different runs of different seeds.
    runs = values.index.droplevel("seed").value_counts()
    if (
        values.isna().any(axis=None)
        or (runs < values.index.get_level_values("seed").nunique()).any()
    ):
        raise ValueError(
            f"the column {value} has a missing value, or a seed lacks a run that another has"
        )
    return values


def _values_and_sizes(rows: DataFrame, column: str, rank: str) -> tuple[DataFrame, DataFrame]:
    rows = _select(rows, ALL, ("seed", "group", column, rank))
    return _by_seed_and_group(rows, column), _by_seed_and_group(rows, rank)


def _ends(values: DataFrame, sizes: DataFrame, share: float) -> DataFrame:
    """Average the values of the smallest, of the largest, and of all but the largest groups.

    This is the one place that decides which groups these are.

    Args:
        values: Seeds in rows, groups in columns.
        sizes: Sizes of the groups, in the same rows and columns.
        share: Share of the groups at each end, rounded up to a whole number of groups.
    """
    count = math.ceil(share * len(values.columns))
    if not 1 <= count <= len(values.columns) / 2:
        raise ValueError(
            f"a share of {share} of {len(values.columns)} groups leaves no smallest and largest "
            "apart"
        )
    ranked = _ranked(values, sizes)
    parts = {"smallest": slice(count), "largest": slice(-count, None), "others": slice(-count)}
    means = {name: ranked[:, part].mean(axis=1) for name, part in parts.items()}
    return DataFrame(means, values.index)


def _ranked(values: DataFrame, sizes: DataFrame) -> np.ndarray:
    """Sort the values of each seed from the smallest to the largest group."""
    # Groups of equal size have an order drawn by the seed. By name it would be the same group in
    # every seed, and whatever sets that group apart would pass for an effect of size.
    draws = [
        np.random.default_rng(int(seed)).permutation(len(sizes.columns)) for seed in sizes.index
    ]
    order = np.lexsort((np.stack(draws), sizes.to_numpy()))
    return np.take_along_axis(values.to_numpy(), order, axis=1)
