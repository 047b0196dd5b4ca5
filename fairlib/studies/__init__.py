"""Studies: every combination of seed, arm, level and time of mitigation, run and gathered into one
tidy table."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain

import pandas as pd
from torch import nn

from fairlib import environment
from fairlib._validation import check_many, check_settings, check_type, lookup, name_and_settings
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
    complete_arms,
)
from fairlib.studies.parallel import by_seed, check_seeds, in_processes
from fairlib.studies.plan import Measure, RunSettings, StudyPlan
from fairlib.studies.rows import MEASURED, Run, parameter_distance, traced
from fairlib.studies.stages import Outcome, run_group, seed_groups
from fairlib.training.compressors import Settings
from fairlib.training.loop import check_arguments, check_training

__all__ = ["COMPRESSORS", "WHEN", "Arm", "Run", "RunSettings", "by_seed", "parameter_distance"]
__all__ += ["study", "traced"]


def study(
    data: Named | Splits | Callable[[int], Splits],
    model: Named | Function,
    method: Methods | None = None,
    levels: Iterable[Level] = (),
    *,
    arms: Mapping[str, Arm] | Iterable[tuple[str, Arm]] | None = None,
    mitigation: Named | None = None,
    when: str | Iterable[str] = "never",
    seeds: Iterable[int] = range(5),
    train: Settings | None = None,
    finetune: Settings | None = None,
    held_out: str = "val",
    diagnostics: Iterable[Named] = (),
    measure: Measure | None = None,
    device: str = "auto",
    progress: bool = False,
    run: RunSettings | None = None,
) -> pd.DataFrame:
    r"""Train, compress and finetune, for every seed, arm, level and time of mitigation, and measure
    every group.

    For each seed a dense model is built and trained; each arm compresses it to each of its levels
    and finetunes it. Finetuning alone changes some groups more than others, so each arm has a
    *control* unless it declines it: the dense model, finetuned in the same way without being
    compressed. Arms share data, dense networks, controls and compressed networks wherever these are
    the same.

    Args:
        data: Name of a data set (``fairlib.data.DATASETS``), ``(name, settings)`` for
            :func:`fairlib.load` (a ``seed`` among the settings fixes the data), ready splits, or a
            function from a seed to splits.
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
        mitigation: Name of a mitigation (``fairlib.mitigation.MITIGATIONS``) or ``(name,
            settings)``. The reference of ``"accuracy-gap"`` is the dense model's accuracies in the
            finetuning; in the dense training it has none.
        when: Times of mitigation, any of ``"never"``, ``"before"`` (in the dense training, and in
            the trainings of a pruning method other than ``"bip"`` and ``"bifp"``), ``"after"`` (in
            the finetuning) and ``"both"``.
        seeds: Seeds of the runs: of initial weights, batch order and, unless
            ``run.data_seed`` fixes them, the data.
        train: Arguments of :func:`fairlib.fit` for the dense training, and for the trainings of a
            pruning method that trains unless its settings have a ``train`` of their own.
        finetune: Arguments of :func:`fairlib.fit` for the finetuning; ``{"epochs": 0}`` switches it
            off. By default 5 epochs at a tenth of the learning rate of ``train``, whose other
            arguments but ``keep`` apply too. After linearization, and for its control, the dense
            model is the teacher of a distillation, whose settings are the method's setting
            ``distillation``.
        held_out: Data for what a method chooses on held-out data (``"prune:bip"``,
            ``"prune:bifp"``, ``"linearize:deepreduce"``, or a function with an argument ``val``):
            ``"val"`` for the validation part of the data, which neither the method nor the dense
            model has been trained on; ``"train"`` for a share of the training part that the method
            splits off itself: the dense model knows it; ``"val-only"`` for a
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
        device: ``"auto"`` (CUDA if available) or a torch device.
        progress: Show a progress bar.
        run: How the runs are carried out: their cache, processes, clock, stacks and answer to
            divergence, and the seed of the data if it is fixed.

    Returns:
        One row per run, split and group: ``data model method level kept mitigation when seed stage
        split group size accuracy loss``, with arms ``arm``, then the diagnostics and the columns
        that ``measure`` added. ``stage`` is ``dense``, ``control`` or ``compressed``; ``split`` is
        ``train`` or ``test``; ``kept`` is the share of prunable weights, of ReLUs or, for the other
        kinds and for pipelines, of bytes (:func:`fairlib.cost`) kept, 1 for dense and control.
        ``level`` is a number; where an arm is a pipeline it is text, ``"0.9 + 4"``. The rows of an
        arm are the same as in a study with that arm alone.

    Raises:
        ValueError: If a name is unknown, a level is out of range, there is a duplicate seed or arm,
            an arm has no method or needs a dense network that the others do not share, ``when``
            needs a mitigation and there is none, or a measure has other rows for another seed; if
            a method has a share ``held_out`` and the study leaves the training part whole; or if a
            dense model that is to teach performs at chance (names the seed).
        TypeError: If a setting is unknown, or an argument is of another type.
        DivergenceError: If a training diverges; the message names the seed.

    Warns:
        UserWarning: Once for each diagnostic that cannot be computed, with the reason.

    Example:
        Two seeds, a dense network each, its control, and two sparsities; every run is measured on
        train and test by group.

        >>> import fairlib
        >>> from fairlib.studies import RunSettings
        >>> table = fairlib.study(
        ...     data="digits", model="mlp", method="prune:magnitude", levels=[0.5, 0.9],
        ...     seeds=range(2), train={"epochs": 1}, finetune={"epochs": 1},
        ...     run=RunSettings(cache=None, workers=1),
        ... )
        >>> runs = table.drop_duplicates(["seed", "stage", "level"])
        >>> runs.groupby("stage").size().to_dict()
        {'compressed': 4, 'control': 2, 'dense': 2}
        >>> len(table) == len(runs) * 2 * 10  # Two parts of the data, ten digits.
        True
        >>> runs.groupby("level")["kept"].mean().round(3).to_dict()
        {0.0: 1.0, 0.5: 0.5, 0.9: 0.1}
    """
    # Both may be iterators, which the first arm would use up.
    when = when if isinstance(when, str) else check_many("when", when)
    shared = Arm(method, mitigation, when, finetune, levels=check_many("levels", levels))
    _check(data, model, train or {}, held_out, device)
    train, run = dict(train or {}), run or RunSettings()
    plan = StudyPlan(
        data=data,
        model=model,
        arms=complete_arms(arms, shared, train),
        train=train,
        held_out=held_out,
        diagnostics=_checked_diagnostics(diagnostics),
        measure=measure,
        device=device,
        run=check_type("run", run, RunSettings, "a RunSettings"),
    )
    _refuse_held_out_shares(plan)
    seeds = check_seeds(seeds)
    groups = seed_groups(plan, seeds)
    results = in_processes(
        partial(run_group, plan), groups, device=device, workers=run.workers, progress=progress
    )
    outcomes: dict[int, Outcome] = {}
    trainings = {"at once": 0, "alone": 0}
    for of_group, counts in results:
        outcomes |= of_group
        trainings = {way: trainings[way] + counts[way] for way in trainings}
    frames, reasons, diverged = zip(*(outcomes[seed] for seed in seeds), strict=True)
    if measure:
        _refuse_other_rows([frame for frame in frames if len(frame)])
    # Every network of every seed has the same reason: say it once.
    for reason in dict.fromkeys(chain(*reasons)):
        warnings.warn(reason, stacklevel=2)
    table = pd.concat(frames, ignore_index=True)
    table.attrs["trainings"] = trainings
    environment.tally(trainings)
    if run.divergence == "skip":
        table.attrs["diverged"] = list(chain(*diverged))
    return table


def _check(
    data: Named | Splits | Callable[[int], Splits],
    model: Named | Function,
    train: Settings,
    held_out: str,
    device: str,
) -> None:
    """Refuse arguments of a study that no arm changes."""
    if isinstance(model, nn.Module):
        raise TypeError(
            "model must be a name, or a function from splits and a seed to a module: each seed has "
            "its own"
        )
    for kind, choice in (("data", data), ("model", model)):
        if not (callable(choice) or isinstance(choice, Splits)):
            name_and_settings(kind, choice)
    check_training("train=", train, given=OWN)
    check_arguments({"device": device})
    lookup("source of held_out data", held_out, dict.fromkeys(HELD_OUT))


def _checked_diagnostics(diagnostics: Iterable[Named]) -> Mapping[str, Settings]:
    """Return the settings of diagnostics by name."""
    found = dict(
        name_and_settings("diagnostic", each) for each in check_many("diagnostics", diagnostics)
    )
    for name, settings in found.items():
        lookup("diagnostic", name, dict.fromkeys(MEASURED))
        function = DIAGNOSTICS[name].function if name in DIAGNOSTICS else parameter_distance
        check_settings(f"diagnostic {name!r}", function, settings)
    return found


def _refuse_held_out_shares(plan: StudyPlan) -> None:
    """Refuse a method's share of held-out data in a study that leaves the training part whole."""
    for step in (step for arm in plan.arms.values() for step in arm.steps):
        if plan.held_out == "val" and "held_out" in step.settings:
            raise ValueError(
                f"held_out={step.settings['held_out']!r} of {step.full_name!r} is a share of the "
                "training part, and the study's held_out='val' leaves that whole: give "
                "held_out='train'"
            )


def _refuse_other_rows(tables: list[pd.DataFrame]) -> None:
    """Refuse a measure whose rows or columns for a later seed differ from those for the first."""
    if not tables:
        return
    run = [name for name in ("arm", "stage", "level", "when") if name in tables[0]]
    by_run = []
    for table in tables:
        shape = table.fillna({"split": "", "group": ""}).groupby([*run, "split", "group"]).size()
        by_run.append(shape.groupby(run).agg(lambda part: part.droplevel(run).to_dict()))
        seed = table["seed"].iloc[0]
        if odd := sorted(set(table) ^ set(tables[0])):
            raise ValueError(f"measure gives other columns for seed {seed}: {', '.join(odd)}")
        # A run that diverged for one of the seeds has no rows to compare.
        for label in by_run[0].index.intersection(by_run[-1].index):
            if by_run[0][label] != by_run[-1][label]:
                raise ValueError(
                    f"measure gives other rows for seed {seed} than for the first, "
                    f"at {run} = {label}"
                )
