"""Pruning, one method a file. :func:`prune` calls them by name."""

from functools import partial
from typing import Any

from torch import nn

from fairlib._validation import check_number, check_settings, lookup
from fairlib.data import GroupedDataset
from fairlib.network import masks
from fairlib.pruning.bifp import bifp, bip, bip_from_flat, epochs_within, from_flat
from fairlib.pruning.fairgrape import fairgrape
from fairlib.pruning.filter_norm import filter_norm
from fairlib.pruning.fpgm import fpgm
from fairlib.pruning.lottery import lottery
from fairlib.pruning.magnitude import magnitude
from fairlib.pruning.random import random
from fairlib.pruning.schedules import SCHEDULES, gradual, iterative
from fairlib.pruning.snip import snip
from fairlib.training import fit
from fairlib.training.compressors import Method, Settings

__all__ = ["METHODS", "SCHEDULES", "Pruning", "check", "epochs_within", "gradual", "iterative", "prune", "trains"]

METHODS: dict[str, Method] = {
    "magnitude": Method(magnitude),
    "filter-norm": Method(filter_norm, takes=("data",)),
    "fpgm": Method(fpgm, takes=("data",)),
    "snip": Method(snip, takes=("data", "seed")),
    "lottery": Method(lottery, takes=("data", "train", "seed")),
    "fairgrape": Method(fairgrape, takes=("data",)),
    "bip": Method(bip, takes=("data", "train", "seed"), constrained=False, gather=bip_from_flat),
    "bifp": Method(bifp, takes=("data", "train", "seed"), constrained=False, gather=from_flat),
    "random": Method(random, takes=("seed",)),
}


def prune(
    model: nn.Module,
    method: str,
    *,
    sparsity: float,
    data: GroupedDataset | None = None,
    train: Settings | None = None,
    schedule: str | tuple[str, Settings] = "one-shot",
    seed: int = 0,
    **settings,
) -> nn.Module:
    """Prune a model by a method of the registry :data:`fairlib.pruning.METHODS`.

    Args:
        model: Any module with convolutions or linear layers; left as it is.
        method: ``"magnitude"``, ``"filter-norm"``, ``"fpgm"``, ``"snip"``, ``"lottery"``, ``"fairgrape"``, ``"bip"``,
            ``"bifp"`` or ``"random"``.
        sparsity: Share of zeros among the prunable weights (convolution and linear), in [0, 1).
        data: The training set. ``"magnitude"`` and ``"random"`` need none; ``"filter-norm"`` and ``"fpgm"`` look at
            the shape of its inputs only, and also take a tensor of inputs.
        train: Arguments of :func:`fairlib.fit`, for ``"lottery"``, ``"bip"`` and ``"bifp"``, and for the schedules
            that train.
        schedule: ``"one-shot"``, without any training; ``"iterative"`` (:func:`fairlib.pruning.iterative`) or
            ``"gradual"`` (:func:`fairlib.pruning.gradual`), or its name and settings. ``"lottery"`` has its own.
        seed: Of what a method draws and of trainings.
        **settings: The method's own, such as ``scope="layer"`` of ``"magnitude"``.

    Returns:
        A copy in eval mode whose pruned weights are zero and stay zero in any further training
        (:mod:`fairlib.network.masks`). It is not finetuned unless the method or the schedule trains.

    Raises:
        ValueError: If a name is unknown, ``sparsity`` is outside [0, 1), ``data`` is missing, or ``train`` is given and
            nothing trains.
        TypeError: If a setting is unknown.
    """
    check(method, schedule=schedule, train=train, **settings)
    check_number("sparsity", sparsity, 0, 1)
    offered = {"data": data, "train": {"seed": seed, **(train or {})}, "seed": seed}
    pruner = METHODS[method]
    once = partial(pruner.function, **pruner.arguments(f"method {method!r}", offered, settings))
    name, options = _named(schedule)
    plan = SCHEDULES[name]
    return plan.function(
        lambda dense, level: once(dense, sparsity=level),
        model,
        sparsity,
        **plan.arguments(f"schedule {name!r}", offered, options),
    )


def check(
    method: str,
    *,
    schedule: str | tuple[str, Settings] = "one-shot",
    train: Settings | None = None,
    **settings,
) -> None:
    """Refuse, before anything is trained, what :func:`prune` would not understand.

    Raises:
        ValueError: If a name is unknown, or a method that has its own schedule is given another.
        TypeError: If a setting is unknown.
    """
    pruner = lookup("pruning method", method, METHODS)
    pruner.check(f"pruning method {method!r}", settings, level="sparsity")
    name, options = _named(schedule)
    lookup("schedule", name, SCHEDULES).check(f"schedule {name!r}", options)
    if name != "one-shot" and pruner.trains:
        raise ValueError(f"pruning method {method!r} has its own schedule; schedule must be 'one-shot', got {name!r}")
    if train and not trains(method, {"schedule": schedule}):
        raise ValueError(f"pruning method {method!r} with schedule {name!r} trains nothing; leave out train=")
    check_settings("train=", fit, train or {}, given=("start", "keep", "sparsify"))


def trains(method: str, settings: Settings) -> bool:
    """Whether :func:`prune` trains with this method and, among its settings, this schedule."""
    name, _ = _named(settings.get("schedule", "one-shot"))
    return METHODS[method].trains or SCHEDULES[name].trains


class Pruning:
    """Pruning as a study sees it: the level is the sparsity, what is kept is the share of prunable weights."""

    level, control, inherits = "sparsity", 0.0, True
    check = staticmethod(check)
    trains = staticmethod(trains)

    def compress(self, model: nn.Module, name: str, level: float, **settings: Any) -> nn.Module:
        return prune(model, name, sparsity=level, **settings)

    def constrained(self, name: str) -> bool:
        return METHODS[name].constrained

    def kept(self, model: nn.Module, dense: nn.Module) -> float:
        return 1 - masks.sparsity(model)

    def objective(self, dense: nn.Module, data: GroupedDataset, settings: Settings) -> None:
        return None


def _named(schedule: str | tuple[str, Settings]) -> tuple[str, Settings]:
    return (schedule, {}) if isinstance(schedule, str) else schedule
