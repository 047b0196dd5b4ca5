"""Equal losses: every group's loss is held to the loss of all ([T] Eq. 8), by Lagrangian duality."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fairlib._validation import check_number
from fairlib.data import GroupedDataset
from fairlib.diagnostics.evaluation import evaluation_mode, placement
from fairlib.groups import group_means
from fairlib.training import Batch, Objective


@dataclass(frozen=True)
class EqualLoss:
    r"""Constrain :math:`J(\theta; D_a) = J(\theta; D)` for every group :math:`a`.

    Each step descends on :math:`J(B) + \sum_a \lambda_a |J(B_a) - J(B)|`, where :math:`B` is the batch; a group absent
    from it adds nothing. After each epoch the multipliers, zero at first, rise by
    :math:`\lambda_a \leftarrow \lambda_a + s\,|J(\theta; D_a) - J(\theta; D)|`, with the violations of the *whole
    training set* in eval mode. Sums of batch violations, which some code uses, grow with the noise of small groups
    instead.

    With absolute violations the multipliers never fall.

    Args:
        step: The dual step :math:`s`, positive. [T] B.2 uses 0.001. Too small does nothing, too large destroys
            accuracy; a product of step and epochs between 0.1 and 0.5 is a start.

    Raises:
        ValueError: If ``step`` is not positive; at the start of a training, if there is one group only.

    Source:
        [T] Eq. 8 and section 6; Fioretto et al. (2020) for the dual method.
    """

    step: float = 0.02

    def __post_init__(self):
        check_number("step", self.step, 0, beyond=True)

    def start(self, model: nn.Module, data: GroupedDataset, objective: Objective) -> _EqualLossRun:
        if data.num_groups < 2:
            raise ValueError(f"equal losses need at least two groups, got {', '.join(data.group_names)}")
        return _EqualLossRun(self.step, model, data, objective)


class _EqualLossRun:
    def __init__(self, step: float, model: nn.Module, data: GroupedDataset, objective: Objective):
        self.step, self.model, self.data, self.objective = step, model, data, objective
        self.multipliers = torch.zeros(data.num_groups, device=data.groups.device)

    def loss(self, batch: Batch) -> Tensor:
        means, counts = group_means(batch.losses, batch.groups, self.data.num_groups)
        violations = torch.where(counts > 0, (means - batch.losses.mean()).abs(), 0.0)
        return batch.losses.mean() + (self.multipliers.to(violations) * violations).sum()

    def end_epoch(self) -> dict[str, float]:
        losses = self._losses()
        means, counts = group_means(losses, self.data.groups, self.data.num_groups)
        violations = torch.where(counts > 0, (means - losses.mean()).abs(), 0.0)
        self.multipliers += self.step * violations
        return {
            f"{what}[{name}]": float(value)
            for what, values in (("violation", violations), ("multiplier", self.multipliers))
            for name, value in zip(self.data.group_names, values, strict=True)
        }

    def _losses(self) -> Tensor:
        """The objective on every training sample, in eval mode."""
        device, dtype = placement(self.model)
        losses = []
        with evaluation_mode(self.model), torch.no_grad():
            for index in torch.arange(len(self.data), device=device).split(1024):
                inputs = self.data.batch(index, dtype=dtype, device=device)
                losses.append(self.objective(inputs, self.model(inputs), self.data.targets[index]))
        return torch.cat(losses)
