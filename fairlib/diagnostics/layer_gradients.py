"""Squared norms of every sample's gradient in the parameters of one layer.

A rule takes ``(layer, inputs, gradients, mask)``: the inputs of the layer ``(N, ...)``, the
gradients of its outputs ``(N, ...)``, and the mask of the weight or None; it returns the squared
norms ``(N,)`` (float64) of ``"weight"`` and ``"bias"``. ``RULES`` are all of them, by type of
layer."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

UNFOLDED = 2**21
"""Numbers of a layer's unfolded inputs and gradients held at once; few stay in the cache."""

Squares = dict[str, Tensor]


def _linear(layer: Any, inputs: Tensor, gradients: Tensor, mask: Tensor | None) -> Squares:
    # Axes between the batch and the features are positions, as in a convolution: the weights are
    # shared over them.
    u = inputs.reshape(len(inputs), 1, -1, inputs.shape[-1]).mT
    delta = gradients.reshape(len(gradients), 1, -1, gradients.shape[-1]).mT
    return _affine(u, delta, None if mask is None else mask[None])


def _convolution(layer: Any, inputs: Tensor, gradients: Tensor, mask: Tensor | None) -> Squares:
    groups, positions = layer.groups, gradients[0, 0].numel()
    entries = layer.weight[0].numel() * (groups * positions + layer.out_channels)
    step = max(1, UNFOLDED // entries)
    if mask is not None:
        mask = mask.reshape(groups, layer.out_channels // groups, -1)
    parts = []
    for some, delta in zip(inputs.split(step), gradients.split(step), strict=True):
        delta = delta.reshape(len(some), groups, -1, positions)
        parts.append(_affine(_patches(layer, some), delta, mask))
    return {kind: torch.cat([part[kind] for part in parts]) for kind in parts[0]}


def _patches(layer: Any, inputs: Tensor) -> Tensor:
    """Return what each output of a convolution sees, ``(N, groups, inputs, positions)``."""
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    patches = F.pad(inputs, layer._reversed_padding_repeated_twice, mode=mode)
    space = len(layer.kernel_size)
    # A view, not `F.unfold`, which knows neither one or three dimensions nor other paddings.
    for i, (kernel, stride, dilation) in enumerate(
        zip(layer.kernel_size, layer.stride, layer.dilation, strict=True)
    ):
        patches = patches.unfold(2 + i, (kernel - 1) * dilation + 1, stride)[..., ::dilation]
    order = (0, 1, *range(2 + space, 2 + 2 * space), *range(2, 2 + space))
    positions = math.prod(patches.shape[2 : 2 + space])
    return patches.permute(order).reshape(len(inputs), layer.groups, -1, positions)


def _affine(u: Tensor, delta: Tensor, mask: Tensor | None) -> Squares:
    """Compute the squared norms of a layer that is linear at each of several positions.

    Args:
        u: ``(N, groups, inputs, positions)``.
        delta: ``(N, groups, outputs, positions)``.
        mask: ``(groups, outputs, inputs)`` or None.
    """
    return {"weight": _outer(u, delta, mask), "bias": _square(delta.sum(3))}


def _outer(u: Tensor, delta: Tensor, mask: Tensor | None) -> Tensor:
    """Compute the squared norms of the sums over positions of outer products, ``(N,)``.

    There are three ways to the same number, and the cheapest by its multiplications is taken. The
    gradient itself has outputs times inputs entries, so that it is cheap where a layer has many
    positions and few channels; products between pairs of positions are cheap in the other case.
    """
    (inputs, positions), outputs = u.shape[2:], delta.shape[2]
    explicit = outputs * inputs * (positions + 16)  # 16 for the traffic of the gradient itself.
    if mask is None and positions**2 * (inputs + outputs) <= explicit:
        products = (u.mT @ u) * (delta.mT @ delta)
        return products.double().sum((1, 2, 3)).clamp(min=0)
    if mask is not None and positions * (positions + 1) // 2 * inputs * outputs <= 2 * explicit:
        # A mask between the factors leaves no product of two matrices, but one for each pair of
        # positions.
        p, q = torch.triu_indices(positions, positions, device=u.device)
        products = (delta[..., p] * delta[..., q]).mT @ mask.to(u) * (u[..., p] * u[..., q]).mT
        return (products.double().sum((1, 3)) * torch.where(p == q, 1.0, 2.0)).sum(1).clamp(min=0)
    gradient = delta @ u.mT
    return _square(gradient if mask is None else gradient * mask)


def _normalization(layer: Any, inputs: Tensor, gradients: Tensor, mask: Tensor | None) -> Squares:
    over = range(2, inputs.ndim)  # Axes over which a weight is shared.
    if isinstance(layer, nn.LayerNorm):
        normal = F.layer_norm(inputs, layer.normalized_shape, eps=layer.eps)
        over = range(1, inputs.ndim - len(layer.normalized_shape))
    elif isinstance(layer, nn.GroupNorm):
        normal = F.group_norm(inputs, layer.num_groups, eps=layer.eps)
    else:
        mean, variance = layer.running_mean.to(inputs), layer.running_var.to(inputs)
        normal = F.batch_norm(inputs, mean, variance, eps=layer.eps)
    slopes = {"weight": gradients * normal, "bias": gradients}
    if over:  # A sum over no axes would be one over all.
        slopes = {kind: slope.sum([*over]) for kind, slope in slopes.items()}
    if mask is not None:
        slopes["weight"] = slopes["weight"] * mask
    return {kind: _square(slope) for kind, slope in slopes.items()}


def _square(tensor: Tensor) -> Tensor:
    """Compute the squared norm of every sample: ``(N, ...)`` to ``(N,)`` in float64."""
    return torch.linalg.vector_norm(tensor.flatten(1), dim=1, dtype=torch.float64).square()


RULES: dict[type, Callable[..., Squares]] = {
    nn.Linear: _linear,
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), _convolution),
    **dict.fromkeys(
        (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm, nn.GroupNorm), _normalization
    ),
}
