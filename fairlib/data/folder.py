"""A folder of images and a table that says what is in them, for data of one's own."""

import csv
from pathlib import Path

import numpy as np
import pandas as pd

from fairlib._validation import lookup
from fairlib.data.collection import Collection, Request, draw
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
    limit: int | None = None,
) -> Collection:
    """Load pictures with the attributes that a CSV file (UTF-8, with a header, separated by commas) gives them.

    A row is a picture, and every column other than ``file`` and ``split`` is an attribute: its distinct values are the
    classes or groups, sorted (numbers by size), and an empty cell leaves it undefined. Blanks around a value are
    ignored. A column with more than 100 distinct numbers is a quantity: to use it as target or group, add a column
    with bins of it. There is no default target and no default group.

    Args:
        request: Arguments of :func:`fairlib.load`; ``root`` is the folder, ``image_size`` defaults to 64 (RGB;
            pictures are cropped to the largest square in the middle).
        table: Path of the CSV file, relative to ``root``.
        file: Name of the column with the paths of the pictures.
        images: Folder to which the paths of the pictures are relative, itself relative to ``root``; "" is ``root``.
        split: Name of a column with ``train``, ``val`` or ``test`` in every row; parts that no row names are drawn
            from ``train``. None splits by the ``fractions`` of :func:`fairlib.load`.
        limit: Number of rows to draw by the seed, before any is decoded; None, or more than there are, for all.

    Raises:
        FileNotFoundError: If the table or a picture is missing; says how many pictures are, and names the first.
        ValueError: If the table is empty or has rows of different lengths, a column is missing or named twice, a cell
            of ``split`` is none of the three, or ``limit`` is not a positive integer.
        OSError: If a picture cannot be read, when it is decoded; names the file.
    """
    root = Path(request.root)
    cells = _read(root / table)
    columns = {name: cells[name] for name in cells}
    paths = lookup("column (setting 'file')", file, columns)
    parts = None if split is None else _parts(lookup("column (setting 'split')", split, columns))
    rows = draw(len(cells), limit, np.random.default_rng(request.seed))
    files = [root / images / paths[row] for row in rows]
    if missing := [path for path in files if not path.is_file()]:
        found = f"{len(missing)} of the {len(files)} pictures that {str(root / table)!r} names are missing"
        raise FileNotFoundError(f"{found}; the first is {str(missing[0])!r}: setting 'images' can name another folder")
    attributes = {name: _values(column) for name, column in columns.items() if name not in (file, split)}
    return Collection(
        table=pd.DataFrame(attributes, index=cells.index).iloc[rows],
        images=decoder(files, request.image_size or 64),
        target=None,
        group=None,
        parts=None if parts is None else parts[rows],
        photographs=True,
        report={"found": len(cells), "not_drawn": len(cells) - len(rows)},
    )


def _read(file: Path) -> pd.DataFrame:
    """Read the table as text, a column for each name in the header."""
    if not file.is_file():
        raise FileNotFoundError(f"found no table {str(file)!r}: it must be a CSV file, 'table' its path below 'root'")
    # Many spreadsheets begin a file with a byte order mark, which utf-8-sig skips.
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
    """Turn text into sorted categories, or into numbers if there are more than ``MANY``."""
    values = sorted(set(column) - {""})
    numbers = pd.to_numeric(pd.Series(values, dtype=object), errors="coerce")
    if numbers.notna().all():
        if len(values) > MANY:
            return pd.to_numeric(column, errors="coerce")
        values = [values[i] for i in np.argsort(numbers.to_numpy(dtype=float), kind="stable")]
    return column.mask(column == "").astype(pd.CategoricalDtype(values))


def _parts(column: pd.Series) -> np.ndarray:
    """Turn names of parts into codes; unless all three occur, train is -1, to be divided among the missing ones."""
    wrong = column[~column.isin(PARTS)]
    if len(wrong):
        found = f"{wrong.iloc[0]!r} in row {wrong.index[0] + 1}"
        raise ValueError(f"column {column.name!r} must be train, val or test in every row, got {found}")
    parts = column.map(PARTS.index).to_numpy(dtype=np.int64)
    return parts if len(np.unique(parts)) == len(PARTS) else np.where(parts == 0, -1, parts)
