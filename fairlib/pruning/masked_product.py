"""Weights as products of a mask and a parameter, so that a pruned weight keeps its value.

A mask of :mod:`fairlib.network.masks` sets a pruned weight to zero for good. While a mask is
learned a weight may return, and then continues from the value that it had.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from fairlib.network import masks
from fairlib.network.copying import copied
from fairlib.network.keeping import Kept


def split_weights(model: nn.Module) -> tuple[nn.Module, list[str]]:
    """Copy a model such that every prunable weight is a product of a parameter and a mask of 1.

    Returns:
        The copy, and for each weight the prefix of the names of its parameter (``original``) and
        its mask (``0.mask``).
    """
    model, prefixes = copied(model), []
    for name, weight in masks.prunable(model).items():
        prefix, _, own = name.rpartition(".")
        layer = model.get_submodule(prefix)
        if isinstance(layer, nn.RNNBase):
            raise ValueError(
                f"{name} cannot be learned with a mask: {type(layer).__name__} reads it by itself"
            )
        parametrize.register_parametrization(layer, own, Kept(torch.ones_like(weight.detach())))
        prefixes.append(f"{prefix}.parametrizations.{own}.".removeprefix("."))
    return model, prefixes


def join_weights(
    model: nn.Module, prefixes: Sequence[str], keep: Mapping[str, Tensor]
) -> nn.Module:
    """Turn what :func:`split_weights` made back into ordinary masked weights, in place.

    Args:
        model: The model that was split.
        prefixes: Prefixes of the names of its parameters and masks.
        keep: Parameter name to bool mask, True where the weight is kept.

    Returns:
        The model.
    """
    for prefix in prefixes:
        head, _, own = prefix.removesuffix(".").rpartition("parametrizations.")
        layer = model.get_submodule(head.removesuffix("."))
        # The parametrization has taken the weight out of the layer's parameters and would append it
        # behind the bias. Optimizers and checkpoints know parameters by their order: weight first.
        order = [own, *layer._parameters]
        parametrize.remove_parametrizations(layer, own, leave_parametrized=False)
        layer._parameters = {name: layer._parameters[name] for name in order}
    masks.set_masks(model, keep)
    return model
