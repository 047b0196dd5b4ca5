"""From scores to masks: keep the highest, exactly as many as asked, ties decided by position."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fairlib import masks


def keep_highest(model: nn.Module, scores: Mapping[str, Tensor], sparsity: float) -> dict[str, Tensor]:
    """Masks that keep the weights of highest score among all the weights scored together.

    Of n scored weights exactly ``min(round(sparsity * n), n - 1)`` are pruned: the lowest scores, and among equal ones
    those that come first in the order of ``scores`` and, within a tensor, of its elements. Weights that a mask of the
    model already holds at zero are pruned before any other. So the masks of two sparsities are nested.

    Args:
        model: Read for the masks it has.
        scores: Parameter name to scores of the weight's shape.
        sparsity: Share of zeros among the scored weights, in [0, 1).

    Returns:
        Parameter name to bool tensor of the weight's shape, True where the weight is kept.

    Raises:
        ValueError: If a score is NaN, or if the model is already sparser than asked.
    """
    for name, score in scores.items():
        if score.isnan().any():
            raise ValueError(f"the scores of {name} hold NaN; has training diverged?")
    pruned_before = masks.read(model)
    flat = torch.cat(
        [
            score.detach().masked_fill(~pruned_before[name], -torch.inf).flatten()
            if name in pruned_before
            else score.detach().flatten()
            for name, score in scores.items()
        ]
    )
    count = min(round(sparsity * flat.numel()), flat.numel() - 1)
    already = sum(int((~pruned_before[name]).sum()) for name in scores if name in pruned_before)
    if count < already:
        raise ValueError(
            f"sparsity {sparsity} asks for {count} zeros, but {already} of {flat.numel()} weights are pruned already"
        )
    kept = _keep(flat, flat.numel() - count)
    sizes = [score.numel() for score in scores.values()]
    return {
        name: part.reshape(score.shape) for (name, score), part in zip(scores.items(), kept.split(sizes), strict=True)
    }


def _keep(scores: Tensor, count: int) -> Tensor:
    """True at the ``count`` highest of a vector; among those equal to the lowest kept one, at the last."""
    keep = torch.ones_like(scores, dtype=torch.bool)
    pruned = scores.numel() - count
    if pruned == 0:
        return keep
    threshold = scores.kthvalue(pruned).values  # Linear time; a sort of 11 M weights takes twenty times as long.
    keep[scores < threshold] = False
    ties = (scores == threshold).nonzero().flatten()
    keep[ties[: pruned - int((~keep).sum())]] = False
    return keep
