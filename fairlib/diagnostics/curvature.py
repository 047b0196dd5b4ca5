"""The extreme eigenvalues of every group's Hessian by the Lanczos process, with their residuals."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from fairlib._validation import check_number, lookup
from fairlib.data import GroupedDataset
from fairlib.diagnostics.frozen import Pattern
from fairlib.diagnostics.lanczos import ENDS, LEAST, Eigenpairs, Ritz, lanczos
from fairlib.diagnostics.objective import (
    BUDGET,
    MeanLoss,
    check_finite,
    differentiate,
    group_table,
)
from fairlib.diagnostics.vectors import inner, norm, total, unit
from fairlib.randomness import generator

PRODUCTS = ("frozen", "exact")
BASIS = 2**30  # Bytes that the vectors of one process may take.


class ConvergenceWarning(UserWarning):
    """An eigenvalue has not converged to the tolerance that was asked for."""


def group_eigenvalues(
    model: nn.Module,
    data: GroupedDataset,
    *,
    dtype: torch.dtype | None = None,
    ends: str = "both",
    products: str = "frozen",
    tol: float = 3e-4,
    limit: int = 100,
    least: int = LEAST,
    seed: int = 0,
) -> pd.DataFrame:
    r"""Find the extreme eigenvalues of every group's Hessian.

    With :math:`H_a = \nabla^2_\theta J(\theta; D_a)`, the largest is the *algebraically* largest,
    also where the smallest is larger in magnitude: it is the :math:`\lambda(H_a)` of Rayleigh's
    inequality :math:`d^\top H_a d \le \lambda(H_a) \|d\|^2`, which power iteration does not find
    there. A Lanczos process with full reorthogonalization starts from the sum of the group's
    gradient, the gradient for labels drawn from the model's own predictions (a random vector that
    is large in curved directions), and noise: the gradient alone can be orthogonal to the
    eigenvector. Its products are differences of gradients with the kinks held
    (:mod:`fairlib.diagnostics.frozen`), one plain gradient each. The last one, with the eigenvector
    that was found, is exact (differentiated twice): it gives the value, a Rayleigh quotient, and
    its residual. Where the residual shows that the differences misled, the process goes on with
    exact products.

    At a kink of a piecewise smooth network the Hessian is that of the piece on which the
    computation runs; float32 and float64 may run on different pieces.

    Args:
        model: Any classifier that can be differentiated twice; its mode, buffers and ``.grad`` are
            left as they were. It is evaluated in eval mode. :math:`\theta` are the parameters that
            require a gradient; pruned weights are left out.
        data: The samples; the Hessian is that of the mean cross-entropy over all samples of the
            group.
        dtype: Floating type of the computation, ``torch.float64``, say; by default that of the
            parameters.
        ends: Wanted eigenvalues: ``"largest"``, ``"smallest"`` or ``"both"``; the column of the
            other one is NaN.
        products: Kind of Hessian-vector products: ``"frozen"`` for differences of gradients with
            the kinks held, or ``"exact"`` for differentiating twice each time.
        tol: Estimated error to aim at, relative to the larger of the two magnitudes, as far as it
            was met. Against float64 run to 1e-9, in 120 groups of networks on digits (a CNN, also
            pruned, and a small ResNet), the default of 3e-4 missed one largest eigenvalue, by 7e-4,
            and 8 smallest ones, by 4e-4 to 5e-3, at the edge of many others, as the zeros of a
            convex loss are. With no more parameters than ``limit`` the process exhausts the space.
        limit: Largest number of Lanczos steps for a group. Their vectors take a gibibyte at most,
            or as much memory as twelve of them do; a process that needs more is restarted from its
            best ones.
        least: Smallest number of Lanczos steps for a group, if ``limit`` is not smaller: fewer may
            end at the second largest eigenvalue.
        seed: Seed of the start vector.

    Returns:
        Indexed by group in the order of the codes (float64): ``largest``, ``smallest``;
        ``residual``, the larger :math:`\|H_a v - \lambda v\|` over the wanted ends, relative to the
        larger magnitude: some eigenvalue is at most that far away, though no residual can tell that
        it is the extreme one; ``hvps``, the number of products. An empty group has NaN everywhere.
        The eigenvalue of a small sample is biased upward.

    Raises:
        NotComputable: If there is nothing to differentiate, torch cannot differentiate it twice, or
            (NotFinite) a loss or a product is NaN or infinite.
        TypeError, ValueError: If a setting is out of range or a name unknown.

    Warns:
        ConvergenceWarning: If the error estimate of an eigenvalue exceeds ``tol``: its value is
            what there was after ``limit`` steps, its residual says how far that may be off.

    Source:
        [T] Theorem 1 and Section 5 (group Hessians). Lanczos with residual bounds: Parlett, The
        Symmetric Eigenvalue Problem (1998), Chapters 11 and 13. Products by differentiating twice:
        Pearlmutter (1994).

    Example:
        With probabilities :math:`p, 1 - p` whatever the sample, the Hessian is :math:`p (1 - p)`
        times a matrix with the eigenvalues 0 and 2, for every group alike.

        >>> import torch, fairlib
        >>> groups = [0] * 9 + [1]
        >>> data = fairlib.GroupedDataset(torch.zeros(10, 1), groups, groups)
        >>> model = torch.nn.Linear(1, 2)
        >>> model.bias.data = torch.tensor([9.0, 1.0]).log()
        >>> fairlib.diagnostics.group_eigenvalues(model, data)["largest"].round(3).to_dict()
        {'0': 0.18, '1': 0.18}
    """
    search = Eigensearch(ends, products, tol, limit, seed, least)
    table, found = _searched(model, data, search, {}, dtype)
    warn_of_doubtful(found, tol, stacklevel=3)
    return table


def sweep_eigenvalues(
    models: Mapping[Any, nn.Module], data: GroupedDataset, **settings: Any
) -> pd.DataFrame:
    r"""Find the eigenvalues of every group for similar models, one network at rising sparsities.

    Each model starts from the eigenvectors of the one before it, with the group's gradient mixed
    in: a start from an old eigenvector alone stays with it when another eigenvalue has overtaken
    it. Where two eigenvalues are about to cross, the value may be between them; the residual then
    shows their distance.

    Args:
        models: Models of one architecture by name (a pruning ratio or a tuple, say), each similar
            to the one before.
        data: Argument of :func:`group_eigenvalues`.
        settings: Settings of :func:`group_eigenvalues` except ``dtype``; here ``ends`` is
            ``"largest"`` by default.

    Returns:
        The columns of :func:`group_eigenvalues`, indexed by ``model`` and ``group``.

    Raises:
        ValueError: If there is no model, the models differ in their parameters, a setting is out of
            range or a name unknown.
        NotComputable, TypeError: What :func:`group_eigenvalues` raises.
    """
    if not models:
        raise ValueError("models must name at least one model, got none")
    search = Eigensearch(**{"ends": "largest", **settings})
    starts: dict[str, Tensor] = {}
    tables = []
    for key, model in models.items():
        table, found = _searched(model, data, search, starts)
        named = {f"{group} of model {key}": pairs for group, pairs in found.items()}
        warn_of_doubtful(named, search.tol, stacklevel=3)
        tables.append(table.assign(model=[key] * len(table)))
    return pd.concat(tables).set_index("model", append=True).swaplevel()


@dataclass(frozen=True)
class Eigensearch:
    """Settings of a search for eigenvalues: the arguments of :func:`group_eigenvalues`.

    Raises:
        TypeError, ValueError: If a setting is out of range or a name unknown.
    """

    ends: str = "both"
    products: str = "frozen"
    tol: float = 3e-4
    limit: int = 100
    seed: int = 0
    least: int = LEAST

    def __post_init__(self) -> None:
        lookup("choice of eigenvalues", self.ends, ENDS)
        lookup("kind of products", self.products, dict.fromkeys(PRODUCTS))
        check_number("tol", self.tol, 0, low_open=True)
        check_number("limit", self.limit, 2, whole=True)
        check_number("least", self.least, 1, whole=True)


def _searched(
    model: nn.Module,
    data: GroupedDataset,
    search: Eigensearch,
    starts: dict[str, Tensor],
    dtype: torch.dtype | None = None,
) -> tuple[pd.DataFrame, dict[str, Eigenpairs]]:
    """Search in every group, from its start if there is one, which is replaced by what is found."""
    found: dict[str, Eigenpairs] = {}

    def row(group: str, index: Tensor) -> tuple[float, ...]:
        loss = MeanLoss(model, data, index, dtype=dtype)
        found[group] = extreme_eigenpairs(loss, search, starts.get(group))
        pairs = found[group].pairs
        starts[group] = total(pair.vector for pair in pairs.values())
        values = (pairs[place].value if place in pairs else math.nan for place in ENDS["both"])
        return *values, found[group].residual, found[group].products

    return group_table(data, ("largest", "smallest", "residual", "hvps"), row), found


def warn_of_doubtful(found: Mapping[str, Eigenpairs], tol: float, *, stacklevel: int) -> None:
    """Warn of the groups whose eigenvalues have not converged."""
    doubtful = [
        f"{name} (residual {pairs.residual:.1e} after {pairs.products} products)"
        for name, pairs in found.items()
        if not pairs.converged(tol)
    ]
    if doubtful:
        message = f"eigenvalues not as exact as tol={tol:g}: {', '.join(doubtful)}"
        warnings.warn(message, ConvergenceWarning, stacklevel=stacklevel)


class _Products:
    """Hessian-vector products of one group, which share the first gradient and its kinks."""

    def __init__(self, loss: MeanLoss) -> None:
        self.loss, self.count = loss, 0
        # Length of the step of a difference of gradients: its error is rounding over the step plus
        # the step times the third derivatives. These two lengths are near the square root of the
        # resolution, where the sum of both is smallest.
        self.step = 1e-6 if loss.dtype == torch.float64 else 1e-3
        self.patterns: list[Pattern | None] = []
        single = len(loss.chunks) == 1
        summed, held = torch.zeros_like(loss.theta), 0
        for chunk in loss.chunks:
            with Pattern() as pattern:
                # The graph of a single pass serves all exact products; graphs of several passes
                # would not fit into memory together.
                point, gradient = (
                    loss.gradient_graph(chunk) if single else loss.total_gradient(loss.theta, chunk)
                )
            summed += gradient.detach()
            held += pattern.nbytes
            self.patterns.append(pattern if held <= BUDGET else None)
        self.graph = (point, gradient) if single else None
        self.gradient = check_finite("gradient", loss.project(summed / len(loss.index)))

    def exact(self, vector: Tensor) -> Tensor:
        """Multiply the Hessian by a vector, by differentiating twice."""
        self.count += 1
        if self.graph is None:
            return self.loss.product(vector)
        product = differentiate(*self.graph, self.loss.project(vector), retain=True)
        return self.loss.project(product / len(self.loss.index))

    def frozen(self, vector: Tensor) -> Tensor:
        """Multiply the Hessian by a vector, by a difference of gradients with the kinks held."""
        self.count += 1
        # Divided by the vector's length, so that every step in the parameters is equally long.
        step = self.step / norm(vector)
        shifted, summed = self.loss.theta + step * vector, torch.zeros_like(vector)
        for pattern, chunk in zip(self.patterns, self.loss.chunks, strict=True):
            with pattern or self._pattern(chunk):
                summed += self.loss.total_gradient(shifted, chunk)[1]
        return (self.loss.project(summed / len(self.loss.index)) - self.gradient) / step

    def _pattern(self, chunk: Tensor) -> Pattern:
        """Record the pattern of a chunk anew, where those of all chunks would take too much."""
        with torch.no_grad(), Pattern() as pattern:
            self.loss.logits(self.loss.theta, chunk)
        return pattern


def extreme_eigenpairs(
    loss: MeanLoss, search: Eigensearch, previous: Tensor | None = None
) -> Eigenpairs:
    """Find the wanted eigenpairs of one Hessian, as :func:`group_eigenvalues` describes.

    Args:
        loss: Function whose Hessian it is.
        search: Settings.
        previous: Eigenvector of a similar model ``(P,)``, for a warm start.
    """
    products = _Products(loss)
    start = _start(products, previous, search)
    # So few parameters that exhausting the space costs little: then no eigenvalue is missed.
    small = len(start) <= search.limit
    settings: dict[str, Any] = {
        "ends": search.ends,
        "tol": 0.0 if small else search.tol,
        "room": max(8, int(BASIS / 1.5 / start.nbytes)),
        "least": search.least,
    }
    if search.products == "frozen" and not small:
        found = lanczos(products.frozen, start, limit=search.limit, **settings)
        # The residual of the process is about the differences, whatever they are: functions that no
        # pattern holds (an absolute value) spoil them. An exact product tells.
        pairs = {place: _verified(products, pair) for place, pair in found.pairs.items()}
        found = Eigenpairs(pairs, found.scale, products.count)
        if found.converged(search.tol) or products.count >= search.limit:
            return found
        start = total(unit(pair.vector) for pair in pairs.values()) + 0.1 * unit(start)
    limit = max(2, search.limit - products.count)
    found = lanczos(products.exact, start, limit=limit, **settings)
    return replace(found, products=products.count)


def _start(products: _Products, previous: Tensor | None, search: Eigensearch) -> Tensor:
    """Return the start vector of a Lanczos process: directions likely to be curved, and noise."""
    loss, draw = products.loss, generator(search.seed)
    noise = unit(loss.project(torch.randn(loss.theta.shape, generator=draw).to(loss.theta)))
    if search.ends != "largest":
        # A random vector is almost wholly in the null space, of as many dimensions as there are
        # parameters more than samples: that part would pass for the eigenvector of the smallest
        # eigenvalue. A product takes it off; a little of the vector stays, so that the start is
        # orthogonal to no eigenvector.
        noise = unit(products.frozen(noise)) + 0.03 * noise
    if previous is None:
        return unit(products.gradient) + unit(loss.sampled_gradient(draw)) + noise
    if previous.shape != noise.shape:
        raise ValueError("the models of a sweep must have the same parameters")
    return unit(loss.project(previous)) + 0.3 * unit(products.gradient) + 0.1 * noise


def _verified(products: _Products, pair: Ritz) -> Ritz:
    """Return the pair with value and residual by an exact product."""
    image = products.exact(pair.vector)
    value = inner(pair.vector, image)
    residual = norm(image.sub(pair.vector, alpha=value))
    return pair._replace(value=value, residual=residual)
