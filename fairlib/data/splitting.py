"""Honest splits: duplicates out first, then parts in which every target x group cell has its share."""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

PARTS = ("train", "val", "test")
"""The parts of a split, in the order of their codes."""

MINIMUM = 2
"""Samples that every group must have in every part: with fewer, nothing about it has a spread."""


def seed_sequence(seed: int) -> np.random.SeedSequence:
    """The root of a data set's random streams.

    Raises:
        TypeError: If ``seed`` is not an integer.
        ValueError: If it is negative.
    """
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise TypeError(f"seed must be an integer, got {seed!r}")
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed}")
    return np.random.SeedSequence(int(seed))


def check_fractions(fractions: Sequence[float]) -> tuple[float, float, float]:
    """Give back ``fractions`` as three floats whose sum is 1.

    Raises:
        ValueError: Unless they are three positive numbers with sum 1.
    """
    shares = tuple(float(f) for f in fractions)
    if len(shares) != len(PARTS) or not all(f > 0 for f in shares) or abs(sum(shares) - 1) > 1e-6:
        raise ValueError(f"fractions must be three positive numbers (train, val, test) with sum 1, got {fractions!r}")
    return tuple(f / sum(shares) for f in shares)


def apportion(total: int, weights: Sequence[float]) -> np.ndarray:
    """Whole numbers with sum ``total``, proportional to ``weights`` (largest remainders; ties to the first).

    Each is ``total * w / sum(weights)``, rounded up or down.

    Returns:
        int64 ``(len(weights),)``.
    """
    quotas = total * np.asarray(weights, dtype=float) / np.sum(weights)
    counts = np.floor(quotas).astype(np.int64)
    largest = np.argsort(counts - quotas, kind="stable")
    counts[largest[: total - counts.sum()]] += 1
    return counts


def drop_duplicates(images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, dict[str, int]]:
    """Of images with the same bytes keep the first if their labels agree, and none if they do not.

    Args:
        images: ``(N, ...)``, any dtype.
        labels: int ``(N, L)``: what they have to agree on, the target and group that were asked for.

    Returns:
        The indices that stay, ascending, and how many went: ``duplicates`` (copies of an image that
        stays) and ``conflicting`` (copies whose labels disagree).
    """
    copies: dict[bytes, list[int]] = {}
    for index, image in enumerate(images):
        copies.setdefault(blake2b(image.tobytes(), digest_size=16).digest(), []).append(index)
    agreeing = [same for same in copies.values() if (labels[same] == labels[same[0]]).all()]
    keep = np.array([same[0] for same in agreeing], dtype=np.int64)
    duplicates = sum(len(same) for same in agreeing) - len(agreeing)
    return keep, {"duplicates": duplicates, "conflicting": len(images) - len(keep) - duplicates}


def stratified_parts(cells: np.ndarray, fractions: Sequence[float], rng: np.random.Generator) -> np.ndarray:
    """Deal samples out to parts so that every cell follows ``fractions``.

    Of a cell with n samples, part p gets ``floor(n * fractions[p])`` and at most one more. The leftover
    samples of a cell go to the parts that lag furthest behind over all cells so far, so that the totals
    follow too, and which sample goes where is drawn.

    Args:
        cells: int ``(N,)``, the cell of each sample.
        fractions: One positive share for each part, with sum 1.
        rng: Draws; the result depends on nothing else.

    Returns:
        int64 ``(N,)``, the part of each sample.
    """
    fractions = np.asarray(fractions, dtype=float)
    parts = np.empty(len(cells), dtype=np.int64)
    lag = np.zeros(len(fractions))
    for cell in np.unique(cells):
        members = np.flatnonzero(cells == cell)
        quotas = len(members) * fractions
        # 7.000000000000001 and 6.999999999 are 7: without the nudge a rounding error costs a whole sample.
        counts = np.floor(quotas + 1e-9).astype(np.int64)
        lag += quotas - counts
        behind = np.argsort(-lag, kind="stable")[: len(members) - counts.sum()]
        counts[behind] += 1
        lag[behind] -= 1
        parts[members] = rng.permutation(np.repeat(np.arange(len(fractions)), counts))
    return parts


def whole_parts(
    units: np.ndarray, cells: np.ndarray, fractions: Sequence[float], rng: np.random.Generator
) -> np.ndarray:
    """Deal whole units (all pictures of a person) out to parts, so that no unit stands in two.

    The units come from the largest to the smallest, in random order where they are equal. Each goes to a part
    that is drawn with a probability proportional to the samples which that part still lacks in the unit's
    cell: so every cell follows ``fractions`` as closely as its units allow.

    Args:
        units: int ``(N,)``, the unit of each sample: 0 to U - 1.
        cells: int ``(U,)``, the cell of each unit.
        fractions: One positive share for each part, with sum 1.
        rng: Draws; the result depends on nothing else.

    Returns:
        int64 ``(N,)``, the part of each sample.
    """
    sizes = np.bincount(units)
    lack = np.outer(np.bincount(cells, weights=sizes), fractions)
    order = rng.permutation(len(sizes))
    parts = np.empty(len(sizes), dtype=np.int64)
    for unit in order[np.argsort(-sizes[order], kind="stable")]:
        open_parts = lack[cells[unit]].clip(0)
        parts[unit] = rng.choice(len(open_parts), p=open_parts / open_parts.sum())
        lack[cells[unit], parts[unit]] -= sizes[unit]
    return parts[units]


def check_group_sizes(parts: np.ndarray, groups: np.ndarray, group_names: Sequence[str]) -> None:
    """Refuse a split in which a group cannot be measured.

    Raises:
        ValueError: If a group has fewer than two samples in a part; names the group, the part and the count.
    """
    for code, group in enumerate(group_names):
        sizes = np.bincount(parts[groups == code], minlength=len(PARTS))
        for part, size in zip(PARTS, sizes, strict=True):
            if size < MINIMUM:
                raise ValueError(
                    f"group {group!r} has {size} sample{'' if size == 1 else 's'} in the {part} split; every "
                    f"group needs at least {MINIMUM} in each: load more data, choose coarser groups or other "
                    "fractions"
                )
