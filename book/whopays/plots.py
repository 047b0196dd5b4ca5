"""Figures in one style: every estimate with its interval, every group with its size."""

from __future__ import annotations

import functools
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from pandas import DataFrame

from fairlib import statistics
from fairlib.auditing.figure import PALETTE, escape_dollars
from whopays import effects

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = "osD^vP<>"

_Look = tuple[int | str, str]  # Colour, as an index into `PALETTE` or a name, and marker.

_GROUPS = "group (training images)"  # Title of a legend of groups.
_BY_SIZE: dict[str, _Look] = {"largest": (0, "s"), "middle": (2, "^"), "smallest": (1, "o")}


def new_figure(
    columns: int = 1,
    *,
    rows: int = 1,
    width: float = 8.0,
    height: float = 3.4,
    sharey: bool | Literal["row"] = False,
) -> tuple[Figure, list[Axes]]:
    """Make a figure with rows of axes, in the style of the book.

    It is white also in dark mode, without a frame, with a light grid.

    Args:
        columns: Number of axes in a row.
        rows: Number of rows; the axes are returned row by row.
        width, height: Size of the figure in inches.
        sharey: Share the vertical scale; ``"row"`` for those of a row only.
    """
    import matplotlib.pyplot as plt

    _as_vectors()
    figure, axes = plt.subplots(
        rows,
        columns,
        sharey=sharey,
        squeeze=False,
        figsize=(width, height),
        facecolor="white",
        layout="constrained",
    )
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="#dddddd", linewidth=0.8)
        axis.set_axisbelow(True)
        axis.set_prop_cycle(color=PALETTE)
    return figure, list(axes.flat)


def grid_of_columns(axis: Axes) -> None:
    """Draw grid lines at the ticks of the horizontal axis alone."""
    axis.grid(axis="y", visible=False)
    axis.grid(axis="x", color="#dddddd", linewidth=0.8)


@functools.cache
def _as_vectors() -> None:
    """Show figures as SVG beside PNG in a notebook.

    Their texts stay texts, which the page shows in its font and a reader can search.
    """
    import matplotlib

    if "inline" not in matplotlib.get_backend():
        return  # Outside of a notebook there may be no IPython to import.
    from IPython import get_ipython

    if get_ipython() is not None:
        from matplotlib_inline.backend_inline import set_matplotlib_formats

        set_matplotlib_formats("png", "svg")
        matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "fairlib"})


def line(axis: Axes, values: DataFrame, *, label: str | None = None, **look: Any) -> None:
    """Draw a line of means over seeds against level, with 95 % t intervals.

    Args:
        axis: Axis to draw on.
        values: Seeds in rows, levels in columns; a level may occur twice.
        label: Label of the line in the legend.
        look: Further arguments of ``errorbar``.
    """
    means, spread = _bars(column.dropna() for _, column in values.items())
    settings: dict[str, Any] = {"marker": "o", "markersize": 4, "capsize": 2, "linewidth": 1.4}
    axis.errorbar(np.array(list(values)), means, yerr=spread, label=label, **settings | look)


def lines(
    axis: Axes,
    values: Mapping[str, DataFrame],
    *,
    looks: Mapping[str, tuple[int | str, str]] | None = None,
    apart: float = 0.0,
    zero: bool = True,
) -> None:
    """Draw several lines of means over seeds against level, side by side (:func:`line`).

    Args:
        axis: Axis to draw on.
        values: By label a table with seeds in rows and levels in columns.
        looks: By label the colour (an index into `PALETTE` or a name) and the marker; the next ones
            by default.
        apart: Distance from one line to the next along the x axis; on a logarithmic axis as a
            share.
        zero: Whether to draw a horizontal line at zero.
    """
    for place, (label, table) in enumerate(values.items()):
        # Lines are moved apart by the same distance on the screen: a factor on a logarithmic axis.
        x, middle = np.array(list(table), dtype=float), place - (len(values) - 1) / 2
        moved = x * (1 + apart) ** middle if axis.get_xscale() == "log" else x + apart * middle
        line(axis, table.set_axis(moved, axis=1), label=label, **_look(looks, label, place))
    if zero:
        axis.axhline(0, color="#555555", linewidth=0.8)


