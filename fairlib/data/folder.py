"""A folder of images and a table of their attributes: the data set for your own pictures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fairlib._tables import read_text_table
from fairlib._validation import lookup
from fairlib.data.collection import Collection, Request
from fairlib.data.images import decoder
from fairlib.data.splitting import PARTS

MANY = 100
"""Number of distinct numbers above which a column is a quantity, not a set of classes or groups."""


def folder(
    request: Request,
    *,
    table: str = "people.csv",
    file: str = "file",
    images: str = "",
    split: str | None = None,
    person: str | None = None,
    classes: Sequence[str] | None = None,
    normalize: Any = None,
) -> Collection:
    """Load pictures with the attributes that a table gives them.

    The table is CSV as any spreadsheet writes it (UTF-8, UTF-16 or Windows-1252; commas, semicolons
    or tabs), the first sheet of an ``.xlsx`` file, or ``.parquet``. It has a header and a row for
    each picture. Every column other than ``file``, ``split`` and ``person`` is an attribute: its
    distinct values are the classes or groups, sorted (numbers by size), and where a cell is empty
    or says NA, N/A, nan, null or None it is undefined. Blanks around a value are ignored. A column
    with more than 100 distinct numbers is a quantity: to use it as target or group, add a column
    with bins of it. There is no default target and no default group.

    A folder that is only tested on has ``fractions=(0, 0, 1)``, or ``test`` in every row of the
    column ``split``.

    Args:
        request: Arguments of :func:`fairlib.load`; ``root`` is the folder, ``image_size`` defaults
            to 64 (RGB; pictures are turned upright by their EXIF data, then cropped to the largest
            square in the middle).
        table: Path of the table, relative to ``root``.
        file: Name of the column with the paths of the pictures.
        images: Folder to which the paths of the pictures are relative, itself relative to ``root``;
            "" is ``root``.
        split: Name of a column with ``train``, ``val`` or ``test`` in every row; parts that no row
            names are drawn from ``train``. None splits by the ``fractions`` of
            :func:`fairlib.load`.
        person: Name of a column that says who is shown: all pictures of a person go to one part,
            and every group (a person's is that of most of their pictures) follows ``fractions``.
            None splits picture by picture.
        classes: The target's classes in the order of a model's outputs, all values of the target
            among them; None sorts the values.
        normalize: For a model that does not normalize its inputs itself: ``(mean, std)``,
            three numbers each, or ``"imagenet"``.

    Raises:
        FileNotFoundError: If the table or a picture is missing; says how many pictures are, and
            names the first.
        ValueError: If the table is not what its name says, is empty or has rows of different
            lengths, a column is unknown or named twice, a cell of ``file`` or ``person`` is missing
            or one of ``split`` none of the three, ``split`` puts a person into two parts, or a
            setting is out of its range; names the row.
        ImportError: If the table is ``.xlsx`` and openpyxl is missing; says how to install it.
        OSError: If a picture cannot be read, when it is decoded; names the file.
    """
    root = Path(request.root)
    source = root / table
    columns = dict(read_text_table(source).items())
    named = {"file": file, "split": split, "person": person}
    used = {
        role: lookup(f"column (setting {role!r})", name, columns)
        for role, name in named.items()
        if name
    }
    for column in used.values():
        if column.isna().any():
            raise ValueError(
                f"row {column.isna().idxmax()} of {str(source)!r} has no value in column "
                f"{column.name!r}"
            )
    files = [root / images / path for path in used["file"]]
    if missing := [path for path in files if not path.is_file()]:
        raise FileNotFoundError(
            f"{len(missing)} of the {len(files)} pictures that {str(source)!r} names are missing; "
            f"the first is {str(missing[0])!r}: setting 'images' can name another folder"
        )
    attributes = {
        name: _categories(column) for name, column in columns.items() if name not in named.values()
    }
    return Collection(
        table=pd.DataFrame(attributes, index=used["file"].index),
        images=decoder(files, request.image_size or 64),
        target=None,
        group=None,
        parts=_parts(used["split"], used.get("person"), source) if split else None,
        people=used["person"].to_numpy() if person else None,
        classes=classes,
        normalize=normalize,
        photographs=True,
        report={"found": len(files)},
    )


def _categories(column: pd.Series) -> pd.Series:
    """Turn text into sorted categories, or into numbers if there are more than ``MANY``."""
    values = sorted(set(column.dropna()))
    numbers = pd.to_numeric(pd.Series(values, dtype=object), errors="coerce")
    if numbers.notna().all():
        if len(values) > MANY:
            return pd.to_numeric(column)
        # By size, since "10" is before "2" as text.
        values = [values[i] for i in numbers.argsort(kind="stable")]
    return column.astype(pd.CategoricalDtype(values))


def _parts(column: pd.Series, people: pd.Series | None, source: Path) -> np.ndarray:
    """Turn names of parts into codes; if one is missing, train is -1 and gives it its samples."""
    wrong = column[~column.isin(PARTS)]
    if len(wrong):
        raise ValueError(
            f"column {column.name!r} must be train, val or test in every row, got "
            f"{wrong.iloc[0]!r} in row {wrong.index[0]} of {str(source)!r}"
        )
    if people is not None:
        divided = column.groupby(people).transform("nunique") > 1
        if divided.any():
            row = divided.idxmax()
            raise ValueError(
                f"{people.name} {people[row]!r} (row {row} of {str(source)!r}) has pictures in "
                f"several parts of column {column.name!r}: put them into one, or leave out split= "
                "or person="
            )
    # A table that says train and test alone leaves val to be drawn, which can only be from train.
    parts = column.map(PARTS.index).to_numpy(dtype=np.int64)
    return parts if len(np.unique(parts)) == len(PARTS) else np.where(parts == 0, -1, parts)
