"""Figures and tables of the part on linearization: who pays over the share of ReLUs kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from matplotlib.figure import Figure
from pandas import DataFrame

from whopays import effects, plots, tables
from whopays.effects import Arguments, Rows, select
from whopays.plots import legend, new_figure

CHANGE = {"overall_change": plots.CHANGE_LABEL}
WHO_PAYS = {"drop_difference": plots.DROPS}
MEASURED = {
    "test accuracy": "accuracy",
    "gradient norm": "gradient_norm",
    "distance (margin)": "boundary_mean",
}
ORDERS = {
    "size and gradient norm": ("train_size", "gradient_norm", "train"),
    "bound and drop": ("bound", "drop", "test"),
    "distance to the boundary before, and drop": ("margin_before", "drop", "test"),
    "gradient norm and accuracy": ("gradient_norm", "accuracy", "test"),
    "distance to the boundary and accuracy": ("boundary_mean", "accuracy", "test"),
}
"""Names of two columns whose order of the groups is compared, and their part of the data."""

BEFORE: Arguments = {
    "on": ["setting", "method", "seed", "group"],
    "where": {"stage": "dense", "split": "train"},
}
"""Rows of the dense network, as :func:`whopays.effects.attach` takes them."""


def by_third(
    study: DataFrame, panels: Mapping[str, Rows], relus: int, traffic: DataFrame
) -> Figure:
    """Draw changes of test accuracy over the budget, for all images and two thirds of the groups.

    Args:
        study: Recorded table with the settings ``equal`` and ``unequal``.
        panels: Values of columns that select the rows of a panel, by its title.
        relus: Number of ReLUs of the network.
        traffic: Recorded table of what two parties send.
    """
    shape = plots.in_rows(len(panels))
    figure, axes = new_figure(**shape, height=3.6 * shape["rows"], sharey=True)
    for axis in axes[len(panels) :]:
        axis.remove()
    for axis, (title, where) in zip(axes, panels.items(), strict=False):
        ranks = {**where, "setting": "unequal"}
        plots.thirds(axis, study, where=where, rank_where=ranks, everybody=True)
        axis.set_title(title)
        plots.relu_traffic(axis, relus, traffic)
    legend(figure, "groups")
    return figure


def test_rows(study: DataFrame, method: str, **where: Any) -> DataFrame:
    """Select a linearizer's test rows, with the accuracy under the control as ``before``."""
    rows = select(study, method=f"linearize:{method}")
    if "drop" not in rows:
        rows = effects.against_control(rows)
    return select(rows.assign(before=rows["accuracy"] + rows["drop"]), split="test", **where)


def distances_and_groups(study: DataFrame, method: str, level: float) -> Figure:
    """Draw how far the weights move, and who is badly fitted, after a linearizer at a budget."""
    figure, (moved, norms, margins) = new_figure(3)
    unequal = select(study, setting="unequal")
    seen = select(unequal, stage=["control", "compressed"])
    plots.shares(moved, seen["level"], "ReLUs kept")
    wide = seen.pivot_table("distance", "seed", ["method", "level"])
    plots.lines(moved, {name: wide[name] for name in seen["method"].unique()}, zero=False)
    moved.set_ylabel("distance of the weights\nfrom the dense network")
    rows = select(unequal, method=f"linearize:{method}", level=level, split="test")
    plots.crosses(norms, rows, "gradient_norm", "accuracy")
    plots.crosses(margins, rows, "boundary_mean", "accuracy")
    plots.floor(norms, unequal, method=f"linearize:{method}")
    norms.set_xlabel("gradient norm, test images")
    margins.set_xlabel("distance to the boundary (margin)")
    for axis in (norms, margins):
        plots.accuracy(axis.yaxis, f"accuracy, {100 * level:g} % of ReLUs kept", "%")
    legend(figure)
    return figure


def orders(study: DataFrame, level: float) -> DataFrame:
    """Compute whether two orders of the groups agree, by the pairs of `ORDERS`."""
    study = effects.attach(study, {"margin_before": "boundary_mean"}, **BEFORE)
    measured = study.dropna(subset="gradient_norm")["method"].unique()
    at = {"setting": "unequal", "level": level, "stage": "compressed"}
    pairs = {
        (method.removeprefix("linearize:"), name): (x, y, at | {"method": method, "split": part})
        for method, (name, (x, y, part)) in product(measured, ORDERS.items())
    }
    return tables.correlations(
        study, pairs, {"Spearman": {}}, names=["linearizer", "correlation of"]
    )


def by_method(study: DataFrame, of: str) -> dict[str, DataFrame]:
    """Compute a statistic by linearizer: seeds in rows, budgets in columns."""
    parts = study.groupby(study["method"].str.removeprefix("linearize:"), sort=False)
    return {str(name): effects.by_level(part, of=of) for name, part in parts}


def over_kept(
    study: DataFrame, relus: int, traffic: DataFrame, labels: Mapping[str, str] = CHANGE | WHO_PAYS
) -> Figure:
    """Draw what all lose and who pays, over the mean share of ReLUs that each linearizer keeps.

    Args:
        study: Table of the page that compares linearizers.
        relus: Number of ReLUs of the network.
        traffic: Recorded table of what two parties send.
        labels: Label of a panel by its statistic.
    """
    figure, axes = new_figure(len(labels))
    compressed = select(study, stage="compressed")
    kept = compressed.groupby(["method", "level"])["kept"].mean()
    for axis, (of, label) in zip(axes, labels.items(), strict=True):
        plots.shares(axis, compressed["level"], "ReLUs kept")
        found = {
            name: values.set_axis([*kept[f"linearize:{name}"]], axis=1)
            for name, values in by_method(study, of).items()
        }
        plots.lines(axis, found, apart=0.03)
        plots.relu_traffic(axis, relus, traffic)
        plots.measured(axis.yaxis, of, label)
    legend(figure)
    return figure


