"""How much faster ResNet-18 runs without half, and without nine tenths, of its filters.

``python benchmarks/compact.py``; goals: 2.5 and 7 times as fast as the dense network, at batch 64,
32 pixels and torchvision's stem."""

from __future__ import annotations

import interleaved
import torch
from torch import nn

import fairlib
from fairlib.network import masks
from fairlib.network.channels import coupled_channels, masks_for
from fairlib.network.compaction import compact


def without_filters(model: nn.Module, inputs: torch.Tensor, share: float) -> nn.Module:
    """The smaller module that is left when ``share`` of every layer's channels go, just the first
    ones."""
    sets = coupled_channels(model, inputs[:1])
    removed = [torch.arange(coupled.size) < int(share * coupled.size) for coupled in sets]
    return compact(masks.with_masks(model, masks_for(sets, removed, model)), inputs)


def main() -> None:
    model = fairlib.build(
        "resnet18", num_classes=10, in_channels=3, image_size=32, stem="imagenet"
    ).eval()
    inputs = torch.rand(64, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    versions = {
        "dense": model,
        "50 % of filters removed": without_filters(model, inputs, 0.5),
        "90 % of filters removed": without_filters(model, inputs, 0.9),
    }
    goals = {"50 % of filters removed": 1 / 2.5, "90 % of filters removed": 1 / 7}
    with torch.no_grad():
        passes = {name: lambda net=net: net(inputs) for name, net in versions.items()}
        interleaved.report("compact", interleaved.compare(passes, goals))


if __name__ == "__main__":
    main()
