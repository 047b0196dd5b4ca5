"""What masks cost an evaluation: ResNet-18 at 90 % sparsity against the dense network, and against
torch's own masks.

``python benchmarks/masked_evaluation.py``; goal: at most 1.02 of the dense network's time (batch
64, 32 px)."""

from __future__ import annotations

import copy

import interleaved
import torch
from torch.nn.utils import prune

import fairlib
from fairlib.network import masks


def main() -> None:
    model = fairlib.build(
        "resnet18", num_classes=10, in_channels=3, image_size=32, stem="imagenet"
    ).eval()
    inputs = torch.rand(64, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    masked = fairlib.prune(model, "magnitude", sparsity=0.9)
    peer = copy.deepcopy(model)
    for name, mask in masks.read_masks(masked).items():
        prune.custom_from_mask(peer.get_submodule(name.removesuffix(".weight")), "weight", mask)
    versions = {"dense": model, "fairlib.prune": masked, "torch.nn.utils.prune": peer}
    with torch.no_grad():
        assert torch.equal(masked(inputs), peer(inputs))
        passes = {name: lambda net=net: net(inputs) for name, net in versions.items()}
        interleaved.report(
            "masked_evaluation", interleaved.compare(passes, {"fairlib.prune": 1.02}, rounds=101)
        )


if __name__ == "__main__":
    main()
