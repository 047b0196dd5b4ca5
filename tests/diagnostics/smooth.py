"""Small smooth networks in float64, and random data for them: where expansions and bounds hold as
they are proved."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fairlib


def smooth_model(
    seed: int = 0, *, inputs: int = 3, hidden: int = 6, classes: int = 3, scale: float = 1.0
) -> nn.Sequential:
    """A tanh network in float64 with normal weights of standard deviation ``scale``."""
    generator = torch.Generator().manual_seed(seed)
    model = (
        nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, classes))
        .double()
        .eval()
    )
    for weight in model.parameters():
        weight.data.normal_(0, scale, generator=generator)
    return model


def random_data(
    seed: int = 0, *, inputs: int = 3, classes: int = 3, sizes: tuple[int, ...] = (12, 5, 3)
) -> fairlib.GroupedDataset:
    """Normal inputs with random targets; groups of the given sizes."""
    generator, n = np.random.default_rng(seed), sum(sizes)
    return fairlib.GroupedDataset(
        generator.normal(size=(n, inputs)),
        generator.integers(0, classes, n),
        np.repeat(np.arange(len(sizes)), sizes),
        target_names=[str(i) for i in range(classes)],
        group_names=[f"group {i}" for i in range(len(sizes))],
    )


def only(model: nn.Module, names: list[str]) -> nn.Module:
    """A copy of the model in which these parameters alone require a gradient."""
    copied = copy.deepcopy(model)
    for name, weight in copied.named_parameters():
        weight.requires_grad_(name in names)
    return copied


def dense_gradient(model: nn.Module, data: fairlib.GroupedDataset, group: int) -> Tensor:
    """The gradient ``(P,)`` of a group's mean loss by one backward pass; the model is in eval
    mode."""
    members = (data.groups == group).nonzero().flatten()
    loss = cross_entropy(model(data.batch(members, dtype=torch.float64)), data.targets[members])
    return torch.cat(
        [part.flatten() for part in torch.autograd.grad(loss, list(model.parameters()))]
    )
