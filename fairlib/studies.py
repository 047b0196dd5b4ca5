"""Studies: data x model x compression x mitigation x level x seed, run and gathered into one tidy table."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
from torch import nn
from tqdm import tqdm

from fairlib import environment, linearization, pruning
from fairlib._validation import check_number, check_settings, lookup
from fairlib.data import GroupedDataset, Splits, load
from fairlib.diagnostics import DIAGNOSTICS, diagnose, group_performance
from fairlib.mitigation import MITIGATIONS, AccuracyGap
from fairlib.models import build
from fairlib.network import gates, masks
from fairlib.network.memory import gradient_evaluations
from fairlib.training import Constraint, DivergenceError, Objective, fit
from fairlib.training.cache import cached_fit, default_folder
from fairlib.training.distillation import Distillation, UntrainedTeacherError

Named = str | tuple[str, Mapping[str, object]]
Data = Named | Splits | Callable[[int], Splits]

# In which of its two trainings a run is mitigated: (dense, finetuning).
WHEN: dict[str, tuple[bool, bool]] = {
    "never": (False, False),
    "before": (True, False),
    "after": (False, True),
    "both": (True, True),
}

# Which network is compressed.
COMPRESS = ("trained", "initial")

# Arguments of fit that a study fills in itself.
_OWN = ("val", "objective", "constraint", "sparsify", "stop", "start", "seed", "device", "progress")

# What only a study knows of a model: how far it is from the dense one, and what it took to train.
_DISTANCE, _GRADIENTS = "distance", "gradients"
_MEASURED = dict.fromkeys([*DIAGNOSTICS, _DISTANCE, _GRADIENTS], True)

_STARTUP = 8.0  # Seconds until a worker process has imported torch on two cores.


class Kind(NamedTuple):
    """A kind of compression.

    Attributes:
        run: From a model, a method's name and its settings to the compressed model, not finetuned.
        check: Refuses a method's name or settings.
        trains: Whether a method with settings trains.
        level: The argument that the level goes to.
        control: The level at which nothing is compressed.
        kept: The share that a compressed model keeps of the dense one.
        objective: Of the finetuning: from the dense model, the training set and a method's settings.
        inherits: Whether a method's trainings are by default like the dense one.
    """

    run: Callable[..., nn.Module]
    check: Callable[..., None]
    trains: Callable[[str, Mapping[str, object]], bool]
    level: str
    control: float
    kept: Callable[[nn.Module, nn.Module], float]
    objective: Callable[[nn.Module, GroupedDataset, Mapping[str, object]], Objective | None]
    inherits: bool


def _distillation(dense: nn.Module, data: GroupedDataset, settings: Mapping[str, object]) -> Distillation:
    return Distillation(dense, data, **settings.get("distillation", {}))


def _share_of_relus(model: nn.Module, dense: nn.Module) -> float:
    return gates.count(model).attrs["total"] / int(gates.count(dense)["units"].sum())


KINDS: dict[str, Kind] = {
    "prune": Kind(
        run=pruning.prune,
        check=pruning.check,
        trains=pruning.trains,
        level="sparsity",
        control=0.0,
        kept=lambda model, dense: 1 - masks.sparsity(model),
        objective=lambda dense, data, settings: None,
        inherits=True,
    ),
    "linearize": Kind(
        run=partial(linearization.linearize, finetune=0),
        check=partial(linearization.check, finetune=0),
        trains=linearization.trains,
        level="budget",
        control=1.0,
        kept=_share_of_relus,
        objective=_distillation,
        inherits=False,
    ),
}


@dataclass(frozen=True)
class _Plan:
    """One study, ready to be run seed by seed in any process."""

    data: Data
    model: Named
    method: Named
    levels: tuple[float, ...]
    compress: str
    constraint: Constraint | None
    mitigation: str
    when: tuple[str, ...]
    train: Mapping[str, object]
    finetune: Mapping[str, object]
    data_seed: int | None
    diagnostics: tuple[str, ...]
    device: str
    cache: Path | None


def study(
    data: Data,
    model: Named,
    method: Named,
    levels: Iterable[float],
    *,
    compress: str = "trained",
    mitigation: Named | None = None,
    when: str | Iterable[str] = ("never",),
    seeds: Iterable[int] = range(5),
    train: Mapping[str, object] | None = None,
    finetune: Mapping[str, object] | None = None,
    data_seed: int | None = None,
    diagnostics: Iterable[str] = (),
    device: str = "auto",
    cache: str | Path | None = "auto",
    workers: int | None = None,
    progress: bool = False,
) -> pd.DataFrame:
    r"""Train, compress and finetune, for every seed, level and time of mitigation, and measure every group.

    A run of one seed: a dense model is built and trained; for each level it is compressed and finetuned. The
    *control* is always there: the dense model finetuned in the same way without being compressed, since finetuning
    alone changes groups differently.

    Args:
        data: A name of ``fairlib.data.DATASETS``, ``(name, settings)`` for :func:`fairlib.load` (a ``seed`` there
            fixes the data), ready splits, or a function from a seed to splits.
        model: A name of ``fairlib.models.MODELS`` or ``(name, settings)`` for :func:`fairlib.build`.
        method: With its kind, ``"prune:magnitude"`` or ``"linearize:snl"``, or ``(name, settings)``.
        levels: What that kind's function takes: sparsities in [0, 1) of :func:`fairlib.prune`, budgets in [0, 1] of
            :func:`fairlib.linearize`. Sparsity 0 and budget 1 are the control.
        compress: ``"trained"``: the dense model is compressed, then finetuned. ``"initial"``: the network at its
            initial weights is compressed, trained like the dense one and finetuned.
        mitigation: A name of ``fairlib.mitigation.MITIGATIONS`` or ``(name, settings)``. ``"accuracy-gap"`` has the
            accuracies of the dense model for its reference in the finetuning, and none before.
        when: Of ``"never"``, ``"before"`` (in the dense training, and in those of a pruning method that trains, but for
            ``"bip"`` and ``"bifp"``), ``"after"`` (in the finetuning), ``"both"``.
        seeds: One run each: initial weights, order of batches and, by default, the data.
        train: Arguments of :func:`fairlib.fit` for the dense training, and for the trainings of a pruning method that
            trains unless its settings have a ``train`` of their own.
        finetune: Arguments of :func:`fairlib.fit` for the finetuning; ``{"epochs": 0}`` switches it off. What is not
            given is as in ``train`` (but for ``keep``), with 5 epochs at a tenth of its learning rate by default. After
            linearization, and for its control, the dense model is the teacher, as the method's setting
            ``distillation`` says.
        data_seed: None draws and splits the data anew with each seed; a number fixes them for all.
        diagnostics: Names of ``fairlib.diagnostics.DIAGNOSTICS`` to add as columns; NaN where not computable. Also
            ``"distance"``: how far the weights have moved from those of the dense model,
            :math:`\|\tilde\theta - \theta\|_2`, NaN where they are not the same weights; and ``"gradients"``, the
            gradients of samples that went into the model (:func:`fairlib.gradient_evaluations`), the dense training
            included.
        device: As of :func:`fairlib.fit`.
        cache: Folder of trained models (:mod:`fairlib.training.cache`); ``"auto"`` is the user's, None switches it off.
        workers: Processes; by default as many as there are cores, as soon as that saves more time than it costs. On
            the CPU every run uses one thread, so that results do not depend on it.
        progress: Show a bar.

    Returns:
        One row per run, split and group: ``data model method level kept mitigation when seed stage split group size
        accuracy loss`` and the diagnostics. ``stage`` is ``dense``, ``control`` or ``compressed``; ``split`` is
        ``train`` or ``test``; ``kept`` is the share of prunable weights or of ReLUs kept, 1 for dense and control.

    Raises:
        ValueError: If a name is unknown, a level is out of range, a seed stands twice, or mitigation and ``when`` do
            not fit.
        TypeError: If a setting is unknown.
        DivergenceError: If a training diverges; the message names the seed.
        ValueError: If a dense model that is to teach performs at chance; the message names the seed.
    """
    plan = _plan(
        data, model, method, levels, compress, mitigation, when, train, finetune, data_seed, diagnostics, device, cache
    )
    seeds = list(seeds)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must name at least one seed, and each once; got {seeds}")
    runs = _in_order(plan, seeds, workers)
    frames = list(tqdm(runs, total=len(seeds), desc="seeds", leave=False) if progress else runs)
    return pd.concat(frames, ignore_index=True)


def _plan(
    data: Data,
    model: Named,
    method: Named,
    levels: Iterable[float],
    compress: str,
    mitigation: Named | None,
    when: str | Iterable[str],
    train: Mapping[str, object] | None,
    finetune: Mapping[str, object] | None,
    data_seed: int | None,
    diagnostics: Iterable[str],
    device: str,
    cache: str | Path | None,
) -> _Plan:
    """Check everything that can be checked before anything is trained."""
    full_name, method_settings = _named(method)
    kind, _, name = full_name.partition(":")
    if own := {"finetune", "constraint"} & set(method_settings):
        raise TypeError(f"{full_name!r} has no setting {min(own)!r} in a study, which has finetune= and mitigation=")
    lookup("kind of compression", kind, KINDS).check(name, **method_settings)
    lookup("network to compress", compress, dict.fromkeys(COMPRESS))
    if compress == "initial" and KINDS[kind].trains(name, method_settings):
        raise ValueError(f"compress='initial' needs a method that does not train, and {full_name!r} as set up does")
    times = (when,) if isinstance(when, str) else tuple(when)
    for time_ in times:
        lookup("time of mitigation", time_, WHEN)
    if mitigation is None and set(times) != {"never"}:
        raise ValueError(f"when={list(times)} needs a mitigation; known: {', '.join(MITIGATIONS)}")
    constraint = None
    if mitigation is not None:
        name, settings = _named(mitigation)
        constraint = lookup("mitigation", name, MITIGATIONS)(**settings)
    levels = [level for level in levels if level != KINDS[kind].control]
    for level in levels:
        check_number("levels", level, 0, 1)
    for role, settings in (("train", train), ("finetune", finetune)):
        check_settings(f"{role}=", fit, settings or {}, given=_OWN)
    train = dict(train or {})
    gentle = {"epochs": 5, "lr": float(train.get("lr", 0.05)) / 10}
    return _Plan(
        data=data,
        model=model,
        method=method,
        levels=tuple(sorted({float(level) for level in levels})),
        compress=compress,
        constraint=constraint,
        mitigation=_named(mitigation)[0] if mitigation else "none",
        when=times,
        train=train,
        finetune={key: value for key, value in train.items() if key != "keep"} | gentle | dict(finetune or {}),
        data_seed=data_seed,
        diagnostics=tuple(name for name in diagnostics if lookup("diagnostic", name, _MEASURED)),
        device=device,
        cache=default_folder() if cache == "auto" else None if cache is None else Path(cache),
    )


def _named(choice: Named) -> tuple[str, dict[str, object]]:
    return (choice, {}) if isinstance(choice, str) else (choice[0], dict(choice[1]))


def _in_order(plan: _Plan, seeds: Sequence[int], workers: int | None) -> Iterator[pd.DataFrame]:
    """The seeds' tables in the order of the seeds, computed here or in processes, whichever is faster.

    The first seed is computed here and timed.
    """
    from joblib import Parallel, delayed

    most = workers or environment.workers(plan.device)
    start = time.perf_counter()
    yield _run(plan, seeds[0])
    duration, rest = time.perf_counter() - start, seeds[1:]
    processes = min(most, len(rest))
    saving = duration * len(rest) * (1 - 1 / max(1, processes))
    if processes < 2 or (workers is None and saving < _STARTUP):
        yield from (_run(plan, seed) for seed in rest)
        return
    yield from Parallel(n_jobs=processes, return_as="generator")(delayed(_run)(plan, seed) for seed in rest)


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _run(plan: _Plan, seed: int) -> pd.DataFrame:
    """Everything of one seed."""
    try:
        return _run_seed(plan, seed)
    except (DivergenceError, UntrainedTeacherError) as error:  # What the other seeds have trained is in the cache.
        raise type(error)(f"seed {seed}: {error}") from error


def _run_seed(plan: _Plan, seed: int) -> pd.DataFrame:
    with _one_thread():
        splits = _splits(plan, seed)
        name, settings = _named(plan.model)
        _, channels, size, *_ = (*splits.train.inputs.shape, 1)  # Vectors are images of a single position.
        start = build(
            name,
            num_classes=splits.train.num_classes,
            in_channels=channels,
            image_size=size,
            seed=seed,
            **settings,
        )
        frames = []
        dense: dict[bool, nn.Module] = {}
        for when in plan.when:
            early, _ = WHEN[when]
            if early not in dense:
                dense[early] = _fit(plan, start, splits, plan.train, early, seed)
            for stage, level, model in _models(plan, start, dense[early], splits, when, seed):
                labels = {"level": level, "when": when, "seed": seed, "stage": stage}
                frames.append(_measure(plan, model, dense[early], splits, labels))
        return pd.concat(frames, ignore_index=True)


def _splits(plan: _Plan, seed: int) -> Splits:
    if isinstance(plan.data, Splits):
        return plan.data
    if plan.data_seed is not None:
        seed = plan.data_seed
    if callable(plan.data):
        return plan.data(seed)
    name, settings = _named(plan.data)
    return load(name, **({"seed": seed} | settings))


def _fit(
    plan: _Plan,
    model: nn.Module,
    splits: Splits,
    settings: Mapping[str, object],
    mitigated: bool,
    seed: int,
    dense: nn.Module | None = None,
    objective: Objective | None = None,
) -> nn.Module:
    """Train, under the constraint if ``mitigated``; one on drops counts them from ``dense`` where that is given."""
    arguments = {"seed": seed, "device": plan.device, "objective": objective, **settings}
    if mitigated:
        relative = dense is not None and isinstance(plan.constraint, AccuracyGap) and plan.constraint.reference is None
        arguments["constraint"] = plan.constraint.relative_to(dense, splits.train) if relative else plan.constraint
    return cached_fit(model, splits.train, folder=plan.cache, **arguments)


def _models(
    plan: _Plan, start: nn.Module, dense: nn.Module, splits: Splits, when: str, seed: int
) -> Iterator[tuple[str, float, nn.Module]]:
    """Stage, level and model: the dense one, the control, and one compressed to each level."""
    early, late = WHEN[when]
    full_name, settings = _named(plan.method)
    kind_name, _, name = full_name.partition(":")
    kind = KINDS[kind_name]
    objective = kind.objective(dense, splits.train, settings) if plan.finetune["epochs"] else None
    yield "dense", kind.control, dense
    yield "control", kind.control, _fit(plan, dense, splits, plan.finetune, late, seed, dense, objective)
    settings |= {"data": splits.train, "seed": seed}
    if kind.trains(name, settings):
        train = {key: value for key, value in plan.train.items() if key != "keep"} if kind.inherits else {}
        constrained = early and kind.inherits and name not in pruning.BILEVEL
        train |= {"device": plan.device} | ({"constraint": plan.constraint} if constrained else {})
        settings["train"] = train | settings.get("train", {})
    for level in plan.levels:
        original = start if plan.compress == "initial" else dense
        small = kind.run(original, name, **{kind.level: level}, **settings)
        if plan.compress == "initial":
            small = _fit(plan, small, splits, plan.train, early, seed)
        yield "compressed", level, _fit(plan, small, splits, plan.finetune, late, seed, dense, objective)


def parameter_distance(model: nn.Module, dense: nn.Module) -> float:
    """The Euclidean distance of two models' parameters; NaN if they do not have the same."""
    ours, theirs = ({name: p.detach() for name, p in each.named_parameters()} for each in (model, dense))
    if {name: p.shape for name, p in ours.items()} != {name: p.shape for name, p in theirs.items()}:
        return math.nan
    return math.sqrt(sum(float((ours[name] - theirs[name].to(ours[name])).double().square().sum()) for name in ours))


def _measure(
    plan: _Plan, model: nn.Module, dense: nn.Module, splits: Splits, labels: Mapping[str, object]
) -> pd.DataFrame:
    frames = []
    for split, data in (("train", splits.train), ("test", splits.test)):
        table = group_performance(model, data)
        for diagnostic in plan.diagnostics:
            if diagnostic == _DISTANCE:
                table = table.assign(distance=parameter_distance(model, dense))
            elif diagnostic == _GRADIENTS:
                table = table.assign(gradients=gradient_evaluations(model))
            else:
                table = table.join(diagnose(diagnostic, model, data)[0])
        frames.append(table.reset_index().assign(split=split))
    kind = _named(plan.method)[0].partition(":")[0]
    known = {
        "data": splits.name,
        "model": _named(plan.model)[0],
        "method": _named(plan.method)[0],
        "kept": 1.0 if labels["stage"] != "compressed" else KINDS[kind].kept(model, dense),
        "mitigation": "none" if labels["when"] == "never" else plan.mitigation,
        **labels,
    }
    order = [
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
    ]
    table = pd.concat(frames, ignore_index=True).assign(**known)
    return table[order + [name for name in table if name not in order]]
