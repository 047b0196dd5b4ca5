"""Figures in one style: every estimate with its interval, every group with its size."""

from __future__ import annotations

import functools
import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from pandas import DataFrame

from fairlib import statistics
from fairlib.auditing.figure import PALETTE, escape_dollars
from whopays import effects
from whopays.effects import ALL, Arguments, Rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure, FigureBase

MARKERS = "osD^vP<>"
WIDTH, PHONE = 7.6, 3.5
"""Widths of a figure on a laptop and on a phone, in inches of 96 pixels."""

WORDS = {
    "utkface": "UTKFace",
    "celeba": "CelebA",
    "cifar10": "CIFAR-10",
    "mnist": "MNIST",
    "synthetic-faces": "drawn faces",
    "parabola": "points by a parabola",
    "cnn": "small convolutional network",
    "mlp": "multilayer perceptron",
    "tiny-resnet": "small residual network",
    "resnet10": "ResNet-10",
    "resnet18:stem=imagenet": "ResNet-18",
    "resnet18": "ResNet-18",
    "resnet34": "ResNet-34",
    "vgg19": "VGG-19",
    "mobilenetv2": "MobileNetV2",
    "wrn-22-8": "WideResNet-22-8",
    "prune:magnitude": "magnitude pruning",
    "prune:filter-norm": "filter-norm pruning",
    "bip": "BiP",
    "bifp": "BiFP",
    "prune:random": "random pruning",
    "quantize:weights": "rounded weights",
    "quantize:int8-static": "int8",
    "without_smallest": "int8 calibrated without the smallest group",
    "factorize:svd": "thin layers",
    "distil:logits": "student",
    "distil:alone": "small network",
    "prune": "pruned",
    "quantize": "fewer bits",
    "factorize": "thin layers",
    "distil": "student",
    "small dense": "small network",
    "linearize:random": "random gates",
    "linearize:preactivation": "by preactivation",
    "linearize:polynomial": "quadratics",
    "snl": "SNL",
    "deepreduce": "DeepReDuce",
    "senet": "SENet",
    "lottery": "lottery tickets",
    "snip": "SNIP",
    "wanda": "Wanda",
    "fpgm": "FPGM",
    "fairgrape": "FairGRAPE",
    "fairprune": "FairPrune",
    "equal-loss-weak": "equal losses, weak",
    "equal-loss": "equal losses",
    "equal-curvature": "equal curvature",
    "equal-accuracy": "equal accuracies",
    "equalized-odds": "equalized odds",
    "accuracy-gap": "accuracy gap",
    "group-dro": "group DRO",
    "reweight": "reweighting",
    "embedded study": "recorded on small data",
    "real-data run": "recorded on real images",
    "run at scale": "recorded at scale",
}
"""Plain words for the names that parameters and tables have, wherever a figure shows one."""

_CODES = re.compile(
    rf"(?<![\w:-])(?:prune:|linearize:)?({'|'.join(sorted(WORDS, reverse=True))})(?![\w-])"
)

COLOURS = {f"plot-{number}": color.lower() for number, color in enumerate(PALETTE[:7], 1)} | {
    "pst-color-text-base": "#000000",
    "pst-color-background": "#ffffff",
    "pst-color-text-muted": "#555555",
    "pst-color-border": "#dddddd",
    "pst-color-surface": "#eeeeee",
}
"""Colours of figures, by the variable of the page's style sheet that takes their place."""

_Look = tuple[int | str, str]  # Colour, as an index into `PALETTE` or a name, and marker.

# Label of what a group or everybody loses.
CHANGE_LABEL = "change of test accuracy\nagainst the control"

# Label of the difference between two drops of accuracy.
DROPS = "drop of the smallest third\nminus that of the largest"

UNITS = {
    "accuracy": "%",
    "bias": "points",
    "gap": "points",
    "drop": "points",
    "test_drop": "points",
    "share": "%",
    "overall_accuracy": "%",
    "overall_change": "points",
    "drop_difference": "points",
    "group_gap": "points",
}
"""Units of columns and statistics that are accuracies or differences of them, as shares."""

