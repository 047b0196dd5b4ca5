"""Random pruning: the baseline that any method has to beat."""

import torch
from torch import nn

from fairlib.network import masks
from fairlib.pruning.selection import keep_highest_within
from fairlib.randomness import generator


def random_pruning(
    model: nn.Module, *, sparsity: float, scope: str = "layer", seed: int = 0
) -> nn.Module:
    """Zero weights drawn at random, without retraining.

    Args:
        model: Any module with convolutions or linear layers; not changed.
        sparsity: Share of zeros among the prunable weights, in [0, 1).
        scope: ``"layer"`` draws the same share of every layer; ``"global"`` draws from all layers
            together, so that their shares differ by chance. At least one weight of every layer
            stays.
        seed: Seed of the random choice. With one seed the masks of growing sparsity are nested.

    Returns:
        A masked copy in eval mode.

    Raises:
        ValueError: If ``scope`` is unknown or the model is already sparser than asked.
    """
    drawn = generator(seed)
    weights = masks.prunable(model)
    scores = {
        name: torch.rand(w.shape, generator=drawn).to(w.device) for name, w in weights.items()
    }
    return masks.with_masks(model, keep_highest_within(model, scores, sparsity, scope))
