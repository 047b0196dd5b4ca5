"""Gradient of the loss with respect to the prunable weights, for methods that score by it."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm

from fairlib.data import GroupedDataset
from fairlib.models.normalization import fill_normalization
from fairlib.network import masks
from fairlib.network.copying import copied
from fairlib.network.evaluation import check_logits, placement

SAMPLES_PER_GRADIENT = 256
"""Largest number of samples of one backward pass."""


def scored_copy(model: nn.Module, data: GroupedDataset) -> nn.Module:
    """Copy a model to take gradients of: in eval mode, with every prunable weight differentiable.

    For a network at initialization the normalization of its inputs is filled from the data, as the
    first training would do, and a batch normalization that has seen no batch normalizes by the
    batches that pass through it.
    """
    scored = copied(model).eval()
    fill_normalization(scored, data)
    for module in scored.modules():
        if isinstance(module, _BatchNorm) and _is_fresh(module):
            module.train()
    for weight in masks.prunable(scored).values():
        weight.requires_grad_()
    return scored


def _is_fresh(module: _BatchNorm) -> bool:
    """Tell whether a batch normalization has seen no batch."""
    # The counter alone would not do: checkpoints of old versions have none, and loading one leaves
    # it at 0 beside trained statistics. Without statistics at all it is None.
    mean, variance = module.running_mean, module.running_var
    if module.num_batches_tracked != 0 or mean is None or variance is None:
        return False
    return not mean.any() and bool((variance == 1).all())


def check_groups(data: GroupedDataset) -> None:
    """Refuse data in which a group has no sample.

    Raises:
        ValueError: If one has none; names it.
    """
    missing = [name for name, size in data.group_sizes.items() if not size]
    if missing:
        raise ValueError(f"group {missing[0]!r} has no sample in the data; every group needs one")


def mean_gradient(scored: nn.Module, data: GroupedDataset, index: Tensor) -> dict[str, Tensor]:
    r"""Compute :math:`\nabla_w \frac1n \sum_i \ell_i` over the samples at ``index`` ``(n,)``.

    The gradient is zero where a mask of the model holds the weight at zero.

    Returns:
        Name of each prunable weight to a tensor of its shape.
    """
    device, dtype = placement(scored)
    weights = masks.prunable(scored)
    total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    # Chunks of equal size: batch normalization could do nothing with a single sample at the end.
    for chunk in index.tensor_split(math.ceil(len(index) / SAMPLES_PER_GRADIENT)):
        logits = scored(data.batch(chunk, dtype=dtype, device=device))
        check_logits(logits, data)
        loss = cross_entropy(logits, data.labels(chunk, device), reduction="sum") / len(index)
        gradients = torch.autograd.grad(loss, list(weights.values()), materialize_grads=True)
        for gradient, sum_ in zip(gradients, total.values(), strict=True):
            sum_ += gradient
    return total
