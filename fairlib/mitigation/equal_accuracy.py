"""Equal accuracies: a penalty on the differences between groups' accuracies, through a surrogate ([B] Eq. 4)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from fairlib.data import GroupedDataset
from fairlib.mitigation.lagrangian import sizes_of
from fairlib.training import Batch, Constraint, Objective
from fairlib.training.group_losses import AccuracyDifference


@dataclass(frozen=True)
class EqualAccuracy(AccuracyDifference, Constraint):
    r"""Minimize :math:`J(B) + \nu \, \varphi(F(B))`, with :math:`F` the difference of the accuracies in the batch.

    It is the lower level of [B], and what its two-stage rivals train with. The weight is fixed: there is no multiplier.
    A mean over a batch is noisy, and :math:`E|F|` and :math:`E[F^2]` are positive by chance where :math:`F` is zero on
    average: large batches help.

    Args:
        weight, surrogate, temperature, penalty, tau, pairs, as_published: Of
            :class:`fairlib.training.group_losses.AccuracyDifference`.

    Raises:
        ValueError: If a setting is out of range or unknown; at the start of a training, if there is one group only.

    Source:
        [B] Section 4.3.1, corrected.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_without_gradient()

    def start(self, model: nn.Module, data: GroupedDataset, objective: Objective) -> _EqualAccuracyRun:
        return _EqualAccuracyRun(self, data)


class _EqualAccuracyRun:
    def __init__(self, settings: EqualAccuracy, data: GroupedDataset) -> None:
        self.settings, self.groups = settings, len(sizes_of(data, "equal accuracy"))
        self.seen: Tensor | float = 0.0
        self.batches = 0

    def loss(self, batch: Batch) -> Tensor:
        penalty = self.settings(batch.logits, batch.targets, batch.groups, self.groups)
        self.seen, self.batches = self.seen + penalty.detach(), self.batches + 1
        return batch.losses.mean() + penalty

    def end_epoch(self) -> dict[str, float]:
        mean, self.seen, self.batches = float(self.seen / self.batches), 0.0, 0
        return {"penalty": mean}