_GROUPS = "group (training images)"  # Title of a legend of groups.
_BY_SIZE: dict[str, _Look] = {"largest": (0, "s"), "middle": (2, "^"), "smallest": (1, "o")}


def new_figure(
    columns: int = 1,
    *,
    rows: int = 1,
    width: float = WIDTH,
    height: float = 3.4,
    sharey: bool = False,
) -> tuple[Figure, list[Axes]]:
    """Make a figure with rows of axes, in the style of the book.

    It is white also in dark mode, without a frame, with a light grid. On a page it is as wide as
    the text at most, and on a phone its axes are below each other.

    Args:
        columns: Number of axes in a row.
        rows: Number of rows; the axes are returned row by row.
        width, height: Size of the figure in inches.
        sharey: Share the vertical scale.
    """
    import matplotlib.pyplot as plt

    as_pages_show()
    figure = plt.figure(figsize=(width, height), facecolor="white", layout="constrained")
    return figure, _panels(figure, columns, rows, sharey)


def _panels(figure: FigureBase, columns: int, rows: int, sharey: bool) -> list[Axes]:
    """Add rows of axes to a figure or to a part of it."""
    axes = figure.subplots(rows, columns, sharey=sharey, squeeze=False)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="#dddddd", linewidth=0.8)
        axis.set_axisbelow(True)
        axis.set_prop_cycle(color=PALETTE)
    return list(axes.flat)


def grid_of_columns(axis: Axes) -> None:
    """Draw grid lines at the ticks of the horizontal axis alone."""
    axis.grid(axis="y", visible=False)
    axis.grid(axis="x", color="#dddddd", linewidth=0.8)


def in_rows(count: int) -> dict[str, int]:
    """Divide panels into rows of three at most, as arguments of :func:`new_figure`."""
    columns = math.ceil(count / math.ceil(count / 3))
    return {"columns": columns, "rows": math.ceil(count / columns)}


def accuracy(scale: Axis, label: str, unit: str = "points") -> None:
    """Label an axis of accuracies, which are shares, in percent or in percentage points.

    Args:
        scale: The x or the y axis.
        label: Label without a unit.
        unit: ``"points"`` for differences, ``"%"`` for accuracies.
    """
    # Adding 0 turns a negative zero into zero.
    scale.set_major_formatter(lambda share, _: f"{round(100 * share, 6) + 0:g}")
    scale.set_label_text(f"{label}, {unit}")


def measured(scale: Axis, column: str, label: str) -> None:
    """Label an axis by the column that it shows; accuracies are in percent or points (`UNITS`)."""
    if column in UNITS:
        accuracy(scale, label, UNITS[column])
    else:
        scale.set_label_text(label)


@functools.cache
def as_pages_show() -> None:
    """Show figures of a notebook as pages have them (:func:`shapes`).

    Their texts stay texts, which the page shows in its font and a reader can search.
    """
    import matplotlib

    if "inline" not in matplotlib.get_backend():
        return  # Outside of a notebook there may be no IPython to import.
    from IPython import get_ipython
    from matplotlib.figure import Figure

    def show(figure: Figure) -> dict[str, Any]:
        # The backend's own PNG would be that of the figure for a phone.
        formatter.formatters["image/png"].pop(Figure, None)
        return shapes(figure)

    if (shell := get_ipython()) is not None:
        formatter = shell.display_formatter
        formatter.mimebundle_formatter.for_type(Figure, show)
        matplotlib.rc("svg", fonttype="none", hashsalt="fairlib")
        matplotlib.rc("font", size=9)


