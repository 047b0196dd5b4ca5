"""Gradient norms of groups, beside the noise that a group of that size shows anyway."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from fairlib import masks
from fairlib._validation import check_number
from fairlib.data import GroupedDataset
from fairlib.diagnostics.evaluation import check_logits, evaluation_mode, placement

CHUNK = 256  # Samples of one backward pass.


def group_gradients(
    model: nn.Module, data: GroupedDataset, *, parameters: Sequence[str] | None = None, blocks: int = 64
) -> pd.DataFrame:
    r"""The norm of every group's gradient :math:`g_a = \nabla_\theta J(\theta; D_a)`, over the whole group.

    With per-sample gradients :math:`g_i` and :math:`n` samples in the group,

    - ``norm`` is :math:`\|g_a\|`, :math:`g_a = \frac1n \sum_i g_i`;
    - ``noise_floor`` is :math:`\operatorname{tr}\hat\Sigma_a / n`: what :math:`\|g_a\|^2` is in expectation when the
      true gradient is zero. It is larger for a smaller group, whatever the model does to it;
    - ``debiased_square`` is :math:`\|g_a\|^2 -` ``noise_floor``, an unbiased estimate of the squared norm of the
      true gradient, which may be negative.

    The group is dealt at random into :math:`B` blocks of sizes :math:`m_b` with mean gradients :math:`g_b`, and
    :math:`\operatorname{tr}\hat\Sigma_a = \frac{1}{B-1} \sum_b m_b \|g_b - g_a\|^2`, unbiased for every B from 2 on.
    So the floor costs no more than the gradient itself; with one sample a block it is the usual unbiased estimate.

    The mean of the norms of mini-batch gradients, published for this purpose, grows as a group shrinks even when all
    groups have one distribution.

    Args:
        model: Any differentiable classifier; its mode, buffers and ``.grad`` are left as they were. It is evaluated in
            eval mode. Of a pruned model only the weights it kept count.
        data: The gradient is that of the mean cross-entropy on this set.
        parameters: Names of the parameters that make up :math:`\theta`; by default all that require a gradient.
        blocks: The largest number of blocks B, at least 2.

    Returns:
        Indexed by group in the order of the codes, columns ``norm noise_floor debiased_square`` (float64). A group of
        one sample has no noise floor: NaN.

    Raises:
        ValueError: If a parameter name is unknown, there is nothing to differentiate, or ``blocks`` is below 2.

    Source:
        [T] Section 4 (group gradient norms); the noise floor is the classical variance of a mean, estimated as in a
        one-way analysis of variance.
    """
    check_number("blocks", blocks, 2, whole=True)
    theta, rest = _split(model, parameters)
    rows = {}
    with evaluation_mode(model):
        for code, name in enumerate(data.group_names):
            members = (data.groups == code).nonzero().flatten().cpu()
            n = len(members)
            dealt = members[torch.randperm(n, generator=torch.Generator().manual_seed(0))]
            mean = {key: torch.zeros_like(weight, dtype=torch.float64) for key, weight in theta.items()}
            squares = 0.0
            for block in dealt.tensor_split(min(blocks, n)) if n else ():
                gradient = _mean_gradient(model, theta, rest, data, block)
                squares += len(block) * _square(gradient)
                for key, value in gradient.items():
                    mean[key] += value * (len(block) / n)
            rows[name] = _moments(_square(mean), squares, n, min(blocks, n))
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("group")


def _mean_gradient(
    model: nn.Module, theta: dict[str, Tensor], rest: dict[str, Tensor], data: GroupedDataset, index: Tensor
) -> dict[str, Tensor]:
    """The gradient of the mean loss over some samples, in float64; zero at pruned weights."""
    device, dtype = placement(model)
    kept = masks.read(model)
    total = {key: torch.zeros_like(weight, dtype=torch.float64) for key, weight in theta.items()}
    for chunk in index.split(CHUNK):
        logits = functional_call(model, (theta, rest), (data.batch(chunk, dtype=dtype, device=device),))
        check_logits(logits, data)
        targets = data.targets[chunk.to(data.targets.device)].to(device)
        loss = cross_entropy(logits, targets, reduction="sum") / len(index)
        for key, value in zip(theta, torch.autograd.grad(loss, list(theta.values())), strict=True):
            total[key] += value * kept[key] if key in kept else value
    return total


def _square(vector: dict[str, Tensor]) -> float:
    return sum(float(value.square().sum()) for value in vector.values())


def _moments(square: float, squares: float, n: int, blocks: int) -> dict[str, float]:
    if n == 0:
        return dict.fromkeys(("norm", "noise_floor", "debiased_square"), float("nan"))
    floor = (squares - n * square) / (blocks - 1) / n if n > 1 else float("nan")
    return {"norm": square**0.5, "noise_floor": floor, "debiased_square": square - floor}


def _split(model: nn.Module, names: Sequence[str] | None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The parameters to differentiate, detached, and all other parameters and buffers."""
    everything = {name: weight.detach() for name, weight in model.named_parameters()}
    if names is None:
        names = [name for name, weight in model.named_parameters() if weight.requires_grad]
    unknown = [name for name in names if name not in everything]
    if unknown:
        raise ValueError(f"unknown parameter {unknown[0]!r}; known: {', '.join(everything)}")
    if not names:
        raise ValueError(f"{type(model).__name__} has no parameter that requires a gradient")
    theta = {name: everything[name].requires_grad_() for name in names}
    rest = {name: weight for name, weight in everything.items() if name not in theta}
    return theta, rest | dict(model.named_buffers())
