"""Gradient norms of single samples, for little more than the cost of one gradient of all
samples."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fairlib.data import GroupedDataset
from fairlib.diagnostics.computable import differentiating, finite
from fairlib.diagnostics.layer_gradients import RULES
from fairlib.diagnostics.objective import MeanLoss, differentiate
from fairlib.network import masks
from fairlib.network.evaluation import full_precision

KEPT = 2**27  # Bytes that one pass may keep for its backward pass.


class _Unsupported(Exception):
    """A layer whose gradient one pass over the batch does not give sample by sample."""


def sample_gradient_norms(
    model: nn.Module,
    data: GroupedDataset,
    *,
    parameters: Sequence[str] | None = None,
    dtype: torch.dtype | None = None,
) -> np.ndarray:
    r"""Compute the norm :math:`\|\nabla_\theta \ell_i\|_2` of the gradient of every sample's
    cross-entropy.

    One forward and one backward pass serve a whole batch. In a layer :math:`z_{ip} = W u_{ip} + b`
    with inputs u (the patches of a convolution) and gradients :math:`\delta_{ip} = \partial \ell_i
    / \partial z_{ip}` at positions p, the gradient of sample i in W is :math:`\sum_p \delta_{ip}
    u_{ip}^\top`, whose squared norm is also :math:`\sum_{pq} \langle \delta_{ip}, \delta_{iq}
    \rangle \langle u_{ip}, u_{iq} \rangle`; each layer takes the cheaper of the two. Linear layers,
    convolutions and batch, layer and group normalization are known. The result is compared with
    autograd on the sample of the largest norm; where that fails, and where a parameter belongs to
    another kind of module, to two modules, or to one that is called twice, ``vmap(grad)`` computes
    all, and a loop over the samples what vmap cannot.

    Args: model: Any differentiable classifier whose samples do not interact; its mode, buffers and
        ``.grad`` are left as
            they were. It is evaluated in eval mode. Pruned weights are left out.
        data: The samples.
        parameters: Names of the parameters that make up :math:`\theta`; by default all that require
            a gradient.
        dtype: Floating type of the computation, ``torch.float64``, say; by default that of the
            parameters. Squares are summed in float64 in any case.

    Returns:
        ``(N,)`` float64.

    Raises: NotComputable: If there is nothing to differentiate, torch cannot differentiate it, a
        batch normalization has no
            running statistics, or (NotFinite) outputs or a gradient are NaN or infinite.
        ValueError: If a parameter name is unknown.

    Source: Goodfellow, Efficient per-example gradient computations (2015); the choice between the
        two forms: Bu, Mao and Xu, Scalable and efficient training of large convolutional neural
        networks with differential privacy (2022).

    Example:
        >>> import torch, fairlib
        >>> data = fairlib.GroupedDataset(torch.zeros(2, 1), [0, 1], [0, 1])
        >>> model = torch.nn.Linear(1, 2)
        >>> model.bias.data = torch.tensor([9.0, 1.0]).log()  # Norms: 0.1 and 0.9 times the root of two.
        >>> fairlib.diagnostics.sample_gradient_norms(model, data).round(2)
        array([0.14, 1.27])
    """
    loss = MeanLoss(model, data, parameters=parameters, dtype=dtype)
    with full_precision(), differentiating():
        try:
            squares = _in_one_pass(loss)
        except torch.OutOfMemoryError:
            raise
        except (_Unsupported, RuntimeError):
            squares = _one_by_one(loss)
    return finite("the gradients", squares.sqrt().cpu()).numpy()


def _in_one_pass(loss: MeanLoss) -> Tensor:
    """Squared norms ``(N,)`` by hooks on the layers, and their check."""
    layers, kept = _owners(loss.model, loss.names), masks.read_masks(loss.model)
    anchor, total = torch.zeros((), requires_grad=True, device=loss.device), []
    for index in loss.index.split(loss.samples_within(KEPT)):
        with _tapped(layers, kept, anchor, len(index)) as found:
            logits, residual, scale = _forward(loss, loss.theta, index)
            if logits.requires_grad:
                torch.autograd.grad(logits, anchor, residual, allow_unused=True)
        rows = torch.stack([found.get(name, torch.zeros_like(scale)) for name in loss.names])
        total.append(rows * scale.square())
    squares = torch.cat(total, dim=1)
    _check(loss, squares)
    return squares.sum(0)


def _check(loss: MeanLoss, squares: Tensor) -> None:
    """Compare with autograd, parameter by parameter, on the sample of the largest norm.

    It sees what hooks cannot: a weight used outside its layer, samples that interact, an axis taken
    for the batch's."""
    i = int(squares.sum(0).nan_to_num().argmax())
    expected = _by_autograd(loss, i)
    found = squares[:, i]
    if not torch.allclose(
        found.sqrt(), expected.sqrt(), rtol=1e-3, atol=1e-4 * float(expected.sum().sqrt())
    ):
        raise _Unsupported(f"autograd gives another gradient for sample {i}")


