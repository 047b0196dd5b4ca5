"""Linearization, one method a file. :func:`linearize` calls them by name."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from fairlib._validation import check_number, check_settings, lookup
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
from fairlib.training.compressors import Method, Settings
from fairlib.training.distillation import Distillation, check_values

__all__ = [
    "FINETUNE",
    "MASK_PHASE",
    "METHODS",
    "Linearization",
    "budgets",
    "check",
    "count",
    "criticality",
    "feeding_layers",
    "gate",
    "linearize",
    "trains",
]

METHODS: dict[str, Method] = {
    "snl": Method(snl, takes=("data", "objective", "train", "seed")),
    "deepreduce": Method(deepreduce, takes=("data", "objective", "train", "val", "seed")),
    "senet": Method(senet, takes=("data", "objective", "train", "seed")),
    "random": Method(random, takes=("seed",)),
    "preactivation": Method(preactivation, takes=("data",)),
}

FINETUNE = {"epochs": 5, "lr": 1e-3}
"""The learning rate of SNL's scripts, which have 100 epochs."""


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
    """Replace ReLUs by the identity, by a method of the registry :data:`fairlib.linearization.METHODS`.

    Every ReLU becomes a gate (:func:`fairlib.linearization.gate`), the method chooses those that stay, and the network
    is finetuned by distillation from the model that was given.

    Args:
        model: Trained; left as it is. One that was linearized before loses more of its ReLUs.
        method: ``"snl"``, ``"deepreduce"``, ``"senet"``, ``"random"`` or ``"preactivation"``.
        data: The training set.
        budget: Share of the ReLUs kept, in [0, 1], of all those that the model ever had, its stem's included.
        relus: The number of ReLUs kept, in place of ``budget``. Exactly one of the two.
        val: Held-out data, for a method that needs some; by default it splits ``data`` by ``seed``.
        teacher: Of all distillation; by default ``model``. It must do better than chance on ``data``.
        distillation: Arguments of :class:`fairlib.training.distillation.Distillation`: temperature and weights. This
            and ``teacher`` have no effect where nothing is trained.
        train: Arguments of :func:`fairlib.fit` for a method that trains: ``"snl"``, ``"deepreduce"``, ``"senet"``.
        finetune: Arguments of :func:`fairlib.fit` for the finetuning; what is missing is as in
            :data:`fairlib.linearization.FINETUNE`. 0 switches it off.
        constraint: For the finetuning: ``EqualLoss(step=mu)`` is Algorithm 1 of [D].
        seed: Of everything random.
        **settings: The method's own.

    Returns:
        A linearized copy in eval mode; :func:`fairlib.linearization.count` tells the ReLUs that it has.
        :func:`fairlib.history` tells of the method's last training, if it trains, and then of the finetuning.

    Raises:
        ValueError: If a name is unknown, a budget is out of range or not given once, nothing is left to train with, the
            teacher performs at chance, or the model cannot be gated.
        TypeError: If a setting is unknown.
        RuntimeError: If a method does not reach the budget.
    """
    check(method, train=train, finetune=finetune, distillation=distillation, constraint=constraint, **settings)
    gated = forget_history(gate(model, data))
    wanted = _relus(gated, budget, relus)
    tuned = None if finetune == 0 and finetune is not None else FINETUNE | dict(finetune or {})
    needed = tuned is not None or trains(method, settings)
    objective = Distillation(model if teacher is None else teacher, data, **(distillation or {})) if needed else None
    offered = {"data": data, "objective": objective, "train": train or {}, "val": val, "seed": seed}
    linearizer = METHODS[method]
    arguments = linearizer.arguments(f"linearization method {method!r}", offered, settings)
    linear = linearizer.function(gated, relus=wanted, **arguments)
    if tuned is None:
        return linear
    finetuned = fit(linear, data, **{"seed": seed, "objective": objective, "constraint": constraint} | tuned)
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
    """Refuse, before anything is trained, what :func:`linearize` would not understand.

    Raises:
        ValueError: If a name is unknown, ``train`` is given and nothing trains, or a constraint and no finetuning.
        TypeError: If a setting is unknown.
    """
    linearizer = lookup("linearization method", method, METHODS)
    linearizer.check(f"linearization method {method!r}", settings, level="relus")
    if train and not trains(method, settings):
        raise ValueError(f"linearization method {method!r} trains nothing but the finetuning; leave out train=")
    if not (finetune is None or isinstance(finetune, Mapping) or finetune == 0):
        raise ValueError(f"finetune must hold arguments of fairlib.fit, or be 0 to switch it off; got {finetune!r}")
    if finetune == 0 and finetune is not None and constraint is not None:
        raise ValueError("a constraint belongs to the finetuning, which finetune=0 switches off")
    own = ("objective", "constraint", "sparsify", "stop", "start", "keep")
    check_settings("train=", fit, train or {}, given=own)
    check_settings("finetune=", fit, finetune or {}, given=own)
    check_settings("distillation=", Distillation, distillation or {}, given=("teacher", "data"))
    check_values(**(distillation or {}))


def trains(method: str, settings: Settings) -> bool:
    """Whether a method, with these settings, trains before the finetuning."""
    return METHODS[method].trains


class Linearization:
    """Linearization as a study sees it: the level is the budget, what is kept is the share of ReLUs."""

    level, control, inherits = "budget", 1.0, False
    trains = staticmethod(trains)

    def compress(self, model: nn.Module, name: str, level: float, **settings: Any) -> nn.Module:
        return linearize(model, name, budget=level, finetune=0, **settings)

    def check(self, name: str, **settings: Any) -> None:
        check(name, finetune=0, **settings)

    def constrained(self, name: str) -> bool:
        return METHODS[name].constrained

    def kept(self, model: nn.Module, dense: nn.Module) -> float:
        return count(model).attrs["total"] / int(count(dense)["units"].sum())

    def objective(self, dense: nn.Module, data: GroupedDataset, settings: Settings) -> Distillation:
        return Distillation(dense, data, **settings.get("distillation", {}))


def _relus(model: nn.Module, budget: float | None, relus: int | None) -> int:
    """How many ReLUs to keep.

    Raises:
        ValueError: If not exactly one of the two is given, or it is out of range.
    """
    if (budget is None) == (relus is None):
        raise ValueError(f"give exactly one of budget= (a share) and relus= (a count), got {budget=} and {relus=}")
    table = gates.count(model)
    if relus is not None:
        check_number("relus", relus, 0, whole=True)
        wanted = relus
    else:
        check_number("budget", budget, 0, 1, high_closed=True)
        wanted = round(budget * int(table["units"].sum()))
    gates.check_count(wanted, table.attrs["total"])
    return wanted
