"""Accuracy gap: each group's excess drop in accuracy stays below a tolerance (CEAG)."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from fairlib._validation import check_number
from fairlib.data import GroupedDataset
from fairlib.diagnostics import group_performance
from fairlib.mitigation.lagrangian import Lagrangian, group_columns, sizes_of
from fairlib.training import Batch, Constraint, ConstraintRun, Objective
from fairlib.training.group_losses import means_and_counts


@dataclass(frozen=True)
class AccuracyGap(Constraint):
    r"""Constrain how much more accuracy a group loses than all samples do.

    The constraint is :math:`\psi_a \le \tau` for every group a, with :math:`\psi_a = (A_a^0 - A_a)
    - (A^0 - A)`, the drop of the group minus the drop of all samples.

    The multipliers follow the accuracies, which cannot be differentiated: after each step
    :math:`\lambda_a \leftarrow \max(\lambda_a + s (\psi_a - \tau), 0)`, and with ``restart`` 0
    where :math:`\psi_a \le \tau`. The weights descend on :math:`J(B) + \sum_a \lambda_a (J(B_a) -
    J(B))`, where losses replace the accuracies. Accuracies are those of the last ``memory`` samples
    of each group at the steps that trained on them, so that a group that is rare in batches has an
    estimate from more than a few samples. A group absent from a batch keeps its estimate and its
    multiplier; a group not met yet has no violation.

    Args:
        step: Dual step :math:`s`, positive.
        tolerance: Tolerance :math:`\tau`, at least 0.
        memory: Number of samples of each group that are remembered, at least 1.
        restart: Return a multiplier to 0 when its constraint is met.
        reference: Accuracies :math:`A_a^0` of the groups before compression, on the training set,
            in the order of the group codes. :meth:`relative_to` sets them from a model, as
            :func:`fairlib.study` does from the dense one. By default all are 1, so that the
            constraint is on the gap :math:`A - A_a` itself.

    Raises:
        TypeError: If a numeric argument is not a number.
        ValueError: If a setting is out of range; at the start of a training, if fewer than two
            groups have members, or if the number of reference accuracies is not that of the groups.

    Source:
        Hashemizadeh, Ramirez, Sukumaran, Farnadi, Lacoste-Julien and Gallego-Posada, Balancing Act:
        constraining disparate impact in sparse models (2024), whose dual optimizer is a setting;
        here it is projected ascent.

    Example:
        A model is right about the 90 samples of one group and wrong about the 10 of the other. A
        few steps of plain training do not help the 10, which hardly count in the loss; with the
        constraint they do.

        >>> import torch, fairlib
        >>> from fairlib.diagnostics import group_performance
        >>> signs = torch.tensor([1.0, -1.0]).repeat(50)
        >>> groups = torch.tensor([0] * 90 + [1] * 10)
        >>> inputs = torch.nn.functional.one_hot(groups) * signs[:, None]  # A feature a group.
        >>> names = ["many", "few"]
        >>> data = fairlib.GroupedDataset(inputs, (signs > 0).long(), groups, group_names=names)
        >>> model = torch.nn.Linear(2, 2, bias=False)
        >>> model.weight.data = torch.tensor([[-1.0, 1.0], [1.0, -1.0]])
        >>> group_performance(model, data)["accuracy"].tolist()
        [1.0, 0.0]
        >>> settings = dict(epochs=10, lr=0.5, batch_size=100, momentum=0, schedule="constant")
        >>> group_performance(fairlib.fit(model, data, **settings), data)["accuracy"].tolist()
        [1.0, 0.0]
        >>> fair = fairlib.fit(model, data, **settings, constraint=fairlib.AccuracyGap(step=0.1))
        >>> group_performance(fair, data)["accuracy"].tolist()
        [1.0, 1.0]

        An accuracy that the dense model never had is not counted as lost by compression:

        >>> fairlib.AccuracyGap().relative_to(model, data).reference
        (1.0, 0.0)
    """

    by_batch: ClassVar[bool] = True

    step: float = 0.01
    tolerance: float = 0.01
    memory: int = 40
    restart: bool = True
    reference: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        self._lagrangian()
        check_number("memory", self.memory, 1, whole=True)
        if self.reference is not None and not all(
            0 <= accuracy <= 1 for accuracy in self.reference
        ):
            raise ValueError(f"reference must hold accuracies in [0, 1], got {self.reference}")

    def relative_to(self, dense: nn.Module, data: GroupedDataset) -> Constraint:
        """Return the constraint with the dense model's accuracies as reference, if it has none."""
        if self.reference is not None:
            return self
        accuracies = group_performance(dense, data)["accuracy"].fillna(0)
        return replace(self, reference=tuple(accuracies))

    def start(self, model: nn.Module, data: GroupedDataset, objective: Objective) -> ConstraintRun:
        return _AccuracyGapRun(self, data)

    def _lagrangian(self) -> Lagrangian:
        return Lagrangian(self.step, "one-sided", self.tolerance, restart=self.restart)