def intervals(
    axis: Axes,
    values: Mapping[str, ArrayLike | Mapping[str, ArrayLike]],
    *,
    looks: Mapping[str, tuple[int | str, str]] | None = None,
    zero: float | None = 0.0,
) -> None:
    """Draw a row for each name: one or several means over seeds with 95 % t intervals.

    Args:
        axis: Axis to draw on.
        values: By name of the row one value per seed, or by label several such:
            ``{"BiFP": {"0.8": ..., "0.95": ...}}``.
        looks: By label the colour (an index into `PALETTE` or a name) and the marker; the next ones
            by default.
        zero: Position of a vertical line; None for no line.

    Example:
        >>> from whopays import plots
        >>> figure, (axis,) = plots.new_figure()
        >>> plots.intervals(axis, {"many": [0.01, 0.02, 0.0], "few": [0.2, 0.1, 0.3]})
        >>> axis.set_xlabel("drop of accuracy").get_text()
        'drop of accuracy'
        >>> [label.get_text() for label in axis.get_yticklabels()]
        ['many', 'few']
    """
    table = {name: own if isinstance(own, Mapping) else {"": own} for name, own in values.items()}
    labels = list(dict.fromkeys(label for own in table.values() for label in own))
    apart = min(0.22, 0.8 / len(labels))
    for place, label in enumerate(labels):
        rows, samples = [], []
        for row, own in enumerate(table.values()):
            if label in own:
                # The marks of a row are centred on it, however many it has.
                rows.append(row + apart * (list(own).index(label) - (len(own) - 1) / 2))
                samples.append(own[label])
        means, spread = _bars(samples)
        look = _look(looks, label, place) | {"linestyle": "none", "markersize": 4.5, "capsize": 2}
        axis.errorbar(means, rows, xerr=spread, label=label or None, **look)
    if zero is not None:
        axis.axvline(zero, color="#555555", linewidth=0.8)
    grid_of_columns(axis)
    axis.set_yticks(range(len(table)), [escape_dollars(name) for name in table])
    axis.set_ylim(len(table) - 0.5, -0.5)


def mean_point(axis: Axes, x: ArrayLike, y: ArrayLike, **look: Any) -> tuple[float, float]:
    """Draw a point at two means over seeds, with 95 % t intervals, and return both means.

    Args:
        axis: Axis to draw on.
        x, y: One value per seed, ``(n,)``.
        look: Further arguments of ``errorbar``.
    """
    (across, up), spread = _bars([x, y])
    settings: dict[str, Any] = {"marker": "o", "capsize": 2, **look}
    axis.errorbar(across, up, xerr=spread[:, :1], yerr=spread[:, 1:], **settings)
    return float(across), float(up)


def thirds(
    axis: Axes,
    study: DataFrame,
    *,
    where: Mapping[str, Any] | None = None,
    rank_where: Mapping[str, Any] | None = None,
    everybody: bool = False,
) -> None:
    """Draw the change of test accuracy over level for the largest and smallest third.

    Args:
        axis: Axis to draw on.
        study: Table of :func:`fairlib.study`.
        where: Values of columns that select the rows.
        rank_where: Values of columns that select the rows whose sizes rank the groups; by default
            those of ``where``.
        everybody: Whether to draw the change over all test samples, too.
    """
    where = dict(where or {})
    training = {**(rank_where or where), "stage": "control", "split": "train"}
    ranked = effects.select(study, **training)
    sizes = effects.groups_by_size(ranked, column="size", rank="size").columns
    third = math.ceil(len(sizes) / 3)
    found = {"all": effects.by_level(study, of="overall_change", where=where)} if everybody else {}
    chosen: dict[str, Any] = {"where": where, "rank_where": rank_where}
    for groups, part in (("largest", sizes[-third:]), ("smallest", sizes[:third])):
        change = effects.by_level(study, of="accuracy_change", groups=groups, **chosen)
        found[f"{groups} third (n={np.mean(part):,.0f})"] = change
    looks: list[_Look] = [*[("#555555", "D")] * everybody, (0, "s"), (1, "o")]
    levels(axis, effects.select(study, **where))
    lines(axis, found, looks=dict(zip(found, looks, strict=True)), apart=0.006)
    # Panels of a row share the label of the first.
    place = axis.get_subplotspec()
    if place is None or place.is_first_col():
        axis.set_ylabel("change of test accuracy\nagainst the control")


