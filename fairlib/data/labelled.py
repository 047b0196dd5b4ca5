"""Pictures with one label each and an official test part: CIFAR-10, SVHN, MNIST and
Fashion-MNIST."""

import gzip
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fairlib._validation import lookup
from fairlib.data.collection import Collection, Request, draw, table_of
from fairlib.data.images import decoder, find_files, resize

DIGITS = tuple("0123456789")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
GARMENTS = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def cifar10(request: Request, *, limit: int | None = None, download: bool = False) -> Collection:
    """Load CIFAR-10: 60,000 colour pictures of ten kinds of things (32 x 32), 10,000 of them the
    official test part.

    The files are either those of its authors, ``cifar-10-batches-py`` (in ``root`` or in
    ``root/cifar10``; torchvision reads them and checks their digests), or pictures in folders named
    by class, ``cifar10/train/<class>/*.jpg`` and ``cifar10/test/<class>/*.jpg`` (or png).

    The official test part is kept, and the validation part is split from the training part. A
    picture that is in both the training and the test part is dropped from the test part.

    Attribute ``label``: airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck.

    Args:
        request: Arguments of :func:`fairlib.load`; ``image_size`` defaults to 32.
        limit: Number of pictures to draw by the seed from both parts; None, or more than there are,
            for all.
        download: Download missing files from their authors into ``root``.

    Raises:
        FileNotFoundError: If the files are in neither layout, or not the original ones; says how to
            get them.
        ValueError: If a class folder has another name, or a setting is out of its range.
        OSError: If a picture cannot be read, when it is decoded.

    Source: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.
    """
    from torchvision import datasets

    how_to_get = "CIFAR-10: download=True gets it from its authors; in class folders it is cifar10/train/<class>/*.jpg"
    root = Path(request.root)
    original = datasets.CIFAR10.base_folder
    homes = (root.parent,) if root.name == original else (root, root / "cifar10")
    home = next((place for place in homes if (place / original).is_dir()), homes[0])
    if download or (home / original).is_dir():
        halves = [
            _verified(datasets.CIFAR10, how_to_get, home, download, train=train)
            for train in (True, False)
        ]
        pixels = np.concatenate([half.data for half in halves]).transpose(0, 3, 1, 2)
        images, labels = (
            _scaled(pixels, request.image_size or 32),
            [half.targets for half in halves],
        )
    else:
        files = [
            find_files(request.root, ["cifar10"], f"{part}/*/*.[jp]*g", how_to_get)
            for part in ("train", "test")
        ]
        codes = {name: code for code, name in enumerate(CIFAR10)}
        labels = [
            [lookup("class folder", file.parent.name, codes) for file in half] for half in files
        ]
        images = decoder(files[0] + files[1], request.image_size or 32)
    return replace(_collection(request, "label", CIFAR10, images, labels, limit), photographs=True)


def svhn(request: Request, *, limit: int | None = None, download: bool = False) -> Collection:
    """Load SVHN: 99,289 digits of house numbers in colour (32 x 32), 26,032 of them the official
    test part.

    The files are ``svhn/train_32x32.mat`` and ``svhn/test_32x32.mat``, the cropped digits of its
    authors; torchvision reads them and checks their digests. The "extra" part is not used. The
    official test part is kept, and the validation part is split from the training part. Digits are
    as imbalanced as on houses (1 is three times as frequent as 9).

    Attribute ``digit``: 0 to 9.

    Args:
        request: Arguments of :func:`fairlib.load`; ``image_size`` defaults to 32.
        limit: Number of pictures to draw by the seed from both parts; None, or more than there are,
            for all.
        download: Download missing files from their authors into ``root/svhn``.

    Raises:
        FileNotFoundError: If the files are missing, or not the original ones; says how to get them.
        ValueError: If a setting is out of its range.

    Source: Y. Netzer, T. Wang, A. Coates, A. Bissacco, B. Wu, A. Y. Ng, Reading Digits in Natural
    Images with
        Unsupervised Feature Learning, 2011.
    """
    from torchvision import datasets

    how_to_get = (
        "SVHN (non-commercial use only): download=True gets train_32x32.mat and test_32x32.mat"
    )
    root = Path(request.root)
    home = root if (root / "train_32x32.mat").is_file() else root / "svhn"
    halves = [
        _verified(datasets.SVHN, how_to_get, home, download, split=part)
        for part in ("train", "test")
    ]
    images = _scaled(np.concatenate([half.data for half in halves]), request.image_size or 32)
    labels = [half.labels for half in halves]
    return replace(_collection(request, "digit", DIGITS, images, labels, limit), photographs=True)


