"""Selective network linearization: a lasso on the gates, learned together with the weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fairlib._validation import check_number
from fairlib.data import GroupedDataset
from fairlib.network import gates
from fairlib.training import Batch, Constraint, LoopSettings, Objective, Training, carry_out
from fairlib.training.compressors import Settings

MASK_PHASE: dict[str, Any] = dict(
    epochs=2000, lr=1e-3, batch_size=128, schedule="constant", weight_decay=0.0
)
"""Default arguments of :func:`fairlib.fit` for the mask phase, by Adam, from SNL's scripts. It ends
when the budget is met."""


def snl(
    model: nn.Module,
    *,
    relus: int,
    data: GroupedDataset,
    objective: Objective,
    train: Settings,
    penalty: float = 1e-5,
    growth: float = 1.1,
    patience: int = 5,
    threshold: float = 0.01,
    exact: bool = False,
    granularity: str = "pixel",
    seed: int = 0,
) -> nn.Module:
    r"""Learn which ReLUs to keep, under a penalty that grows until few enough are left.

    Every gate computes :math:`\alpha \, \mathrm{ReLU}(x) + (1 - \alpha) x` with an unconstrained
    :math:`\alpha` that starts at 1. The mask phase minimizes

    .. math:: \ell(\theta, \alpha) + c \sum_j |\alpha_j|

    over all parameters. After each epoch the ReLUs with :math:`\alpha > t` are counted. If their
    number is no new minimum, and at least ``patience`` epochs have passed, :math:`c` is multiplied
    by ``growth``. The phase ends when at most ``relus`` are left; then :math:`\alpha` becomes 1 or
    0. Since the number falls in steps, fewer than ``relus`` are usually kept.

    The budget only decides when the phase ends: with one seed, a smaller budget follows the same
    path further. A model that was linearized before starts from the ReLUs that it has.

    Args:
        model: A model with gates; not changed.
        relus: Largest number of ReLUs to keep.
        data: The training set.
        objective: Per-sample losses :math:`\ell`; in SNL those of a distillation.
        train: Arguments of :func:`fairlib.fit` for the mask phase, which replace those of
            :data:`fairlib.linearization.MASK_PHASE`.
        penalty: Initial weight c of the penalty. A channel or a layer is penalized for each of its
            ReLUs.
        growth: Factor by which c grows, above 1.
        patience: Number of epochs before c may grow.
        threshold: Threshold t above which a ReLU counts as kept.
        exact: Whether to keep the ReLUs with the largest :math:`\alpha` at the end of the phase, of
            single pixels exactly ``relus``.
        granularity: What has an :math:`\alpha` of its own: a ``"pixel"``, a ``"channel"`` or a
            ``"layer"``.
        seed: Seed of the mask phase.

    Returns: A copy in eval mode with the weights of the mask phase and binary gates;
        :func:`fairlib.history` has the columns ``relus`` and ``penalty``, by epoch.

    Raises: ValueError: If a setting is out of range. RuntimeError: If more ReLUs than ``relus`` are
        left after the last epoch, and ``exact`` is False. DivergenceError: If the training
        diverges.

    Source: Cho, Joshi, Garg, Reagen, Hegde, Selective network linearization for efficient private
        inference (ICML 2022), and its code, which has the same defaults.
    """
    check_number("penalty", penalty, 0, low_open=True)
    check_number("growth", growth, 1, low_open=True)
    check_number("patience", patience, 0, whole=True)
    check_number("threshold", threshold, 0)
    soft = gates.with_gates(model, {})
    gates.relax(soft, granularity)
    lasso = _Lasso(penalty, growth, patience, threshold)
    settings = {**MASK_PHASE, "seed": seed, **train, "objective": objective, "constraint": lasso}
    loop = LoopSettings(optimizer="adam", stop=lambda row: row["relus"] <= relus)
    soft = carry_out(Training(soft, data, settings, loop))
    alphas = {
        name: gate.alpha.detach()
        for name, gate in gates.gates(soft).items()
        if gate.alpha is not None
    }
    keep = {
        name: (alpha > threshold) & gates.read_gates(soft)[name] for name, alpha in alphas.items()
    }
    left = sum(int(mask.sum()) for mask in keep.values())
    if exact:
        keep = gates.keep_relus(soft, alphas, relus)
    elif left > relus:
        advice = f"give more epochs, a larger penalty ({penalty}) or growth ({growth}), or take exact=True"
        found = (
            f"{left} ReLUs left after {settings['epochs']} epochs, more than the {relus} asked for"
        )
        raise RuntimeError(f"SNL has {found}; {advice}")
    gates.set_gates(soft, keep)
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
        """Compute the sum of the absolute alphas over the ReLUs that the gates still have."""
        first, *others = [(alpha.abs() * keep).sum() for alpha, keep in self.learned]
        return sum(others, first)

    def _count(self) -> int:
        with torch.no_grad():
            left = [
                ((alpha > self.settings.threshold) & keep).sum() for alpha, keep in self.learned
            ]
        return int(torch.stack(left).sum())
