"""Pictures of faces with a table of attributes that are yes or no: what CelebA and LFW have in
common."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from fairlib._validation import lookup
from fairlib.data.collection import Collection, Request, draw
from fairlib.data.images import decoder


def faces_with(
    request: Request,
    files: Sequence[Path],
    flags: pd.DataFrame,
    *,
    source: Path,
    target: str,
    limit: int | None,
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
        limit: Number of pictures to draw by the seed, before any is decoded; None, or more than
            there are, for all.

    Returns:
        A collection whose table is indexed by the names of the files, without parts. Its report
        counts the pictures ``found``, those without attributes (``unlisted``), those not drawn
        (``not_drawn``), and the rows of attributes without a picture (``missing``).

    Raises:
        ValueError: If no picture has attributes, a name is listed twice, there is no ``Male``, or
            ``limit`` is not a positive integer.
    """
    if len(twice := flags.index[flags.index.duplicated()]):
        raise ValueError(
            f"{str(source)!r} lists {len(twice)} pictures more than once, the first is {twice[0]!r}"
        )
    known = [file for file in files if file.name in flags.index]
    if not known:
        names = f"the first picture is {files[0].name!r}, the first row {flags.index[:1].tolist()}"
        raise ValueError(
            f"{str(source)!r} lists none of the {len(files)} pictures in {files[0].parent}: {names}"
        )
    paths = [known[i] for i in draw(len(known), limit, np.random.default_rng(request.seed))]
    codes = flags.loc[[path.name for path in paths]].astype(np.int8)
    columns = {name: pd.Categorical.from_codes(codes[name], ["no", "yes"]) for name in codes}
    columns["gender"] = pd.Categorical.from_codes(
        lookup("attribute", "Male", columns).codes, ["female", "male"]
    )
    return Collection(
        table=pd.DataFrame(columns, index=codes.index),
        images=decoder(paths, request.image_size or 64),
        target=target,
        group="gender",
        photographs=True,
        report={
            "found": len(files),
            "unlisted": len(files) - len(known),
            "missing": len(flags) - len(known),
            "not_drawn": len(known) - len(paths),
        },
    )
