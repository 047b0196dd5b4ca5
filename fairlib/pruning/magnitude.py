"""Magnitude pruning: zero the weights of smallest absolute value."""

from collections.abc import Iterable

from torch import nn

from fairlib.network import masks
from fairlib.pruning.selection import keep_highest_within


def magnitude(
    model: nn.Module,
    *,
    sparsity: float,
    scope: str = "global",
    granularity: str = "weight",
    exclude: Iterable[str] = (),
) -> nn.Module:
    """Zero the weights of smallest absolute value, without retraining.

    With n prunable weights (convolution and linear; never biases or normalization), the
    ``round(sparsity * n)`` weights of smallest ``|w|`` become zero, but never the largest of a
    layer. Of equal weights those that come first in the order of the parameters are pruned first.
    The masks of growing sparsity are nested.

    Args:
        model: The trained model; not changed.
        sparsity: Share of zeros among the prunable weights, in [0, 1).
        scope: ``"global"`` ranks all weights together, so that a layer of small weights may lose
            nearly all of them; ``"layer"`` prunes the same share of every layer, ``"output"`` that
            of the weights of every output.
        granularity: ``"weight"`` for single weights; ``"2:4"`` for two of every four successive
            inputs of a layer, at a sparsity of 0.5
            (:func:`fairlib.pruning.selection.keep_two_of_four`).
        exclude: Names of weights to leave as they are; ``sparsity`` is of the others.

    Returns:
        A masked copy in eval mode.

    Raises:
        ValueError: If ``scope``, ``granularity`` or an excluded name is unknown, a weight is NaN,
            the model is already sparser than asked, or a layer cannot take the pattern.

    Source:
        [T] section 3, "removes the P% parameters with smallest absolute values"; Han et al. (2015).
    """
    scores = {name: weight.abs() for name, weight in masks.prunable(model, exclude).items()}
    keep = keep_highest_within(model, scores, sparsity, scope, granularity)
    return masks.with_masks(model, keep)
