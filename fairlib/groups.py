"""Group losses that can be differentiated."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot


def group_means(values: Tensor, groups: Tensor, num_groups: int) -> tuple[Tensor, Tensor]:
    r"""The mean of ``values`` over each group, :math:`\frac{1}{|D_a|} \sum_{i \in D_a} v_i`.

    Args:
        values: Floating ``(N,)``; gradients flow through.
        groups: int64 ``(N,)`` codes below ``num_groups``.
        num_groups: Number of groups k.

    Returns:
        Means ``(k,)`` and counts ``(k,)``. The mean of a group without samples is 0, with gradient 0; its count tells.
    """
    member = one_hot(groups, num_groups).to(
        values.dtype
    )  # A product sums in a fixed order; scattering on CUDA does not.
    counts = member.sum(0)
    return (values @ member) / counts.clamp(min=1), counts.to(torch.int64)
