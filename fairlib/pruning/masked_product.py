"""Weights as products of a mask and a parameter, so that a pruned weight keeps its value.

A mask of :mod:`fairlib.network.masks` sets a pruned weight to zero for good. While a mask is learned
a weight may return, and then continues from the value that it had.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from fairlib.network import masks


class MaskTimes(nn.Module):
    """A parametrization: the weight is mask times parameter."""

    mask: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones_like(weight))

    def forward(self, weight: Tensor) -> Tensor:
        return self.mask * weight


@dataclass(frozen=True)
class MaskedProduct:
    """Names that belong to a weight: its layer, the parameter and the mask's buffer."""

    layer: str
    parameter: str
    mask: str


def split_weights(model: nn.Module) -> tuple[nn.Module, list[MaskedProduct]]:
    """Copy a model such that every prunable weight is a product of a parameter and a mask of 1."""
    model, products = copy.deepcopy(model), []
    for name, weight in masks.prunable(model).items():
        layer = name.rpartition(".")[0]
        inside = f"{name.removesuffix('weight')}parametrizations.weight."
        times = MaskTimes(weight.detach())
        parametrize.register_parametrization(model.get_submodule(layer), "weight", times)
        products.append(MaskedProduct(layer, f"{inside}original", f"{inside}0.mask"))
    return model, products


def join_weights(
    model: nn.Module, products: Sequence[MaskedProduct], keep: Mapping[str, Tensor]
) -> nn.Module:
    """Turn what :func:`split_weights` made back into ordinary masked weights, in place.

    Args:
        model: The model that was split.
        products: Names of its products.
        keep: Parameter name to bool mask, True where the weight is kept.

    Returns:
        The model.
    """
    for product in products:
        layer = model.get_submodule(product.layer)
        # The parametrization has taken the weight out of the layer's parameters and would append it
        # behind the bias. Optimizers and checkpoints know parameters by their order: weight first.
        order = ["weight", *layer._parameters]
        parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)
        layer._parameters = {name: layer._parameters[name] for name in order}
    masks.set_masks(model, keep)
    return model
