"""The gradient of the loss in the prunable weights, which several scores are made of."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm

from fairlib import masks
from fairlib.data import GroupedDataset
from fairlib.diagnostics.evaluation import check_logits, placement

CHUNK = 256  # Samples of one backward pass.


def scored_copy(model: nn.Module) -> nn.Module:
    """A copy to take gradients of, so that scoring changes nothing: in eval mode, every prunable weight differentiable.

    A batch normalization that has seen no batch yet, as in a network at initialization, has no statistics of its own:
    it normalizes by those of the batch.
    """
    scored = copy.deepcopy(model).eval()
    for module in scored.modules():
        if isinstance(module, _BatchNorm) and module.track_running_stats and not module.num_batches_tracked:
            module.train()
    for weight in masks.prunable(scored).values():
        weight.requires_grad_()
    return scored


def mean_gradient(scored: nn.Module, data: GroupedDataset, index: Tensor) -> dict[str, Tensor]:
    r""":math:`\nabla_w \frac1n \sum_i \ell_i` over the samples at ``index`` ``(n,)``, for every prunable weight.

    Zero where a mask of the model holds the weight at zero.

    Returns:
        Parameter name to tensor of the weight's shape.
    """
    device, dtype = placement(scored)
    weights = masks.prunable(scored)
    total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for chunk in index.split(CHUNK):
        logits = scored(data.batch(chunk, dtype=dtype, device=device))
        check_logits(logits, data)
        targets = data.targets[chunk.to(data.targets.device)].to(device)
        loss = cross_entropy(logits, targets, reduction="sum") / len(index)
        gradients = torch.autograd.grad(loss, list(weights.values()), materialize_grads=True)
        for gradient, sum_ in zip(gradients, total.values(), strict=True):
            sum_ += gradient
    return total
