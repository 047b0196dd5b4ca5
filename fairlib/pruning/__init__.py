"""Pruning, one method a file. :func:`prune` calls them by name.

>>> from fairlib.pruning import PRUNERS, SPARSITY_SCHEDULES
>>> list(PRUNERS)  # doctest: +NORMALIZE_WHITESPACE
['magnitude', 'filter-norm', 'fpgm', 'snip', 'wanda', 'lottery', 'fairgrape', 'fairprune', 'bip',
 'bifp', 'random']
>>> [name for name, pruner in PRUNERS.items() if pruner.trains]
['lottery', 'bip', 'bifp']
>>> list(SPARSITY_SCHEDULES)
['one-shot', 'iterative', 'gradual']
"""

import warnings
from functools import partial
from types import NoneType

from torch import Tensor, nn

from fairlib._validation import check_number, check_type, lookup, name_and_settings
from fairlib.data import GroupedDataset
from fairlib.network import masks, quantizers
from fairlib.network.copying import check_module
from fairlib.pruning.bifp import bifp, bip, epochs_within
from fairlib.pruning.fairgrape import fairgrape
from fairlib.pruning.fairprune import fairprune
from fairlib.pruning.filter_norm import filter_norm
from fairlib.pruning.fpgm import fpgm
from fairlib.pruning.lottery import lottery
from fairlib.pruning.magnitude import magnitude
from fairlib.pruning.random import random_pruning
from fairlib.pruning.schedules import SPARSITY_SCHEDULES, gradual, iterative
from fairlib.pruning.selection import PATTERN
from fairlib.pruning.snip import snip
from fairlib.pruning.wanda import wanda
from fairlib.training.compressors import Kind, Method, Settings
from fairlib.training.loop import check_arguments, check_training

__all__ = [
    "PRUNERS",
    "PRUNING",
    "SPARSITY_SCHEDULES",
    "check_pruner",
    "epochs_within",
    "gradual",
    "iterative",
    "prune",
    "trains",
]

Schedule = str | tuple[str, Settings]  # The name of a schedule, or its name and settings.

PRUNERS: dict[str, Method] = {
    "magnitude": Method(magnitude),
    "filter-norm": Method(filter_norm, takes=("data",)),
    "fpgm": Method(fpgm, takes=("data",)),
    "snip": Method(snip, takes=("data",)),
    "wanda": Method(wanda, takes=("data",)),
    "lottery": Method(lottery, takes=("data", "train", "seed")),
    "fairgrape": Method(fairgrape, takes=("data",)),
    "fairprune": Method(fairprune, takes=("data", "seed")),
    "bip": Method(bip, takes=("data", "train", "val", "seed"), constrained=False),
    "bifp": Method(bifp, takes=("data", "train", "val", "seed"), constrained=False),
    "random": Method(random_pruning, takes=("seed",)),
}


