"""Pictures with one label each and an official test part: CIFAR-10, SVHN, MNIST, Fashion-MNIST."""

import gzip
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairlib._validation import lookup
from fairlib.data.collection import Collection, Images, Request, table_of
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


def cifar10(request: Request, *, download: bool = False) -> Collection:
    """Load CIFAR-10: 60,000 colour pictures of ten kinds of things (32 x 32), 10,000 to test on.

    The files are either those of its authors, ``cifar-10-batches-py`` (in ``root`` or in
    ``root/cifar10``; torchvision reads them and checks their digests), or pictures in folders named
    by class, ``cifar10/train/<class>/*.jpg`` and ``cifar10/test/<class>/*.jpg`` (or png).

    The official test part is kept, and the validation part is split from the training part. A
    picture that is in both the training and the test part is dropped from the test part.

    Attribute ``label``: airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck.

    Args:
        request: Arguments of :func:`fairlib.load`; ``image_size`` defaults to 32.
        download: Download missing files from their authors into ``root``.

    Raises:
        FileNotFoundError: If the files are in neither layout, or not the original ones; says how to
            get them.
        ValueError: If a class folder has another name.
        OSError: If a picture cannot be read, when it is decoded.

    Source: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.
    """
    from torchvision import datasets

    how_to_get = (
        "CIFAR-10: download=True gets it from its authors; in class folders it is "
        "cifar10/train/<class>/*.jpg"
    )
    image_size = request.image_size or 32
    root, original = Path(request.root), datasets.CIFAR10.base_folder
    homes = (root.parent,) if root.name == original else (root, root / "cifar10")
    home = next((place for place in homes if (place / original).is_dir()), homes[0])
    if download or (home / original).is_dir():
        halves = _originals(datasets.CIFAR10, home, (True, False), download, how_to_get)
        pixels = np.concatenate([half.data for half in halves]).transpose(0, 3, 1, 2)
        images = _scaled(pixels, image_size)
        labels = [half.targets for half in halves]
    else:
        files = [
            find_files(root, ["cifar10"], f"{part}/*/*.[jp]*g", how_to_get)
            for part in ("train", "test")
        ]
        codes = {name: code for code, name in enumerate(CIFAR10)}
        labels = [
            [lookup("class folder", file.parent.name, codes) for file in half] for half in files
        ]
        images = decoder(files[0] + files[1], image_size)
    return _collection("label", CIFAR10, images, labels, photographs=True)


def svhn(request: Request, *, download: bool = False) -> Collection:
    """Load SVHN: 99,289 digits of house numbers in colour (32 x 32), 26,032 of them to test on.

    The files are ``svhn/train_32x32.mat`` and ``svhn/test_32x32.mat``, the cropped digits of its
    authors; torchvision reads them and checks their digests. The "extra" part is not used. The
    official test part is kept, and the validation part is split from the training part. Digits are
    as imbalanced as on houses (1 is three times as frequent as 9).

    Attribute ``digit``: 0 to 9.

    Args:
        request: Arguments of :func:`fairlib.load`; ``image_size`` defaults to 32.
        download: Download missing files from their authors into ``root/svhn``.

    Raises:
        FileNotFoundError: If the files are missing, or not the original ones; says how to get them.

    Source: Y. Netzer, T. Wang, A. Coates, A. Bissacco, B. Wu, A. Y. Ng, Reading Digits in Natural
        Images with Unsupervised Feature Learning, 2011.
    """
    from torchvision import datasets

    how_to_get = (
        "SVHN (non-commercial use only): download=True gets train_32x32.mat and test_32x32.mat"
    )
    root = Path(request.root)
    home = root if (root / "train_32x32.mat").is_file() else root / "svhn"
    halves = _originals(datasets.SVHN, home, ("train", "test"), download, how_to_get)
    images = _scaled(np.concatenate([half.data for half in halves]), request.image_size or 32)
    return _collection("digit", DIGITS, images, [half.labels for half in halves], photographs=True)


def mnist(request: Request, *, download: bool = False) -> Collection:
    """Load MNIST: 70,000 handwritten digits (28 x 28, grey), 10,000 of them the official test part.

    The files are the four idx files of its authors in ``MNIST/raw`` (torchvision's layout), gzipped
    or not. The official test part is kept, and the validation part is split from the training part.

    Attribute ``digit``: 0 to 9.

    Args:
        request: Arguments of :func:`fairlib.load`; ``image_size`` defaults to 28.
        download: Download missing files into ``root``.

    Raises:
        FileNotFoundError: If a file is missing; says how to get it.
        OSError: If a file is not a complete idx file.

    Source: Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, Gradient-Based Learning Applied to Document
        Recognition, Proceedings of the IEEE 86, 1998.
    """
    return _idx_collection(request, "MNIST", "digit", DIGITS, download)


