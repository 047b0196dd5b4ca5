"""Equal losses: each group's loss is constrained to that of the population ([T] Eq. 8)."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from fairlib._validation import lookup
from fairlib.data import GroupedDataset
from fairlib.mitigation.lagrangian import Lagrangian, group_columns, sizes_of
from fairlib.network.evaluation import evaluation_mode, passes, placement
from fairlib.training import Batch, Constraint, ConstraintRun, Objective
from fairlib.training.distillation import Distillation
from fairlib.training.group_losses import means_and_counts


@dataclass(frozen=True)
class EqualLoss(Lagrangian, Constraint):
    r"""Constrain :math:`J(\theta; D_a) = J(\theta; D)` for every group :math:`a`.

    Each step descends on :math:`J(B) + \sum_a \lambda_a \nu_a`, where :math:`\nu_a` is the
    violation of the batch :math:`B`, by default :math:`|J(B_a) - J(B)|`; a group absent from it
    adds nothing. After each epoch the multipliers move by :math:`\lambda_a \leftarrow \lambda_a + s
    \, \nu_a`, by default with the violations of the *whole training set* in eval mode. Sums of
    absolute batch violations, which some code uses, grow with the noise of small groups instead.

    Args:
        step: Dual step :math:`s`, positive. [T] B.2 uses 0.001. Too small a step has no effect, too
            large a step destroys accuracy. When training from scratch, start with a product of step
            and epochs between 0.1 and 0.5; finetuning with a small learning rate, where violations
            are small, still worked with a product of ten on the digits.
        violation, tolerance, population, cap, restart: Arguments of
            :class:`fairlib.mitigation.lagrangian.Lagrangian`.
        dual: Violations that the multipliers follow: those of the ``"full"`` training set in eval
            mode after the epoch, or ``"batch"``, the mean over the batches of the epoch that
            contain the group (Fioretto et al.).
        as_published: Compute what the released code of [D] does. Its penalty is
            detached, so that it has no gradient; the divergence from a teacher is averaged over the
            classes, not summed, which divides its weight by their number; multipliers grow by the
            *sum* over the batches of absolute batch violations, without those of groups with a
            single sample in a batch. All other settings but ``step`` stay at their defaults. In the
            history ``loss`` is the mean of the objective as given, and ``objective`` is what was
            descended on.

    Raises:
        TypeError: If a numeric argument is not a number.
        ValueError: If a setting is out of range or unknown; at the start of a training, if there is
            one group only.

    Source:
        [T] Eq. 8 and section 6; Fioretto et al. (2020) for the dual method. With a teacher as the
        objective (:class:`fairlib.training.distillation.Distillation`) it is Algorithm 1 of [D].

    Example:
        Ten samples that look alike: nine of one group have class 0, and one of another group has
        class 1. Plain training predicts 0.9 and 0.1, which costs the nine 0.1 nats and the one 2.3.
        The losses are equal at 0.5 and 0.5.

        >>> import torch, fairlib
        >>> few = [0] * 9 + [1]
        >>> data = fairlib.GroupedDataset(
        ...     torch.zeros(10, 1), few, few, group_names=["many", "few"]
        ... )
        >>> model = torch.nn.Linear(1, 2)
        >>> settings = dict(epochs=100, lr=0.5, momentum=0, weight_decay=0)
        >>> fair = fairlib.fit(model, data, **settings, constraint=fairlib.EqualLoss(step=0.1))
        >>> fair(torch.zeros(1, 1)).softmax(1).round(decimals=1).tolist()
        [[0.5, 0.5]]
        >>> last = fairlib.history(fair).iloc[-1]
        >>> bool(last["multiplier[few]"] > last["multiplier[many]"])  # The few count for more.
        True
    """

    by_batch: ClassVar[bool] = True

    dual: str = "full"
    as_published: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        lookup("estimate", self.dual, dict.fromkeys(("full", "batch")))
        others = [
            name
            for name, value in vars(self).items()
            if name not in ("step", "as_published") and value != getattr(EqualLoss, name)
        ]
        if self.as_published and others:
            raise ValueError(
                f"as_published=True has no {', '.join(others)}: all but step must be the default"
            )

    def start(self, model: nn.Module, data: GroupedDataset, objective: Objective) -> ConstraintRun:
        if not self.as_published:
            return _EqualLossRun(self, model, data, objective)
        if isinstance(objective, Distillation):
            objective = replace(objective, reduction="elements")
        return _PublishedRun(self, model, data, objective)


class _EqualLossRun:
    """Multipliers of one training: they weigh the groups' gaps, and grow after each epoch."""

    def __init__(
        self, settings: EqualLoss, model: nn.Module, data: GroupedDataset, objective: Objective
    ) -> None:
        self.settings, self.model, self.data, self.objective = settings, model, data, objective
        self.sizes = sizes_of(data, "equal losses")
        self.multipliers = torch.zeros(data.num_groups, device=data.groups.device)
        # Violations summed over the batches of an epoch, and the number of batches with the group.
        self.sums, self.batches = (torch.zeros_like(self.multipliers) for _ in range(2))

    def loss(self, batch: Batch) -> Tensor:
        means, counts = means_and_counts(batch.losses, batch.groups, self.data.num_groups)
        gaps = self.settings.gaps(means, counts)
        if self.settings.dual == "batch":
            self.sums += self.settings.violations(gaps.detach()).masked_fill(counts == 0, 0)
            self.batches += counts > 0
        weights = self.settings.weights(self.multipliers.to(gaps), gaps.detach())
        return batch.losses.mean() + (weights * gaps).sum()

    def end_epoch(self) -> dict[str, float]:
        violations = torch.where(self.sizes > 0, self._violations(), 0.0)
        self.multipliers = self.settings.dual_step(self.multipliers, violations)
        self.sums.zero_()
        self.batches.zero_()
        return group_columns(self.data, violation=violations, multiplier=self.multipliers)

    def _violations(self) -> Tensor:
        # The whole training set, by default: in a batch of 30 a small group has one member or none.
        # The absolute gap of so few samples is mostly noise, which has a positive mean, and the
        # multiplier would grow by it even where the groups' losses are equal.
        if self.settings.dual == "batch":
            return self.sums / self.batches.clamp(min=1)
        return self.settings.violations(self.settings.gaps(self._losses(), self.sizes))

    def _losses(self) -> Tensor:
        """Mean objective of each group in the training set in eval mode, ``(k,)``."""
        device, dtype = placement(self.model)
        losses = []
        with evaluation_mode(self.model), torch.no_grad():
            for index in passes(self.data, device):
                inputs = self.data.batch(index, dtype=dtype, device=device)
                losses.append(self.objective(inputs, self.model(inputs), self.data.targets[index]))
        return means_and_counts(torch.cat(losses), self.data.groups, self.data.num_groups)[0]


class _PublishedRun(_EqualLossRun):
    """Compute as the released code of [D] does, instead of its Algorithm 1."""

    def loss(self, batch: Batch) -> Tensor:
        losses = self.objective(batch.inputs, batch.logits, batch.targets)
        # Detached, as the released code detaches it: the penalty changes the reported objective and
        # no gradient, so that the multipliers do nothing. Corrected in _EqualLossRun.
        means, counts = means_and_counts(losses.detach(), batch.groups, self.data.num_groups)
        violations = (means - losses.detach().mean()).abs().masked_fill(counts <= 1, 0)
        self.sums += violations
        return losses.mean() + (self.multipliers.to(violations) * violations).sum()

    def _violations(self) -> Tensor:
        return self.sums
