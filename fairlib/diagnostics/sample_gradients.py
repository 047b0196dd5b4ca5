"""Gradient norms of single samples, for little more than the cost of one gradient of all."""

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fairlib.data import GroupedDataset
from fairlib.diagnostics.computable import SlowWarning, differentiating, finite
from fairlib.diagnostics.layer_gradients import RULES
from fairlib.diagnostics.objective import MeanLoss, differentiate
from fairlib.network import masks
from fairlib.network.evaluation import full_precision

SAVED = 2**27
"""Bytes that one pass may save for its backward pass."""


class _NotLayered(Exception):
    """One pass over a batch does not show the gradients of single samples; the message says why."""


def sample_gradient_norms(model: nn.Module, data: GroupedDataset) -> np.ndarray:
    r"""Compute the norm :math:`\|\nabla_\theta \ell_i\|_2` of every sample's loss gradient.

    The loss is the cross-entropy. One forward and one backward pass serve a whole batch. In a layer
    :math:`z_{ip} = W u_{ip} + b` with inputs u (the patches of a convolution) and gradients
    :math:`\delta_{ip} = \partial \ell_i / \partial z_{ip}` at positions p, the gradient of sample i
    in W is :math:`\sum_p \delta_{ip} u_{ip}^\top`, whose squared norm is also :math:`\sum_{pq}
    \langle \delta_{ip}, \delta_{iq} \rangle \langle u_{ip}, u_{iq} \rangle`; each layer takes the
    cheaper of the two. Linear layers, convolutions and batch, layer and group normalization are
    known. The result is compared with autograd on the sample of the largest norm.

    A slower way is taken for a reason that a warning shows: one backward pass for each sample,
    where that comparison fails, and where a parameter belongs to another kind of module, to two
    modules, or to one that is called twice or has hooks. (``vmap(grad)`` is slower where models are
    large, and does not know all of them.)

    Args:
        model: Any differentiable classifier whose samples do not interact; its mode, buffers and
            ``.grad`` are left as they were. It is evaluated in eval mode. :math:`\theta` are the
            parameters that require a gradient; pruned weights are left out.
        data: The samples.

    Returns:
        ``(N,)`` float64.

    Raises:
        NotComputable: If there is nothing to differentiate, torch cannot differentiate it, a batch
            normalization has no running statistics, or (NotFinite) outputs or a gradient are NaN or
            infinite.

    Warns:
        SlowWarning: If the slower way is taken, with the reason.

    Source:
        Goodfellow, Efficient per-example gradient computations (2015); the choice between the two
        forms: Bu, Mao and Xu, Scalable and efficient training of large convolutional neural
        networks with differential privacy (2022).

    Example:
        >>> import torch, fairlib
        >>> data = fairlib.GroupedDataset(torch.zeros(2, 1), [0, 1], [0, 1])
        >>> model = torch.nn.Linear(1, 2)
        >>> model.bias.data = torch.tensor([9.0, 1.0]).log()  # 0.1 and 0.9 times the root of two.
        >>> fairlib.diagnostics.sample_gradient_norms(model, data).round(2)
        array([0.14, 1.27])
    """
    loss = MeanLoss(model, data)
    with full_precision(), differentiating():
        try:
            squares = _in_one_pass(loss)
        except _NotLayered as reason:
            way = "gradients are taken one sample after another, which takes longer"
            warnings.warn(f"{way}: {reason}", SlowWarning, stacklevel=2)
            squares = torch.stack([_by_autograd(loss, i).sum() for i in range(len(loss.index))])
    return finite("the gradients", squares.sqrt().cpu()).numpy()


def _in_one_pass(loss: MeanLoss) -> Tensor:
    """Compute squared norms ``(N,)`` by hooks on the layers, and check them.

    Raises:
        _NotLayered: If hooks do not see all of the gradients, or see wrong ones.
    """
    layers, kept = _layers(loss), masks.read_masks(loss.model)
    anchor, parts = torch.zeros((), requires_grad=True, device=loss.device), []
    for index in loss.index.split(loss.samples_within(SAVED)):
        with _tapped(layers, kept, anchor, len(index)) as found:
            logits, residual, scale = _forward(loss, loss.theta, index)
            if logits.requires_grad:
                torch.autograd.grad(logits, anchor, residual, allow_unused=True)
        rows = torch.stack([found.get(name, torch.zeros_like(scale)) for name in loss.names])
        parts.append(rows * scale.square())
    squares = torch.cat(parts, dim=1)
    # Hooks miss a weight that is used outside its layer, samples that interact, and an axis that is
    # taken for the batch's. Autograd on one sample sees all of it; on the sample of the largest
    # norm rounding matters least.
    largest = int(squares.sum(0).nan_to_num().argmax())
    expected, found_there = _by_autograd(loss, largest).sqrt(), squares[:, largest].sqrt()
    tolerance = 1e-4 * float(expected.square().sum().sqrt())
    if not torch.allclose(found_there, expected, rtol=1e-3, atol=tolerance):
        raise _NotLayered(f"autograd gives another gradient for sample {largest}")
    return squares.sum(0)


