"""The norm of every sample's own gradient, for little more than one gradient of them all costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairlib import masks
from fairlib.data import GroupedDataset
from fairlib.diagnostics.evaluation import check_logits, evaluation_mode, placement
from fairlib.diagnostics.objective import check_parameters, evaluate

FIRST = 8  # Samples of the first pass, which tells how many the next may take.
KEPT = 2**25  # Numbers that one pass may keep for its backward pass.
BLOCK = 2**21  # Numbers of a layer's unfolded inputs and gradients held at once: small blocks stay in the cache.


class _Unsupported(Exception):
    """A layer whose gradient one pass over the batch does not give sample by sample."""


def sample_gradient_norms(
    model: nn.Module, data: GroupedDataset, *, parameters: Sequence[str] | None = None
) -> np.ndarray:
    r"""The norm :math:`\|\nabla_\theta \ell_i\|_2` of every sample's gradient, :math:`\ell_i` its cross-entropy.

    One pass forward and one back serve a whole batch. In a layer :math:`z_{ip} = W u_{ip} + b` with inputs u (the
    patches of a convolution) and gradients :math:`\delta_{ip} = \partial \ell_i / \partial z_{ip}` at positions p, the
    gradient of sample i in W is :math:`\sum_p \delta_{ip} u_{ip}^\top`, whose squared norm is also
    :math:`\sum_{pq} \langle \delta_{ip}, \delta_{iq} \rangle \langle u_{ip}, u_{iq} \rangle`; each layer takes the
    cheaper of the two. Linear layers, convolutions and batch, layer and group normalization are known. The result is
    compared with autograd on the sample of the largest norm; where that fails, and where a parameter belongs to another
    kind of module, to two modules, or to one that is called twice, ``vmap(grad)`` computes all, and a loop over the
    samples what vmap cannot.

    Args:
        model: Any differentiable classifier whose samples do not interact; its mode, buffers and ``.grad`` are left as
            they were. It is evaluated in eval mode. Of a pruned model only the weights it kept count.
        data: The samples.
        parameters: Names of the parameters that make up :math:`\theta`; by default all that require a gradient.

    Returns:
        ``(N,)`` float64: computed in the dtype of the parameters, squares summed in float64.

    Raises:
        ValueError: If a parameter name is unknown, or there is nothing to differentiate.
        FloatingPointError: If a loss or a gradient is NaN or infinite.

    Source:
        Goodfellow, Efficient per-example gradient computations (2015); the choice between the two forms: Bu, Mao and
        Xu, Scalable and efficient training of large convolutional neural networks with differential privacy (2022).
    """
    names = check_parameters(model, parameters)
    with evaluation_mode(model):
        try:
            squares = _in_one_pass(model, data, names)
        except (_Unsupported, RuntimeError):
            squares = _one_by_one(model, data, names)
    norms = squares.sqrt().cpu().numpy()
    if not np.isfinite(norms).all():
        broken = int((~np.isfinite(norms)).sum())
        raise FloatingPointError(f"the gradient is NaN or infinite on {broken} of {len(data)} samples")
    return norms


def _in_one_pass(model: nn.Module, data: GroupedDataset, names: Sequence[str]) -> Tensor:
    """Squared norms ``(N,)`` by hooks on the layers, and their check."""
    layers = _owners(model, names)
    state = {name: tensor.detach() for name, tensor in [*model.named_parameters(), *model.named_buffers()]}
    total, start, size = [], 0, FIRST
    while start < len(data):
        index = torch.arange(start, min(start + size, len(data)))
        with _tapped(layers, masks.read(model), len(index)) as (anchor, found, held):
            logits, residual, scale = _forward(model, state, data, index)
            if logits.requires_grad:
                torch.autograd.grad(logits, anchor, residual, allow_unused=True)
        rows = torch.stack([found.get(name, torch.zeros_like(scale)) for name in names])
        total.append(rows * scale.square())
        start, size = start + len(index), max(1, KEPT * len(index) // max(1, sum(held)))
    squares = torch.cat(total, dim=1)
    _check(model, data, names, squares)
    return squares.sum(0)


def _check(model: nn.Module, data: GroupedDataset, names: Sequence[str], squares: Tensor) -> None:
    """Compare with autograd, parameter by parameter, on the sample of the largest norm.

    It sees what hooks cannot: a weight used outside its layer, samples that interact, an axis taken for the batch's.
    """
    i = int(squares.sum(0).nan_to_num().argmax())
    expected = _by_autograd(model, data, names, i)
    found = squares[:, i]
    if not torch.allclose(found.sqrt(), expected.sqrt(), rtol=1e-3, atol=1e-4 * float(expected.sum().sqrt())):
        raise _Unsupported(f"autograd gives another gradient for sample {i}")


def _one_by_one(model: nn.Module, data: GroupedDataset, names: Sequence[str]) -> Tensor:
    """Squared norms ``(N,)`` by ``vmap(grad)``, or by a loop where vmap cannot."""
    theta, rest = _divide(model, names)
    kept = masks.read(model)
    device, dtype = placement(model)

    def squares(inputs: Tensor, residual: Tensor) -> Tensor:
        def linearized(theta: dict[str, Tensor]) -> Tensor:
            return (evaluate(model, theta | rest, inputs[None])[0] * residual).sum()

        return _squares(torch.func.grad(linearized)(theta), kept).sum()

    chunk = max(1, min(64, KEPT // sum(weight.numel() for weight in theta.values())))
    total = []
    try:
        for index in torch.arange(len(data)).split(chunk):
            with torch.no_grad():
                _, residual, scale = _forward(model, theta | rest, data, index)
            inputs = data.batch(index, dtype=dtype, device=device)
            total.append(torch.vmap(squares)(inputs, residual) * scale.square())
    except RuntimeError:
        return torch.stack([_by_autograd(model, data, names, i).sum() for i in range(len(data))])
    return torch.cat(total)


def _by_autograd(model: nn.Module, data: GroupedDataset, names: Sequence[str], i: int) -> Tensor:
    """The squared norms of one sample, by parameter."""
    theta, rest = _divide(model, names)
    for weight in theta.values():
        weight.requires_grad_()
    logits, residual, scale = _forward(model, theta | rest, data, torch.tensor([i]))
    gradient = torch.autograd.grad(logits, list(theta.values()), residual, materialize_grads=True)
    return _squares(dict(zip(theta, gradient, strict=True)), masks.read(model)) * scale.square()


def _squares(gradient: dict[str, Tensor], kept: dict[str, Tensor]) -> Tensor:
    """Squared norm of each parameter's part, of the weights kept alone, in float64."""
    masked = (g * kept[name] if name in kept else g for name, g in gradient.items())
    return torch.stack([g.double().square().sum() for g in masked])


