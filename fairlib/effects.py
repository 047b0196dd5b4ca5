"""What compression does to groups, as one number for each seed: from a study table to what a claim is tested on."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from fairlib._validation import lookup
from fairlib.statistics import accuracies_by_chance

STUDY = ("seed", "stage", "split", "level", "group", "size")
"""The columns of a study table that its statistics need, beside the one that they measure."""

RUN = ("seed", "stage", "level", "when")
"""The columns that tell the runs of one study, with one mitigation, from each other."""

ARMS = ("arm", "pruner")
"""Columns that name the arms of a study, and so tell its runs from each other too, where a table has them."""


class MissingRowsError(ValueError):
    """A table that lacks the columns or rows that a statistic is of: it belongs to another run."""


def select(table: pd.DataFrame, **where: Any) -> pd.DataFrame:
    """Some rows of a table: ``select(study, stage="compressed", split="test", level=[0.5, 0.9])``.

    Args:
        table: any table.
        where: values of columns; of a list, any of its values.

    Raises:
        ValueError: If there is no such column, or no row with one of the values.
    """
    return _select(table, where, ())


def attach(table: pd.DataFrame, name: str, *, column: str, on: Iterable[str], where: Mapping[str, Any]) -> pd.DataFrame:
    """The table with a column more: what a column is in those rows that ``where`` selects and that agree on ``on``.

    So the size that a group has in the training part stands beside its row of the test part:
    ``attach(study, "train_size", column="size", on=["seed", "group"], where={"stage": "dense", "split": "train"})``.

    Args:
        table: any table.
        name: name of the new column.
        column: the column that is looked up.
        on: the columns by which a row finds the other one.
        where: values of columns that select the other rows.

    Returns:
        A new table; NaN where a row finds no other.

    Raises:
        ValueError: If a column is missing, or rows that agree on ``on`` have different values.
    """
    on = list(on)
    found = _select(table, where, (*on, column))[[*on, column]].drop_duplicates()
    if found.duplicated(on).any():
        raise ValueError(f"several values of {column} where {', '.join(on)} are the same; select rows with `where`")
    return table.join(found.set_index(on)[column].rename(name), on=on)


def price(table: pd.DataFrame) -> pd.Series:
    """What was paid beside the dense training, row by row, in dense trainings: gradients over those of the dense - 1.

    The dense network of a seed is the one with the fewest gradients: one that no constraint made dearer.

    Args:
        table: a study table with the diagnostic ``gradients`` and the dense networks.

    Returns:
        Series with the index of the table.

    Raises:
        ValueError: If a column or the dense rows are missing.
    """
    dense = _select(table, {"stage": "dense"}, ("seed", "gradients")).groupby("seed")["gradients"].min()
    return (table["gradients"] / table["seed"].map(dense) - 1).rename("price")


def by_level(
    table: pd.DataFrame, *, of: str, where: Mapping[str, Any] | None = None, control: bool = False, **arguments: Any
) -> pd.DataFrame:
    """A statistic at every level of a study.

    Args:
        table: a study table.
        of: name of one of `STATISTICS` that takes a ``level`` or a ``where``; the latter is computed of the test part
            unless ``where`` names another.
        where: values of columns that select the rows.
        control: also compute it of the control, at its level; for statistics that are no change against the control.
        arguments: further ones of the statistic.

    Returns:
        DataFrame with seeds in rows and levels in columns, as :func:`fairlib.plots.by_level` draws it.

    Raises:
        ValueError: As the statistic, or if its name is unknown.
    """
    function, where = lookup("statistic", of, STATISTICS), dict(where or {})
    chosen = _select(table, where, ("stage", "level"))
    levels = sorted(set(chosen.loc[chosen["stage"] == "compressed", "level"]))
    if function in CHANGES:
        return pd.DataFrame({level: function(table, level=level, where=where, **arguments) for level in levels})
    stages = dict.fromkeys(chosen.loc[chosen["stage"] == "control", "level"] if control else [], "control")
    stages |= dict.fromkeys(levels, "compressed")
    at = {level: {"split": "test"} | where | {"stage": stage, "level": level} for level, stage in stages.items()}
    return pd.DataFrame({level: function(table, where=at[level], **arguments) for level in sorted(at)})


def drop_difference(
    table: pd.DataFrame,
    *,
    level: float,
    share: float = 1 / 3,
    relative: bool = False,
    where: Mapping[str, Any] | None = None,
    rank_where: Mapping[str, Any] | None = None,
) -> pd.Series:
    """How much more test accuracy the smallest groups lose than the largest, by seed.

    The drop of a group is its accuracy under the ratio-0 control of the same seed minus its accuracy
    compressed at ``level``; the value is the mean drop of the smallest groups minus that of the largest.

    Args:
        table: a study table.
        level: the compression level that is compared with the control.
        share: of the k groups, the ceil(share * k) smallest and as many largest are taken, by their size in
            the *training* split of the seed; ties are broken at random by the seed, never by name.
        relative: drops as shares of the accuracy that these groups, on average, have under the control: the relative
            drop of [D], which of single groups is undefined where one is never right.
        where: values of columns that select the rows, for instance ``{"setting": "equal"}``.
        rank_where: the same for the rows whose sizes rank the groups; by default those of ``where``. A control with
            equal sizes is ranked by the sizes that the same groups have, with the same seed, in the unequal setting:
            so it would show whatever else singles these groups out.

    Returns:
        Series indexed by seed.

    Raises:
        ValueError: If a column, the level or the control is missing, a seed is incomplete, or the selection
            holds several runs per seed.
    """
    largest, smallest = (
        accuracy_change(
            table, level=level, groups=groups, share=share, relative=relative, where=where, rank_where=rank_where
        )
        for groups in ("largest", "smallest")
    )
    return largest - smallest


def loss_difference(
    table: pd.DataFrame,
    *,
    level: float,
    share: float = 1 / 3,
    where: Mapping[str, Any] | None = None,
    rank_where: Mapping[str, Any] | None = None,
) -> pd.Series:
    """How much more test loss (nats) the smallest groups gain than the largest, by seed.

    As `drop_difference`, with the rise of the mean cross-entropy of a group in place of its drop of accuracy: positive
    where the small pay, in both. The two can disagree in sign, since a loss has no upper end.

    Args:
        table, level, share, where, rank_where: as in `drop_difference`.

    Returns:
        Series indexed by seed.

    Raises:
        ValueError: As `drop_difference`.
    """
    smallest, largest = (
        _change(table, "loss", level, groups, share, where, rank_where) for groups in ("smallest", "largest")
    )
    return smallest - largest


def accuracy_change(
    table: pd.DataFrame,
    *,
    level: float,
    groups: str,
    share: float = 1 / 3,
    relative: bool = False,
    where: Mapping[str, Any] | None = None,
    rank_where: Mapping[str, Any] | None = None,
) -> pd.Series:
    """Test accuracy at ``level`` minus that of the control, by seed, for the smallest or the largest groups.

    Args:
        table, level, share, relative, where, rank_where: as in `drop_difference`.
        groups: ``"smallest"`` or ``"largest"``.

    Returns:
        Series indexed by seed.

    Raises:
        ValueError: As `drop_difference`, or if ``groups`` is unknown, or a relative change would be one of nothing.
    """
    return _change(table, "accuracy", level, groups, share, where, rank_where, relative)


def group_difference(
    table: pd.DataFrame, *, column: str, rank: str = "train_size", share: float = 1 / 3, where: Mapping[str, Any]
) -> pd.Series:
    """The mean of a column over the smallest groups minus that over the largest, by seed.

    Args:
        table: one row per seed and group, once ``where`` has selected.
        column: whose mean is taken.
        rank: the column of sizes that ranks the groups; ties are broken at random by the seed.
        share: as in `drop_difference`.
        where: values of columns that select the rows.

    Returns:
        Series indexed by seed.

    Raises:
        ValueError: If a column is missing or the selection holds several rows per seed and group.
    """
    found = extremes(_select(table, where, ()), column=column, rank=rank, share=share)
    return (found["smallest"] - found["largest"]).rename("value")


def extremes(table: pd.DataFrame, *, column: str, rank: str = "train_size", share: float = 1 / 3) -> pd.DataFrame:
    """The means of a column over the smallest and over the largest groups, by seed.

    Args:
        table: one row per seed and group.
        column, rank, share: as in `group_difference`.

    Returns:
        DataFrame with seeds in rows and the columns ``smallest`` and ``largest``.

    Raises:
        ValueError: As `group_difference`.
    """
    rows, ends = _select(table, {}, ("seed", "group", column, rank)), {"smallest": True, "largest": False}
    values, sizes = (_by_seed_and_group(rows, name) for name in (column, rank))
    return pd.DataFrame({end: _extreme(values, sizes, share, smallest=first) for end, first in ends.items()})


def groups_by_size(
    table: pd.DataFrame, *, column: str, rank: str = "train_size", where: Mapping[str, Any] | None = None
) -> pd.DataFrame:
    """A column over the groups from the smallest to the largest, whichever these are with each seed.

    Args:
        table, column, rank, where: as in `group_difference`.

    Returns:
        DataFrame with seeds in rows and ranks in columns, each named by the mean size over the seeds.

    Raises:
        ValueError: As `group_difference`.
    """
    rows = _select(table, where or {}, ("seed", "group", column, rank))
    values, sizes = (_by_seed_and_group(rows, name) for name in (column, rank))
    order = np.stack([_by_size(row.to_numpy(), seed) for seed, row in sizes.iterrows()])
    values, means = (np.take_along_axis(frame.to_numpy(), order, axis=1) for frame in (values, sizes))
    return pd.DataFrame(values, index=sizes.index, columns=pd.Index(means.mean(axis=0), name=rank))


def group_correlation(table: pd.DataFrame, *, x: str, y: str, where: Mapping[str, Any]) -> pd.Series:
    """Spearman's rank correlation of two columns over the groups, by seed; never pooled over seeds.

    Args:
        table: one row per seed and group, once ``where`` has selected.
        x, y: names of columns.
        where: values of columns that select the rows.

    Returns:
        Series indexed by seed, in [-1, 1].

    Raises:
        ValueError: If a column is missing, the selection holds several rows per seed and group, there are fewer than
            three groups, or a column is missing a value or constant over the groups of a seed.
    """
    rows = _select(table, where, ("seed", "group", x, y))
    ranks = [_by_seed_and_group(rows, name).rank(axis=1) for name in (x, y)]
    if len(ranks[0].columns) < 3:
        raise ValueError(f"a correlation over groups needs three groups, got {len(ranks[0].columns)}")
    for name, values in zip((x, y), ranks, strict=True):
        if values.isna().any(axis=None) or (values.nunique(axis=1) < 2).any():
            raise ValueError(f"the column {name} has a missing value or is constant over the groups of a seed")
    return ranks[0].corrwith(ranks[1], axis=1).rename("value")


def column_mean(table: pd.DataFrame, *, column: str, where: Mapping[str, Any] | None = None) -> pd.Series:
    """The mean of a column over the rows of each seed: for tables that hold what is tested.

    Args:
        table: one row or more per seed, once ``where`` has selected.
        column: whose mean is taken.
        where: values of columns that select the rows.

    Returns:
        Series indexed by seed.

    Raises:
        ValueError: If a column is missing or a value is.
    """
    rows = _select(table, where or {}, ("seed", column))
    if rows[column].isna().any():
        raise ValueError(f"the column {column} has missing values")
    return rows.groupby("seed")[column].mean().astype(float).rename("value")


def spread_change(table: pd.DataFrame, *, level: float, where: Mapping[str, Any] | None = None) -> pd.Series:
    r"""How much more the groups' test accuracies vary than under the control, by seed, without what sampling adds.

    The gap between the best and the worst of several noisy accuracies is large by chance alone, and the larger the
    lower they are. The variance between k groups can be freed of that exactly: with accuracy :math:`A_a` on
    :math:`n_a` test samples and :math:`\bar A` the mean over groups,

    .. math::
        V = \frac{1}{k-1} \sum_a (A_a - \bar A)^2 - \frac1k \sum_a \frac{A_a (1 - A_a)}{n_a - 1}

    is an unbiased estimate of the variance of the true accuracies, whatever they are; it may be negative. The value is
    V at ``level`` minus V of the control. Two groups whose accuracies lie d apart have a V of :math:`d^2 / 2`.

    Args:
        table, level, where: as in `drop_difference`.

    Returns:
        Series indexed by seed.

    Raises:
        ValueError: As `drop_difference`, or if there is only one group, or one with fewer than two test samples.
    """
    rows = _select(table, where or {}, (*STUDY, "accuracy"))
    rows = rows[rows["split"] == "test"]
    parts = _compressed(rows, level), rows[rows["stage"] == "control"]
    (after, sizes), (before, _) = ([_by_seed_and_group(part, name) for name in ("accuracy", "size")] for part in parts)
    if not (after.index.equals(before.index) and after.columns.equals(before.columns)):
        raise ValueError("control and compressed rows do not cover the same seeds and groups")
    if len(after.columns) < 2 or not (sizes >= 2).all(axis=None):
        raise ValueError("a variance between groups needs two groups or more, with two test samples or more in each")
    return (_variance_between(after, sizes) - _variance_between(before, sizes)).rename("value")


def _variance_between(accuracy: pd.DataFrame, sizes: pd.DataFrame) -> pd.Series:
    sampling = (accuracy * (1 - accuracy) / (sizes - 1)).mean(axis=1, skipna=False)
    return accuracy.var(axis=1, ddof=1, skipna=False) - sampling


def group_gap(
    table: pd.DataFrame, *, where: Mapping[str, Any], column: str = "accuracy", relative: bool = False
) -> pd.Series:
    r"""How far apart the groups lie: :math:`\max_a x_a - \min_a x_a`, by seed, the mean over the runs selected.

    Of test accuracies it is what the experiments of [T] call the fairness violation. It is large by chance alone, the
    larger the smaller the groups and the nearer to one another the true values: one gap says little, and the difference
    of two gaps of the same groups (`contrast`) is, in expectation, nearer to zero than that of the true ones.

    Args:
        table: one row per run and group, once ``where`` has selected; a run is a seed, stage, level and time of
            mitigation.
        where: values of columns that select the rows.
        column: :math:`x`.
        relative: divide by the mean of :math:`x` over the groups, which must be positive: for columns whose scale
            changes from run to run.

    Returns:
        Series indexed by seed.

    Raises:
        ValueError: If a column or a value is missing, a run has several rows for a group, the seeds do not have the
            same runs, or a mean to divide by is not positive.
    """
    values = _by_run_and_group(_select(table, where, (*RUN, "group", column)), column)
    gaps, means = values.max(axis=1) - values.min(axis=1), values.mean(axis=1)
    if relative and not (means > 0).all():
        raise ValueError(f"a relative gap needs a positive mean over the groups; that of {column} is not in some run")
    return (gaps / means if relative else gaps).groupby("seed").mean().rename("value")


def group_gap_by_chance(table: pd.DataFrame, *, where: Mapping[str, Any], draws: int = 200, seed: int = 0) -> pd.Series:
    """The gap of test accuracies if all groups of a run had its overall accuracy, by seed, the mean over the runs.

    Args:
        table, where: as in `group_gap`.
        draws: how many times the accuracies of a run's groups are drawn
            (:func:`fairlib.statistics.accuracies_by_chance`); the gap is the mean over these.
        seed: of the draws.

    Returns:
        Series indexed by seed.

    Raises:
        ValueError: As `group_gap`, or if a group of a run has no samples.
    """
    rows = _select(table, where, (*RUN, "group", "size", "accuracy"))
    accuracy, sizes = (_by_run_and_group(rows, name) for name in ("accuracy", "size"))
    generator = np.random.default_rng(seed)
    gaps = {}
    for run, counts in sizes.iterrows():
        overall = np.average(accuracy.loc[run], weights=counts)
        drawn = accuracies_by_chance(counts, overall, draws=draws, seed=generator)
        gaps[run] = np.ptp(drawn, axis=1).mean()
    gaps = pd.Series(gaps).rename_axis(sizes.index.names)
    return gaps.groupby("seed").mean().rename("value")


def overall_accuracy(table: pd.DataFrame, *, where: Mapping[str, Any]) -> pd.Series:
    r"""The accuracy over all samples, :math:`\sum_a n_a A_a / \sum_a n_a`, by seed, the mean over the runs selected.

    Args:
        table, where: as in `group_gap`.

    Returns:
        Series indexed by seed.

    Raises:
        ValueError: As `group_gap`.
    """
    rows = _select(table, where, (*RUN, "group", "size", "accuracy"))
    accuracy, sizes = (_by_run_and_group(rows, name) for name in ("accuracy", "size"))
    if not (sizes.sum(axis=1) > 0).all():
        raise ValueError("an overall accuracy needs groups with samples")
    return ((accuracy * sizes).sum(axis=1) / sizes.sum(axis=1)).groupby("seed").mean().rename("value")


def overall_change(table: pd.DataFrame, *, level: float, where: Mapping[str, Any] | None = None) -> pd.Series:
    """Test accuracy over all samples at ``level`` minus that of the control, by seed.

    Args:
        table, level, where: as in `drop_difference`.

    Returns:
        Series indexed by seed.

    Raises:
        ValueError: As `overall_accuracy`.
    """
    test = {"split": "test"} | dict(where or {})
    after = overall_accuracy(table, where=test | {"stage": "compressed", "level": level})
    return after - overall_accuracy(table, where=test | {"stage": "control"})


def by_run(table: pd.DataFrame, keys: Iterable[str]) -> pd.DataFrame:
    r"""The overall accuracy and the gap of every run of a study.

    Args:
        table: a study table, or rows of it.
        keys: the columns that tell its runs from each other: split, level and seed, say.

    Returns:
        One row per run, in the order of the table: ``keys``, ``accuracy`` :math:`\sum_a n_a A_a / \sum_a n_a`,
        ``bias`` :math:`\max_a A_a - \min_a A_a`, and ``signed``, the accuracy of the first group by name minus that of
        the last, which of two groups has a sign and no bias upwards. A group without samples does not count.

    Raises:
        ValueError: If a column is missing, a key or the accuracy of a group with samples is, or a run has several rows
            for a group.
    """
    keys = list(keys)
    rows = _select(table, {}, (*keys, "group", "size", "accuracy"))
    rows = rows[rows["size"] > 0]
    if empty := [name for name in (*keys, "accuracy") if rows[name].isna().any()]:
        raise ValueError(f"the column {empty[0]} has missing values")
    if rows.duplicated([*keys, "group"]).any():
        raise ValueError(f"several rows per group where {', '.join(keys)} are the same")
    order = rows[keys].drop_duplicates()
    rows = rows.sort_values("group", kind="stable")
    runs = rows.assign(right=rows["accuracy"] * rows["size"]).groupby(keys, sort=False)
    sums, accuracy = runs[["right", "size"]].sum(), runs["accuracy"]
    found = pd.DataFrame({"accuracy": sums["right"] / sums["size"], "bias": accuracy.max() - accuracy.min()})
    found["signed"] = accuracy.first() - accuracy.last()
    return order.merge(found.reset_index(), on=keys, how="left")


def by_arm(table: pd.DataFrame, keys: Iterable[str]) -> pd.DataFrame:
    """What the groups of a study have under each of its arms, by seed.

    Args:
        table: rows of one stage of a study, with its test and its training part.
        keys: the columns that tell the arms from each other.

    Returns:
        One row per arm and seed, arms in the order of the table: ``keys``, ``seed``, ``accuracy``, ``gap`` and
        ``gap_by_chance`` of the test part (`overall_accuracy`, `group_gap`, `group_gap_by_chance`), ``loss_gap``, the
        gap of the losses in the training part, and ``smallest`` and ``largest``, test accuracies of the smallest and
        of the largest groups by their size in the training part (`extremes`).

    Raises:
        ValueError: As these statistics, or if a part is missing.
    """
    keys, found = list(keys), {}
    table = attach(table, "trained_on", column="size", on=[*keys, "seed", "group"], where={"split": "train"})
    for arm, rows in table.groupby(keys, sort=False):
        test = _select(rows, {"split": "test"}, ())
        parts = {"accuracy": overall_accuracy(test, where={}), "gap": group_gap(test, where={})}
        parts["gap_by_chance"] = group_gap_by_chance(test, where={})
        parts["loss_gap"] = group_gap(rows, where={"split": "train"}, column="loss")
        found[arm] = pd.DataFrame(parts).join(extremes(test, column="accuracy", rank="trained_on"))
    return pd.concat(found, names=[*keys, "seed"]).reset_index()


def contrast(
    table: pd.DataFrame, *, of: str, where: Mapping[str, Any], against: Mapping[str, Any], **arguments: Any
) -> pd.Series:
    """A statistic of some rows minus the same statistic of others, by seed: one pruner against another, say.

    Args:
        table: a study table.
        of: name of one of `STATISTICS`.
        where: values of columns that select the rows.
        against: the same for the rows whose value is subtracted.
        arguments: further ones of the statistic.

    Returns:
        Series indexed by seed.

    Raises:
        ValueError: If the statistic is unknown, the two do not cover the same seeds, or not the same groups where gaps
            or overall accuracies are compared, or as the statistic.
    """
    function = lookup("statistic", of, STATISTICS)
    if function in (group_gap, overall_accuracy):
        sides = [set(_select(table, rows, ("group",))["group"]) for rows in (where, against)]
        if sides[0] != sides[1]:
            raise ValueError(f"the rows of {dict(where)} and of {dict(against)} do not cover the same groups")
    one, other = function(table, where=where, **arguments), function(table, where=against, **arguments)
    if not one.index.equals(other.index):
        raise ValueError(f"the rows of {dict(where)} and of {dict(against)} do not cover the same seeds")
    return one - other


def level_trend(
    table: pd.DataFrame,
    *,
    statistic: str,
    control: float = 0.0,
    where: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> pd.Series:
    """How steadily a statistic grows as the level moves away from the control: Spearman's rank correlation, by seed.

    Args:
        table: a study table with three levels or more.
        statistic: name of one of `STATISTICS` that takes a ``level``.
        control: the level of the control, 0 of pruning and 1 of linearization.
        where: values of columns that select the rows.
        arguments: further ones of the statistic.

    Returns:
        Series indexed by seed, in [-1, 1]; 0 for a seed in which the statistic is the same at all levels.

    Raises:
        ValueError: If the statistic is unknown, there are fewer than three levels, or as the statistic.
    """
    function = lookup("statistic", statistic, STATISTICS)
    rows = _select(table, where or {}, STUDY)
    levels = sorted(set(rows.loc[rows["stage"] == "compressed", "level"]), key=lambda level: abs(level - control))
    if len(levels) < 3:
        raise MissingRowsError(f"a trend over levels needs three of them, got {levels}")
    values = pd.DataFrame(
        [function(table, level=level, where=where, **arguments).rename(place) for place, level in enumerate(levels)]
    )
    order = pd.Series(values.index, index=values.index, dtype=float)
    constant = values.nunique() < 2
    return (
        values.loc[:, ~constant]
        .corrwith(order, method="spearman")
        .reindex(values.columns, fill_value=0.0)
        .rename("value")
    )


def _change(
    table: pd.DataFrame,
    value: str,
    level: float,
    groups: str,
    share: float,
    where: Mapping[str, Any] | None,
    rank_where: Mapping[str, Any] | None,
    relative: bool = False,
) -> pd.Series:
    """The mean change of a column against the control, for the smallest or the largest groups, by seed."""
    take_first = lookup("choice of groups", groups, {"smallest": True, "largest": False})
    rows = _select(table, where or {}, (*STUDY, value))
    controls, test = rows["stage"] == "control", rows["split"] == "test"
    ranked = rows if rank_where is None else _select(table, rank_where, STUDY)
    sizes = _by_seed_and_group(ranked[(ranked["stage"] == "control") & (ranked["split"] == "train")], "size")
    before = _by_seed_and_group(rows[controls & test], value)
    change = _by_seed_and_group(_compressed(rows[test], level), value) - before
    if not (change.index.equals(sizes.index) and change.columns.equals(sizes.columns)):
        raise ValueError("control (train and test) and compressed rows do not cover the same seeds and groups")
    mean = _extreme(change, sizes, share, smallest=take_first)
    if not relative:
        return mean
    base = _extreme(before, sizes, share, smallest=take_first)
    if not (base > 0).all():
        raise ValueError(f"a relative change of the {groups} groups needs an {value} above 0 under the control")
    return mean / base


STATISTICS: dict[str, Callable[..., pd.Series]] = {
    "accuracy_change": accuracy_change,
    "column_mean": column_mean,
    "contrast": contrast,
    "drop_difference": drop_difference,
    "group_correlation": group_correlation,
    "group_difference": group_difference,
    "group_gap": group_gap,
    "group_gap_by_chance": group_gap_by_chance,
    "level_trend": level_trend,
    "loss_difference": loss_difference,
    "overall_accuracy": overall_accuracy,
    "overall_change": overall_change,
    "spread_change": spread_change,
}
"""By name: from a study table and the arguments of a claim to one value per seed."""

CHANGES = (accuracy_change, drop_difference, loss_difference, overall_change, spread_change)
"""Those that compare a level with the control."""


def _select(table: pd.DataFrame, where: Mapping[str, Any], columns: Iterable[str]) -> pd.DataFrame:
    if missing := sorted({*columns, *where} - set(table.columns)):
        raise MissingRowsError(f"the table has no column {', '.join(missing)}")
    for column, wanted in where.items():
        values = list(wanted) if isinstance(wanted, list | tuple) else [wanted]
        for value in values:
            if not (table[column] == value).any():
                raise MissingRowsError(f"the table has no row with {column} = {value!r}")
        table = table[table[column].isin(values)]
    for column, wanted in where.items():
        lost = [value for value in wanted if not (table[column] == value).any()] if isinstance(wanted, list) else []
        if lost or table.empty:
            raise MissingRowsError(
                f"the table has no row with {column} = {(lost or [wanted])[0]!r} and the rest of {dict(where)}"
            )
    return table


def _compressed(rows: pd.DataFrame, level: float) -> pd.DataFrame:
    """The compressed rows of a level, which must exist."""
    compressed = rows[rows["stage"] == "compressed"]
    found = compressed[np.isclose(compressed["level"], level)]
    if found.empty:
        levels = sorted(compressed["level"].unique().tolist())
        raise MissingRowsError(f"the table has no compressed test rows at level {level}; its levels: {levels}")
    return found


def _by_seed_and_group(rows: pd.DataFrame, value: str) -> pd.DataFrame:
    """Seeds in rows, groups in columns, both sorted; exactly one value for each."""
    doubled = rows.duplicated(["seed", "group"])
    if doubled.any():
        settings = rows.columns.difference(["seed", "group", "size", "accuracy", "loss"], sort=False)
        varying = [column for column in settings if rows[column].astype(str).nunique() > 1]
        raise ValueError(f"several rows per seed and group; select with `where` one of: {', '.join(varying)}")
    return rows.pivot(index="seed", columns="group", values=value)


def _by_run_and_group(rows: pd.DataFrame, value: str) -> pd.DataFrame:
    """Runs in rows, groups in columns; exactly one value for each, and the same runs for all seeds."""
    run = [*RUN, *(name for name in ARMS if name in rows)]
    if rows.duplicated([*run, "group"]).any():
        raise ValueError("several rows per run and group; select one split, setting and mitigation with `where`")
    values = rows.pivot(index=run, columns="group", values=value)
    runs = values.index.droplevel("seed").value_counts()
    if values.isna().any(axis=None) or (runs < values.index.get_level_values("seed").nunique()).any():
        raise ValueError(f"the column {value} has a missing value, or a seed lacks a run that another has")
    return values


def _extreme(values: pd.DataFrame, sizes: pd.DataFrame, share: float, *, smallest: bool) -> pd.Series:
    """By seed, the mean over the smallest or the largest groups. Seeds stand in rows, groups in columns."""
    count = math.ceil(share * len(values.columns))
    if not 1 <= count <= len(values.columns) / 2:
        raise ValueError(f"a share of {share} of {len(values.columns)} groups leaves no smallest and largest apart")
    chosen = {}
    for seed, row in values.iterrows():
        order = _by_size(sizes.loc[seed].to_numpy(), seed)
        chosen[seed] = row.iloc[order[:count] if smallest else order[-count:]].mean(skipna=False)
    return pd.Series(chosen, name="value").rename_axis("seed")


def _by_size(sizes: np.ndarray, seed: int) -> np.ndarray:
    """Positions from the smallest to the largest group; ties in an order drawn by the seed."""
    return np.lexsort((np.random.default_rng(int(seed)).permutation(len(sizes)), sizes))
