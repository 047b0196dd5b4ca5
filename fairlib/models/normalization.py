"""The normalization of inputs, carried by the model so that it cannot be forgotten when the model is used."""

import torch
from torch import Tensor, nn

from fairlib.data import GroupedDataset


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


def fill_normalization(model: nn.Module, data: GroupedDataset) -> None:
    """Set, in place, every normalization of a model that is still the identity, from all of the data.

    Raises:
        ValueError: If the data have another number of channels.
    """
    empty = [module for module in model.modules() if isinstance(module, Normalize) and not module.fitted]
    if not empty:
        return
    channels = data.inputs.shape[1]
    if any(module.mean.numel() != channels for module in empty):
        raise ValueError(f"the model takes inputs of {empty[0].mean.numel()} channels, got {tuple(data.inputs.shape)}")
    total, squares = 0.0, 0.0
    for index in torch.arange(len(data)).split(1024):
        inputs = data.batch(index, dtype=torch.float64, device=data.inputs.device)
        over = (0, *range(2, inputs.ndim))
        total, squares = total + inputs.sum(over), squares + inputs.square().sum(over)
    count = len(data) * data.inputs[0, 0].numel()
    mean = total / count
    for module in empty:
        module.fill(mean, (squares / count - mean.square()).clamp(min=0).sqrt())