def shapes(figure: Figure) -> dict[str, Any]:
    """Draw a figure for a laptop and, in the metadata of the SVG, stacked for a phone.

    Args:
        figure: Figure of :func:`new_figure` or another one, with a constrained layout. It is the
            one for a phone afterwards.

    Returns:
        By media type a PNG and an SVG, of which a page shows the shape that fits
        (``book/extensions/pages.py``).
    """
    from IPython.core.pylabtools import print_figure
    from matplotlib.text import Text

    # Once for both shapes: some plain words hold their code, such as "lottery tickets".
    for text in figure.findobj(Text):
        text.set_text(plain(text.get_text()))
    look = {"fmt": "svg", "bbox_inches": "tight", "pad_inches": 0.02}
    origin = figure.get_supxlabel()
    figure.set_figwidth(min(figure.get_figwidth(), WIDTH))
    _fit(figure, origin)
    png = print_figure(figure, **look | {"fmt": "png", "base64": True})
    wide = print_figure(figure, **look)
    _stack(figure)
    _fit(figure, origin)
    narrow = print_figure(figure, **look)
    narrow = f'<metadata class="narrow">{narrow[narrow.index("<svg") :]}</metadata>'
    return {"image/png": png, "image/svg+xml": wide.replace("</svg>", f"{narrow}</svg>")}


def _fit(figure: Figure, origin: str) -> None:
    """Break texts where their panel ends."""
    if origin:
        _say(figure, _broken(plain(origin), figure.get_figwidth()))
    for axis in figure.axes:
        across = 1.2 * axis.bbox.width / figure.dpi
        axis.set_title(_broken(axis.get_title(), across))
        axis.set_xlabel(_broken(axis.get_xlabel(), across))
        axis.set_ylabel(_broken(axis.get_ylabel(), axis.bbox.height / figure.dpi))


def plain(text: str) -> str:
    """Replace the codes in a text by plain words (`WORDS`)."""
    return _CODES.sub(lambda found: WORDS.get(found[0], WORDS[found[1]]), text)


def _broken(text: str, inches: float) -> str:
    """Break the lines of a text at a width, with fourteen letters to the inch."""
    return "\n".join(textwrap.fill(each, max(12, int(14 * inches))) for each in text.split("\n"))


def _stack(figure: Figure) -> None:
    """Put the panels of a figure below each other, as wide as a phone."""
    parts: Sequence[FigureBase] = figure.subfigs or [figure]
    panels: dict[Any, list[Any]] = {part: _axes(part) for part in parts}
    rows = sum(axes[0].get_subplotspec().get_gridspec().nrows for axes in panels.values())
    each = 0.85 * figure.get_figheight() / rows
    figure.set_size_inches(PHONE, 0.3 + each * sum(map(len, panels.values())))
    for part, axes in panels.items():
        grid = part.add_gridspec(len(axes), 1)
        for place, axis in enumerate(axes):
            # Panels that share a scale have one label, that of the first.
            alike = axis.get_shared_y_axes().get_siblings(axis)
            axis.set_ylabel(max((other.get_ylabel() for other in [axis, *alike]), key=len))
            axis.tick_params(labelleft=True)
            axis.set_subplotspec(grid[place])
        for old in part.legends:
            old.remove()
            legend(part, old.get_title().get_text())
            for text in part.legends[-1].get_texts():
                text.set_text(plain(text.get_text()))


def line(axis: Axes, values: DataFrame, *, label: str | None = None, **look: Any) -> None:
    """Draw a line of means over seeds against level, with 95 % t intervals.

    Args:
        axis: Axis to draw on.
        values: Seeds in rows, levels in columns; a level may occur twice.
        label: Label of the line in the legend.
        look: Further arguments of ``errorbar``.
    """
    means, spread = _bars(column.dropna() for _, column in values.items())
    settings: Arguments = {"marker": "o", "markersize": 4, "capsize": 2, "linewidth": 1.4}
    axis.errorbar(np.array(list(values)), means, yerr=spread, label=label, **settings | look)


