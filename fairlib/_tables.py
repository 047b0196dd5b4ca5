"""Tables that somebody made, read as text (CSV as any spreadsheet writes it, Excel, Parquet), and
labels as codes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fairlib._validation import lookup

if TYPE_CHECKING:
    import pyarrow as pa

MISSING = ("", "NA", "N/A", "n/a", "#N/A", "nan", "NaN", "null", "NULL", "None", "<NA>")
"""Cells that say that a value is missing."""

LONGEST = 131_072
"""Most characters of a cell of a CSV file: a longer one is nearly always a quote that is never
closed."""

BINARY = {
    b"PK\x03\x04": "an Excel file: name it .xlsx",
    b"\xd0\xcf\x11\xe0": "an old or an encrypted Excel file: save it as .xlsx, without a password",
    b"PAR1": "a Parquet file: name it .parquet",
}
"""What files that are no text begin with, what they are and what to do."""


def read_text_table(path: str | Path, columns: Iterable[str] | None = None) -> pd.DataFrame:
    """Read a table with a header, every cell as text.

    A file ``.xlsx`` is read by its first sheet (this needs openpyxl), ``.parquet`` as what it is,
    and any other as CSV: in UTF-8, UTF-16 or Windows-1252, with the commas, semicolons or tabs of
    its header. Blanks around a cell and empty rows are ignored. A number that is no text yet
    becomes the shortest: 1.0 is "1".

    Args:
        path: Path of the file.
        columns: Names of the columns to return, in this order; None for all.

    Returns: A column of text for each name in the header, missing where a cell is one of
        ``MISSING``; indexed by the number of the row, from 1 for the first below the header.

    Raises: FileNotFoundError: If there is no such file. ImportError: If openpyxl is needed and
        missing. ValueError: If the file is not what its name says or has no row, a row has more or
        fewer cells than the header,
            a quote is not closed, or a column is unknown or named twice; names the file, and the
            row or the line.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"found no table {str(path)!r}: it must be a CSV, an .xlsx or a .parquet file"
        )
    table = {".xlsx": _read_excel, ".parquet": _read_parquet}.get(path.suffix.lower(), _read_csv)(
        path
    )
    names = [name.strip() for name in table.column_names]
    if len(set(names)) < len(names):
        raise ValueError(f"the table {str(path)!r} names a column twice: {', '.join(names)}")
    if not table.num_rows:
        raise ValueError(
            f"the table {str(path)!r} is empty: it must have a header and at least one row"
        )
    found = dict(zip(names, table.columns, strict=True))
    text = {}
    for name in names if columns is None else columns:
        column = lookup(f"column of {str(path)!r}", name, found)
        if pa.types.is_nested(column.type):
            raise ValueError(
                f"column {name!r} of {str(path)!r} has cells of {column.type}: give text or numbers"
            )
        if pa.types.is_boolean(column.type):
            column = pc.if_else(column, "True", "False")
        column = pc.utf8_trim_whitespace(column.cast(pa.string()))
        text[name] = pc.if_else(pc.is_in(column, value_set=pa.array(MISSING)), None, column)
    return pa.table(text).to_pandas().set_axis(pd.RangeIndex(1, table.num_rows + 1))


def _read_parquet(path: Path) -> pa.Table:
    from pyarrow import ArrowException, parquet

    try:
        return parquet.read_table(path)
    except (ArrowException, OSError) as error:
        raise ValueError(
            f"cannot read {str(path)!r} as Parquet ({error}): write it again"
        ) from error


def _read_excel(path: Path) -> pa.Table:
    import pyarrow as pa

    try:
        cells = pd.read_excel(
            path, header=None, dtype=object, keep_default_na=False, engine="openpyxl"
        ).astype(str)
    except ImportError as error:
        raise ImportError(
            f"to read {str(path)!r} needs openpyxl: pip install 'who-pays[audit]'"
        ) from error
    except Exception as error:
        raise ValueError(
            f"cannot read {str(path)!r} as .xlsx ({error}): save it again, without a password"
        ) from error
    header, *rows = cells[(cells != "").any(axis=1)].to_numpy().tolist() or [[]]
    return pa.table(
        list(map(pa.array, zip(*rows, strict=True))) or [[] for _ in header], names=header
    )


