"""Figures of single pages, a function each, drawn from tables of :func:`fairlib.study`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pandas import DataFrame, Series

from whopays import effects, plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WAYS = {
    "prune": "pruned, {:g}",
    "quantize": "{:g} bits",
    "prune + quantize": "pruned, {:g}, rest in 4 bits",
    "factorize": "thin layers, {:g}",
    "linearize": "ReLUs, {:g}",
}
"""Names of the arms of *People or answers?*, with the level to be filled in."""


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


def who_pays(study: DataFrame, questions: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw what small groups lose beside large ones: a row a way, a colour a question.

    The grey band is the margin of the claims: within 3 points we speak of no effect.

    Args:
        study: Table with the arms of :data:`WAYS`.
        questions: By name the values of columns that select the rows (:func:`small_beside_large`).
    """
    values = {name: small_beside_large(study, **rows) for name, rows in questions.items()}
    ways = dict.fromkeys(way for own in values.values() for way in own)
    rows = {way: {name: own[way] for name, own in values.items() if way in own} for way in ways}
    figure, (axis,) = plots.new_figure(height=1.6 + 0.42 * len(rows))
    axis.axvspan(-3, 3, color="#eeeeee", zorder=0)
    plots.intervals(axis, rows)
    axis.set_xlabel("points of accuracy that the small group loses beyond the large one")
    plots.legend(figure)
    return figure