def fashion_mnist(request: Request, *, download: bool = False) -> Collection:
    """Load Fashion-MNIST: 70,000 pictures of garments (28 x 28, grey), 10,000 of them to test on.

    The files are the four idx files of its authors in ``FashionMNIST/raw`` (torchvision's layout),
    gzipped or not. The official test part is kept, and the validation part is split from the
    training part.

    Attribute ``label``: T-shirt/top, Trouser, Pullover, Dress, Coat, Sandal, Shirt, Sneaker, Bag,
    Ankle boot.

    Args:
        request: Arguments of :func:`fairlib.load`; ``image_size`` defaults to 28.
        download: Download missing files into ``root``.

    Raises:
        FileNotFoundError: If a file is missing; says how to get it.
        OSError: If a file is not a complete idx file.

    Source: H. Xiao, K. Rasul, R. Vollgraf, Fashion-MNIST: a Novel Image Dataset for Benchmarking
        Machine Learning Algorithms, 2017.
    """
    return _idx_collection(request, "FashionMNIST", "label", GARMENTS, download)


def _idx_collection(
    request: Request, name: str, attribute: str, values: Sequence[str], download: bool
) -> Collection:
    how_to_get = (
        f"{name}: download=True gets it; by hand, put its four idx files (gzipped or not) there"
    )
    # MNIST and Fashion-MNIST use the same names of files: only the folder distinguishes them.
    root = Path(request.root)
    home = root if root.name == name else root / name
    if download:
        from torchvision import datasets

        _originals(getattr(datasets, name), home.parent, (True,), download, how_to_get)
    halves = [
        [_read_idx(home, f"{part}-{kind}-ubyte", how_to_get) for part in ("train", "t10k")]
        for kind in ("images-idx3", "labels-idx1")
    ]
    pixels = np.concatenate(halves[0])[:, None]
    return _collection(attribute, values, _scaled(pixels, request.image_size or 28), halves[1])


def _read_idx(home: Path, name: str, how_to_get: str) -> np.ndarray:
    """Read an array of bytes from an idx file, gzipped or not.

    The file has two zeros, the type of its values (8), the number of dimensions, the sizes
    (big-endian) and the values.
    """
    # Not torchvision's reader: it takes no gzipped file, and would not notice one that is cut off.
    file = find_files(home, [], f"raw/{name}*", how_to_get)[0]
    try:
        content = file.read_bytes()
        if file.suffix == ".gz":
            content = gzip.decompress(content)
        sizes = np.frombuffer(content, ">i4", count=content[3], offset=4)
        return np.frombuffer(content, np.uint8, offset=4 + sizes.nbytes).reshape(sizes)
    except (OSError, EOFError, IndexError, ValueError, zlib.error) as error:
        raise OSError(f"cannot read {str(file)!r} ({error}): get it again") from error


def _originals(
    reader: Callable[..., Any],
    home: Path,
    parts: Sequence[str | bool],
    download: bool,
    how_to_get: str,
) -> list[Any]:
    """Let torchvision read the original files, the training part before the test part."""
    # It checks their digests first: the files of CIFAR-10 are pickles, and one that somebody has
    # changed runs any code when it is opened.
    try:
        return [reader(home, part, download=download) for part in parts]
    except RuntimeError as error:
        raise FileNotFoundError(
            f"found no original files in {str(home)!r} ({error}). {how_to_get}"
        ) from error


def _scaled(pixels: np.ndarray, image_size: int) -> Images:
    return lambda rows: resize(pixels[rows], image_size)


def _collection(
    attribute: str,
    values: Sequence[str],
    images: Images,
    halves: Sequence[np.ndarray | Sequence[int]],
    photographs: bool = False,
) -> Collection:
    """Collect pictures with the codes of the training part and of the test part in ``halves``."""
    codes = np.concatenate(halves)
    return Collection(
        table=table_of(**{attribute: (codes, values)}),
        images=images,
        target=attribute,
        group=attribute,
        # The official test part stays; the training part is divided into train and val.
        parts=np.repeat([-1, 2], [len(half) for half in halves]),
        photographs=photographs,
        report={"found": len(codes)},
    )
