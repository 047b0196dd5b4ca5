"""A folder of images and a table that says what is in them: the way to one's own data."""

import csv
from pathlib import Path

import numpy as np
import pandas as pd

from fairlib._validation import lookup
from fairlib.data.collection import Collection, Request, draw
from fairlib.data.images import decode
from fairlib.data.splitting import PARTS

MANY = 100
"""A column with more distinct numbers is a quantity, neither classes nor groups."""


def folder(
    request: Request,
    *,
    table: str = "people.csv",
    file: str = "file",
    images: str = "",
    split: str | None = None,
    limit: int | None = None,
) -> Collection:
    """Pictures with the attributes that a CSV file (UTF-8, with a header, separated by commas) gives them.

    A row is a picture, and every column but ``file`` and ``split`` is an attribute: its distinct values are
    the classes or groups, sorted (numbers by size), and an empty cell leaves it undefined. Blanks around a
    value are no part of it. A column with more than 100 distinct numbers is a quantity: it has to be put into
    bins, in a column of its own, before it can be a target or a group. There is no default for these.

    Args:
        request: What ``load`` asks for; ``image_size`` defaults to 64 (RGB; of a picture that is no square the
            middle is taken). ``root`` is the folder.
        table: The CSV file, as seen from ``root``.
        file: The column with the paths of the pictures.
        images: The folder from which these paths are seen, as seen from ``root``; by default ``root``.
        split: A column with ``train``, ``val`` or ``test`` in every row; parts that no row names are drawn from
            those of ``train``. None splits by ``load``'s ``fractions``.
        limit: Draw that many of the rows by the seed, before anything is decoded; None or more than there are
            takes all.

    Raises:
        FileNotFoundError: If the table or a picture is not there; says how many are not, and the first.
        ValueError: If the table is empty or has rows of different lengths, a column is missing or stands twice,
            a split is none of the three, or ``limit`` is not a positive integer.
        OSError: On decoding, if a picture cannot be read; names the file.
    """
    root = Path(request.root)
    cells = _read(root / table)
    columns = {name: cells[name] for name in cells}
    paths = lookup("column (setting 'file')", file, columns)
    parts = None if split is None else _parts(lookup("column (setting 'split')", split, columns))
    rows = draw(len(cells), limit, np.random.default_rng(request.seed))
    files = [root / images / paths[row] for row in rows]
    missing = [path for path in files if not path.is_file()]
    if missing:
        raise FileNotFoundError(
            f"{len(missing)} of the {len(files)} pictures that {str(root / table)!r} names are not there; the first "
            f"is {str(missing[0])!r}. Paths are seen from {str(root / images)!r}: setting 'images' can change that"
        )
    attributes = {name: _values(column) for name, column in columns.items() if name not in (file, split)}
    return Collection(
        table=pd.DataFrame(attributes, index=cells.index).iloc[rows],
        images=lambda index: decode([files[i] for i in index], request.image_size or 64),
        target=None,
        group=None,
        parts=None if parts is None else parts[rows],
        report={"found": len(cells), "not_drawn": len(cells) - len(rows)},
    )


def _read(file: Path) -> pd.DataFrame:
    """The table as text, a column for each name in the header."""
    if not file.is_file():
        raise FileNotFoundError(
            f"found no table {str(file)!r}: it must be a CSV file, 'table' its path as seen from 'root', the folder"
        )
    # The spreadsheets that begin a file with a byte order mark are many.
    with open(file, newline="", encoding="utf-8-sig") as lines:
        header, *rows = [[cell.strip() for cell in row] for row in csv.reader(lines) if row] or [[]]
    if not rows:
        raise ValueError(f"the table {str(file)!r} is empty: it must have a header and a row for each picture")
    if len(set(header)) < len(header):
        raise ValueError(f"the table {str(file)!r} names a column twice: {', '.join(header)}")
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise ValueError(f"row {number} of {str(file)!r} has {len(row)} cells, the header has {len(header)}")
    return pd.DataFrame(rows, columns=header)


def _values(column: pd.Series) -> pd.Series:
    """Categories, sorted; numbers if there are too many of them for that."""
    values = sorted(set(column) - {""})
    numbers = pd.to_numeric(pd.Series(values, dtype=object), errors="coerce")
    if numbers.notna().all():
        if len(values) > MANY:
            return pd.to_numeric(column, errors="coerce")
        values = [values[i] for i in np.argsort(numbers.to_numpy(dtype=float), kind="stable")]
    return column.mask(column == "").astype(pd.CategoricalDtype(values))


def _parts(column: pd.Series) -> np.ndarray:
    """Codes of the parts; train is left open, as the source of the others, unless all three are named."""
    wrong = column[~column.isin(PARTS)]
    if len(wrong):
        raise ValueError(
            f"column {column.name!r} must be train, val or test in every row, got {wrong.iloc[0]!r} in row "
            f"{wrong.index[0] + 1}"
        )
    parts = column.map(PARTS.index).to_numpy(dtype=np.int64)
    return parts if len(np.unique(parts)) == len(PARTS) else np.where(parts == 0, -1, parts)
