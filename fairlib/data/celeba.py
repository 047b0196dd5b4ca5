"""CelebA: faces of celebrities with 40 attributes, in the layout of its authors."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from fairlib.data.collection import Collection, Request
from fairlib.data.face_attributes import faces_with
from fairlib.data.images import find_files

_HOW_TO_GET = (
    "CelebA (non-commercial research only): get img_align_celeba, list_attr_celeba.txt and "
    "list_eval_partition.txt from its project page, 'Large-scale CelebFaces Attributes (CelebA) "
    "Dataset', into root/celeba/ (load's root)"
)


def celeba(request: Request) -> Collection:
    """Load the 202,599 aligned faces of CelebA, each with 40 attributes.

    The files are ``celeba/img_align_celeba/*.jpg`` and ``celeba/list_attr_celeba.txt``. Pictures
    have 178 x 218 pixels, of which the middle 178 x 178 are used. Pictures without attributes
    (``unlisted``) and attributes without a picture (``missing``) are left out and counted.

    The split is that of ``list_eval_partition.txt`` (or ``.csv``), in which no person is in two
    parts. If that file is missing, or a part has none of the pictures that were found, the split is
    random and stratified, and a person may be in several parts; ``partition`` in the report says
    "official" or "stratified".

    Attributes: the 40 under their own names (``Blond_Hair``, the default target; ``Male``, ...),
    with the values no and yes; and ``gender`` (female, male), which is ``Male`` by another name:
    the default group.

    Args:
        request: Arguments of :func:`fairlib.load`; ``image_size`` defaults to 64 (RGB).

    Raises:
        FileNotFoundError: If the pictures or their attributes are missing; says how to get them.
        ValueError: If an attribute is neither -1 nor 1, or no picture has attributes.
        OSError: If a picture cannot be read, when it is decoded; names the file.

    Source: Z. Liu, P. Luo, X. Wang, X. Tang, Deep Learning Face Attributes in the Wild, ICCV 2015.
    """
    files = find_files(request.root, ["celeba"], "img_align_celeba/*.jpg", _HOW_TO_GET)
    folder = files[0].parents[1]
    source = folder / "list_attr_celeba.txt"
    if not source.is_file():
        raise FileNotFoundError(f"found no file {str(source)!r}. {_HOW_TO_GET}")
    flags = _read_attributes(source)
    partition = _read_partition(folder, files)
    if partition is not None:
        flags = flags[flags.index.isin(partition.index)]
    faces = faces_with(request, files, flags, source=source, target="Blond_Hair")
    return replace(
        faces,
        parts=None if partition is None else partition[faces.table.index].to_numpy(),
        report={**faces.report, "partition": "stratified" if partition is None else "official"},
    )


def _read_attributes(file: Path) -> pd.DataFrame:
    """Read which attributes each picture has: bool, a row for each picture."""
    # The original begins with the number of rows; some copies lack that line.
    with open(file, encoding="utf-8") as lines:
        counted = lines.readline().strip().isdigit()
    values = pd.read_csv(file, sep=r"\s+", skiprows=int(counted))
    if not values.isin([-1, 1]).all(axis=None):
        raise ValueError(
            f"{str(file)!r} must hold a name and -1 or 1 for each attribute in every row"
        )
    return values == 1


def _read_partition(folder: Path, files: Sequence[Path]) -> pd.Series | None:
    """Read the part of each picture; None unless every part has one of them."""
    # Kaggle's copy is CSV with a header; lists of the PNG copies name 000001.png for 000001.jpg.
    for source in folder.glob("list_eval_partition.[tc][xs][tv]"):
        rows = pd.read_csv(source, sep=r"[,\s]+", engine="python", header=None, dtype=str)
        rows.index = rows[0].str.rsplit(".", n=1).str[0]
        parts = pd.to_numeric(rows[1], errors="coerce").reindex([file.stem for file in files])
        found = parts.set_axis([file.name for file in files]).dropna().astype(np.int64)
        # The first pictures are all of the training part: a copy of those alone is split at random.
        if set(found) == {0, 1, 2}:
            return found
    return None
