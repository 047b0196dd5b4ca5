"""Gradient norms of groups, with the noise that a group of that size has by chance."""

import math

import pandas as pd
from torch import Tensor, nn

from fairlib.data import GroupedDataset
from fairlib.diagnostics.objective import MeanLoss, group_table
from fairlib.diagnostics.sample_gradients import sample_gradient_norms
from fairlib.diagnostics.vectors import inner


def group_gradients(model: nn.Module, data: GroupedDataset) -> pd.DataFrame:
    r"""Compute the norm of every group's gradient :math:`g_a = \nabla_\theta J(\theta; D_a)`.

    With per-sample gradients :math:`g_i` and :math:`n` samples in the group, all of them at once,

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

    Args:
        model: Any differentiable classifier; its mode, buffers and ``.grad`` are left as they were.
            It is evaluated in eval mode. :math:`\theta` are the parameters that require a gradient;
            pruned weights are left out.
        data: The samples on which the mean cross-entropy is taken.

    Returns:
        Indexed by group in the order of the codes, columns ``norm noise_floor debiased_square``
        (float64). A group of one sample has no noise floor: NaN.

    Raises:
        NotComputable: If there is nothing to differentiate, torch cannot differentiate it, a batch
            normalization has no running statistics, or (NotFinite) outputs or a gradient are NaN or
            infinite.

    Warns:
        SlowWarning: As :func:`fairlib.diagnostics.sample_gradient_norms` does.

    Source:
        [T] Section 4 (group gradient norms); the noise floor is the classical variance of a mean,
        estimated as in a one-way analysis of variance.

    Example:
        Samples that look alike are given the probabilities 0.9 and 0.1: the minimum of the mean
        loss. The gradients of the groups are not zero there; weighted by size they cancel, :math:`9
        \cdot 0.14 = 1.27`.

        >>> import torch, fairlib
        >>> groups, names = [0] * 9 + [1], ["many", "few"]
        >>> data = fairlib.GroupedDataset(torch.zeros(10, 1), groups, groups, group_names=names)
        >>> model = torch.nn.Linear(1, 2)
        >>> model.bias.data = torch.tensor([9.0, 1.0]).log()
        >>> fairlib.diagnostics.group_gradients(model, data)["norm"].round(2).to_dict()
        {'many': 0.14, 'few': 1.27}
    """
    norms = sample_gradient_norms(model, data)

    def row(_: str, index: Tensor) -> tuple[float, float, float]:
        gradient, n = MeanLoss(model, data, index).gradient(), len(index)
        square, squares = inner(gradient, gradient), float((norms[index.numpy()] ** 2).sum())
        # The sum of squared deviations is the sum of squares minus n times the square of the mean.
        # It needs the norms of the samples' gradients only, never the gradients: those of a group
        # would take n times the memory of the model.
        floor = (squares - n * square) / (n - 1) / n if n > 1 else math.nan
        return square**0.5, floor, square - floor

    return group_table(data, ("norm", "noise_floor", "debiased_square"), row)
