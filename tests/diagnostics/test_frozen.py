from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from fairlib.diagnostics.frozen import Pattern

FUNCTIONS = {
    "relu": functional.relu,
    "in place": lambda x: functional.relu(x + 0, inplace=True),
    "method": lambda x: x.relu(),
    "leaky": lambda x: functional.leaky_relu(x, 0.2),
    "relu6": lambda x: functional.relu6(4 * x),
    "hardtanh": lambda x: functional.hardtanh(x, -0.5, 0.25),
    "pool": lambda x: functional.max_pool2d(x, 2),
    "overlapping pool": lambda x: functional.max_pool2d(x, 3, stride=2, padding=1),
    "module": nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_the_pieces_of_the_first_block_hold_in_later_ones(function):
    inputs = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
    direction = torch.randn(inputs.shape, generator=torch.Generator().manual_seed(1))
    pattern = Pattern()
    with pattern:
        first = function(inputs)
    plain = function(inputs)
    torch.testing.assert_close(first, plain)
    # On its piece the function is affine: a large step along the direction follows the derivative
    # at the start.
    (slope,) = torch.autograd.grad(plain, inputs, torch.ones_like(plain))
    for _ in range(2):
        with pattern:
            later = function(inputs.detach() + 3 * direction)
        assert float((later.detach() - plain.detach()).sum()) == pytest.approx(
            3 * float((slope * direction).sum()), rel=1e-4
        )
    assert not torch.allclose(function(inputs.detach() + 3 * direction), later)
    assert pattern.nbytes > 0


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    "settings", [{"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1}]
)
def test_pooling_is_that_of_torch_with_two_derivatives_and_in_either_memory_format(
    layout, settings
):
    images = torch.randn(
        3, 4, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ).relu()  # Ties.
    images[0, 0, 3, 3], images[1, 1, 5, 5] = torch.inf, torch.nan
    inputs = images.contiguous(memory_format=layout).requires_grad_()
    plain, pattern = functional.max_pool2d(inputs, **settings), Pattern()
    weights = torch.rand_like(plain).requires_grad_()
    (expected,) = torch.autograd.grad((weights * plain).nan_to_num(posinf=0).sum(), inputs)
    for _ in range(2):
        with pattern:
            held = functional.max_pool2d(inputs, **settings)
        assert torch.equal(held.isnan(), plain.isnan()) and torch.equal(
            held.nan_to_num(), plain.nan_to_num()
        )
        (found,) = torch.autograd.grad(
            (weights * held).nan_to_num(posinf=0).sum(), inputs, create_graph=True
        )
        torch.testing.assert_close(found, expected)
        (twice,) = torch.autograd.grad(found.square().sum(), weights)
        assert bool(twice.any())


def test_outside_the_block_nothing_is_held():
    pattern = Pattern()
    with pattern:
        functional.relu(torch.tensor([1.0, -1.0]))
    assert functional.relu(torch.tensor([-1.0, 1.0])).tolist() == [0, 1]
    with pattern:
        assert functional.relu(torch.tensor([-1.0, 1.0])).tolist() == [-1, 0]


def test_an_infinite_input_is_held_as_the_function_takes_it():
    inputs = torch.tensor([-torch.inf, torch.inf, 2.0])
    for function in (functional.relu, functional.relu6, functional.hardtanh):
        with Pattern() as pattern:
            first = function(inputs)
        with pattern:
            torch.testing.assert_close(function(inputs), first)
        torch.testing.assert_close(first, function(inputs))
