"""From scores to masks: keep the weights of highest score, exactly as many as asked."""

import torch
from torch import Tensor, nn

from fairlib._validation import check_number
from fairlib.network import masks


def keep_highest(model: nn.Module, scores: dict[str, Tensor], sparsity: float) -> dict[str, Tensor]:
    """Make masks that keep the weights of highest score, ranked over all tensors together.

    Of n scored weights in L tensors exactly ``min(round(sparsity * n), n - L)`` are pruned: those
    of lowest score, and of equal scores those that come first in the order of ``scores`` and,
    within a tensor, of its elements. The highest of each tensor stays, so that no layer is emptied.
    Weights that a mask of the model already holds at zero are pruned before any other. So the masks
    of two sparsities are nested.

    Args:
        model: The model of the weights; only the masks that it has are read.
        scores: Parameter name to scores of the weight's shape.
        sparsity: Share of zeros among the scored weights, in [0, 1).

    Returns:
        Parameter name to bool tensor of the weight's shape, True where the weight is kept.

    Raises:
        ValueError: If a score is NaN, all scores are zero, or the model is already sparser than
            asked.
    """
    masks.check_scores(scores)
    if not any(score.any() for score in scores.values()):
        raise ValueError(
            f"all scores of {', '.join(scores)} are zero: they tell no weight from another"
        )
    before = masks.read_masks(model)
    kept_before = [
        before.get(name, torch.ones_like(score, dtype=torch.bool)) for name, score in scores.items()
    ]
    pairs = zip(scores.values(), kept_before, strict=True)
    flat = torch.cat([_ranked(score.detach(), mask) for score, mask in pairs])
    # An emptied layer cuts the network in two: whatever is asked, one weight of each stays. A layer
    # that an earlier mask has emptied has none to keep.
    alive = sum(bool(mask.any()) for mask in kept_before)
    already = sum(int((~mask).sum()) for mask in kept_before)
    count = min(round(sparsity * flat.numel()), flat.numel() - alive)
    if count < already:
        raise ValueError(
            f"sparsity {sparsity} asks for {count} zeros, but {already} weights are pruned already"
        )
    parts = _keep(flat, flat.numel() - count).split([score.numel() for score in scores.values()])
    return {
        name: part.reshape(scores[name].shape) for name, part in zip(scores, parts, strict=True)
    }


def keep_highest_within(
    model: nn.Module, scores: dict[str, Tensor], sparsity: float, scope: str
) -> dict[str, Tensor]:
    """Call :func:`keep_highest` for all weights together or for each layer alone.

    Args:
        model: The model of the weights.
        scores: Parameter name to scores of the weight's shape.
        sparsity: Share of zeros among the scored weights, in [0, 1).
        scope: ``"global"`` or ``"layer"``.

    Raises:
        ValueError: If ``scope`` is neither, or :func:`keep_highest` refuses the scores or the
            sparsity.
    """
    if scope == "global":
        return keep_highest(model, scores, sparsity)
    if scope == "layer":
        return {
            name: keep_highest(model, {name: score}, sparsity)[name]
            for name, score in scores.items()
        }
    raise ValueError(f"scope must be 'global' or 'layer', got {scope!r}")


def _ranked(score: Tensor, mask: Tensor) -> Tensor:
    """Flatten scores: masked weights become the lowest, the best weight the highest.

    Of equal ones the last is the best.
    """
    flat = score.masked_fill(~mask, -torch.inf).flatten()
    best = (flat == flat.max()).nonzero()[-1]
    return flat if flat[best].isneginf() else flat.index_fill(0, best, torch.inf)


def _keep(scores: Tensor, count: int) -> Tensor:
    """Mark the ``count`` highest scores of a vector, of equal ones the last."""
    keep = torch.ones_like(scores, dtype=torch.bool)
    pruned = scores.numel() - count
    if pruned == 0:
        return keep
    # Linear time; a sort of 11 M weights takes twenty times as long.
    threshold = scores.kthvalue(pruned).values
    keep[scores < threshold] = False
    # Pruning all that equal the threshold would overshoot: a layer of zeros would go as a whole.
    # Only as many go as are missing, in the order of their positions, so that masks are nested.
    ties = (scores == threshold).nonzero().flatten()
    keep[ties[: pruned - int((~keep).sum())]] = False
    return keep


def shrinking(sparsity: float, rate: float, start: float = 0.0) -> list[float]:
    """List the sparsities of rounds that each prune a share ``rate`` of the weights left.

    The last is ``sparsity``. From sparsity :math:`s_0`, round i ends at :math:`1 - (1 - s_0)(1 -
    r)^i`.

    >>> [round(level, 3) for level in shrinking(0.5, 0.2)]
    [0.2, 0.36, 0.488, 0.5]

    Raises:
        ValueError: If ``rate`` is not in (0, 1).
    """
    check_number("rate", rate, 0, 1, low_open=True)
    levels: list[float] = []
    # A sparsity printed with six digits, such as 0.790285, means the end of a round, which it
    # misses by under 1e-6.
    while (level := 1 - (1 - start) * (1 - rate) ** (len(levels) + 1)) < sparsity - 1e-6:
        levels.append(level)
    return [*levels, sparsity]


def ramped(start: float, end: float, progress: float) -> float:
    r"""Compute the sparsity after a share t of a gradual pruning.

    .. math:: s_1 + (s_0 - s_1) (1 - \min(1, t))^3

    >>> [round(ramped(0.0, 0.8, t), 3) for t in (0.0, 0.5, 1.0)]
    [0.0, 0.7, 0.8]

    Source:
        Zhu, Gupta, To prune, or not to prune (ICLR workshop 2018), Eq. 1.
    """
    return end + (start - end) * (1 - min(1.0, progress)) ** 3
