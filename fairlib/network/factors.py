"""Factors: two layers in the place of one, whose weight is the product of theirs.

A convolution is followed by a 1x1 convolution, a linear layer by a linear layer. The bias belongs
to the second."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import skip_init

_GEOMETRY = (
    "in_features", "in_channels", "kernel_size", "stride", "padding", "dilation", "groups",
    "padding_mode", "transposed", "output_padding",
)  # fmt: skip


class Factorized(nn.Sequential):
    """Two layers in the place of one: the first computes r channels, from which the second computes
    the outputs.

    Whoever reads the attributes of the layer finds them: those of its geometry, the bias, and as
    ``weight`` the product of the two, computed at each reading."""

    def __getattr__(self, name: str) -> Any:
        if name == "weight":
            weights: list[Any] = [factor.weight for factor in self]
            first, second = weights
            return (second.flatten(1) @ first.flatten(1)).view(len(second), *first.shape[1:])
        if name == "bias" or name.startswith("out_"):
            return getattr(self[1], name)
        return getattr(self[0], name) if name in _GEOMETRY else super().__getattr__(name)


def splits(layer: nn.Module) -> bool:
    """Tell whether two layers can stand in the place of one.

    That is so for torch's own linear layers and convolutions without groups whose padding is zeros.
    A class derived from one of them, or a hook, may compute something else."""
    hooked = layer._forward_hooks or layer._forward_pre_hooks
    plain = getattr(layer, "groups", 1) == 1 and getattr(layer, "padding_mode", "zeros") == "zeros"
    return plain and not hooked and type(layer) in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def factors(layer: nn.Module, rank: int) -> Factorized:
    """Make two layers that can stand in the place of one, with weights that are to be filled.

    Args:
        layer: A layer that :func:`splits`.
        rank: Number r of channels between the two.

    Returns:
        Two layers on the device of the layer, in its dtype and mode. The bias is the layer's own.

    Example:
        >>> from torch import nn
        >>> from fairlib.network.factors import factors
        >>> [tuple(weight.shape) for weight in factors(nn.Conv2d(3, 16, 5), rank=2).parameters()]
        [(2, 3, 5, 5), (16, 2, 1, 1), (16,)]
    """
    weight = layer.get_parameter("weight")
    # Initial weights would be overwritten, and drawing them would move torch's global generator:
    # skip_init leaves them undefined.
    like = {"bias": False, "device": weight.device, "dtype": weight.dtype}
    if isinstance(layer, nn.Linear):
        first = skip_init(nn.Linear, layer.in_features, rank, **like)
        second = skip_init(nn.Linear, rank, layer.out_features, **like)
    else:
        # The first layer takes the whole geometry; the second maps its channels place by place.
        names = ("kernel_size", "stride", "padding", "dilation")
        geometry = {name: getattr(layer, name) for name in names}
        first = skip_init(type(layer), layer.in_channels, rank, **geometry, **like)
        second = skip_init(type(layer), rank, layer.out_channels, 1, **like)
    pair = Factorized(first, second).train(layer.training).requires_grad_(weight.requires_grad)
    second.bias = layer.bias
    return pair


def replace(model: nn.Module, layer: nn.Module, by: Factorized) -> None:
    """Put factors in the place of a layer, in place, under every name that the layer has in the
    model."""
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if module is layer:
            model.set_submodule(name, by)


def insert_factors(model: nn.Module, state_dict: Mapping[str, Tensor]) -> nn.Module:
    """Put factors in the place of every layer that has some in a saved state, in place.

    Args:
        model: A dense model; the weights of its factors are to be loaded.
        state_dict: The state of a factorized model; only names and numbers of channels are used.

    Returns:
        The model.
    """
    for name, layer in list(model.named_modules()):
        first = state_dict.get(f"{name}.0.weight")
        if first is not None and splits(layer):
            replace(model, layer, factors(layer, len(first)))
    return model
