"""Group DRO: minimize the loss of the worst group (Sagawa et al. 2020)."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from fairlib._validation import check_number
from fairlib.data import GroupedDataset
from fairlib.mitigation.lagrangian import group_columns, sizes_of
from fairlib.training import Batch, Constraint, ConstraintRun, Objective
from fairlib.training.group_losses import means_and_counts


@dataclass(frozen=True)
class GroupDRO(Constraint):
    r"""Minimize :math:`\max_a J(\theta; D_a)`, the loss of the worst group.

    It is a game between the weights and a distribution q over the groups.

    Each step descends on :math:`\sum_a q_a J(B_a)` with :math:`q_a \leftarrow q_a \exp(\eta
    J(B_a))`, normalized to a sum of 1; q is uniform at first. For a group absent from the batch
    :math:`q_a` changes by the normalization alone, and nothing is added to the loss.

    Args:
        step: Step :math:`\eta` of the distribution over the groups, positive.

    Raises:
        TypeError: If ``step`` is not a number.
        ValueError: If ``step`` is out of range; at the start of a training, if fewer than two
            groups have members.

    Source:
        Sagawa, Koh, Hashimoto and Liang, Distributionally robust neural networks for group shifts
        (2020): Algorithm 1, which samples one group for each step, here with all groups of a batch
        at once. The paper's group adjustments are left out.

    Example:
        Nine samples of one group have class 0, one of another group has class 1, and all look
        alike. The larger of the two groups' losses is least where both classes have the probability
        0.5; plain training gives 0.9 and 0.1.

        >>> import torch, fairlib
        >>> few = [0] * 9 + [1]
        >>> data = fairlib.GroupedDataset(
        ...     torch.zeros(10, 1), few, few, group_names=["many", "few"]
        ... )
        >>> model = torch.nn.Linear(1, 2)
        >>> settings = dict(epochs=100, lr=0.5, momentum=0, weight_decay=0)
        >>> fair = fairlib.fit(model, data, **settings, constraint=fairlib.GroupDRO(step=0.1))
        >>> fair(torch.zeros(1, 1)).softmax(1).round(decimals=1).tolist()
        [[0.5, 0.5]]
    """

    by_batch: ClassVar[bool] = True

    step: float = 0.01

    def __post_init__(self) -> None:
        check_number("step", self.step, 0, low_open=True)

    def start(self, model: nn.Module, data: GroupedDataset, objective: Objective) -> ConstraintRun:
        return _GroupDRORun(self, data)


class _GroupDRORun:
    def __init__(self, settings: GroupDRO, data: GroupedDataset) -> None:
        self.settings, self.data = settings, data
        # Logarithms, since a weight that has underflowed to 0 could not rise again.
        self.logs = (sizes_of(data, "group DRO") > 0).double().log()

    def loss(self, batch: Batch) -> Tensor:
        losses, _ = means_and_counts(batch.losses, batch.groups, self.data.num_groups)
        # An absent group has the loss 0: its weight stays, but for the normalization.
        self.logs.add_(self.settings.step * losses.detach().double())
        self.logs.copy_(self.logs.log_softmax(0))
        return (self.logs.exp().to(losses) * losses).sum()

    def end_epoch(self) -> dict[str, float]:
        return group_columns(self.data, weight=self.logs.exp())
