"""Pictures from files: find the folder, decode in threads, resize."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

BLOCK = 64
"""Pictures that a thread decodes at a time."""


def find_files(root: str, folders: Sequence[str], pattern: str, how_to_get: str) -> list[Path]:
    """The files of a data set, sorted by name.

    Args:
        root: The folder that holds the data set's folder, or that folder itself.
        folders: Names that the data set's folder may have; the first that holds such a file is taken.
        pattern: Of its files, as in ``Path.glob``.
        how_to_get: What to do when there are none, for the error.

    Raises:
        FileNotFoundError: If no place has such a file; says where it looked and how to get the data.
    """
    places = [*(Path(root) / folder for folder in folders), Path(root)]
    for place in places:
        files = sorted(place.glob(pattern))
        if files:
            return files
    looked = " and ".join(repr(str(place / pattern)) for place in places)
    raise FileNotFoundError(f"found no file in {looked}. {how_to_get}")


def decode(files: Sequence[Path], image_size: int) -> np.ndarray:
    """Decode pictures in threads (PIL works without the interpreter lock) and scale their middle to a square.

    Of a picture that is no square the largest one in its middle is taken: 178 x 178 of CelebA's 178 x 218
    pixels. JPEG files are decoded at the smallest scale that suffices, then resized with a triangle filter as
    wide as the scale asks for (``PIL.Image.BILINEAR``, antialiased).

    Returns:
        uint8 ``(N, 3, image_size, image_size)``, RGB.

    Raises:
        OSError: If a file cannot be read, or has more than 8 bits a channel; names it.
    """
    images = np.empty((len(files), 3, image_size, image_size), dtype=np.uint8)

    def read(start: int) -> None:
        for index in range(start, min(start + BLOCK, len(files))):
            images[index] = _decode_one(files[index], image_size)

    starts = range(0, len(files), BLOCK)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        # Shown on a terminal only, and only when it takes long enough to wonder.
        progress = {"desc": "decoding", "leave": False, "disable": None, "delay": 2}
        for _ in tqdm(pool.map(read, starts), total=len(starts), **progress):
            pass
    return images


def _decode_one(file: Path, image_size: int) -> np.ndarray:
    from PIL import Image

    try:
        with Image.open(file) as image:
            if image.mode[0] in "IF":
                raise ValueError(f"its mode is {image.mode!r}, more than 8 bits a channel")
            image.draft("RGB", (image_size, image_size))
            side = min(image.size)
            left, top = ((length - side) / 2 for length in image.size)
            box = (left, top, left + side, top + side)
            pixels = image.convert("RGB").resize((image_size, image_size), Image.Resampling.BILINEAR, box)
    except (OSError, SyntaxError, ValueError) as error:
        raise OSError(f"cannot read the image {str(file)!r} ({error}): get it again or remove it") from error
    return np.asarray(pixels).transpose(2, 0, 1)


def resize(images: np.ndarray, image_size: int) -> np.ndarray:
    """Scale pictures ``(N, C, H, W)`` of any dtype to squares, bilinear and antialiased.

    Returns:
        ``(N, C, image_size, image_size)``, in the units of the input: uint8 stay uint8, all others become
        float32.
    """
    pixels = torch.from_numpy(images)
    if pixels.dtype != torch.uint8:
        pixels = pixels.float()
    if images.shape[2:] != (image_size, image_size):
        pixels = torch.nn.functional.interpolate(pixels, size=(image_size, image_size), mode="bilinear", antialias=True)
    return pixels.numpy()