def groups(
    axis: Axes, rows: DataFrame, column: str, *, extremes: bool = False, rank: str = "train_size"
) -> None:
    """Draw the mean of a column over seeds against level for every group, the largest first.

    Args:
        axis: Axis to draw on.
        rows: Rows of one part of the data, with a column ``train_size``; those of dense networks
            are left out.
        column: Name of the column.
        extremes: Draw the largest, the middle and the smallest group of each seed instead,
            whichever these are.
        rank: Name of the column by whose mean the groups are sorted otherwise.
    """
    # Dense networks have the level of the control and would be averaged with it.
    rows = rows[rows["stage"].isin(["control", "compressed"])]
    levels(axis, rows)
    rows = _by_rank(rows, _places(rows["group"].nunique())) if extremes else rows
    parts = split_by_group(rows, rank=rank)
    looks = {label: _BY_SIZE[label.split()[0]] for label in parts} if extremes else None
    found = {
        label: part.pivot(index="seed", columns="level", values=column)
        for label, part in parts.items()
    }
    lines(axis, found, looks=looks, apart=0.004, zero=False)


def beside_accuracy(
    study: DataFrame, column: str, label: str, *, extremes: bool = True, **where: Any
) -> Figure:
    """Draw test accuracy, and the logarithm of another column, over level by group.

    The logarithm (base 10) is that of the training set.

    Args:
        study: Table of :func:`fairlib.study` with a column ``train_size``.
        column: Name of the other column.
        label: Label of its axis.
        extremes: Whether only the largest, the middle and the smallest group of each seed are drawn
            (:func:`groups`).
        where: Values of columns that select the rows.
    """
    figure, axes = new_figure(2, width=9.0)
    study = effects.select(study.assign(**{column: np.log10(study[column])}), **where)
    panels = {"test": ("accuracy", "test accuracy"), "train": (column, f"{label}, training set")}
    for axis, (split, (name, words)) in zip(axes, panels.items(), strict=True):
        groups(axis, effects.select(study, split=split), name, extremes=extremes)
        axis.set_ylabel(words)
    floor(axes[0], study)
    legend(figure, _GROUPS, right=True)
    return figure


def split_by_group(rows: DataFrame, *, rank: str = "train_size") -> dict[str, DataFrame]:
    """Split rows by group, the largest first, under labels with sizes: ``White (n=884)``.

    Args:
        rows: Rows of one part of the data, with columns ``group`` and ``train_size``.
        rank: Name of the column by whose mean the groups are sorted.
    """
    means = rows.groupby("group")[list({rank, "train_size"})].mean()
    sizes = means.sort_values(rank, ascending=False, kind="stable")["train_size"].items()
    return {
        f"{escape_dollars(name)} (n={size:,.0f})": rows[rows["group"] == name]
        for name, size in sizes
    }


def floor(axis: Axes, study: DataFrame, **where: Any) -> None:
    """Write above an axis which groups have nothing to lose, if there are any.

    See :func:`whopays.effects.at_floor`.

    Args:
        axis: Axis that shows these groups, or a gap between them and others.
        study: Table of :func:`fairlib.study` with the rows of controls.
        where: Values of columns that select the rows.
    """
    if names := effects.at_floor(study, where=where):
        note = textwrap.fill(f"at the floor: {', '.join(map(escape_dollars, names))}", 26)
        axis.set_title("\n".join(filter(None, [axis.get_title(), note])))


