"""Figures of the part on mitigation, each of one page; Tables 1 and 2 of [T] beside ours."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame, Series

from fairlib import statistics
from fairlib.statistics import accuracies_by_chance
from whopays import effects, plots, tables
from whopays.effects import Arguments, select
from whopays.plots import MARKERS, PALETTE, accuracy, legend, measured, new_figure

FIVE = ["equal-loss", "accuracy-gap", "group-dro", "reweight", "equal-curvature"]
TIMES = ["never", "before", "after", "both"]
SHOWN = {"test accuracy": "overall_accuracy", "gap in test accuracy": "group_gap"}
GAPS = ["gap in accuracy", "relative gap in norms", "relative gap in eigenvalues"]

TABLE_2 = pd.DataFrame(
    {
        "never": [0.546, 0.545, 0.529, 0.559, 0.179, 0.186, 0.152, 0.134],
        "before": [0.539, 0.557, 0.529, 0.540, 0.189, 0.190, 0.174, 0.238],
        "after": [0.538, 0.532, 0.497, 0.472, 0.172, 0.161, 0.163, 0.050],
        "both": [0.525, 0.541, 0.508, 0.484, 0.170, 0.144, 0.156, 0.073],
    },
    index=pd.MultiIndex.from_product([SHOWN, [0.3, 0.5, 0.7, 0.9]]),
)
"""Table 2 of [T] as printed: accuracy, then violation, at its four rates."""

TABLE_1 = {
    "UTKFace, age": (
        [0.856, 0.128, 0.145, 0.319, 0.331, 0.342, 0.181, 0.334, 0.512, 0.395],
        [0.810, 0.096, 0.141, 0.284, 0.385, 0.324, 0.227, 0.257, 0.533, 0.390],
    ),
    "UTKFace, gender": ([0.830, 0.876, 0.857], [0.868, 0.845, 0.852]),
    "MNIST": (
        [0.998, 0.996, 0.993, 0.998, 0.994, 0.991, 0.991, 0.993, 0.992, 0.985, 0.993],
        [0.994, 0.988, 0.989, 0.986, 0.987, 0.979, 0.981, 0.988, 0.969, 0.994, 0.986],
    ),
}
"""Table 1 of [T] as printed, but for SVHN: full, then relaxed; accuracy by class, then of all."""

TRAININGS = {"never": "plain", "before": "equal losses"}
"""Names of the trainings without and with the constraint, by the time of mitigation."""

HELD = {
    "accuracy": ("test", "test accuracy"),
    "gradient_norm": ("train", "gradient norm\n(log10 nats per unit weight)"),
    "boundary_mean": ("train", "distance to the boundary\n(probability)"),
    "curvature_largest": ("train", "largest eigenvalue\n(log10 nats per weight²)"),
}
"""Columns that equal losses may bring together: the part where they are measured, and a label."""

_EXTRA = {"epochs": "", "time": ", time"}
_ORDER = ["not pruned", "none", *FIVE, "equalized-odds"]
_STAGES = {"pruned": "compressed", "not pruned": "control"}
_RUN = ["mitigation", "strength", "budget", "stage", "seed"]
_COLUMNS = ["accuracy", "gradient_norm", "curvature_largest"]
_ARMS = ["none", "equal-loss-weak", "equal-loss", "equal-curvature"]


def held_of_groups(study: DataFrame) -> Figure:
    """Draw what equal losses may bring together, a row for every group, by training."""
    study = study.assign(**np.log10(study[["gradient_norm", "curvature_largest"]]))
    study = study.assign(training=study["when"].map(TRAININGS))
    height = 1.4 + 0.6 * study["group"].nunique()
    figure, axes = new_figure(2, rows=2, height=height, sharey=True)
    for axis, (column, (split, label)) in zip(axes, HELD.items(), strict=True):
        plots.by_name(axis, select(study, split=split), column, label, by="training")
    legend(figure, "training")
    return figure


def held_gaps(study: DataFrame) -> DataFrame:
    """List how far apart the groups are after either training, and the difference.

    Gaps of norms, distances and eigenvalues are divided by the mean over the groups.
    """
    rows: tables.Contents = {}
    for column, (split, label) in ({"loss": ("train", "loss (nats)")} | HELD).items():
        relative = column not in ("accuracy", "loss")
        own = {
            name: effects.group_gap(
                study, where={"when": when, "split": split}, column=column, relative=relative
            )
            for when, name in TRAININGS.items()
        }
        if column == "accuracy":
            own, label = {name: 100 * gap for name, gap in own.items()}, f"{label}, points"
        own["difference"] = own["equal losses"] - own["plain"]
        rows[label.split("\n")[0] + ", over its mean" * relative, split] = own
    return tables.means(rows, names=["gap between groups", "measured on"], digits=2)


def mitigation_names(table: DataFrame) -> Series:
    """Name networks by mitigation, strength and, where there is more of it, time."""
    strength = table["strength"].map(" {}".format).where(table["strength"] > 0, "")
    return table["mitigation"] + strength + table["budget"].map(_EXTRA)


def finetuned(study: DataFrame) -> DataFrame:
    """Compute a row for each finetuned network: what its groups have, and would have by chance.

    Args:
        study: Table of the page on the price of fairness. Networks that are mitigated and not
            pruned are left out (:func:`given_back`).
    """
    mitigated = (study["stage"] == "control") & (study["mitigation"] != "none")
    study = study[(study["split"] != "train") & ~mitigated]
    study = study.assign(seen=study["accuracy"] * study["train_size"])
    groups = study.groupby(_RUN, sort=False)
    found = effects.by_run(study, _RUN).set_index(_RUN).rename(columns={"bias": "gap"})
    found["in training shares"] = groups["seen"].sum() / groups["train_size"].sum()
    found[["worst group", "best group"]] = groups["accuracy"].agg(["min", "max"])
    generator, ends = np.random.default_rng(0), []
    for (_, sizes), overall in zip(groups["size"], found["accuracy"], strict=True):
        drawn = accuracies_by_chance(sizes, overall, seed=generator)
        ends.append((drawn.min(axis=1).mean(), drawn.max(axis=1).mean()))
    found[["low", "high"]] = ends
    found["gap by chance"] = found["high"] - found["low"]
    rank, count = groups["train_size"].rank(method="first"), study["group"].nunique()
    third = -(-count // 3)
    ranked = rank.le(third).map({True: "smallest", False: "middle"})
    # A few groups are shown by name.
    parts = study["group"] if count < 6 else ranked.mask(rank > count - third, "largest")
    means = study.groupby([*_RUN, parts.rename("part")])["accuracy"].mean()
    found = found.join(means.unstack()).reset_index()
    found.loc[found["stage"] == "control", "mitigation"] = "not pruned"
    found["network"] = mitigation_names(found)
    found["mitigation"] = pd.Categorical(found["mitigation"], _ORDER)
    return found.sort_values(_RUN[:3], kind="stable")


def _pareto(axis: Axes, found: DataFrame) -> None:
    """Draw a curve for each mitigation; marks grow with the strength."""
    for name, own in found.groupby("mitigation", observed=True):
        place, path = _ORDER.index(str(name)) - 1, []
        look: Arguments = {"color": PALETTE[place], "marker": MARKERS[place]}
        for (budget, strength), part in own.groupby(["budget", "strength"]):
            look |= {"label": name, "elinewidth": 0.7, "markersize": 3 + 1.5 * (strength or 2)}
            fill = {"markerfacecolor": "white", "label": None} if budget == "time" else {}
            point = plots.mean_point(axis, part["gap"], part["accuracy"], **look | fill)
            path += [point] if budget == "epochs" else []
        axis.plot(*zip(*path, strict=True), color=look["color"], linewidth=1)


def gaps_and_accuracies(study: DataFrame) -> Figure:
    """Draw accuracy over gap, and dotted the gap by chance: a panel for each kind of mitigation."""
    found = finetuned(study)
    chance = found.groupby("network")[["gap by chance", "accuracy"]].mean()
    chance = chance.set_index("gap by chance").sort_values("accuracy")
    figure, axes = new_figure(2, height=4.6, sharey=True)
    weights = {"group-dro", "reweight"}
    kinds = {"by multipliers": {*_ORDER} - weights, "by weights": {*_ORDER[:2]} | weights}
    for axis, (title, names) in zip(axes, kinds.items(), strict=True):
        _pareto(axis, found[found["mitigation"].isin(names)])
        axis.plot(chance, ":", color="#777777", label="chance")
        axis.set_title(title)
        accuracy(axis.xaxis, "gap in test accuracy")
    accuracy(axes[0].yaxis, "test accuracy", "%")
    axes[1].sharex(axes[0])
    legend(figure, "larger: stronger")
    return figure


def ends_and_groups(study: DataFrame) -> Figure:
    """Draw the worst and the best group, and what each gains or loses by the mitigations."""
    found = select(finetuned(study), strength=[0, 2]).set_index("seed")
    figure, (left, right) = new_figure(2, height=4.6, sharey=True)
    sizes = study.groupby("group")["train_size"].mean().sort_values()[::-1]
    labels = {name: f"{name} (n={size:,.0f})" for name, size in sizes.items()}
    thirds = ["largest", "middle", "smallest"]
    names = thirds if "largest" in found else list(labels)
    plain = found[found["network"] == "none"][names]
    ends, changes = {}, {}
    for place, (name, part) in enumerate(found.groupby("network", sort=False)):
        ends[str(name)] = dict(part[["worst group", "best group"]])
        changes[str(name)] = dict((part[names] - plain).rename(columns=labels))
        left.plot(part[["low", "high"]].mean(), [place + 0.25] * 2, ":", color="#777777")
    plots.intervals(left, ends, zero=None)
    plots.intervals(right, changes)
    accuracy(left.xaxis, "test accuracy (dotted: by chance)", "%")
    accuracy(right.xaxis, "change of test accuracy against none")
    for axis in (left, right):
        axis.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1))
    return figure


def finetuning_cost(study: DataFrame) -> DataFrame:
    """Compute processor time in multiples of plain finetuning, paired within the seed."""
    rows = select(study, stage="compressed", strength=[0, 2])
    rows = rows.assign(network=mitigation_names(rows)).drop_duplicates(["network", "seed"])
    seconds = rows.pivot(index="seed", columns="network", values="seconds")
    of = seconds.div(seconds["none"], axis=0).agg(["median", "min", "max"])
    return of.T.sort_values("median").round(1)


def answer_changes(study: DataFrame, stage: str = "compressed") -> dict[str, DataFrame]:
    """Count the right answers that each group gains, in a test part, by mitigation.

    Args:
        study: Table with networks that are mitigated and not pruned.
        stage: ``"compressed"``, or ``"control"`` for networks that are not pruned.

    Returns:
        By mitigation, seeds in rows and groups in columns, the largest first, and ``all``: accuracy
        under the mitigation minus that without, times the size of the group.
    """
    rows = select(study, stage=stage, split="test", budget="epochs", strength=[0, 2])
    rows = rows.assign(right=(rows["accuracy"] * rows["size"]).round())
    order = rows.groupby("group")["train_size"].mean().sort_values().index[::-1]
    right = {
        str(name): part.pivot(index="seed", columns="group", values="right")[order]
        for name, part in rows.groupby("mitigation", sort=False)
    }
    plain = right.pop("none")
    changes = {name: right[name] - plain for name in FIVE if name in right}
    return {name: own.assign(all=own.sum(axis=1)) for name, own in changes.items()}


def net_answers(study: DataFrame) -> DataFrame:
    """List the right answers that each group gains in a test part: means with intervals."""
    rows: tables.Contents = {
        (name, words): dict(own)
        for words, stage in _STAGES.items()
        for name, own in answer_changes(study, stage).items()
    }
    return tables.means(rows, names=["mitigation", "network"], digits=0)


def given_back(study: DataFrame) -> Figure:
    """Draw what each mitigation does to a pruned network beside one that is not pruned.

    On the left the change of the gap in test accuracy; on the right what pruning takes from the
    smallest group beside the largest, where both networks are mitigated and where neither is.
    """
    figure, (left, right) = new_figure(2, height=4.6, sharey=True)
    names = [name for name in FIVE if (study["mitigation"] == name).any()]
    middle = {"budget": "epochs", "strength": 2}
    gaps: dict[str, dict[str, Series]] = {"none": {}}
    taken: dict[str, dict[str, Series]] = {}
    for name in names:
        for words, stage in _STAGES.items():
            at = {"stage": stage, "split": "test", "budget": "epochs"}
            gaps.setdefault(name, {})[words] = effects.contrast_rows(
                study,
                of="group_gap",
                where=at | middle | {"mitigation": name},
                against=at | {"mitigation": "none"},
            )
    level = select(study, stage="compressed")["level"].iloc[0]
    for name in gaps:
        where = {"budget": "epochs", "mitigation": name} | (middle if name != "none" else {})
        lost = effects.drop_difference(study, level=level, share=0.1, where=where)
        taken[name] = {"taken by pruning": lost}
    plots.intervals(left, gaps)
    plots.intervals(right, taken)
    accuracy(left.xaxis, "change of the gap by the mitigation")
    accuracy(right.xaxis, "drop by pruning, smallest minus largest group")
    legend(figure)
    return figure


def times_of(study: DataFrame) -> list[str]:
    """List the times of mitigation that a table has, in their order."""
    return [time for time in TIMES if (study["when"] == time).any()]


def by_time(study: DataFrame, setting: str) -> DataFrame:
    """Compute accuracy and gap by time of mitigation and sparsity, 0 for the control; by seed."""
    found = {
        (label, when): effects.by_level(
            study, of=of, where={"setting": setting, "when": when}, control=True
        )
        for (label, of), when in product(SHOWN.items(), times_of(study))
    }
    return pd.concat(found, axis=1, names=["", "when", "sparsity"]).sort_index(axis=1)


def four_models(study: DataFrame, setting: str) -> Figure:
    """Draw accuracy and gap over the weights kept for the four models of Section 6.2 of [T]."""
    figure, axes = new_figure(2)
    found, never = by_time(study, setting), {"setting": setting, "when": "never"}
    for axis, label in zip(axes, SHOWN, strict=True):
        models = {when: found[label, when] for when in times_of(study)}
        plots.over_levels(axis, study, models, control=True, zero=False)
        measured(axis.yaxis, SHOWN[label], label)
    chance = effects.by_level(study, of="group_gap_by_chance", where=never, control=True)
    axes[1].plot(chance.mean(), color="#555555", linestyle=":", label="chance")
    plots.floor(axes[1], study, **never)
    legend(figure, "mitigated")
    return figure


def beside_table_2(study: DataFrame) -> DataFrame:
    """Put our means over seeds beside Table 2 of [T], in percent."""
    means = by_time(study, "other target").mean().unstack("when")[TIMES]
    both = {"ours": means.reindex(TABLE_2.index), "printed": TABLE_2}
    shares = pd.concat(both, axis=1).rename_axis(["percent", "sparsity"])
    return (100 * shares).round(1)


def chance_in_table_2(study: DataFrame) -> DataFrame:
    """Compute the gap that nine groups of one accuracy would have, beside the printed one, in
    points, and the percentage of draws below that."""
    test = select(study, setting="other target", split="test")
    shares = test.groupby("group")["size"].mean()
    sizes = (shares / shares.sum() * 23_707 / 5).round().astype(int).to_numpy()
    gaps = {
        key: np.ptp(accuracies_by_chance(sizes, accuracy, draws=5000), axis=1)
        for key, accuracy in TABLE_2.loc["test accuracy"].stack().items()
    }
    drawn, printed = pd.DataFrame(gaps), TABLE_2.loc["gap in test accuracy"].stack()
    null = drawn.agg(["mean", "std"]).T.assign(printed=printed)
    null["draws below"] = drawn.le(printed).mean()
    return (100 * null).round(1).rename_axis(["sparsity", "when"])


def beside_table_1(recorded: Mapping[str, DataFrame]) -> DataFrame:
    """Put our means over seeds beside Table 1 of [T], in percent.

    Args:
        recorded: Tables of the page on the full constraint, by the names of `TABLE_1`.

    Returns:
        By data set and class, the accuracies under the full and the relaxed constraint; then those
        of ``all`` samples, and the ``gap`` between the best and the worst class, ours as the mean
        over seeds.
    """
    parts = {}
    for name, study in recorded.items():
        rows = select(study, stage="compressed", split="test")
        ours = {}
        for version, mitigation in (("full", "equal-curvature"), ("relaxed", "equal-loss")):
            own = select(rows, mitigation=mitigation)
            means = own.groupby("group", sort=False)["accuracy"].mean()
            overall = effects.overall_accuracy(own, where={}).mean()
            gap = effects.group_gap(own, where={}).mean()
            ours["ours", version] = pd.concat([means, Series({"all": overall, "gap": gap})])
        found = DataFrame(ours)
        for version, printed in zip(("full", "relaxed"), TABLE_1[name], strict=True):
            *classes, _ = printed
            found["printed", version] = [*printed, max(classes) - min(classes)]
        parts[name] = found.rename_axis("class")
    return (100 * pd.concat(parts, names=["data"])).round(1)


def constrained(study: DataFrame) -> DataFrame:
    """Compute a row for each pruned network, with what lies between its groups."""
    rows, keys = select(study, stage="compressed"), ["mitigation", "seed"]
    groups = rows.groupby([*keys, "split"])[_COLUMNS]
    low, high, mean = (groups.agg(how).unstack() for how in ("min", "max", "mean"))
    relative = (high - low) / mean
    test = select(rows, split="test")
    found = effects.by_run(test, keys).set_index(keys)[["accuracy", "bias"]]
    found.columns = pd.Index(["test accuracy", GAPS[0]])
    found["worst group"] = low["accuracy", "test"]
    found["best group"] = high["accuracy", "test"]
    for name, column in zip(GAPS[1:], _COLUMNS[1:], strict=True):
        found[name] = relative[column, "train"]
        found[f"{name}, by chance"] = relative[column, "lot"]
    chance = test.groupby("mitigation").apply(effects.group_gap_by_chance, where={})
    return found.assign(**{f"{GAPS[0]}, by chance": chance.stack()}).reset_index()


def constrained_gaps(study: DataFrame) -> Figure:
    """Draw what lies between the groups under each constraint, and by chance."""
    found = constrained(study).pivot(index="seed", columns="mitigation")
    figure, axes = new_figure(3, sharey=True)
    for axis, name in zip(axes, GAPS, strict=True):
        values, null = (found[each][_ARMS] for each in (name, f"{name}, by chance"))
        axis.plot(values.T, range(len(_ARMS)), "|", color="#bbbbbb")
        plots.intervals(axis, dict(values), zero=None)
        axis.plot(null.mean(), range(len(_ARMS)), "k|", markersize=12)
        axis.set(xlabel=name, xlim=(0, None))
    accuracy(axes[0].xaxis, GAPS[0])
    plots.floor(axes[0], study)
    return figure


def constrained_groups(study: DataFrame) -> Figure:
    """Draw accuracy, gradient norm and eigenvalue of every group, by mitigation."""
    labels = [
        "test accuracy",
        "gradient norm, training\n(nats per unit weight)",
        "largest eigenvalue, training\n(nats per weight²)",
    ]
    whole, study = (
        study,
        select(study, stage="compressed", mitigation=["none", "equal-loss", "equal-curvature"]),
    )
    figure, axes = new_figure(3, height=1.4 + 0.45 * study["group"].nunique(), sharey=True)
    for axis, column, label in zip(axes, _COLUMNS, labels, strict=True):
        part = "test" if column == "accuracy" else "train"
        plots.by_name(axis, select(study, split=part), column, label, by="mitigation")
    plots.floor(axes[0], whole)
    legend(figure, "held together")
    return figure


def by_dual_step(study: DataFrame, stage: str = "compressed") -> DataFrame:
    """Compute a row for each kind of multiplier, dual step and seed."""
    rows = select(study, stage=stage)
    at = rows["step"].fillna(rows["dense_step"])
    named = rows.assign(arm=rows["variant"] + ", " + at.map("{:g}".format), at=at)
    return effects.by_arm(named, ["arm", "variant", "at"])


def dial(study: DataFrame) -> Figure:
    """Draw accuracy and gap over the dual step."""
    figure, axes = new_figure(2)
    found = by_dual_step(study).pivot(index="seed", columns=["variant", "at"])
    kinds = [kind for kind in ("absolute", "signed", "before") if kind in found["gap"]]
    for axis, column in zip(axes, ("accuracy", "gap"), strict=True):
        of = found[column]
        axis.set(xscale="log", xlabel="dual step")
        measured(axis.yaxis, column, f"{column}, test set")
        plots.lines(axis, {kind: of[kind] for kind in kinds}, apart=0.2, zero=False)
        ends = statistics.t_interval(of["never", 0])[1:]
        axis.axhspan(*ends, color="#dddddd", label="never")
    axes[1].plot(found["gap_by_chance"].mean().unstack(0)[kinds], ":")
    legend(figure, "equal losses")
    return figure
