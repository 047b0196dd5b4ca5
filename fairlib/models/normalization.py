"""The normalization of inputs: a part of the model, so that nobody forgets it when using one."""

import torch
from torch import Tensor, nn

from fairlib.data import GroupedDataset


class Normalize(nn.Module):
    """Normalize each channel to ``(x - mean) / std``, both buffers of the model.

    Mean and standard deviation are 0 and 1, the identity, until the first :func:`fairlib.fit`
    computes them from its training set. Later fits leave them: a model that is finetuned on other
    data sees inputs on the scale on which it was trained.

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
        # uint8, since torch cannot average buffers of bools (``AveragedModel``).
        self.register_buffer("fitted", torch.tensor(0, dtype=torch.uint8))

    def fill(self, mean: Tensor, std: Tensor) -> None:
        """Set ``mean`` and ``std`` in place, from vectors ``(C,)``; a ``std`` of 0 becomes 1."""
        self.mean.copy_(mean.reshape(self.mean.shape))
        self.std.copy_(torch.where(std > 0, std, 1.0).reshape(self.std.shape))
        self.fitted.fill_(1)

    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs - self.mean) / self.std


def fill_normalization(model: nn.Module, data: GroupedDataset) -> None:
    """Set mean and standard deviation of each channel in ``model``, in place, to those of ``data``.

    Only a :class:`Normalize` that was never filled is changed.

    Raises:
        ValueError: If the data have another number of channels than the model.
    """
    layers = [module for module in model.modules() if isinstance(module, Normalize)]
    empty = [layer for layer in layers if not layer.fitted]
    if not empty:
        return
    if any(layer.mean.numel() != data.inputs.shape[1] for layer in empty):
        raise ValueError(
            f"the model takes inputs of {empty[0].mean.numel()} channels, got "
            f"{tuple(data.inputs.shape)}"
        )
    device = data.inputs.device
    total = squares = torch.zeros((), dtype=torch.float64, device=device)
    # In float64 the difference of squares below is exact enough: pixels have 8 bits. The size of a
    # pass is part of the recorded numbers, as it decides the order of the sums.
    for index in torch.arange(len(data)).split(1024):
        inputs = data.batch(index, dtype=torch.float64, device=device)
        over = (0, *range(2, inputs.ndim))
        total, squares = total + inputs.sum(over), squares + inputs.square().sum(over)
    count = len(data) * data.inputs[0, 0].numel()
    mean = total / count
    std = (squares / count - mean.square()).clamp(min=0).sqrt()
    for layer in empty:
        layer.fill(mean, std)
