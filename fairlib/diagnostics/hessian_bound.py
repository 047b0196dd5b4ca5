"""Theorem 2: the largest eigenvalue of a group's Hessian is bounded by closeness to the boundary
and by errors."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.autograd import functional
from torch.func import grad, jacrev, vjp, vmap

from fairlib._validation import check_number
from fairlib.data import GroupedDataset
from fairlib.diagnostics.computable import differentiating, finite
from fairlib.diagnostics.lanczos import KrylovInStep, Product
from fairlib.diagnostics.objective import BUDGET, MeanLoss, members
from fairlib.network.evaluation import evaluation_mode, full_precision

COLUMNS = ("closeness", "spectral", "signed", "printed", "residual")


def hessian_bound(
    model: nn.Module,
    data: GroupedDataset,
    *,
    parameters: Sequence[str] | None = None,
    dtype: torch.dtype | None = torch.float64,
    tol: float = 1e-4,
    limit: int = 200,
    seed: int = 0,
) -> pd.DataFrame:
    r"""Bound :math:`\lambda_{\max}(H_a)`, the largest eigenvalue of the Hessian of every group's
    mean loss, from above.

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
    Otherwise they come from a Lanczos process of its own for every sample, and its residual is
    added in ``signed`` and ``spectral``: upper estimates, too large by at most ``tol`` times
    themselves where the process converged, and bounds unless it missed the end of the spectrum,
    which is rare and cannot be ruled out. At a point where the model is not smooth, derivatives are
    those of automatic differentiation.

    Args: model: Any differentiable classifier; its mode, buffers and ``.grad`` are left as they
        were. It is evaluated in
            eval mode. Pruned weights are left out.
        data: The samples. The Jacobian ``(C, P)`` and the Lanczos vectors of one sample must fit
            into memory. Of many samples a part gives estimates, which are no longer certain bounds
            (``data.subset``).
        parameters: Names of the parameters that make up :math:`\theta`; by default all that require
            a gradient.
        dtype: Floating type of the computation; None for that of the parameters.
        tol: Residual at which a Lanczos process ends, as a share of the sample's bound.
        limit: Largest number of Hessian-vector products for each sample.
        seed: Seed of the vector from which every Lanczos process starts.

    Returns: Indexed by group in the order of the codes (float64): ``closeness``, ``spectral``,
        ``signed`` and ``printed``; and ``residual``, the mean residual contained in ``spectral``
        and ``signed``: above ``tol`` times ``spectral`` processes did not converge, and both may be
        too small. A group without samples has NaN.

    Raises: NotComputable: If there is nothing to differentiate, torch cannot differentiate it
        twice, or (NotFinite) logits
            or their derivatives are NaN or infinite.
        ValueError: If a parameter name is unknown, or a number is out of range.

    Source: [T] Theorem 2 (Eqs 6, 10-13), [D] Proposition 4.5, both corrected: the spectral norm, or
        the signed end of the spectrum, in the place of the largest eigenvalue, and logits in the
        place of f.

    Example: For a linear model :math:`S` is zero, and the bound is what
        :func:`fairlib.diagnostics.group_eigenvalues` finds.

        >>> import torch, fairlib
        >>> data = fairlib.GroupedDataset(torch.zeros(10, 1), [0] * 9 + [1], [0] * 9 + [1], group_names=["many", "few"])
        >>> model = torch.nn.Linear(1, 2)
        >>> model.bias.data = torch.tensor([9.0, 1.0]).log()
        >>> fairlib.diagnostics.hessian_bound(model, data)["signed"].round(3).to_dict()
        {'many': 0.18, 'few': 0.18}
    """
    check_number("limit", limit, 1, whole=True)
    check_number("tol", tol, 0, 1, low_open=True)
    objective = MeanLoss(model, data, parameters=parameters, dtype=dtype)
    objective.gradient_graph(objective.index[:1])  # Refuses what can be differentiated only once.
    derivatives = _Derivatives(objective)
    spectrum = partial(_spectrum, derivatives, tol=tol, limit=limit, seed=seed)
    size = _samples_at_once(derivatives, limit)
    groups = [members(data, code) for code in range(data.num_groups)]
    with evaluation_mode(model), full_precision():
        bounds = torch.cat(
            [
                _sample_bounds(derivatives, spectrum, chunk)
                for chunk in torch.cat(groups).split(size)
            ]
        )
    rows = [part.mean(0).tolist() for part in bounds.split([len(group) for group in groups])]
    return pd.DataFrame(rows, index=pd.Index(data.group_names, name="group"), columns=list(COLUMNS))


class _Derivatives:
    """The logits of single samples as functions of the kept weights ``point``: their Jacobians and
    second derivatives.

    Samples go through ``torch.func.vmap`` together; one by one where a model does not allow that.
    """

    def __init__(self, objective: MeanLoss) -> None:
        self.objective = objective
        self.kept = None if objective.kept is None else objective.kept.nonzero().flatten()
        self.point = objective.theta if self.kept is None else objective.theta[self.kept]
        self._together = True

    def logits(self, point: Tensor, sample: Tensor) -> Tensor:
        """The logits ``(C,)`` of a sample, given by its number, a tensor without dimensions."""
        if self.kept is not None:
            point = torch.zeros_like(self.objective.theta).index_copy(0, self.kept, point)
        return self.objective.logits(point, sample[None])[0]

    def jacobians(self, index: Tensor) -> Tensor:
        """The Jacobians of the samples' logits, ``(n, C, P)``."""
        return self._each(
            lambda i: jacrev(self.logits)(self.point, i),
            lambda i: functional.jacobian(lambda point: self.logits(point, i), self.point),
            index,
        )

    def products(self, index: Tensor, weights: Tensor, vectors: Tensor) -> Tensor:
        r"""For each sample :math:`\sum_c w_c \nabla^2 z_c \, v`; ``weights`` ``(n, C)``,
        ``vectors`` ``(n, P)``."""

        def together(i: Tensor, weight: Tensor, vector: Tensor) -> Tensor:
            gradient = grad(lambda point: self.logits(point, i) @ weight)
            return vjp(gradient, self.point)[1](vector)[0]

        def alone(i: Tensor, weight: Tensor, vector: Tensor) -> Tensor:
            return functional.vhp(lambda point: self.logits(point, i) @ weight, self.point, vector)[
                1
            ]

        return self._each(together, alone, index, weights, vectors)

    def hessians(self, index: Tensor, weights: Tensor) -> Tensor:
        r"""For each sample :math:`\sum_c w_c \nabla^2 z_c` ``(n, P, P)``."""

        def together(i: Tensor, weight: Tensor) -> Tensor:
            gradient = grad(lambda point: self.logits(point, i) @ weight)
            return jacrev(gradient)(self.point)

        def alone(i: Tensor, weight: Tensor) -> Tensor:
            return functional.hessian(lambda point: self.logits(point, i) @ weight, self.point)

        return self._each(together, alone, index, weights)

    @differentiating()
    def _each(
        self, together: Callable[..., Tensor], alone: Callable[..., Tensor], *arguments: Tensor
    ) -> Tensor:
        if self._together and len(arguments[0]) > 1:
            try:
                return vmap(together)(*arguments)
            except (
                RuntimeError
            ):  # Control flow that looks at values, a random operation, a function without a rule.
                self._together = False
        return torch.stack([alone(*sample) for sample in zip(*arguments, strict=True)])


