"""The normalization of inputs, carried by the model so that it cannot be forgotten when the model is used."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Normalize(nn.Module):
    """Per channel ``(x - mean) / std``, with ``mean`` and ``std`` buffers of the model.

    They are 0 and 1, the identity, until the first :func:`fairlib.fit` fills them from its training set; later fits
    leave them, so that a model that is finetuned on other data still sees inputs on the scale it was trained on.

    Args:
        channels: Number of channels C of the inputs ``(N, C, H, W)``.
    """

    mean: Tensor
    std: Tensor
    fitted: Tensor

    def __init__(self, channels: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels, 1, 1))
        self.register_buffer("std", torch.ones(channels, 1, 1))
        self.register_buffer("fitted", torch.tensor(False))

    def fill(self, mean: Tensor, std: Tensor) -> None:
        """Set both buffers, in place, from vectors ``(C,)``. A channel that never varies keeps ``std`` 1."""
        self.mean.copy_(mean.reshape(self.mean.shape))
        self.std.copy_(torch.where(std > 0, std, 1.0).reshape(self.std.shape))
        self.fitted.fill_(True)

    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs - self.mean) / self.std
