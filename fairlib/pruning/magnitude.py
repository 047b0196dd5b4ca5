"""Magnitude pruning: zero the weights of smallest absolute value."""

from torch import nn

from fairlib.network import masks
from fairlib.pruning.selection import keep_highest_within


def magnitude(model: nn.Module, *, sparsity: float, scope: str = "global") -> nn.Module:
    """Zero the weights of smallest absolute value, without retraining.

    With n prunable weights (convolution and linear; never biases or normalization), the
    ``round(sparsity * n)`` weights of smallest ``|w|`` become zero, but never the largest of a
    layer. Of equal weights those that come first in the order of the parameters are pruned first.
    The masks of growing sparsity are nested.

    Args:
        model: The trained model; not changed.
        sparsity: Share of zeros among the prunable weights, in [0, 1).
        scope: ``"global"`` ranks all weights together, so that a layer of small weights may lose
            nearly all of them; ``"layer"`` prunes the same share of every layer.

    Returns:
        A masked copy in eval mode.

    Raises:
        ValueError: If ``scope`` is unknown, a weight is NaN, or the model is already sparser than
            asked.

    Source:
        [T] section 3, "removes the P% parameters with smallest absolute values"; Han et al. (2015).
    """
    scores = {name: weight.abs() for name, weight in masks.prunable(model).items()}
    return masks.with_masks(model, keep_highest_within(model, scores, sparsity, scope))