def _sample_bounds(
    derivatives: _Derivatives, spectrum: Callable[..., tuple[Tensor, ...]], index: Tensor
) -> Tensor:
    """For each sample ``closeness spectral signed printed residual``, float64 ``(n, 5)``."""
    objective = derivatives.objective
    data = objective.data
    with torch.no_grad():
        logits = objective.logits(objective.theta, index)
    finite("the logits", logits)
    targets = data.labels(index, objective.device)
    p = logits.softmax(1)
    errors = p - nn.functional.one_hot(targets, data.num_classes)
    closeness = _closeness(p, derivatives.jacobians(index))
    low, high, residual = spectrum(index, errors, closeness)
    spectral = closeness + torch.maximum(high, -low) + residual
    wrong_end = (
        torch.where(targets == 1, -low, high)
        if data.num_classes == 2
        else torch.full_like(high, torch.nan)
    )
    printed = closeness + wrong_end
    return torch.stack(
        [closeness, spectral, closeness + high + residual, printed, residual], dim=1
    ).cpu()


def _closeness(p: Tensor, jacobians: Tensor) -> Tensor:
    r"""The largest eigenvalues of :math:`J^\top A J`, :math:`A = \operatorname{diag} p - p p^\top`,
    float64 ``(n,)``.

    They are those of the C by C matrix :math:`B^\top J J^\top B`, for :math:`A = B B^\top` with
    :math:`B = \operatorname{diag} \sqrt p - p \sqrt p^\top`.
    """
    root = p.double().sqrt()
    factor = torch.diag_embed(root) - p.double()[:, :, None] * root[:, None, :]
    gram = (jacobians @ jacobians.mT).double()
    matrix = factor.mT @ gram @ factor
    finite("the gradients of the logits", matrix)
    return torch.linalg.eigvalsh(matrix)[:, -1].clamp(min=0)


