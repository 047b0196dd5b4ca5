"""The figure of an audit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito (2008): distinguishable with any colour vision.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")


def draw_groups(table: pd.DataFrame) -> Figure:
    """Draw accuracy before and after, and excessive loss, of every group of a report's table."""
    import matplotlib.pyplot as plt

    # White also in dark mode: the labels are black.
    figure, (left, right) = plt.subplots(
        1,
        2,
        sharey=True,
        figsize=(9.0, 1.6 + 0.35 * len(table)),
        facecolor="white",
        layout="constrained",
    )
    rows = np.arange(len(table))[::-1]
    for shift, when, color in ((0.13, "before", PALETTE[0]), (-0.13, "after", PALETTE[1])):
        _points(left, 100 * table, f"accuracy_{when}", rows + shift, color=color, label=when)
    _points(right, table, "excessive_loss", rows, color=PALETTE[3])
    right.axvline(0, color="#555555")
    left.set_yticks(
        rows, [f"{escape_dollars(group)} (n={row['size']:,.0f})" for group, row in table.iterrows()]
    )
    left.legend(frameon=False)
    for axis, label in ((left, "accuracy, %"), (right, "excessive loss (nats)")):
        axis.set_xlabel(label)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="x", color="#dddddd")
    return figure


def _points(axis: Axes, table: pd.DataFrame, name: str, rows: np.ndarray, **look: Any) -> None:
    value = table[name]
    # Rounding can put a bound a little on the wrong side of the estimate, which matplotlib refuses.
    error = np.maximum([value - table[f"{name}_low"], table[f"{name}_high"] - value], 0)
    axis.errorbar(value, rows, xerr=error, fmt="o", capsize=2, **look)


def escape_dollars(name: object) -> str:
    """Escape dollar signs, which would switch matplotlib to mathematics."""
    return str(name).replace("$", r"\$")
