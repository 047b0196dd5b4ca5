"""Group losses, and the difference of groups' accuracies as a penalty with a gradient."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fairlib._validation import check_number


def means_and_counts(values: Tensor, groups: Tensor, num_groups: int) -> tuple[Tensor, Tensor]:
    r"""Compute mean and size of each group, :math:`\frac{1}{|D_a|} \sum_{i \in D_a} v_i`.

    Args:
        values: Floating ``(N,)``; gradients flow through.
        groups: int64 ``(N,)`` codes below ``num_groups``.
        num_groups: Number of groups k.

    Returns:
        Means ``(k,)`` and counts int64 ``(k,)``. The mean of a group without samples is 0, with
        gradient 0.
    """
    # A matrix product sums in a fixed order. Scattering adds (index_add) would be shorter, but on
    # CUDA their order changes from run to run, and with it the last digits of every training.
    member = (groups[:, None] == torch.arange(num_groups, device=groups.device)).to(values.dtype)
    counts = member.sum(0)
    return (values @ member) / counts.clamp(min=1), counts.to(torch.int64)


def margins(logits: Tensor, targets: Tensor) -> Tensor:
    r"""Compute the margins :math:`z_y - \max_{j \ne y} z_j`, positive where a prediction is right.

    With two classes a margin is :math:`y f(x)` for labels :math:`y = \pm 1` and :math:`f = z_1 -
    z_0`.

    Args:
        logits: ``(N, C)``.
        targets: int64 ``(N,)``.

    Returns:
        Margins ``(N,)``, differentiable in the logits.
    """
    is_target = targets[:, None] == torch.arange(logits.shape[1], device=logits.device)
    best_other = logits.masked_fill(is_target, -torch.inf).amax(1)
    return logits.gather(1, targets[:, None]).squeeze(1) - best_other


@dataclass(frozen=True)
class AccuracyDifference:
    r"""A penalty on the largest difference between groups' accuracies, corrected from [B] Eq. 4.

    With margins :math:`r_i` (:func:`margins`) and the sigmoid :math:`u`, which smooths :math:`1(r >
    0)`, a group's accuracy is estimated by :math:`A_a = \frac{1}{|D_a|} \sum_{i \in D_a} u(r_i)`.
    The penalty is :math:`\nu (\max_a A_a - \min_a A_a)` over the groups that are present, with the
    weight :math:`\nu`.

    The sigmoid is *consistent*, :math:`u(z) + u(-z) = 1`. For two groups the difference :math:`A_+
    - A_-` is then :math:`\frac{1}{N} \sum_i u(s_i \, r_i) / P(S = s_i) - 1`, the printed formula
    with the sign :math:`s_i` of the group put back, where :math:`P(S = s)` is the group's share of
    the samples. A convex upper bound of :math:`1(r > 0)` is not consistent, and estimates no
    accuracy.

    Args:
        weight: Weight :math:`\nu` of the penalty, at least 0.
        as_published: Compute Eq. 4 as it is printed, times :math:`\nu`: :math:`\frac{1}{N} \sum_i
            u(r_i) / P(S_i) - 1`, where :math:`P` is the group's share of the samples at hand. It
            estimates the *sum* of two accuracies minus 1, has a sign, and is for two groups only.

    Raises:
        TypeError: If ``weight`` is not a number.
        ValueError: If ``weight`` is negative; when called with ``as_published``, if there are not
            two groups.

    Source:
        [B] Eqs. 2 to 4 and Section 4.3; Wu, Zhang, Wu (2019) for surrogates of constraints.
    """

    weight: float = 1.0
    as_published: bool = False

    def __post_init__(self) -> None:
        check_number("weight", self.weight, 0)

    def __call__(self, logits: Tensor, targets: Tensor, groups: Tensor, num_groups: int) -> Tensor:
        """Compute the penalty of N samples: a scalar, differentiable in the logits ``(N, C)``."""
        estimates = torch.sigmoid(margins(logits, targets))
        accuracies, counts = means_and_counts(estimates, groups, num_groups)
        if not self.as_published:
            # Filled, not selected: the number of selected groups would be read from a GPU. max()
            # and min() share a gradient among ties, so that equal accuracies are at rest.
            absent = counts == 0
            highest = accuracies.masked_fill(absent, -torch.inf).max()
            return self.weight * (highest - accuracies.masked_fill(absent, torch.inf).min())
        if num_groups != 2:
            raise ValueError(
                f"as_published=True (Eq. 4 of [B]) is about two groups, and these are {num_groups}"
            )
        return self.weight * (accuracies.sum() - 1)
