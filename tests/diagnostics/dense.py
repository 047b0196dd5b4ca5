"""The Hessian of a group as a matrix, in float64: what products and bounds are compared with."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev
from torch.nn.functional import cross_entropy

import fairlib


def double_state(model: nn.Module) -> dict[str, Tensor]:
    state = dict(model.named_parameters()) | dict(model.named_buffers())
    return {
        name: tensor.detach().double() if tensor.is_floating_point() else tensor
        for name, tensor in state.items()
    }


def dense_hessian(model: nn.Module, data: fairlib.GroupedDataset, group: int) -> Tensor:
    """``(P, P)``, parameters in the order of the model; the model is in eval mode."""
    members = (data.groups == group).nonzero().flatten()
    inputs, targets = data.batch(members, dtype=torch.float64), data.targets[members]
    state = double_state(model)
    names = [name for name, _ in model.named_parameters()]
    sizes = [state[name].numel() for name in names]

    def loss(theta: Tensor) -> Tensor:
        parts = dict(zip(names, theta.split(sizes), strict=True))
        point = state | {name: part.view_as(state[name]) for name, part in parts.items()}
        return cross_entropy(functional_call(model, point, (inputs,)), targets)

    # Backwards twice: torch.func.hessian, forwards over backwards, is not symmetric in the weights
    # of a layer normalization (torch 2.15).
    return jacrev(grad(loss))(torch.cat([state[name].flatten() for name in names]))