def mnist(request: Request, *, limit: int | None = None, download: bool = False) -> Collection:
    """Load MNIST: 70,000 handwritten digits (28 x 28, grey), 10,000 of them the official test part.

    The files are the four idx files of its authors in ``MNIST/raw`` (torchvision's layout), gzipped
    or not. The official test part is kept, and the validation part is split from the training part.

    Attribute ``digit``: 0 to 9.

    Args:
        request: Arguments of :func:`fairlib.load`; ``image_size`` defaults to 28.
        limit: Number of pictures to draw by the seed from both parts; None, or more than there are,
            for all.
        download: Download missing files into ``root``.

    Raises:
        FileNotFoundError: If a file is missing; says how to get it.
        OSError: If a file is not a complete idx file.
        ValueError: If a setting is out of its range.

    Source: Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, Gradient-Based Learning Applied to Document
        Recognition, Proceedings of the IEEE 86, 1998.
    """
    return _idx_collection(request, "MNIST", "digit", DIGITS, limit, download)


def fashion_mnist(
    request: Request, *, limit: int | None = None, download: bool = False
) -> Collection:
    """Load Fashion-MNIST: 70,000 pictures of garments (28 x 28, grey), 10,000 of them the official
    test part.

    The files are the four idx files of its authors in ``FashionMNIST/raw`` (torchvision's layout),
    gzipped or not. The official test part is kept, and the validation part is split from the
    training part.

    Attribute ``label``: T-shirt/top, Trouser, Pullover, Dress, Coat, Sandal, Shirt, Sneaker, Bag,
    Ankle boot.

    Args:
        request: Arguments of :func:`fairlib.load`; ``image_size`` defaults to 28.
        limit: Number of pictures to draw by the seed from both parts; None, or more than there are,
            for all.
        download: Download missing files into ``root``.

    Raises:
        FileNotFoundError: If a file is missing; says how to get it.
        OSError: If a file is not a complete idx file.
        ValueError: If a setting is out of its range.

    Source: H. Xiao, K. Rasul, R. Vollgraf, Fashion-MNIST: a Novel Image Dataset for Benchmarking
    Machine
        Learning Algorithms, 2017.
    """
    return _idx_collection(request, "FashionMNIST", "label", GARMENTS, limit, download)


def _idx_collection(
    request: Request,
    name: str,
    attribute: str,
    values: Sequence[str],
    limit: int | None,
    download: bool,
) -> Collection:
    root = Path(request.root)
    # MNIST and Fashion-MNIST use the same names of files: only the folder distinguishes them.
    home = root if root.name == name else root / name
    how_to_get = (
        f"{name}: download=True gets it; by hand, put its four idx files (gzipped or not) there"
    )
    if download:
        from torchvision import datasets

        _verified(getattr(datasets, name), how_to_get, home.parent, download)
    images, labels = (
        [_read_idx(home / "raw", f"{part}-{kind}-ubyte", how_to_get) for part in ("train", "t10k")]
        for kind in ("images-idx3", "labels-idx1")
    )
    pixels = np.concatenate(images)[:, None]
    return _collection(
        request, attribute, values, _scaled(pixels, request.image_size or 28), labels, limit
    )


def _read_idx(folder: Path, name: str, how_to_get: str) -> np.ndarray:
    """Read an array of bytes: after two zeros its type (8), number of dimensions, sizes
    (big-endian), and values."""
    file = next((file for file in (folder / name, folder / f"{name}.gz") if file.is_file()), None)
    if file is None:
        raise FileNotFoundError(
            f"found no file {name} or {name}.gz in {str(folder)!r}. {how_to_get}"
        )
    try:
        content = file.read_bytes()
        content = gzip.decompress(content) if file.suffix == ".gz" else content
        shape = np.frombuffer(content, ">i4", count=content[3], offset=4)
        return np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)
    except (OSError, EOFError, IndexError, ValueError, zlib.error) as error:
        raise OSError(f"cannot read {str(file)!r} ({error}): get it again") from error


def _verified(reader: Callable, how_to_get: str, home: Path, download: bool, **which: Any) -> Any:
    """Let torchvision read the files: it checks their digests first, since a changed pickle may
    hold any code."""
    try:
        return reader(home, download=download, **which)
    except RuntimeError as error:
        raise FileNotFoundError(
            f"found no original files in {str(home)!r} ({error}). {how_to_get}"
        ) from error


def _scaled(pixels: np.ndarray, image_size: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda rows: resize(pixels[rows], image_size)


def _collection(
    request: Request,
    attribute: str,
    values: Sequence[str],
    images: Callable[[np.ndarray], np.ndarray],
    halves: Sequence[np.ndarray | Sequence[int]],
    limit: int | None,
) -> Collection:
    """Collect pictures, given by rows: the training part, then the test part; ``halves`` are the
    codes of both."""
    labels, parts = np.concatenate(halves), np.repeat([-1, 2], [len(half) for half in halves])
    rows = draw(len(labels), limit, np.random.default_rng(request.seed))
    return Collection(
        table=table_of(**{attribute: (labels[rows], values)}),
        images=lambda index: images(rows[index]),
        target=attribute,
        group=attribute,
        parts=parts[rows],
        report={"found": len(labels), "not_drawn": len(labels) - len(rows)},
    )
