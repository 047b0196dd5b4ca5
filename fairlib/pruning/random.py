"""Random pruning: what any method has to beat."""

import torch
from torch import nn

from fairlib.network import masks
from fairlib.pruning.selection import keep_highest_within


def random(model: nn.Module, *, sparsity: float, scope: str = "layer", seed: int = 0) -> nn.Module:
    """Zero weights drawn at random, without retraining.

    Args:
        model: Left as it is.
        sparsity: Share of zeros among the prunable weights, in [0, 1).
        scope: ``"layer"`` draws the same share of every layer; ``"global"`` draws from all together, so that shares
            differ by chance. At least one weight of every layer stays.
        seed: Of the draw. The masks of growing sparsity are nested for one seed.

    Returns:
        A masked copy in eval mode.

    Raises:
        ValueError: If ``scope`` is unknown or the model is already sparser than asked.
    """
    generator = torch.Generator().manual_seed(seed)
    scores = {
        name: torch.rand(weight.shape, generator=generator).to(weight.device)
        for name, weight in masks.prunable(model).items()
    }
    return masks.apply(model, keep_highest_within(model, scores, sparsity, scope))
