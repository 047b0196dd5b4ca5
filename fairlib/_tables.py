"""Tables of users (CSV of any spreadsheet, Excel, Parquet) as text, and labels as codes."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import pandas as pd

from fairlib._validation import check_many, lookup, shown

if TYPE_CHECKING:
    from torch import Tensor

MISSING = ("", "NA", "N/A", "n/a", "#N/A", "nan", "NaN", "null", "NULL", "None", "<NA>")
"""Cells that say that a value is missing."""

BINARY = {
    b"PK\x03\x04": "an Excel file: name it .xlsx",
    b"\xd0\xcf\x11\xe0": "an old or an encrypted Excel file: save it as .xlsx, without a password",
    b"PAR1": "a Parquet file: name it .parquet",
}
"""First bytes of files that are no text, with the kind of file and the remedy."""


def read_text_table(path: str | Path, columns: Iterable[str] | None = None) -> pd.DataFrame:
    """Read a table with a header, every cell as text.

    The first sheet of ``.xlsx`` is read (this needs openpyxl), ``.parquet`` as Parquet, and any
    other file as CSV: in UTF-8, UTF-16 or Windows-1252, with the commas, semicolons or tabs of its
    header. Blanks around a cell and empty rows are ignored. A number that is no text yet becomes
    the shortest: 1.0 is "1".

    Args:
        path: Path of the file.
        columns: Names of the columns to return, in this order; None for all.

    Returns:
        A column of text for each name in the header, missing where a cell is one of ``MISSING``;
        indexed by the number of the row, from 1 for the first below the header.

    Raises:
        FileNotFoundError: If there is no such file.
        ImportError: If openpyxl is needed and missing.
        ValueError: If the content does not fit the file's suffix or has no row, a row has more or
            fewer cells than the header, a quote is not closed, or a column is unknown or named
            twice; names the file, and the row or the line.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"found no table {str(path)!r}: it must be a CSV, an .xlsx or a .parquet file"
        )
    readers = {".xlsx": _read_excel, ".parquet": _read_parquet}
    table = readers.get(path.suffix.lower(), _read_csv)(path)
    table = table.rename(columns=lambda name: str(name).strip())
    if not table.columns.is_unique:
        raise ValueError(
            f"the table {str(path)!r} names a column twice: {', '.join(table.columns)}"
        )
    if table.empty:
        raise ValueError(
            f"the table {str(path)!r} is empty: it must have a header and at least one row"
        )
    known = dict(table.items())
    text = {}
    for name in known if columns is None else columns:
        column = lookup(f"column of {str(path)!r}", name, known)
        if column.dtype == object and column.map(pd.api.types.is_list_like).any():
            raise ValueError(f"column {name!r} of {str(path)!r} has lists: give text or numbers")
        # A column of whole numbers with a gap has floats: 1.0 here has to be the class 1 there.
        column = column.astype(object).map(label_text, na_action="ignore").astype(str).str.strip()
        text[name] = column.mask(column.isin(MISSING))
    return pd.DataFrame(text).set_axis(pd.RangeIndex(1, len(table) + 1))


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:  # Those of Arrow are ValueErrors, too.
        raise ValueError(
            f"cannot read {str(path)!r} as Parquet ({error}): write it again"
        ) from error


def _read_excel(path: Path) -> pd.DataFrame:
    try:
        cells = pd.read_excel(
            path, header=None, dtype=object, keep_default_na=False, engine="openpyxl"
        ).astype(str)
    except ImportError as error:
        raise ImportError(
            f"to read {str(path)!r} needs openpyxl: pip install 'who-pays[audit]'"
        ) from error
    except Exception as error:  # Those of openpyxl and of the zip archive have no common class.
        raise ValueError(
            f"cannot read {str(path)!r} as .xlsx ({error}): save it again, without a password"
        ) from error
    filled = cells[(cells != "").any(axis=1)]
    return filled.iloc[1:].set_axis(filled.iloc[0], axis=1) if len(filled) else filled


