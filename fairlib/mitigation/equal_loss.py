"""Equal losses: every group's loss is held to the loss of the population ([T] Eq. 8), by Lagrangian duality."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor, nn

from fairlib._validation import check_number, lookup
from fairlib.data import GroupedDataset
from fairlib.mitigation.lagrangian import Lagrangian, MovingAverage, named, sizes_of
from fairlib.network.evaluation import evaluation_mode, passes, placement
from fairlib.training import Batch, Constraint, Objective
from fairlib.training.distillation import Distillation
from fairlib.training.group_losses import means_and_counts

ESTIMATES = ("batch", "average", "full")


@dataclass(frozen=True)
class EqualLoss(Lagrangian, Constraint):
    r"""Constrain :math:`J(\theta; D_a) = J(\theta; D)` for every group :math:`a`.

    Each step descends on :math:`J(B) + \sum_a \lambda_a \nu_a`, where :math:`\nu_a` is the violation of the batch
    :math:`B`, by default :math:`|J(B_a) - J(B)|`; a group absent from it adds nothing. After each epoch the
    multipliers move by :math:`\lambda_a \leftarrow \lambda_a + s \, \nu_a`, by default with the violations of the
    *whole training set* in eval mode. Sums of absolute batch violations, which some code uses, grow with the noise of
    small groups instead.

    Args:
        step: The dual step :math:`s`, positive. [T] B.2 uses 0.001. Too small does nothing, too large destroys
            accuracy. In a training from scratch a product of step and epochs between 0.1 and 0.5 is a start; a
            finetuning with a small learning rate, whose violations are small, bore a product of ten on the digits.
        violation, tolerance, population, cap, restart: Of :class:`fairlib.mitigation.lagrangian.Lagrangian`.
        primal: Which loss of a group says whether, and to which side, it violates the constraint, and so which way an
            absolute violation pushes: that of the ``"batch"``, its moving ``"average"``, or the one in the ``"full"``
            training set after the epoch before. What is differentiated is always that of the batch. The two others lag
            behind the weights, and overshoot where multipliers are large. Without effect on signed and one-sided
            violations, whose gradient does not depend on it.
        dual: What the multipliers follow: the ``"full"`` training set in eval mode, the moving ``"average"`` at the end
            of an epoch, or the mean of the violations of each ``"batch"`` that had the group (Fioretto et al.).
        decay: Share of the old value in a moving average, by the step.
        as_published: What the released code of [D] computes instead. Its penalty is detached, so that it has no
            gradient; the divergence from a teacher is averaged over the classes, not summed, which divides its weight
            by their number; multipliers grow by the *sum* over the batches of absolute batch violations, without those
            of groups with a single sample in a batch. All other settings but ``step`` stay at their defaults. The
            history's ``loss`` is that of the objective as given; ``objective`` is what was descended on.

    Raises:
        ValueError: If a setting is out of range or unknown; at the start of a training, if there is one group only.

    Source:
        [T] Eq. 8 and section 6; Fioretto et al. (2020) for the dual method. With a teacher as the objective
        (:class:`fairlib.training.distillation.Distillation`) it is Algorithm 1 of [D].
    """

    primal: str = "batch"
    dual: str = "full"
    decay: float = 0.9
    as_published: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.as_published:
            free = ("step", "as_published")
            changed = [f.name for f in fields(self) if f.name not in free and getattr(self, f.name) != f.default]
            if changed:
                raise ValueError(
                    f"as_published=True has no {', '.join(changed)}: the released code of [D] has no choice"
                )
        for estimate in (self.primal, self.dual):
            lookup("estimate", estimate, dict.fromkeys(ESTIMATES))
        check_number("decay", self.decay, 0, 1)

    def start(self, model: nn.Module, data: GroupedDataset, objective: Objective) -> _EqualLossRun | _PublishedRun:
        if self.as_published:
            return _PublishedRun(self.step, data, objective)
        return _EqualLossRun(self, model, data, objective)


class _EqualLossRun:
    def __init__(self, settings: EqualLoss, model: nn.Module, data: GroupedDataset, objective: Objective) -> None:
        self.settings, self.model, self.data, self.objective = settings, model, data, objective
        self.sizes = sizes_of(data, "equal losses")
        self.multipliers = torch.zeros(data.num_groups, device=data.groups.device)
        self.wanted = {settings.primal, settings.dual}
        believed = settings.primal == "full" or "average" in self.wanted  # Before the first epoch ends.
        self.full = self._losses() if believed else self.multipliers
        self.average = MovingAverage(self.full, settings.decay)
        self.seen, self.batches = torch.zeros_like(self.multipliers), torch.zeros_like(self.multipliers)

    def loss(self, batch: Batch) -> Tensor:
        means, counts = means_and_counts(batch.losses, batch.groups, self.data.num_groups)
        gaps = self.settings.gaps(means, counts)
        self.average.update(means, counts > 0)
        self.seen += torch.where(counts > 0, self.settings.violations(gaps.detach()), 0.0)
        self.batches += counts > 0
        believed = gaps.detach() if self.settings.primal == "batch" else self._gaps(self.settings.primal).to(gaps)
        weights = self.settings.weights(self.multipliers.to(gaps), believed)
        return batch.losses.mean() + (weights * gaps).sum()

    def _gaps(self, estimate: str) -> Tensor:
        """In the full training set, or of the moving averages."""
        return self.settings.gaps(self.full if estimate == "full" else self.average.values, self.sizes)

    def end_epoch(self) -> dict[str, float]:
        if "full" in self.wanted:
            self.full = self._losses()
        if self.settings.dual == "batch":
            violations = self.seen / self.batches.clamp(min=1)
        else:
            violations = self.settings.violations(self._gaps(self.settings.dual))
        violations = torch.where(self.sizes > 0, violations, 0.0)
        self.multipliers = self.settings.follow(self.multipliers, violations)
        self.seen, self.batches = torch.zeros_like(self.seen), torch.zeros_like(self.batches)
        return named(self.data, violation=violations, multiplier=self.multipliers)

    def _losses(self) -> Tensor:
        """The mean objective of every group in the training set, ``(k,)``, in eval mode."""
        device, dtype = placement(self.model)
        losses = []
        with evaluation_mode(self.model), torch.no_grad():
            for index in passes(self.data, device):
                inputs = self.data.batch(index, dtype=dtype, device=device)
                losses.append(self.objective(inputs, self.model(inputs), self.data.targets[index]))
        means, _ = means_and_counts(torch.cat(losses), self.data.groups, self.data.num_groups)
        return means


class _PublishedRun:
    """What the released code of [D] computes in the place of its Algorithm 1."""

    def __init__(self, step: float, data: GroupedDataset, objective: Objective) -> None:
        self.step, self.data, self.objective = step, data, objective
        if isinstance(objective, Distillation):
            self.objective = replace(objective, reduction="elements")
        self.multipliers = torch.zeros(len(sizes_of(data, "equal losses")), device=data.groups.device)
        self.sums = torch.zeros_like(self.multipliers)

    def loss(self, batch: Batch) -> Tensor:
        losses = self.objective(batch.inputs, batch.logits, batch.targets)
        means, counts = means_and_counts(losses.detach(), batch.groups, self.data.num_groups)
        violations = torch.where(counts > 1, (means - losses.detach().mean()).abs(), 0.0)
        self.sums += violations
        return losses.mean() + (self.multipliers.to(violations) * violations).sum()

    def end_epoch(self) -> dict[str, float]:
        self.multipliers = self.multipliers + self.step * self.sums
        seen = named(self.data, violation=self.sums, multiplier=self.multipliers)
        self.sums = torch.zeros_like(self.sums)
        return seen
