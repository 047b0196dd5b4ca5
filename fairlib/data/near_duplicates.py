"""Near-duplicates: photographs that are nearly the same picture, found by a perceptual hash.

Why this hash and this threshold (``benchmarks/near_duplicates.py``): of UTKFace at 32 pixels 511
pairs of images have pixels that correlate by more than .99. At 16 bits all of them are found, among
655 pairs in all, of which 3 are below .9; at 14 bits one is missed, and at 20 and 24 bits 30 and
267 pairs below .9 come in. A cosine hash of 8 x 8 finds .87 with 3 pairs below .9, a difference
hash of 128 bits .97 with 6. At 16 bits:

==========  ======  ======  ==============  =========  ========  =============
data        pixels  images  found of those  all pairs  of them   largest group
                            above .99                  below .9
==========  ======  ======  ==============  =========  ========  =============
UTKFace     32      23,244  511 of 511      655        3         4
UTKFace     64      23,244  431 of 431      654        4         4
CelebA      32      10,000  6 of 6          11         3         2
CelebA      64      10,000  3 of 3          11         4         2
CIFAR-10    32      60,000  9 of 10         398        50        17
==========  ======  ======  ==============  =========  ========  =============

The pairs below .9 all have the same label, in CIFAR-10 too, where one in ten would by chance: most
are copies with another crop. Groups do not chain. A threshold on the correlation itself would do
worse: in CIFAR-10 a tenth of the pairs above .95 show different classes.

Strokes and drawings are another matter. In MNIST a third of the images would be in groups, the
largest of 6,850; of 192,458 pairs 3 have a correlation above .99, and half are below .9.
"""

from collections.abc import Iterator
from itertools import combinations

import numpy as np

SIDE = 12
"""Cosine coefficients in each direction; the first of them all, the mean, is left out."""

THRESHOLD = 16
"""Largest number of the 143 bits in which the hashes of near-duplicates differ."""

BANDS = THRESHOLD + 2
"""Parts of a hash: if at most ``THRESHOLD`` bits differ, at least two of the bands are equal."""

HASHED_AT_ONCE = 4096
"""Images of which the coefficients are computed at once, to bound the memory."""


def perceptual_hash(images: np.ndarray) -> np.ndarray:
    """Compute the DCT hash of every image: which coefficients of low frequency exceed their median.

    With the type-II cosine transform C (orthonormal) of the mean over the channels, the bits are
    ``C[i, j] > median(C)`` over ``0 <= i, j < 12`` without ``i = j = 0``. Brightness, contrast,
    noise and the strength of a JPEG change few of them, and nor does scaling: 32 and 64 pixels give
    nearly the same hash.

    Args:
        images: Array ``(N, C, H, W)`` with at least 12 pixels in both directions.

    Returns:
        bool ``(N, 143)``.

    Source: C. Zauner, Implementation and Benchmarking of Perceptual Image Hash Functions, 2010;
        there 8 x 8 bits of 32 x 32 pixels.
    """
    from scipy.fft import dctn

    blocks = []
    for start in range(0, len(images), HASHED_AT_ONCE):
        grey = images[start : start + HASHED_AT_ONCE].mean(axis=1, dtype=np.float32)
        low = dctn(grey, axes=(1, 2), norm="ortho")[:, :SIDE, :SIDE].reshape(len(grey), -1)[:, 1:]
        blocks.append(low > np.median(low, axis=1, keepdims=True))
    return np.concatenate(blocks)


def near_pairs(hashes: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield all pairs of hashes that differ in at most ``THRESHOLD`` bits.

    Not all pairs are compared. Of 18 bands of bits at least two are the same where at most 16 bits
    differ; so for every two bands the hashes are sorted by them, and only those that are equal
    there are compared.

    Args:
        hashes: bool ``(N, B)``.

    Yields:
        Indices ``i`` and ``j`` of some pairs, int64 ``(n,)`` each; a pair may come several times.
    """
    padded = np.pad(hashes, ((0, 0), (0, -hashes.shape[1] % 64)))
    words = np.packbits(padded, axis=1).view(np.uint64)
    # Neighbouring bits go to different bands. Bits of low frequency vary little between pictures:
    # a band of them alone would be equal in most pairs, and all of these would be compared.
    bands = np.zeros((BANDS, len(hashes)), dtype=np.uint16)
    for bit, column in enumerate(hashes.T):
        bands[bit % BANDS] = bands[bit % BANDS] << 1 | column
    for one, other in combinations(bands, 2):
        key = one << 8 | other
        order = np.argsort(key, kind="stable")
        key, start, step = key[order], np.arange(len(order)), 0
        # Runs of equal keys: compare neighbours, then those two apart, until no run is that long.
        while len(start):
            step += 1
            start = start[start + step < len(order)]
            start = start[key[start] == key[start + step]]
            i, j = order[start], order[start + step]
            near = np.bitwise_count(words[i] ^ words[j]).sum(axis=1) <= THRESHOLD
            yield i[near], j[near]


def near_duplicates(images: np.ndarray) -> np.ndarray:
    """Group images that are nearly the same: connected components of the pairs of near hashes.

    Args:
        images: Array ``(N, C, H, W)``. With fewer than 12 pixels in a direction they are too
            coarse to tell: pictures of different scenes look alike, and each is taken as alone.

    Returns:
        A number for the group of each image, int64 ``(N,)``; an image without a near-duplicate is
        alone in its group.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    if min(images.shape[2:]) < SIDE:
        return np.arange(len(images))
    pairs = [np.stack(pair) for pair in near_pairs(perceptual_hash(images))]
    i, j = np.concatenate([np.zeros((2, 0), dtype=np.int64), *pairs], axis=1)
    linked = coo_array((np.ones(len(i), dtype=bool), (i, j)), shape=(len(images), len(images)))
    return connected_components(linked, directed=False)[1].astype(np.int64)
