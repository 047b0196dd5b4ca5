"""Reweighting: every group counts the same, whatever its size."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from fairlib._validation import check_number
from fairlib.data import GroupedDataset
from fairlib.mitigation.lagrangian import group_columns, sizes_of
from fairlib.training import Batch, Constraint, ConstraintRun, Objective


@dataclass(frozen=True)
class Reweight(Constraint):
    r"""Minimize :math:`\frac{1}{N} \sum_i w_{a(i)} \ell_i` with :math:`w_a \propto n_a^{-p}`.

    The mean weight is 1. With :math:`p = 1` that is :math:`\frac{1}{k} \sum_a J(\theta; D_a)`, what
    upsampling all k groups to one size minimizes in expectation; with :math:`p = 0` it is the plain
    loss. The loss of a batch is the mean of its weighted losses.

    Args:
        power: Exponent :math:`p`, at least 0.

    Raises:
        TypeError: If ``power`` is not a number.
        ValueError: If ``power`` is negative; at the start of a training, if fewer than two groups
            have members.

    Source:
        Inverse-probability weights, textbook; as a baseline for group robustness, Sagawa et al.
        (2020).

    Example:
        Nine samples of one group have class 0, one of another group has class 1, and all look
        alike. The one counts as much as the nine together, so that both classes get the probability
        0.5, where plain training gives 0.9 and 0.1.

        >>> import torch, fairlib
        >>> few = [0] * 9 + [1]
        >>> data = fairlib.GroupedDataset(
        ...     torch.zeros(10, 1), few, few, group_names=["many", "few"]
        ... )
        >>> model = torch.nn.Linear(1, 2)
        >>> settings = dict(epochs=100, lr=0.5, momentum=0, weight_decay=0)
        >>> fair = fairlib.fit(model, data, **settings, constraint=fairlib.Reweight())
        >>> fair(torch.zeros(1, 1)).softmax(1).round(decimals=1).tolist()
        [[0.5, 0.5]]
        >>> last = fairlib.history(fair).iloc[-1]
        >>> last[["weight[many]", "weight[few]"]].round(2).tolist()
        [0.56, 5.0]
    """

    by_batch: ClassVar[bool] = True

    power: float = 1.0

    def __post_init__(self) -> None:
        check_number("power", self.power, 0)

    def start(self, model: nn.Module, data: GroupedDataset, objective: Objective) -> ConstraintRun:
        return _ReweightRun(self, data)


class _ReweightRun:
    def __init__(self, settings: Reweight, data: GroupedDataset) -> None:
        self.data = data
        sizes = sizes_of(data, "reweighting")
        raw = sizes.clamp(min=1).double() ** -settings.power * (sizes > 0)
        self.weights = (raw * len(data) / (raw * sizes).sum()).float()

    def loss(self, batch: Batch) -> Tensor:
        return (self.weights.to(batch.losses)[batch.groups] * batch.losses).mean()

    def end_epoch(self) -> dict[str, float]:
        return group_columns(self.data, weight=self.weights)
