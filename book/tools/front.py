"""Compute figures and numbers of the prose pages when these are staged.

``python book/tools/front.py FOLDER``

FOLDER holds a copy of ``_config.yml`` and of ``book``. Written there are the values of the prose
pages (`values`), as substitutions of the configuration; the figures of the front page and of all
runs, each for a laptop and for a telephone; and the data of the page whose slider moves through the
tables (`explore`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import explore
import matplotlib
import pandas as pd
import values
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from whopays import effects, plots

Rows = dict[str, Any]  # Values of columns that select rows.
BOTH = ("smallest", "largest")  # Thirds of the groups, by their training images.
COLOURS = dict(zip(BOTH, (plots.PALETTE[1], plots.PALETTE[0]), strict=True))
CELLS = ("model", "method", "pruner")  # Columns that tell compressors and networks apart.
SIZE = 9  # Of texts, in points.
THIN_LINES: Rows = {"markersize": 3, "linewidth": 1.5, "capsize": 0}
LEGEND: Rows = {
    "loc": "outside upper left",
    "frameon": False,
    "labelcolor": "linecolor",
    "columnspacing": 1.0,
}


COVER: dict[str, Rows] = values.SHOWN["cover"]
WAYS, ONE_BUDGET = values.SHOWN["ways"], values.SHOWN["one_budget"]
RESNET18, PRUNED, LINEARIZED = (values.SHOWN[name] for name in ("resnet18", "pruned", "linearized"))
TWO_GROUPS = ("celeba", "synthetic-faces", "parabola")
"""Data sets that are left out: of two groups, the smaller is at the floor; and the toy boundary."""


def changes(table: str, rows: Rows = effects.ALL) -> Iterator[dict[str, pd.DataFrame]]:
    """Compute the change of accuracy for each compressor and network of a table, in points.

    Args:
        table: Path of the table below ``results``, without the suffix.
        rows: Values of columns that select the rows.

    Returns:
        For each compressor and network, by third of the groups (`BOTH`), a table with seeds in rows
        and the shares kept in columns, the most kept first.
    """
    found = effects.select(values.table(f"results/{table}.csv"), **rows)
    for _, own in found.groupby([column for column in CELLS if column in found]):
        # Levels mean different things for different compressors; the share kept is the common axis.
        kept = own[own["stage"] == "compressed"].groupby("level")["kept"].mean()
        thirds = {}
        for third in BOTH:
            change = 100 * effects.by_level(own, of="accuracy_change", groups=third)
            thirds[third] = change.rename(columns=kept).sort_index(axis=1, ascending=False)
        yield thirds


GROUPS = {"large": plots.PALETTE[0], "all": "#555555", "small": plots.PALETTE[1]}
"""Lines of the cover, with their colours."""


def cover_changes(look: Rows) -> dict[str, pd.DataFrame]:
    """Compute the change of accuracy of the groups of a panel by pruning, in points.

    Args:
        look: Table, rows, and names of the small and the large group.

    Returns:
        By line (`GROUPS`) a table with seeds in rows and the shares of weights kept in columns.
    """
    table = values.table(f"results/{look['table']}.csv")
    found = {}
    for line in GROUPS:
        where = look["rows"] | {"arm": "prune"} | ({"group": look[line]} if line in look else {})
        change = 100 * effects.by_level(table, of="overall_change", where=where)
        found[line] = change.rename(columns=lambda level: 1 - level)
        # The control, of which everything is kept, has changed by nothing.
        found[line].insert(0, 1.0, 0.0)
    return found


def cover(width: float, height: float, columns: int) -> Figure:
    """Draw the cover: what a small group, a large one and everybody lose as weights are pruned.

    Args:
        width, height: Size in inches.
        columns: Number of panels in a row.
    """
    rows = len(COVER) // columns
    drawn, axes = plots.new_figure(columns, rows=rows, width=width, height=height, sharey=True)
    for axis, (title, look) in zip(axes, COVER.items(), strict=True):
        for line, found in cover_changes(look).items():
            plots.line(axis, found, label=line, color=GROUPS[line], markersize=4, linewidth=2.2)
        axis.set_title(title, loc="left")
        _kept(axis, (1.15, 0.017), [1, 0.1, 0.05, 0.02])
    for axis in axes[-columns:]:
        axis.set_xlabel("weights kept, %")
    names = {"small": "small group", "large": "large group", "all": "everybody"}
    handles = dict(zip(GROUPS, axes[0].get_legend_handles_labels()[0], strict=True))
    drawn.legend([handles[line] for line in names], names.values(), **LEGEND | {"ncols": 3})
    drawn.supylabel("change of test accuracy, points", fontsize=SIZE)
    return drawn


def ways() -> dict[str, dict[str, pd.DataFrame]]:
    """Compute what the smallest groups lose, by panel of the figure and way.

    What is also stored in fewer bits has a panel of its own, beside that of the ways alone.
    """
    sources = {
        title: {way: {"table": name, "rows": {"arm": look["arm"]}} for way, look in WAYS.items()}
        for title, name in ONE_BUDGET.items()
    }
    sources["faces, ResNet-18"] = RESNET18
    found: dict[str, dict[str, pd.DataFrame]] = {}
    for title, own in sources.items():
        for way, source in own.items():
            (thirds,) = changes(**source)
            panel = f"{title}, {'two ways' if ',' in way else 'one way'}"
            found.setdefault(panel, {})[way] = thirds["smallest"]
    return found


def one_axis(width: float, height: float, columns: int) -> Figure:
    """Draw the figure of all ways: what the smallest groups lose over the bytes kept.

    Args:
        width, height: Size in inches.
        columns: Number of panels in a row.
    """
    shown = ways()
    drawn, axes = plots.new_figure(
        columns, rows=-(-len(shown) // columns), width=width, height=height
    )
    for axis, (title, own) in zip(axes, shown.items(), strict=False):
        for place, (way, found) in enumerate(own.items()):
            # Side by side: at one place the intervals of five ways would hide each other.
            beside = found.set_axis(found.columns * 1.012 ** (place - len(own) / 2), axis=1)
            look = {"color": plots.PALETTE[WAYS[way]["color"]]} | THIN_LINES
            plots.line(axis, beside, label=way, linestyle="--" if "," in way else "-", **look)
        axis.set_title(title, loc="left")
        _kept(axis, (0.36, 0.05), [0.3, 0.2, 0.1, 0.06])
    for one, two in zip(axes[::2], axes[1::2], strict=False):
        two.sharey(one)
    for axis in axes[len(shown) :]:
        axis.remove()
    for axis in drawn.axes[-columns:]:
        axis.set_xlabel("bytes kept, %")
    plots.legend(drawn)
    drawn.supylabel("smallest groups: change of\ntest accuracy, points", fontsize=SIZE)
    return drawn


def draw(axis: Axes, panel: Rows) -> None:
    """Draw a panel: lines with intervals from the control on, and dots for other compressors."""
    for source in panel.get("dots", []):
        for other in changes(**source):
            for third in BOTH:
                look = {"color": COLOURS[third], "markersize": 3.2, "alpha": 0.6, "mew": 0}
                axis.plot(list(other[third]), other[third].mean(), "o", **look)
    (own,) = changes(**panel["line"])
    for third in BOTH:
        # The control, of which everything is kept, has changed by nothing.
        own[third].insert(0, 1.0, 0.0)
        plots.line(axis, own[third], color=COLOURS[third], markersize=3.5, linewidth=1.8)


def figure(width: float, height: float) -> Figure:
    """Draw the figure of all runs of pruning and of ReLUs, a row for each data set.

    Args:
        width, height: Size in inches.
    """
    drawn, axes = plots.new_figure(2, rows=len(PRUNED), width=width, height=height)
    rows = zip(PRUNED, LINEARIZED, strict=True)
    for axis, panel in zip(axes, (panel for row in rows for panel in row), strict=True):
        draw(axis, panel)
        _label(axis, panel)
        title = "Pruning" if panel in PRUNED else "Fewer ReLUs"
        axis.set_title(f"{title}\n{panel['data']}", loc="left")
    for third in BOTH:
        label = f"{third} third of groups"
        axes[0].plot([], [], color=COLOURS[third], linewidth=1.8, label=label)
    drawn.legend(*axes[0].get_legend_handles_labels(), **LEGEND | {"handlelength": 1.2, "ncols": 2})
    drawn.supylabel("change of test accuracy, points", fontsize=SIZE)
    return drawn


def _kept(axis: Axes, limits: tuple[float, float], ticks: list[float]) -> None:
    """Make the x axis one of shares kept, logarithmic and falling, with ticks in percent."""
    axis.set_xscale("log")
    axis.set_xlim(*limits)
    axis.set_xticks(ticks, [f"{100 * tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.axhline(0, color="#555555", linewidth=0.8)


def _label(axis: Axes, panel: Rows) -> None:
    """Write limits and ticks of a panel."""
    pruned = panel in PRUNED
    ticks = [1, 0.3, 0.1, 0.03, 0.01]
    _kept(axis, (1.15, 0.008 if pruned else 0.017), ticks if pruned else ticks[:4])
    axis.yaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
    if panel in (PRUNED[-1], LINEARIZED[-1]):
        axis.set_xlabel("weights kept, %" if pruned else "ReLUs kept, %")
    # Room for the title's second line where nobody gains.
    low, high = axis.get_ylim()
    axis.set_ylim(low, max(high, -0.18 * low))


def _seeds(names: Iterable[str]) -> str:
    """Count the seeds behind a figure."""
    counts = [values.table(f"results/{name}.csv")["seed"].nunique() for name in names]
    return f"{min(counts)} to {max(counts)}"


values.VALUES |= {
    "front_seeds": lambda: _seeds(look["table"] for look in COVER.values()),
    "ways_seeds": lambda: _seeds(
        [*ONE_BUDGET.values(), *(entry["table"] for entry in RESNET18.values())]
    ),
    "runs_seeds": lambda: _seeds(panel["line"]["table"] for panel in PRUNED + LINEARIZED),
}


FIGURES: dict[str, Any] = {
    "runs-wide": (figure, 7.6, 8.4),
    "runs-narrow": (figure, 3.9, 8.9),
    "ways-wide": (one_axis, 7.6, 8.2, 2),
    "ways-narrow": (one_axis, 3.9, 14.0, 1),
    "wide": (cover, 8.6, 3.1, 4),
    "narrow": (cover, 3.9, 5.6, 2),
}
"""Functions that draw a figure, by its file, with its width, height and, unless
it is fixed, number of columns."""


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
    sizes = {"font.size": SIZE, "axes.titlesize": SIZE, "axes.titleweight": "bold"}
    with matplotlib.rc_context(sizes):
        for name, (drawing, *shape) in FIGURES.items():
            values.save_svg(drawing(*shape), drawn / f"{name}.svg")
    (drawn / "explore.html").write_text(explore.html(), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
