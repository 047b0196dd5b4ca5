"""Selective network linearization: a lasso on the gates, learned together with the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fairlib._validation import check_number
from fairlib.data import GroupedDataset
from fairlib.network import gates
from fairlib.training import Batch, Constraint, Objective, fit

MASK_PHASE: dict[str, Any] = {
    "epochs": 2000,
    "lr": 1e-3,
    "batch_size": 128,
    "optimizer": "adam",
    "schedule": "constant",
    "weight_decay": 0.0,
}
"""The mask phase of SNL's scripts. It ends when the budget is met."""


def snl(
    model: nn.Module,
    *,
    relus: int,
    data: GroupedDataset,
    objective: Objective,
    train: Mapping[str, Any],
    penalty: float = 1e-5,
    growth: float = 1.1,
    patience: int = 5,
    threshold: float = 0.01,
    exact: bool = False,
    granularity: str = "pixel",
    seed: int = 0,
) -> nn.Module:
    r"""Learn which ReLUs to keep, under a penalty that grows until few enough are left.

    Every gate computes :math:`\alpha \, \mathrm{ReLU}(x) + (1 - \alpha) x` with an unconstrained :math:`\alpha`, 1 at
    first. The mask phase descends on

    .. math:: \ell(\theta, \alpha) + c \sum_j |\alpha_j|

    over all parameters. After each epoch the ReLUs left are counted, those with :math:`\alpha > t`. If there are not
    fewer than ever before, and at least ``patience`` epochs have passed, counted from one, :math:`c` grows by the
    factor ``growth``. The phase ends when at most ``relus`` are left; then :math:`\alpha` becomes 1 or 0. The number
    that is kept is at most ``relus`` and, since it is reached in steps, seldom that.

    The budget enters only where the phase ends: with one seed, a smaller budget goes the same way further. A model that
    was linearized before goes on from the ReLUs that it has.

    Args:
        model: With gates; left as it is.
        relus: How many to keep at most.
        data: The training set.
        objective: Per-sample losses :math:`\ell`: of SNL, those of a teacher.
        train: Arguments of :func:`fairlib.fit` for the mask phase; what is missing is as in
            :data:`fairlib.linearization.MASK_PHASE`.
        penalty: :math:`c` at first. A channel or a layer is penalized for each of its ReLUs.
        growth: Factor of the penalty, above 1.
        patience: Epochs before the penalty may grow.
        threshold: :math:`t`.
        exact: Keep, of single pixels exactly, ``relus`` with the largest :math:`\alpha` at the end of the phase.
        granularity: Who shares an :math:`\alpha`: ``"pixel"``, nobody; ``"channel"``; ``"layer"``.
        seed: Of the mask phase.

    Returns:
        A copy in eval mode with the weights of the mask phase and binary gates; :func:`fairlib.history` tells by epoch
        ``relus`` and ``penalty``.

    Raises:
        ValueError: If a setting is out of range.
        RuntimeError: If more ReLUs than ``relus`` are left after the last epoch; not if ``exact``.
        DivergenceError: If the training diverges.

    Source:
        Cho, Joshi, Garg, Reagen, Hegde, Selective network linearization for efficient private inference (ICML 2022),
        and its code, from which the defaults are.
    """
    check_number("penalty", penalty, 0, low_open=True)
    check_number("growth", growth, 1, low_open=True)
    check_number("patience", patience, 0, whole=True)
    check_number("threshold", threshold, 0)
    soft = gates.apply(model, {})
    gates.relax(soft, granularity)
    lasso = _Lasso(penalty, growth, patience, threshold)
    settings = MASK_PHASE | {"seed": seed} | dict(train)
    soft = fit(soft, data, objective=objective, constraint=lasso, stop=lambda row: row["relus"] <= relus, **settings)
    alphas = {name: gate.alpha.detach() for name, gate in gates.gates(soft).items() if gate.alpha is not None}
    keep = {name: (alpha > threshold) & gates.read(soft)[name] for name, alpha in alphas.items()}
    left = sum(int(mask.sum()) for mask in keep.values())
    if exact:
        keep = gates.keep_relus(soft, alphas, relus)
    elif left > relus:
        raise RuntimeError(
            f"SNL has {left} ReLUs left after {settings['epochs']} epochs, more than the {relus} asked for; give more "
            f"epochs, a larger penalty ({penalty}) or a larger growth ({growth}), or take exact=True"
        )
    gates.impose(soft, keep)
    return soft


@dataclass(frozen=True)
class _Lasso(Constraint):
    """The penalty on the gates, as a constraint of :func:`fairlib.fit`."""

    penalty: float
    growth: float
    patience: int
    threshold: float

    def start(self, model: nn.Module, data: GroupedDataset, objective: Objective) -> _LassoRun:
        return _LassoRun(self, model)


class _LassoRun:
    def __init__(self, settings: _Lasso, model: nn.Module) -> None:
        self.settings, self.penalty = settings, settings.penalty
        found = gates.gates(model).values()
        self.learned = [(gate.alpha, gate.keep) for gate in found if gate.alpha is not None]
        self.lowest, self.epoch = float(self._count()), 0

    def loss(self, batch: Batch) -> Tensor:
        return batch.losses.mean() + self.penalty * self._norm()

    def end_epoch(self) -> dict[str, float]:
        self.epoch += 1
        seen = {"relus": float(self._count()), "penalty": self.penalty}
        if seen["relus"] < self.lowest:
            self.lowest = seen["relus"]
        elif self.epoch >= self.settings.patience:
            self.penalty *= self.settings.growth
        return seen

    def _norm(self) -> Tensor:
        """Over the ReLUs that the gates keep, of the alphas that decide of them."""
        first, *others = [(alpha.abs() * keep).sum() for alpha, keep in self.learned]
        return sum(others, first)

    def _count(self) -> int:
        with torch.no_grad():
            left = [((alpha > self.settings.threshold) & keep).sum() for alpha, keep in self.learned]
        return int(torch.stack(left).sum())
