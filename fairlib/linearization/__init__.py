"""Linearization, one method a file. :func:`linearize` calls them by name.

>>> from fairlib.linearization import LINEARIZERS
>>> list(LINEARIZERS)
['snl', 'deepreduce', 'senet', 'random', 'preactivation', 'polynomial']
>>> [name for name, linearizer in LINEARIZERS.items() if not linearizer.trains]
['random', 'preactivation', 'polynomial']
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import nn

from fairlib._validation import check_number, lookup
from fairlib.data import GroupedDataset
from fairlib.linearization.deepreduce import criticality, deepreduce
from fairlib.linearization.polynomial import polynomial
from fairlib.linearization.preactivation import preactivation
from fairlib.linearization.random import random_gates
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
    "FINETUNE",
    "LINEARIZATION",
    "LINEARIZERS",
    "MASK_PHASE",
    "budgets",
    "check_linearizer",
    "count",
    "criticality",
    "feeding_layers",
    "gate",
    "linearize",
]

LINEARIZERS: dict[str, Method] = {
    "snl": Method(snl, takes=("data", "objective", "train", "seed")),
    "deepreduce": Method(deepreduce, takes=("data", "objective", "train", "val", "seed")),
    "senet": Method(senet, takes=("data", "objective", "train", "seed")),
    "random": Method(random_gates, takes=("seed",)),
    "preactivation": Method(preactivation, takes=("data",)),
    "polynomial": Method(polynomial, takes=("data", "seed")),
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
    distillation: Settings | None = None,
    train: Settings | None = None,
    finetune: Settings | int | None = None,
    constraint: Constraint | None = None,
    seed: int = 0,
    **settings: Any,
) -> nn.Module:
    """Replace ReLUs by the identity, or by quadratics, by a method of
    :data:`fairlib.linearization.LINEARIZERS`.

    Every ReLU becomes a gate (:func:`fairlib.linearization.gate`), the method chooses those that
    stay, and the network is finetuned by distillation from the model that was given.

    Args:
        model: A trained model; not changed. One that was linearized before loses more of its ReLUs.
        method: ``"snl"``, ``"deepreduce"``, ``"senet"``, ``"random"`` or ``"preactivation"``; or
            ``"polynomial"``, which puts quadratics in the place of lines.
        data: The training set.
        budget: Share of ReLUs to keep, in [0, 1], of all ReLUs that the model ever had, the stem's
            included.
        relus: Number of ReLUs to keep. Exactly one of ``budget`` and ``relus`` must be given.
        distillation: Arguments of :class:`fairlib.training.distillation.Distillation`: temperature
            and weights. They have no effect if nothing is trained. The teacher is ``model``, which
            must do better than chance on ``data``.
        train: Arguments of :func:`fairlib.fit` for a method that trains: ``"snl"``,
            ``"deepreduce"``, ``"senet"``.
        finetune: Arguments of :func:`fairlib.fit` for the finetuning, which replace those of
            :data:`fairlib.linearization.FINETUNE`; 0 switches the finetuning off.
        constraint: Constraint of the finetuning; ``EqualLoss(step=mu)`` is Algorithm 1 of [D].
        seed: Seed of everything random.
        **settings: Further arguments of the method, such as ``granularity="channel"`` of
            ``"random"``, or ``val`` of ``"deepreduce"``: data on which it measures, by default a
            part of ``data`` that it splits off by ``seed``.

    Returns:
        A linearized copy in eval mode; :func:`fairlib.linearization.count` counts its ReLUs.
        :func:`fairlib.history` holds the method's last training, if it trains, followed by the
        finetuning.

    Raises:
        ValueError: If a name is unknown, ``budget`` or ``relus`` is out of range, not exactly one
            of the two is given, ``train`` is given although the method does not train, a constraint
            is given without finetuning, the teacher performs at chance, or the model cannot be
            gated.
        TypeError: If a setting is unknown, or an argument is of another type.
        RuntimeError: If a method does not reach the budget.
        FloatingPointError: If values become NaN or infinite: a training diverges, or no quadratic
            can be fitted.

    Example:
        Without its ReLUs a network is a straight line: the output halfway between two inputs is
        halfway between the outputs.

        >>> import torch, fairlib
        >>> from fairlib.linearization import count
        >>> digits = fairlib.load("digits").train
        >>> model = fairlib.build("mlp", like=digits)
        >>> linear = {
        ...     budget: fairlib.linearize(model, "random", budget=budget, data=digits, finetune=0)
        ...     for budget in (0, 0.5, 1)
        ... }
        >>> {budget: count(module).attrs["total"] for budget, module in linear.items()}
        {0: 0, 0.5: 48, 1: 96}
        >>> one, other = digits.batch([0, 1]).split(1)
        >>> def bend(module):
        ...     halfway = module((one + other) / 2) - (module(one) + module(other)) / 2
        ...     return bool(halfway.abs().max() > 1e-4)
        >>> {budget: bend(module) for budget, module in linear.items()}
        {0: False, 0.5: True, 1: True}
    """
    val = settings.pop("val", None)
    check_linearizer(
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
    linearizer = LINEARIZERS[method]
    # A teacher at chance is refused, so that the objective is made only where it is used: without
    # finetuning even an untrained network can be linearized.
    objective = None
    if finetune != 0 or linearizer.trains:
        objective = Distillation(model, data, **(distillation or {}))
    offered = {"data": data, "objective": objective, "train": train or {}, "val": val, "seed": seed}
    arguments = linearizer.arguments(f"linearization method {method!r}", offered, settings)
    linear = linearizer.function(gated, relus=wanted, **arguments)
    if finetune == 0:
        return linear
    tuning = FINETUNE | dict(finetune if isinstance(finetune, Mapping) else {})
    finetuned = fit(
        linear, data, objective=objective, constraint=constraint, **{"seed": seed, **tuning}
    )
    return extend_history(linear, finetuned)


def check_linearizer(
    method: str,
    *,
    train: Settings | None = None,
    finetune: Settings | int | None = None,
    distillation: Settings | None = None,
    constraint: Constraint | None = None,
    **settings,
) -> None:
    """Check the arguments of :func:`linearize` before anything is trained.

    Raises:
        ValueError: If a name is unknown, ``train`` is given although the method does not train, or
            a constraint is given without finetuning.
        TypeError: If a setting is unknown.
    """
    linearizer = lookup("linearization method", method, LINEARIZERS)
    linearizer.check(f"linearization method {method!r}", settings, level="relus")
    if train and not linearizer.trains:
        raise ValueError(
            f"linearization method {method!r} trains nothing but the finetuning; leave out train="
        )
    if not (finetune is None or finetune == 0 or isinstance(finetune, Mapping)):
        raise ValueError(
            "finetune must hold arguments of fairlib.fit, or be 0 to switch it off; "
            f"got {finetune!r}"
        )
    if finetune == 0 and constraint is not None:
        raise ValueError("a constraint belongs to the finetuning, which finetune=0 switches off")
    set_here = ("objective", "constraint", "keep")
    check_training("train=", train or {}, given=set_here)
    check_training("finetune=", finetune if isinstance(finetune, Mapping) else {}, given=set_here)
    check_distillation(distillation)


def _kept(model: nn.Module, dense: nn.Module) -> float:
    return count(model).attrs["total"] / int(count(dense)["units"].sum())


def _objective(dense: nn.Module, data: GroupedDataset, settings: Settings) -> Distillation:
    return Distillation(dense, data, **settings.get("distillation", {}))


LINEARIZATION = Kind(
    partial(linearize, finetune=0), level="budget", control=1.0, methods=LINEARIZERS,
    check=partial(check_linearizer, finetune=0), kept=_kept, objective=_objective,
)  # fmt: skip
"""Linearization, for a study: the level is the budget, ``kept`` the share of ReLUs kept."""


def _relus(model: nn.Module, budget: float | None, relus: int | None) -> int:
    """Compute the number of ReLUs to keep.

    Raises:
        ValueError: If not exactly one of the two is given, or it is out of range.
    """
    if (budget is None) == (relus is None):
        raise ValueError(
            f"give exactly one of budget= (a share) and relus= (a count), got {budget=} and "
            f"{relus=}"
        )
    table = gates.count(model)
    if budget is not None:
        check_number("budget", budget, 0, 1, high_closed=True)
        relus = round(budget * int(table["units"].sum()))
    wanted = 0 if relus is None else relus
    check_number("relus", wanted, 0, whole=True)
    gates.check_relus(wanted, table.attrs["total"])
    return wanted
