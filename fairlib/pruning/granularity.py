"""Granularities of a learned mask: from scores of weights or channels to masks of the weights."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fairlib.data import GroupedDataset
from fairlib.network import channels, masks
from fairlib.pruning.selection import keep_highest


class Granularity:
    """Every weight has a score, and all are ranked together.

    Args:
        model: The model whose weights are ranked.
        data: The training set; only the shape of its inputs is used.
    """

    def __init__(self, model: nn.Module, data: GroupedDataset) -> None:
        self.model, self.weights = model, masks.prunable(model)

    def start(self) -> list[Tensor]:
        """Compute scores from the magnitudes of the model's weights, with a mean of 1."""
        sizes = [weight.detach().abs() for weight in self.weights.values()]
        mean = torch.cat([size.flatten() for size in sizes]).mean()
        return [size / mean for size in sizes] if mean > 0 else sizes

    def choose(self, scores: Sequence[Tensor], sparsity: float) -> list[Tensor]:
        """Make entries in the shapes of the scores: 1 for the highest scores, and else 0."""
        return self.final(scores, sparsity)[0]

    def expand(self, entries: Sequence[Tensor]) -> list[Tensor]:
        """Make the masks of the weights for the search, linear in the entries."""
        return list(entries)

    def final(
        self, scores: Sequence[Tensor], sparsity: float
    ) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Choose entries like ``choose``, exactly, and make bool masks by parameter name."""
        by_name = dict(zip(self.weights, scores, strict=True))
        keep = keep_highest(self.model, by_name, sparsity)
        return [keep[name].to(score.dtype) for name, score in by_name.items()], keep


class ChannelGranularity(Granularity):
    """Every channel has a score, and the same share of each layer's channels is kept.

    Channels that a residual sum or a depthwise convolution ties together have one score. Arguments
    and methods are those of :class:`Granularity`.
    """

    def __init__(self, model: nn.Module, data: GroupedDataset) -> None:
        super().__init__(model, data)
        self.sets = channels.coupled_channels(model, channels.example_inputs(model, data))
        if not self.sets:
            raise ValueError(
                f"{type(model).__name__} has no channel that can be removed; "
                "take granularity='weight'"
            )
        self.before = masks.read_masks(model)
        self.counts: tuple[float, list[int]] = (-1.0, [])

    def start(self) -> list[Tensor]:
        norms = channels.channel_scores(self.model, self.sets, lambda filters: filters.norm(dim=1))
        # A channel that an earlier mask removed has the score -inf, which would swallow the mean.
        means = [norm[norm.isfinite()].mean() for norm in norms]
        return [norm / mean if mean > 0 else norm for norm, mean in zip(norms, means, strict=True)]

    def choose(self, scores: Sequence[Tensor], sparsity: float) -> list[Tensor]:
        # The search for the rate that reaches the sparsity builds the masks of all weights several
        # times, too slow for every step. How many channels of a layer go hardly depends on which:
        # the numbers are found once, and ``final`` looks for the rate again.
        if sparsity != self.counts[0]:
            removed = channels.lowest(self.model, self.sets, scores, sparsity)
            self.counts = sparsity, [int(part.sum()) for part in removed]
        chosen = []
        for score, count in zip(scores, self.counts[1], strict=True):
            entries = torch.ones_like(score)
            entries[score.argsort(stable=True)[:count]] = 0
            chosen.append(entries)
        return chosen

    def expand(self, entries: Sequence[Tensor]) -> list[Tensor]:
        # Only the weights that read a channel are masked, which is enough for it to have no effect.
        # With a mask on the weights that make it as well, both would be zero in a removed channel,
        # and so would the gradient of either: it could never return.
        columns = {name: weight.new_ones(weight.shape[1]) for name, weight in self.weights.items()}
        for coupled, entry in zip(self.sets, entries, strict=True):
            for name, (of, positions) in coupled.readers.items():
                columns[name] = columns[name].index_put((positions,), entry[of])
        expanded = []
        for name, weight in self.weights.items():
            row = columns[name].reshape(1, -1, *[1] * (weight.ndim - 2)).expand(weight.shape)
            # Weights that an earlier mask prunes stay so, and get no gradient.
            expanded.append(row * self.before[name] if name in self.before else row)
        return expanded

    def final(
        self, scores: Sequence[Tensor], sparsity: float
    ) -> tuple[list[Tensor], dict[str, Tensor]]:
        removed = channels.lowest(self.model, self.sets, scores, sparsity)
        entries = [(~gone).to(score.dtype) for gone, score in zip(removed, scores, strict=True)]
        return entries, channels.masks_for(self.sets, removed, self.model)


GRANULARITIES: dict[str, type[Granularity]] = {
    "weight": Granularity,
    "filter": ChannelGranularity,
}
