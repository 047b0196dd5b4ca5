"""Scalars whose gradient is known in advance, for constraints that need or compute it
themselves."""

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


def taken_gradient(loss: Tensor, model: nn.Module) -> tuple[Tensor, dict[int, Tensor]]:
    """Differentiate a loss now, so that a constraint can use the gradient before the step without a
    second pass.

    Returns: The loss, whose ``backward`` delivers the gradient that was taken, and that gradient by
        the ``id`` of the parameter. Parameters that the loss does not depend on are left out.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradient = torch.autograd.grad(loss, parameters, allow_unused=True)
    used = [
        (parameter, part)
        for parameter, part in zip(parameters, gradient, strict=True)
        if part is not None
    ]
    value = with_gradient(
        loss.detach(), [part for _, part in used], [parameter for parameter, _ in used]
    )
    return value, {id(parameter): part for parameter, part in used}