def _divide(model: nn.Module, names: Sequence[str]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The parameters to differentiate, detached, and all other parameters and buffers."""
    everything = {name: weight.detach() for name, weight in model.named_parameters()}
    theta = {name: everything.pop(name) for name in names}
    return theta, everything | dict(model.named_buffers())


def _forward(
    model: nn.Module, state: dict[str, Tensor], data: GroupedDataset, index: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, the direction of the loss's derivative by them, p - onehot(y) over its norm, and that norm ``(N,)``.

    A gradient is proportional to that norm. So the pass back is over numbers of order one also where a sample is fitted
    so well that float32 rounds p - 1 to zero, or squares fall below its range.
    """
    device, dtype = placement(model)
    logits = evaluate(model, state, data.batch(index, dtype=dtype, device=device))
    check_logits(logits, data)
    broken = int((~logits.detach().isfinite()).any(1).sum())
    if broken:
        raise FloatingPointError(f"the model's outputs are NaN or infinite on {broken} of {len(index)} samples")
    targets = data.targets[index.to(data.targets.device)].to(device)[:, None]
    residual = logits.detach().double().softmax(1).scatter(1, targets, 0)
    residual.scatter_(1, targets, -residual.sum(1, keepdim=True))
    norm = residual.norm(dim=1)
    return logits, (residual / norm.clamp(min=torch.finfo(torch.float64).tiny)[:, None]).to(logits.dtype), norm


def _owners(model: nn.Module, names: Sequence[str]) -> dict[str, tuple[nn.Module, list[str]]]:
    """The layers that own the parameters, and which of them: prefix -> (layer, ["weight", "bias"])."""
    owners: dict[int, int] = {}
    for module in model.modules():
        for weight in module._parameters.values():
            owners[id(weight)] = owners.get(id(weight), 0) + 1
    layers: dict[str, tuple[nn.Module, list[str]]] = {}
    for name in names:
        prefix, _, kind = name.rpartition(".")
        layer = model.get_submodule(prefix)
        if type(layer) not in _RULES or kind not in ("weight", "bias") or owners[id(getattr(layer, kind))] > 1:
            raise _Unsupported(f"{name} of {type(layer).__name__}")
        if layer._forward_hooks or layer._backward_hooks or getattr(layer, "running_mean", True) is None:
            raise _Unsupported(f"{prefix} has hooks, or normalizes by the batch")
        layers.setdefault(prefix, (layer, []))[1].append(kind)
    return layers


@contextmanager
def _tapped(
    layers: dict[str, tuple[nn.Module, list[str]]], kept: dict[str, Tensor], count: int
) -> Iterator[tuple[Tensor, dict[str, Tensor], list[int]]]:
    """While open, the layers leave their squared norms ``(count,)`` by parameter name when a pass comes back.

    Yields:
        The leaf to differentiate by; the squares to come; the numbers that each layer holds until then.
    """
    device = next((layer.weight.device for layer, _ in layers.values() if layer.weight is not None), None)
    anchor = torch.zeros((), requires_grad=True, device=device)
    found: dict[str, Tensor] = {}
    held: list[int] = []
    called: set[str] = set()

    def tap(prefix: str, kinds: list[str], layer: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        if prefix in called or not args or {len(args[0]), len(output)} != {count}:
            raise _Unsupported(f"{prefix} is called twice, or not with a batch")
        called.add(prefix)
        held.append(args[0].numel() + output.numel())
        names = {kind: f"{prefix}.{kind}" if prefix else kind for kind in kinds}

        def collect(inputs: Tensor, gradients: Tensor) -> None:
            mask = kept.get(names.get("weight", ""))
            squares = _RULES[type(layer)](layer, inputs, gradients, kinds, mask)
            found.update({names[kind]: square for kind, square in squares.items()})

        return _Tap.apply(output, args[0], anchor, collect)

    handles = [
        layer.register_forward_hook(partial(tap, prefix, kinds), prepend=True)
        for prefix, (layer, kinds) in layers.items()
    ]
    try:
        yield anchor, found, held
    finally:
        for handle in handles:
            handle.remove()


class _Tap(torch.autograd.Function):
    """The identity, which tells ``collect`` a layer's inputs and the gradient of its outputs on the way back.

    It takes the place of the output (``mark_dirty``), so that in-place activations may follow, and depends on a leaf,
    so that autograd comes by although no weight requires a gradient.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, inputs: Tensor, anchor: Tensor, collect: Callable) -> Tensor:
        ctx.save_for_backward(inputs.detach())
        ctx.collect = collect
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        ctx.collect(*ctx.saved_tensors, gradient)
        return gradient, None, None, None


Squares = dict[str, Tensor]


def _linear(layer: nn.Linear, inputs: Tensor, gradients: Tensor, kinds: list[str], mask: Tensor | None) -> Squares:
    u, delta = (
        tensor.flatten(1, -2).transpose(1, 2) for tensor in (_with_positions(inputs), _with_positions(gradients))
    )
    return _affine(u[:, None], delta[:, None], kinds, None if mask is None else mask[None])


def _with_positions(tensor: Tensor) -> Tensor:
    return tensor[:, None] if tensor.ndim == 2 else tensor


def _convolution(layer: Any, inputs: Tensor, gradients: Tensor, kinds: list[str], mask: Tensor | None) -> Squares:
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
    for i, (kernel, stride, dilation) in enumerate(zip(layer.kernel_size, layer.stride, layer.dilation, strict=True)):
        patches = patches.unfold(2 + i, (kernel - 1) * dilation + 1, stride)[..., ::dilation]
    order = (0, 1, *range(2 + space, 2 + 2 * space), *range(2, 2 + space))
    positions = math.prod(patches.shape[2 : 2 + space])
    return patches.permute(order).reshape(len(inputs), layer.groups, -1, positions)


def _affine(u: Tensor, delta: Tensor, kinds: list[str], mask: Tensor | None) -> Squares:
    """Squared norms ``(N,)``: of the sum over positions of outer products, and of the sum of gradients.

    Args:
        u: ``(N, groups, inputs, positions)``.
        delta: ``(N, groups, outputs, positions)``.
        kinds: Which of them are asked for.
        mask: ``(groups, outputs, inputs)`` or None.
    """
    squares = {}
    if "weight" in kinds:
        squares["weight"] = _outer(u, delta, mask)
    if "bias" in kinds:
        squares["bias"] = _square(delta.sum(3))
    return squares


def _outer(u: Tensor, delta: Tensor, mask: Tensor | None) -> Tensor:
    (inputs, positions), outputs = u.shape[2:], delta.shape[2]
    explicit = outputs * inputs * (positions + 16)  # Multiplications, and the traffic of the gradient itself.
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


def _normalization(layer: Any, inputs: Tensor, gradients: Tensor, kinds: list[str], mask: Tensor | None) -> Squares:
    if isinstance(layer, nn.LayerNorm):
        normal = F.layer_norm(inputs, layer.normalized_shape, eps=layer.eps)
        over = tuple(range(1, inputs.ndim - len(layer.normalized_shape)))
    else:
        normal = (
            F.group_norm(inputs, layer.num_groups, eps=layer.eps)
            if isinstance(layer, nn.GroupNorm)
            else F.batch_norm(inputs, layer.running_mean, layer.running_var, eps=layer.eps)
        )
        over = tuple(range(2, inputs.ndim))
    terms = {"weight": lambda: gradients * normal, "bias": lambda: gradients}
    return {kind: _square(terms[kind]().sum(over) if over else terms[kind]()) for kind in kinds}


def _square(tensor: Tensor) -> Tensor:
    """Squared norm of every sample: ``(N, ...)`` to ``(N,)`` in float64."""
    return torch.linalg.vector_norm(tensor.flatten(1), dim=1, dtype=torch.float64).square()


_RULES: dict[type, Callable[..., Squares]] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Conv3d: _convolution,
    nn.BatchNorm1d: _normalization,
    nn.BatchNorm2d: _normalization,
    nn.BatchNorm3d: _normalization,
    nn.LayerNorm: _normalization,
    nn.GroupNorm: _normalization,
}
