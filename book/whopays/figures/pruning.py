"""Figures of the part on pruning, each of one page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from pandas import DataFrame, Series

from whopays import effects, pages, plots, tables
from whopays.effects import Arguments, Rows
from whopays.plots import MARKERS, PALETTE, legend, new_figure

UNEQUAL = {"setting": "unequal"}
"""Rows whose sizes rank the groups of both settings."""

POPULATIONS = {"pruned": "dense and pruned", "dense": "dense and dense (null)"}
MEASURES = {
    "drops of accuracy": "drop_difference",
    "rises of loss (nats)": "loss_difference",
}
"""Statistics that say who pays, by what is measured."""

WAYS = {
    "prune": "pruned, {:g}",
    "quantize": "{:g} bits",
    "prune + quantize": "pruned, {:g}, rest in 4 bits",
    "factorize": "thin layers, {:g}",
    "linearize": "ReLUs, {:g}",
}
"""Names of the arms of *People or answers?*, with the level to be filled in."""

_PAYS = {
    "overall_change": "change of the average accuracy\nagainst the control",
    "drop_difference": plots.DROPS,
}


def small_beside_large(
    study: DataFrame, *, column: str = "accuracy", **where: Any
) -> dict[str, Series]:
    """Compute what the smallest group loses beside the largest, in points, by way and level.

    Args:
        study: Table with the arms of :data:`WAYS`.
        column: Name of the column that falls (:func:`whopays.effects.drop_difference`).
        where: Values of columns that select the rows, ``group`` among them to compare two of many.
    """
    rows = effects.select(study, stage="compressed", **where)
    found = {}
    for arm, level in rows[["arm", "level"]].drop_duplicates().itertuples(index=False):
        drops = effects.drop_difference(
            study, level=level, share=0.1, column=column, where={**where, "arm": arm}
        )
        found[WAYS[arm].format(level)] = 100 * drops
    return found


def who_pays(study: DataFrame, questions: Mapping[str, Rows]) -> Figure:
    """Draw what small groups lose beside large ones: a row a way, a colour a question.

    The grey band is the margin of the claims: within 3 points we speak of no effect.

    Args:
        study: Table with the arms of :data:`WAYS`.
        questions: By name the values of columns that select the rows (:func:`small_beside_large`).
    """
    values = {name: small_beside_large(study, **rows) for name, rows in questions.items()}
    ways = dict.fromkeys(way for own in values.values() for way in own)
    rows = {way: {name: own[way] for name, own in values.items() if way in own} for way in ways}
    figure, (axis,) = new_figure(height=1.6 + 0.42 * len(rows))
    axis.axvspan(-3, 3, color="#eeeeee", zorder=0)
    plots.intervals(axis, rows)
    axis.set_xlabel("points of accuracy that the small group loses beyond the large one")
    legend(figure)
    return figure


def each_group(study: DataFrame) -> Figure:
    """Draw the change against the control for each group, with unequal and with equal sizes."""
    where = UNEQUAL | {"stage": "control", "split": "train"}
    ranked = effects.attach(study, {"unequal_size": "size"}, on=["seed", "group"], where=where)
    rows = pages.dropped(ranked, "setting")
    # A group has one name in the legend of both panels.
    rows = rows.assign(change=-rows["drop"], train_size=rows["unequal_size"])
    figure, axes = new_figure(2, height=4.2, sharey=True)
    for axis, setting in zip(axes, ("unequal", "equal"), strict=True):
        own = effects.select(rows, setting=setting)
        plots.groups(axis, own, "change")
        axis.axhline(0, color="#555555", linewidth=0.8)
        axis.set_title(f"{setting} group sizes")
        plots.floor(axis, study, setting=setting)
    plots.accuracy(axes[0].yaxis, plots.CHANGE_LABEL)
    legend(figure, "race (training images where sizes are unequal)")
    return figure


def size_differences(study: DataFrame) -> DataFrame:
    """Compute how much more the smallest group loses than the largest, with both sizes, by level.

    Returns:
        Means with intervals over seeds: the difference with unequal and with equal sizes, the
        second minus the first, and the share of the mean difference that remains.
    """
    rows: tables.Contents = {}
    for level in sorted(set(effects.select(study, stage="compressed")["level"])):
        own, even = (
            effects.drop_difference(
                study, level=level, share=0.1, where={"setting": name}, rank_where=UNEQUAL
            )
            for name in ("unequal", "equal")
        )
        rows[level] = {"unequal sizes": own, "equal sizes": even, "equal minus unequal": even - own}
        rows[level]["share that remains"] = even.mean() / own.mean()
    return tables.means(rows, names="sparsity")


def exemplar_shares(table: DataFrame) -> Figure:
    """Draw the share of samples that change sides, a row for every group, the largest first."""
    figure, (axis,) = new_figure(height=1.6 + 0.35 * table["group"].nunique())
    rows = table.assign(compared=table["population"].map(POPULATIONS))
    label = "the group's test samples that change sides"
    plots.by_name(axis, rows, "share", label, by="compared")
    axis.set_xlim(left=0)
    legend(figure, f"compared, {100 * (1 - table['level'].iloc[0]):.3g} % of the weights kept")
    return figure


def by_removal(study: DataFrame) -> Figure:
    """Draw the average and the difference of drops, a line for each way to prune."""
    sizes = effects.select(study, split="train", stage="control")["size"]
    return paid(study, "arm", f"groups of {sizes.min()} to {sizes.max()} training images")


def paid(study: DataFrame, by: str, title: str = "", labels: Mapping[str, str] = _PAYS) -> Figure:
    """Draw statistics over the weights kept, the average and the difference of drops by default.

    Args:
        study: Table of :func:`fairlib.study`.
        by: Name of the column whose values are the lines.
        title: Title of the legend, the name of the column by default.
        labels: Label of a panel by its statistic.
    """
    figure, axes = new_figure(len(labels))
    for axis, (of, label) in zip(axes, labels.items(), strict=True):
        found = {str(name): values for name, values in by_part(study, by, of).items()}
        plots.over_levels(axis, study, found)
        plots.measured(axis.yaxis, of, label)
    legend(figure, title or by)
    return figure


def pruned_or_small(study: DataFrame) -> Figure:
    """Draw average and difference of drops over the weights kept, a line for each network."""
    figure = paid(study, "network")
    pruned = effects.select(study, network="pruned", stage="compressed")
    kept = pruned.groupby("level")["weights"].min()
    for axis in figure.axes:
        ticks = [f"{100 - 100 * at:.3g}\n{kept[at]:,}" for at in axis.get_xticks()]
        axis.set_xticks(axis.get_xticks(), ticks)
        axis.set_xlabel("weights kept, in %, and their number")
    return figure


def pruned_minus_small(study: DataFrame) -> DataFrame:
    """List the contrast of a pruned and a small network by level, with its p-value."""
    pruned, small = by_part(study, "network").values()
    return tables.tested(dict(pruned - small), "pruned minus small dense", names="sparsity")


def against_full_width(study: DataFrame, task: str, length: int) -> DataFrame:
    """Compare other widths with width 1, at one sparsity and at one number of weights left.

    Args:
        study: Recorded table of the page on weights per task.
        task: Name of the task.
        length: Epochs of finetuning.
    """
    rows = effects.select(study, task=task, finetune_epochs=length)
    found = by_part(rows, "width")
    number = rows.groupby(["width", "level"])["weights"].first()
    full = found.pop(1.0)
    known = np.log(number[1.0][list(full)].to_numpy())[::-1]
    table: tables.Contents = {}
    for width, values in found.items():
        for level, own in values.items():
            at = np.log(number[width, level])
            same = [np.interp(at, known, row[::-1]) for row in full.to_numpy()]
            table[width, level] = {
                "weights left": number[width, level],
                "minus width 1, same sparsity": own - full[level],
                # Beyond the sparsities of width 1 there is nothing to interpolate between.
                "minus width 1, same number": own - same if known[0] <= at <= known[-1] else None,
            }
    return tables.means(table, names=[f"width, {task}", "sparsity"])


def by_part(rows: DataFrame, column: str, of: str = "drop_difference") -> dict[Any, DataFrame]:
    """Compute a statistic at every sparsity, for each value of a column."""
    return {at: effects.by_level(part, of=of) for at, part in rows.groupby(column)}


def by_width(study: DataFrame, length: int, across: str) -> Figure:
    """Draw the difference of drops over one of two columns: a panel a task, a line a width.

    Args:
        study: Recorded table of the page on weights per task.
        length: Epochs of finetuning.
        across: ``level``, or ``weights`` for the number of weights left.
    """
    figure, axes = new_figure(2, sharey=True)
    rows = effects.select(study, finetune_epochs=length)
    tasks = rows.assign(level=rows[across]).groupby("task", sort=False)
    for axis, (task, part) in zip(axes, tasks, strict=True):
        if across == "level":
            plots.levels(axis, part)
        else:
            axis.set(xscale="log", xlabel="number of weights kept")
            axis.xaxis.set_inverted(True)
        widths = {f"{at:g}": own for at, own in by_part(part, "width").items()}
        plots.lines(axis, widths, apart=0.02 * (across == "level"))
        axis.set_title(task)
    plots.accuracy(axes[0].yaxis, plots.DROPS)
    axes[1].sharex(axes[0])
    legend(figure, "width")
    return figure


def by_measure(study: DataFrame) -> dict[str, DataFrame]:
    """Compute who pays by accuracy and by loss: seeds in rows, levels in columns."""
    return {name: effects.by_level(study, of=of) for name, of in MEASURES.items()}


def loss_beside_accuracy(study: DataFrame) -> Figure:
    """Draw who pays, in accuracy and in loss, over the weights kept."""
    labels = {of: f"{name},\nsmallest minus largest third" for name, of in MEASURES.items()}
    return paid(study, "method", labels=labels)


def loss_against_accuracy(study: DataFrame) -> Figure:
    """Draw the two measures against each other, seed by seed."""
    figure, (axis,) = new_figure(height=4.2)
    drops, rises = by_measure(study).values()
    for place, sparsity in enumerate(drops):
        pair = drops[sparsity], rises[sparsity]
        look: Arguments = {"color": PALETTE[place], "marker": MARKERS[place]}
        axis.scatter(*pair, s=14, alpha=0.6, linewidths=0, **look)
        look |= {"markersize": 8, "markeredgecolor": "white"}
        plots.mean_point(axis, *pair, label=f"{100 * (1 - sparsity):.3g} %", **look)
    xlim, ylim = axis.get_xlim(), axis.get_ylim()
    axis.axhline(0, color="#555555", linewidth=0.8)
    axis.axvline(0, color="#555555", linewidth=0.8)
    # Shaded are the quarters in which the two measures name different groups.
    shade: Arguments = {"color": "#eeeeee", "zorder": 0, "linewidth": 0}
    axis.fill_between([0, max(xlim[1], 0)], min(ylim[0], 0), 0, **shade)
    axis.fill_between([min(xlim[0], 0), 0], 0, max(ylim[1], 0), **shade)
    axis.set(xlim=xlim, ylim=ylim, ylabel="difference of rises of loss (nats)")
    plots.accuracy(axis.xaxis, "difference of drops of accuracy (smallest minus largest third)")
    legend(figure, "weights kept")
    return figure


def signs(study: DataFrame) -> DataFrame:
    """Count the seeds in which small groups pay by both measures, by one, or by none."""
    drops, rises = by_measure(study).values()
    rows: tables.Contents = {}
    for sparsity in drops:
        accuracy, loss = drops[sparsity] > 0, rises[sparsity] > 0
        disagree = accuracy.index[np.asarray(accuracy != loss)]
        rows[sparsity] = {
            "small pay by both": (accuracy & loss).sum(),
            "by accuracy only": (accuracy & ~loss).sum(),
            "by loss only": (loss & ~accuracy).sum(),
            "by neither": (~accuracy & ~loss).sum(),
            "seeds that disagree": ", ".join(map(str, disagree)) or "none",
        }
    return tables.means(rows, names="sparsity")
