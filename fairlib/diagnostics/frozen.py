r"""Gradients with the kinks of a network held where they are: what makes differences of gradients exact enough.

A ReLU network is piecewise smooth. A difference of gradients :math:`\nabla J(\theta + \epsilon v) - \nabla J(\theta)`
that crosses kinks contains the jumps there, at any :math:`\epsilon` that rounding allows, and is no Hessian-vector
product. If every piecewise linear function stays on the piece that it takes at :math:`\theta`, the network is smooth
in its parameters, and the difference divided by :math:`\epsilon` is the product that automatic differentiation gives,
up to :math:`O(\epsilon)`, for the price of one plain gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class Pattern(TorchFunctionMode):
    """Within its block, piecewise linear functions take the pieces that they took in the first block.

    ReLU, leaky ReLU, ReLU6 (hardtanh) and max-pooling are held; every other function stays as it is. The calls of a
    block must be those of the first one, in their order.
    """

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[Any] = []
        self._next: int | None = None

    def __enter__(self) -> Pattern:
        self._next = None if self._next is None and not self._pieces else 0
        return super().__enter__()

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        hold = _HELD.get(func)
        if hold is None:
            return func(*args, **(kwargs or {}))
        if self._next is None:
            output, piece = hold(None, *args, **(kwargs or {}))
            self._pieces.append(piece)
            return output
        output, _ = hold(self._pieces[self._next], *args, **(kwargs or {}))
        self._next += 1
        return output

    @property
    def nbytes(self) -> int:
        """Memory of what is held."""
        return sum(piece.nbytes for piece in self._pieces)


def _relu(piece: Tensor | None, input: Tensor, inplace: bool = False) -> tuple[Tensor, Tensor]:
    piece = (input > 0).to(input.dtype) if piece is None else piece
    # The kernel that differentiates a ReLU: the input where the piece is above 0, in a tenth of the time of a choice
    # between two tensors, and unlike a product 0 where the input is infinite.
    return _put(torch.ops.aten.threshold_backward(input, piece, 0), input, inplace), piece


def _leaky_relu(
    piece: Tensor | None, input: Tensor, negative_slope: float = 0.01, inplace: bool = False
) -> tuple[Tensor, Tensor]:
    piece = input > 0 if piece is None else piece
    return _put(torch.where(piece, input, negative_slope * input), input, inplace), piece


def _hardtanh(
    piece: Tensor | None, input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> tuple[Tensor, Tensor]:
    if piece is None:
        piece = (input > min_val).to(torch.int8) + (input >= max_val).to(torch.int8)
    output = torch.where(piece == 1, input, min_val + (max_val - min_val) * (piece == 2).to(input))
    return _put(output, input, inplace), piece


def _relu6(piece: Tensor | None, input: Tensor, inplace: bool = False) -> tuple[Tensor, Tensor]:
    return _hardtanh(piece, input, 0.0, 6.0, inplace)


def _put(output: Tensor, input: Tensor, inplace: bool) -> Tensor:
    """The output; in the place of the input where others may look for it there."""
    return input.copy_(output) if inplace else output


def _max_pool2d(piece: Tensor | None, input: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    kwargs.pop("return_indices", None)
    if piece is None:
        return functional.max_pool2d(input, *args, return_indices=True, **kwargs)
    return input.flatten(-2).gather(-1, piece.flatten(-2)).view(piece.shape), piece


_HELD: dict[Callable, Callable] = {
    **dict.fromkeys((functional.relu, torch.relu, Tensor.relu), _relu),
    **dict.fromkeys((functional.relu_, torch.relu_, Tensor.relu_), partial(_relu, inplace=True)),
    functional.leaky_relu: _leaky_relu,
    functional.leaky_relu_: partial(_leaky_relu, inplace=True),
    functional.hardtanh: _hardtanh,
    functional.hardtanh_: partial(_hardtanh, inplace=True),
    functional.relu6: _relu6,
    **dict.fromkeys((functional.max_pool2d, torch.max_pool2d), _max_pool2d),
}
