"""Figures with one look: white, colour-blind-safe, every estimate with its interval and every group with its size."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from fairlib import effects, environment, statistics
from fairlib._validation import lookup

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito (2008), told apart with any colour vision.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
MARKERS = "osD^vP<>"


def new_figure(
    columns: int = 1, *, width: float = 8.0, height: float = 3.4, sharey: bool = False
) -> tuple[Figure, list]:
    """A figure with a row of axes, in the look of the book: white also in dark mode, no frame, a light grid."""
    import matplotlib.pyplot as plt

    look = {"figsize": (width, height), "facecolor": "white", "layout": "constrained"}
    figure, axes = plt.subplots(1, columns, sharey=sharey, squeeze=False, **look)
    for axis in axes[0]:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="#dddddd", linewidth=0.8)
        axis.set_axisbelow(True)
        axis.set_prop_cycle(color=PALETTE)
    return figure, list(axes[0])


def by_level(
    axis: Axes,
    values: pd.DataFrame,
    *,
    label: str | None = None,
    color: str | None = None,
    marker: str = "o",
    shift: float = 0.0,
) -> None:
    """A line of means over seeds against level, with 95 % t intervals.

    Args:
        axis: Where to draw.
        values: Seeds in rows, levels in columns; a level may occur twice.
        label: Of the line, for the legend.
        color: Of the line; the next of the palette by default.
        marker: Of the means.
        shift: To the right, so that lines which coincide stay apart.
    """
    means, spread = _bars(column.dropna() for _, column in values.items())
    look = {"color": color, "marker": marker, "markersize": 4, "capsize": 2, "linewidth": 1.4}
    axis.errorbar(np.array(list(values)) + shift, means, yerr=spread, label=label, **look)


def lines(
    axis: Axes,
    values: Mapping[str, pd.DataFrame],
    *,
    looks: Mapping[str, tuple[int | str, str]] | None = None,
    apart: float = 0.0,
    zero: bool = True,
) -> None:
    """A line for each of several things, as :func:`by_level` draws one, side by side.

    Args:
        axis: Where to draw.
        values: By label, seeds in rows and levels in columns.
        looks: Colour (a place in `PALETTE` or a name) and marker by label; else one after the other.
        apart: Distance from one line to the next along the x axis; on a logarithmic axis as a share.
        zero: Mark the height zero.
    """
    for place, (label, table) in enumerate(values.items()):
        x, middle = np.array(list(table), dtype=float), place - (len(values) - 1) / 2
        moved = x * (1 + apart) ** middle if axis.get_xscale() == "log" else x + apart * middle
        by_level(axis, table.set_axis(moved, axis=1), label=label, **_look(looks, label, place))
    if zero:
        axis.axhline(0, color="#555555", linewidth=0.8)


def intervals(
    axis: Axes,
    values: Mapping[str, ArrayLike | Mapping[str, ArrayLike]],
    *,
    looks: Mapping[str, tuple[int | str, str]] | None = None,
    zero: float | None = 0.0,
) -> None:
    """A row for each name: the mean over seeds with its 95 % t interval, or several with colours of their own.

    Args:
        axis: Where to draw; of several that share their rows, the first names them.
        values: One value per seed by name, or a mapping of several such by label:
            ``{"BiFP": {"0.8": ..., "0.95": ...}}``.
        looks: As for :func:`lines`, by label.
        zero: Where a vertical line is drawn; None for none.
    """
    table = {name: own if isinstance(own, Mapping) else {"": own} for name, own in values.items()}
    labels = list(dict.fromkeys(label for own in table.values() for label in own))
    for place, label in enumerate(labels):
        known = {row: own for row, own in enumerate(table.values()) if label in own}
        means, spread = _bars(own[label] for own in known.values())
        apart = min(0.22, 0.8 / len(labels))
        rows = [row + apart * (list(own).index(label) - (len(own) - 1) / 2) for row, own in known.items()]
        look = _look(looks, label, place) | {"linestyle": "none", "markersize": 4.5, "capsize": 2}
        axis.errorbar(means, rows, xerr=spread, label=label or None, **look)
    if zero is not None:
        axis.axvline(zero, color="#555555", linewidth=0.8)
    axis.grid(axis="y", visible=False)
    axis.grid(axis="x", color="#dddddd", linewidth=0.8)
    axis.set_yticks(range(len(table)), [_plain(name) for name in table])
    axis.set_ylim(len(table) - 0.5, -0.5)


def cross(axis: Axes, x: ArrayLike, y: ArrayLike, **look: Any) -> tuple[float, float]:
    """A point at two means over seeds, with 95 % t intervals in both directions; gives back the two means.

    Args:
        axis: Where to draw.
        x, y: One value per seed, ``(n,)``.
        look: Further arguments of ``errorbar``.
    """
    means, spread = _bars([x, y])
    axis.errorbar(*means, xerr=spread[:, :1], yerr=spread[:, 1:], **({"marker": "o", "capsize": 2} | look))
    return float(means[0]), float(means[1])


def thirds(
    axis: Axes,
    study: pd.DataFrame,
    *,
    where: Mapping[str, Any] | None = None,
    rank_where: Mapping[str, Any] | None = None,
    everybody: bool = False,
) -> None:
    """Change of test accuracy against the control over the level, for the largest and the smallest third of groups.

    Args:
        axis: Where to draw.
        study: Table of :func:`fairlib.study`.
        where, rank_where: As in :func:`fairlib.effects.drop_difference`.
        everybody: Also draw the change over all test samples.
    """
    where = dict(where or {})
    ranked = effects.select(study, **(rank_where or where) | {"stage": "control", "split": "train"})
    sizes = effects.groups_by_size(ranked, column="size", rank="size").columns
    third = -(-len(sizes) // 3)
    found = {"all": effects.by_level(study, of="overall_change", where=where)} if everybody else {}
    for groups, part in (("largest", sizes[-third:]), ("smallest", sizes[:third])):
        found[f"{groups} third (n={part.to_numpy().mean():,.0f})"] = effects.by_level(
            study, of="accuracy_change", groups=groups, where=where, rank_where=rank_where
        )
    looks = [("#555555", "D")] * everybody + [(0, "s"), (1, "o")]
    levels(axis, effects.select(study, **where))
    lines(axis, found, looks=dict(zip(found, looks, strict=True)), apart=0.006)
    if axis.get_subplotspec().is_first_col():
        axis.set_ylabel("change of test accuracy\nagainst the control")


def groups(axis: Axes, rows: pd.DataFrame, column: str, *, extremes: bool = False) -> None:
    """A column over the level for every group, the largest first.

    Args:
        axis: Where to draw.
        rows: Rows of one part of the data, with a column ``train_size``; those of dense networks are left out.
        column: Whose mean over seeds is drawn.
        extremes: Draw the largest, the middle and the smallest group of each seed, whichever these are.
    """
    rows = rows[rows["stage"].isin(["control", "compressed"])]
    names = rows.groupby("group")["train_size"].mean().sort_values(ascending=False).index
    parts, looks = {_plain(name): rows[rows["group"] == name] for name in names}, None
    if extremes:
        order = rows.groupby(["seed", "level"])["train_size"].rank(method="first", ascending=False)
        places = {"largest": 1, "middle": (len(names) + 1) // 2, "smallest": len(names)}
        parts, looks = {name: rows[order == place] for name, place in places.items()}, [(0, "s"), (2, "^"), (1, "o")]
    found = {
        f"{name} (n={part['train_size'].mean():,.0f})": part.pivot(index="seed", columns="level", values=column)
        for name, part in parts.items()
    }
    levels(axis, rows)
    lines(axis, found, looks=looks and dict(zip(found, looks, strict=True)), apart=0.004, zero=False)


def history(axis: Axes, table: pd.DataFrame, what: str, sizes: pd.Series) -> None:
    """What a constraint recorded, epoch by epoch, of the largest, the middle and the smallest group.

    Args:
        axis: Where to draw.
        table: Of :func:`fairlib.history`, with a column ``what[group]`` for every group.
        what: ``"violation"`` or ``"multiplier"``, or what else the constraint recorded.
        sizes: Training samples by group.
    """
    names = sizes.sort_values().index
    chosen = (names[-1], names[len(names) // 2], names[0])
    for name, color, marker in zip(chosen, (0, 2, 1), "s^o", strict=True):
        look = {"color": PALETTE[color], "marker": marker, "markersize": 4}
        axis.plot(table[f"{what}[{name}]"], label=f"{_plain(name)} (n={sizes[name]:,.0f})", **look)
    axis.set(xlabel="epoch", ylabel=what)


def levels(axis: Axes, study: pd.DataFrame) -> None:
    """Name the axis of levels: sparsities as they are, budgets of ReLUs in percent on a logarithmic scale."""
    if (study.loc[study["stage"] == "control", "level"] == 1).any():  # A budget; that of a sparsity is 0.
        shares(axis, study.loc[study["stage"] == "compressed", "level"], "budget: share of ReLUs kept")
    else:
        axis.set_xlabel("sparsity (share of weights pruned)")


def sizes(axis: Axes, values: Iterable[float], label: str = "training images of the group") -> None:
    """A logarithmic axis of group sizes, with ticks at the smallest, the middle and the largest and nowhere else."""
    values = sorted(set(values))
    ticks = sorted({values[place] for place in (0, len(values) // 2, -1)})
    axis.set_xscale("log")
    axis.set_xticks(ticks, [f"{tick:,.0f}" for tick in ticks])
    axis.minorticks_off()
    axis.set_xlabel(label)


def by_size(axis: Axes, rows: pd.DataFrame, column: str, *, by: str, zero: bool = True) -> None:
    """A column over the size of the groups, those of each seed ranked by it, in a line for each value of another one.

    Args:
        axis: Where to draw.
        rows: A row for each value, seed and group, with a column ``train_size``.
        column: Whose mean over seeds is drawn; it names the y axis.
        by: The column that names the lines; rows without a value there are left out.
        zero: Mark the height zero.
    """
    found = {name: effects.groups_by_size(own, column=column) for name, own in rows.groupby(by, sort=False)}
    sizes(axis, next(iter(found.values())))
    lines(axis, found, apart=0.02, zero=zero)
    axis.set_ylabel(column)


def legend(figure: Figure, title: str = "", *, right: bool = False) -> None:
    """One legend for all axes of a figure, each label once, above them or to their right."""
    pairs = [axis.get_legend_handles_labels() for axis in figure.axes]
    found = {label: handle for handles, labels in pairs for handle, label in zip(handles, labels, strict=True)}
    place, columns = ("outside right upper", 1) if right else ("outside upper center", min(len(found), 5))
    figure.legend(list(found.values()), list(found), loc=place, ncols=columns, frameon=False, title=title or None)


def shares(axis: Axes, levels: Iterable[float], label: str) -> None:
    """A logarithmic axis of shares, with ticks in percent at the levels of a study and nowhere else."""
    ticks = sorted(set(levels))
    axis.set_xscale("log")
    axis.set_xticks(ticks, [f"{100 * tick:g} %" for tick in ticks])
    axis.minorticks_off()
    axis.set_xlabel(label)


def relu_traffic(axis: Axes, relus: int, measured: pd.DataFrame, protocol: str = "CHEETAH") -> None:
    """A second axis above one of budgets: what two parties send for the ReLUs of one image, in kB.

    The budget times the network's ReLUs times the bytes of one ReLU. These are the slope of bytes sent over ReLUs kept,
    by least squares with an intercept for every network, image size and batch; what linear layers send is none of it.

    Args:
        axis: Over shares of ReLUs kept, with its ticks where this one's shall be (:func:`fairlib.plots.shares`).
        relus: The ReLUs of the network at a share of 1.
        measured: Runs of an engine for private inference, with columns ``network image_size batch protocol relus
            bytes_sent``; of a batch, the bytes of all its images.
        protocol: Whose runs count.

    Raises:
        ValueError: If the protocol is unknown.
    """
    lookup("protocol", protocol, dict.fromkeys(measured["protocol"]))
    runs = measured[measured["protocol"] == protocol]
    runs = runs.assign(bytes=runs["bytes_sent"] / runs["batch"])[["network", "image_size", "batch", "relus", "bytes"]]
    centred = runs[["relus", "bytes"]] - runs.groupby(["network", "image_size", "batch"]).transform("mean")
    one = (centred["relus"] * centred["bytes"]).sum() / (centred["relus"] ** 2).sum()
    scale = relus * one / 1000
    above = axis.secondary_xaxis("top", functions=(lambda share: share * scale, lambda sent: sent / scale))
    above.set_xticks(scale * axis.get_xticks(), [f"{scale * tick:.3g}" for tick in axis.get_xticks()], fontsize=8)
    above.minorticks_off()
    above.set_xlabel(f"kB for the ReLUs of an image ({protocol.capitalize()})", fontsize=8)


def provenance(figure: Figure, *sources: object) -> None:
    """A line under the figure that says where it comes from.

    Args:
        figure: Any.
        sources: The table of a study that ran here, a recorded table (:func:`fairlib.evidence.tables.recorded`) or a
            text; a line for each.
    """
    text = "\n".join(source(each) if isinstance(each, pd.DataFrame) else str(each) for each in sources)
    figure.supxlabel(text, fontsize=8, color="#555555", x=0.01, ha="left")


def source(table: pd.DataFrame, evidence: str = "this run", recorded: str | Path | None = None) -> str:
    """Where a study's table comes from, in one line for :func:`provenance`.

    Args:
        table: Table of :func:`fairlib.study`. More than three methods are counted, by arm where it has arms.
        evidence: The kind: this run, an embedded study, a real-data run.
        recorded: The JSON file beside a recorded table; without it the line names what runs here.
    """
    described = environment.describe() if recorded is None else json.loads(Path(recorded).read_text(encoding="utf-8"))
    device = described["cpu"] if described["device"] == "cpu" else described["device"]
    what = [", ".join(sorted(set(table[name].dropna()))) for name in ("data", "model")] + [_methods(table)]
    versions = [f"{name} {described['versions'][name]}" for name in ("fairlib", "torch")]
    changed = " with changes" if np.any(described.get("dirty")) else ""
    commits = ", ".join(commit[:7] for commit in np.atleast_1d(described.get("commit") or []))
    commit = [f"commit {commits}{changed}"] if commits else []
    seeds = table["seed"].nunique()
    return ", ".join([*what, f"{seeds} seed{'s' * (seeds != 1)}", str(device), *versions, *commit, evidence])


def _methods(table: pd.DataFrame) -> str:
    """The names of up to three methods, or how many there are; a table without a method has arms."""
    arm = next((name for name in effects.ARMS if name in table), "method")
    named = sorted(set(table["method" if "method" in table else arm].dropna()))
    if len(named) <= 3:
        return ", ".join(named)
    compressed = table["stage"] == "compressed" if "stage" in table else table["level"] != 0
    return f"{table.loc[compressed, arm].nunique()} methods"


def audit(table: pd.DataFrame) -> Figure:
    """Accuracy before and after, and excessive loss, of every group in the table of a :class:`fairlib.Report`."""
    figure, (left, right) = new_figure(2, width=9.0, height=1.6 + 0.35 * len(table))
    rows = np.arange(len(table))[::-1]
    for shift, when, color in ((0.13, "before", PALETTE[0]), (-0.13, "after", PALETTE[1])):
        _points(left, table, f"accuracy_{when}", rows + shift, color, label=when)
    _points(right, table, "excessive_loss", rows, PALETTE[3])
    right.axvline(0, color="#555555", linewidth=0.8)
    left.set_yticks(rows, [f"{_plain(group)} (n={row['size']:,.0f})" for group, row in table.iterrows()])
    right.set_yticks(rows, [""] * len(rows))
    left.set_xlabel("accuracy")
    right.set_xlabel("excessive loss (nats)")
    left.legend(frameon=False)
    for axis in (left, right):
        axis.grid(axis="y", visible=False)
        axis.grid(axis="x", color="#dddddd", linewidth=0.8)
    return figure


def _bars(values: Iterable[ArrayLike]) -> tuple[np.ndarray, np.ndarray]:
    """Means over seeds ``(n,)`` and how far their 95 % t intervals reach down and up ``(2, n)``; NaN of one seed."""
    found = [statistics.t_interval(each) for each in values]
    means = np.array([interval.estimate for interval in found])
    spread = np.array([(i.estimate - i.low, i.high - i.estimate) for i in found]).T
    return means, np.where(np.isfinite(spread), spread, np.nan)


def _points(axis: Axes, table: pd.DataFrame, name: str, rows: np.ndarray, color: str, label: str | None = None) -> None:
    error = np.stack([table[name] - table[f"{name}_low"], table[f"{name}_high"] - table[name]])
    look = {"fmt": "o", "color": color, "label": label, "markersize": 5, "capsize": 2}
    axis.errorbar(table[name], rows, xerr=np.maximum(error, 0), **look)


def _look(looks: Mapping[str, tuple[int | str, str]] | None, label: str, place: int) -> dict[str, Any]:
    color, marker = (looks or {}).get(label, (place % len(PALETTE), MARKERS[place % len(MARKERS)]))
    return {"color": PALETTE[color] if isinstance(color, int) else color, "marker": marker}


def _plain(name: object) -> str:
    """A name as it is: a dollar sign would switch matplotlib to mathematics."""
    return str(name).replace("$", r"\$")
