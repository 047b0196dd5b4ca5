"""Figures and tables of the part on bi-level pruning: accuracy and bias of two groups."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame, Series

from fairlib import statistics
from whopays import effects, plots, tables
from whopays.effects import Arguments, by_run, group_gap_by_chance, select
from whopays.plots import accuracy, measured, new_figure

KEYS = ["pruner", "level", "seed"]
CONTROL = "dense, finetuned"
FOUR = ["SNIP", "FPGM", "lottery", "FairGRAPE"]
BIFP = ["BiFP-uns", "BiFP-str"]
PRUNERS_SHOWN = [CONTROL, "magnitude", *FOUR, "F&P", "P&F", "F&P&F", "BiP", *BIFP]
OUTCOMES = {"accuracy": "overall_accuracy", "bias": "group_gap"}

RUN = ["pruner", "epochs"]
FLOOR, UNPRUNED = "magnitude, no term", "unpruned"
PANELS = {
    "two levels": ["BiFP-str", "BiFP-uns", "BiP-str"],
    "scored once, then fair": ["magnitude", "SNIP", "FPGM"],
    "in rounds, then fair": ["lottery", "FairGRAPE"],
    "floors": [FLOOR, UNPRUNED],
}

PLACES = {
    "BiFP": "in both",
    "w/o m": "in the weights only",
    "w/o w": "in the mask only",
    "w/o w&m": "nowhere",
}
"""Levels with the fairness term, by the paper's name of the network."""

NORMS = ["stored", "re-estimated"]
OTHERS = ["w/o w", "w/o m", "w/o w&m", "another seed", "another start"]

MATTERS = 0.02
"""The smallest difference that matters, in bias and in accuracy."""

QUESTIONS = [
    ("BiFP-uns", "P&F"),
    ("BiFP-str", "P&F, FPGM"),
    ("BiFP-uns", "BiP"),
    ("P&F", "magnitude"),
]
"""Methods and their rivals on the page that asks whether results hold up."""


def _rows_of_methods(
    left: Mapping[str, Any], right: Mapping[str, Any], bias: float, chance: Series, height: float
) -> tuple[Figure, Axes]:
    """Draw a row for each method: accuracies on the left, bias beside the control's on the right.

    Returns:
        The figure and its left axis, which is labelled ``test accuracy``.
    """
    figure, axes = new_figure(2, height=height, sharey=True)
    axes[1].axvspan(0, chance.mean(), color="#dddddd", zorder=0)
    axes[1].axvline(bias, color="#555555", linestyle=":", linewidth=1)
    for axis, values, name in zip(axes, (left, right), OUTCOMES, strict=True):
        plots.intervals(axis, values, zero=None)
        measured(axis.xaxis, name, f"test {name}")
    return figure, axes[0]


def by_pruner(table: DataFrame, at: float) -> Figure:
    """Draw each group's accuracy, and the difference, with a row for each method.

    Args:
        table: Table of the page that asks whether one optimization is enough.
        at: Sparsity.
    """
    part = select(table, level=[0, at])
    runs = by_run(part, KEYS).groupby("pruner")["bias"]
    names = [name for name in PRUNERS_SHOWN if name in runs.groups]
    groups = {
        name: dict(iter(part[part["pruner"] == name].groupby("group")["accuracy"]))
        for name in names
    }
    bias, chance = runs.mean()[CONTROL], group_gap_by_chance(part, where={"pruner": CONTROL})
    differences = {name: runs.get_group(name) for name in names}
    figure, left = _rows_of_methods(groups, differences, bias, chance, height=4.6)
    accuracy(left.xaxis, "test accuracy of each group", "%")
    plots.legend(figure)
    return figure


