"""Equalized odds: each group's rates of errors, given the true answer, are those of all."""

from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import torch
from torch import Tensor, nn

from fairlib.data import GroupedDataset
from fairlib.mitigation.lagrangian import Lagrangian, group_columns, sizes_of
from fairlib.network.evaluation import outputs
from fairlib.training import Batch, Constraint, ConstraintRun, Objective
from fairlib.training.group_losses import means_and_counts


@dataclass(frozen=True)
class EqualizedOdds(Lagrangian, Constraint):
    r"""Constrain :math:`E_{ya} = E_y` for every answer :math:`y` and group :math:`a`.

    :math:`E_{ya}` is the share of wrong answers among the samples of the group whose true answer is
    :math:`y`, the *cell* (y, a), and :math:`E_y` that among all samples with this answer. With two
    classes that makes the groups' true and false positive rates equal; with more it asks less than
    equalized odds, since *which* wrong answer is given may differ. Where an answer is rare in
    a group, the group's accuracy and mean loss hardly show that it is never given; here that is an
    error rate of 1.

    Rates cannot be differentiated, so that losses :math:`J` take their place in the descent (a
    proxy Lagrangian): each step descends on :math:`J(B) + \sum_{ya} \lambda_{ya} (J(B_{ya}) -
    J(B_y))`, and a cell absent from the batch :math:`B` adds nothing. After each epoch
    :math:`\lambda_{ya} \leftarrow \lambda_{ya} + s (E_{ya} - E_y)` with the rates of the *whole
    training set* in eval mode. With ``violation="absolute"`` absolute values of both gaps take the
    gaps' place.

    Args:
        step: Dual step :math:`s`, positive, 0.1 by default; there is one multiplier for each cell.
            Five epochs of finetuning on CelebA, hair by gender, took 0.1 to 0.3, and a step of 1
            was too large: as a signed multiplier grows, the descent raises the losses of cells that
            are well off.
        violation, tolerance, population, cap, restart: Arguments of
            :class:`fairlib.mitigation.lagrangian.Lagrangian`, within each answer. Multipliers of
            signed violations come to rest where the rates are equal, which the losses then need not
            be.

    Raises:
        TypeError: If a numeric argument is not a number.
        ValueError: If a setting is out of range or unknown; at the start of a training, if there is
            one group only, or a group lacks an answer that others have: it has no rate of errors
            there.

    Source:
        Hardt, Price and Srebro, Equality of opportunity in supervised learning (2016), for the
        constraint; Agarwal, Beygelzimer, Dudik, Langford and Wallach, A reductions approach to fair
        classification (2018), for multipliers of the rates by answer and group; Cotter, Jiang and
        Sridharan, Two-player games for efficient non-convex constrained optimization (2019), for
        rates that move the multipliers of losses.

    Example:
        Of sixty samples that look alike but for their group, ten of forty have class 1 in one group
        and fifteen of twenty in the other. Plain training answers 0 in one group and 1 in the
        other; under the constraint both get the same answer.

        >>> import torch, fairlib
        >>> groups = torch.tensor([0] * 40 + [1] * 20)
        >>> targets = [1] * 10 + [0] * 30 + [1] * 15 + [0] * 5
        >>> inputs = torch.nn.functional.one_hot(groups).double()
        >>> names = ["many", "few"]
        >>> data = fairlib.GroupedDataset(inputs, targets, groups, group_names=names)
        >>> model = torch.nn.Linear(2, 2).double()
        >>> settings = dict(epochs=40, lr=0.5, momentum=0, weight_decay=0, schedule="constant")
        >>> fairlib.fit(model, data, **settings)(torch.eye(2).double()).argmax(1).tolist()
        [0, 1]
        >>> fair = fairlib.fit(model, data, **settings, constraint=fairlib.EqualizedOdds(0.1))
        >>> fair(torch.eye(2).double()).argmax(1).tolist()
        [0, 0]
        >>> fairlib.history(fair).filter(like="multiplier[1").columns.tolist()
        ['multiplier[1 x many]', 'multiplier[1 x few]']
    """

    by_batch: ClassVar[bool] = True

    step: float = 0.1
    violation: str = "signed"

    def start(self, model: nn.Module, data: GroupedDataset, objective: Objective) -> ConstraintRun:
        return _EqualizedOddsRun(self, model, data)


class _EqualizedOddsRun:
    """Multipliers of one training, one for each cell; the groups of ``cells`` are the cells."""

    def __init__(self, settings: EqualizedOdds, model: nn.Module, data: GroupedDataset) -> None:
        self.settings, self.model, self.data = settings, model, data
        groups = sizes_of(data, "equalized odds")
        self.cells = data._replace(data.inputs, data.targets, self._codes(data))
        names = list(map(" x ".join, product(data.target_names, data.group_names)))
        self.cells.group_names = tuple(names)
        self.sizes = torch.bincount(self.cells.groups, minlength=len(names))
        # A class or a group that is named and has no sample at all is left out. A group that lacks
        # an answer which others have is refused: with no rate of errors it would seem to be fair.
        answers = torch.bincount(data.targets, minlength=data.num_classes)
        empty = (torch.outer(answers, groups).flatten() > 0) & (self.sizes == 0)
        if empty.any():
            some = ", ".join(names[code] for code in empty.nonzero()[:5])
            raise ValueError(
                "equalized odds needs samples of each answer in each group, and there are none for "
                f"{int(empty.sum())} of {len(names)} pairs: {some}"
            )
        self.multipliers = torch.zeros(len(names), device=data.groups.device)

    def _codes(self, samples: Batch | GroupedDataset) -> Tensor:
        return samples.targets * self.data.num_groups + samples.groups

    def _gaps(self, values: Tensor, samples: Batch | GroupedDataset) -> Tensor:
        """Compute each cell's mean minus that of all samples with its answer."""
        found = means_and_counts(values, self._codes(samples), len(self.sizes))
        rows = zip(*(each.split(self.data.num_groups) for each in found), strict=True)
        return torch.cat([self.settings.gaps(*row) for row in rows])

    def loss(self, batch: Batch) -> Tensor:
        gaps = self._gaps(batch.losses, batch)
        weights = self.settings.weights(self.multipliers.to(gaps), gaps.detach())
        return batch.losses.mean() + (weights * gaps).sum()

    def end_epoch(self) -> dict[str, float]:
        answers = outputs(self.model, self.data).argmax(1).to(self.data.targets.device)
        wrong = (answers != self.data.targets).to(self.multipliers)
        violations = self.settings.violations(self._gaps(wrong, self.data)) * (self.sizes > 0)
        self.multipliers = self.settings.dual_step(self.multipliers, violations)
        return group_columns(self.cells, violation=violations, multiplier=self.multipliers)
