"""CelebA: faces of celebrities with 40 attributes, in the layout of its authors."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from fairlib.data.collection import Collection, Request
from fairlib.data.face_attributes import faces_with
from fairlib.data.images import find_files

HOW_TO_GET = (
    "CelebA (non-commercial research only) comes from its project page, 'Large-scale CelebFaces Attributes "
    "(CelebA) Dataset' by Liu, Luo, Wang and Tang: get the aligned and cropped images (img_align_celeba), "
    "list_attr_celeba.txt and list_eval_partition.txt and put all three into root/celeba/; root is load's "
    "argument (default 'data')."
)


def celeba(request: Request, *, limit: int | None = None) -> Collection:
    """202,599 aligned faces, ``celeba/img_align_celeba/*.jpg``, with the 40 attributes of ``list_attr_celeba.txt``.

    Pictures are 178 x 218; the 178 x 178 in the middle are taken. Pictures without attributes (``unlisted``)
    and attributes without a picture (``missing``) are left out and counted.

    The parts are those of ``list_eval_partition.txt``, in which no person stands in two. Where that file is
    not there, or gives one of the parts no picture that is, the split is random and stratified, as that of
    any other data set, and people stand on both sides; ``partition`` in the report says "official" or
    "stratified".

    Attributes: the 40 under their own names (``Blond_Hair``, the default target; ``Male``, ...), with the
    values no and yes; and ``gender`` (female, male), which is ``Male`` in words: the default group.

    Args:
        request: What ``load`` asks for; ``image_size`` defaults to 64 (RGB).
        limit: Draw that many of the pictures by the seed, before anything is decoded; None or more than there
            are takes all.

    Raises:
        FileNotFoundError: If the pictures or their attributes are not there; says how to get them.
        ValueError: If an attribute is neither -1 nor 1, no picture has attributes, or ``limit`` is not a
            positive integer.
        OSError: On decoding, if a picture cannot be read; names the file.

    Source: Z. Liu, P. Luo, X. Wang, X. Tang, Deep Learning Face Attributes in the Wild, ICCV 2015.
    """
    files = find_files(request.root, ["celeba"], "img_align_celeba/*.jpg", HOW_TO_GET)
    folder = files[0].parents[1]
    source = folder / "list_attr_celeba.txt"
    flags = _read_attributes(source)
    partition = _read_partition(folder / "list_eval_partition.txt", [file.name for file in files])
    if partition is not None:
        flags = flags[flags.index.isin(partition.index)]
    faces = faces_with(request, files, flags, source=source, target="Blond_Hair", limit=limit)
    return replace(
        faces,
        parts=None if partition is None else partition.loc[faces.table.index].to_numpy(),
        report={**faces.report, "partition": "stratified" if partition is None else "official"},
    )


def _read_attributes(file: Path) -> pd.DataFrame:
    """Which attributes each picture has: bool, a row for each."""
    if not file.is_file():
        raise FileNotFoundError(f"found no file {str(file)!r}. {HOW_TO_GET}")
    with open(file, encoding="utf-8") as lines:
        counted = lines.readline().strip().isdigit()  # Copies of the file may lack its first line, the count.
    values = pd.read_csv(file, sep=r"\s+", skiprows=int(counted))
    if not values.isin([-1, 1]).all(axis=None):
        raise ValueError(f"{str(file)!r} must hold a name and -1 or 1 for each attribute in every row")
    return values == 1


def _read_partition(file: Path, names: Sequence[str]) -> pd.Series | None:
    """The part of each picture that is listed; None unless every part has one of the pictures."""
    if not file.is_file():
        return None
    partition = pd.read_csv(file, sep=r"\s+", header=None, index_col=0)[1]
    partition = partition[partition.index.isin(names)].astype(np.int64)
    return partition if set(partition) == {0, 1, 2} else None
