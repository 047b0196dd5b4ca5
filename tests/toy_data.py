"""Data sets of a few small pictures in the formats of the real ones."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat

from fairlib.data import labelled

TRAIN, TEST = 10, 4
"""Pictures of each class in the files of data sets with one label."""


def pictures(count: int, channels: int, side: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes 0 to 9 in turn, and noise that is the brighter the larger the code; the first pixel is
    the code."""
    labels = np.arange(10 * count) % 10
    pixels = np.random.default_rng(seed).integers(
        0, 76, (10 * count, channels, side, side), dtype=np.uint8
    )
    pixels += (20 * labels[:, None, None, None]).astype(np.uint8)
    pixels[:, 0, 0, 0] = labels
    return pixels, labels


def write_cifar10(root: Path) -> None:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    pixels, labels = pictures(TRAIN, 3, 32, 0)
    halves = [(f"data_batch_{i + 1}", slice(20 * i, 20 * i + 20), pixels, labels) for i in range(5)]
    for name, rows, x, y in [*halves, ("test_batch", slice(None), *pictures(TEST, 3, 32, 1))]:
        content = {"data": x[rows].reshape(len(x[rows]), -1), "labels": y[rows].tolist()}
        (folder / name).write_bytes(pickle.dumps(content))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list(labelled.CIFAR10)}))


def write_class_folders(root: Path, train: int = TRAIN) -> None:
    for part, count, seed in (("train", train, 0), ("test", TEST, 1)):
        for i, (image, label) in enumerate(zip(*pictures(count, 3, 32, seed), strict=True)):
            folder = root / "cifar10" / part / labelled.CIFAR10[label]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.transpose(1, 2, 0)).save(folder / f"{i}.png")


def write_svhn(root: Path, train: int = TRAIN) -> None:
    (root / "svhn").mkdir()
    for part, count, seed in (("train", train, 0), ("test", TEST, 1)):
        pixels, labels = pictures(count, 3, 32, seed)
        # In these files a zero is labelled 10.
        content = {
            "X": pixels.transpose(2, 3, 1, 0),
            "y": np.where(labels == 0, 10, labels)[:, None].astype(np.uint8),
        }
        savemat(root / "svhn" / f"{part}_32x32.mat", content)


def write_idx(
    root: Path,
    name: str,
    pack: Callable[[bytes], bytes] = bytes,
    suffix: str = "",
    train: int = TRAIN,
) -> None:
    raw = root / name / "raw"
    raw.mkdir(parents=True)
    for part, count, seed in (("train", train, 0), ("t10k", TEST, 1)):
        pixels, labels = pictures(count, 1, 28, seed)
        images = struct.pack(">4i", 0x0803, len(pixels), 28, 28) + pixels.tobytes()
        codes = struct.pack(">2i", 0x0801, len(labels)) + labels.astype(np.uint8).tobytes()
        (raw / f"{part}-images-idx3-ubyte{suffix}").write_bytes(pack(images))
        (raw / f"{part}-labels-idx1-ubyte{suffix}").write_bytes(pack(codes))


def write_faces(folder: Path, codes: dict[str, tuple[float, float, float]]) -> None:
    """Noise in the colour that three numbers of 0 to 1 give, as PNG whatever the pictures are
    called."""
    generator = np.random.default_rng(0)
    for name, colour in codes.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 56, (16, 16, 3)) + 200 * np.array(colour)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / name, format="PNG")


def write_utkface(root: Path, count: int = 260) -> None:
    """Ages of all bins, two genders and five races in turn, all independent."""
    ages, codes = [5, 5, 12, 17, 17, 17, 22, 27, 35, 45, 55, 70, 70], {}
    for i in range(count):
        name = f"{ages[i % 13]}_{i % 2}_{i % 5}_201701101837{i:05}.jpg.chip.jpg"
        codes[name] = (ages[i % 13] / 70, i % 2, i % 5 / 4)
    write_faces(root / "UTKFace", codes)


def write_celeba(root: Path, count: int = 120) -> None:
    codes = {f"{i:06}.jpg": (i % 3 == 0, i % 4 < 2, i % 2) for i in range(count)}
    write_faces(root / "celeba" / "img_align_celeba", codes)
    rows = [
        " ".join([name, *(str(2 * int(flag) - 1) for flag in flags)])
        for name, flags in codes.items()
    ]
    table = [str(count), "Blond_Hair Bags_Under_Eyes Male", *rows]
    (root / "celeba" / "list_attr_celeba.txt").write_text("\n".join(table) + "\n")


def write_lfw(root: Path, people: int = 60) -> None:
    """Two pictures of each person, with the attributes of LFWA."""

    def cells(values: list[str]) -> np.ndarray:
        return np.array(values, dtype=object)[:, None]

    names = [f"P_{i:03}/P_{i:03}_{number:04}.jpg" for i in range(people) for number in (1, 2)]
    codes = {name: (i // 2 % 2, i % 3 == 0, i % 4 < 2) for i, name in enumerate(names)}
    write_faces(root / "lfw", codes)
    content = {"name": cells([name.replace("/", "\\") for name in names])}
    content |= {
        "AttrName": cells(["Male", "Wavy_Hair", "Big_Nose"]),
        "label": np.array([*codes.values()], dtype=float),
    }
    savemat(root / "lfw" / "lfw_att_40.mat", content)


WRITERS = {
    "utkface": write_utkface,
    "celeba": write_celeba,
    "lfw": write_lfw,
    "cifar10": lambda root: write_class_folders(root, train=40),
    "svhn": lambda root: write_svhn(root, train=20),
    "mnist": lambda root: write_idx(root, "MNIST", train=20),
}
"""By the name of a data set what writes it into a folder."""
