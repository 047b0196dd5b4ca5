"""Theorem 2: closeness to the boundary and errors bound the curvature of a group's loss."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from fairlib._validation import check_number
from fairlib.data import GroupedDataset
from fairlib.diagnostics.computable import differentiating, finite
from fairlib.diagnostics.lanczos import lanczos
from fairlib.diagnostics.objective import MeanLoss, differentiate, group_table
from fairlib.network.evaluation import full_precision
from fairlib.randomness import generator

BOUNDS = ("closeness", "spectral", "signed", "printed", "residual")


def hessian_bound(
    model: nn.Module,
    data: GroupedDataset,
    *,
    tol: float = 1e-4,
    limit: int = 200,
    seed: int = 0,
) -> pd.DataFrame:
    r"""Bound the largest eigenvalue of every group's Hessian, :math:`\lambda_{\max}(H_a)`, above.

    With logits :math:`z(\theta) \in \mathbb R^C` of one sample, their Jacobian :math:`J` ``(C,
    P)``, the softmax :math:`p` and the one-hot target :math:`y`, the Hessian of the sample's
    cross-entropy is

    .. math:: J^\top (\operatorname{diag} p - p p^\top) J + S, \qquad S = \sum_c (p_c - y_c)
        \nabla_\theta^2 z_c .

    The largest eigenvalue of a sum is at most the sum of the largest ones (Weyl), so
    :math:`\lambda_{\max}(H_a)` is at most the mean over the group of those of both parts:

    - ``closeness`` is the mean of the first part's, exactly, from a C by C matrix. With two classes
      it is :math:`p (1 - p) \|\nabla_\theta (z_1 - z_0)\|^2`, large near the decision boundary;
    - ``signed`` is ``closeness`` plus the mean of :math:`\lambda_{\max}(S)`;
    - ``spectral`` is ``closeness`` plus the mean of :math:`\|S\|_2`, so never below ``signed``.
      With two classes :math:`\|S\|_2 = |p - y| \, \|\nabla_\theta^2 (z_1 - z_0)\|_2`, large where
      the model errs;
    - ``printed`` is ``closeness`` plus the mean of :math:`|p - y| \, \lambda_{\max}(\nabla_\theta^2
      (z_1 - z_0))`, as the theorem is printed, its f read as the logit. **It is no bound**: for a
      sample with :math:`y = 1` the factor :math:`p - y` is negative, and it is the smallest
      eigenvalue that counts. With :math:`z_1 - z_0 = c - k t^2 / 2` at :math:`t = 0` and :math:`y =
      1` the truth is :math:`(1 - p) k > 0` and the printed value :math:`-(1 - p) k`. NaN for more
      than two classes.

    Read literally, with the probability in the place of f, the theorem fails already for logistic
    regression: at :math:`p = 1/2, x = 1` the truth is 1/4 and the printed bound 1/64.

    The eigenvalues of S come from a Lanczos process for every sample, and its residual is added in
    ``signed`` and ``spectral``. Where there are at most ``limit`` parameters it exhausts the space,
    and the eigenvalues are exact up to rounding. Otherwise they are upper estimates, too large by
    about ``tol`` times themselves where the process converged, and bounds unless it missed the end
    of the spectrum, which is rare and cannot be ruled out. At a point where the model is not
    smooth, derivatives are those of automatic differentiation. All is computed in float64.

    Args:
        model: Any differentiable classifier; its mode, buffers and ``.grad`` are left as they were.
            It is evaluated in eval mode. :math:`\theta` are the parameters that require a gradient;
            pruned weights are left out.
        data: The samples. The Jacobian ``(C, P)`` and the Lanczos vectors of one sample must fit
            into memory. A part of many samples gives estimates, which are no longer certain bounds
            (``data.subset``).
        tol: Residual at which a Lanczos process ends, as a share of the sample's bound.
        limit: Largest number of Hessian-vector products for each sample.
        seed: Seed of the vector from which every Lanczos process starts.

    Returns:
        Indexed by group in the order of the codes (float64): ``closeness``, ``spectral``,
        ``signed`` and ``printed``; and ``residual``, the mean residual contained in ``spectral``
        and ``signed``: above ``tol`` times ``spectral`` processes did not converge, and both may be
        too small. A group without samples has NaN.

    Raises:
        NotComputable: If there is nothing to differentiate, torch cannot differentiate it twice, or
            (NotFinite) logits or their derivatives are NaN or infinite.
        ValueError: If a number is out of range.

    Source:
        [T] Theorem 2 (Eqs 6, 10-13), [D] Proposition 4.5, both corrected: the spectral norm, or the
        signed end of the spectrum, in the place of the largest eigenvalue, and logits in the place
        of f.

    Example:
        For a linear model :math:`S` is zero, and the bound is what
        :func:`fairlib.diagnostics.group_eigenvalues` finds.

        >>> import torch, fairlib
        >>> groups = [0] * 9 + [1]
        >>> data = fairlib.GroupedDataset(torch.zeros(10, 1), groups, groups)
        >>> model = torch.nn.Linear(1, 2)
        >>> model.bias.data = torch.tensor([9.0, 1.0]).log()
        >>> fairlib.diagnostics.hessian_bound(model, data)["signed"].round(3).to_dict()
        {'0': 0.18, '1': 0.18}
    """
    check_number("limit", limit, 1, whole=True)
    check_number("tol", tol, 0, 1, low_open=True)
    objective = MeanLoss(model, data, dtype=torch.float64)
    objective.gradient_graph(objective.index[:1])  # Refuses what can be differentiated only once.
    shape = objective.theta.shape
    noise = torch.randn(shape, generator=generator(seed), dtype=torch.float64)
    start = objective.project(noise.to(objective.theta))

    def row(_: str, index: Tensor) -> Sequence[float]:
        bounds = [_sample_bounds(objective, one, start, tol, limit) for one in index.split(1)]
        return np.mean(bounds, axis=0)

    return group_table(data, BOUNDS, row)


@full_precision()
@differentiating()
def _sample_bounds(
    objective: MeanLoss, sample: Tensor, start: Tensor, tol: float, limit: int
) -> list[float]:
    """Compute ``closeness spectral signed printed residual`` of a sample."""
    point, data = objective.theta.detach().requires_grad_(), objective.data
    logits = finite("the logits", objective.logits(point, sample))[0]
    target = data.labels(sample, objective.device)
    p = logits.detach().softmax(0)
    errors = p - nn.functional.one_hot(target, data.num_classes)[0]
    slopes = [objective.project(differentiate(point, z, retain=True)) for z in logits]
    closeness = _closeness(p, torch.stack(slopes))
    # The gradient of a sum of logits with the errors as fixed weights: its derivative is S alone.
    slope = differentiate(point, logits @ errors, create_graph=True)

    def product(vector: Tensor) -> Tensor:
        image = objective.project(differentiate(point, slope, vector, retain=True))
        return finite("the second derivatives of the logits", image[None])[0]

    # Few parameters: the process exhausts the space. Else the tolerance is squared: an error that
    # is small beside the gaps leaves a residual near its square root.
    few = start.count_nonzero() <= limit
    pairs = lanczos(product, start, tol=0.0 if few else tol**2, limit=limit).pairs
    low, high = pairs[0].value, pairs[-1].value
    residual = max(pair.residual for pair in pairs.values())
    spectral, signed, printed = max(high, -low) + residual, high + residual, math.nan
    if data.num_classes == 2:
        # The printed theorem has |p - y| times the largest eigenvalue of the logit's Hessian. S has
        # p - y, which is negative for y = 1: its smallest eigenvalue is that one's negative.
        printed = -low if target == 1 else high
    return [closeness, closeness + spectral, closeness + signed, closeness + printed, residual]


def _closeness(p: Tensor, jacobian: Tensor) -> float:
    r"""Compute the largest eigenvalue of :math:`J^\top A J`.

    With :math:`A = \operatorname{diag} p - p p^\top = B B^\top` and :math:`B =
    \operatorname{diag} \sqrt p - p \sqrt p^\top` it is that of the C by C matrix :math:`B^\top J
    J^\top B`.
    """
    root = p.sqrt()
    factor = root.diag() - p[:, None] * root
    matrix = factor.T @ (jacobian @ jacobian.T) @ factor
    finite("the gradients of the logits", matrix[None])
    return max(0.0, float(torch.linalg.eigvalsh(matrix)[-1]))