def over_budgets(
    rows: Mapping[str, Mapping[str, DataFrame]],
    of: str | Mapping[str, str] = "accuracy",
    *,
    before: str = "",
    width: float = 10.5,
) -> Figure:
    """Draw panels of means over seeds against the ReLU budget, a line for every group.

    Of more than five groups these are the two largest and the two smallest of each seed, whichever
    these are. The legend marks a group at the floor (:func:`whopays.effects.at_floor`), which has
    nothing to lose.

    Args:
        rows: By label of a row of panels, and title of a panel, its table: test rows of a study,
            those of the controls among them, with a column ``train_size``.
        of: Name of the column; or a name for each row, by label; or for each panel of a row, by
            title.
        before: Name of a column of accuracies. With it the *relative drop* from there is drawn
            instead, 100 (before - column) / (mean of before over the seeds), in percent; a group at
            the floor is left out, as the legend says.
        width: Width of the figure in inches.
    """
    count, shown = max(map(len, rows.values())), list[str]()
    alike = isinstance(of, str) or set(of) == set(rows)
    size: dict[str, float] = {"width": width, "height": 0.6 + 2.6 * len(rows)}
    figure, axes = new_figure(count, rows=len(rows), sharey="row" if alike else False, **size)
    for place, (label, panels) in enumerate(rows.items()):
        line = axes[place * count : (place + 1) * count]
        line[0].set_ylabel(label)
        for axis, (title, table) in zip(line, panels.items(), strict=False):
            column = of if isinstance(of, str) else of[label if alike else title]
            _over_budgets(axis, table, column, before)
            axis.set(title=title, xlabel="ReLUs kept, %" if place == len(rows) - 1 else "")
        for axis in line[len(panels) :]:
            axis.set_axis_off()
        handles, labels = line[len(panels) - 1].get_legend_handles_labels()
        # Panels of a row share their groups, and often the rows do: one legend for all of these.
        if labels != shown:
            beside: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1, 1)}
            line[-1].legend(
                handles, labels, frameon=False, title="group (training images)", **beside
            )
        shown = labels
    return figure


def arms(study: DataFrame, names: Mapping[str, str]) -> Figure:
    """Draw a panel for each arm: the change of test accuracy by group over bytes kept.

    Of more than five groups the largest, the middle and the smallest of each seed are drawn,
    whichever these are.

    Args:
        study: Table of :func:`fairlib.study` with the column ``arm``; ``kept`` is the share of
            bytes.
        names: By name of an arm the title of its panel.
    """
    changed = effects.against_control(study, on=["arm", "seed", "group"])
    changed = effects.select(changed, split="test", stage=["control", "compressed"])
    # Each seed keeps slightly other shares: lines need one place for all.
    kept = changed.groupby(["arm", "level"])["kept"].transform("mean").round(4)
    changed = changed.assign(change=-100 * changed["drop"], level=kept)
    figure, axes = new_figure(len(names), width=9.0, height=3.4, sharey=True)
    for axis, (arm, title) in zip(axes, names.items(), strict=True):
        own = changed[changed["arm"] == arm]
        groups(axis, own, "change", extremes=own["group"].nunique() > 5)
        halves = [2.0**-power for power in range(1 + math.ceil(-math.log2(own["level"].min())))]
        ticks = ["1", *(f"1/{1 / share:g}" for share in halves[1:])]
        _logarithmic(axis, halves, ticks, "share of bytes kept")
        axis.invert_xaxis()
        axis.axhline(0, color="#555555", linewidth=0.8)
        axis.set_title(title)
        floor(axis, study, arm=arm)
    axes[0].set_ylabel("change of test accuracy\nagainst the control, points")
    legend(figure, _GROUPS, right=True)
    return figure


