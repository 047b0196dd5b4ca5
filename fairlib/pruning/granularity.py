"""What a learned mask keeps or prunes, single weights or whole channels: from scores to masks of
the weights."""

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from fairlib.data import GroupedDataset
from fairlib.network import channels, masks
from fairlib.pruning.selection import keep_highest


class Form(Protocol):
    """From scores of single weights or channels to masks of the weights.

    Attributes:
        model: The model whose weights are ranked.
        kept: Masks that the last call of ``final`` made: parameter name to bool tensor.
    """

    model: nn.Module
    kept: dict[str, Tensor]

    def start(self) -> list[Tensor]:
        """Compute scores from the magnitudes of the model's weights, with a mean of 1."""

    def choose(self, scores: Sequence[Tensor], sparsity: float) -> list[Tensor]:
        """Make entries that are 1 for the highest scores and 0 for the others, in the shapes of the
        scores."""

    def project(self, scores: Sequence[Tensor], sparsity: float) -> list[Tensor]:
        """Make relaxed entries: the nearest to the scores in [0, 1] with a sum of at most what
        ``choose`` keeps.

        In a layer that this would empty the highest score gets 1. """

    def expand(self, entries: Sequence[Tensor]) -> list[Tensor]:
        """Make the masks of the weights for the search, from entries in the shapes of the scores;
        linear in them."""

    def final(self, scores: Sequence[Tensor], sparsity: float) -> list[Tensor]:
        """Choose entries like ``choose``, exactly, and set ``kept``."""


class Weights:
    """Every weight has a score, and all are ranked together."""

    def __init__(self, model: nn.Module, data: GroupedDataset) -> None:
        self.model, self.weights, self.before = (
            model,
            masks.prunable(model),
            masks.read_masks(model),
        )
        self.kept: dict[str, Tensor] = {}

    def start(self) -> list[Tensor]:
        sizes = [weight.detach().abs() for weight in self.weights.values()]
        mean = torch.cat([size.flatten() for size in sizes]).mean()
        return [size / mean for size in sizes] if mean > 0 else sizes

    def choose(self, scores: Sequence[Tensor], sparsity: float) -> list[Tensor]:
        keep = keep_highest(self.model, dict(zip(self.weights, scores, strict=True)), sparsity)
        return [
            keep[name].to(score.dtype) for name, score in zip(self.weights, scores, strict=True)
        ]

    def project(self, scores: Sequence[Tensor], sparsity: float) -> list[Tensor]:
        kept = sum(part.sum() for part in self.choose(scores, sparsity))
        flat = capped_simplex(torch.cat([score.flatten() for score in scores]), float(kept))
        parts = [part.clone() for part in flat.split([score.numel() for score in scores])]
        for part, score in zip(parts, scores, strict=True):
            if not part.any():
                part[score.argmax()] = 1  # No layer is emptied.
        return [part.reshape(score.shape) for part, score in zip(parts, scores, strict=True)]

    def expand(self, entries: Sequence[Tensor]) -> list[Tensor]:
        pairs = zip(self.weights, entries, strict=True)
        return [
            entry * self.before[name] if name in self.before else entry for name, entry in pairs
        ]

    def final(self, scores: Sequence[Tensor], sparsity: float) -> list[Tensor]:
        chosen = self.choose(scores, sparsity)
        self.kept = {name: entry > 0 for name, entry in zip(self.weights, chosen, strict=True)}
        return chosen


class Filters:
    """Every channel has a score, and the same share of each layer's channels is kept."""

    def __init__(self, model: nn.Module, data: GroupedDataset) -> None:
        self.model, self.weights, self.before = (
            model,
            masks.prunable(model),
            masks.read_masks(model),
        )
        self.sets = channels.coupled_channels(model, channels.example_inputs(model, data))
        if not self.sets:
            raise ValueError(
                f"{type(model).__name__} has no channel that can be removed; take granularity='weight'"
            )
        self.kept: dict[str, Tensor] = {}
        self.sparsity = -1.0
        self.gone: list[int] = []

    def start(self) -> list[Tensor]:
        norms = channels.channel_scores(self.model, self.sets, lambda filters: filters.norm(dim=1))
        means = [norm[norm.isfinite()].mean() for norm in norms]
        return [norm / mean if mean > 0 else norm for norm, mean in zip(norms, means, strict=True)]

    def choose(self, scores: Sequence[Tensor], sparsity: float) -> list[Tensor]:
        if (
            sparsity != self.sparsity
        ):  # The number of channels hardly depends on the scores; ``final`` is exact.
            removed = channels.lowest(self.model, self.sets, scores, sparsity)
            self.sparsity, self.gone = sparsity, [int(part.sum()) for part in removed]
        kept = []
        for score, gone in zip(scores, self.gone, strict=True):
            entries = torch.ones_like(score)
            entries[score.argsort(stable=True)[:gone]] = 0
            kept.append(entries)
        return kept

    def project(self, scores: Sequence[Tensor], sparsity: float) -> list[Tensor]:
        kept = self.choose(scores, sparsity)
        return [
            capped_simplex(score, float(part.sum()))
            for score, part in zip(scores, kept, strict=True)
        ]

    def expand(self, entries: Sequence[Tensor]) -> list[Tensor]:
        # Only weights that read a channel: with a mask on those that make it, too, a removed
        # channel has no gradient.
        columns = {name: weight.new_ones(weight.shape[1]) for name, weight in self.weights.items()}
        for coupled, entry in zip(self.sets, entries, strict=True):
            for name, (of, positions) in coupled.readers.items():
                columns[name] = columns[name].index_put((positions,), entry[of])
        expanded = []
        for name, weight in self.weights.items():
            mask = columns[name].reshape(1, -1, *[1] * (weight.ndim - 2)).expand(weight.shape)
            expanded.append(mask * self.before[name] if name in self.before else mask)
        return expanded

    def final(self, scores: Sequence[Tensor], sparsity: float) -> list[Tensor]:
        removed = channels.lowest(self.model, self.sets, scores, sparsity)
        self.kept = channels.masks_for(self.sets, removed, self.model)
        return [(~gone).to(score.dtype) for gone, score in zip(removed, scores, strict=True)]


GRANULARITIES: dict[str, Callable[[nn.Module, GroupedDataset], Form]] = {
    "weight": Weights,
    "filter": Filters,
}


def capped_simplex(point: Tensor, total: float) -> Tensor:
    r"""Project a point p onto :math:`\{m \in [0, 1]^n : \sum_j m_j \le t\}`.

    The nearest point is :math:`\operatorname{clip}(p_j - \mu, 0, 1)` with the smallest :math:`\mu
    \ge 0` that meets the sum. It is found by Newton steps, or by bisection where these leave the
    interval.

    Args:
        point: The point p, ``(n,)``.
        total: Largest sum t, at least 0.

    Returns:
        The nearest point, ``(n,)``.
    """
    low, high, shift = 0.0, max(0.0, float(point.max())), 0.0
    for _ in range(60):
        moved = point - shift
        excess = float(moved.clamp(0, 1).sum()) - total
        if abs(excess) <= 1e-6 * max(total, 1) or (shift == 0 and excess < 0):
            break
        low, high = (shift, high) if excess > 0 else (low, shift)
        slope = float(((moved > 0) & (moved < 1)).sum())
        shift = shift + excess / slope if slope else math.inf
        if not low < shift < high:
            shift = (low + high) / 2
    else:
        moved = point - high
    return moved.clamp(0, 1)
