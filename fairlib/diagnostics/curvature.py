"""The extreme eigenvalues of every group's Hessian by the Lanczos process, with their residuals."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from fairlib._validation import check_number, lookup
from fairlib.data import GroupedDataset
from fairlib.diagnostics.frozen import Pattern
from fairlib.diagnostics.lanczos import ENDS, LEAST, Product, Ritz, error_estimate, lanczos
from fairlib.diagnostics.objective import BUDGET, MeanLoss, check_finite, differentiate, members
from fairlib.diagnostics.vectors import inner, norm, total, unit

PRODUCTS = ("frozen", "exact")
BASIS = 2**30  # Bytes that the vectors of one process may take.
_NAMES = {-1: "largest", 0: "smallest"}


class ConvergenceWarning(UserWarning):
    """An eigenvalue has not converged to the tolerance that was asked for."""


def group_eigenvalues(
    model: nn.Module,
    data: GroupedDataset,
    *,
    parameters: Sequence[str] | None = None,
    dtype: torch.dtype | None = None,
    ends: str = "both",
    products: str = "frozen",
    tol: float = 3e-4,
    limit: int = 100,
    least: int = LEAST,
    seed: int = 0,
) -> pd.DataFrame:
    r"""Find the extreme eigenvalues of every group's Hessian :math:`H_a = \nabla^2_\theta J(\theta;
    D_a)`.

    The largest is the *algebraically* largest, also where the smallest is larger in magnitude: it
    is the :math:`\lambda(H_a)` of Rayleigh's inequality :math:`d^\top H_a d \le \lambda(H_a)
    \|d\|^2`, which power iteration does not find there. A Lanczos process with full
    reorthogonalization starts from the sum of the group's gradient, the gradient for labels drawn
    from the model's own predictions (a random vector that is large in curved directions), and
    noise: the gradient alone can be orthogonal to the eigenvector. Its products are differences of
    gradients with the kinks held (:mod:`fairlib.diagnostics.frozen`), one plain gradient each. The
    last one, with the eigenvector that was found, is exact (differentiated twice): it gives the
    value, a Rayleigh quotient, and its residual. Where the residual shows that the differences
    misled, the process goes on with exact products.

    At a kink of a piecewise smooth network the Hessian is that of the piece on which the
    computation runs; float32 and float64 may run on different pieces.

    Args: model: Any classifier that can be differentiated twice; its mode, buffers and ``.grad``
        are left as they were.
            It is evaluated in eval mode. Pruned weights are left out.
        data: The samples; the Hessian is that of the mean cross-entropy over all samples of the
            group.
        parameters: Names of the parameters that make up :math:`\theta`; by default all that require
            a gradient.
        dtype: Floating type of the computation, ``torch.float64``, say; by default that of the
            parameters.
        ends: Wanted eigenvalues: ``"largest"``, ``"smallest"`` or ``"both"``; the column of the
            other one is NaN.
        products: Kind of Hessian-vector products: ``"frozen"`` for differences of gradients with
            the kinks held, or ``"exact"`` for differentiating twice each time.
        tol: Estimated error to aim at, relative to the larger of the two magnitudes, as far as it
            was met. Against float64 run to 1e-9, in 120 groups of networks on digits (a CNN, also
            pruned, and a small ResNet), the default of 3e-4 missed one largest eigenvalue, by 7e-4,
            and 8 smallest ones, by 4e-4 to 5e-3: those lie at the edge of many others, as the zeros
            of a convex loss do. With no more parameters than ``limit`` the process exhausts the
            space.
        limit: Largest number of Lanczos steps for a group. Their vectors take a gibibyte at most,
            or as much memory as twelve of them do; a process that needs more is restarted from its
            best ones.
        least: Smallest number of Lanczos steps for a group, if ``limit`` is not smaller: fewer may
            end at the second largest eigenvalue. 1 is what edition 0.1 did.
        seed: Seed of the start vector.

    Returns: Indexed by group in the order of the codes (float64): ``largest``, ``smallest``;
        ``residual``, the larger :math:`\|H_a v - \lambda v\|` over the wanted ends, relative to the
        larger magnitude: some eigenvalue is at most that far away, though no residual can tell that
        it is the extreme one; ``hvps``, the number of products. An empty group has NaN everywhere.
        The eigenvalue of a small sample is biased upward.

    Raises: NotComputable: If there is nothing to differentiate, torch cannot differentiate it
        twice, or (NotFinite) a loss
            or a product is NaN or infinite.
        TypeError, ValueError: If a setting is out of range or a name unknown.

    Warns: ConvergenceWarning: If the error estimate of an eigenvalue exceeds ``tol``: its value is
        what there was after
            ``limit`` steps, its residual says how far that may be off.

    Source: [T] Theorem 1 and Section 5 (group Hessians). Lanczos with residual bounds: Parlett, The
        Symmetric Eigenvalue Problem (1998), Chapters 11 and 13. Products by differentiating twice:
        Pearlmutter (1994).

    Example: With probabilities :math:`p, 1 - p` whatever the sample, the Hessian is :math:`p (1 -
        p)` times a matrix with the eigenvalues 0 and 2, for every group alike.

        >>> import torch, fairlib
        >>> data = fairlib.GroupedDataset(torch.zeros(10, 1), [0] * 9 + [1], [0] * 9 + [1], group_names=["many", "few"])
        >>> model = torch.nn.Linear(1, 2)
        >>> model.bias.data = torch.tensor([9.0, 1.0]).log()
        >>> fairlib.diagnostics.group_eigenvalues(model, data)["largest"].round(3).to_dict()
        {'many': 0.18, 'few': 0.18}
    """
    search = Eigensearch(ends, products, tol, limit, seed, least)
    return _tables({None: model}, data, search, parameters=parameters, dtype=dtype)[0]


def sweep_eigenvalues(
    models: Mapping[Any, nn.Module],
    data: GroupedDataset,
    *,
    parameters: Sequence[str] | None = None,
    dtype: torch.dtype | None = None,
    ends: str = "largest",
    products: str = "frozen",
    tol: float = 3e-4,
    limit: int = 100,
    least: int = LEAST,
    seed: int = 0,
) -> pd.DataFrame:
    r"""Find the eigenvalues of every group for similar models, one network at rising pruning
    ratios, say.

    Each model starts from the eigenvectors of the one before it, with the group's gradient mixed
    in: a start from an old eigenvector alone stays with it when another eigenvalue has overtaken
    it. Where two eigenvalues are about to cross, the value may lie between them; the residual then
    shows their distance.

    Args: models: Models of one architecture by name (a pruning ratio or a tuple, say), each similar
        to the one before. data, parameters, dtype, ends, products, tol, limit, least, seed:
        Arguments of
            :func:`group_eigenvalues`.

    Returns:
        The columns of :func:`group_eigenvalues`, indexed by ``model`` and ``group``.

    Raises: ValueError: If there is no model, the models differ in their parameters, a setting is
        out of range or a name
            unknown.
        NotComputable, TypeError: What :func:`group_eigenvalues` raises.
    """
    if not models:
        raise ValueError("models must name at least one model, got none")
    search = Eigensearch(ends, products, tol, limit, seed, least)
    tables = _tables(models, data, search, parameters=parameters, dtype=dtype)
    named = [
        table.assign(model=[name] * len(table)) for name, table in zip(models, tables, strict=True)
    ]
    return pd.concat(named).set_index("model", append=True).swaplevel()


@dataclass(frozen=True)
class Eigensearch:
    """Settings of a search for eigenvalues; they are the arguments of :func:`group_eigenvalues`
    with these names.

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


def _tables(
    models: Mapping[Any, nn.Module], data: GroupedDataset, search: Eigensearch, **of_loss: Any
) -> list[pd.DataFrame]:
    """A table for each model; the search in a group starts from what was found in the model
    before."""
    columns = ["largest", "smallest", "residual", "hvps"]
    previous: dict[str, Tensor] = {}
    tables = []
    for key, model in models.items():
        found: dict[str, Found] = {}
        for code, name in enumerate(data.group_names):
            if len(index := members(data, code)):
                found[name] = extremes(
                    MeanLoss(model, data, index, **of_loss), search, previous.get(name)
                )
                previous[name] = total(pair.vector for pair in found[name].pairs.values())
        model_named = "" if key is None else f" of model {key}"
        warn_of_doubtful(
            {f"{name}{model_named}": one for name, one in found.items()}, search.tol, stacklevel=4
        )
        rows = [found[name].row() if name in found else {} for name in data.group_names]
        tables.append(
            pd.DataFrame(rows, pd.Index(data.group_names, name="group"), columns, dtype=float)
        )
    return tables


def warn_of_doubtful(found: Mapping[str, Found], tol: float, *, stacklevel: int) -> None:
    """Warn of the groups whose eigenvalues have not converged."""
    doubtful = {name: one for name, one in found.items() if not one.converged(tol)}
    if doubtful:
        named = [
            f"{name} (residual {one.residual:.1e} after {one.hvps} products)"
            for name, one in doubtful.items()
        ]
        message = f"eigenvalues not as exact as tol={tol:g}: {', '.join(named)}"
        warnings.warn(message, ConvergenceWarning, stacklevel=stacklevel)


class _Products:
    """Hessian-vector products of one group, which share the graph of the first gradient and its
    pattern of kinks."""

    def __init__(self, loss: MeanLoss) -> None:
        self.loss, self.count, self.step = loss, 0, {torch.float64: 1e-6}.get(loss.dtype, 1e-3)
        self.patterns: list[Pattern | None] = []
        single = len(loss.chunks) == 1
        sum_, held = torch.zeros_like(loss.theta), 0
        for chunk in loss.chunks:
            with Pattern() as pattern:
                point, gradient = (
                    loss.gradient_graph(chunk) if single else self._at(loss.theta, chunk)
                )
            sum_ += gradient.detach()
            held += pattern.nbytes
            self.patterns.append(pattern if held <= BUDGET else None)
        self.graph = (point, gradient) if single else None
        self.gradient = check_finite("gradient", loss.project(sum_ / len(loss.index)))

    def exact(self, vector: Tensor) -> Tensor:
        self.count += 1
        if self.graph is None:
            return self.loss.product(vector)
        product = differentiate(*self.graph, self.loss.project(vector), retain=True)
        return self.loss.project(product / len(self.loss.index))

    def frozen(self, vector: Tensor) -> Tensor:
        """The product by a difference of gradients with the kinks held."""
        self.count += 1
        step = self.step / norm(vector)
        shifted, sum_ = self.loss.theta + step * vector, torch.zeros_like(vector)
        for place, chunk in enumerate(self.loss.chunks):
            with self.patterns[place] or self._pattern(chunk):
                sum_ += self._at(shifted, chunk)[1]
        return (self.loss.project(sum_ / len(self.loss.index)) - self.gradient) / step

    def _pattern(self, chunk: Tensor) -> Pattern:
        """The pattern of one chunk, recomputed where the patterns of all chunks would take too much
        memory."""
        with torch.no_grad(), Pattern() as pattern:
            self.loss.logits(self.loss.theta, chunk)
        return pattern

    def _at(self, theta: Tensor, chunk: Tensor) -> tuple[Tensor, Tensor]:
        point = theta.detach().requires_grad_()
        return point, self.loss.total_gradient(point, chunk)


@dataclass(frozen=True)
class Found:
    """Eigenpairs by place, and what they took."""

    pairs: dict[int, Ritz]
    scale: float
    hvps: int

    @property
    def residual(self) -> float:
        """The largest residual, relative to the largest magnitude that was met."""
        worst = max(pair.residual for pair in self.pairs.values())
        return worst / self.scale if self.scale else worst

    def converged(self, tol: float) -> bool:
        return all(pair.error <= tol * self.scale for pair in self.pairs.values())

    def row(self) -> dict[str, float]:
        values = {
            name: self.pairs[place].value for place, name in _NAMES.items() if place in self.pairs
        }
        return values | {"residual": self.residual, "hvps": self.hvps}


def extremes(loss: MeanLoss, search: Eigensearch, previous: Tensor | None = None) -> Found:
    """The wanted eigenpairs of one Hessian, as :func:`group_eigenvalues` says; ``previous`` is for
    a warm start."""
    known = _Products(loss)
    start = _start(known, previous, search)
    room = max(8, int(BASIS / 1.5 / start.nbytes))
    small = len(start) <= search.limit  # So few parameters that exhausting the space costs little.
    tol = 0.0 if small else search.tol
    settings: dict[str, Any] = {
        "ends": search.ends,
        "tol": tol,
        "room": room,
        "least": search.least,
    }
    if search.products == "frozen" and not small:
        pairs, scale, _ = lanczos(known.frozen, start, limit=search.limit, **settings)
        pairs = {place: _verified(known.exact, pair) for place, pair in pairs.items()}
        found = Found(pairs, scale, known.count)
        if found.converged(tol) or known.count >= search.limit:
            return found
        start = total(unit(pair.vector) for pair in pairs.values()) + 0.1 * unit(start)
    limit = max(2, search.limit - known.count)
    pairs, scale, _ = lanczos(known.exact, start, limit=limit, **settings)
    return Found(pairs, scale, known.count)


def _start(products: _Products, previous: Tensor | None, search: Eigensearch) -> Tensor:
    """The start vector of a Lanczos process: directions that are likely to be curved, and a little
    of every other."""
    loss, generator = products.loss, torch.Generator().manual_seed(search.seed)
    noise = unit(loss.project(torch.randn(loss.theta.shape, generator=generator).to(loss.theta)))
    if search.ends != "largest":
        # With little of its part in the null space, which is most of it and would pass for the
        # smallest eigenvalue's.
        noise = unit(products.frozen(noise)) + 0.03 * noise
    if previous is None:
        return unit(products.gradient) + unit(loss.sampled_gradient(generator)) + noise
    if previous.shape != noise.shape:
        raise ValueError("the models of a sweep must have the same parameters")
    return unit(loss.project(previous)) + 0.3 * unit(products.gradient) + 0.1 * noise


def _verified(product: Product, pair: Ritz) -> Ritz:
    """The pair with value, residual and error by an exact product."""
    image = product(pair.vector)
    value = inner(pair.vector, image)
    residual = norm(image.sub(pair.vector, alpha=value))
    return pair._replace(value=value, residual=residual, error=error_estimate(residual, pair.gap))
