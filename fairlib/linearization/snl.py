"""Selective network linearization: a lasso on the gates, learned together with the weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

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

ALPHA_THRESHOLD = 0.01
"""Value of alpha above which a ReLU counts as kept, from SNL's scripts."""


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
    exact: bool = False,
    seed: int = 0,
) -> nn.Module:
    r"""Learn which ReLUs to keep, under a penalty that grows until few enough are left.

    Every gate computes :math:`\alpha \, \mathrm{ReLU}(x) + (1 - \alpha) x` with an unconstrained
    :math:`\alpha` that starts at 1. The mask phase minimizes

    .. math:: \ell(\theta, \alpha) + c \sum_j |\alpha_j|

    over all parameters. After each epoch the ReLUs with :math:`\alpha > 0.01` are counted. If their
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
        penalty: Initial weight c of the penalty.
        growth: Factor by which c grows, above 1.
        patience: Number of epochs before c may grow.
        exact: Keep exactly the ``relus`` ReLUs with the largest :math:`\alpha` at the end of the
            phase, also if more or fewer are left.
        seed: Seed of the mask phase.

    Returns:
        A copy in eval mode with the weights of the mask phase and binary gates;
        :func:`fairlib.history` has the columns ``relus`` and ``penalty``, by epoch.

    Raises:
        ValueError: If a setting is out of range.
        RuntimeError: If more ReLUs than ``relus`` are left after the last epoch, and ``exact`` is
            False.
        DivergenceError: If the training diverges.

    Source:
        Cho, Joshi, Garg, Reagen, Hegde, Selective network linearization for efficient private
        inference (ICML 2022), and its code, which has the same defaults.
    """
    check_number("penalty", penalty, 0, low_open=True)
    check_number("growth", growth, 1, low_open=True)
    check_number("patience", patience, 0, whole=True)
    soft = gates.with_gates(model, {})
    gates.relax(soft)
    settings = {**MASK_PHASE, "seed": seed, **train, "objective": objective}
    settings["constraint"] = Lasso(penalty, growth, patience)
    loop = LoopSettings(optimizer="adam", stop=lambda row: row["relus"] <= relus)
    soft = carry_out(Training(soft, data, settings, loop))
    # A ReLU that an earlier linearization removed has the mask 0, whatever its alpha has become.
    masks = gates.read_gates(soft)
    alphas = {name: alpha.detach() for name, (alpha, _) in _learned(soft).items()}
    keep = {name: (alpha > ALPHA_THRESHOLD) & masks[name] for name, alpha in alphas.items()}
    left = sum(int(mask.sum()) for mask in keep.values())
    if exact:
        keep = gates.keep_relus(soft, alphas, relus)
    elif left > relus:
        raise RuntimeError(
            f"SNL has {left} ReLUs left after {settings['epochs']} epochs, more than the {relus} "
            f"asked for; give more epochs, a larger penalty ({penalty}) or growth ({growth}), or "
            "take exact=True"
        )
    gates.set_gates(soft, keep)
    return soft


def _learned(model: nn.Module) -> dict[str, tuple[nn.Parameter, Tensor]]:
    """List alpha and mask of the gates that are being learned."""
    by_name = gates.gates(model).items()
    return {name: (gate.alpha, gate.keep) for name, gate in by_name if gate.alpha is not None}


@dataclass
class Lasso(Constraint):
    """The penalty on the gates, as a constraint of :func:`fairlib.fit`, for one training.

    Args:
        penalty: Weight c of the penalty; it grows.
        growth: Factor by which it grows.
        patience: Number of epochs before it may grow.
    """

    penalty: float
    growth: float
    patience: int

    by_tensors: ClassVar[bool] = True

    def start(self, model: nn.Module, data: GroupedDataset, objective: Objective) -> _LassoRun:
        return _LassoRun(self, model)


class _LassoRun:
    """The penalty of one training, which grows."""

    def __init__(self, settings: Lasso, model: nn.Module) -> None:
        self.settings, self.learned = settings, list(_learned(model).values())
        self.fewest, self.epoch = self._count(), 0
        first = self.learned[0][0]
        self.weight = torch.tensor(settings.penalty, dtype=torch.float64, device=first.device)

    def loss(self, batch: Batch) -> Tensor:
        # Over the ReLUs that the gates still have: those removed earlier have no effect on the
        # output, and their alphas would only take part in the penalty.
        first, *others = [(alpha.abs() * keep).sum() for alpha, keep in self.learned]
        norm = sum(others, first)
        return batch.losses.mean() + self.weight.to(norm) * norm

    def end_epoch(self) -> dict[str, float]:
        self.epoch += 1
        relus, penalty = self._count(), float(self.weight)
        # The penalty grows only while it is too weak to remove ReLUs. One that grew every epoch
        # would soon be so large that thousands fall below the threshold at once, and the budget is
        # missed by far. Patience spares the first epochs, in which alphas have hardly moved from 1.
        if relus < self.fewest:
            self.fewest = relus
        elif self.epoch >= self.settings.patience:
            self.weight *= self.settings.growth
        return {"relus": float(relus), "penalty": penalty}

    def _count(self) -> int:
        with torch.no_grad():
            left = [((alpha > ALPHA_THRESHOLD) & keep).sum() for alpha, keep in self.learned]
        return int(torch.stack(left).sum())
