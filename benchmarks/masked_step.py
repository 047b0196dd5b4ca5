"""What masks and quantizers cost a training step: at 90 % sparsity, against torch's own masks, and
at 4 bits.

``python benchmarks/masked_step.py``: ``cnn`` and ``tiny-resnet`` on the digits (8 pixels, batch
32), where a step is mostly dispatch, so that nothing hides what the masks add. Forward and backward
pass and the optimizer's step; goal: at most 1.1 of the dense network's time with masks, 1.3 with
rounded weights (the straight-through estimator)."""

from __future__ import annotations

import copy
from collections.abc import Callable

import interleaved
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import prune

import fairlib
from fairlib.network import masks


def steps(model: nn.Module, data: fairlib.GroupedDataset) -> Callable[[], None]:
    """Twenty steps on one batch."""
    optimizer = torch.optim.SGD(
        model.train().parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-4
    )
    inputs, targets = data.batch(slice(0, 32), dtype=torch.float32), data.targets[:32]

    def take() -> None:
        for _ in range(20):
            optimizer.zero_grad()
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()

    return take


def main() -> None:
    digits = fairlib.load("digits", seed=0).train
    for name in ("cnn", "tiny-resnet"):
        dense = fairlib.build(name, like=digits, seed=0)
        masked, peer = fairlib.prune(dense, "magnitude", sparsity=0.9), copy.deepcopy(dense)
        for weight, mask in masks.read_masks(masked).items():
            prune.custom_from_mask(
                peer.get_submodule(weight.removesuffix(".weight")), "weight", mask
            )
        versions = {"dense": dense, "fairlib.prune": masked, "torch.nn.utils.prune": peer}
        versions["fairlib.quantize"] = fairlib.quantize(dense, "weights", bits=4)
        taken = {version: steps(model, digits) for version, model in versions.items()}
        interleaved.report(
            f"masked_step_{name.replace('-', '_')}",
            interleaved.compare(taken, {"fairlib.prune": 1.1, "fairlib.quantize": 1.3}, rounds=101),
        )


if __name__ == "__main__":
    main()