def lines(
    axis: Axes,
    values: Mapping[str, DataFrame],
    *,
    looks: Mapping[str, _Look] = {},
    apart: float = 0.0,
    zero: bool = True,
    **look: Any,
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
        look: Further arguments of ``errorbar``.
    """
    scale = axis.xaxis.get_transform()
    step = apart if axis.get_xscale() == "linear" else np.log10(1 + apart)
    for place, (label, table) in enumerate(values.items()):
        # Lines are moved apart by the same distance on the screen: a factor on a logarithmic axis.
        at = scale.transform(np.array(list(table), dtype=float))
        moved = scale.inverted().transform(at + step * (place - (len(values) - 1) / 2))
        own = _look(looks, label, place) | look
        line(axis, table.set_axis(moved, axis=1), label=label, **own)
    if zero:
        axis.axhline(0, color="#555555", linewidth=0.8)


def intervals(
    axis: Axes,
    values: Mapping[str, ArrayLike | Mapping[str, ArrayLike]],
    *,
    zero: float | None = 0.0,
) -> None:
    """Draw a row for each name: one or several means over seeds with 95 % t intervals.

    Args:
        axis: Axis to draw on.
        values: By name of the row one value per seed, or by label several such:
            ``{"BiFP": {"0.8": ..., "0.95": ...}}``.
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
        own = {row: each for row, each in enumerate(table.values()) if label in each}
        # The marks of a row are centred on it, however many it has.
        rows = [
            row + apart * (list(each).index(label) - (len(each) - 1) / 2)
            for row, each in own.items()
        ]
        means, spread = _bars(each[label] for each in own.values())
        look = _look({}, label, place) | {"linestyle": "none", "markersize": 4.5, "capsize": 2}
        axis.errorbar(means, rows, xerr=spread, label=label or None, **look)
    if zero is not None:
        axis.axvline(zero, color="#555555", linewidth=0.8)
    grid_of_columns(axis)
    axis.set_yticks(range(len(table)), [escape_dollars(plain(name)) for name in table])
    axis.set_ylim(len(table) - 0.5, -0.5)


def mean_point(axis: Axes, x: ArrayLike, y: ArrayLike, **look: Any) -> tuple[float, float]:
    """Draw a point at two means over seeds, with 95 % t intervals, and return both means.

    Args:
        axis: Axis to draw on.
        x, y: One value per seed, ``(n,)``.
        look: Further arguments of ``errorbar``.
    """
    (across, up), spread = _bars([x, y])
    settings: Arguments = {"marker": "o", "capsize": 2, **look}
    axis.errorbar(across, up, xerr=spread[:, :1], yerr=spread[:, 1:], **settings)
    return float(across), float(up)


def thirds(
    axis: Axes,
    study: DataFrame,
    *,
    where: Rows = ALL,
    rank_where: Rows | None = None,
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
    training = {**(rank_where or where), "stage": "control", "split": "train"}
    ranked = effects.select(study, **training)
    sizes = effects.smallest_and_largest(ranked, column="size", rank="size").mean()
    found = {"all": effects.by_level(study, of="overall_change", where=where)} if everybody else {}
    chosen: Arguments = {"where": where, "rank_where": rank_where}
    for groups in ("largest", "smallest"):
        change = effects.by_level(study, of="accuracy_change", groups=groups, **chosen)
        found[f"{groups} third (n={sizes[groups]:,.0f})"] = change
    looks: list[_Look] = [*[("#555555", "D")] * everybody, (0, "s"), (1, "o")]
    over_levels(
        axis, effects.select(study, **where), found, looks=dict(zip(found, looks, strict=True))
    )
    # Panels of a row share the label of the first.
    place = axis.get_subplotspec()
    accuracy(axis.yaxis, CHANGE_LABEL)
    if place and not place.is_first_col():
        axis.set_ylabel("")


def groups(axis: Axes, rows: DataFrame, column: str, *, extremes: bool = False) -> None:
    """Draw the mean of a column over seeds against level for every group, the largest first.

    Args:
        axis: Axis to draw on.
        rows: Rows of one part of the data, with a column ``train_size``; those of dense networks
            are left out.
        column: Name of the column.
        extremes: Draw the largest, the middle and the smallest group of each seed instead,
            whichever these are.
    """
    # Dense networks have the level of the control and would be averaged with it.
    rows = rows[rows["stage"].isin(["control", "compressed"])]
    levels(axis, rows, control=True)
    if extremes:
        smallest = rows["group"].nunique() - 1
        # Two groups have no middle: the place is that of the largest, whose name is the later one.
        places = {"middle": smallest // 2, "largest": 0, "smallest": smallest}
        rows = _by_rank(rows, places)
    parts = split_by_group(rows)
    looks = {label: _BY_SIZE[label.split()[0]] for label in parts} if extremes else {}
    found = {
        label: part.pivot(index="seed", columns="level", values=column)
        for label, part in parts.items()
    }
    lines(axis, found, looks=looks, apart=0.02, zero=False)


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
    figure, axes = new_figure(2)
    study = effects.select(study.assign(**{column: np.log10(study[column])}), **where)
    for axis, split, name in zip(axes, ("test", "train"), ("accuracy", column), strict=True):
        groups(axis, effects.select(study, split=split), name, extremes=extremes)
    accuracy(axes[0].yaxis, "test accuracy", "%")
    axes[1].set_ylabel(f"{label}, training set")
    floor(axes[0], study)
    legend(figure, _GROUPS)
    return figure


def split_by_group(rows: DataFrame) -> dict[str, DataFrame]:
    """Split rows by group, the largest first, under labels with sizes: ``White (n=884)``.

    Args:
        rows: Rows of one part of the data, with columns ``group`` and ``train_size``.
    """
    means = rows.groupby("group")["train_size"].mean()
    return {
        f"{escape_dollars(name)} (n={size:,.0f})": rows[rows["group"] == name]
        for name, size in means.sort_values(ascending=False, kind="stable").items()
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
    """
    lines = [in_rows(len(panels)) for panels in rows.values()]
    high = [each["rows"] for each in lines]
    figure, _ = new_figure(height=0.7 * len(rows) + 2.4 * sum(high))
    figure.clear()
    parts = figure.subfigures(len(rows), 1, squeeze=False, height_ratios=high)
    alike, shown = isinstance(of, str) or set(of) == set(rows), list[str]()
    for part, shape, (label, panels) in zip(parts.flat, lines, rows.items(), strict=True):
        axes = _panels(part, **shape, sharey=alike)
        for axis, (title, table) in zip(axes, panels.items(), strict=False):
            column = of if isinstance(of, str) else of[label if alike else title]
            _over_budgets(axis, table, column, before)
            measured(axis.yaxis, "" if before else column, label if alike else title)
            words = axis.get_ylabel()
            axis.set(title=title if alike else words, ylabel="")
        for axis in axes[len(panels) :]:
            axis.remove()
        axes[0].set_ylabel(words if alike else label)
        # Panels of a row share their groups, and often the rows do: one legend for all of these.
        labels = axes[0].get_legend_handles_labels()[1]
        if labels != shown:
            legend(part, _GROUPS)
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
    figure, axes = new_figure(len(names), sharey=True)
    for axis, (arm, title) in zip(axes, names.items(), strict=True):
        own = changed[changed["arm"] == arm]
        groups(axis, own, "change", extremes=own["group"].nunique() > 5)
        axis.set_xlabel("bytes kept, %")
        axis.axhline(0, color="#555555", linewidth=0.8)
        axis.set_title(title)
        floor(axis, study, arm=arm)
    axes[0].set_ylabel(f"{CHANGE_LABEL}, points")
    legend(figure, _GROUPS)
    return figure


def prices(study: DataFrame) -> Figure:
    """Draw what each arm costs the average, and how much more it costs small groups.

    Args:
        study: Table of :func:`fairlib.study` with a column of ``whopays.effects.ARM_COLUMNS``.
    """
    found = effects.arm_losses(study)
    names = {level: level if isinstance(level, str) else f"{level:g}" for level in found["level"]}
    figure, axes = new_figure(2, height=0.9 + 0.42 * found.iloc[:, 0].nunique(), sharey=True)
    for axis, column in zip(axes, ("average", "difference"), strict=True):
        own = {
            arm: {names[at]: rows[column] for at, rows in part.groupby("level")}
            for arm, part in found.groupby(found.columns[0], sort=False)
        }
        intervals(axis, own)
    accuracy(axes[0].xaxis, "drop of the average accuracy\nagainst the control")
    accuracy(axes[1].xaxis, DROPS)
    floor(axes[1], study)
    return figure


def levels(axis: Axes, study: DataFrame, *, control: bool = False) -> None:
    """Make the x axis one of the weights or ReLUs kept (:func:`shares`).

    Args:
        axis: Axis whose x axis is changed, before anything is drawn over levels.
        study: Table of :func:`fairlib.study`, whose levels are sparsities or budgets of ReLUs.
        control: Whether the control, which keeps all, has a tick.
    """
    full = study.loc[study["stage"] == "control", "level"]
    # The control's level tells the two apart: all ReLUs are kept (1), or no weight is pruned (0).
    pruned = not (full == 1).any()
    shown = study.loc[study["stage"] == "compressed", "level"]
    shown = [*shown, *full] if control else shown
    shares(axis, shown, "weights kept" if pruned else "ReLUs kept", pruned=pruned)


def over_levels(
    axis: Axes,
    study: DataFrame,
    values: Mapping[str, DataFrame],
    *,
    control: bool = False,
    **look: Any,
) -> None:
    """Draw several lines over the weights or ReLUs kept (:func:`levels`, :func:`lines`)."""
    levels(axis, study, control=control)
    lines(axis, values, apart=0.02, **look)


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
    axis.set_xscale("log")
    _ticks(axis, ticks, [f"{tick:,.0f}" for tick in ticks], label)


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


def crosses(axis: Axes, rows: DataFrame, x: str, y: str, *, rank: str = "train_size") -> None:
    """Draw a point for each group at its two means over seeds, with 95 % t intervals.

    Args:
        axis: Axis to draw on.
        rows: One row per seed and group, with a column ``train_size``.
        x, y: Names of the columns that are drawn.
        rank: Name of the column of sizes, which give the groups their colours.
    """
    for place, (label, part) in enumerate(split_by_size(rows, rank).items()):
        mean_point(axis, part[x], part[y], label=label, linestyle="none", **_look({}, label, place))


def split_by_size(rows: DataFrame, rank: str = "train_size") -> dict[str, DataFrame]:
    """Split rows by group, the largest first (:func:`split_by_group`).

    Groups that change their sizes with the seed are split by their rank in size.

    Args:
        rows: One row per seed and group.
        rank: Name of the column of sizes.
    """
    sizes = rows.groupby("group")[rank]
    # Splits of one data set differ a little from seed to seed; sizes dealt out by it differ much.
    if (sizes.max() > 1.5 * sizes.min()).any():
        order = rows.groupby("seed")[rank].rank(method="first", ascending=False)
        rows = rows.assign(group=order.map("rank {:.0f}".format))
    return split_by_group(rows.assign(train_size=rows[rank]))


def by_name(
    axis: Axes, rows: DataFrame, column: str, label: str, *, by: str, rank: str = "train_size"
) -> None:
    """Draw means over seeds with intervals, a row for every group (:func:`split_by_size`).

    Args:
        axis: Axis to draw on.
        rows: One row per seed and group for each colour.
        column: Name of the column that is drawn.
        label: Its label (:func:`measured`).
        by: Name of the column whose values have a colour each.
        rank: Name of the column of sizes.
    """
    found: dict[str, Arguments] = {}
    for colour, part in rows.groupby(by, sort=False):
        for row, own in split_by_size(part, rank).items():
            found.setdefault(row, {})[str(colour)] = own[column]
    intervals(axis, found, zero=None)
    measured(axis.xaxis, column, label)


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


def legend(figure: FigureBase, title: str = "") -> None:
    """Draw one legend for all axes of a figure, each label once, above them.

    Args:
        figure: Figure, or a part of one, whose axes have labels.
        title: Title of the legend; none by default.
    """
    found: dict[str, Any] = {}
    for axis in _axes(figure):
        handles, labels = axis.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    if not found:
        return
    # Labels fill the rows, with thirteen letters to the inch.
    longest = 7 + max(len(plain(label)) for label in found)
    columns = int(13 * figure.get_figure(root=True).get_figwidth() / longest)
    figure.legend(
        list(found.values()),
        list(found),
        loc="outside upper center",
        ncols=min(max(columns, 1), len(found)),
        frameon=False,
        title=title or None,
    )


def _axes(part: FigureBase) -> list[Axes]:
    """List the axes of a figure, or of a part of it, that stand in a grid."""
    return [
        axis
        for axis in part.get_figure(root=True).axes
        if axis.get_figure(root=False) is part and axis.get_subplotspec()
    ]


def shares(axis: Axes, levels: Iterable[float], label: str, *, pruned: bool = False) -> None:
    """Make the x axis logarithmic in the share that is kept: compression grows to the right.

    It has to be called before anything is drawn.

    Args:
        axis: Axis whose x axis is changed.
        levels: Shares kept, in (0, 1]; or, with ``pruned``, sparsities in [0, 1).
        label: Name of what is kept; ticks are in percent.
        pruned: Whether what is drawn stands at sparsities.
    """
    found = sorted({round(1 - level, 9) if pruned else level for level in levels})
    shown = found[:1]
    for share in found:
        # Ticks of levels that are close would overlap.
        if math.log(share / shown[-1]) > math.log(found[-1] / found[0]) / 8:
            shown.append(share)
    if pruned:
        axis.set_xscale("function", functions=(_height, lambda height: 1 - 10.0**-height))
    else:
        axis.set_xscale("log")
        axis.xaxis.set_inverted(True)
    ticks = [1 - share for share in shown] if pruned else shown
    _ticks(axis, ticks, [f"{round(100 * share, 1):g}" for share in shown], f"{label}, %")


def _height(sparsity: Any) -> Any:
    """Compute where a sparsity stands on a logarithmic scale of what is kept."""
    return -np.log10(np.maximum(1 - sparsity, 1e-9))


def _ticks(axis: Axes, ticks: Sequence[float], names: Sequence[str], label: str) -> None:
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
    above.set_xticks(scale * ticks, [f"{float(f'{scale * tick:.2g}'):g}" for tick in ticks])
    above.minorticks_off()
    above.set_xlabel("kB an image (Cheetah)")


def provenance(figure: Figure, *sources: object) -> None:
    """Write under the figure where it comes from.

    Args:
        figure: Any figure.
        sources: For each line the table of a study that ran here, a recorded table
            (:func:`whopays.tables.recorded`) or a text.
    """
    as_pages_show()
    texts = (source(each) if isinstance(each, DataFrame) else str(each) for each in sources)
    _say(figure, "\n".join(texts))


def _say(figure: Figure, text: str) -> None:
    figure.supxlabel(text, fontsize="medium", color="#555555", x=0.01, ha="left")


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
        ends = {"largest": 0, "second largest": 1}
        ends |= {"second smallest": number - 2, "smallest": number - 1}
        table = _by_rank(table, ends)
    # The groups at the floor are found with the rows of all columns, before any are dropped.
    floor, table = effects.at_floor(table), table.dropna(subset=[column, before or column])
    if before:
        # By the mean over seeds: one seed in which a group starts near 0 would drown all others.
        mean = table.groupby(["group", "level"])[before].transform("mean")
        table = table.assign(**{column: 100 * (table[before] - table[column]) / mean})
    for place, (name, own) in enumerate(split_by_group(table).items()):
        low = own["group"].iloc[0] in floor
        label = name + ", at the floor" * low
        looks[label] = place, MARKERS[place]
        if before and low:
            missing.append(f"{label}: left out")
        else:
            found[label] = own.pivot(index="seed", columns="level", values=column)
    shares(axis, table["level"], "ReLUs kept")
    lines(axis, found, looks=looks, apart=0.05, zero=bool(before))
    # A line without points puts a group that has nothing to lose into the legend.
    for label in missing:
        axis.errorbar([], [], linestyle="none", label=label)
    axis.set_xlim(table["level"].max() * 1.3, table["level"].min() / 1.3)


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


def _look(looks: Mapping[str, _Look], label: str, place: int) -> Arguments:
    # Another marker if the colours repeat.
    shape = MARKERS[(place + place // len(PALETTE)) % len(MARKERS)]
    color, marker = looks.get(label, (place % len(PALETTE), shape))
    return {"color": PALETTE[color] if isinstance(color, int) else color, "marker": marker}
