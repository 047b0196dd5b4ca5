"""Pictures from files: find them, decode them in threads, resize them."""

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import interpolate
from tqdm import tqdm

from fairlib.data.collection import Images

PER_TASK = 64
"""Number of pictures that a thread decodes before it takes the next task."""


def find_files(
    root: str | Path, folders: Sequence[str], pattern: str, how_to_get: str
) -> list[Path]:
    """Find the files of a data set.

    Args:
        root: Folder that holds the data set's folder, or that folder itself.
        folders: Names that the data set's folder may have; the first that holds a matching file is
            taken.
        pattern: Pattern of the files for ``Path.glob``, relative to the data set's folder.
        how_to_get: How to get the data, for the error.

    Returns:
        The paths, sorted.

    Raises:
        FileNotFoundError: If no file matches; says where it looked and how to get the data.
    """
    places = [Path(root, folder) for folder in (*folders, "")]
    for place in places:
        if files := sorted(place.glob(pattern)):
            return files
    looked = " and ".join(repr(str(place / pattern)) for place in places)
    raise FileNotFoundError(f"found no file in {looked}. {how_to_get}")


def decode(files: Sequence[Path], image_size: int) -> np.ndarray:
    """Decode pictures in threads (PIL releases the interpreter lock), crop and scale them.

    The crop is the largest square in the middle: 178 x 178 of CelebA's 178 x 218 pixels. JPEG files
    are decoded at the smallest scale that suffices, then resized with an antialiasing triangle
    filter (``PIL.Image.BILINEAR``). A picture whose EXIF data say that the camera was turned is
    turned upright.

    Returns:
        RGB images, uint8 ``(N, 3, image_size, image_size)``.

    Raises:
        OSError: If a file cannot be read, has more than 8 bits for each channel, or more pixels
            than ``PIL.Image.MAX_IMAGE_PIXELS``; names the file.
    """
    images = np.empty((len(files), 3, image_size, image_size), dtype=np.uint8)

    # A task of many pictures: handing a small picture to a thread costs as much as decoding it.
    def read(start: int) -> None:
        for index, file in enumerate(files[start : start + PER_TASK], start):
            images[index] = _decode_one(file, image_size)

    starts = range(0, len(files), PER_TASK)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        tasks = pool.map(read, starts)
        # The bar is for a terminal only (disable=None), and for what takes more than two seconds.
        list(tqdm(tasks, "decoding", len(starts), leave=False, disable=None, delay=2))
    return images


def decoder(files: Sequence[Path], image_size: int) -> Images:
    """Make the function that decodes the files at an integer index ``(n,)``; see :func:`decode`."""
    return lambda rows: decode([files[row] for row in rows], image_size)


def _decode_one(file: Path, image_size: int) -> np.ndarray:
    from PIL import Image, ImageOps

    try:
        with Image.open(file) as image:
            # PIL itself only warns up to twice this size, and a warning would let it decode.
            if image.width * image.height > (Image.MAX_IMAGE_PIXELS or math.inf):
                raise Image.DecompressionBombError(f"it has {image.width} x {image.height} pixels")
            # PIL clips these modes to 8 bits: all but the darkest pixels would become white.
            if image.mode[0] in "IF":
                raise ValueError(
                    f"its mode is {image.mode!r}, which has more than 8 bits a channel"
                )
            # Before anything is decoded: JPEG then decodes at 1/2, 1/4 or 1/8 of its size.
            image.draft("RGB", (image_size, image_size))
            ImageOps.exif_transpose(image, in_place=True)
            side = min(image.size)
            left, top = ((length - side) / 2 for length in image.size)
            box = (left, top, left + side, top + side)
            pixels = image.convert("RGB").resize(
                (image_size, image_size), Image.Resampling.BILINEAR, box
            )
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        remedy = "scale it down, or raise PIL.Image.MAX_IMAGE_PIXELS"
        raise OSError(f"the image {str(file)!r} is too large ({error}): {remedy}") from error
    except (OSError, SyntaxError, ValueError) as error:
        raise OSError(
            f"cannot read the image {str(file)!r} ({error}): get it again or remove it"
        ) from error
    return np.asarray(pixels).transpose(2, 0, 1)


def resize(images: np.ndarray, image_size: int) -> np.ndarray:
    """Scale pictures ``(N, C, H, W)`` of any dtype to squares, bilinearly and antialiased.

    Returns:
        Array ``(N, C, image_size, image_size)`` in the units of the input: uint8 stays uint8, any
        other dtype becomes float32.
    """
    pixels = torch.from_numpy(images)
    if pixels.dtype != torch.uint8:
        pixels = pixels.float()
    size = (image_size, image_size)
    if pixels.shape[2:] != size:
        pixels = interpolate(pixels, size=size, mode="bilinear", antialias=True)
    return pixels.numpy()