def over_sparsity(table: DataFrame) -> Figure:
    """Draw accuracy and bias over the weights kept; each of several tasks has a column."""
    tasks = table.groupby([name for name in ("target", "model") if name in table])
    count, rows = len(tasks), min(len(tasks), 2)
    figure, axes = new_figure(max(count, 2), rows=rows, height=3.6 * rows)
    for place, (task, part) in enumerate(tasks):
        runs = by_run(part, KEYS)
        for axis, (column, of) in zip(axes[place::count], OUTCOMES.items(), strict=True):
            wide = runs.pivot(index="seed", columns=["pruner", "level"], values=column)
            curves = {name: wide[CONTROL].join(wide[name]) for name in FOUR + BIFP}
            plots.over_levels(axis, part, curves, control=True, zero=False)
            where, against = {"pruner": BIFP}, {"pruner": FOUR}
            minus = effects.contrast_rows(part, of=of, where=where, against=against)
            beyond = f"{statistics.t_interval(100 * minus):+.1f} points"
            axis.set_title(f"{', '.join(task)}\nBiFP minus the others\n{beyond}")
            measured(axis.yaxis, column, column)
        chance = group_gap_by_chance(part, where={"pruner": CONTROL})
        axis.axhspan(0, chance.mean(), color="#dddddd", zorder=0)
        if part.groupby(["seed", "group"])["accuracy"].nunique().max() == 1:
            axis.set_title("at the floor:\nall networks answer alike")
    plots.legend(figure)
    return figure


def over_time(table: DataFrame) -> Figure:
    """Draw accuracy and bias over the price, a row of panels for each kind of method.

    Args:
        table: Curves of the page on time: accuracy, bias and gradients of every run.
    """
    here = set(table["pruner"])
    titles = [title for title, names in PANELS.items() if here & set(names)]
    figure, axes = new_figure(2, rows=len(titles), height=2.6 * len(titles))
    own = select(table, pruner="BiFP-str")
    own = own[own["epochs"] == own["reference"]]
    shortest = table.loc[table["gradients"] > 0, "gradients"].min()
    for axis, (title, column) in zip(axes, product(titles, OUTCOMES), strict=True):
        axis.axvspan(0, own["gradients"].mean(), color="#D55E00", alpha=0.1)
        axis.axhline(own[column].mean(), color="#555555", linestyle="--", lw=1)
        for place, name in enumerate(name for name in PANELS[title] if name in here):
            wide = select(table, pruner=name).pivot(index="seed", columns="epochs")
            # Methods of the same price would hide each other.
            price = wide["gradients"].mean() * 1.04 ** (place - 1)
            values = wide[column].set_axis(price, axis=1)
            plots.line(axis, values, label=name, marker=plots.MARKERS[place])
        # Linear nearer zero: some methods cost nothing after the dense training.
        axis.set_xscale("symlog", base=2, linthresh=shortest)
        axis.xaxis.set_major_formatter("{x:g}")
        if column == "bias":
            axis.axhspan(0, own["chance"].mean(), color="#dddddd", zorder=0)
            axis.legend(frameon=False, title=title)
        axis.set_xlabel("gradients, in dense trainings")
        measured(axis.yaxis, column, f"test {column}")
        axis.sharey(axes[column == "bias"])
    return figure


def tradeoff(study: DataFrame) -> Figure:
    """Draw accuracy against bias: a curve for each method, larger marks for a larger weight."""
    figure, (axis,) = new_figure(height=4.2)
    for index, (name, curve) in enumerate(study.groupby("pruner", sort=False)):
        means = []
        look: Arguments = {"color": plots.PALETTE[index], "marker": plots.MARKERS[index]}
        for place, (_, part) in enumerate(curve.groupby("weight")):
            look |= {"label": "" if place else name, "markersize": 4 + 2 * place}
            point = plots.mean_point(axis, part["bias"], part["accuracy"], elinewidth=0.5, **look)
            means.append(point)
        axis.plot(*zip(*means, strict=True), color=plots.PALETTE[index], linewidth=1)
    accuracy(axis.xaxis, "bias: difference of the groups' accuracies")
    accuracy(axis.yaxis, "accuracy, all test images", "%")
    plots.legend(figure)
    return figure


