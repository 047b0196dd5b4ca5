"""Studies: every combination of seed, arm, level and time of mitigation, run and gathered into one
tidy table."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from types import NoneType

import pandas as pd
from torch import nn

from fairlib import environment
from fairlib._validation import (
    check_automatic,
    check_many,
    check_settings,
    check_type,
    lookup,
    name_and_settings,
)
from fairlib.data import Splits
from fairlib.diagnostics import DIAGNOSTICS
from fairlib.studies.arms import (
    COMPRESSORS,
    HELD_OUT,
    OWN,
    WHEN,
    Arm,
    Function,
    Level,
    Methods,
    Named,
    plans,
)
from fairlib.studies.parallel import by_seed, check_seeds, check_workers, in_processes
from fairlib.studies.seed import (
    MEASURED,
    Measure,
    Run,
    Study,
    gains,
    parameter_distance,
    tables,
    traced,
)
from fairlib.training.cache import default_folder
from fairlib.training.compressors import Settings
from fairlib.training.loop import check_arguments, check_training
from fairlib.training.together import AT_ONCE

__all__ = ["COMPRESSORS", "WHEN", "Arm", "Run", "by_seed", "parameter_distance", "study", "traced"]


def study(
    data: Named | Splits | Callable[[int], Splits],
    model: Named | Function,
    method: Methods | None = None,
    levels: Iterable[Level] = (),
    *,
    arms: Mapping[str, Arm] | Iterable[tuple[str, Arm]] | None = None,
    compress: str = "trained",
    mitigation: Named | None = None,
    when: str | Iterable[str] = "never",
    seeds: Iterable[int] = range(5),
    train: Settings | None = None,
    finetune: Settings | None = None,
    data_seed: int | None = None,
    held_out: str = "val",
    diagnostics: Iterable[Named] = (),
    measure: Measure | None = None,
    clock: bool = False,
    divergence: str = "raise",
    device: str = "auto",
    cache: str | Path | None = "auto",
    workers: int | None = None,
    at_once: bool | str = "auto",
    progress: bool = False,
) -> pd.DataFrame:
    r"""Train, compress and finetune, for every seed, arm, level and time of mitigation, and measure
    every group.

    For each seed a dense model is built and trained; each arm compresses it to each of its levels
    and finetunes it. Finetuning alone changes some groups more than others, so each arm has a
    *control* unless it declines it: the dense model, finetuned in the same way without being
    compressed. Arms share data, dense networks, controls and compressed networks wherever these are
    the same.

    Args: data: Name of a data set (``fairlib.data.DATASETS``), ``(name, settings)`` for
        :func:`fairlib.load` (a ``seed``
            among the settings fixes the data), ready splits, or a function from a seed to splits.
        model: Name of an architecture (``fairlib.models.MODELS``), ``(name, settings)`` for
            :func:`fairlib.build`, or a function from splits and a seed to a module. Name and
            settings may be one text, here and wherever there is such a pair:
            ``"resnet18:stem=imagenet:width=0.5"``.
        method: Name with its kind, ``"prune:magnitude"`` or ``"linearize:snl"``, ``(name,
            settings)``, or a function from a module and ``level=``, ``data=`` and ``seed=`` to a
            compressed copy, whose level 0 is the control. A list of methods is a pipeline,
            ``["prune:magnitude", "quantize:weights"]``: one compresses after the other, then the
            network is finetuned once. What comes first is ``"distil"``, then ``"factorize"``, then
            ``"prune"`` and ``"linearize"``, and last ``"quantize"``.
        levels: Levels of compression: sparsities in [0, 1) for :func:`fairlib.prune`, budgets in
            [0, 1] for :func:`fairlib.linearize`, bits of :func:`fairlib.quantize`, the share
            ``kept`` of :func:`fairlib.factorize` and the width of the student of
            :func:`fairlib.distil`. Sparsity 0, budget 1, 32 bits, share 1 and width 1 are the
            control. Of a pipeline tuples, one entry for each method: ``(0.9, 4)``.
        arms: Several ways through the study, by name. An argument that an :class:`Arm` leaves out
            is the study's.
        compress: ``"trained"`` if the dense model is compressed and finetuned; ``"initial"`` if the
            network at its initial weights is compressed, trained like the dense one and finetuned.
        mitigation: Name of a mitigation (``fairlib.mitigation.MITIGATIONS``) or ``(name,
            settings)``. The reference of ``"accuracy-gap"`` is the dense model's accuracies in the
            finetuning; in the dense training it has none.
        when: Times of mitigation, any of ``"never"``, ``"before"`` (in the dense training, and in
            the trainings of a pruning method other than ``"bip"`` and ``"bifp"``), ``"after"`` (in
            the finetuning) and ``"both"``.
        seeds: Seeds of the runs: of initial weights, batch order and, unless ``data_seed`` fixes
            them, the data.
        train: Arguments of :func:`fairlib.fit` for the dense training, and for the trainings of a
            pruning method that trains unless its settings have a ``train`` of their own.
        finetune: Arguments of :func:`fairlib.fit` for the finetuning; ``{"epochs": 0}`` switches it
            off. By default 5 epochs at a tenth of the learning rate of ``train``, whose other
            arguments but ``keep`` apply too. After linearization, and for its control, the dense
            model is the teacher of a distillation, whose settings are the method's setting
            ``distillation``.
        data_seed: Seed of the data of all runs; None loads and splits them anew with each run's
            seed.
        held_out: Data for what a method chooses on held-out data (``"prune:bip"``,
            ``"prune:bifp"``, ``"linearize:deepreduce"``, or a function with an argument ``val``):
            ``"val"`` for the validation part of the data, which neither the method nor the dense
            model has been trained on; ``"train"`` for a share of the training part that the method
            splits off itself, as in edition 0.1: the dense model knows it; ``"val-only"`` for a
            share of the validation part, which then is all that compression and finetuning see, the
            control's too, as in Section 5 of Dai et al. (2023). The dense network, and one that is
            compressed at its initial weights, are trained on the training part; a method that
            rewinds to them trains its own start on the validation part alone.
        diagnostics: Names of ``fairlib.diagnostics.DIAGNOSTICS``, or pairs ``(name, settings)``
            such as ``("curvature", {"least": 8})``, to add as columns, NaN with a warning where
            they cannot be computed. ``"distance"`` is the distance of the weights from those of the
            dense model, :math:`\|\tilde\theta - \theta\|_2`, NaN if the two do not have the same
            parameters; ``"gradients"`` is the number of per-sample gradients that went into the
            model, dense training included (:func:`fairlib.gradient_evaluations`).
        measure: Function of a :class:`fairlib.studies.Run`. Scalars by name become columns of all
            rows of the run. A table with the columns ``split`` and ``group`` adds its other columns
            to the rows of that split and group, and new rows if there are none; other tables add
            rows only. It must give the same rows for every seed.
        clock: Whether to add ``seconds``, the duration of the finetuning (CPU: process time; CUDA:
            wall clock), and ``dual_seconds``, the part that a constraint spent between epochs. The
            finetuning is then never read from the cache.
        divergence: ``"raise"``, or ``"skip"`` to leave out a run that diverges and list it in
            ``table.attrs["diverged"]`` with arm, seed, stage, level, time of mitigation and reason.
        device: ``"auto"`` (CUDA if available) or a torch device.
        cache: Folder of trained models (:mod:`fairlib.training.cache`); ``"auto"`` is the user's
            cache folder, None switches the cache off.
        workers: Number of processes; by default one for each core if that saves more time than
            starting them takes. On the CPU every run uses one thread, so that results do not depend
            on it.
        at_once: Whether the trainings of ten seeds are computed together
            (:func:`fairlib.fit_many`), those that can be; ``"auto"`` where it pays, for small
            networks on images of under 16 pixels a side on a CPU, unless the environment has
            ``FAIRLIB_AUTO=0``. Each seed has its place by its last digit, and a stack is filled up,
            so that its rows do not depend on which others are asked for, nor on ``workers``. Sums
            are rounded in another order than one seed after the other: single rows differ, their
            distribution does not. A stack is one process, and fewer than five seeds take longer
            than one after the other. ``table.attrs["trainings"]`` and the provenance of a run count
            the dense trainings, controls and finetunings of both kinds; what a method trains by
            itself, and what is clocked, is trained alone.
        progress: Whether to show a progress bar.

    Returns: One row per run, split and group: ``data model method level kept mitigation when seed
        stage split group size accuracy loss``, with arms ``arm``, then the diagnostics and what
        ``measure`` added. ``stage`` is ``dense``, ``control`` or ``compressed``; ``split`` is
        ``train`` or ``test``; ``kept`` is the share of prunable weights, of ReLUs or, for the other
        kinds and for pipelines, of bytes (:func:`fairlib.cost`) kept, 1 for dense and control.
        ``level`` is a number; where an arm is a pipeline it is text, ``"0.9 + 4"``. The rows of an
        arm are the same as in a study with that arm alone.

    Raises: ValueError: If a name is unknown, a level is out of range, there is a duplicate seed or
        arm, an arm has no
            method or needs a dense network of its own, ``when`` needs a mitigation and there is
            none, or a measure gives other rows for another seed; if a method has a share
            ``held_out`` and the study leaves the training part whole; or if a dense model that is
            to teach performs at chance (names the seed).
        TypeError: If a setting is unknown, or an argument is of another type.
        DivergenceError: If a training diverges; the message names the seed.

    Warns:
        UserWarning: Once for each diagnostic that cannot be computed, with the reason.

    Example: Two seeds, a dense network each, its control, and two sparsities; every run is measured
        on train and test by group.

        >>> import fairlib
        >>> table = fairlib.study(
        ...     data="digits", model="mlp", method="prune:magnitude", levels=[0.5, 0.9], seeds=range(2),
        ...     train={"epochs": 1}, finetune={"epochs": 1}, cache=None, workers=1,
        ... )
        >>> runs = table.drop_duplicates(["seed", "stage", "level"])
        >>> runs.groupby("stage").size().to_dict()
        {'compressed': 4, 'control': 2, 'dense': 2}
        >>> len(table) == len(runs) * 2 * 10  # Two parts of the data, ten digits.
        True
        >>> runs.groupby("level")["kept"].mean().round(3).to_dict()
        {0.0: 1.0, 0.5: 0.5, 0.9: 0.1}
    """
    when = when if isinstance(when, str) else check_many("when", when)
    shared = Arm(method, mitigation, when, finetune, None, compress, check_many("levels", levels))
    if isinstance(model, nn.Module):
        raise TypeError(
            "model must be a name, or a function from splits and a seed to a module: each seed has its own"
        )
    for kind, choice in (("data", data), ("model", model)):
        if not (callable(choice) or isinstance(choice, Splits)):
            name_and_settings(kind, choice)
    check_training("train=", train or {}, given=OWN)
    check_arguments({"device": device})
    check_type("cache", cache, (str, Path, NoneType), "a folder or None")
    wanted = dict(
        name_and_settings("diagnostic", diagnostic)
        for diagnostic in check_many("diagnostics", diagnostics)
    )
    for name, settings in wanted.items():
        lookup("diagnostic", name, dict.fromkeys(MEASURED))
        function = DIAGNOSTICS[name].function if name in DIAGNOSTICS else parameter_distance
        check_settings(f"diagnostic {name!r}", function, settings)
    lookup("source of held_out data", held_out, dict.fromkeys(HELD_OUT))
    lookup("answer to divergence", divergence, dict.fromkeys(("raise", "skip")))
    check_automatic("at_once", at_once)
    check_workers(workers)
    if at_once == "auto" and not environment.automatic():
        at_once = False
    every = plans(arms, shared, train or {})
    for step in [step for arm in every for step in arm.steps] if held_out == "val" else ():
        if "held_out" in step.settings:
            why = "a share of the training part, and the study's held_out='val' leaves that whole: give held_out='train'"
            raise ValueError(
                f"held_out={step.settings['held_out']!r} of {step.full_name!r} is {why}"
            )
    plan = Study(
        data=data,
        model=model,
        arms=every,
        train=dict(train or {}),
        data_seed=data_seed,
        held_out=held_out,
        diagnostics=wanted,
        measure=measure,
        clock=clock,
        divergence=divergence,
        device=device,
        cache=default_folder() if cache == "auto" else None if cache is None else Path(cache),
        at_once=at_once,
    )
    seeds = check_seeds(seeds)
    together = at_once is True or (at_once == "auto" and gains(plan, seeds[0]))
    stacks = _stacks(seeds) if together else [[seed] for seed in seeds]
    parts = in_processes(
        partial(tables, plan), stacks, device=device, workers=workers, progress=progress
    )
    by_number = dict(zip(chain(*stacks), chain(*parts), strict=True))
    found = [by_number[seed] for seed in seeds]
    frames = [frame for frame, *_ in found]
    if measure and (measured := [frame for frame in frames if len(frame)]):
        _refuse_other_rows(measured)
    for reason in dict.fromkeys(reason for _, reasons, *_ in found for reason in reasons):
        warnings.warn(reason, stacklevel=2)
    table = pd.concat(frames, ignore_index=True)
    table.attrs["trainings"] = {way: sum(ways[way] for *_, ways in found) for way in found[0][-1]}
    environment.tally(table.attrs["trainings"])
    if divergence == "skip":
        table.attrs["diverged"] = [run for _, _, diverged, _ in found for run in diverged]
    return table


def _stacks(seeds: Iterable[int]) -> list[list[int]]:
    """Seeds in stacks, in which no two have the same place."""
    stacks: list[list[int]] = []
    for seed in seeds:
        free = (stack for stack in stacks if all((seed - other) % AT_ONCE for other in stack))
        stack = next(free, None)
        if stack is None:
            stacks.append(stack := [])
        stack.append(seed)
    return stacks


def _refuse_other_rows(tables: list[pd.DataFrame]) -> None:
    """Refuse a measure whose rows or columns for a run of a later seed differ from those of the
    first seed."""
    run = [name for name in ("arm", "stage", "level", "when") if name in tables[0]]
    shapes = [
        table.fillna({"split": "", "group": ""}).groupby([*run, "split", "group"]).size()
        for table in tables
    ]
    for table, shape in zip(tables[1:], shapes[1:], strict=True):
        seed = table["seed"].iloc[0]
        if odd := sorted(set(table) ^ set(tables[0])):
            raise ValueError(f"measure gives other columns for seed {seed}: {', '.join(odd)}")
        one, other = (
            each.groupby(run).agg(lambda part: part.droplevel(run).to_dict())
            for each in (shapes[0], shape)
        )
        both = one.index.intersection(other.index)
        if different := [label for label in both if one[label] != other[label]]:
            raise ValueError(
                f"measure gives other rows for seed {seed} than for the first, at {run} = {different[0]}"
            )