def prices(study: DataFrame) -> Figure:
    """Draw what each arm costs the average, and how much more it costs small groups.

    Args:
        study: Table of :func:`fairlib.study` with a column of ``whopays.effects.ARM_COLUMNS``.
    """
    found = effects.arm_losses(study)
    levels = sorted(set(found["level"]))
    names = {level: level if isinstance(level, str) else f"{level:g}" for level in levels}
    looks = {names[level]: (place, "osD^v"[place % 5]) for place, level in enumerate(levels)}
    figure, axes = new_figure(
        2, width=8.0, height=0.9 + 0.42 * found.iloc[:, 0].nunique(), sharey=True
    )
    for axis, column in zip(axes, ("average", "difference"), strict=True):
        parts = found.groupby(found.columns[0], sort=False)
        own = {
            arm: {names[at]: rows[column] for at, rows in part.groupby("level")}
            for arm, part in parts
        }
        intervals(axis, own, looks=looks)
    axes[0].set_xlabel("drop of the average accuracy\nagainst the control")
    axes[1].set_xlabel("drop of the smallest third of groups\nminus that of the largest")
    floor(axes[1], study)
    return figure


def levels(axis: Axes, study: DataFrame) -> None:
    """Label the axis of levels: sparsities as they are, ReLU budgets in percent (log).

    Args:
        axis: Axis whose x axis is labelled.
        study: Table of :func:`fairlib.study`.
    """
    control = study.loc[study["stage"] == "control", "level"]
    # The control's level tells the two apart: all ReLUs are kept (1), or no weight is pruned (0).
    if (control == 1).any():
        budgets = study.loc[study["stage"] == "compressed", "level"]
        shares(axis, budgets, "budget: share of ReLUs kept")
    else:
        axis.set_xlabel("sparsity (share of weights pruned)")