def prune(
    model: nn.Module,
    method: str,
    *,
    sparsity: float,
    data: GroupedDataset | None = None,
    train: Settings | None = None,
    val: GroupedDataset | None = None,
    schedule: Schedule = "one-shot",
    seed: int = 0,
    **settings,
) -> nn.Module:
    """Prune a model by a method of the registry :data:`fairlib.pruning.PRUNERS`.

    Args:
        model: Any module with convolutions or linear layers; not changed.
        method: ``"magnitude"``, ``"filter-norm"``, ``"fpgm"``, ``"snip"``, ``"wanda"``,
            ``"lottery"``, ``"fairgrape"``, ``"fairprune"``, ``"bip"``, ``"bifp"`` or ``"random"``.
        sparsity: Share of zeros among the prunable weights, in [0, 1)
            (:func:`fairlib.network.masks.prunable`); of a method with ``exclude=`` among those that
            it does not name.
        data: The training set. ``"magnitude"`` and ``"random"`` need none; ``"filter-norm"`` and
            ``"fpgm"`` use only the shape of its inputs, and also take a tensor of inputs.
        train: Arguments of :func:`fairlib.fit` for each training; only for a method or a schedule
            that trains (``"lottery"``, ``"bip"``, ``"bifp"``; ``"iterative"``, ``"gradual"``).
        val: Held-out data, for a method that needs some (``"bip"``, ``"bifp"``); by default such a
            method splits ``data`` by ``seed``.
        schedule: ``"one-shot"`` (all weights at once, no training), ``"iterative"``
            (:func:`fairlib.pruning.iterative`) or ``"gradual"`` (:func:`fairlib.pruning.gradual`);
            or a pair of such a name and its settings. ``"lottery"``, ``"bip"`` and ``"bifp"`` have
            a schedule of their own.
        seed: Seed of the method's random choices and of its trainings.
        **settings: Further arguments of the method, such as ``scope="layer"`` of ``"magnitude"``,
            or ``granularity="2:4"`` of ``"magnitude"``, ``"snip"``, ``"wanda"`` and ``"random"``.

    Returns:
        A copy in eval mode whose pruned weights are zero, and stay zero in any further training
        (:mod:`fairlib.network.masks`). It is not finetuned unless the method or the schedule
        trains.

    Raises:
        ValueError: If a name is unknown, ``sparsity`` is outside [0, 1), ``data`` is missing,
            ``train`` is given although nothing is trained, or the model is quantized.
        TypeError: If a setting is unknown, or an argument is of another type.

    Warns:
        UserWarning: If less than 90 % of the model's weights can be pruned; names the others.

    Example:
        >>> import torch, fairlib
        >>> model = torch.nn.Linear(4, 1)
        >>> model.weight.data = torch.tensor([[1.0, -4.0, 3.0, -2.0]])
        >>> pruned = fairlib.prune(model, "magnitude", sparsity=0.5)
        >>> pruned.weight.tolist(), model.weight.tolist()
        ([[0.0, -4.0, 3.0, 0.0]], [[1.0, -4.0, 3.0, -2.0]])

        A pruned weight stays zero in any training loop:

        >>> optimizer = torch.optim.SGD(pruned.parameters(), lr=1.0)
        >>> pruned(torch.ones(1, 4)).sum().backward()
        >>> optimizer.step()
        >>> pruned.weight.tolist()
        [[0.0, -5.0, 2.0, 0.0]]
    """
    check_pruner(method, schedule=schedule, train=train, **settings)
    check_number("sparsity", sparsity, 0, 1)
    check_arguments({"val": val, "seed": seed})
    check_module("model", model)
    if quantizers.read_bits(model):
        raise ValueError(
            "the model's weights are quantized, and pruning would undo that: prune first, then "
            "quantize"
        )
    check_type("data", data, (GroupedDataset, Tensor, NoneType), "a GroupedDataset")
    if said := masks.uncovered(model):
        warnings.warn(f"sparsity is a share of what can be pruned: {said}", stacklevel=2)
    offered = {"data": data, "train": {"seed": seed, **(train or {})}, "val": val, "seed": seed}
    pruner = PRUNERS[method]
    once = partial(pruner.function, **pruner.arguments(f"method {method!r}", offered, settings))
    name, options = name_and_settings("schedule", schedule)
    plan = SPARSITY_SCHEDULES[name]
    arguments = plan.arguments(f"schedule {name!r}", offered, options)
    return plan.function(
        lambda dense, level: once(dense, sparsity=level), model, sparsity, **arguments
    )


def check_pruner(
    method: str,
    *,
    schedule: Schedule = "one-shot",
    train: Settings | None = None,
    val: GroupedDataset | None = None,
    **settings,
) -> None:
    """Check the arguments of :func:`prune` before anything is trained.

    Raises:
        ValueError: If a name is unknown, a method that has its own schedule or a granularity that
            has none is given one, or ``train`` is given although nothing is trained.
        TypeError: If a setting is unknown.
    """
    pruner = lookup("pruning method", method, PRUNERS)
    pruner.check(f"pruning method {method!r}", settings, level="sparsity")
    name, options = name_and_settings("schedule", schedule)
    lookup("schedule", name, SPARSITY_SCHEDULES).check(f"schedule {name!r}", options)
    granularity = settings.get("granularity")
    if name != "one-shot" and (pruner.trains or granularity == PATTERN):
        raise ValueError(
            f"pruning method {method!r} has its own schedule, and granularity {PATTERN!r} none; "
            f"schedule must be 'one-shot', got {name!r}"
        )
    if train and not trains(method, {"schedule": schedule}):
        raise ValueError(
            f"pruning method {method!r} with schedule {name!r} trains nothing; leave out train="
        )
    check_training("train=", train or {}, given=("keep",))


def trains(method: str, settings: Settings) -> bool:
    """Tell whether :func:`prune` trains with a method and settings, which may hold a schedule."""
    name, _ = name_and_settings("schedule", settings.get("schedule", "one-shot"))
    return PRUNERS[method].trains or SPARSITY_SCHEDULES[name].trains


def _kept(model: nn.Module, dense: nn.Module) -> float:
    return 1 - masks.sparsity(model)


PRUNING = Kind(
    prune, level="sparsity", control=0.0, methods=PRUNERS, check=check_pruner, inherits=True,
    kept=_kept, training=trains,
)  # fmt: skip
"""Pruning, for a study: the level is the sparsity, ``kept`` the share of prunable weights kept."""
