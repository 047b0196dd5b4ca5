"""Equal accuracies: a penalty on the difference between groups' accuracies ([B] Eq. 4)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fairlib.data import GroupedDataset
from fairlib.mitigation.lagrangian import sizes_of
from fairlib.network.evaluation import placement
from fairlib.training import Batch, Constraint, ConstraintRun, Objective
from fairlib.training.group_losses import AccuracyDifference


@dataclass(frozen=True)
class EqualAccuracy(AccuracyDifference, Constraint):
    r"""Minimize :math:`J(B) + \nu \, |F(B)|` with the difference F between groups' accuracies.

    This is the lower level of [B], and what the two-stage methods that it compares with train on.
    The weight :math:`\nu` is fixed: there is no multiplier. Large batches help, since an accuracy
    of a batch is noisy, and :math:`E|F|` is positive even where :math:`F` is zero on average.

    Args:
        weight, as_published: Arguments of
            :class:`fairlib.training.group_losses.AccuracyDifference`.

    Raises:
        TypeError: If ``weight`` is not a number.
        ValueError: If ``weight`` is negative; at the start of a training, if fewer than two groups
            have members.

    Source:
        [B] Section 4.3.1, corrected.

    Example:
        Nine samples of one group have class 0, one of another group has class 1, and all look
        alike: no answer is right for both. Plain training gives the classes 0.9 and 0.1; the
        penalty holds both at 0.5.

        >>> import torch, fairlib
        >>> few = [0] * 9 + [1]
        >>> data = fairlib.GroupedDataset(
        ...     torch.zeros(10, 1), few, few, group_names=["many", "few"]
        ... )
        >>> model = torch.nn.Linear(1, 2)
        >>> settings = dict(epochs=100, lr=0.5, momentum=0, weight_decay=0)
        >>> fair = fairlib.fit(model, data, **settings, constraint=fairlib.EqualAccuracy())
        >>> fair(torch.zeros(1, 1)).softmax(1).round(decimals=1).tolist()
        [[0.5, 0.5]]
    """

    by_batch: ClassVar[bool] = True

    def start(self, model: nn.Module, data: GroupedDataset, objective: Objective) -> ConstraintRun:
        return _EqualAccuracyRun(self, data, placement(model)[1])


class _EqualAccuracyRun:
    def __init__(self, penalty: EqualAccuracy, data: GroupedDataset, dtype: torch.dtype) -> None:
        self.penalty, self.num_groups = penalty, len(sizes_of(data, "equal accuracy"))
        # Penalties summed on the device, and their number: to read one after every step would make
        # a GPU wait for it.
        self.total, self.batches = torch.zeros(2, 1, dtype=dtype, device=data.groups.device)

    def loss(self, batch: Batch) -> Tensor:
        penalty = self.penalty(batch.logits, batch.targets, batch.groups, self.num_groups)
        self.total += penalty.detach()
        self.batches += 1
        return batch.losses.mean() + penalty

    def end_epoch(self) -> dict[str, float]:
        mean = float(self.total / self.batches)
        self.total.zero_()
        self.batches.zero_()
        return {"penalty": mean}
