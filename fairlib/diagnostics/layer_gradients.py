"""Squared norms of every sample's gradient in the parameters of one layer, from its inputs and
output gradients.

A rule takes ``(layer, inputs, gradients, kinds, mask)``: what the layer got ``(N, ...)``, the
gradients of its outputs ``(N, ...)``, which of ``"weight"`` and ``"bias"`` are asked for, and the
mask of the weight or None; it returns a squared norm ``(N,)`` (float64) for each of ``kinds``.
``RULES`` are all of them, by type of layer."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BLOCK = (
    2**21
    # Numbers of a layer's unfolded inputs and gradients held at once: small blocks stay in the
    # cache.
)

Squares = dict[str, Tensor]


def _linear(
    layer: nn.Linear, inputs: Tensor, gradients: Tensor, kinds: list[str], mask: Tensor | None
) -> Squares:
    u, delta = (
        tensor.reshape(len(tensor), -1, tensor.shape[-1]).mT for tensor in (inputs, gradients)
    )
    return _affine(u[:, None], delta[:, None], kinds, None if mask is None else mask[None])


def _convolution(
    layer: Any, inputs: Tensor, gradients: Tensor, kinds: list[str], mask: Tensor | None
) -> Squares:
    groups, positions = layer.groups, gradients[0, 0].numel()
    entries = layer.weight[0].numel() * (groups * positions + layer.out_channels)
    step = max(1, BLOCK // entries)
    mask = None if mask is None else mask.reshape(groups, layer.out_channels // groups, -1)
    parts = [
        _affine(_patches(layer, some), delta.reshape(len(some), groups, -1, positions), kinds, mask)
        for some, delta in zip(inputs.split(step), gradients.split(step), strict=True)
    ]
    return {kind: torch.cat([part[kind] for part in parts]) for kind in kinds}


def _patches(layer: Any, inputs: Tensor) -> Tensor:
    """What each output of a convolution sees, ``(N, groups, inputs, positions)``."""
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    patches = F.pad(inputs, layer._reversed_padding_repeated_twice, mode=mode)
    space = len(layer.kernel_size)
    for i, (kernel, stride, dilation) in enumerate(
        zip(layer.kernel_size, layer.stride, layer.dilation, strict=True)
    ):
        patches = patches.unfold(2 + i, (kernel - 1) * dilation + 1, stride)[..., ::dilation]
    order = (0, 1, *range(2 + space, 2 + 2 * space), *range(2, 2 + space))
    positions = math.prod(patches.shape[2 : 2 + space])
    return patches.permute(order).reshape(len(inputs), layer.groups, -1, positions)


def _affine(u: Tensor, delta: Tensor, kinds: list[str], mask: Tensor | None) -> Squares:
    """Squared norms ``(N,)``: of the sum over positions of outer products, and of the sum of
    gradients.

    Args:
        u: ``(N, groups, inputs, positions)``.
        delta: ``(N, groups, outputs, positions)``.
        kinds: Which of them are asked for.
        mask: ``(groups, outputs, inputs)`` or None.
    """
    return {
        kind: _outer(u, delta, mask) if kind == "weight" else _square(delta.sum(3))
        for kind in kinds
    }


def _outer(u: Tensor, delta: Tensor, mask: Tensor | None) -> Tensor:
    (inputs, positions), outputs = u.shape[2:], delta.shape[2]
    explicit = (
        outputs * inputs * (positions + 16)
    )  # Multiplications, and the traffic of the gradient itself.
    if mask is None and positions**2 * (inputs + outputs) <= explicit:
        products = (u.mT @ u) * (delta.mT @ delta)
        return products.double().sum((1, 2, 3)).clamp(min=0)
    if mask is not None and positions * (positions + 1) // 2 * inputs * outputs <= 2 * explicit:
        # The second form with a mask between the factors: a product for each pair of positions.
        p, q = torch.triu_indices(positions, positions, device=u.device)
        products = (delta[..., p] * delta[..., q]).mT @ mask.to(u) * (u[..., p] * u[..., q]).mT
        return (products.double().sum((1, 3)) * torch.where(p == q, 1.0, 2.0)).sum(1).clamp(min=0)
    gradient = delta @ u.mT
    return _square(gradient if mask is None else gradient * mask)


def _normalization(
    layer: Any, inputs: Tensor, gradients: Tensor, kinds: list[str], mask: Tensor | None
) -> Squares:
    if isinstance(layer, nn.LayerNorm):
        normal = F.layer_norm(inputs, layer.normalized_shape, eps=layer.eps)
    elif isinstance(layer, nn.GroupNorm):
        normal = F.group_norm(inputs, layer.num_groups, eps=layer.eps)
    else:
        normal = F.batch_norm(
            inputs, layer.running_mean.to(inputs), layer.running_var.to(inputs), eps=layer.eps
        )
    own = (
        range(inputs.ndim - len(layer.normalized_shape), inputs.ndim)
        if isinstance(layer, nn.LayerNorm)
        else (1,)
    )
    over = [axis for axis in range(1, inputs.ndim) if axis not in own]
    squares = {}
    for kind in kinds:
        gradient = gradients * normal if kind == "weight" else gradients
        summed = gradient.sum(over) if over else gradient
        squares[kind] = _square(summed * mask if kind == "weight" and mask is not None else summed)
    return squares


def _square(tensor: Tensor) -> Tensor:
    """Squared norm of every sample: ``(N, ...)`` to ``(N,)`` in float64."""
    return torch.linalg.vector_norm(tensor.flatten(1), dim=1, dtype=torch.float64).square()


RULES: dict[type, Callable[..., Squares]] = {
    nn.Linear: _linear,
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), _convolution),
    **dict.fromkeys(
        (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm, nn.GroupNorm), _normalization
    ),
}