class _AccuracyGapRun:
    def __init__(self, settings: AccuracyGap, data: GroupedDataset) -> None:
        self.lagrangian, self.data = settings._lagrangian(), data
        self.sizes = sizes_of(data, "an accuracy gap")
        reference = (1.0,) * data.num_groups if settings.reference is None else settings.reference
        if len(reference) != data.num_groups:
            raise ValueError(
                f"{len(reference)} reference accuracies for {data.num_groups} groups; "
                "give one for each"
            )
        device = data.groups.device
        self.reference = torch.tensor(reference, device=device)
        self.multipliers = torch.zeros(data.num_groups, device=device)
        # The latest results of each group, 1 where right, the oldest first; NaN in unused places.
        self.memory = torch.full((data.num_groups, settings.memory), torch.nan, device=device)

    def loss(self, batch: Batch) -> Tensor:
        means, counts = means_and_counts(batch.losses, batch.groups, self.data.num_groups)
        gaps = self.lagrangian.gaps(means, counts)
        loss = batch.losses.mean() + (self.multipliers.to(gaps, copy=True) * gaps).sum()
        # The dual step comes after the loss is formed: this batch is descended on with the
        # multipliers that earlier batches led to.
        self._remember(batch)
        violations = self.lagrangian.violations(self._gaps())
        after = self.lagrangian.dual_step(self.multipliers, violations)
        # A group that this batch lacks has learned nothing new about its accuracy. Stepping all the
        # same would count its last estimate again and again, once for each batch without it.
        self.multipliers.copy_(torch.where(counts > 0, after, self.multipliers))
        return loss

    def _remember(self, batch: Batch) -> None:
        correct = (batch.logits.argmax(1) == batch.targets).to(self.memory)
        groups = torch.arange(self.data.num_groups, device=correct.device)[:, None]
        latest = correct.expand(len(groups), -1).masked_fill(batch.groups != groups, torch.nan)
        results = torch.cat([self.memory, latest], 1)
        # A stable sort moves unused places to the front and leaves the rest in order. To select
        # each group's own results would read their number from a GPU in every step.
        order = results.isnan().logical_not().to(torch.uint8).argsort(dim=1, stable=True)
        self.memory.copy_(results.gather(1, order[:, -self.memory.shape[1] :]))

    def _gaps(self) -> Tensor:
        """Compute the drop of each group minus the drop of all, ``(k,)``."""
        # Groups that were not met yet have no estimate: with the size 0 they are left out of the
        # mean over all, where their NaN would spoil the gaps of the others.
        met = ~self.memory.isnan().all(1)
        drops = (self.reference - self.memory.nanmean(1)).masked_fill(~met, 0)
        return self.lagrangian.gaps(drops, self.sizes * met)

    def end_epoch(self) -> dict[str, float]:
        violations = torch.where(self.sizes > 0, self.lagrangian.violations(self._gaps()), 0.0)
        return group_columns(self.data, violation=violations, multiplier=self.multipliers)
