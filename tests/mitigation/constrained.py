"""A small problem and batches of it, for the tests of constraints."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import fairlib
from fairlib.training import Batch


def plain(inputs, logits, targets):
    return cross_entropy(logits, targets, reduction="none")


def opposed() -> fairlib.GroupedDataset:
    """Groups of 40, 15 and 5; the labels of the last are those of the others turned around."""
    generator = np.random.default_rng(0)
    inputs, groups = (
        generator.normal(size=(60, 3)),
        generator.permutation([0] * 40 + [1] * 15 + [2] * 5),
    )
    return fairlib.GroupedDataset(inputs, ((inputs[:, 0] > 0) ^ (groups == 2)).astype(int), groups)


def linear(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(3, 2).double()


def batch_of(model: nn.Module, data: fairlib.GroupedDataset, index=slice(None)) -> Batch:
    inputs, targets = data.inputs[index], data.targets[index]
    logits = model(inputs)
    return Batch(inputs, targets, data.groups[index], logits, plain(inputs, logits, targets))


def losses_by_group(
    model: nn.Module, data: fairlib.GroupedDataset, index=slice(None)
) -> np.ndarray:
    """By a loop; NaN for a group that is not there."""
    batch = batch_of(model, data, index)
    losses, groups = batch.losses.detach().numpy(), batch.groups.numpy()
    return np.array(
        [losses[groups == code].mean() if (groups == code).any() else np.nan for code in range(3)]
    )
