"""Gradient norms of groups, beside the noise that a group of that size shows anyway."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from fairlib import masks
from fairlib.data import GroupedDataset
from fairlib.diagnostics.evaluation import check_logits, evaluation_mode, placement

_ENTRIES = 2**27  # Per-sample gradients held at once: half a gigabyte in float32.


def group_gradients(model: nn.Module, data: GroupedDataset, *, parameters: Sequence[str] | None = None) -> pd.DataFrame:
    r"""The norm of every group's gradient :math:`g_a = \nabla_\theta J(\theta; D_a)`, over the whole group.

    With per-sample gradients :math:`g_i` and :math:`n` samples in the group,

    - ``norm`` is :math:`\|g_a\|`, :math:`g_a = \frac1n \sum_i g_i`;
    - ``noise_floor`` is :math:`\operatorname{tr}\hat\Sigma_a / n`, with the unbiased
      :math:`\operatorname{tr}\hat\Sigma_a = \frac{1}{n-1} \sum_i \|g_i - g_a\|^2`: what :math:`\|g_a\|^2` is in
      expectation when the true gradient is zero. It is larger for a smaller group, whatever the model does to it;
    - ``debiased_square`` is :math:`\|g_a\|^2 -` ``noise_floor``, an unbiased estimate of the squared norm of the
      true gradient, which may be negative.

    The mean of the norms of mini-batch gradients, published for this purpose, grows as a group shrinks even when all
    groups have one distribution.

    Args:
        model: Any differentiable classifier; its mode, buffers and ``.grad`` are left as they were. It is evaluated in
            eval mode. Of a pruned model only the weights it kept count.
        data: The gradient is that of the mean cross-entropy on this set.
        parameters: Names of the parameters that make up :math:`\theta`; by default all that require a gradient.

    Returns:
        Indexed by group in the order of the codes, columns ``norm noise_floor debiased_square`` (float64). A group of
        one sample has no noise floor: NaN.

    Raises:
        ValueError: If a parameter name is unknown, or there is nothing to differentiate.

    Source:
        [T] Section 4 (group gradient norms); the noise floor is the classical variance of a mean.
    """
    theta, rest = _split(model, parameters)
    kept = {name: mask for name, mask in masks.read(model).items() if name in theta}
    device, dtype = placement(model)

    def loss(theta: dict[str, Tensor], inputs: Tensor, target: Tensor) -> Tensor:
        logits = functional_call(model, (theta, rest), (inputs.unsqueeze(0),))
        return cross_entropy(logits, target.unsqueeze(0))

    per_sample = vmap(grad(loss), in_dims=(None, 0, 0))
    chunk = max(1, min(256, _ENTRIES // sum(weight.numel() for weight in theta.values())))
    rows = {}
    with evaluation_mode(model):
        with torch.no_grad():
            check_logits(model(data.batch(torch.arange(1), dtype=dtype, device=device)), data)
        for code, name in enumerate(data.group_names):
            members = (data.groups == code).nonzero().flatten()
            total = {key: torch.zeros_like(weight, dtype=torch.float64) for key, weight in theta.items()}
            squares = 0.0
            for index in members.split(chunk) if len(members) else ():
                inputs = data.batch(index, dtype=dtype, device=device)
                gradients = per_sample(theta, inputs, data.targets[index].to(device))
                for key, gradient in gradients.items():
                    if key in kept:
                        gradient = gradient * kept[key]
                    squares += float(gradient.double().square().sum())
                    total[key] += gradient.double().sum(0)
            rows[name] = _moments(sum(float(g.square().sum()) for g in total.values()), squares, len(members))
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("group")


def _moments(square_of_sum: float, sum_of_squares: float, n: int) -> dict[str, float]:
    if n == 0:
        return dict.fromkeys(("norm", "noise_floor", "debiased_square"), float("nan"))
    square = square_of_sum / n**2
    floor = (sum_of_squares - n * square) / (n - 1) / n if n > 1 else float("nan")
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
    theta = {name: everything[name] for name in names}
    rest = {name: weight for name, weight in everything.items() if name not in theta}
    return theta, rest | dict(model.named_buffers())