def _read_csv(path: Path) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv

    text = _decode(path).lstrip("\r\n")
    if not text.strip():
        return pa.table({})
    header = next(re.finditer('(?:"[^"]*"?|[^"\r\n])*', text))[
        0
    ]  # In quotes all is part of a name.
    separator = max(",;\t", key=re.sub('"[^"]*"?', "", header).count)
    types = {f"f{i}": pa.string() for i in range(header.count(separator) + 1)}
    try:
        rows = csv.read_csv(
            pa.py_buffer(text.encode()),
            # A block holds any cell of a usual length; in one thread an error tells its row.
            csv.ReadOptions(autogenerate_column_names=True, use_threads=False, block_size=2**22),
            csv.ParseOptions(delimiter=separator, newlines_in_values=True),
            csv.ConvertOptions(column_types=types),
        )
    except pa.ArrowInvalid as error:
        if uneven := re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)", str(error)):
            row, expected, got = map(int, uneven.groups())
            found = f"row {row - 1} of {str(path)!r} has {got} cells, the header has {expected}"
            raise ValueError(
                f"{found}: put a text with {separator!r} or a line break in double quotes"
            ) from None
        raise ValueError(
            f"cannot read {str(path)!r} as CSV ({error}): close every double quote"
        ) from error
    table = rows.slice(1).rename_columns([column[0].as_py() for column in rows.columns])
    for name, column in zip(table.column_names, table.columns, strict=True):
        if (pc.max(pc.utf8_length(column)).as_py() or 0) > LONGEST:
            row = pc.index(pc.greater(pc.utf8_length(column), LONGEST), True).as_py() + 1
            found = f"row {row} of {str(path)!r} has more than {LONGEST:,} characters in column {name.strip()!r}"
            raise ValueError(
                f"{found}: close the double quote that opens there, or shorten the text"
            )
    if "\n" in rows.columns[-1][-1].as_py() and not text.rstrip().endswith('"'):
        raise ValueError(f"row {table.num_rows} of {str(path)!r} opens a double quote: close it")
    return table


def _decode(path: Path) -> str:
    """Read a file of text in one of three encodings."""
    raw = path.read_bytes()
    for start, what in BINARY.items():
        if raw.startswith(start):
            raise ValueError(f"{str(path)!r} is {what}")
    place = 0
    for encoding in (
        ["utf-16"] if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else ["utf-8-sig", "cp1252"]
    ):
        try:
            text = raw.decode(encoding)
        except UnicodeDecodeError as error:
            place = error.start
            continue
        if "\0" not in text:
            return text
        place = raw.index(b"\0")
    where = f"line {raw[:place].count(10) + 1} of {str(path)!r}"
    raise ValueError(
        f"{where} is text neither in UTF-8 nor in UTF-16 nor in Windows-1252: save it as 'CSV UTF-8'"
    )


def cross_attributes(
    columns: Iterable[tuple[np.ndarray, Sequence[str]]],
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Cross attributes, each given by its codes (-1: undefined) and their names: "male x White".

    Returns: Codes, int64 ``(N,)``, -1 where one of the attributes is undefined; and the names, the
        last attribute's changing fastest.
    """
    (codes, names), *others = columns
    for more, values in others:
        codes = np.where((codes < 0) | (more < 0), -1, codes * len(values) + more)
        names = [f"{left} x {right}" for left in names for right in values]
    return np.asarray(codes, dtype=np.int64), tuple(names)


def coded(name: str, values: Any) -> tuple[np.ndarray, tuple[str, ...]]:
    """Turn labels of any kind into codes and their names.

    Args:
        name: Name of the argument in error messages.
        values: Texts, integers, booleans or a categorical series, ``(N,)``.

    Returns: Codes int ``(N,)`` and the names: the categories in their order, numbers ascending, or
        texts sorted.

    Raises:
        ValueError: If a value is missing (names the row), or they are not one-dimensional.
    """
    codes, found = factorized(name, values)
    if isinstance(getattr(values, "dtype", None), pd.CategoricalDtype):
        names = [label_text(value) for value in values.dtype.categories]
    else:
        names = sorted(found)
        if all(name.removeprefix("-").isdigit() for name in names):
            names.sort(key=int)
    return pd.Index(names).get_indexer(found)[codes], tuple(names)


def texts(values: Any) -> np.ndarray:
    """Write labels as texts: 1, 1.0 and "1" are the same."""
    codes, found = factorized("labels", values)
    return np.array(found, dtype=object)[codes]


def factorized(name: str, values: Any) -> tuple[np.ndarray, list[str]]:
    """Number labels in the order in which they occur: codes int ``(N,)``, and what they are as
    texts."""
    series = pd.Series(
        np.asarray(values)
        if hasattr(values, "__array__") and not hasattr(values, "iloc")
        else values
    )
    codes, found = pd.factorize(series)
    if len(missing := np.flatnonzero(codes < 0)):
        raise ValueError(f"{name} must be known of every sample: it is missing in row {missing[0]}")
    names = [label_text(value) for value in found]
    distinct = [*dict.fromkeys(names)]
    return pd.Index(distinct).get_indexer(names)[codes], distinct


def label_text(value: Any) -> str:
    """A label as a text: 1.0 and 1 are the same."""
    return (
        str(int(value))
        if isinstance(value, float | np.floating) and value == round(value)
        else str(value)
    )
