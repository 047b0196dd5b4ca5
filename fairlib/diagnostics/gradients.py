"""Gradient norms of groups, beside the noise that a group of that size shows anyway."""

from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor, nn

from fairlib._validation import check_number
from fairlib.data import GroupedDataset
from fairlib.diagnostics.objective import MeanLoss, check_parameters, members
from fairlib.diagnostics.sample_gradients import sample_gradient_norms
from fairlib.diagnostics.vectors import inner


def group_gradients(
    model: nn.Module,
    data: GroupedDataset,
    *,
    parameters: Sequence[str] | None = None,
    dtype: torch.dtype | None = None,
    blocks: int | None = None,
) -> pd.DataFrame:
    r"""The norm of every group's gradient :math:`g_a = \nabla_\theta J(\theta; D_a)`, over the whole group.

    With per-sample gradients :math:`g_i` and :math:`n` samples in the group,

    - ``norm`` is :math:`\|g_a\|`, :math:`g_a = \frac1n \sum_i g_i`;
    - ``noise_floor`` is :math:`\operatorname{tr}\hat\Sigma_a / n`: what :math:`\|g_a\|^2` is in expectation when the
      true gradient is zero. It is larger for a smaller group, whatever the model does to it;
    - ``debiased_square`` is :math:`\|g_a\|^2 -` ``noise_floor``, an unbiased estimate of the squared norm of the
      true gradient, which may be negative.

    :math:`\operatorname{tr}\hat\Sigma_a = \frac{1}{n-1} \sum_i \|g_i - g_a\|^2` comes from the samples' own norms
    (:func:`fairlib.diagnostics.sample_gradient_norms`). Where a network has layers that these do not know in one pass,
    the group can be dealt at random into :math:`B` blocks of sizes :math:`m_b` with mean gradients :math:`g_b` instead:
    :math:`\frac{1}{B-1} \sum_b m_b \|g_b - g_a\|^2`, as unbiased, and noisier.

    The mean of the norms of mini-batch gradients, published for this purpose, grows as a group shrinks even when all
    groups have one distribution.

    Args:
        model: Any differentiable classifier; its mode, buffers and ``.grad`` are left as they were. It is evaluated in
            eval mode. Of a pruned model only the weights it kept count.
        data: The gradient is that of the mean cross-entropy on this set.
        parameters: Names of the parameters that make up :math:`\theta`; by default all that require a gradient.
        dtype: ``torch.float64`` for a computation in float64; by default in the type of the parameters.
        blocks: The largest number of blocks B, at least 2; by default every sample is a block of its own.

    Returns:
        Indexed by group in the order of the codes, columns ``norm noise_floor debiased_square`` (float64). A group of
        one sample has no noise floor: NaN.

    Raises:
        NotComputable: As :func:`fairlib.diagnostics.sample_gradient_norms`.
        ValueError: If a parameter name is unknown, or ``blocks`` is below 2.

    Source:
        [T] Section 4 (group gradient norms); the noise floor is the classical variance of a mean, estimated as in a
        one-way analysis of variance.
    """
    if blocks is not None:
        check_number("blocks", blocks, 2, whole=True)
    check_parameters(model, parameters)
    settings = {"parameters": parameters, "dtype": dtype}
    norms = sample_gradient_norms(model, data, **settings) if blocks is None else None
    rows = {}
    for code, name in enumerate(data.group_names):
        index = members(data, code)
        n = len(index)
        if n == 0:
            rows[name] = dict.fromkeys(("norm", "noise_floor", "debiased_square"), float("nan"))
            continue
        loss = MeanLoss(model, data, index, **settings)
        if blocks is None:
            gradient = loss.gradient()
            square, squares, parts = inner(gradient, gradient), float((norms[index.cpu()] ** 2).sum()), n
        else:
            parts = min(blocks, n)
            square, squares = _in_blocks(loss, index, parts)
        rows[name] = _moments(square, squares, n, parts)
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("group")


def _in_blocks(loss: MeanLoss, index: Tensor, blocks: int) -> tuple[float, float]:
    r""":math:`\|g_a\|^2` and :math:`\sum_b m_b \|g_b\|^2` for a random deal."""
    n = len(index)
    dealt = index[torch.randperm(n, generator=torch.Generator().manual_seed(0))]
    mean, squares = torch.zeros_like(loss.theta, dtype=torch.float64), 0.0
    for block in dealt.tensor_split(blocks):
        gradient = loss.gradient(index=block)
        squares += len(block) * inner(gradient, gradient)
        mean += gradient * (len(block) / n)
    return inner(mean, mean), squares


def _moments(square: float, squares: float, n: int, blocks: int) -> dict[str, float]:
    floor = (squares - n * square) / (blocks - 1) / n if n > 1 else float("nan")
    return {"norm": square**0.5, "noise_floor": floor, "debiased_square": square - floor}
