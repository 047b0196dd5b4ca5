"""The rows of a study's table: its networks, measured by group."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from torch import nn

from fairlib.data import Splits
from fairlib.diagnostics import DIAGNOSTICS, diagnose, group_performance
from fairlib.network.memory import gradient_evaluations, history
from fairlib.studies.arms import Level
from fairlib.studies.plan import StudyPlan

MEASURED = (*DIAGNOSTICS, "distance", "gradients")
"""Names of the ``diagnostics`` of a study."""

CONTRACT = (
    "data",
    "model",
    "method",
    "level",
    "kept",
    "mitigation",
    "when",
    "seed",
    "stage",
    "split",
    "group",
)
"""Columns that identify a row of a study's table, in order."""


@dataclass(eq=False)
class Run:
    """One network of a study: the argument of a ``measure``.

    Attributes:
        splits: Data of the seed.
        seed: Seed of the run.
        arm: Name of the arm; empty in a study without arms.
        when: Time of the mitigation.
        stage: ``"dense"``, ``"control"`` or ``"compressed"``.
        level: Level of the compression; of a pipeline a tuple.
        parent: Run of the dense network; None if it is this one.
        model: The network, in eval mode.
        all: All runs of the seed, this one included, in the order of the table.
        timing: ``seconds`` and ``dual_seconds`` of the finetuning in a study with a clock; else
            empty.
    """

    splits: Splits
    seed: int
    arm: str
    when: str
    stage: str
    level: Level
    parent: Any
    model: Any = None
    all: list[Run] = field(default_factory=list)
    timing: Mapping[str, float] = field(default_factory=dict)

    @property
    def dense(self) -> nn.Module:
        """Dense network that this one was compressed or finetuned from."""
        return (self.parent or self).model

    def other(self, arm: str) -> Run:
        """Return the run of another arm at the same stage and level.

        Raises:
            KeyError: If there is no such run, or several.
        """
        wanted = (arm, self.stage, self.level)
        found = [run for run in self.all if (run.arm, run.stage, run.level) == wanted]
        if len(found) != 1:
            raise KeyError(
                f"{len(found)} runs of arm {arm!r} at stage {self.stage!r} and level {self.level}"
            )
        return found[0]


def seed_table(plan: StudyPlan, runs: list[Run]) -> tuple[pd.DataFrame, list[str]]:
    """Measure the runs of a seed.

    Returns:
        Their rows, and reasons why diagnostics could not be computed.
    """
    reasons: list[str] = []
    frames = []
    # Arms share dense networks and controls, whose diagnostics may take longer than a training.
    measured: dict[int, pd.DataFrame] = {}
    for run in runs:
        if id(run.model) not in measured:
            measured[id(run.model)] = _performance(plan, run, reasons)
        frames.append(_rows(plan, run, measured[id(run.model)]))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(), reasons


def _rows(plan: StudyPlan, run: Run, table: pd.DataFrame) -> pd.DataFrame:
    """Add to the performance of a network its measure, and the columns that identify it."""
    arm = plan.arms[run.arm]
    # Dense networks have no finetuning to clock; their rows have the columns all the same.
    if plan.run.clock:
        table = table.assign(**{"seconds": math.nan, "dual_seconds": math.nan, **run.timing})
    if plan.measure:
        table = _added(table, plan.measure(run))
    level: object = run.level
    # Text in all arms if one is a pipeline, so that the column is of one type.
    if any(len(other.steps) > 1 for other in plan.arms.values()):
        level = " + ".join(f"{entry:g}" for entry in np.atleast_1d(run.level))
    known = {
        "data": run.splits.name,
        "model": plan.model_name,
        "method": arm.full_name,
        "level": level,
        "kept": arm.kept(run.model, run.dense) if run.stage == "compressed" else 1.0,
        "mitigation": "none" if run.when == "never" else arm.mitigation_name,
        "when": run.when,
        "seed": run.seed,
        "stage": run.stage,
    }
    order = [*CONTRACT, "size", "accuracy", "loss"]
    if run.arm:
        known["arm"] = run.arm
        order.append("arm")
    table = table.assign(**known)
    return table[order + [name for name in table if name not in order]]


def _performance(plan: StudyPlan, run: Run, reasons: list[str]) -> pd.DataFrame:
    """Compute performance and diagnostics of every group on the training set and the test set."""
    frames = []
    for split, data in (("train", run.splits.train), ("test", run.splits.test)):
        table = group_performance(run.model, data)
        for name, settings in plan.diagnostics.items():
            if name == "distance":
                table = table.assign(distance=parameter_distance(run.model, run.dense))
            elif name == "gradients":
                table = table.assign(gradients=gradient_evaluations(run.model))
            else:
                columns, reason = diagnose(name, run.model, data, **settings)
                table = table.join(columns)
                reasons += [reason] if reason else []
        frames.append(table.reset_index().assign(split=split))
    return pd.concat(frames, ignore_index=True)


def traced(run: Run) -> pd.DataFrame:
    """Return the acts of a constraint in each epoch, as rows: a ``measure`` of a study.

    Returns:
        A row for each epoch of the run's last training, with its number ``epoch`` and the columns
        of :func:`fairlib.history` that belong to a group, such as ``multiplier[a]`` and
        ``violation[a]``.
    """
    return history(run.model).filter(like="[").reset_index()


def parameter_distance(model: nn.Module, dense: nn.Module) -> float:
    """Compute the Euclidean distance between two models' parameters.

    Returns:
        NaN if their names or shapes differ.
    """
    ours, theirs = (dict(each.named_parameters()) for each in (model, dense))
    shapes = [{name: p.shape for name, p in each.items()} for each in (ours, theirs)]
    if shapes[0] != shapes[1]:
        return math.nan
    # Summed in double precision: in single precision the small differences of a large network would
    # vanish beside the sum so far.
    total = 0.0
    for name, parameter in ours.items():
        difference = parameter.detach() - theirs[name].detach().to(parameter)
        total += float(difference.double().square().sum())
    return math.sqrt(total)


def _added(table: pd.DataFrame, found: pd.DataFrame | Mapping[str, Any]) -> pd.DataFrame:
    """Add the result of a measure to the rows of a network."""
    if not isinstance(found, pd.DataFrame):
        if taken := sorted({*CONTRACT, *table} & set(found)):
            raise ValueError(
                f"measure must give columns of its own, got {', '.join(taken)}, which the study has"
            )
        return table.assign(**found)
    # A table without these keys has rows that belong to no group, such as the epochs of a training.
    keys = ["split", "group"]
    if not set(keys) <= set(found):
        return pd.concat([table, found], ignore_index=True)
    new = found[[*keys, *(name for name in found if name not in table)]]
    # Each row of the study gets at most one of the measure's: a second one for the same group would
    # multiply the rows, and every mean over the table would count that group twice.
    joined = table.merge(new, on=keys, how="left", validate="one_to_one")
    known = pd.MultiIndex.from_frame(found[keys]).isin(pd.MultiIndex.from_frame(table[keys]))
    return joined if known.all() else pd.concat([joined, found[~known]], ignore_index=True)
