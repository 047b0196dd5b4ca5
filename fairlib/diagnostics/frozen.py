r"""Gradients with the kinks of a network held fixed, so that their differences are products.

A ReLU network is piecewise smooth. A difference of gradients :math:`\nabla J(\theta + \epsilon v) -
\nabla J(\theta)` that crosses kinks contains the jumps there, at any :math:`\epsilon` that rounding
allows, and is no Hessian-vector product. If every piecewise linear function stays on the piece that
it takes at :math:`\theta`, the network is smooth in its parameters, and the difference divided by
:math:`\epsilon` is the product that automatic differentiation gives, up to :math:`O(\epsilon)`, for
the price of one plain gradient."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Piece = Tensor | None
"""The piece that each input is on, as the function notes it; None in the first block."""

Held = tuple[Tensor, Tensor]
"""The output of a function, and the pieces of its inputs."""


class Pattern(TorchFunctionMode):
    """Hold piecewise linear functions on the pieces that they took in this pattern's first block.

    ReLU, leaky ReLU, ReLU6, hardtanh and max-pooling are held; every other function stays as it is.
    Later blocks must make the calls of the first one, in the same order."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[Any] = []
        self._next: int | None = None

    def __enter__(self) -> Pattern:
        self._next = None if self._next is None and not self._pieces else 0
        return super().__enter__()

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        hold, kwargs = _HELD.get(func), kwargs or {}
        if hold is None:
            return func(*args, **kwargs)
        if self._next is None:
            output, piece = hold(None, *args, **kwargs)
            self._pieces.append(piece)
        else:
            output, _ = hold(self._pieces[self._next], *args, **kwargs)
            self._next += 1
        return output

    @property
    def nbytes(self) -> int:
        """Memory of the recorded pieces in bytes."""
        return sum(piece.nbytes for piece in self._pieces)


def _relu(piece: Piece, input: Tensor, inplace: bool = False) -> Held:
    piece = input.detach().clone() if piece is None else piece
    # The kernel that differentiates a ReLU returns the input where the piece is above 0. It takes a
    # tenth of the time of a choice between two tensors, and is 0 where the input is infinite, as no
    # product with a mask is.
    return _put(torch.ops.aten.threshold_backward(input, piece, 0), input, inplace), piece


def _leaky_relu(
    piece: Piece, input: Tensor, negative_slope: float = 0.01, inplace: bool = False
) -> Held:
    piece = input > 0 if piece is None else piece
    return _put(torch.where(piece, input, negative_slope * input), input, inplace), piece


def _hardtanh(
    piece: Piece, input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Held:
    if piece is None:  # 0 below both values, 1 between them and 2 above.
        piece = (input > min_val).to(torch.int8) + (input >= max_val).to(torch.int8)
    output = torch.where(piece == 1, input, min_val + (max_val - min_val) * (piece == 2).to(input))
    return _put(output, input, inplace), piece


def _put(output: Tensor, input: Tensor, inplace: bool) -> Tensor:
    """Return the output, written into the input where the call works in place."""
    return input.copy_(output) if inplace else output


def _max_pool2d(piece: Piece, input: Tensor, *args: Any, **kwargs: Any) -> Held:
    if piece is None:
        with torch.no_grad():
            piece = functional.max_pool2d(input, *args, **kwargs | {"return_indices": True})[1]
    # A choice by positions is faster to differentiate than the pooling.
    return input.flatten(-2).gather(-1, piece.flatten(-2)).view(piece.shape), piece


_HELD: dict[Callable, Callable] = {
    **dict.fromkeys((functional.relu, torch.relu, Tensor.relu), _relu),
    **dict.fromkeys((functional.relu_, torch.relu_, Tensor.relu_), partial(_relu, inplace=True)),
    functional.leaky_relu: _leaky_relu,
    functional.leaky_relu_: partial(_leaky_relu, inplace=True),
    functional.hardtanh: _hardtanh,
    functional.hardtanh_: partial(_hardtanh, inplace=True),
    functional.relu6: partial(_hardtanh, min_val=0.0, max_val=6.0),
    **dict.fromkeys((functional.max_pool2d, torch.max_pool2d), _max_pool2d),
}
