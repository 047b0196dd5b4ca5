"""From scores to masks: keep the weights of highest score, exactly as many as asked.

Ranked are all weights together, those of a layer, those of an output, or four successive ones.
"""

import torch
from torch import Tensor, nn

from fairlib._validation import check_number, lookup
from fairlib.network import masks

PATTERN = "2:4"
"""Name of the granularity in which two of every four successive weights are zero."""


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
    kept_before = _kept_before(model, scores)
    flat = torch.cat([_ranked(score.detach(), kept_before[name]) for name, score in scores.items()])
    # An emptied layer cuts the network in two: whatever is asked, one weight of each stays. A layer
    # that an earlier mask has emptied has none to keep.
    alive = sum(bool(mask.any()) for mask in kept_before.values())
    already = sum(int((~mask).sum()) for mask in kept_before.values())
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
    model: nn.Module,
    scores: dict[str, Tensor],
    sparsity: float,
    scope: str,
    granularity: str = "weight",
) -> dict[str, Tensor]:
    """Keep the highest scores of all weights together, or of each layer, output or block alone.

    Args:
        model: The model of the weights.
        scores: Parameter name to scores of the weight's shape.
        sparsity: Share of zeros among the scored weights, in [0, 1).
        scope: ``"global"`` or ``"layer"`` for :func:`keep_highest` of all or of each tensor;
            ``"output"`` for :func:`keep_highest_of_each`.
        granularity: ``"weight"``; or ``"2:4"`` for :func:`keep_two_of_four`, whatever the scope.

    Raises:
        ValueError: If ``scope`` or ``granularity`` is none of these, or the scores or the sparsity
            are refused.
    """
    if scope not in ("global", "layer", "output"):
        raise ValueError(f"scope must be 'global', 'layer' or 'output', got {scope!r}")
    if lookup("granularity", granularity, {"weight": False, PATTERN: True}):
        return keep_two_of_four(model, scores, sparsity)
    if scope == "output":
        return keep_highest_of_each(model, scores, sparsity)
    if scope == "global":
        return keep_highest(model, scores, sparsity)
    return {
        name: keep_highest(model, {name: score}, sparsity)[name] for name, score in scores.items()
    }


def keep_two_of_four(
    model: nn.Module, scores: dict[str, Tensor], sparsity: float
) -> dict[str, Tensor]:
    """Make masks of the pattern 2:4: of four weights those with the two highest scores are kept.

    The four are successive along the axis of the inputs, at one output and, of a convolution, at
    one position of the kernel: what TensorRT and the sparse tensor cores of NVIDIA read as 2:4.
    ``torch.sparse.to_sparse_semi_structured`` takes matrices alone, whose rows have the pattern:
    the weight of a linear layer, and ``weight.movedim(1, -1).flatten(1)`` of a convolution.

    Args:
        model: The model of the weights; only the masks that it has are read.
        scores: Parameter name to scores of the weight's shape.
        sparsity: 0.5, what the pattern means.

    Returns:
        Parameter name to bool tensor of the weight's shape, True where the weight is kept. Of equal
        scores those of the first inputs are pruned; weights that are masked already go before any
        other.

    Raises:
        ValueError: If ``sparsity`` is another, four does not divide the inputs of a layer (names
            it, and the layers that take the pattern), more than two of a block are pruned already,
            or a score is NaN, or all are zero.

    Source:
        Mishra et al., Accelerating sparse deep neural networks (arXiv 2104.08378); TensorRT's
        developer guide, "Structured sparsity".
    """
    if sparsity != 0.5:
        raise ValueError(
            f"granularity {PATTERN!r} prunes two of every four weights, all at once: sparsity must "
            f"be 0.5, got {sparsity}"
        )
    # A last block filled up with zeros that are no weights would lose fewer than half of its own.
    odd = [name for name, score in scores.items() if score.shape[1] % 4]
    if odd:
        raise ValueError(
            f"granularity {PATTERN!r} needs a multiple of four inputs; exclude={odd} leaves out "
            "the layers that have another number, and the pattern fits "
            f"{', '.join(name for name in scores if name not in odd) or 'no other'}"
        )
    return keep_highest_of_each(model, scores, sparsity, 4)


def keep_highest_of_each(
    model: nn.Module, scores: dict[str, Tensor], sparsity: float, size: int = 0
) -> dict[str, Tensor]:
    """Make masks that keep the weights of highest score, ranked within each output or block.

    Of n weights exactly ``min(round(sparsity * n), n - 1)`` are pruned, of equal scores the first
    with the inputs counted before the next position of a kernel.

    Args:
        model: The model of the weights; only the masks that it has are read.
        scores: Parameter name to scores of the weight's shape, outputs first and inputs second.
        sparsity: Share of zeros among the scored weights, in [0, 1).
        size: Number of successive inputs of a block; 0 for all weights of an output.

    Raises:
        ValueError: If the scores are refused (:func:`keep_highest`), or an output or block is
            already sparser than asked.
    """
    keep = {}
    for name, mask in _kept_before(model, scores).items():
        ranked = scores[name].detach().masked_fill(~mask, -torch.inf).movedim(1, -1)
        rows = ranked.reshape(-1, size or mask[0].numel())
        each = rows.shape[1]
        count = min(round(sparsity * each), each - 1)
        # With exactly ``count`` zeros a weight would return that is masked.
        if (rows.isneginf().sum(1) > count).any():
            raise ValueError(
                f"sparsity {sparsity} asks for {count} zeros among {each} weights of {name}, "
                "where more are pruned already"
            )
        lowest = rows.argsort(dim=1, stable=True)[:, :count]
        kept = torch.ones_like(rows, dtype=torch.bool).scatter(1, lowest, False)
        keep[name] = kept.reshape(ranked.shape).movedim(-1, 1)
    return keep


def _kept_before(model: nn.Module, scores: dict[str, Tensor]) -> dict[str, Tensor]:
    """Check scores, and read the masks that their weights have so far."""
    masks.check_scores(scores)
    if not any(score.any() for score in scores.values()):
        raise ValueError(
            f"all scores of {', '.join(scores)} are zero: they tell no weight from another"
        )
    before = masks.read_masks(model)
    return {
        name: before.get(name, torch.ones_like(score, dtype=torch.bool))
        for name, score in scores.items()
    }


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
