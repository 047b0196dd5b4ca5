"""Gradient norms of groups, with the noise that a group of that size has by chance."""

import math
from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor, nn

from fairlib.data import GroupedDataset
from fairlib.diagnostics.objective import MeanLoss, by_group, check_parameters
from fairlib.diagnostics.sample_gradients import sample_gradient_norms
from fairlib.diagnostics.vectors import inner


def group_gradients(
    model: nn.Module,
    data: GroupedDataset,
    *,
    parameters: Sequence[str] | None = None,
    dtype: torch.dtype | None = None,
) -> pd.DataFrame:
    r"""Compute the norm of every group's gradient :math:`g_a = \nabla_\theta J(\theta; D_a)`, over
    the whole group.

    With per-sample gradients :math:`g_i` and :math:`n` samples in the group,

    - ``norm`` is :math:`\|g_a\|`, :math:`g_a = \frac1n \sum_i g_i`;
    - ``noise_floor`` is :math:`\operatorname{tr}\hat\Sigma_a / n`: what :math:`\|g_a\|^2` is in
      expectation when the true gradient is zero. It is larger for a smaller group, whatever the
      model does to it;
    - ``debiased_square`` is :math:`\|g_a\|^2 -` ``noise_floor``, an unbiased estimate of the
      squared norm of the true gradient, which may be negative.

    :math:`\operatorname{tr}\hat\Sigma_a = \frac{1}{n-1} \sum_i \|g_i - g_a\|^2` comes from the
    gradient norms of the samples (:func:`fairlib.diagnostics.sample_gradient_norms`).

    The mean of the norms of mini-batch gradients, which was published for this purpose, grows as a
    group shrinks even when all groups have one distribution.

    Args: model: Any differentiable classifier; its mode, buffers and ``.grad`` are left as they
        were. It is evaluated in
            eval mode. Pruned weights are left out.
        data: The samples on which the mean cross-entropy is taken.
        parameters: Names of the parameters that make up :math:`\theta`; by default all that require
            a gradient.
        dtype: Floating type of the computation, ``torch.float64``, say; by default that of the
            parameters.

    Returns: Indexed by group in the order of the codes, columns ``norm noise_floor
        debiased_square`` (float64). A group of one sample has no noise floor: NaN.

    Raises: NotComputable: If there is nothing to differentiate, torch cannot differentiate it, a
        batch normalization has no
            running statistics, or (NotFinite) outputs or a gradient are NaN or infinite.
        ValueError: If a parameter name is unknown.

    Source: [T] Section 4 (group gradient norms); the noise floor is the classical variance of a
        mean, estimated as in a one-way analysis of variance.

    Example: Samples that look alike are given the probabilities 0.9 and 0.1: the minimum of the
        mean loss. The gradients of the groups are not zero there; weighted by size they cancel,
        :math:`9 \cdot 0.14 = 1.27`.

        >>> import torch, fairlib
        >>> data = fairlib.GroupedDataset(torch.zeros(10, 1), [0] * 9 + [1], [0] * 9 + [1], group_names=["many", "few"])
        >>> model = torch.nn.Linear(1, 2)
        >>> model.bias.data = torch.tensor([9.0, 1.0]).log()
        >>> fairlib.diagnostics.group_gradients(model, data)["norm"].round(2).to_dict()
        {'many': 0.14, 'few': 1.27}
    """
    check_parameters(model, parameters)
    norms = sample_gradient_norms(model, data, parameters=parameters, dtype=dtype)

    def row(_: str, index: Tensor) -> tuple[float, float, float]:
        loss, n = MeanLoss(model, data, index, parameters=parameters, dtype=dtype), len(index)
        gradient = loss.gradient()
        square, squares = inner(gradient, gradient), float((norms[index.numpy()] ** 2).sum())
        floor = (squares - n * square) / (n - 1) / n if n > 1 else math.nan
        return square**0.5, floor, square - floor

    return by_group(data, ("norm", "noise_floor", "debiased_square"), row)
