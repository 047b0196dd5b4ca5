"""The extreme eigenvalues of a symmetric operator that is known by its products only."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairlib._validation import check_number
from fairlib.diagnostics.computable import NotFinite
from fairlib.network.evaluation import full_precision

BLOCK = 4096  # Entries of an inner product that are summed in their own type.
ENDS = {"largest": (-1,), "smallest": (0,), "both": (-1, 0)}
"""Which eigenvalues are wanted: their places in ascending order."""


class Ritz(NamedTuple):
    r"""An approximate eigenpair: ``value``, unit ``vector`` ``(P,)`` and what is known of their error.

    ``residual`` is :math:`r = \|Av - \theta v\|`: some eigenvalue lies within r of the value. ``error`` is
    :math:`\min(r, r^2 / \delta)` with :math:`\delta` the distance to the next Ritz value, which bounds the error of an
    extreme value where that distance is right (Parlett, The Symmetric Eigenvalue Problem, Section 11.7).
    """

    value: float
    vector: Tensor
    residual: float
    error: float
    gap: float


def lanczos(
    product: Callable[[Tensor], Tensor],
    start: Tensor,
    *,
    ends: str = "both",
    tol: float = 3e-4,
    limit: int = 200,
    room: int | None = None,
) -> tuple[dict[int, Ritz], float, int]:
    r"""Extreme eigenpairs by the Lanczos process with full reorthogonalization.

    After k products the best approximations in :math:`\operatorname{span}\{q, Aq, \dots, A^{k-1} q\}` are known. The
    process ends when the estimated error of every wanted value is below ``tol`` times the largest absolute Ritz value
    and the smallest value has moved by no more than that in the last step (a Hessian has so many eigenvalues near zero
    that a false smallest one converges early); or after ``limit`` products; or when the span is the whole space or
    invariant under A. Inner products are summed in float64, whatever the type of the vectors.

    Args:
        product: :math:`v \mapsto Av` for vectors ``(P,)``, A symmetric.
        start: ``(P,)``, not zero. What is orthogonal to it is never found; mix in a random vector.
        ends: A name of ``ENDS``.
        tol: Relative error to aim at.
        limit: The largest number of products.
        room: How many vectors a basis may have, at least 8; by default any number. A full one makes place for the half
            of its Ritz vectors that is nearest to the wanted ends, and the process goes on from there (a thick
            restart), with more products in all. While that half is formed there are half as many vectors more.

    Returns:
        The Ritz pair for each place of ``ENDS[ends]``, the largest absolute Ritz value that was met, and the number of
        products.

    Raises:
        FloatingPointError: If a product is NaN or infinite.
        ValueError: If ``room`` is too small.

    Source:
        Parlett, The Symmetric Eigenvalue Problem (1998), Chapter 13; thick restarts: Wu and Simon, Thick-restart
        Lanczos method for large symmetric eigenvalue problems (2000).
    """
    basis, count = [start / norm(start)], 0
    matrix = np.empty((0, 0))  # The operator in the basis.
    scale, lowest = 0.0, np.inf
    if room is not None:
        check_number("room", room, 8, whole=True)
    while True:
        rest, count = product(basis[-1]).clone(), count + 1
        whole = norm(rest)
        column = np.zeros(len(basis))
        for _ in range(2):  # Twice is enough; the second is for what is nearly within the span.
            for j, q in enumerate(basis):
                overlap = inner(q, rest)
                rest.sub_(q, alpha=overlap)
                column[j] += overlap
            beta = norm(rest)
            if beta > whole / 2:
                break
        if not np.isfinite(beta):
            raise NotFinite(f"product {count} of the operator is NaN or infinite")
        matrix = np.block([[matrix, column[:-1, None]], [column]])
        values, vectors = np.linalg.eigh(matrix)
        scale = max(scale, float(np.abs(values).max()))
        pairs = {place: _error(values, beta * abs(vectors[-1, place]), place) for place in ENDS[ends]}
        exhausted = len(basis) == start.numel() or beta <= 1e-6 * scale * torch.finfo(start.dtype).eps ** 0.25
        settled = 0 not in pairs or lowest - values[0] <= tol * scale
        lowest = values[0]
        if exhausted or count >= limit or (settled and all(pair[1] <= tol * scale for pair in pairs.values())):
            break
        if len(basis) == room:
            kept = _nearest(values, room // 2, ends)
            basis, matrix = [_combined(basis, vectors[:, place]) for place in kept], np.diag(values[kept])
        basis.append(rest / beta)
    found = {}
    for place, (residual, error, gap) in pairs.items():
        found[place] = Ritz(float(values[place]), _combined(basis, vectors[:, place]), residual, error, gap)
    return found, scale, count


def _nearest(values: np.ndarray, count: int, ends: str) -> np.ndarray:
    """The places of so many ascending values that are nearest to the wanted ends."""
    order = np.arange(len(values))
    distances = [len(values) - 1 - order if place == -1 else order for place in ENDS[ends]]
    return np.sort(np.argsort(np.min(distances, axis=0), kind="stable")[:count])


def _combined(basis: list[Tensor], coefficients: np.ndarray) -> Tensor:
    """The unit vector along a combination of vectors."""
    vector = sum(q * float(c) for q, c in zip(basis, coefficients, strict=True))
    return vector / norm(vector)


def _error(values: np.ndarray, residual: float, place: int) -> tuple[float, float, float]:
    """Residual, estimated error and gap of the Ritz value at a place.

    A largest value in the shadow of a smallest one of larger magnitude is given no gap: that one converges first, and
    until then it is the next Ritz value, so that every other seems to lie alone.
    """
    shadowed = place == -1 and values[-1] < -values[0]
    gap = 0.0 if shadowed or len(values) == 1 else float(abs(values[place] - values[-2 if place == -1 else 1]))
    return residual, error_estimate(residual, gap), gap


def error_estimate(residual: float, gap: float) -> float:
    r""":math:`\min(r, r^2 / \delta)`."""
    return min(residual, residual**2 / gap) if gap > 0 else residual


@full_precision()
def inner(one: Tensor, other: Tensor) -> float:
    """An inner product, by blocks that are summed in float64: one over millions of float32 entries is off by 1e-4."""
    whole = len(one) // BLOCK * BLOCK
    blocks = one[:whole].reshape(-1, 1, BLOCK) @ other[:whole].reshape(-1, BLOCK, 1)
    return float(blocks.sum(dtype=torch.float64) + (one[whole:] * other[whole:]).sum(dtype=torch.float64))


def norm(vector: Tensor) -> float:
    return inner(vector, vector) ** 0.5
