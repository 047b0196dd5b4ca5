"""Gradients that are known already, for constraints that need them before the step."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class _WithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, gradient: Sequence[Tensor], *parameters: Tensor) -> Tensor:
        ctx.gradient = gradient
        return value.clone()

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        return outer, None, *(outer * part for part in ctx.gradient)


def with_gradient(value: Tensor, gradient: Sequence[Tensor], parameters: Sequence[Tensor]) -> Tensor:
    """A scalar with, on top of its own, a gradient in the parameters that is known already; for constraints."""
    return _WithGradient.apply(value, gradient, *parameters)


def taken_gradient(loss: Tensor, model: nn.Module) -> tuple[Tensor, dict[int, Tensor]]:
    """The loss without its graph but with its gradient, and that gradient by the ``id`` of the parameter.

    For constraints that need what the step will descend on: nothing is differentiated twice. A parameter that the loss
    does not depend on has no gradient here either.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradient = torch.autograd.grad(loss, parameters, allow_unused=True)
    used = [(parameter, part) for parameter, part in zip(parameters, gradient, strict=True) if part is not None]
    value = with_gradient(loss.detach(), [part for _, part in used], [parameter for parameter, _ in used])
    return value, {id(parameter): part for parameter, part in used}
