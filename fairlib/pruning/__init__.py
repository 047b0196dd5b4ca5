"""Pruning, one method a file. :func:`prune` calls them by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial

from torch import nn

from fairlib._validation import check_number, check_settings, lookup
from fairlib.data import GroupedDataset
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

__all__ = ["BILEVEL", "METHODS", "SCHEDULES", "check", "epochs_within", "gradual", "iterative", "prune", "trains"]

METHODS: dict[str, Callable[..., nn.Module]] = {
    "magnitude": magnitude,
    "filter-norm": filter_norm,
    "fpgm": fpgm,
    "snip": snip,
    "lottery": lottery,
    "fairgrape": fairgrape,
    "bip": bip,
    "bifp": bifp,
    "random": random,
}

BILEVEL = ("bip", "bifp")
"""Methods with a rule of their own for what a training is held to, in the place of a constraint."""

_GATHER = {"bip": bip_from_flat, "bifp": from_flat}
"""From flat settings to the arguments of a method that takes objects."""

_OFFERED = ("sparsity", "data", "train", "seed")  # What prune hands to every method and schedule that asks for it.


def prune(
    model: nn.Module,
    method: str,
    *,
    sparsity: float,
    data: GroupedDataset | None = None,
    train: Mapping[str, object] | None = None,
    schedule: str | tuple[str, Mapping[str, object]] = "one-shot",
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
    settings = _GATHER.get(method, dict)(**settings)
    once = partial(METHODS[method], **_asked_for(f"method {method!r}", METHODS[method], offered), **settings)
    name, options = _named(schedule)
    run = SCHEDULES[name]
    return run(
        lambda dense, level: once(dense, sparsity=level),
        model,
        sparsity,
        **_asked_for(f"schedule {name!r}", run, offered),
        **options,
    )


def check(
    method: str,
    *,
    schedule: str | tuple[str, Mapping[str, object]] = "one-shot",
    train: Mapping[str, object] | None = None,
    **settings,
) -> None:
    """Refuse, before anything is trained, what :func:`prune` would not understand.

    Raises:
        ValueError: If a name is unknown, or a method that has its own schedule is given another.
        TypeError: If a setting is unknown.
    """
    function = lookup("pruning method", method, METHODS)
    if method in _GATHER:
        _GATHER[method](**settings)
    else:
        check_settings(f"pruning method {method!r}", function, settings, given=_OFFERED)
    name, options = _named(schedule)
    check_settings(f"schedule {name!r}", lookup("schedule", name, SCHEDULES), options, given=_OFFERED)
    if name != "one-shot" and _takes_train(function):
        raise ValueError(f"pruning method {method!r} has its own schedule; schedule must be 'one-shot', got {name!r}")
    if train and not trains(method, {"schedule": schedule}):
        raise ValueError(f"pruning method {method!r} with schedule {name!r} trains nothing; leave out train=")
    check_settings("train=", fit, train or {}, given=("start", "keep", "sparsify"))


def trains(method: str, settings: Mapping[str, object]) -> bool:
    """Whether :func:`prune` trains with this method and, among its settings, this schedule."""
    name, _ = _named(settings.get("schedule", "one-shot"))
    return _takes_train(METHODS[method]) or _takes_train(SCHEDULES[name])


def _takes_train(function: Callable) -> bool:
    return "train" in inspect.signature(function).parameters


def _named(schedule: str | tuple[str, Mapping[str, object]]) -> tuple[str, Mapping[str, object]]:
    return (schedule, {}) if isinstance(schedule, str) else schedule


def _asked_for(owner: str, function: Callable, offered: Mapping[str, object]) -> dict[str, object]:
    """What of the offer a method or schedule has parameters for.

    Raises:
        ValueError: If it needs the data and there are none.
    """
    wanted = inspect.signature(function).parameters
    if "data" in wanted and offered["data"] is None:
        raise ValueError(f"{owner} needs data=, the training set")
    return {name: value for name, value in offered.items() if name in wanted}
