"""Honest splits: duplicates are dropped, near-duplicates stay together, all crossings of target and
group follow."""

from collections.abc import Collection, Sequence
from functools import partial
from hashlib import blake2b

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from fairlib._validation import check_number

PARTS = ("train", "val", "test")
"""The parts of a split, in the order of their codes."""

MINIMUM = 2
"""Samples that every group must have in every part: a single one gives no standard error."""


def seed_sequence(seed: int) -> np.random.SeedSequence:
    """Turn the seed of a data set into the root of its random streams.

    Raises:
        TypeError: If ``seed`` is not an integer.
        ValueError: If ``seed`` is negative.
    """
    check_number("seed", seed, 0, whole=True)
    return np.random.SeedSequence(int(seed))


def check_fractions(fractions: Sequence[float]) -> tuple[float, ...]:
    """Return ``fractions`` as three floats whose sum is 1.

    Raises:
        ValueError: If they are not three numbers, 0 or more, with sum 1.
    """
    try:
        shares = tuple(float(f) for f in fractions)
    except (TypeError, ValueError):
        shares = ()
    if len(shares) != len(PARTS) or not all(f >= 0 for f in shares) or abs(sum(shares) - 1) > 1e-6:
        wanted = "three numbers (train, val, test), 0 for no such part, with sum 1"
        raise ValueError(f"fractions must be {wanted}, got {fractions!r}")
    return tuple(f / sum(shares) for f in shares)


def apportion(total: int, weights: ArrayLike) -> np.ndarray:
    """Divide ``total`` into whole numbers proportional to ``weights``, by the largest remainders.

    Each is ``total * w / sum(weights)``, rounded up or down; of equal remainders the first is
    rounded up first.

    Returns:
        int64 ``(len(weights),)`` with sum ``total``.
    """
    shares = np.asarray(weights, dtype=float)
    quotas = total * shares / shares.sum()
    counts = np.floor(quotas).astype(np.int64)
    largest = np.argsort(counts - quotas, kind="stable")
    counts[largest[: total - counts.sum()]] += 1
    return counts


def drop_duplicates(images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, dict[str, int]]:
    """Of images with the same bytes keep the first if their labels agree, and none if they do not.

    Args:
        images: Array ``(N, ...)`` of any dtype.
        labels: Codes of target and group, int ``(N, L)``: copies agree if all L are equal.

    Returns:
        The indices of the images that are kept, ascending, and how many were dropped:
        ``duplicates`` (copies of an image that is kept) and ``conflicting`` (copies whose labels
        disagree).
    """
    copies: dict[bytes, list[int]] = {}
    for index, image in enumerate(images):
        copies.setdefault(blake2b(image.tobytes(), digest_size=16).digest(), []).append(index)
    agreeing = [same for same in copies.values() if (labels[same] == labels[same[0]]).all()]
    keep = np.array([same[0] for same in agreeing], dtype=np.int64)
    duplicates = sum(len(same) for same in agreeing) - len(agreeing)
    return keep, {"duplicates": duplicates, "conflicting": len(images) - len(keep) - duplicates}


def stratified_parts(
    cells: np.ndarray, fractions: ArrayLike, rng: np.random.Generator
) -> np.ndarray:
    """Assign samples to parts at random, so that every cell (a crossing of target and group)
    follows ``fractions``.

    Of a cell with n samples, part p gets ``floor(n * fractions[p])`` and at most one more. The
    leftover samples of a cell go to the parts that lag furthest behind over all cells so far, so
    that the totals follow ``fractions`` too.

    Args:
        cells: The cell of each sample, int ``(N,)``.
        fractions: One positive share for each part, with sum 1.
        rng: Generator that draws which sample goes where.

    Returns:
        The part of each sample, int64 ``(N,)``.
    """
    shares = np.asarray(fractions, dtype=float)
    parts = np.empty(len(cells), dtype=np.int64)
    lag = np.zeros(len(shares))
    for cell in np.unique(cells):
        members = np.flatnonzero(cells == cell)
        quotas = len(members) * shares
        # 7.000000000000001 and 6.999999999 are 7: without the nudge a rounding error costs a whole
        # sample.
        counts = np.floor(quotas + 1e-9).astype(np.int64)
        lag += quotas - counts
        behind = np.argsort(-lag, kind="stable")[: len(members) - counts.sum()]
        counts[behind] += 1
        lag[behind] -= 1
        parts[members] = rng.permutation(np.repeat(np.arange(len(shares)), counts))
    return parts