def areas(study: DataFrame, rivals: Mapping[str, str]) -> DataFrame:
    """Tabulate the area of each curve and minus that of its rival; the price; what is kept."""
    curves = study.drop_duplicates(["pruner", "seed"])
    found = tables.beside(curves, ["hypervolume"], by="pruner", rival=rivals, digits=4)
    found["its rival"] = pd.Series(rivals)
    means = study.groupby("pruner")[["price", "kept"]].mean().round(3)
    means.columns = pd.Index(["price, in dense trainings", "weights kept"])
    return found.fillna(tables.DASH).join(means)


def by_weight(study: DataFrame) -> DataFrame:
    """Tabulate accuracy and bias of every point, and minus those without the term."""
    by, minus = ["pruner", "weight"], ["accuracy", "bias"]
    points = study[by].itertuples(index=False, name=None)
    without: dict[Hashable, Hashable] = {point: (point[0], 0) for point in points if point[1]}
    rows = study.sort_values(by)
    found = tables.beside(rows, minus, by=by, rival=without)
    return found.rename(columns=lambda name: name.replace("of its rival", "at 0"))


def four(study: DataFrame) -> Figure:
    """Draw accuracy and bias with a row for each place of the fairness term."""
    runs = by_run(select(study, split="test"), KEYS)
    accuracy, bias = (
        {
            f"{place}: {name}": {
                f"{at:g}": values
                for at, values in select(runs, pruner=name).groupby("level")[column]
            }
            for name, place in PLACES.items()
        }
        for column in ("accuracy", "bias")
    )
    control = select(runs, pruner="control")
    chance = group_gap_by_chance(study, where={"pruner": "control", "split": "test"})
    figure, axis = _rows_of_methods(accuracy, bias, control["bias"].mean(), chance, height=3.0)
    axis.axvline(control["accuracy"].mean(), color="#555555", linestyle=":", linewidth=1)
    plots.legend(figure, "share of weights pruned")
    return figure


def barriers(study: DataFrame) -> Figure:
    """Draw a row for each network compared with BiFP: a stroke for each seed, and the mean."""
    figure, (axis,) = new_figure()
    axis.axvspan(0, 0.05, color="#dddddd")
    wide = study.pivot(index="seed", columns=["against", "statistics"])["barrier"]
    plots.intervals(axis, {name: dict(wide[name][NORMS]) for name in OTHERS}, zero=None)
    rows = study["against"].map(OTHERS.index) + 0.22 * (study["statistics"] == "re-estimated")
    axis.scatter(study["barrier"], rows, marker="|", color="#777777", alpha=0.5)
    axis.set_xlabel("barrier of the training loss on the way from BiFP (nats)")
    plots.legend(figure, "statistics of batch normalization")
    return figure


def differences(study: DataFrame) -> dict[str, DataFrame]:
    """Compute method minus rival in each seed, where the table has both."""
    seen = by_run(study, ["pruner", "seed"]).set_index(["pruner", "seed"])
    pairs = [pair for pair in QUESTIONS if {*pair} <= set(study["pruner"])]
    return {f"{a} minus {b}": seen.loc[a] - seen.loc[b] for a, b in pairs}


def compared(study: DataFrame) -> Figure:
    """Draw a row for each question: difference, interval, and in grey what does not matter."""
    figure, axes = new_figure(2, height=3.0, sharey=True)
    for axis, column in zip(axes, ["bias", "accuracy"], strict=True):
        axis.axvspan(-MATTERS, MATTERS, color="#eeeeee", zorder=0)
        found = {name: minus[column] for name, minus in differences(study).items()}
        plots.intervals(axis, found)
        accuracy(axis.xaxis, f"difference of {column}")
    return figure


def in_numbers(study: DataFrame) -> DataFrame:
    """Tabulate the difference for each question."""
    return tables.means({name: dict(minus) for name, minus in differences(study).items()})


def who_wins(shares: Series, chance: np.ndarray) -> Figure:
    """Draw how often five runs name each method the fairest; in grey, how often by chance."""
    figure, (axis,) = new_figure(width=6.5, height=2.8)
    axis.axvspan(*chance, color="#dddddd", zorder=0)
    axis.barh(shares.index, shares, height=0.5, color=plots.PALETTE[0])
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    accuracy(axis.xaxis, "draws of five runs with the smallest mean bias", "%")
    return figure