def _read_csv(path: Path) -> pd.DataFrame:
    text = _decode(path).lstrip("\r\n")
    # The separator is the character that the header has most often outside of quotes: a quoted
    # name may hold any of them, and a line break too. Guessing from the rows instead would take
    # decimal commas for separators.
    first = re.match('(?:"[^"]*"?|[^"\r\n])*', text)
    separator = max(",;\t", key=re.sub('"[^"]*"?', "", first[0] if first else "").count)
    rows: list[list[str]] = []
    try:
        for row in csv.reader(StringIO(text, newline=""), delimiter=separator, strict=True):
            rows.extend([row] if row else [])
    except csv.Error as error:
        # Quotes that are never closed end here too: the rest of the file is one cell, which is
        # longer than csv accepts or ends with the file.
        place = f"row {len(rows)}" if rows else "the header"
        raise ValueError(
            f"{place} of {str(path)!r} cannot be read as CSV ({error}): close every double quote"
        ) from None
    for number, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise ValueError(
                f"row {number} of {str(path)!r} has {len(row)} cells, the header has "
                f"{len(rows[0])}: put a text with {separator!r} or a line break in double quotes"
            )
    header, *body = rows or [[]]
    return pd.DataFrame(body, columns=header, dtype=object)


def _decode(path: Path) -> str:
    """Read a file of text in one of three encodings."""
    raw = path.read_bytes()
    for start, kind in BINARY.items():
        if raw.startswith(start):
            raise ValueError(f"{str(path)!r} is {kind}")
    # Windows-1252 decodes nearly anything, so it comes last; and UTF-16 without a mark decodes as
    # either, but every second byte is NUL, which no table has.
    marked = raw[:2] in (b"\xff\xfe", b"\xfe\xff")
    place = 0
    for encoding in ["utf-16"] if marked else ["utf-8-sig", "cp1252"]:
        try:
            text = raw.decode(encoding)
        except UnicodeDecodeError as error:
            place = error.start
            continue
        if "\0" not in text:
            return text
        place = raw.index(b"\0")
    line = raw[:place].count(b"\n") + 1
    raise ValueError(
        f"line {line} of {str(path)!r} is text neither in UTF-8 nor in UTF-16 nor in "
        "Windows-1252: save it as 'CSV UTF-8'"
    )