def _one_by_one(loss: MeanLoss) -> Tensor:
    """Squared norms ``(N,)`` by ``vmap(grad)``, or by a loop where vmap cannot."""

    def square(i: Tensor, residual: Tensor) -> Tensor:
        gradient = torch.func.grad(lambda theta: loss.logits(theta, i[None])[0] @ residual)(
            loss.theta
        )
        return loss.project(gradient).double().square().sum()

    chunk = max(1, min(64, KEPT // loss.theta.nbytes, loss.samples_within(KEPT)))
    total = []
    try:
        for index in loss.index.split(chunk):
            with torch.no_grad():
                _, residual, scale = _forward(loss, loss.theta, index)
            total.append(torch.vmap(square)(index, residual) * scale.square())
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        return torch.stack([_by_autograd(loss, i).sum() for i in range(len(loss.index))])
    return torch.cat(total)


def _by_autograd(loss: MeanLoss, i: int) -> Tensor:
    """The squared norms of one sample, by parameter."""
    point = loss.theta.detach().requires_grad_()
    logits, residual, scale = _forward(loss, point, torch.tensor([i]))
    parts = loss.split(loss.project(differentiate(point, logits, residual))).values()
    return torch.stack([part.double().square().sum() for part in parts]) * scale.square()


def _forward(loss: MeanLoss, theta: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, the derivative of the loss in them, p - onehot(y), divided by its norm, and that norm
    ``(N,)``.

    A gradient is proportional to that norm. So the backward pass is over numbers of order one even
    where a sample is fitted so well that float32 rounds p - 1 to zero, or squares fall below its
    range."""
    logits = finite("the model's outputs", loss.logits(theta, index))
    targets = loss.data.labels(index, loss.device)[:, None]
    residual = logits.detach().double().softmax(1).scatter(1, targets, 0)
    residual.scatter_(1, targets, -residual.sum(1, keepdim=True))
    norm = residual.norm(dim=1)
    return (
        logits,
        (residual / norm.clamp(min=torch.finfo(torch.float64).tiny)[:, None]).to(logits.dtype),
        norm,
    )


def _owners(model: nn.Module, names: Sequence[str]) -> dict[str, tuple[nn.Module, list[str]]]:
    """The layers that own the named parameters, by prefix: the layer, and which of "weight" and
    "bias" are named."""
    owners = Counter(
        id(weight) for module in model.modules() for weight in module._parameters.values()
    )
    layers: dict[str, tuple[nn.Module, list[str]]] = {}
    for name in names:
        prefix, _, kind = name.rpartition(".")
        layer = model.get_submodule(prefix)
        if (
            type(layer) not in RULES
            or kind not in ("weight", "bias")
            or owners[id(getattr(layer, kind))] > 1
        ):
            raise _Unsupported(f"{name} of {type(layer).__name__}")
        if (
            layer._forward_hooks
            or layer._backward_hooks
            or getattr(layer, "running_mean", True) is None
        ):
            raise _Unsupported(f"{prefix} has hooks, or normalizes by the batch")
        layers.setdefault(prefix, (layer, []))[1].append(kind)
    return layers


@contextmanager
def _tapped(
    layers: dict[str, tuple[nn.Module, list[str]]],
    kept: dict[str, Tensor],
    anchor: Tensor,
    count: int,
) -> Iterator[dict[str, Tensor]]:
    """Within the block a backward pass to ``anchor`` leaves the squared norms ``(count,)`` of each
    parameter.

    Yields:
        The squared norms by parameter name; empty until the backward pass.
    """
    found: dict[str, Tensor] = {}
    called: set[str] = set()

    def tap(
        prefix: str, kinds: list[str], layer: nn.Module, args: tuple[Any, ...], output: Tensor
    ) -> Tensor:
        if prefix in called or not args or {len(args[0]), len(output)} != {count}:
            raise _Unsupported(f"{prefix} is called twice, or not with a batch")
        called.add(prefix)
        names = {kind: f"{prefix}.{kind}" if prefix else kind for kind in kinds}

        def collect(inputs: Tensor, gradients: Tensor) -> None:
            mask = kept.get(names.get("weight", ""))
            squares = RULES[type(layer)](layer, inputs, gradients, kinds, mask)
            found.update({names[kind]: square for kind, square in squares.items()})

        return _Tap.apply(output, args[0], anchor, collect)

    with ExitStack() as hooks:
        for prefix, (layer, kinds) in layers.items():
            hooks.enter_context(
                layer.register_forward_hook(partial(tap, prefix, kinds), prepend=True)
            )
        yield found


class _Tap(torch.autograd.Function):
    """The identity, whose backward pass hands a layer's inputs and the gradient of its outputs to
    ``collect``.

    It replaces the output in place (``mark_dirty``), so that in-place activations may follow, and
    depends on a leaf, so that autograd visits it although no weight requires a gradient."""

    @staticmethod
    def forward(
        ctx: Any, output: Tensor, inputs: Tensor, anchor: Tensor, collect: Callable
    ) -> Tensor:
        ctx.save_for_backward(inputs.detach())
        ctx.collect = collect
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        ctx.collect(*ctx.saved_tensors, gradient)
        return gradient, None, None, None
