"""Scalars whose gradient is known in advance, for constraints that need or compute it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class _WithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, gradient: Sequence[Tensor], *parameters: Tensor) -> Tensor:
        ctx.gradient = gradient
        # A clone: autograd takes an input that is returned as it is for an alias of it.
        return value.clone()

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        return outer, None, *(outer * part for part in ctx.gradient)


def with_gradient(
    value: Tensor, gradient: Sequence[Tensor], parameters: Sequence[Tensor]
) -> Tensor:
    """Return a scalar to whose gradient in the parameters a known one is added.

    Args:
        value: Scalar; what it depends on by itself is differentiated as usual.
        gradient: The tensors to add, one for each parameter and of its shape.
        parameters: The parameters.
    """
    return _WithGradient.apply(value, gradient, *parameters)


def taken_gradient(loss: Tensor, model: nn.Module) -> tuple[Tensor, dict[Tensor, Tensor]]:
    """Differentiate a loss now, so that a constraint can use the gradient before the step.

    A second pass is not needed: the ``backward`` of the returned loss delivers what was taken.

    Returns:
        The loss, and its gradient by parameter. Parameters that the loss does not depend on are
        left out: a zero would be another thing for an optimizer, which decays weights that have a
        gradient and leaves those alone that have none.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    slopes = torch.autograd.grad(loss, parameters, allow_unused=True)
    pairs = zip(parameters, slopes, strict=True)
    gradient: dict[Tensor, Tensor] = {key: slope for key, slope in pairs if slope is not None}
    return with_gradient(loss.detach(), list(gradient.values()), list(gradient)), gradient
