"""The figure of an audit, and the style that it shares with the figures of the book."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito (2008): distinguishable with any colour vision.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")


def draw_groups(table: pd.DataFrame) -> Figure:
    """Draw accuracy before and after, and excessive loss, of every group of a report's table."""
    figure, (left, right) = new_figure(2, width=9.0, height=1.6 + 0.35 * len(table))
    rows = np.arange(len(table))[::-1]
    for shift, when, color in ((0.13, "before", PALETTE[0]), (-0.13, "after", PALETTE[1])):
        _points(left, table, f"accuracy_{when}", rows + shift, color, label=when)
    _points(right, table, "excessive_loss", rows, PALETTE[3])
    right.axvline(0, color="#555555", linewidth=0.8)
    left.set_yticks(
        rows, [f"{escape_dollars(group)} (n={row['size']:,.0f})" for group, row in table.iterrows()]
    )
    right.set_yticks(rows, [""] * len(rows))
    left.set_xlabel("accuracy")
    right.set_xlabel("excessive loss (nats)")
    left.legend(frameon=False)
    for axis in (left, right):
        grid_of_columns(axis)
    return figure


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


def _points(
    axis: Axes,
    table: pd.DataFrame,
    name: str,
    rows: np.ndarray,
    color: str,
    label: str | None = None,
) -> None:
    value = table[name]
    # Rounding can put a bound a little on the wrong side of the estimate, which matplotlib refuses.
    error = np.maximum([value - table[f"{name}_low"], table[f"{name}_high"] - value], 0)
    axis.errorbar(
        value, rows, xerr=error, fmt="o", color=color, label=label, markersize=5, capsize=2
    )


def grid_of_columns(axis: Axes) -> None:
    """Draw grid lines at the ticks of the horizontal axis alone."""
    axis.grid(axis="y", visible=False)
    axis.grid(axis="x", color="#dddddd", linewidth=0.8)


def escape_dollars(name: object) -> str:
    """Escape dollar signs, which would switch matplotlib to mathematics."""
    return str(name).replace("$", r"\$")
