"""Run a study for a group of seeds (:func:`run_group`), stage by stage.

Load the data; train the dense networks, then the controls; compress; train what was compressed at
its initial weights; finetune; measure. Each stage of trainings is one list, which
:func:`fairlib.training.fit_all` carries out. A training that diverges raises nothing here: its
:class:`fairlib.DivergenceError` is kept in the place of the network.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import torch
from torch import nn

from fairlib import environment
from fairlib.data import Splits
from fairlib.network.memory import memory_of
from fairlib.studies.plan import StudyPlan
from fairlib.studies.rows import Run, seed_table
from fairlib.training import DivergenceError, Training, fit_all
from fairlib.training.cache import setting_text
from fairlib.training.compressors import Settings
from fairlib.training.distillation import UntrainedTeacherError
from fairlib.training.loop import AT_ONCE
from fairlib.training.together import pays, replays, why_alone

Outcome = tuple[pd.DataFrame, list[str], list[dict[str, Any]]]
"""Rows of a seed, reasons why diagnostics could not be computed, and runs that diverged."""
Counts = dict[str, int]
"""Counts of trainings: ``"at once"``, beside those of other seeds, and ``"alone"``."""


def seed_groups(plan: StudyPlan, seeds: Sequence[int]) -> list[list[int]]:
    """Group seeds for training beside each other: no two of a group share a place in a stack.

    Where that does not pay each seed is a group of its own, so that a process holds the data and
    networks of one seed only.
    """
    if not _trains_beside(plan, seeds[0]):
        return [[seed] for seed in seeds]
    groups: dict[int, list[int]] = {}
    taken = [0] * AT_ONCE
    for seed in seeds:
        place = seed % AT_ONCE
        groups.setdefault(taken[place], []).append(seed)
        taken[place] += 1
    return list(groups.values())


def _trains_beside(plan: StudyPlan, seed: int) -> bool:
    """Tell whether seeds are trained beside each other, by the dense training of one of them."""
    if plan.run.at_once != "auto":
        return bool(plan.run.at_once)
    # Check the device before the data: loading data only to learn that it does not pay can take
    # minutes.
    if not environment.automatic():
        return False
    if replays(plan.device):
        return True
    splits = plan.splits(seed)
    return pays(plan.training(plan.start(splits, seed), splits.train, seed, plan.train, None))


def run_group(plan: StudyPlan, seeds: Sequence[int]) -> tuple[dict[int, Outcome], Counts]:
    """Carry out all stages for a group of seeds; return the outcome of each.

    Warns:
        UserWarning: If the memory of a GPU holds the networks of fewer seeds.
    """
    try:
        return _run_group(plan, seeds)
    except torch.OutOfMemoryError:
        if len(seeds) == 1:
            raise
    half = len(seeds) // 2
    warnings.warn(f"the GPU has not enough memory for {len(seeds)} seeds at once", stacklevel=2)
    (first, counts), (rest, more) = run_group(plan, seeds[:half]), run_group(plan, seeds[half:])
    return first | rest, {way: counts[way] + more[way] for way in counts}


def _run_group(plan: StudyPlan, seeds: Sequence[int]) -> tuple[dict[int, Outcome], Counts]:
    splits = {seed: plan.splits(seed) for seed in seeds}
    start = {seed: plan.start(splits[seed], seed) for seed in seeds}
    runs = _all_runs(plan, splits)
    counts = {"at once": 0, "alone": 0}

    # Train dense networks. One that diverges gets no control and no compressed network.
    dense = [run for run in runs if run.stage == "dense"]
    trainings = [_dense_training(plan, run, start[run.seed], plan.train) for run in dense]
    _fit_stage(plan, dense, trainings, counts)
    finetunings = {run: _finetuning(plan, run) for run in _trained(dense)}

    # Finetune the dense networks as controls.
    controls = [run for run in runs if run.stage == "control" and run.parent in finetunings]
    trainings = [finetunings[run.parent](run.dense) for run in controls]
    _fit_stage(plan, controls, trainings, counts, clock=plan.run.clock)

    # Compress; then train the networks that were compressed at their initial weights.
    small = [run for run in runs if run.stage == "compressed" and run.parent in finetunings]
    _compress_all(plan, small, start)
    initial = [run for run in _trained(small) if plan.arms[run.arm].compress == "initial"]
    trainings = [_dense_training(plan, run, run.model, plan.arms[run.arm].train) for run in initial]
    _fit_stage(plan, initial, trainings, counts)

    # Finetune the compressed networks.
    tuned = [run for run in _trained(small) if plan.arms[run.arm].finetunes]
    trainings = [finetunings[run.parent](run.model) for run in tuned]
    _fit_stage(plan, tuned, trainings, counts, clock=plan.run.clock, share=False)

    # Measure each seed's networks.
    outcomes = {}
    for seed in seeds:
        own = [run for run in runs if run.seed == seed and run.model is not None]
        outcomes[seed] = _outcome(plan, own)
    return outcomes, counts


def _all_runs(plan: StudyPlan, splits: Mapping[int, Splits]) -> list[Run]:
    """List the runs of a group, for each seed in the order of the table, without their networks."""
    runs = []
    for name, arm in plan.arms.items():
        stages = [("dense", arm.control_level), ("control", arm.control_level)]
        stages += [("compressed", level) for level in arm.levels]
        for when in arm.when:
            parents: dict[int, Run] = {}
            for stage, level in stages:
                if stage == "control" and not arm.control:
                    continue
                # Loop over seeds innermost: the same training of all seeds is then side by side in
                # the list, and fills a stack.
                for seed, part in splits.items():
                    plain = level if len(level) > 1 else level[0]
                    run = Run(part, seed, name, when, stage, plain, parents.get(seed))
                    parents.setdefault(seed, run)
                    runs.append(run)
    return runs


def _trained(runs: Sequence[Run]) -> list[Run]:
    """Select the runs that hold a network, not the error of a training that diverged."""
    return [run for run in runs if isinstance(run.model, nn.Module)]


def _fit_stage(
    plan: StudyPlan,
    runs: Sequence[Run],
    trainings: Sequence[Training],
    counts: Counts,
    *,
    clock: bool = False,
    share: bool = True,
) -> None:
    """Carry out the training of each run, and give the run its network, or the error.

    Args:
        plan: The study.
        runs: Runs of one stage.
        trainings: The training of each.
        counts: Counts of trainings, updated in place.
        clock: Measure how long each takes: alone, and without the cache.
        share: Carry out once what several arms ask for.

    Raises:
        DivergenceError: If one diverges and the study skips nothing; names the seed. The other
            trainings of the stage are cached already, if the stage uses the cache.
    """
    unique: dict[object, Training] = {}
    keys = []
    for run, training in zip(runs, trainings, strict=True):
        # The text has the checksum of a teacher, too; networks are shared, so their id is enough.
        key = (id(training.model), setting_text(training.settings)) if share else run
        keys.append(key)
        unique[key] = training if clock else _placed(plan, training)
    beside = sum(training.place is not None for training in unique.values())
    counts["at once"] += beside
    counts["alone"] += len(unique) - beside
    asked = list(unique.values())
    # Where the clock runs each is alone on the device, whatever else the device could do.
    parts = [fit_all([one]) for one in asked] if clock else [fit_all(asked, plan.run.folder)]
    found = dict(zip(unique, itertools.chain(*parts), strict=True))
    for run, key in zip(runs, keys, strict=True):
        run.model = network = found[key]
        if isinstance(network, DivergenceError):
            if plan.run.divergence == "raise":
                raise DivergenceError(f"seed {run.seed}: {network}") from network
        elif clock:
            run.timing = memory_of(network).timing


def _placed(plan: StudyPlan, training: Training) -> Training:
    """Give a training its place beside others, if it is to have one."""
    at_once = plan.run.at_once
    if not (pays(training) if at_once == "auto" else at_once and why_alone(training) is None):
        return training
    # Derive the place from the seed alone, so that the rounding of a seed does not depend on which
    # other seeds are run.
    return replace(training, place=training.settings["seed"] % AT_ONCE)


def _dense_training(plan: StudyPlan, run: Run, model: nn.Module, settings: Settings) -> Training:
    """Describe a training on the training part, under the mitigation of the time "before"."""
    first, _ = plan.arms[run.arm].constraints(run.when)
    return plan.training(model, run.splits.train, run.seed, settings, first)


def _finetuning(plan: StudyPlan, run: Run) -> Callable[[nn.Module], Training]:
    """Return a function from a network to its finetuning; the dense network is its teacher."""
    arm, data = plan.arms[run.arm], plan.tuning(run.splits)
    _, last = arm.constraints(run.when)
    teacher = None
    if arm.finetune["epochs"]:
        teacher = _attempt(plan, run.seed, arm.objective, run.model, data)
    constraint = last.relative_to(run.model, data) if last else None
    settings = {**arm.finetune, "objective": teacher}
    return lambda model: plan.training(model, data, run.seed, settings, constraint)


def _compress_all(plan: StudyPlan, runs: Sequence[Run], start: Mapping[int, nn.Module]) -> None:
    """Give each run its compressed network; arms share those that are compressed alike."""
    found: dict[object, nn.Module | DivergenceError] = {}
    for run in runs:
        arm = plan.arms[run.arm]
        network = start[run.seed] if arm.compress == "initial" else run.dense
        first, _ = arm.constraints(run.when)
        steps = [
            (step.full_name, step.compressor, setting_text(step.settings)) for step in arm.steps
        ]
        key = id(network), f"{steps} {run.level} {first!r} {setting_text(arm.train)}"
        if key not in found:
            found[key] = _attempt(plan, run.seed, _compress, plan, run, network)
        run.model = found[key]


def _compress(plan: StudyPlan, run: Run, network: nn.Module) -> nn.Module:
    """Apply the methods of the run's arm in order; method i compresses to entry i of the level."""
    arm = plan.arms[run.arm]
    first, _ = arm.constraints(run.when)
    entries = run.level if isinstance(run.level, tuple) else (run.level,)
    for step, entry in zip(arm.steps, entries, strict=True):
        kind = step.compressor
        if entry == kind.control:
            continue
        settings = {**step.settings, "data": plan.tuning(run.splits), "seed": run.seed}
        if plan.held_out == "val" and "val" in step.entry.takes:
            settings.setdefault("val", run.splits.val)
        if step.trains:
            train: dict[str, Any] = {}
            if kind.inherits:
                train |= {key: value for key, value in arm.train.items() if key != "keep"}
                if first and step.entry.constrained:
                    train["constraint"] = first
            settings["train"] = {**train, "device": plan.device, **settings.get("train", {})}
        network = kind.function(network, step.method, **{kind.level: entry}, **settings)
    return network


def _attempt(plan: StudyPlan, seed: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function that may train; return the error if it diverges and the study skips that.

    Raises:
        DivergenceError: If it diverges and the study skips nothing; names the seed.
        UntrainedTeacherError: If a dense network that is to teach performs at chance; the same.
    """
    try:
        return function(*arguments)
    except (DivergenceError, UntrainedTeacherError) as error:
        if isinstance(error, DivergenceError) and plan.run.divergence == "skip":
            return error
        raise type(error)(f"seed {seed}: {error}") from error


def _outcome(plan: StudyPlan, runs: Sequence[Run]) -> Outcome:
    """Measure the networks of a seed, and list the runs that diverged."""
    trained = _trained(runs)
    diverged = []
    for run in runs:
        if run in trained:
            run.all = trained
        else:
            names = ("arm", "seed", "stage", "level", "when")
            where = {name: getattr(run, name) for name in names}
            diverged.append({**where, "reason": str(run.model)})
    return *seed_table(plan, trained), diverged
