"""The arguments of a study, checked, from which any process can run any of its seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any

import pandas as pd
from torch import nn

from fairlib._validation import check_automatic, check_type, lookup, name_and_settings
from fairlib.data import GroupedDataset, Splits, load
from fairlib.models import build
from fairlib.studies.arms import Function, Named
from fairlib.studies.parallel import check_workers
from fairlib.training import Constraint, Training
from fairlib.training.cache import default_folder
from fairlib.training.compressors import Settings

Measure = Callable[..., pd.DataFrame | Mapping[str, Any]]
"""Function of a :class:`fairlib.studies.Run`."""


@dataclass(frozen=True)
class RunSettings:
    """How the runs of a study are carried out, and on which data seed.

    Args:
        data_seed: Seed of the data of all runs; None loads and splits them anew with each run's
            seed.
        cache: Folder of trained models (:mod:`fairlib.training.cache`); ``"auto"`` is the user's
            cache folder, None switches the cache off.
        workers: Number of processes; by default one for each core if that saves more time than
            starting them takes. On the CPU every run uses one thread, so that results do not depend
            on it.
        at_once: True to compute the trainings of five seeds together (:func:`fairlib.fit_many`),
            those that can be; ``"auto"`` where it pays, on a GPU and for small networks on images
            of under 16 pixels a side, unless the environment has ``FAIRLIB_AUTO=0``. On a GPU they
            go in turn (:mod:`fairlib.training.slots`), on a CPU as a stack. The place of a seed is
            its remainder by five, and a stack is filled up, so that its rows do not depend on which
            others are asked for, nor on ``workers``. Sums are rounded in another order than one
            seed after the other: single rows differ, their distribution does not. A stack is one
            process, and one seed takes twice as long as alone.
            ``table.attrs["trainings"]`` and the provenance of a run count the dense trainings,
            controls and finetunings of both kinds; the trainings of a method itself, and those that
            are clocked, are carried out alone.
        clock: Add ``seconds``, the duration of the finetuning (CPU: process time; CUDA: wall
            clock), and ``dual_seconds``, the part that a constraint spent between epochs. The
            finetuning is then never read from the cache.
        divergence: ``"raise"``, or ``"skip"`` to leave out a run that diverges and list it in
            ``table.attrs["diverged"]`` with arm, seed, stage, level, time of mitigation and reason.

    Raises:
        ValueError: If a value is unknown or out of range.
        TypeError: If a value is of another type.

    Example:
        >>> from fairlib.studies import RunSettings
        >>> RunSettings(data_seed=0, cache=None).folder is None
        True
    """

    data_seed: int | None = None
    cache: str | Path | None = "auto"
    workers: int | None = None
    at_once: bool | str = "auto"
    clock: bool = False
    divergence: str = "raise"

    def __post_init__(self) -> None:
        check_type("cache", self.cache, (str, Path, NoneType), "a folder or None")
        check_workers(self.workers)
        check_automatic("at_once", self.at_once)
        lookup("answer to divergence", self.divergence, dict.fromkeys(("raise", "skip")))

    @property
    def folder(self) -> Path | None:
        """Folder of the cache; None switches it off."""
        if self.cache is None:
            return None
        return default_folder() if self.cache == "auto" else Path(self.cache)


@dataclass(frozen=True)
class StudyPlan:
    """The checked arguments of a study; its arms, by name, are :class:`Arm` without None."""

    data: Named | Splits | Callable[[int], Splits]
    model: Named | Function
    arms: Mapping[str, Any]
    train: Settings
    held_out: str
    diagnostics: Mapping[str, Settings]
    measure: Measure | None
    device: str
    run: RunSettings

    def splits(self, seed: int) -> Splits:
        """Load the data of a seed."""
        if isinstance(self.data, Splits):
            found = self.data
        else:
            data_seed = seed if self.run.data_seed is None else self.run.data_seed
            if callable(self.data):
                given = self.data(data_seed)
                found = check_type("what the function data gives", given, Splits, "Splits")
            else:
                # A seed among the settings goes before that of the run: it fixes the data.
                name, settings = name_and_settings("data", self.data)
                found = load(name, **{"seed": data_seed, **settings})
        if not self.tuning(found):
            raise ValueError(
                "held_out='val-only' compresses on the validation part, which these data do not "
                "have"
            )
        return found

    def tuning(self, splits: Splits) -> GroupedDataset:
        """Return the part of the data that compression and finetuning see."""
        return splits.val if self.held_out == "val-only" else splits.train

    def start(self, splits: Splits, seed: int) -> nn.Module:
        """Build the network of a seed, at its initial weights."""
        if callable(self.model):
            found = self.model(splits, seed)
            return check_type(
                "what the function model gives", found, nn.Module, "a torch.nn.Module"
            )
        name, settings = name_and_settings("model", self.model)
        return build(name, like=splits, seed=seed, **settings)

    @property
    def model_name(self) -> str:
        """Name of the network in the table."""
        if isinstance(self.model, str):
            return self.model
        return (
            self.model.__name__
            if callable(self.model)
            else name_and_settings("model", self.model)[0]
        )

    def training(
        self,
        model: nn.Module,
        data: GroupedDataset,
        seed: int,
        settings: Settings,
        constraint: Constraint | None,
    ) -> Training:
        """Ask for a training of a seed."""
        arguments = {"seed": seed, "device": self.device, **settings}
        # Left out, not None: the text of the settings is part of the cache key.
        if constraint:
            arguments["constraint"] = constraint
        return Training(model, data, arguments)