def _spectrum(
    derivatives: _Derivatives,
    index: Tensor,
    errors: Tensor,
    scale: Tensor,
    *,
    tol: float,
    limit: int,
    seed: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Smallest and largest eigenvalue of every sample's S, and the larger of their residuals;
    float64 ``(n,)``."""
    size = len(derivatives.point)
    if size <= limit:
        hessians = finite(
            "the second derivatives of the logits", derivatives.hessians(index, errors)
        )
        values = torch.linalg.eigvalsh(hessians.double())
        return values[:, 0], values[:, -1], torch.zeros_like(scale)
    start = torch.randn(
        size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(errors)

    def product(vectors: Tensor) -> Tensor:
        return finite(
            "the second derivatives of the logits", derivatives.products(index, errors, vectors)
        )

    ends = _extreme_eigenvalues(
        product, start.expand(len(index), -1), scale.cpu().numpy(), tol=tol, limit=limit
    )
    low, high, residual = torch.from_numpy(ends).to(scale).unbind(1)
    return low, high, residual


def _extreme_eigenvalues(
    product: Product, start: Tensor, scale: np.ndarray, *, tol: float, limit: int
) -> np.ndarray:
    """Smallest and largest eigenvalues of n symmetric operators, and the larger residual of both,
    ``(n, 3)``.

    A process ends, and keeps what it has, when its residuals, and what its values moved by in the
    last step (a false one converges early where many are near zero), are below ``tol`` times
    ``scale`` plus its largest absolute eigenvalue; all end after ``limit`` products."""
    process, tol = KrylovInStep(product, start), max(tol, 100 * torch.finfo(start.dtype).eps)
    found, running = np.zeros((len(start), 3)), np.ones(len(start), dtype=bool)
    while True:
        process.extend()
        residual = np.maximum(process.residual(0), process.residual(-1))
        now = np.column_stack([process.values[:, 0], process.values[:, -1], residual])
        moved = np.abs(now - found)[:, :2].max(1)
        found[running] = now[running]
        running &= np.maximum(residual, moved) > tol * (scale + np.abs(process.values).max(1))
        running &= ~process.exhausted
        if process.count >= limit or not running.any():
            return found
        process.grow()


def _samples_at_once(derivatives: _Derivatives, limit: int) -> int:
    """Largest number of samples in one pass whose vectors and activations stay within
    ``BUDGET``."""
    objective, size = derivatives.objective, len(derivatives.point)
    classes = objective.data.num_classes
    by_vectors = BUDGET // (size * (classes + limit) * objective.theta.element_size())
    by_activations = objective.samples_within(BUDGET // max(classes, size if size <= limit else 0))
    return max(1, min(by_vectors, by_activations))