def _by_autograd(loss: MeanLoss, i: int) -> Tensor:
    """Compute the squared norms of one sample's gradient, by parameter."""
    point = loss.theta.detach().requires_grad_()
    logits, residual, scale = _forward(loss, point, torch.tensor([i]))
    parts = loss.split(loss.project(differentiate(point, logits, residual))).values()
    return torch.stack([part.double().square().sum() for part in parts]) * scale.square()


def _forward(loss: MeanLoss, theta: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute logits, the loss's derivative in them divided by its norm, and that norm ``(N,)``."""
    logits = finite("the model's outputs", loss.logits(theta, index))
    targets = loss.data.labels(index, loss.device)[:, None]
    # The derivative is p - onehot(y), and gradients are proportional to its norm. A sample that is
    # fitted well has one so small that float32 would round p - 1 to zero, or its squares fall below
    # the range: it is computed in float64, as minus the sum of the other probabilities, and the
    # backward pass is over numbers of order one.
    residual = logits.detach().double().softmax(1).scatter(1, targets, 0)
    residual.scatter_(1, targets, -residual.sum(1, keepdim=True))
    norm = residual.norm(dim=1)
    direction = residual / norm.clamp(min=torch.finfo(torch.float64).tiny)[:, None]
    return logits, direction.to(logits.dtype), norm


def _layers(loss: MeanLoss) -> dict[str, nn.Module]:
    """Return the layers that own the parameters of a loss, by the prefix of their names.

    Raises:
        _NotLayered: If a parameter is not the weight or bias of a known layer, or not of one alone.
    """
    owners = Counter(loss.aliases.values())
    layers: dict[str, nn.Module] = {}
    for name in loss.names:
        prefix, _, kind = name.rpartition(".")
        layer = loss.model.get_submodule(prefix)
        if type(layer) not in RULES or kind not in ("weight", "bias"):
            raise _NotLayered(f"no rule is known for {name} of {type(layer).__name__}")
        if owners[name] > 1:
            raise _NotLayered(f"{name} belongs to several modules")
        if layer._forward_hooks or layer._backward_hooks:
            raise _NotLayered(f"{prefix} has hooks, which may change its outputs")
        layers[prefix] = layer
    return layers


@contextmanager
def _tapped(
    layers: dict[str, nn.Module], kept: dict[str, Tensor], anchor: Tensor, count: int
) -> Iterator[dict[str, Tensor]]:
    """Let a backward pass to ``anchor`` leave the squared norms ``(count,)`` of each parameter.

    Yields:
        The squared norms by parameter name; empty until the backward pass.
    """
    found: dict[str, Tensor] = {}
    called: set[str] = set()

    def tap(prefix: str, layer: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        if prefix in called or not args or {len(args[0]), len(output)} != {count}:
            raise _NotLayered(f"{prefix} is called twice, or not with a batch")
        called.add(prefix)
        dot = f"{prefix}." if prefix else ""

        def collect(inputs: Tensor, gradients: Tensor) -> None:
            mask = kept.get(f"{dot}weight")
            squares = RULES[type(layer)](layer, inputs, gradients, mask)
            found.update({f"{dot}{kind}": square for kind, square in squares.items()})

        # A zero with a gradient, so that autograd visits the output although no weight requires
        # one. Added in place, which spares a copy, and in-place activations may follow.
        output.add_(anchor)
        if output.requires_grad:
            output.register_hook(partial(collect, args[0].detach()))
        return output

    with ExitStack() as hooks:
        for prefix, layer in layers.items():
            hook = layer.register_forward_hook(partial(tap, prefix), prepend=True)
            hooks.enter_context(hook)
        yield found
