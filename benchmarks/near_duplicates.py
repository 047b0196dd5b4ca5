"""What a hash tells of near-duplicates: which pairs of real pictures it groups, beside the
correlation of their pixels.

``python benchmarks/near_duplicates.py DATA``, where DATA holds the folders of UTKFace, CelebA and
CIFAR-10 (those that are there are measured) and MNIST. Copies with the same bytes are gone. For
every pair of images that one of the hashes groups, or whose pixels correlate by more than .9, the
correlation over all pixels and channels decides: above .99 they are near-duplicates, below .9 it is
a false alarm. ``results/benchmarks/near_duplicates.csv`` has a row for each data set, size, hash
and largest number of differing bits, with the images that the groups of this project's choice
contain, their largest group, and how many test images have a partner in the training part of a
split that ignores all this. No picture and no name of a file is written."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy.fft import dctn
from torch.nn.functional import adaptive_avg_pool2d

import fairlib
from fairlib.data.near_duplicates import THRESHOLD, near_duplicates, perceptual_hash

RESULTS = Path(__file__).parents[1] / "results" / "benchmarks"
SETS = {
    "utkface": [("utkface", size) for size in (16, 32, 64)],
    "celeba": [("celeba", size) for size in (16, 32, 64)],
    "cifar10": [("cifar10", 32)],
    "mnist": [("mnist", 28)],
}
CERTAIN, DOUBTFUL, BLOCK = 0.99, 0.9, 1000


def by_differences(side: int) -> Callable[[np.ndarray], np.ndarray]:
    """The difference hash: whether a cell is brighter than its left neighbour, and than the one
    above it."""

    def hashed(images: np.ndarray) -> np.ndarray:
        grey = torch.from_numpy(images.mean(axis=1, dtype=np.float32))[:, None]
        across = adaptive_avg_pool2d(grey, (side, side + 1)).diff(dim=3)
        down = adaptive_avg_pool2d(grey, (side + 1, side)).diff(dim=2)
        return torch.cat([(across > 0).flatten(1), (down > 0).flatten(1)], dim=1).numpy()

    return hashed


def by_cosines(side: int) -> Callable[[np.ndarray], np.ndarray]:
    """The library's hash with another number of coefficients in each direction."""

    def hashed(images: np.ndarray) -> np.ndarray:
        coefficients = dctn(images.mean(axis=1, dtype=np.float32), axes=(1, 2), norm="ortho")
        low = coefficients[:, :side, :side].reshape(len(images), -1)[:, 1:]
        return low > np.median(low, axis=1, keepdims=True)

    return hashed


HASHES: dict[str, tuple[Callable[[np.ndarray], np.ndarray], tuple[int, ...]]] = {
    "cosines 12 x 12 (the library's)": (perceptual_hash, (8, 12, 14, 16, 18, 20, 24, 28)),
    "cosines 8 x 8": (by_cosines(8), (2, 4, 6, 8)),
    "differences 8 x 8, both ways": (by_differences(8), (3, 4, 6, 8, 10)),
}


def counts(images: np.ndarray) -> pd.DataFrame:
    """For each hash and number of bits: pairs that are grouped, by the correlation of their
    pixels."""
    pixels = torch.from_numpy(images.reshape(len(images), -1)).float()
    pixels -= pixels.mean(dim=1, keepdim=True)
    pixels /= pixels.norm(dim=1, keepdim=True).clamp(min=1e-6)
    bits = {name: torch.from_numpy(hashed(images)).float() for name, (hashed, _) in HASHES.items()}
    found = {
        (name, most): np.zeros(3, dtype=int)
        for name, (_, levels) in HASHES.items()
        for most in levels
    }
    certain = 0
    for start in range(0, len(images), BLOCK):
        rows = slice(start, start + BLOCK)
        later = torch.ones(len(pixels[rows]), len(images) - start, dtype=torch.bool).triu(1)
        correlation = pixels[rows] @ pixels[start:].T
        certain += int(((correlation > CERTAIN) & later).sum())
        for name, (_, levels) in HASHES.items():
            signs = 2 * bits[name] - 1
            apart = (signs.shape[1] - signs[rows] @ signs[start:].T) / 2
            near = (apart < max(levels) + 0.5) & later
            alike, apart = correlation[near], apart[near]
            for most in levels:
                grouped = alike[apart < most + 0.5]
                parts = (grouped > CERTAIN, grouped < DOUBTFUL, grouped > -2)
                found[name, most] += [int(part.sum()) for part in parts]
    table = (
        pd.DataFrame(found, index=["caught", "false_alarms", "pairs"])
        .T.rename_axis(["hash", "bits"])
        .reset_index()
    )
    return table.assign(certain_pairs=certain, share_caught=table["caught"] / max(certain, 1))


def measured(name: str, size: int, root: str) -> pd.DataFrame:
    splits = fairlib.load(name, image_size=size, root=root, near_duplicates="ignored")
    images = np.concatenate([part.inputs.numpy() for part in splits])
    start = time.perf_counter()
    groups = near_duplicates(images)
    seconds, sizes = time.perf_counter() - start, np.bincount(groups)
    train, test = groups[: len(splits.train)], groups[len(images) - len(splits.test) :]
    across = np.isin(test, train)
    table = counts(images).assign(data=name, image_size=size, images=len(images), seconds=seconds)
    table["near_duplicates"], table["largest_group"] = sizes[sizes > 1].sum(), sizes.max()
    table["test_images"], table["test_with_partner"] = len(test), int(across.sum())
    by_group = pd.Series(across).groupby(
        np.array(splits.test.group_names)[splits.test.groups.numpy()]
    )
    count = sizes[sizes > 1].sum()
    print(f"{name} {size}: {count} of {len(images)} have a near-duplicate, {seconds:.1f} s")
    print("  test images with one in the training part:", dict((by_group.mean() * 100).round(1)))
    chosen = table[table["hash"].str.contains("library") & (table["bits"] == THRESHOLD)].iloc[0]
    caught = f"{chosen['share_caught']:.4f} of {chosen['certain_pairs']}"
    print(f"  caught {caught}, {chosen['false_alarms']} false alarms")
    return table


def main() -> None:
    root = sys.argv[1]
    tables = []
    for sets in SETS.values():
        for name, size in sets:
            try:
                tables.append(measured(name, size, root))
            except FileNotFoundError as error:
                print(f"{name}: not here ({error})")
    RESULTS.mkdir(parents=True, exist_ok=True)
    front = ["data", "image_size", "images", "hash", "bits"]
    table = pd.concat(tables, ignore_index=True)
    table[front + [name for name in table if name not in front]].to_csv(
        RESULTS / "near_duplicates.csv", index=False, float_format="%.5g"
    )


if __name__ == "__main__":
    main()
