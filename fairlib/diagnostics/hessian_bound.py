"""Theorem 2: closeness to the boundary and errors bound the curvature of a group's loss."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.autograd import functional
from torch.func import grad, jacrev, vjp, vmap

from fairlib._validation import check_number
from fairlib.data import GroupedDataset
from fairlib.diagnostics.computable import (
    NotBatched,
    batching,
    differentiating,
    finite,
    warn_of_slowness,
)
from fairlib.diagnostics.lanczos import KrylovInStep
from fairlib.diagnostics.objective import BUDGET, MeanLoss, members
from fairlib.network.evaluation import evaluation_mode, full_precision
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

    Where there are at most ``limit`` parameters, S is formed and its eigenvalues are exact.
    Otherwise they come from a Lanczos process for every sample, and its residual is added in
    ``signed`` and ``spectral``: upper estimates, too large by at most ``tol`` times themselves
    where the process converged, and bounds unless it missed the end of the spectrum, which is rare
    and cannot be ruled out. At a point where the model is not smooth, derivatives are those of
    automatic differentiation. All is computed in float64.

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

    Warns:
        SlowWarning: If ``torch.func`` cannot map the model over samples, and they are taken one
            after another; the message has torch's reason.

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
    derivatives = _Derivatives(objective)
    bounds_of = partial(_sample_bounds, derivatives, tol=tol, limit=limit, seed=seed)
    groups = [members(data, code) for code in range(data.num_groups)]
    passes = torch.cat(groups).split(_samples_at_once(derivatives, limit))
    with evaluation_mode(model), full_precision():
        bounds = torch.cat([bounds_of(index) for index in passes])
    rows = [part.mean(0).tolist() for part in bounds.split([len(group) for group in groups])]
    return pd.DataFrame(rows, index=pd.Index(data.group_names, name="group"), columns=list(BOUNDS))


class _Derivatives:
    """Derivatives of the logits of single samples in the kept weights ``point`` ``(P,)``.

    Samples go through ``torch.func.vmap`` together; one by one where a model does not allow that.
    """

    def __init__(self, objective: MeanLoss) -> None:
        self.objective = objective
        self.kept = None if objective.kept is None else objective.kept.nonzero().flatten()
        self.point = objective.theta if self.kept is None else objective.theta[self.kept]
        self._together = True

    def logits(self, index: Tensor, point: Tensor) -> Tensor:
        """Compute the logits ``(C,)`` of a sample, given by its number, an int64 scalar."""
        if self.kept is not None:
            point = torch.zeros_like(self.objective.theta).index_copy(0, self.kept, point)
        return self.objective.logits(point, index[None])[0]

    def weighted(self, index: Tensor, weights: Tensor, point: Tensor) -> Tensor:
        r"""Compute :math:`\sum_c w_c z_c` of a sample; ``weights`` ``(C,)``."""
        return self.logits(index, point) @ weights

    def jacobians(self, index: Tensor) -> Tensor:
        """Compute the Jacobians of the samples' logits, ``(n, C, P)``."""
        return self._each(
            lambda i: jacrev(partial(self.logits, i))(self.point),
            lambda i: functional.jacobian(partial(self.logits, i), self.point),
            index,
        )

    def products(self, index: Tensor, weights: Tensor, vectors: Tensor) -> Tensor:
        r"""Compute :math:`\sum_c w_c \nabla^2 z_c \, v` for samples; all arguments ``(n, ...)``."""
        return self._each(
            lambda i, w, v: vjp(grad(partial(self.weighted, i, w)), self.point)[1](v)[0],
            lambda i, w, v: functional.vhp(partial(self.weighted, i, w), self.point, v)[1],
            index,
            weights,
            vectors,
        )

    def hessians(self, index: Tensor, weights: Tensor) -> Tensor:
        r"""Compute :math:`\sum_c w_c \nabla^2 z_c` ``(n, P, P)`` for samples."""
        return self._each(
            lambda i, w: jacrev(grad(partial(self.weighted, i, w)))(self.point),
            lambda i, w: functional.hessian(partial(self.weighted, i, w), self.point),
            index,
            weights,
        )

    @differentiating()
    def _each(
        self, together: Callable[..., Tensor], alone: Callable[..., Tensor], *arguments: Tensor
    ) -> Tensor:
        """Map samples by ``torch.func``, or by autograd one by one if the model does not allow it.

        Nothing but torch's refusal leads to the second way: an error of the model is raised.
        """
        if self._together and len(arguments[0]) > 1:
            try:
                with batching():
                    return vmap(together)(*arguments)
            except NotBatched as reason:
                warn_of_slowness("derivatives are taken one sample after another", reason)
                self._together = False
        return torch.stack([alone(*sample) for sample in zip(*arguments, strict=True)])


