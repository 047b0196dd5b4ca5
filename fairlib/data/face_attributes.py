"""Pictures of faces with a table of attributes that are there or not: what CelebA and LFW have in common."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from fairlib._validation import lookup
from fairlib.data.collection import Collection, Request, draw
from fairlib.data.images import decode


def faces_with(
    request: Request, files: Sequence[Path], flags: pd.DataFrame, *, source: Path, target: str, limit: int | None
) -> Collection:
    """The pictures that have a row of attributes; what is only in one of the two is counted.

    Attributes are those of ``flags`` with the values "no" and "yes", and ``gender`` (female, male), which is
    ``Male`` in words.

    Args:
        request: What ``load`` asks for; ``image_size`` defaults to 64 (RGB).
        files: The pictures.
        flags: bool, a column for each attribute, ``Male`` among them; indexed by the names of the files.
        source: Where the attributes were read, for errors.
        target: The default target; the default group is ``gender``.
        limit: Draw that many by the seed, before anything is decoded; None or more than there are takes all.

    Returns:
        A collection whose table is indexed by the names of the files and whose parts are all open. Its report
        counts ``found`` pictures, ``unlisted`` ones (without attributes) and ``missing`` ones (attributes
        without a picture).

    Raises:
        ValueError: If no picture has attributes, a name stands twice, there is no ``Male``, or ``limit`` is
            not a positive integer.
    """
    if not flags.index.is_unique:
        twice = flags.index[flags.index.duplicated()]
        raise ValueError(f"{str(source)!r} lists {len(twice)} pictures more than once, the first is {twice[0]!r}")
    known = [file for file in files if file.name in flags.index]
    if not known:
        raise ValueError(
            f"{str(source)!r} lists none of the {len(files)} pictures in {str(files[0].parent)!r}: the first "
            f"picture is {files[0].name!r}, the first row {flags.index[:1].tolist()}"
        )
    paths = [known[i] for i in draw(len(known), limit, np.random.default_rng(request.seed))]
    codes = flags.loc[[path.name for path in paths]].astype(np.int8)
    columns = {name: pd.Categorical.from_codes(codes[name], ["no", "yes"]) for name in codes}
    columns["gender"] = pd.Categorical.from_codes(lookup("attribute", "Male", columns).codes, ["female", "male"])
    return Collection(
        table=pd.DataFrame(columns, index=codes.index),
        images=lambda index: decode([paths[i] for i in index], request.image_size or 64),
        target=target,
        group="gender",
        report={
            "found": len(files),
            "unlisted": len(files) - len(known),
            "missing": len(flags) - len(known),
            "not_drawn": len(known) - len(paths),
        },
    )