def size_axis(
    axis: Axes, values: Iterable[float], label: str = "training images of the group"
) -> None:
    """Make the x axis one of group sizes: logarithmic, with three ticks.

    The ticks are at the smallest, the middle and the largest size.

    Args:
        axis: Axis whose x axis is changed.
        values: Sizes of the groups.
        label: Label of the x axis.
    """
    values = sorted(set(values))
    ticks = sorted({values[place] for place in (0, len(values) // 2, -1)})
    names = [f"{tick:,.0f}" for tick in ticks]
    _logarithmic(axis, ticks, names, label)


def by_size(
    axis: Axes,
    rows: DataFrame,
    column: str,
    *,
    by: str,
    rank: str = "train_size",
    zero: bool = True,
) -> None:
    """Draw means over seeds against group size, a line for each value of another column.

    Args:
        axis: Axis to draw on.
        rows: Table with one row per value, seed and group.
        column: Name of the column whose mean is drawn, with its 95 % t interval; it labels the y
            axis.
        by: Name of the column whose values are the lines; rows without a value there are left out.
        rank: Name of the column of group sizes, by which the groups of each seed are sorted.
        zero: Whether to mark the height zero.
    """
    parts = rows.groupby(by, sort=False)
    found = {name: effects.groups_by_size(own, column=column, rank=rank) for name, own in parts}
    size_axis(axis, next(iter(found.values())))
    lines(axis, found, apart=0.02, zero=zero)
    axis.set_ylabel(column)


def scatter(axis: Axes, rows: DataFrame, x: str, y: str) -> None:
    """Draw a point for each row, in one color for each seed.

    Args:
        axis: Axis to draw on.
        rows: Table with a column ``seed``.
        x, y: Names of the columns that are drawn.
    """
    axis.scatter(
        rows[x], rows[y], s=12, color=[PALETTE[seed % len(PALETTE)] for seed in rows["seed"]]
    )


def crosses(
    axis: Axes, rows: DataFrame, x: str, y: str, *, rank: str = "train_size", below: bool = False
) -> None:
    """Draw a point for each group at its two means over seeds, with 95 % t intervals.

    Args:
        axis: Axis to draw on.
        rows: One row per seed and group, with a column ``train_size``.
        x, y: Names of the columns that are drawn.
        rank: Name of the column by whose mean the groups are sorted, which gives them their
            colours.
        below: Whether to draw a legend below the axis.
    """
    for place, (label, part) in enumerate(split_by_group(rows, rank=rank).items()):
        mean_point(
            axis, part[x], part[y], label=label, linestyle="none", **_look(None, label, place)
        )
    if below:
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), frameon=False, title=_GROUPS)


def against(
    rows: DataFrame,
    columns: Mapping[str, str],
    y: tuple[str, str],
    *,
    draw: Callable[..., object] = scatter,
    **size: Any,
) -> Figure:
    """Draw one column against each of several others, a panel for each.

    Args:
        rows: Table with a column ``seed``.
        columns: By the name of each column on an x axis its label.
        y: Name of the column on the y axis, and its label.
        draw: :func:`scatter` for a point for each row, or :func:`crosses` for a mean for each
            group.
        size: Further arguments of ``new_figure``.
    """
    figure, axes = new_figure(len(columns), sharey=True, **size)
    for axis, (column, label) in zip(axes, columns.items(), strict=True):
        draw(axis, rows, column, y[0])
        axis.set_xlabel(label)
    axes[0].set_ylabel(y[1])
    if axes[0].get_legend_handles_labels()[1]:
        legend(figure, _GROUPS, right=True)
    return figure


def by_name(
    rows: DataFrame, columns: Mapping[str, str], *, by: str, ranked: Iterable[str] = ()
) -> Figure:
    """Draw means of several columns over seeds with intervals, a row for every group.

    Args:
        rows: One row per seed and group of each part, with a column ``train_size``.
        columns: By the name of each column, which has a panel, its label.
        by: Name of the column whose values are the parts; each has its groups and a colour.
        ranked: Parts whose groups change their sizes with the seed, and are shown by their rank in
            size.
    """
    parts = {}
    for name, part in rows.groupby(by, sort=False):
        if name in ranked:
            sizes = part.groupby("seed")["train_size"]
            rank = sizes.rank(method="first", ascending=False)
            part = part.assign(group=rank.map("rank {:.0f}".format))
        parts[str(name)] = split_by_group(part)
    height = 2 + 0.25 * sum(map(len, parts.values()))
    figure, axes = new_figure(len(columns), width=10.0, height=height, sharey=True)
    for axis, (column, label) in zip(axes, columns.items(), strict=True):
        found = {
            row: {name: own[column]} for name, part in parts.items() for row, own in part.items()
        }
        intervals(axis, found, zero=None)
        axis.set_xlabel(label)
    legend(figure)
    return figure


def matrix(axis: Axes, values: DataFrame) -> None:
    """Draw correlations between quantities: a square of numbers on a color for each.

    Args:
        axis: Axis to draw on.
        values: Square table of numbers in [-1, 1] whose rows and columns have the same names.
    """
    axis.imshow(values, cmap="RdBu_r", vmin=-1.5, vmax=1.5)
    for (row, column), value in np.ndenumerate(values):
        axis.text(column, row, f"{value:.2f}", ha="center", va="center", size=9, color="#111111")
    names = [name.replace("_", " ") for name in values]
    axis.set_xticks(range(len(names)), names, rotation=40, ha="right")
    axis.set_yticks(range(len(names)), names)
    axis.grid(visible=False)


def legend(figure: Figure, title: str = "", *, right: bool = False) -> None:
    """Draw one legend for all axes of a figure, each label once, above them or to their right.

    Args:
        figure: Figure whose axes have labels.
        title: Title of the legend; none by default.
        right: Whether the legend is to the right of the axes, rather than above them.
    """
    found: dict[str, Any] = {}
    for axis in figure.axes:
        handles, labels = axis.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    columns = 1 if right else min(len(found), 5)
    place: Any = "outside right upper" if right else "outside upper center"
    look = {"ncols": columns, "frameon": False, "title": title or None, "loc": place}
    figure.legend(list(found.values()), list(found), **look)


def shares(axis: Axes, levels: Iterable[float], label: str) -> None:
    """Make the x axis logarithmic, with ticks in percent at the levels of a study only.

    Args:
        axis: Axis whose x axis is changed.
        levels: Shares in (0, 1].
        label: Label of the x axis.
    """
    levels = sorted(set(levels))
    _logarithmic(axis, levels, [f"{100 * level:g} %" for level in levels], label)


def _logarithmic(axis: Axes, ticks: Sequence[float], names: Sequence[str], label: str) -> None:
    axis.set_xscale("log")
    axis.set_xticks(ticks, names)
    axis.minorticks_off()
    axis.set_xlabel(label)


def relu_traffic(axis: Axes, relus: int, measured: DataFrame) -> None:
    """Add an axis above one of ReLU budgets: kB that two parties send for one image in Cheetah.

    This is the budget times the network's ReLUs times the bytes per ReLU: the slope of bytes sent
    over ReLUs kept, by least squares with an intercept for every network, image size and batch.
    Traffic of linear layers does not count.

    Args:
        axis: Axis over shares of ReLUs kept, whose ticks the second axis shares
            (:func:`whopays.plots.shares`).
        relus: Number of ReLUs of the network at a share of 1.
        measured: Runs of an engine for private inference, with columns ``network image_size batch
            protocol relus bytes_sent``; the bytes are those of all images of a batch.
    """
    runs = measured[measured["protocol"] == "CHEETAH"]
    runs = runs.assign(bytes=runs["bytes_sent"] / runs["batch"])
    # Least squares with an intercept for each network, image size and batch: the linear layers send
    # as much at every budget.
    of_network = runs.groupby(["network", "image_size", "batch"])[["relus", "bytes"]]
    centred = runs[["relus", "bytes"]] - of_network.transform("mean")
    one = (centred["relus"] * centred["bytes"]).sum() / (centred["relus"] ** 2).sum()
    scale = relus * one / 1000
    above = axis.secondary_xaxis(
        "top", functions=(lambda share: share * scale, lambda sent: sent / scale)
    )
    ticks = axis.get_xticks()
    above.set_xticks(scale * ticks, [f"{scale * tick:.3g}" for tick in ticks], fontsize=8)
    above.minorticks_off()
    above.set_xlabel("kB for the ReLUs of an image (Cheetah)", fontsize=8)


def provenance(figure: Figure, *sources: object) -> None:
    """Write under the figure where it comes from.

    Args:
        figure: Any figure.
        sources: For each line the table of a study that ran here, a recorded table
            (:func:`whopays.tables.recorded`) or a text.
    """
    texts = (source(each) if isinstance(each, DataFrame) else str(each) for each in sources)
    width = int(17 * figure.get_figwidth())  # Characters that fit below the figure.
    text = "\n".join(textwrap.fill(each, width) for each in texts)
    figure.supxlabel(text, fontsize=8, color="#555555", x=0.01, ha="left")


def source(table: DataFrame, evidence: str = "this run") -> str:
    """Say in one line where a study's table comes from: data, networks, methods, seeds.

    Args:
        table: Table of :func:`fairlib.study`. More than three methods are counted, by arm where it
            has arms.
        evidence: Kind of evidence: this run, an embedded study, a real-data run, a run at scale.
    """
    what = [", ".join(sorted(set(table[name].dropna()))) for name in ("data", "model")]
    what.append(_methods(table))
    seeds = table["seed"].nunique()
    return ", ".join([*what, f"{seeds} seed{'s' * (seeds != 1)}", evidence])


def _methods(table: DataFrame) -> str:
    """Name up to three methods, or count them; a table without methods has arms."""
    arm = next((name for name in effects.ARM_COLUMNS if name in table), "method")
    named = sorted(set(table["method" if "method" in table else arm].dropna()))
    if len(named) <= 3:
        return ", ".join(named)
    compressed = table["stage"] == "compressed" if "stage" in table else table["level"] != 0
    return f"{table.loc[compressed, arm].nunique()} methods"


def _over_budgets(axis: Axes, table: DataFrame, column: str, before: str) -> None:
    """Draw a line for every group, the largest first; with ``before`` its relative drop."""
    table = table[table["stage"].isin(["control", "compressed"])]
    found: dict[str, DataFrame] = {}
    looks: dict[str, _Look] = {}
    missing: list[str] = []
    if (number := table["group"].nunique()) > 5:
        largest, smallest = ("largest", "second largest"), ("second smallest", "smallest")
        ends = dict(zip((*largest, *smallest), (0, 1, number - 2, number - 1), strict=True))
        table = _by_rank(table, ends)
    # The groups at the floor are found with the rows of all columns, before any are dropped.
    floor, table = effects.at_floor(table), table.dropna(subset=[column, before or column])
    if before:
        # By the mean over seeds: one seed in which a group starts near 0 would drown all others.
        mean = table.groupby(["group", "level"])[before].transform("mean")
        table = table.assign(**{column: 100 * (table[before] - table[column]) / mean})
    sizes = table.groupby("group")["train_size"].mean().sort_values(ascending=False)
    for name, size in sizes.items():
        label = f"{escape_dollars(name)} ({size:,.0f})" + ", at the floor" * (name in floor)
        looks[label] = (len(looks), MARKERS[len(looks)])
        if before and name in floor:
            missing.append(f"{label}: left out")
            continue
        own = table[table["group"] == name]
        found[label] = own.pivot(index="seed", columns="level", values=column)
    levels = sorted(set(table["level"]))
    _logarithmic(axis, levels, [f"{100 * level:g}" for level in levels], "")
    lines(axis, found, looks=looks, apart=0.05, zero=bool(before))
    # A line without points puts a group that has nothing to lose into the legend.
    for label in missing:
        axis.errorbar([], [], linestyle="none", label=label)
    axis.set_xlim(table["level"].min() / 1.3, table["level"].max() * 1.3)


def _by_rank(table: DataFrame, places: Mapping[str, int]) -> DataFrame:
    """Keep the groups at some places of the order by size in each seed, and name them so."""
    # Sizes change with the seed, and with them who is largest.
    order = table.groupby(["seed", "level"])["train_size"].rank(method="first", ascending=False)
    return table.assign(
        group=(order - 1).map({place: name for name, place in places.items()})
    ).dropna(subset="group")


def _bars(values: Iterable[ArrayLike]) -> tuple[np.ndarray, np.ndarray]:
    """Compute means over seeds ``(n,)`` and lengths of 95 % t intervals down and up ``(2, n)``."""
    # Student's interval: over ten seeds the bootstrap covers less than it says.
    found = [statistics.t_interval(each) for each in values]
    means = np.array([interval.estimate for interval in found])
    spread = np.array([(i.estimate - i.low, i.high - i.estimate) for i in found]).T
    return means, np.where(np.isfinite(spread), spread, np.nan)


def _look(looks: Mapping[str, _Look] | None, label: str, place: int) -> dict[str, Any]:
    # Another marker if the colours repeat.
    shape = MARKERS[(place + place // len(PALETTE)) % len(MARKERS)]
    color, marker = (looks or {}).get(label, (place % len(PALETTE), shape))
    return {"color": PALETTE[color] if isinstance(color, int) else color, "marker": marker}


def _places(count: int) -> dict[str, int]:
    """Place the largest, the middle and the smallest of some groups; two have no middle."""
    places = {"largest": 0, "middle": (count - 1) // 2, "smallest": count - 1}
    return places if count > 2 else {"largest": 0, "smallest": count - 1}