def whole_parts(
    units: np.ndarray, cells: np.ndarray, fractions: ArrayLike, rng: np.random.Generator
) -> np.ndarray:
    """Assign whole units (all pictures of a person) to parts at random, so that no unit is in two
    parts.

    A unit is of the cell (the gender of a person, say) that most of its samples are of. The units
    are taken from the largest to the smallest, equally large ones in random order. Each goes to a
    part that is drawn with a probability proportional to the samples which that part still lacks in
    the unit's cell: so every cell follows ``fractions`` as closely as its units allow.

    Args:
        units: The unit of each sample, ``(N,)``, of any dtype that can be sorted.
        cells: The cell of each sample, int ``(N,)``.
        fractions: One share for each part, with sum 1.
        rng: Generator that draws which unit goes where.

    Returns:
        The part of each sample, int64 ``(N,)``.
    """
    units = np.unique(units, return_inverse=True)[1]
    sizes, cells = np.bincount(units), pd.crosstab(units, cells).to_numpy().argmax(axis=1)
    lack = np.outer(np.bincount(cells, weights=sizes), np.asarray(fractions))
    order = rng.permutation(len(sizes))
    parts = np.empty(len(sizes), dtype=np.int64)
    for unit in order[np.argsort(-sizes[order], kind="stable")]:
        open_parts = lack[cells[unit]].clip(0)
        parts[unit] = rng.choice(len(open_parts), p=open_parts / open_parts.sum())
        lack[cells[unit], parts[unit]] -= sizes[unit]
    return parts[units]


def check_group_sizes(
    parts: np.ndarray,
    groups: np.ndarray,
    group_names: Sequence[str],
    present: Collection[str] = PARTS,
) -> None:
    """Refuse a split in which a group has too few samples in one of the parts ``present`` to
    measure anything.

    Raises:
        ValueError: If a group has fewer than two samples in a part; names the group, the part and
            the count.
    """
    for code, group in enumerate(group_names):
        for part, size in zip(
            PARTS, np.bincount(parts[groups == code], minlength=len(PARTS)), strict=True
        ):
            if size < MINIMUM and part in present:
                found = f"group {group!r} has {size} sample{'' if size == 1 else 's'} in the {part} split"
                raise ValueError(
                    f"{found}, and needs {MINIMUM}: load more data, or choose coarser groups"
                )


def first_parts(given: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Tell which samples stay if a unit has members in several of the parts that a data set
    assigns: its first part's.

    Args:
        given: Part of each sample, int ``(N,)``; -1, to be assigned, comes before all others.
        units: Unit of each sample, int ``(N,)``, 0 to U - 1.

    Returns:
        bool ``(N,)``.
    """
    first = np.full(units.max(initial=-1) + 1, len(PARTS))
    np.minimum.at(first, units, given)
    return given == first[units]


def unite(
    parts: np.ndarray, units: np.ndarray, cells: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Bring every unit (near-duplicates of one picture) into one part, by exchanging samples of the
    same cell.

    A unit goes to the part of a random member. For every member that has to move there, a random
    sample of its cell that is alone in its unit comes back, so that the sizes of all cells in all
    parts stay as they were; where the part has no such sample, they change by one.

    Args:
        parts: Part of each sample, int ``(N,)``, from a random split.
        units: Unit of each sample, int ``(N,)``, 0 to U - 1.
        cells: Cell (a crossing of target and group) of each sample, int ``(N,)``.
        rng: Generator that draws where a unit goes and what comes back.

    Returns:
        The part of each sample, int64 ``(N,)``.
    """
    parts = parts.copy()
    sizes = np.bincount(units)
    alone = sizes[units] == 1
    for unit in np.flatnonzero(sizes > 1):
        members = np.flatnonzero(units == unit)
        target = parts[rng.choice(members)]
        for member in members[parts[members] != target]:
            there = np.flatnonzero(alone & (parts == target) & (cells == cells[member]))
            if len(there):
                parts[rng.choice(there)] = parts[member]
            parts[member] = target
    return parts


def fill_parts(
    given: np.ndarray | None,
    cells: np.ndarray,
    fractions: Sequence[float],
    rng: np.random.Generator,
    units: np.ndarray | None = None,
    people: np.ndarray | None = None,
) -> np.ndarray:
    """Assign the samples that a data set left open (-1, or all) to the parts that the data set does
    not fill itself.

    Samples of one of the ``units`` that are left open go to the same part; so do those of one of
    the ``people``, where these are given and whole people are drawn (:func:`whole_parts`).

    Raises:
        ValueError: If samples are left open, and ``fractions`` is 0 for all parts that they may go
            to.
    """
    parts = np.full(len(cells), -1) if given is None else given.copy()
    undecided = parts < 0
    free = np.setdiff1d(np.arange(len(PARTS)), parts)
    if undecided.any():
        free = free[np.asarray(fractions)[free] > 0]
        if not len(free):
            raise ValueError(
                f"fractions must have a share for a part that the data set does not fill, got {fractions}"
            )
        shares = np.asarray(fractions)[free]
        draw = stratified_parts if people is None else partial(whole_parts, people[undecided])
        drawn = draw(cells[undecided], shares / shares.sum(), rng)
        drawn = drawn if units is None else unite(drawn, units[undecided], cells[undecided], rng)
        parts[undecided] = free[drawn]
    return parts
