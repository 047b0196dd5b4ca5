"""Honest splits: no duplicates, near-duplicates in one part, every crossing of target and group."""

from collections.abc import Collection, Sequence
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
        shares = tuple(map(float, fractions))
    except (TypeError, ValueError):
        shares = ()
    # The sum is compared by "not <=", which a NaN fails as well.
    if len(shares) != len(PARTS) or min(shares) < 0 or not abs(sum(shares) - 1) <= 1e-6:
        raise ValueError(
            "fractions must be three numbers (train, val, test), 0 for no such part, with sum 1, "
            f"got {fractions!r}"
        )
    return tuple(share / sum(shares) for share in shares)


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
    """Keep the first of the images with the same bytes if their labels agree, and none if not.

    Args:
        images: Array ``(N, ...)`` of any dtype.
        labels: Codes of target and group, int ``(N, L)``: copies agree if all L are equal.

    Returns:
        The indices of the images that are kept, ascending, and how many were dropped:
        ``duplicates`` (copies of an image that is kept) and ``conflicting`` (copies whose labels
        disagree).
    """
    # Digests instead of pixels: a table of whole images would take their memory a second time.
    digests = [blake2b(image.tobytes(), digest_size=16).digest() for image in images]
    copies = pd.DataFrame(labels).groupby(pd.factorize(np.array(digests, dtype=object))[0])
    agree = (copies.transform("min") == copies.transform("max")).to_numpy().all(axis=1)
    first = (copies.cumcount() == 0).to_numpy()
    counts = {"duplicates": int((agree & ~first).sum()), "conflicting": int((~agree).sum())}
    return np.flatnonzero(agree & first), counts


def stratified_parts(
    cells: np.ndarray, fractions: ArrayLike, rng: np.random.Generator
) -> np.ndarray:
    """Assign samples to parts at random, each cell (target and group) in the shares ``fractions``.

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
        # A quota of 6.999999999 means 7: without the nudge a rounding error costs a whole sample.
        counts = np.floor(quotas + 1e-9).astype(np.int64)
        # Rounding down leaves a few samples of each cell. If every cell gave them to the part with
        # the largest remainder, the same part would gain in all cells, and with many small cells
        # the totals would miss the fractions. The lag over the cells so far evens that out.
        lag += quotas - counts
        behind = np.argsort(-lag, kind="stable")[: len(members) - counts.sum()]
        counts[behind] += 1
        lag[behind] -= 1
        parts[members] = rng.permutation(np.repeat(np.arange(len(shares)), counts))
    return parts


def whole_parts(
    units: np.ndarray, cells: np.ndarray, fractions: ArrayLike, rng: np.random.Generator
) -> np.ndarray:
    """Assign whole units (all pictures of a person) to parts at random: no unit is in two parts.

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
    # Large units first: one that comes last would overfill whatever part it goes to. The random
    # order in front of the stable sort decides among units of one size.
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
    """Refuse a split in which a group has too few samples in one of the parts ``present``.

    Raises:
        ValueError: If a group has fewer than two samples in a part; names the group, the part and
            the count.
    """
    for part in present:
        sizes = np.bincount(groups[parts == PARTS.index(part)], minlength=len(group_names))
        if (size := sizes.min()) < MINIMUM:
            raise ValueError(
                f"group {group_names[int(sizes.argmin())]!r} has {size} sample"
                f"{'' if size == 1 else 's'} in the {part} split, and needs {MINIMUM}: load more "
                "data, or choose coarser groups"
            )


def first_parts(given: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Tell which samples stay if every unit is cut down to its first part.

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
    """Bring every unit (near-duplicates of one picture) into one part, by exchanging samples.

    A unit goes to the part of a random member. For every member that has to move there, a random
    sample of its cell that is alone in its unit comes back, so that the sizes of all cells in all
    parts stay as they were; where the part has no such sample, they change by one.

    Args:
        parts: Part of each sample, int ``(N,)``, from a random split.
        units: Unit of each sample, int ``(N,)``, 0 to U - 1.
        cells: Cell (a crossing of target and group) of each sample, int ``(N,)``.
        rng: Generator that draws the part of a unit and the samples that come back.

    Returns:
        The part of each sample, int64 ``(N,)``.
    """
    # Exchanged samples keep the sizes: a unit that just moved would shift the shares of its cells,
    # always toward the larger parts, since a random member is in one of those most often.
    parts = parts.copy()
    sizes = np.bincount(units)
    alone = sizes[units] == 1
    for unit in np.flatnonzero(sizes > 1):
        members = np.flatnonzero(units == unit)
        target = parts[rng.choice(members)]
        for member in members[parts[members] != target]:
            partners = np.flatnonzero(alone & (parts == target) & (cells == cells[member]))
            if len(partners):
                parts[rng.choice(partners)] = parts[member]
            parts[member] = target
    return parts


def fill_parts(
    given: np.ndarray,
    cells: np.ndarray,
    fractions: Sequence[float],
    rng: np.random.Generator,
    units: np.ndarray | None = None,
    people: np.ndarray | None = None,
) -> np.ndarray:
    """Assign the samples whose part is open (-1) to the parts that no other sample is in.

    Samples of one of the ``units`` go to the same part; so do those of one of the ``people``, where
    these are given and whole people are drawn (:func:`whole_parts`).

    Raises:
        ValueError: If samples are open, and ``fractions`` is 0 for all parts that they may go to.
    """
    parts = given.copy()
    undecided = parts < 0
    if not undecided.any():
        return parts
    shares = np.where(np.isin(np.arange(len(PARTS)), parts), 0, fractions)
    free = np.flatnonzero(shares)
    if not len(free):
        raise ValueError(
            "fractions must have a share for a part that the data set does not fill, "
            f"got {fractions}"
        )
    cells, shares = cells[undecided], shares[free] / shares[free].sum()
    if people is not None:
        drawn = whole_parts(people[undecided], cells, shares, rng)
    else:
        drawn = stratified_parts(cells, shares, rng)
    if units is not None:
        drawn = unite(drawn, units[undecided], cells, rng)
    parts[undecided] = free[drawn]
    return parts
