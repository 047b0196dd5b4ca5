"""Studies: data x model x arms x levels x seeds, run and gathered into one tidy table."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from fairlib._validation import check_settings, lookup
from fairlib.data import Splits
from fairlib.studies.arms import COMPRESSORS, OWN, WHEN, Arm, Function, Named, plans
from fairlib.studies.parallel import by_seed
from fairlib.studies.seed import MEASURED, Measure, Run, Seed, Study, parameter_distance, traced
from fairlib.training import DivergenceError, fit
from fairlib.training.cache import default_folder
from fairlib.training.compressors import Settings
from fairlib.training.distillation import UntrainedTeacherError

__all__ = ["COMPRESSORS", "WHEN", "Arm", "Run", "by_seed", "parameter_distance", "study", "traced"]

DIVERGENCE = ("raise", "skip")


def study(
    data: Named | Splits | Callable[[int], Splits],
    model: Named | Function,
    method: Named | Function | None = None,
    levels: Iterable[float] = (),
    *,
    arms: Mapping[str, Arm] | Iterable[tuple[str, Arm]] | None = None,
    compress: str = "trained",
    mitigation: Named | None = None,
    when: str | Iterable[str] = "never",
    seeds: Iterable[int] = range(5),
    train: Settings | None = None,
    finetune: Settings | None = None,
    data_seed: int | None = None,
    diagnostics: Iterable[str] = (),
    measure: Measure | None = None,
    clock: bool = False,
    divergence: str = "raise",
    device: str = "auto",
    cache: str | Path | None = "auto",
    workers: int | None = None,
    progress: bool = False,
) -> pd.DataFrame:
    r"""Train, compress and finetune, for every seed, arm, level and time of mitigation, and measure every group.

    For each seed a dense model is built and trained; each arm compresses it to each of its levels and finetunes it. The
    *control* is there unless an arm declines it: the dense model finetuned in the same way without being compressed,
    since finetuning alone changes groups differently. Arms share what they have in common: the data, the dense
    networks, the control, and the compressed networks of those that compress alike and differ after it.

    Args:
        data: A name of ``fairlib.data.DATASETS``, ``(name, settings)`` for :func:`fairlib.load` (a ``seed`` there
            fixes the data), ready splits, or a function from a seed to splits.
        model: A name of ``fairlib.models.MODELS``, ``(name, settings)`` for :func:`fairlib.build`, or a function from
            splits and a seed to a module.
        method: With its kind, ``"prune:magnitude"`` or ``"linearize:snl"``, or ``(name, settings)``; or a function from
            a module and ``level=``, ``data=`` and ``seed=`` to a compressed copy, whose level 0 is the control.
        levels: What that kind's function takes: sparsities in [0, 1) of :func:`fairlib.prune`, budgets in [0, 1] of
            :func:`fairlib.linearize`. Sparsity 0 and budget 1 are the control.
        arms: Several ways through the study, by name; what an :class:`Arm` leaves out is as in the other arguments.
        compress: ``"trained"``: the dense model is compressed, then finetuned. ``"initial"``: the network at its
            initial weights is compressed, trained like the dense one and finetuned.
        mitigation: A name of ``fairlib.mitigation.MITIGATIONS`` or ``(name, settings)``. ``"accuracy-gap"`` has the
            accuracies of the dense model for its reference in the finetuning, and none before.
        when: Any of ``"never"``, ``"before"`` (in the dense training, and in those of a pruning method that trains, but
            for ``"bip"`` and ``"bifp"``), ``"after"`` (in the finetuning), ``"both"``.
        seeds: One run each: initial weights, order of batches and, by default, the data.
        train: Arguments of :func:`fairlib.fit` for the dense training, and for the trainings of a pruning method that
            trains unless its settings have a ``train`` of their own.
        finetune: Arguments of :func:`fairlib.fit` for the finetuning; ``{"epochs": 0}`` switches it off. What is not
            given is as in ``train`` (but for ``keep``), with 5 epochs at a tenth of its learning rate by default. After
            linearization, and for its control, the dense model is the teacher, as the method's setting
            ``distillation`` says.
        data_seed: None draws and splits the data anew with each seed; a number fixes them for all.
        diagnostics: Names of ``fairlib.diagnostics.DIAGNOSTICS`` to add as columns; NaN, with a warning, where not
            computable. Also ``"distance"``: how far the weights have moved from those of the dense model,
            :math:`\|\tilde\theta - \theta\|_2`, NaN where they are not the same weights; and ``"gradients"``, the
            gradients of samples that went into the model (:func:`fairlib.gradient_evaluations`), the dense training
            included.
        measure: A function of a :class:`fairlib.studies.Run`. Scalars by name become columns of all its rows. A table
            with the columns ``split`` and ``group`` adds its other columns to the rows of these, and rows for those
            that are new; other tables add rows only. It must give the same rows for every seed.
        clock: Add ``seconds``, what the finetuning took (CPU: process time; CUDA: wall clock), and ``dual_seconds``,
            the part of it that a constraint spent between the epochs. The finetuning then never comes from the cache.
        divergence: ``"raise"``, or ``"skip"``: a run that diverges leaves no rows, and ``table.attrs["diverged"]``
            lists it with arm, seed, level, time of mitigation and the reason.
        device: As in :func:`fairlib.fit`.
        cache: Folder of trained models (:mod:`fairlib.training.cache`); ``"auto"`` is the user's, None switches it off.
        workers: Number of processes; by default as many as there are cores, as soon as that saves more time than it
            costs. On the CPU every run uses one thread, so that results do not depend on it.
        progress: Show a bar.

    Returns:
        One row per run, split and group: ``data model method level kept mitigation when seed stage split group size
        accuracy loss``, with arms ``arm``, then the diagnostics and what ``measure`` added. ``stage`` is ``dense``,
        ``control`` or ``compressed``; ``split`` is ``train`` or ``test``; ``kept`` is the share of prunable weights or
        of ReLUs kept, 1 for dense and control. The rows of an arm are those of a study with that arm alone.

    Raises:
        ValueError: If a name is unknown, a level is out of range, a seed or an arm is named twice, an arm has no method
            or needs a dense network of its own, mitigation and ``when`` do not fit, or a measure gives other rows for
            another seed; or if a dense model that is to teach performs at chance, where the message names the seed.
        TypeError: If a setting is unknown.
        DivergenceError: If a training diverges; the message names the seed.

    Warns:
        UserWarning: Once for each diagnostic that cannot be computed, with the reason.
    """
    shared = Arm(method, mitigation, when, finetune, None, compress, levels)
    check_settings("train=", fit, train or {}, given=OWN)
    lookup("answer to divergence", divergence, dict.fromkeys(DIVERGENCE))
    plan = Study(
        data=data,
        model=model,
        arms=plans(arms, shared, train or {}),
        train=dict(train or {}),
        data_seed=data_seed,
        diagnostics=tuple(name for name in diagnostics if lookup("diagnostic", name, dict.fromkeys(MEASURED, True))),
        measure=measure,
        clock=clock,
        divergence=divergence,
        device=device,
        cache=default_folder() if cache == "auto" else None if cache is None else Path(cache),
    )
    found = by_seed(partial(_run, plan), seeds, device=device, workers=workers, progress=progress)
    tables = [table for table, _, _ in found]
    if measure:
        _refuse_other_rows(tables)
    for reason in dict.fromkeys(reason for _, reasons, _ in found for reason in reasons):
        warnings.warn(reason, stacklevel=2)
    table = pd.concat(tables, ignore_index=True)
    if divergence == "skip":
        table.attrs["diverged"] = [run for _, _, diverged in found for run in diverged]
    return table


def _run(plan: Study, number: int) -> tuple[pd.DataFrame, list[str], list[dict[str, Any]]]:
    """Everything of one seed: its rows, why diagnostics are missing, and which runs diverged."""
    try:
        seed = Seed(plan, number)
        return seed.table(), seed.reasons, seed.diverged
    except (DivergenceError, UntrainedTeacherError) as error:  # What the other seeds have trained is in the cache.
        raise type(error)(f"seed {number}: {error}") from error


def _refuse_other_rows(tables: list[pd.DataFrame]) -> None:
    """Refuse a measure that gives other rows or columns for one seed than for the first, for the runs they share."""
    run = [name for name in ("arm", "stage", "level", "when") if name in tables[0]]
    shapes = [table.fillna({"split": "", "group": ""}).groupby([*run, "split", "group"]).size() for table in tables]
    for table, shape in zip(tables[1:], shapes[1:], strict=True):
        seed = table["seed"].iloc[0]
        if set(table) != set(tables[0]):
            odd = sorted(set(table) ^ set(tables[0]))
            raise ValueError(f"measure gives other columns for seed {seed}: {', '.join(odd)}")
        one, other = (each.groupby(run).agg(lambda part: part.droplevel(run).to_dict()) for each in (shapes[0], shape))
        both = one.index.intersection(other.index)
        if different := [label for label in both if one[label] != other[label]]:
            raise ValueError(f"measure gives other rows for seed {seed} than for the first, at {run} = {different[0]}")
