"""Figures with one look: white, colour-blind-safe, every estimate with its interval and every group with its size."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fairlib import effects, environment, statistics
from fairlib._validation import lookup

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito (2008), told apart with any colour vision.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")


def new_figure(
    columns: int = 1, *, width: float = 8.0, height: float = 3.4, sharey: bool = False
) -> tuple[Figure, list]:
    """A figure with a row of axes, in the look of the book: white also in dark mode, no frame, a light grid."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1,
        columns,
        figsize=(width, height),
        facecolor="white",
        layout="constrained",
        sharey=sharey,
        squeeze=False,
    )
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
    intervals = [statistics.t_interval(column.dropna()) for _, column in values.items()]
    means = np.array([interval.estimate for interval in intervals])
    spread = np.array([(i.estimate - i.low, i.high - i.estimate) for i in intervals]).T
    spread = np.where(np.isfinite(spread), spread, np.nan)
    axis.errorbar(
        np.array(list(values)) + shift,
        means,
        yerr=spread,
        label=label,
        color=color,
        marker=marker,
        markersize=4,
        capsize=2,
        linewidth=1.4,
    )


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


def accuracy_changes(axes: Sequence[Axes], study: pd.DataFrame) -> None:
    """Change of test accuracy against the control over sparsity, for the largest and the smallest third of groups.

    Args:
        axes: One for each value of the column ``setting``, in the order of the table.
        study: Of :func:`fairlib.study`, with the column ``setting``. The sizes of the first setting rank the groups of
            all, seed by seed.
    """
    first = {"setting": study["setting"].iloc[0]}
    for axis, (setting, rows) in zip(axes, study.groupby("setting", sort=False), strict=True):
        levels = sorted(set(rows.loc[rows["stage"] == "compressed", "level"]))
        for groups, color, marker, shift in (("largest", 0, "s", -0.003), ("smallest", 1, "o", 0.003)):
            change = {
                level: effects.accuracy_change(
                    study, level=level, groups=groups, where={"setting": setting}, rank_where=first
                )
                for level in levels
            }
            by_level(
                axis, pd.DataFrame(change), label=f"{groups} third", color=PALETTE[color], marker=marker, shift=shift
            )
        axis.axhline(0, color="#555555", linewidth=0.8)
        axis.set_title(f"{setting} group sizes")
        axis.set_xlabel("sparsity (share of weights pruned)")
    axes[0].set_ylabel("change of test accuracy\nagainst the control")
    axes[0].legend(frameon=False, loc="lower left", title="groups")


def provenance(figure: Figure, text: str) -> None:
    """A line under the figure that says where it comes from, as :func:`source` words it."""
    figure.supxlabel(text, fontsize=8, color="#555555", x=0.01, ha="left")


def source(table: pd.DataFrame, evidence: str, recorded: str | Path | None = None) -> str:
    """Where a study's table comes from, in one line for :func:`provenance`.

    Args:
        table: Of :func:`fairlib.study`.
        evidence: The kind: this run, an embedded study, a real-data run.
        recorded: The JSON file beside a recorded table; without it the line names what runs here.
    """
    described = environment.describe() if recorded is None else json.loads(Path(recorded).read_text(encoding="utf-8"))
    device = described["cpu"] if described["device"] == "cpu" else described["device"]
    what = [", ".join(sorted(set(table[name]))) for name in ("data", "model", "method")]
    versions = [f"{name} {described['versions'][name]}" for name in ("fairlib", "torch")]
    changed = " with changes" if described.get("dirty") else ""
    commit = [f"commit {described['commit'][:7]}{changed}"] if described.get("commit") else []
    seeds = table["seed"].nunique()
    return ", ".join([*what, f"{seeds} seed{'s' * (seeds != 1)}", str(device), *versions, *commit, evidence])


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


def _points(axis: Axes, table: pd.DataFrame, name: str, rows: np.ndarray, color: str, label: str | None = None) -> None:
    error = np.stack([table[name] - table[f"{name}_low"], table[f"{name}_high"] - table[name]])
    axis.errorbar(
        table[name],
        rows,
        xerr=np.maximum(error, 0),
        fmt="o",
        color=color,
        label=label,
        markersize=5,
        capsize=2,
    )


def _plain(name: object) -> str:
    """A name as it is: a dollar sign would switch matplotlib to mathematics."""
    return str(name).replace("$", r"\$")