def cross_attributes(
    columns: Iterable[tuple[np.ndarray, Sequence[str]]],
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Cross attributes, each given by its codes (-1: undefined) and names: "male x White".

    Returns:
        Codes, int64 ``(N,)``, -1 where one of the attributes is undefined; and the names, the last
        attribute's changing fastest.
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

    Returns:
        Codes int ``(N,)`` and the names: the categories in their order, numbers ascending, or texts
        sorted.

    Raises:
        ValueError: If a value is missing (names the row), or they are not one-dimensional.
    """
    codes, found = factorized(name, values)
    dtype = getattr(values, "dtype", None)
    if isinstance(dtype, pd.CategoricalDtype):
        names = [label_text(value) for value in dtype.categories]
    else:
        names = sorted(found)
        # Texts would sort 10 before 9, and the scores of a model are in the order of numbers.
        if all(name.removeprefix("-").isdigit() for name in names):
            names.sort(key=int)
    return pd.Index(names).get_indexer(found)[codes], tuple(names)


def factorized(name: str, values: Any) -> tuple[np.ndarray, list[str]]:
    """Number labels in the order in which they occur.

    Returns:
        Codes int ``(N,)``, and the distinct labels as texts.

    Raises:
        ValueError: If a value is missing (names the row), or they are not one-dimensional.
    """
    pandas = isinstance(values, pd.Series | pd.Index | pd.api.extensions.ExtensionArray)
    labels = values if pandas else dense(name, values)
    if labels.ndim != 1:
        raise ValueError(f"{name} must be one label for each sample, (N,), got {labels.shape}")
    codes, found = pd.factorize(labels)
    # Labels that differ, such as "1" and 1.0, can be the same text: they are one label.
    names = [label_text(value) for value in found]
    # Where NumPy makes texts of values, a missing one becomes the text "nan".
    unknown = np.append(np.isin(names, MISSING), True)[codes]
    if unknown.any():
        row = unknown.argmax()
        text = f" ({names[codes[row]]!r} counts as missing)" if codes[row] >= 0 else ""
        raise ValueError(f"{name} must be known of every sample: it is missing in row {row}{text}")
    distinct = list(dict.fromkeys(names))
    return pd.Index(distinct).get_indexer(names)[codes], distinct


def dense(name: str, values: Any) -> np.ndarray:
    """Convert an array of any library, a tensor or a list into a plain array.

    Args:
        name: Name of the argument in error messages.
        values: Values.

    Raises:
        TypeError: If values are sparse, or rows have different lengths.
        ValueError: If an entry is masked.
    """
    if is_tensor(values) and values.layout is sys.modules["torch"].strided:
        values = values.detach().cpu()
        # NumPy has no bfloat16.
        values = (values.double() if values.is_floating_point() else values).numpy()
    for method in ("to_dense", "todense"):
        if hasattr(values, method):
            raise TypeError(f"{name} must be dense, got {type(values).__name__}: give .{method}()")
    # The numbers under a mask are still there, and would count as any others.
    if isinstance(values, np.ma.MaskedArray) and values.mask.any():
        raise ValueError(f"{name} has masked entries: leave these samples out")
    try:
        array = np.asarray(values)
    except ValueError:
        raise TypeError(
            f"{name} must be an array, got rows of different lengths or shapes"
        ) from None
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def is_tensor(values: Any) -> TypeGuard[Tensor]:
    """Return True for a tensor, without importing torch."""
    return "torch" in sys.modules and isinstance(values, sys.modules["torch"].Tensor)


def refuse_other_index(**arguments: Any) -> None:
    """Refuse arguments of which several have a pandas index, but not the same one.

    Raises:
        ValueError: If two indexes differ; names the arguments.
    """
    indexed = [
        (name, part.index)
        for name, values in arguments.items()
        for part in (values.values() if isinstance(values, Mapping) else [values])
        if isinstance(part, pd.Series | pd.DataFrame)
    ]
    for name, index in indexed:
        # Rows of one order under labels of another are of different people: taken by position,
        # answers of one group would count as those of another.
        if not index.equals(indexed[0][1]):
            raise ValueError(
                f"{name} and {indexed[0][0]} must have the same index, in the same order: use "
                f".reindex(), or .to_numpy() where only the labels differ"
            )


def read_attributes(name: str, values: Any) -> dict[str, tuple[np.ndarray, tuple[str, ...]]]:
    """Turn labels, or several attributes by name, into codes and names by name.

    Args:
        name: Name of the argument.
        values: Labels ``(N,)``; or a data frame or a mapping from names to labels.

    Raises:
        ValueError: If a name is given twice or there is none, a label is missing, or the indexes
            or lengths of attributes differ.
    """
    if not isinstance(values, pd.DataFrame | Mapping):
        return {name: coded(name, values)}
    names = [str(key) for key in values]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"{name} must be attributes, each under a name of its own, got {names}")
    refuse_other_index(**{name: values})
    found = {str(key): coded(f"{name}[{key!r}]", part) for key, part in values.items()}
    if len({len(codes) for codes, _ in found.values()}) > 1:
        raise ValueError(f"{name} must be attributes of the same samples")
    return found


def label_text(value: Any) -> str:
    """Write a label as a text: 1.0 and 1 are the same."""
    if isinstance(value, float | np.floating) and value.is_integer():
        value = int(value)
    return str(value)


def in_order(
    names: Sequence[str], order: Iterable[object] | None, argument: str = "classes"
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Sort names in the order of ``order``, which may hold more.

    Args:
        names: Names, each once.
        order: Names in another order; None for their own.
        argument: Name of ``order`` in error messages.

    Returns:
        The new code of each name, int64; and the names in the new order.

    Raises:
        ValueError: If ``order`` lacks a name, or names one twice.
        TypeError: If ``order`` is a single value.
    """
    ordered = tuple(names if order is None else map(str, check_many(argument, order)))
    codes = {name: code for code, name in enumerate(ordered)}
    if missing := [name for name in names if name not in codes]:
        raise ValueError(
            f"{argument} must name every value that occurs, lacks {', '.join(missing)}; "
            f"got {shown(order)}"
        )
    if len(codes) < len(ordered):
        raise ValueError(f"{argument} must name every value once, got {shown(order)}")
    return np.array([codes[name] for name in names], dtype=np.int64), ordered
