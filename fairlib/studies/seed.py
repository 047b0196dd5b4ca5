"""One seed of a study: its networks, each trained once, and their rows of the table."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from torch import Tensor, nn

from fairlib import environment
from fairlib._validation import check_type, name_and_settings
from fairlib.data import GroupedDataset, Splits, load
from fairlib.diagnostics import DIAGNOSTICS, diagnose, group_performance
from fairlib.models import build
from fairlib.network.memory import gradient_evaluations, history
from fairlib.studies.arms import WHEN, Function, Level, Named, Plan, Step
from fairlib.training import Batch, Constraint, ConstraintRun, DivergenceError, Objective, fit
from fairlib.training.cache import cached_fits, plain
from fairlib.training.compressors import Settings
from fairlib.training.distillation import UntrainedTeacherError
from fairlib.training.together import AT_ONCE, Training, pays, why_not

T = TypeVar("T")

MEASURED = (*DIAGNOSTICS, "distance", "gradients")
"""Names of what can be asked for as ``diagnostics`` of a study."""

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


@dataclass(frozen=True, eq=False)
class Run:
    """One network of a study: what a ``measure`` gets.

    Attributes: model: The network, in eval mode. dense: Dense network that it was compressed or
        finetuned from. splits: Data of the seed. seed: Seed of the run. arm: Name of the arm; empty
        in a study without arms. stage: ``"dense"``, ``"control"`` or ``"compressed"``. level: Level
        of the compression; of a pipeline a tuple. when: Time of the mitigation. all: All runs of
        the seed, this one included, in the order of the table. timing: ``seconds`` and
        ``dual_seconds`` of the finetuning in a study with ``clock=True``; else empty.
    """

    model: nn.Module
    dense: nn.Module
    splits: Splits
    seed: int
    arm: str
    stage: str
    level: Level
    when: str
    all: list[Run]
    timing: Mapping[str, float]

    def other(self, arm: str) -> Run:
        """Return the run of another arm at the same stage and level.

        Raises:
            KeyError: If there is no such run, or several.
        """
        found = [
            run
            for run in self.all
            if (run.arm, run.stage, run.level) == (arm, self.stage, self.level)
        ]
        if len(found) != 1:
            raise KeyError(
                f"{len(found)} runs of arm {arm!r} at stage {self.stage!r} and level {self.level}"
            )
        return found[0]


Trainings = Generator[Training, nn.Module, T]
"""What asks for trainings one after the other, is given the trained networks, and returns a
result."""

Measure = Callable[[Run], pd.DataFrame | Mapping[str, Any]]


@dataclass(frozen=True)
class Study:
    """The checked arguments of a study, from which any process can run one of its seeds."""

    data: Named | Splits | Callable[[int], Splits]
    model: Named | Function
    arms: tuple[Plan, ...]
    train: Settings
    data_seed: int | None
    held_out: str
    diagnostics: Mapping[str, Settings]
    measure: Measure | None
    clock: bool
    divergence: str
    device: str
    cache: Path | None
    at_once: bool | str


class Seed:
    """The networks of one seed of a study, and their measurements.

    Attributes:
        reasons: Reasons why diagnostics could not be computed.
        diverged: Runs that diverged, if the study skips them.
        ways: Number of trainings ``"at once"`` with those of other seeds, and ``"alone"``.
    """

    def __init__(self, study: Study, seed: int) -> None:
        self.study, self.seed = study, seed
        self.splits = _splits(study, seed)
        self.tuning = self.splits.val if study.held_out == "val-only" else self.splits.train
        if not self.tuning:
            raise ValueError(
                "held_out='val-only' compresses on the validation part, which these data do not have"
            )
        self.start = _build(study.model, self.splits, seed)
        self.trained: dict[str, Any] = {}
        self.measured: dict[int, pd.DataFrame] = {}
        self.reasons: list[str] = []
        self.diverged: list[dict[str, Any]] = []
        self.ways = {"at once": 0, "alone": 0}

    def table(self) -> Trainings[pd.DataFrame]:
        """Ask for all trainings, one after the other, and return the rows of the seed."""
        frames: list[pd.DataFrame] = []
        runs: list[Run] = []

        def done(arm: Plan, run: Run) -> None:
            if self.study.measure is None:
                frames.append(self._rows(arm, run))
            else:  # Measured when all are there, since a measure may look at the others.
                runs.append(run)

        for arm in self.study.arms:
            yield from self._runs(arm, runs, partial(done, arm))
        arms = {arm.name: arm for arm in self.study.arms}
        frames += [self._rows(arms[run.arm], run) for run in runs]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    def _runs(self, arm: Plan, runs: list[Run], done: Callable[[Run], None]) -> Trainings[None]:
        """For each time of mitigation: the dense network, the control, and a compressed network for
        each level."""
        control = arm.control_level
        for when in arm.when:
            first, last = (arm.constraint if chosen else None for chosen in WHEN[when])
            dense = None
            with self._skipping(arm, "dense", control, when):
                alike = f"dense {first!r}"
                dense, _ = yield from self._once(
                    alike, partial(self._fit, self.start, self.study.train, first)
                )
            if dense is None:
                continue
            run = partial(
                Run,
                dense=dense,
                splits=self.splits,
                seed=self.seed,
                arm=arm.name,
                when=when,
                all=runs,
            )
            done(run(dense, stage="dense", level=_plain(control), timing={}))
            teacher = arm.objective(dense, self.tuning) if arm.finetune["epochs"] else None
            held = last.relative_to(dense, self.tuning) if last else None
            settings = {**arm.finetune, "objective": teacher}
            finetune = partial(
                self._fit,
                settings=settings,
                constraint=held,
                data=self.tuning,
                clock=self.study.clock,
            )
            stages = [("control", control)] * arm.control + [
                ("compressed", level) for level in arm.levels
            ]
            for stage, level in stages:
                with self._skipping(arm, stage, level, when):
                    if stage == "control":
                        alike = f"control {first!r} {held!r} {plain(arm.finetune)} {teacher!r}"
                        tuned = yield from self._once(alike, partial(finetune, dense))
                    else:
                        methods = [
                            (step.full_name, step.compressor, plain(step.settings))
                            for step in arm.steps
                        ]
                        how = f"{methods} {arm.compress} {level} {first!r} {plain(arm.train)}"
                        small = yield from self._once(
                            how, partial(self._compressed, arm, dense, level, first)
                        )
                        tuned = (yield from finetune(small)) if arm.finetunes else (small, {})
                    done(run(tuned[0], stage=stage, level=_plain(level), timing=tuned[1]))

    @contextmanager
    def _skipping(
        self, arm: Plan, stage: str, level: tuple[float, ...], when: str
    ) -> Iterator[None]:
        try:
            yield
        except DivergenceError as error:
            if self.study.divergence == "raise":
                raise
            where = {
                "arm": arm.name,
                "seed": self.seed,
                "stage": stage,
                "level": _plain(level),
                "when": when,
            }
            self.diverged.append(where | {"reason": str(error)})

    def _once(self, key: str, train: Callable[[], Trainings[Any]]) -> Trainings[Any]:
        """The result of ``train`` for a key; computed once and shared by arms."""
        if key not in self.trained:
            self.trained[key] = yield from train()
        return self.trained[key]

    def _compressed(
        self, arm: Plan, dense: nn.Module, level: tuple[float, ...], constraint: Constraint | None
    ) -> Trainings[nn.Module]:
        small = dense if arm.compress == "trained" else self.start
        for step, entry in zip(arm.steps, level, strict=True):
            if not step.is_control(entry):
                small = self._step(arm, step, small, entry, constraint)
        return (
            small
            if arm.compress == "trained"
            else (yield from self._fit(small, arm.train, constraint))[0]
        )

    def _step(
        self, arm: Plan, step: Step, model: nn.Module, level: float, constraint: Constraint | None
    ) -> nn.Module:
        compressor, settings = (
            step.compressor,
            {**step.settings, "data": self.tuning, "seed": self.seed},
        )
        if self.study.held_out == "val" and compressor.holds_out(step.method):
            settings.setdefault("val", self.splits.val)
        if step.trains:
            train = (
                {key: value for key, value in arm.train.items() if key != "keep"}
                if compressor.inherits
                else {}
            )
            train["device"] = self.study.device
            if constraint and compressor.inherits and compressor.constrained(step.method):
                train["constraint"] = constraint
            settings["train"] = train | dict(settings.get("train", {}))
        return compressor.compress(model, step.method, level, **settings)

    def _fit(
        self,
        model: nn.Module,
        settings: Settings,
        constraint: Constraint | None = None,
        data: GroupedDataset | None = None,
        clock: bool = False,
    ) -> Trainings[tuple[nn.Module, dict[str, float]]]:
        """The trained copy, and its ``seconds`` and ``dual_seconds`` with ``clock``."""
        arguments = {"seed": self.seed, "device": self.study.device, **settings}
        data = self.splits.train if data is None else data
        if not clock:
            arguments |= {"constraint": constraint} if constraint else {}
            return (yield Training(model, data, arguments)), {}
        clocked = _Clocked(constraint, self.study.device) if constraint else None
        before = environment.clock(self.study.device)
        trained = fit(model, data, constraint=clocked, **arguments)
        self.ways["alone"] += 1
        seconds = environment.clock(self.study.device) - before
        return trained, {"seconds": seconds, "dual_seconds": clocked.seconds if clocked else 0.0}

    def _rows(self, arm: Plan, run: Run) -> pd.DataFrame:
        """Rows of one network."""
        table = self.measured[id(run.model)] if id(run.model) in self.measured else self._look(run)
        if run.stage != "compressed":  # Shared by arms, and alive as long as this seed is.
            self.measured[id(run.model)] = table
        if self.study.clock:
            table = table.assign(**{"seconds": math.nan, "dual_seconds": math.nan, **run.timing})
        if self.study.measure:
            table = _added(table, self.study.measure(run))
        several = any(len(plan.steps) > 1 for plan in self.study.arms)
        known = {
            "data": self.splits.name,
            "model": _name(self.study.model),
            "method": arm.full_name,
            "level": " + ".join(f"{entry:g}" for entry in np.atleast_1d(run.level))
            if several
            else run.level,
            "kept": 1.0 if run.stage != "compressed" else arm.kept(run.model, run.dense),
            "mitigation": "none" if run.when == "never" else arm.mitigation,
            "when": run.when,
            "seed": self.seed,
            "stage": run.stage,
        } | ({"arm": arm.name} if arm.name else {})
        table = table.assign(**known)
        order = [*CONTRACT, "size", "accuracy", "loss", *(["arm"] if arm.name else [])]
        return table[order + [name for name in table if name not in order]]

    def _look(self, run: Run) -> pd.DataFrame:
        """Performance and diagnostics of every group on the training set and on the test set."""
        frames = []
        for split, data in (("train", self.splits.train), ("test", self.splits.test)):
            table = group_performance(run.model, data)
            for name in self.study.diagnostics:
                table = self._diagnosed(table, name, run, data)
            frames.append(table.reset_index().assign(split=split))
        return pd.concat(frames, ignore_index=True)

    def _diagnosed(
        self, table: pd.DataFrame, name: str, run: Run, data: GroupedDataset
    ) -> pd.DataFrame:
        if name == "distance":
            return table.assign(distance=parameter_distance(run.model, run.dense))
        if name == "gradients":
            return table.assign(gradients=gradient_evaluations(run.model))
        columns, reason = diagnose(name, run.model, data, **self.study.diagnostics[name])
        self.reasons += [reason] if reason else []
        return table.join(columns)


def gains(study: Study, number: int) -> bool:
    """Whether the dense training of a seed gains by those of other seeds beside it."""
    if not environment.resolve_device(study.device).startswith("cpu"):
        return False
    seed = Seed(study, number)
    return pays(Training(seed.start, seed.splits.train, {"device": study.device, **study.train}))


def tables(
    study: Study, numbers: Sequence[int]
) -> list[tuple[pd.DataFrame, list[str], list[dict[str, Any]], dict[str, int]]]:
    """Carry out seeds of a study side by side.

    Returns:
        For each its table, and ``reasons``, ``diverged`` and ``ways`` as of :class:`Seed`.
    """
    seeds = {number: Seed(study, number) for number in numbers}
    running = {number: seed.table() for number, seed in seeds.items()}
    rows: dict[int, pd.DataFrame] = {}
    answers: dict[int, Any] = dict.fromkeys(seeds)
    while answers:
        wanted: dict[int, Training] = {}
        for number, answer in answers.items():
            trainings = running[number]
            try:
                diverged = isinstance(answer, DivergenceError)
                wanted[number] = trainings.throw(answer) if diverged else trainings.send(answer)
            except StopIteration as end:
                rows[number] = end.value
            except (DivergenceError, UntrainedTeacherError) as error:
                raise type(error)(f"seed {number}: {error}") from error
        places = []
        for number, training in wanted.items():
            beside = (
                not why_not(training)
                if study.at_once is True
                else bool(study.at_once) and pays(training)
            )
            places.append(number % AT_ONCE if beside else None)
            seeds[number].ways["at once" if beside else "alone"] += 1
        found = cached_fits(list(wanted.values()), folder=study.cache, places=places)
        answers = dict(zip(wanted, found, strict=True))
    return [
        (rows[number], seed.reasons, seed.diverged, seed.ways) for number, seed in seeds.items()
    ]


class _Clocked(Constraint):
    """A constraint at work in one training; ``seconds`` is the time that it takes outside the
    batches."""

    def __init__(self, constraint: Constraint, device: str) -> None:
        self.constraint, self.device, self.seconds = constraint, device, 0.0

    def start(self, model: nn.Module, data: GroupedDataset, objective: Objective) -> _Clocked:
        self.run: ConstraintRun = self._timed(self.constraint.start, model, data, objective)
        return self

    def loss(self, batch: Batch) -> Tensor:
        return self.run.loss(batch)

    def end_epoch(self) -> dict[str, float]:
        return self._timed(self.run.end_epoch)

    def _timed(self, function: Callable[..., Any], *arguments: object) -> Any:
        before = environment.clock(self.device)
        result = function(*arguments)
        self.seconds += environment.clock(self.device) - before
        return result


def traced(run: Run) -> pd.DataFrame:
    """Return what a constraint did in each epoch, as rows of a study: a ``measure`` of
    :func:`fairlib.study`.

    Returns: A row for each epoch of the run's last training, with its number ``epoch`` and the
        columns of :func:`fairlib.history` that belong to a group, such as ``multiplier[a]`` and
        ``violation[a]``.
    """
    return history(run.model).filter(like="[").reset_index()


def parameter_distance(model: nn.Module, dense: nn.Module) -> float:
    """Compute the Euclidean distance between two models' parameters; NaN if their names or shapes
    differ."""
    ours, theirs = (
        {name: p.detach() for name, p in each.named_parameters()} for each in (model, dense)
    )
    if {name: p.shape for name, p in ours.items()} != {name: p.shape for name, p in theirs.items()}:
        return math.nan
    return math.sqrt(
        sum(
            float((ours[name] - theirs[name].to(ours[name])).double().square().sum())
            for name in ours
        )
    )


def _added(table: pd.DataFrame, found: pd.DataFrame | Mapping[str, Any]) -> pd.DataFrame:
    """Rows of a network together with what a measure returned."""
    if not isinstance(found, pd.DataFrame):
        if taken := sorted({*CONTRACT, *table} & set(found)):
            raise ValueError(
                f"measure must give columns of its own, got {', '.join(taken)}, which the study has"
            )
        return table.assign(**found)
    keys = ["split", "group"]
    if not set(keys) <= set(found):
        return pd.concat([table, found], ignore_index=True)
    new = found[[*keys, *(name for name in found if name not in table)]]
    known = pd.MultiIndex.from_frame(found[keys]).isin(pd.MultiIndex.from_frame(table[keys]))
    joined = table.merge(new, on=keys, how="left", validate="one_to_one")
    return pd.concat([joined, found[~known]], ignore_index=True) if not known.all() else joined


def _plain(level: tuple[float, ...]) -> Level:
    """A level as it is given: one number, or of a pipeline a tuple."""
    return level if len(level) > 1 else level[0]


def _splits(study: Study, seed: int) -> Splits:
    if isinstance(study.data, Splits):
        return study.data
    seed = seed if study.data_seed is None else study.data_seed
    if callable(study.data):
        return check_type("what the function data gives", study.data(seed), Splits, "Splits")
    name, settings = name_and_settings("data", study.data)
    return load(name, **({"seed": seed} | settings))


def _build(model: Named | Function, splits: Splits, seed: int) -> nn.Module:
    if callable(model):
        return check_type(
            "what the function model gives", model(splits, seed), nn.Module, "a torch.nn.Module"
        )
    name, settings = name_and_settings("model", model)
    return build(name, like=splits, seed=seed, **settings)


def _name(model: Named | Function) -> str:
    return (
        model
        if isinstance(model, str)
        else model.__name__
        if callable(model)
        else name_and_settings("model", model)[0]
    )
