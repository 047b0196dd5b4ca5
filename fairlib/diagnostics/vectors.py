"""Algebra of parameter vectors: flat ones, summed in float64, and ones in parts by parameter."""

from collections.abc import Iterable, Sequence
from functools import reduce

import torch
from torch import Tensor

from fairlib.network.evaluation import full_precision

_SUMMED = 4096  # Entries of an inner product that are summed in the type of the vectors.

Parts = Sequence[Tensor]
"""A vector as a sequence of tensors. Results stay in the type of the tensors and can be
differentiated."""


@full_precision()
def inner(one: Tensor, other: Tensor) -> float:
    """Compute the inner product of two flat vectors ``(P,)``."""
    # A sum over millions of float32 entries would be off by 1e-4, a conversion of both vectors to
    # float64 would take twice their memory: short blocks are summed in float32, and the sums of
    # blocks in float64.
    whole = len(one) // _SUMMED * _SUMMED
    blocks = one[:whole].reshape(-1, 1, _SUMMED) @ other[:whole].reshape(-1, _SUMMED, 1)
    rest = (one[whole:] * other[whole:]).sum(dtype=torch.float64)
    return float(blocks.sum(dtype=torch.float64) + rest)


def norm(vector: Tensor) -> float:
    """Compute the Euclidean norm of a flat vector, by :func:`inner`."""
    return inner(vector, vector) ** 0.5


def unit(vector: Tensor) -> Tensor:
    """Scale a flat vector to length 1; zero stays zero."""
    length = norm(vector)
    return vector / length if length else vector


def total(vectors: Iterable[Tensor]) -> Tensor:
    """Sum one or more flat vectors."""
    return reduce(torch.add, vectors)


def parts_norm(a: Parts) -> Tensor:
    """Compute the Euclidean norm of a vector in parts."""
    return torch.stack(torch._foreach_norm(list(a))).norm()


def parts_unit(a: Parts) -> Parts:
    """Scale a vector in parts to length 1; zero stays zero."""
    length = parts_norm(a)
    return [part / length for part in a] if length > 0 else a


def moved(a: Parts, step: float, b: Parts) -> list[Tensor]:
    """Add vectors in parts, ``a + step * b``."""
    return [x + step * y for x, y in zip(a, b, strict=True)]
