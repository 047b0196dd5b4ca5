"""Figures and tables of the part on explanation, each of one page."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from whopays import effects, plots, tables
from whopays.effects import Arguments, attach, select
from whopays.plots import accuracy, legend, new_figure

SETTINGS = ["unequal", "equal", "other target"]
NORM = "log10 of the gradient norm\n(nats per unit weight)"
EIGENVALUE = "log10 of the largest eigenvalue\n(nats per squared weight)"
CAUSES = {
    "gradient_norm": NORM,
    "curvature_largest": EIGENVALUE,
    "boundary_mean": "probability margin",
}
"""Columns that are said to explain who loses, with labels."""

_NAMES = {
    "gradient_norm": "gradient norm",
    "gradient_debiased_square": "debiased square",
    "curvature_largest": "eigenvalue",
    "lot_largest": "eigenvalue of random groups",
    "boundary_mean": "margin",
}
_DENSE, _TRAIN, _TEST = {"stage": "dense"}, {"split": "train"}, {"split": "test"}


def beside_drops(study: DataFrame, columns: Iterable[str]) -> DataFrame:
    """Put beside each row what its group was before pruning, and what it lost by pruning.

    Args:
        study: Table of :func:`fairlib.study` with a column ``setting``.
        columns: Names of columns whose value in the dense network is added, as ``dense_NAME``.

    Returns:
        A new table, also with ``unequal_size``, the size of the group in the setting "unequal", and
        ``test_drop``, what it lost of its test accuracy.
    """
    key = ["setting", "seed", "group"]
    study = effects.against_control(study, on=key)
    before = {f"dense_{name}": name for name in columns}
    study = attach(study, before, on=[*key, "split"], where=_DENSE)
    size = {"unequal_size": "train_size"}
    study = attach(study, size, on=key[1:], where={"setting": "unequal"})
    # Groups of another data set have no size in the unequal setting.
    study["unequal_size"] = study["unequal_size"].fillna(study["train_size"])
    return attach(study, {"test_drop": "drop"}, on=[*key, "stage", "level"], where=_TEST)


def in_logs(study: DataFrame) -> DataFrame:
    """Take logarithms (base 10) of gradient norms and eigenvalues."""
    return study.assign(**np.log10(study.filter(regex="_(norm|largest)$")))


def _settings(
    study: DataFrame,
    rows: DataFrame,
    draw: Callable[[Axes, DataFrame], object],
    height: float = 3.4,
    **shared: bool,
) -> Figure:
    """Draw a panel for each setting."""
    figure, axes = new_figure(3, height=height, **shared)
    for axis, setting in zip(axes, SETTINGS, strict=True):
        draw(axis, select(rows, setting=setting))
        axis.set_title(setting)
        plots.floor(axis, study, setting=setting)
    return figure


def one_over_another(
    study: DataFrame, x: tuple[str, str], y: tuple[str, str], *, means: bool = False, **where: Any
) -> Figure:
    """Draw one quantity of the groups over another, in each setting.

    Args:
        study: Recorded table of the page on gradient norms.
        x, y: Names of two columns, with the labels of their axes.
        means: Whether to draw the mean of each group instead of a point for each network.
        where: Values of columns that select the rows.
    """
    draw = partial(plots.crosses, rank="unequal_size") if means else plots.scatter
    rows = in_logs(select(study, **where))
    figure = _settings(study, rows, partial(draw, x=x[0], y=y[0]), sharey=True)
    for axis in figure.axes:
        plots.measured(axis.xaxis, *x)
    plots.measured(figure.axes[0].yaxis, *y)
    legend(figure, "group (training images if unequal)")
    return figure


def _of_groups(study: DataFrame, rows: DataFrame, column: str) -> Figure:
    """Draw a quantity of every group in dense networks, a colour for each part of the data."""
    look: Arguments = {"column": column, "by": "split", "rank": "unequal_size"}
    draw = partial(plots.by_name, label=CAUSES[column], **look)
    figure = _settings(study, rows, draw, height=4.4)
    legend(figure, "measured on")
    return figure


def norms_of_groups(study: DataFrame) -> Figure:
    """Draw gradient norms of every group, with their noise floors as strokes."""
    rows = in_logs(select(study, **_DENSE))
    # A noise floor is a square, its root is a norm.
    rows["floor"] = np.log10(rows["gradient_noise_floor"]) / 2
    figure = _of_groups(study, rows, "gradient_norm")
    for axis, setting in zip(figure.axes, SETTINGS, strict=True):
        for _, part in select(rows, setting=setting).groupby("split"):
            groups = plots.split_by_size(part, "unequal_size").values()
            axis.plot([own["floor"].mean() for own in groups], range(len(groups)), "k|")
    return figure


def eigenvalues_of_groups(study: DataFrame) -> Figure:
    """Draw largest eigenvalues of every group, beside those of random groups."""
    rows = in_logs(select(study, **_DENSE))
    random = select(rows, **_TRAIN).assign(split="random groups")
    random["curvature_largest"] = random["lot_largest"]
    return _of_groups(study, pd.concat([rows, random]), "curvature_largest")


def cause_correlations(study: DataFrame, cause: str, beside: str, at: float = 0.9) -> DataFrame:
    """List rank correlations over groups between a cause, size, fit and drop, in each setting.

    Args:
        study: Recorded table of the page on gradient norms or on curvature.
        cause: Name of a column of :data:`CAUSES`.
        beside: Name of a column whose correlation with size is listed, too.
        at: Sparsity of the drops.
    """
    train: Arguments = _DENSE | _TRAIN
    pruned = _TRAIN | {"stage": "compressed", "level": at}
    name, other = _NAMES[cause], _NAMES[beside]
    pairs = {
        f"size and {name}": ("unequal_size", cause, train),
        f"size and {other}": ("unequal_size", beside, train),
        f"accuracy and {name}, test set": ("accuracy", cause, _DENSE | _TEST),
        f"{name} before, and drop": (f"dense_{cause}", "test_drop", pruned),
    }
    return tables.correlations(study, pairs, {name: {"setting": name} for name in SETTINGS})


def rank_matrix(study: DataFrame, columns: Iterable[str], **where: Any) -> DataFrame:
    """Compute rank correlations between columns of dense networks, mean over seeds."""
    rows = select(study, **_DENSE, **where).filter(["seed", *columns]).rename(columns=_NAMES)
    found = rows.groupby("seed").corr(method="spearman")
    return found.groupby(level=1, sort=False).mean().round(2)


def beside_eigenvalues(study: DataFrame, draw: Callable[..., object] = plots.scatter) -> Figure:
    """Draw eigenvalues over margin, accuracy and gradient norm, on the test set.

    Args:
        study: Recorded table of the page on curvature.
        draw: :func:`whopays.plots.scatter` for a point for each row, or ``crosses`` for the mean of
            each group.
    """
    columns = {"boundary_mean": "probability margin", "accuracy": "test accuracy"}
    rows = in_logs(select(study, setting="unequal", **_DENSE, **_TEST))
    figure, axes = new_figure(3, sharey=True)
    for axis, (column, label) in zip(
        axes, [*columns.items(), ("gradient_norm", NORM)], strict=True
    ):
        draw(axis, rows, column, "curvature_largest")
        plots.measured(axis.xaxis, column, label)
    axes[0].set_ylabel(EIGENVALUE)
    legend(figure, "group (training images)")
    plots.floor(axes[1], study, setting="unequal")
    return figure


def before_pruning(study: DataFrame, at: float = 0.9) -> Figure:
    """Draw the causes in each group of the dense network, and what it lost by pruning."""
    shown = ["two groups", "unequal"]
    rows = in_logs(select(study, stage="compressed", level=at, setting=shown, **_TRAIN))
    names = {f"dense_{name}": label for name, label in CAUSES.items()}
    names["test_drop"] = f"drop of test accuracy\nwith {100 * (1 - at):.3g} % of the weights"
    figure, axes = new_figure(2, rows=2, height=6.0, sharey=True)
    for axis, (name, label) in zip(axes, names.items(), strict=True):
        plots.by_name(axis, rows, name, label, by="setting")
    plots.floor(axes[-1], study, setting="unequal")
    legend(figure)
    return figure


def collinear(study: DataFrame) -> Figure:
    """Draw the rank correlations between size, loss and all causes, with both sizes."""
    names = ["unequal_size", "loss", *CAUSES, "closeness"]
    figure, axes = new_figure(2, height=4.4, sharey=True)
    for axis, setting in zip(axes, SETTINGS[:2], strict=True):
        plots.matrix(axis, rank_matrix(study, names, setting=setting, **_TRAIN))
        axis.set_title(setting)
    return figure


def upsampled(study: DataFrame, setting: str, split: str) -> Figure:
    """Draw the gradient norms of all groups, a panel for each group that is upsampled."""
    rows = in_logs(select(study, setting=setting, split=split))
    panels = rows.groupby("upsampled_group", sort=False)
    figure, axes = new_figure(len(panels), sharey=True)
    for axis, (name, panel) in zip(axes, panels, strict=True):
        values = {
            str(group): part.pivot(index="seed", columns="times", values="gradient_norm")
            for group, part in panel.groupby("group")
        }
        grey = dict.fromkeys(values, ("#aaaaaa", "."))
        plots.lines(axis, values, looks={**grey, str(name): (1, "o")}, zero=False)
        axis.plot(values[str(name)].mean(), "k:", zorder=5)
        size = select(panel, upsampled=True)["train_size"].mean()
        axis.set_title(f"{name} upsampled\n(n={size:,.0f})")
        plots.size_axis(axis, rows["times"], "times that its samples are taken")
    axes[0].set_ylabel(NORM)
    plots.floor(axes[1], study, **_DENSE, times=1, setting=setting)
    return figure


def smallest_norms(study: DataFrame) -> DataFrame:
    """List how often the upsampled group has the smallest norm, and how many others a larger."""
    by = ["setting", "split", "times"]
    rows = study[study["upsampled"]].rename(columns={"larger_others": "others above it"})
    means = rows.groupby([*by, "seed"], sort=False)[["smallest", "others above it"]].mean()
    parts = means.groupby(level=by, sort=False)
    return tables.means({at: dict(part) for at, part in parts}, names=by, digits=2)


def norm_ratios(study: DataFrame, setting: str) -> DataFrame:
    """Compute the norm of the upsampled group over that of the other, log10, by seed."""
    rows = in_logs(select(study, setting=setting, **_TRAIN))
    means = rows.pivot_table("gradient_norm", ["upsampled", "seed"], "times")
    return means.loc[True] - means.loc[False]


def against_shares(study: DataFrame) -> Figure:
    """Draw the ratios of norms of two groups beside the inverse of their shares."""
    figure, (axis,) = new_figure()
    ratios = {name: norm_ratios(study, name) for name in ("two groups", "other target")}
    plots.lines(axis, ratios, zero=False)
    times = np.unique(study["times"])
    axis.plot(times, -np.log10(times), "--", color="#555555", label="inverse shares")
    plots.size_axis(axis, times, "times that its samples are taken")
    axis.set_ylabel("log10 of the ratio of norms,\nupsampled group to the other")
    axis.legend(frameon=False)
    return figure


def by_class(study: DataFrame) -> Figure:
    """Draw the test accuracy of both classes over the share of units that keep their ReLU."""
    size = {"train_size": "size"}
    study = attach(study, size, on=["setting", "group"], where=_TRAIN)
    figure, axes = new_figure(2, sharey=True)
    for axis, setting in zip(axes, SETTINGS[:2], strict=True):
        plots.groups(axis, select(study, setting=setting, **_TEST), "accuracy")
        axis.set(title=f"{setting} class sizes", xlabel="ReLUs kept in the hidden layer, %")
        axis.legend(frameon=False, loc="lower left", title="training points")
    accuracy(axes[0].yaxis, "test accuracy", "%")
    return figure