def _sample_bounds(
    derivatives: _Derivatives, index: Tensor, *, tol: float, limit: int, seed: int
) -> Tensor:
    """Compute ``closeness spectral signed printed residual`` of each sample, float64 ``(n, 5)``."""
    objective = derivatives.objective
    data = objective.data
    with torch.no_grad():
        logits = objective.logits(objective.theta, index)
    finite("the logits", logits)
    targets = data.labels(index, objective.device)
    p = logits.softmax(1)
    errors = p - nn.functional.one_hot(targets, data.num_classes)
    closeness = _closeness(p, derivatives.jacobians(index))
    size = len(derivatives.point)
    if size <= limit:
        values = torch.linalg.eigvalsh(_second(derivatives.hessians(index, errors)))
        low, high, residual = values[:, 0], values[:, -1], torch.zeros_like(closeness)
    else:
        start = torch.randn(size, generator=generator(seed), dtype=torch.float64).to(errors)

        def product(vectors: Tensor) -> Tensor:
            return _second(derivatives.products(index, errors, vectors))

        process = KrylovInStep(product, start.expand(len(index), -1))
        ends = _extreme_eigenvalues(process, closeness.cpu().numpy(), tol, limit)
        low, high, residual = torch.from_numpy(ends).to(closeness).unbind(1)
    spectral = closeness + torch.maximum(high, -low) + residual
    if data.num_classes == 2:
        # The printed theorem has |p - y| times the largest eigenvalue of the logit's Hessian. S has
        # p - y, which is negative for y = 1: its smallest eigenvalue is that one's negative.
        printed = closeness + torch.where(targets == 1, -low, high)
    else:
        printed = torch.full_like(high, torch.nan)
    columns = [closeness, spectral, closeness + high + residual, printed, residual]
    return torch.stack(columns, dim=1).cpu()


def _second(derivatives: Tensor) -> Tensor:
    """Return second derivatives ``(n, ...)`` that are finite."""
    return finite("the second derivatives of the logits", derivatives)


def _closeness(p: Tensor, jacobians: Tensor) -> Tensor:
    r"""Compute the largest eigenvalues of :math:`J^\top A J`, ``(n,)``.

    With :math:`A = \operatorname{diag} p - p p^\top = B B^\top` and :math:`B =
    \operatorname{diag} \sqrt p - p \sqrt p^\top` they are those of the C by C matrix
    :math:`B^\top J J^\top B`.
    """
    root = p.sqrt()
    factor = torch.diag_embed(root) - p[:, :, None] * root[:, None, :]
    gram = jacobians @ jacobians.mT
    matrix = factor.mT @ gram @ factor
    finite("the gradients of the logits", matrix)
    return torch.linalg.eigvalsh(matrix)[:, -1].clamp(min=0)


def _extreme_eigenvalues(
    process: KrylovInStep, scale: np.ndarray, tol: float, limit: int
) -> np.ndarray:
    """Find the smallest and largest eigenvalue of n operators, and the larger residual, ``(n, 3)``.

    A process ends, and keeps what it has, when its residuals and the last changes of its values are
    below ``tol`` times ``scale`` plus its largest absolute eigenvalue; all end after ``limit``
    products."""
    tol = max(tol, 100 * np.finfo(np.float64).eps)
    found, running = np.zeros((len(scale), 3)), np.ones(len(scale), dtype=bool)
    while True:
        process.extend()
        residual = np.maximum(process.residual(0), process.residual(-1))
        now = np.column_stack([process.values[:, 0], process.values[:, -1], residual])
        # The change of the values is looked at, too: where many eigenvalues are near zero a false
        # one has a small residual early, and goes on changing.
        moved = np.abs(now - found)[:, :2].max(1)
        found[running] = now[running]
        running &= np.maximum(residual, moved) > tol * (scale + np.abs(process.values).max(1))
        running &= ~process.exhausted
        if process.count >= limit or not running.any():
            return found
        process.grow()


def _samples_at_once(derivatives: _Derivatives, limit: int) -> int:
    """Find the largest number of samples of a pass that stays within ``BUDGET`` bytes."""
    objective, size = derivatives.objective, len(derivatives.point)
    classes = objective.data.num_classes
    by_vectors = BUDGET // (size * (classes + limit) * objective.theta.element_size())
    # A row of a Hessian, or of a Jacobian, takes the activations of one more backward pass.
    by_activations = objective.samples_within(BUDGET // max(classes, size if size <= limit else 0))
    return max(1, min(by_vectors, by_activations))