def by_step(study: DataFrame, method: str, level: float) -> DataFrame:
    """Select rows with the dual step for the level; the control is then no constraint."""
    rows = select(
        study, method=f"linearize:{method}", level=level, variant=["never", "algorithm 1"]
    )
    plain = rows["variant"] == "never"
    rows = rows.assign(level=rows["step"], stage=rows["stage"].mask(plain, "control"))
    seeds = {*rows["seed"]}
    # Where a training diverged, the mean over the other seeds would be another one's.
    return rows.groupby("step").filter(lambda own: {*own["seed"]} == seeds)


def over_steps(study: DataFrame, *panels: tuple[str, str, float]) -> Figure:
    """Draw gains of two thirds of the groups, or the gap between all groups, over the dual step.

    Args:
        study: Table of the page on Algorithm 1.
        panels: ``"gain"`` or ``"gap"`` of test accuracy, a linearizer and a budget.
    """
    figure, axes = new_figure(len(panels))
    for axis, (what, method, level) in zip(axes, panels, strict=True):
        rows = by_step(study, method, level)
        if what == "gain":
            found = {
                f"{end} third": effects.by_level(rows, of="accuracy_change", groups=end)
                for end in ("largest", "smallest")
            }
            plots.lines(axis, found)
        else:
            plots.lines(axis, {"Algorithm 1": effects.by_level(rows, of="group_gap")}, zero=False)
            test = {"method": f"linearize:{method}", "split": "test"}
            never = test | {"variant": "never", "level": level}
            known = {
                "no constraint": effects.group_gap(study, where=never),
                "control": effects.group_gap(study, where=test | {"variant": "control"}),
                "chance": effects.group_gap_by_chance(study, where=never),
            }
            for style, (label, gap) in zip(("--", "-.", ":"), known.items(), strict=True):
                axis.axhline(gap.mean(), label=label, color="#555555", linestyle=style)
            axis.set_ylim(0)
        axis.set(xscale="log", xlabel="dual step")
        plots.accuracy(axis.yaxis, f"{what} in test accuracy")
        axis.set_title(f"linearize:{method}, {100 * level:g} % kept")
        axis.legend(frameon=False)
    return figure


def mitigated(
    study: DataFrame, method: str, step: float, variant: str = "algorithm 1"
) -> DataFrame:
    """Select test rows of a variant and of the control, with two accuracies beside each.

    Returns:
        ``before`` is the accuracy at the same budget without a constraint, ``control`` that with
        all ReLUs.
    """
    on = ["method", "seed", "group"]
    rows = effects.against_control(study, on=on)
    rows = rows.assign(control=rows["accuracy"] + rows["drop"])
    keys, never = [*on, "level", "split"], {"variant": "never"}
    rows = effects.attach(rows, {"before": "accuracy"}, on=keys, where=never)
    rows = rows[rows["step"].isin([0.0, step])]
    return select(rows, method=f"linearize:{method}", variant=["control", variant], split="test")


def with_and_without(study: DataFrame, method: str, step: float) -> Figure:
    """Draw accuracies, gradient norms and distances by group, without and with mitigation."""
    panels = {
        "unmitigated": mitigated(study, method, step, "never"),
        "mitigated": mitigated(study, method, step),
    }
    return plots.over_budgets(dict.fromkeys(MEASURED, panels), MEASURED)


def returned(runs: Mapping[str, tables.Recorded], panels: Sequence[tuple[str, float]]) -> None:
    """Draw mitigated relative drops by group, a row of panels for each recorded table.

    Args:
        runs: Recorded tables of the page on Algorithm 1, by name.
        panels: Linearizers and dual steps.
    """
    rows = {
        f"{name}\nmitigated relative\ndrop of accuracy, %": {
            f"{method}, {step:g}": mitigated(run.table, method, step) for method, step in panels
        }
        for name, run in runs.items()
    }
    plots.provenance(plots.over_budgets(rows, before="before"), *runs.values())


def against_no_constraint(study: DataFrame, method: str = "snl", level: float = 0.02) -> DataFrame:
    """Compare every variant with no constraint in the same seeds, where no training diverged."""
    keys = ["variant", "step", "seed"]
    rows = select(study, method=f"linearize:{method}", level=level)
    runs = effects.by_run(select(rows, split="test"), keys).set_index(keys)
    loss = select(rows, split="train").groupby(keys)["loss"]
    runs = runs.rename(columns={"bias": "gap"})[["accuracy", "gap"]].sort_index()
    runs["gap in training loss, nats"] = loss.max() - loss.min()
    found = {
        run: dict(own.droplevel(keys[:2]) - runs.loc["never", 0.0])
        for run, own in runs.groupby(keys[:2])
        if len(own) == study["seed"].nunique() and run[0] != "never"
    }
    digits = {"gap in training loss, nats": 3}
    return tables.means(found, names=["variant", "dual step"], digits=digits)
