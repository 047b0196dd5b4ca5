"""Linearization, one method a file. :func:`linearize` calls them by name.

>>> from fairlib.linearization import METHODS
>>> list(METHODS)
['snl', 'deepreduce', 'senet', 'random', 'preactivation']
>>> [name for name, method in METHODS.items() if not method.trains]
['random', 'preactivation']
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import nn

from fairlib._validation import check_number, lookup
from fairlib.data import GroupedDataset
from fairlib.linearization.deepreduce import criticality, deepreduce
from fairlib.linearization.preactivation import preactivation
from fairlib.linearization.random import random
from fairlib.linearization.senet import budgets, feeding_layers, senet
from fairlib.linearization.snl import MASK_PHASE, snl
from fairlib.network import gates
from fairlib.network.gates import count, gate
from fairlib.network.memory import extend_history, forget_history
from fairlib.training import Constraint, fit
from fairlib.training.compressors import Kind, Method, Settings
from fairlib.training.distillation import Distillation, check_distillation
from fairlib.training.loop import check_arguments, check_training

__all__ = [
    "FINETUNE", "LINEARIZATION", "MASK_PHASE", "METHODS", "budgets", "check", "count", "criticality", "feeding_layers",
    "gate", "linearize",
]  # fmt: skip

METHODS: dict[str, Method] = {
    "snl": Method(snl, takes=("data", "objective", "train", "seed")),
    "deepreduce": Method(deepreduce, takes=("data", "objective", "train", "val", "seed")),
    "senet": Method(senet, takes=("data", "objective", "train", "seed")),
    "random": Method(random, takes=("seed",)),
    "preactivation": Method(preactivation, takes=("data",)),
}

FINETUNE: dict[str, Any] = {"epochs": 5, "lr": 1e-3}
"""Default arguments of :func:`fairlib.fit` for the finetuning. The learning rate is that of SNL's
scripts."""


def linearize(
    model: nn.Module,
    method: str,
    *,
    data: GroupedDataset,
    budget: float | None = None,
    relus: int | None = None,
    val: GroupedDataset | None = None,
    teacher: nn.Module | None = None,
    distillation: Settings | None = None,
    train: Settings | None = None,
    finetune: Settings | int | None = None,
    constraint: Constraint | None = None,
    seed: int = 0,
    **settings,
) -> nn.Module:
    """Replace ReLUs by the identity, by a method of the registry
    :data:`fairlib.linearization.METHODS`.

    Every ReLU becomes a gate (:func:`fairlib.linearization.gate`), the method chooses those that
    stay, and the network is finetuned by distillation from the model that was given.

    Args: model: A trained model; not changed. One that was linearized before loses more of its
        ReLUs. method: ``"snl"``, ``"deepreduce"``, ``"senet"``, ``"random"`` or
        ``"preactivation"``. data: The training set. budget: Share of ReLUs to keep, in [0, 1], of
        all ReLUs that the model ever had, the stem's included. relus: Number of ReLUs to keep.
        Exactly one of ``budget`` and ``relus`` must be given. val: Held-out data, for a method that
        needs some; by default such a method splits ``data`` by ``seed``. teacher: Teacher of every
        distillation; by default ``model``. It must do better than chance on ``data``. distillation:
        Arguments of :class:`fairlib.training.distillation.Distillation`: temperature and weights.
        Like
            ``teacher``, it has no effect if nothing is trained.
        train: Arguments of :func:`fairlib.fit` for a method that trains: ``"snl"``,
            ``"deepreduce"``, ``"senet"``.
        finetune: Arguments of :func:`fairlib.fit` for the finetuning, which replace those of
            :data:`fairlib.linearization.FINETUNE`; 0 switches the finetuning off.
        constraint: Constraint of the finetuning; ``EqualLoss(step=mu)`` is Algorithm 1 of [D].
        seed: Seed of everything random.
        **settings: Further arguments of the method, such as ``granularity="channel"``.

    Returns: A linearized copy in eval mode; :func:`fairlib.linearization.count` counts its ReLUs.
        :func:`fairlib.history` holds the method's last training, if it trains, followed by the
        finetuning.

    Raises: ValueError: If a name is unknown, ``budget`` or ``relus`` is out of range, not exactly
        one of the two is given,
            ``train`` is given although the method does not train, a constraint is given without
            finetuning, the teacher performs at chance, or the model cannot be gated.
        TypeError: If a setting is unknown, or an argument is of another type.
        RuntimeError: If a method does not reach the budget.

    Example: Without its ReLUs a network is a straight line: the output halfway between two inputs
        is halfway between the outputs.

        >>> import torch, fairlib
        >>> from fairlib.linearization import count
        >>> digits = fairlib.load("digits").train
        >>> model = fairlib.build("mlp", like=digits)
        >>> settings = dict(data=digits, finetune=0)
        >>> linear = {budget: fairlib.linearize(model, "random", budget=budget, **settings) for budget in (0, 0.5, 1)}
        >>> {budget: count(module).attrs["total"] for budget, module in linear.items()}
        {0: 0, 0.5: 48, 1: 96}
        >>> one, other = digits.batch([0, 1]).split(1)
        >>> bent = lambda module: module((one + other) / 2) - (module(one) + module(other)) / 2
        >>> {budget: bool(bent(module).abs().max() > 1e-4) for budget, module in linear.items()}
        {0: False, 0.5: True, 1: True}
    """
    check(
        method,
        train=train,
        finetune=finetune,
        distillation=distillation,
        constraint=constraint,
        **settings,
    )
    check_arguments(
        {"model": model, "data": data, "val": val, "constraint": constraint, "seed": seed}
    )
    gated = forget_history(gate(model, data))
    wanted = _relus(gated, budget, relus)
    tuned = (
        FINETUNE | dict(finetune or {})
        if finetune is None or isinstance(finetune, Mapping)
        else None
    )
    linearizer = METHODS[method]
    needed = tuned is not None or linearizer.trains
    objective = (
        Distillation(model if teacher is None else teacher, data, **(distillation or {}))
        if needed
        else None
    )
    offered = {"data": data, "objective": objective, "train": train or {}, "val": val, "seed": seed}
    arguments = linearizer.arguments(f"linearization method {method!r}", offered, settings)
    linear = linearizer.function(gated, relus=wanted, **arguments)
    if tuned is None:
        return linear
    finetuned = fit(
        linear, data, **{"seed": seed, "objective": objective, "constraint": constraint} | tuned
    )
    return extend_history(linear, finetuned)


def check(
    method: str,
    *,
    train: Settings | None = None,
    finetune: Settings | int | None = None,
    distillation: Settings | None = None,
    constraint: Constraint | None = None,
    **settings,
) -> None:
    """Check the arguments of :func:`linearize` before anything is trained.

    Raises: ValueError: If a name is unknown, ``train`` is given although the method does not train,
        or a constraint is
            given without finetuning.
        TypeError: If a setting is unknown.
    """
    linearizer = lookup("linearization method", method, METHODS)
    linearizer.check(f"linearization method {method!r}", settings, level="relus")
    if train and not linearizer.trains:
        raise ValueError(
            f"linearization method {method!r} trains nothing but the finetuning; leave out train="
        )
    if not (finetune is None or isinstance(finetune, Mapping) or finetune == 0):
        raise ValueError(
            f"finetune must hold arguments of fairlib.fit, or be 0 to switch it off; got {finetune!r}"
        )
    if finetune == 0 and constraint is not None:
        raise ValueError("a constraint belongs to the finetuning, which finetune=0 switches off")
    own = ("objective", "constraint", "sparsify", "stop", "start", "keep")
    check_training("train=", train or {}, given=own)
    check_training("finetune=", finetune if isinstance(finetune, Mapping) else {}, given=own)
    check_distillation(distillation)


def _kept(model: nn.Module, dense: nn.Module) -> float:
    return count(model).attrs["total"] / int(count(dense)["units"].sum())


def _objective(dense: nn.Module, data: GroupedDataset, settings: Settings) -> Distillation:
    return Distillation(dense, data, **settings.get("distillation", {}))


LINEARIZATION = Kind(
    partial(linearize, finetune=0), level="budget", control=1.0, methods=METHODS,
    check=partial(check, finetune=0), kept=_kept, objective=_objective,
)  # fmt: skip
"""Linearization, for a study: the level is the budget, ``kept`` the share of ReLUs kept."""


def _relus(model: nn.Module, budget: float | None, relus: int | None) -> int:
    """Compute the number of ReLUs to keep.

    Raises:
        ValueError: If not exactly one of the two is given, or it is out of range.
    """
    if (budget is None) == (relus is None):
        raise ValueError(
            f"give exactly one of budget= (a share) and relus= (a count), got {budget=} and {relus=}"
        )
    table = gates.count(model)
    if budget is not None:
        check_number("budget", budget, 0, 1, high_closed=True)
        relus = round(budget * int(table["units"].sum()))
    wanted = 0 if relus is None else relus
    check_number("relus", wanted, 0, whole=True)
    gates.check_relus(wanted, table.attrs["total"])
    return wanted
