"""What is computed from the recorded tables when the pages are staged: ``python book/tools/front.py
FOLDER``.

FOLDER holds a copy of ``_config.yml`` and of ``book``. Written there are the values of the prose
pages (`values`), as substitutions of the configuration; the figures of the front page and of all
runs, each for a laptop and for a telephone; and the data of the page whose slider moves through the
tables (`explore`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import explore
import matplotlib
import pandas as pd
import values
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from fairlib.statistics import t_interval
from whopays import effects, plots

Rows = dict[str, Any]  # Values of columns that select rows.
BOTH = ("smallest", "largest")  # Thirds of the groups, by their training images.
COLOURS = dict(zip(BOTH, (plots.PALETTE[1], plots.PALETTE[0]), strict=True))
CELLS = ("model", "method", "pruner")  # Columns that tell compressors and networks apart.
PLAIN: Rows = {"when": "never"}


BITS, THIN, NARROW = "fewer bits", "thin layers", "student"
WAYS: dict[str, tuple[str, Rows]] = {
    BITS: (plots.PALETTE[0], {"arm": "quantize"}),
    "pruned": (plots.PALETTE[1], {"arm": "prune"}),
    "pruned, fewer bits": (plots.PALETTE[1], {"arm": "prune + quantize"}),
    THIN: (plots.PALETTE[2], {"arm": "factorize"}),
    "thin layers, fewer bits": (plots.PALETTE[2], {"arm": "factorize + quantize"}),
    NARROW: (plots.PALETTE[3], {"arm": "distil"}),
    "student, fewer bits": (plots.PALETTE[3], {"arm": "distil + quantize"}),
    "small network": ("#555555", {"arm": "small dense"}),
}
"""By the name of a way of making a network smaller its colour, and its rows where all ways had one
budget.
"""

ONE_BUDGET = {
    "digits": "every-way/one-budget-study",
    "faces by race": "every-way/one-budget-utkface-all",
    "hair by gender": "every-way/one-budget-celeba",
}
"""By the data and their groups the tables in which all ways had one budget."""

RESNET18: dict[str, tuple[str, Rows]] = {
    BITS: ("every-way/fewer-bits-resnet18", {"arm": "finetuned"}),
    THIN: ("every-way/lower-rank-resnet18", {"arm": "one energy"}),
    NARROW: ("every-way/a-smaller-student-resnet18", {"arm": "taught"}),
    "small network": ("every-way/a-smaller-student-resnet18", {"arm": "alone"}),
}
"""By way the table of a ResNet-18 of full width on faces, and its rows."""


class Panel(NamedTuple):
    """A panel: the data and their groups; the table of the lines, and those of the dots, each with
    the rows taken.
    """

    data: str
    line: tuple[str, Rows]
    dots: tuple[tuple[str, Rows], ...]


UNEQUAL: Rows = {"setting": "unequal"}
PRUNED: tuple[Panel, ...] = (
    Panel(
        "digits",
        ("pruning/matthew-effect-study", UNEQUAL),
        (
            ("pruning/which-pruner-study", {}),
            ("pruning/networks-and-attributes-study", {"attribute": "many values"}),
            ("mitigation/full-constraint-mnist", PLAIN),
        ),
    ),
    Panel(
        "faces by race",
        ("pruning/matthew-effect-utkface", UNEQUAL),
        (
            ("pruning/which-pruner-utkface", {}),
            ("pruning/matthew-effect-resnet18", UNEQUAL),
            ("pruning/networks-and-attributes-utkface-all", {"attribute": "many values"}),
        ),
    ),
    Panel("faces by age", ("mitigation/when-to-mitigate-ages", PLAIN), ()),
    Panel("CIFAR-10", ("mitigation/when-to-mitigate-cifar10-all", PLAIN), ()),
)
SNL: Rows = {"setting": "unequal", "method": "linearize:snl"}
LINEARIZED: tuple[Panel, ...] = (
    Panel(
        "digits",
        ("linearization/who-pays-for-relus-study", SNL),
        (
            ("linearization/who-pays-for-relus-study", UNEQUAL | {"method": "linearize:random"}),
            ("linearization/which-linearizer-study", {}),
        ),
    ),
    Panel(
        "faces by race",
        ("linearization/who-pays-for-relus-races-all", SNL),
        (
            (
                "linearization/who-pays-for-relus-races-all",
                UNEQUAL | {"method": "linearize:random"},
            ),
            ("linearization/who-pays-for-relus-networks-races-all", {}),
            ("linearization/which-linearizer-races-all", {}),
        ),
    ),
    Panel(
        "faces by age",
        ("linearization/who-pays-for-relus-ages-all", SNL),
        (
            ("linearization/who-pays-for-relus-ages-all", UNEQUAL | {"method": "linearize:random"}),
            ("linearization/who-pays-for-relus-networks-ages-all", {}),
            ("linearization/giving-it-back-ages-all", PLAIN | {"method": "linearize:deepreduce"}),
        ),
    ),
    Panel(
        "digits, ResNet-34",
        (
            "linearization/who-pays-for-relus-networks",
            {"model": "resnet34", "method": "linearize:snl"},
        ),
        (("linearization/who-pays-for-relus-networks", {}),),
    ),
)
TWO_GROUPS = ("celeba", "synthetic-faces", "parabola")
"""Data sets that are left out: of two groups, the smaller is at the floor; and the toy boundary."""


def changes(name: str, where: Rows) -> Iterator[pd.DataFrame]:
    """By compressor and network of a table: the share kept, and by third the mean change over seeds
    with its interval.

    Args:
        name: Path of the table below ``results``, without the suffix.
        where: Values of columns that select the rows.

    Returns:
        For each compressor and network a table with a row for each level, the most kept first: the
        column ``kept``, and in points for each third (`BOTH`) its name, and its name with
        ``_half``, half of the 95 % interval.
    """
    table = effects.select(values.table(f"results/{name}.csv"), **where)
    cells = [column for column in CELLS if column in table]
    for _, own in table.groupby(cells):
        compressed = own[own["stage"] == "compressed"]
        rows = []
        for level, run in compressed.groupby("level"):
            row = {"kept": run["kept"].mean()}
            for third in BOTH:
                found = t_interval(100 * effects.accuracy_change(own, level=level, groups=third))
                row |= {third: found.estimate, f"{third}_half": found.high - found.estimate}
            rows.append(row)
        yield pd.DataFrame(rows).sort_values("kept", ascending=False, ignore_index=True)


def ways() -> dict[str, dict[str, pd.DataFrame]]:
    """By panel of the front page's figure and by way the share of bytes kept and what groups lose
    (:func:`changes`).
    """
    sources = {
        title: {way: (name, rows) for way, (_, rows) in WAYS.items()}
        for title, name in ONE_BUDGET.items()
    }
    sources["faces, ResNet-18"] = RESNET18
    panels: dict[str, dict[str, pd.DataFrame]] = {title: {} for title in sources}
    for title, own in sources.items():
        for way, source in own.items():
            (panels[title][way],) = changes(*source)
    return panels


def one_axis(width: float, height: float, columns: int, size: float) -> Figure:
    """Draw the figure of the front page: what the smallest third of groups loses over the bytes
    that are kept.

    Args:
        width, height: Size in inches.
        columns: Number of panels in a row.
        size: Size of the texts in points.
    """
    panels = ways()
    with matplotlib.rc_context(
        {"font.size": size, "axes.titlesize": size, "axes.titleweight": "bold"}
    ):
        drawn, axes = plots.new_figure(
            columns, rows=len(panels) // columns, width=width, height=height
        )
        for axis, (title, own) in zip(axes, panels.items(), strict=True):
            for place, (way, found) in enumerate(own.items()):
                look = {
                    "color": WAYS[way][0],
                    "linestyle": "--" if "," in way else "-",
                    "label": way,
                }
                aside = found["kept"] * 1.012 ** (
                    place - len(own) / 2
                )  # So that intervals stand beside each other.
                axis.errorbar(
                    aside,
                    found[BOTH[0]],
                    yerr=found[f"{BOTH[0]}_half"],
                    marker="o",
                    markersize=3,
                    **look,
                )
            axis.set_title(title, loc="left")
            axis.set_xscale("log")
            axis.set_xlim(0.36, 0.05)
            axis.set_xticks([0.3, 0.2, 0.1, 0.06], ["30", "20", "10", "6"])
            axis.xaxis.set_minor_locator(NullLocator())
            axis.axhline(0, color="#555555", linewidth=0.8)
        for axis in axes[-columns:]:
            axis.set_xlabel("bytes kept, %")
        handles = [handle[0] for handle in axes[0].get_legend_handles_labels()[0]]
        look = {
            "frameon": False,
            "labelcolor": "linecolor",
            "handlelength": 2.2,
            "columnspacing": 1.0,
        }
        drawn.legend(handles, WAYS, loc="outside upper left", ncols=4 if columns > 1 else 2, **look)
        drawn.supylabel("smallest groups: change of\ntest accuracy, points", fontsize=size)
    return drawn


def draw(axis: Axes, panel: Panel) -> None:
    """Draw a panel: the lines with intervals from the control on, and a dot for every other
    compressor and level.
    """
    for name, where in panel.dots:
        for other in changes(name, where):
            for third in BOTH:
                axis.plot(
                    other["kept"],
                    other[third],
                    "o",
                    color=COLOURS[third],
                    markersize=3.2,
                    alpha=0.6,
                    mew=0,
                )
    (own,) = changes(*panel.line)
    for third in BOTH:
        kept, mean, half = (
            [start, *own[name]] for start, name in ((1, "kept"), (0, third), (0, f"{third}_half"))
        )
        axis.errorbar(
            kept,
            mean,
            yerr=half,
            color=COLOURS[third],
            marker="o",
            markersize=3.5,
            linewidth=1.8,
            capsize=2,
        )


def figure(width: float, height: float, columns: int, size: float) -> Figure:
    """Draw the figure of all runs of pruning and of ReLUs.

    Args:
        width, height: Size in inches.
        columns: 4 for two rows of four panels, or 2 for four rows of two.
        size: Size of the texts in points.
    """
    rows = [PRUNED, LINEARIZED] if columns == 4 else list(zip(PRUNED, LINEARIZED, strict=True))
    with matplotlib.rc_context(
        {"font.size": size, "axes.titlesize": size, "axes.titleweight": "bold"}
    ):
        drawn, axes = plots.new_figure(columns, rows=len(rows), width=width, height=height)
        for axis, panel in zip(axes, (panel for row in rows for panel in row), strict=True):
            draw(axis, panel)
            _label(axis, panel, last=columns == 4 or panel in rows[-1])
            title = ("Pruning", "Fewer ReLUs")[panel in LINEARIZED], panel.data
            axis.set_title("\n".join(title), loc="left")
        lines = [
            axes[0].plot(
                [], [], color=COLOURS[third], linewidth=1.8, label=f"{third} third of groups"
            )[0]
            for third in BOTH
        ]
        look = {
            "frameon": False,
            "labelcolor": "linecolor",
            "handlelength": 1.2,
            "columnspacing": 1.0,
        }
        drawn.legend(handles=lines, loc="outside upper left", ncols=2, **look)
        drawn.supylabel("change of test accuracy, points", fontsize=size)
    return drawn


def _label(axis: Axes, panel: Panel, *, last: bool) -> None:
    """Write limits and ticks of a panel."""
    pruned = panel in PRUNED
    axis.set_xscale("log")
    axis.set_xlim(1.15, 0.008 if pruned else 0.017)
    ticks = [1, 0.3, 0.1, 0.03, 0.01][: 5 if pruned else 4]
    axis.set_xticks(ticks, [f"{100 * tick:g}" for tick in ticks])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
    axis.axhline(0, color="#555555", linewidth=0.8)
    if last:
        axis.set_xlabel("weights kept, %" if pruned else "ReLUs kept, %")
    low, high = axis.get_ylim()
    axis.set_ylim(low, max(high, -0.18 * low))


@values.value
def front_seeds() -> str:
    """Range of the number of seeds behind the figure of the front page."""
    names = {*ONE_BUDGET.values(), *(name for name, _ in RESNET18.values())}
    counts = [values.table(f"results/{name}.csv")["seed"].nunique() for name in names]
    return f"{min(counts)} to {max(counts)}"


@values.value
def runs_seeds() -> str:
    """Range of the number of seeds behind the lines of all runs."""
    counts = [
        values.table(f"results/{panel.line[0]}.csv")["seed"].nunique()
        for panel in PRUNED + LINEARIZED
    ]
    return f"{min(counts)} to {max(counts)}"


@values.value
def runs_floor() -> str:
    """The groups that have nothing to lose in some of the tables."""
    shown = [source for panel in PRUNED + LINEARIZED for source in (panel.line, *panel.dots)]
    found = [
        effects.at_floor(effects.select(values.table(f"results/{name}.csv"), **where))
        for name, where in shown
    ]
    return values.listed(sorted({f"*{group}*" for groups in found for group in groups}))


def main(folder: str) -> None:
    matplotlib.use("agg")
    config = Path(folder, "_config.yml")
    settings = yaml.safe_load(config.read_text(encoding="utf-8"))
    settings["sphinx"]["config"]["myst_substitutions"] = values.texts()
    config.write_text(
        yaml.safe_dump(settings, sort_keys=False, allow_unicode=True), encoding="utf-8"
    )
    drawn = Path(folder, "book", "_front")
    drawn.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "book"}
    ):  # Texts as texts, the same each time.
        for name, shape in (("wide", (8.6, 4.8, 4, 9)), ("narrow", (3.9, 8.9, 2, 9))):
            figure(*shape).savefig(drawn / f"runs-{name}.svg", metadata={"Date": None})
        for name, shape in (("wide", (8.6, 3.6, 4, 9)), ("narrow", (3.9, 8.9, 1, 9))):
            one_axis(*shape).savefig(drawn / f"{name}.svg", metadata={"Date": None})
        explore.still().savefig(drawn / "explore.svg", metadata={"Date": None})
    (drawn / "explore.html").write_text(explore.html(), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
