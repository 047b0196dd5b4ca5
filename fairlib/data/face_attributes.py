"""Pictures of faces with a table of attributes that are yes or no: the base of CelebA and LFW."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from fairlib._validation import lookup
from fairlib.data.collection import Collection, Request, table_of
from fairlib.data.images import decoder


def faces_with(
    request: Request,
    files: Sequence[Path],
    flags: pd.DataFrame,
    *,
    source: Path,
    target: str,
) -> Collection:
    """Collect the pictures that have a row of attributes.

    Attributes are those of ``flags`` with the values "no" and "yes", and ``gender`` (female, male),
    which is ``Male`` by another name.

    Args:
        request: Arguments of :func:`fairlib.load`; ``image_size`` defaults to 64 (RGB).
        files: Paths of the pictures.
        flags: Table of bool, a column for each attribute, including ``Male``; indexed by the names
            of the files.
        source: File from which the attributes were read, for errors.
        target: Default target; the default group is ``gender``.

    Returns:
        A collection whose table is indexed by the names of the files, without parts. Its report
        counts the pictures ``found``, those without attributes (``unlisted``), and the rows of
        attributes without a picture (``missing``).

    Raises:
        ValueError: If no picture has attributes, a name is listed twice, or there is no ``Male``.
    """
    twice = flags.index[flags.index.duplicated()]
    if len(twice):
        raise ValueError(
            f"{str(source)!r} lists {len(twice)} pictures more than once, the first is {twice[0]!r}"
        )
    listed = [file for file in files if file.name in flags.index]
    if not listed:
        raise ValueError(
            f"{str(source)!r} lists none of the {len(files)} pictures in {files[0].parent}: the "
            f"first picture is {files[0].name!r}, the first row {flags.index[:1].tolist()}"
        )
    codes = flags.loc[[file.name for file in listed]].astype(np.int8)
    columns = {name: (values, ("no", "yes")) for name, values in codes.items()}
    columns["gender"] = (lookup("attribute", "Male", columns)[0], ("female", "male"))
    return Collection(
        table=table_of(**columns).set_axis(codes.index),
        images=decoder(listed, request.image_size or 64),
        target=target,
        group="gender",
        photographs=True,
        report={
            "found": len(files),
            "unlisted": len(files) - len(listed),
            "missing": len(flags) - len(listed),
        },
    )
