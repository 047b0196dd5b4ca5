"""Random pruning: the baseline that any method has to beat."""

from collections.abc import Iterable

import torch
from torch import nn

from fairlib.network import masks
from fairlib.pruning.selection import keep_highest_within
from fairlib.randomness import generator


def random_pruning(
    model: nn.Module,
    *,
    sparsity: float,
    seed: int = 0,
    granularity: str = "weight",
    exclude: Iterable[str] = (),
) -> nn.Module:
    """Zero the same share of every layer's weights, drawn at random, without retraining.

    Args:
        model: Any module with convolutions or linear layers; not changed.
        sparsity: Share of zeros among the weights of each layer, in [0, 1); at least one stays.
        seed: Seed of the random choice. With one seed the masks of growing sparsity are nested.
        granularity, exclude: Those of :func:`fairlib.pruning.magnitude`.

    Returns:
        A masked copy in eval mode.

    Raises:
        ValueError: If the model is already sparser than asked, a name is unknown, or a layer cannot
            take the pattern.
    """
    drawn = generator(seed)
    weights = masks.prunable(model, exclude)
    scores = {
        name: torch.rand(w.shape, generator=drawn).to(w.device) for name, w in weights.items()
    }
    keep = keep_highest_within(model, scores, sparsity, "layer", granularity)
    return masks.with_masks(model, keep)
