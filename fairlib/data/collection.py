"""What a data set hands over before target, group and split are chosen: pictures and their attributes."""

from typing import Any

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from fairlib._validation import lookup


@dataclass(frozen=True)
class Request:
    """What ``load`` asks every data set for; a data set's own settings are its keyword-only parameters.

    Attributes:
        root: Folder that holds the data set's folder, or that folder itself (data sets that come in files).
        image_size: Height and width in pixels, or None for the data set's own default.
        fractions: Shares of train, val and test.
        seed: The stream from which the data set draws all that it draws.
    """

    root: str
    image_size: int | None
    fractions: tuple[float, float, float]
    seed: np.random.SeedSequence


@dataclass(frozen=True)
class Collection:
    """All samples of a data set, their pictures not yet decoded.

    Attributes:
        table: A row for each sample, a column for each attribute: categorical, NaN where it is undefined; or
            float, which cannot be a target or a group as it stands.
        images: From an integer index ``(n,)`` to the pictures of those rows, uint8 ``(n, C, H, W)``.
        target, group: The attributes that are taken when none is asked for; None if one must be.
        parts: Codes (0 train, 1 val, 2 test) of samples that the data set itself assigns, -1 for those it
            leaves open, ``(N,)``; None if it leaves all open.
        report: What was found and skipped.
    """

    table: pd.DataFrame
    images: Callable[[np.ndarray], np.ndarray]
    target: str | None
    group: str | None
    parts: np.ndarray | None = None
    report: Mapping[str, Any] = field(default_factory=dict)


def draw(count: int, limit: int | None, rng: np.random.Generator) -> np.ndarray:
    """The samples that a data set uses: all, or ``limit`` of them drawn, before anything is decoded.

    Returns:
        Ascending indices, int64 ``(min(limit, count),)``.

    Raises:
        ValueError: If ``limit`` is neither None nor a positive integer.
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | np.integer) or limit < 1):
        raise ValueError(f"limit must be None or a positive integer, got {limit!r}")
    if limit is None or limit >= count:
        return np.arange(count)
    return np.sort(rng.choice(count, limit, replace=False))


def select(table: pd.DataFrame, names: str | Sequence[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """One attribute of the table, or the crossing of several.

    Args:
        table: Columns, those that are asked for categorical.
        names: A column, or several: ``["gender", "race"]`` has the values "male x White", "male x Black", ...
            A column ``Wavy_Hair`` is also found as "Wavy Hair".

    Returns:
        int64 codes ``(N,)``, -1 where one of the attributes is undefined, and the names of the values.

    Raises:
        ValueError: If an attribute is unknown (the message lists the known ones), is a quantity, or has fewer
            than two values; if none is given or one stands twice.
    """
    names = [names] if isinstance(names, str) else list(names)
    if not names or len(set(names)) < len(names):
        raise ValueError(f"attributes to cross must be one or more, each once; got {names}")
    columns = {name: table[name] for name in table}
    codes, values = np.zeros(len(table), dtype=np.int64), ("",)
    for name in names:
        known = name if name in columns else name.replace(" ", "_")
        column = _categories(name, lookup("attribute", known, columns))
        added = column.codes.to_numpy().astype(np.int64)
        codes = np.where((codes < 0) | (added < 0), -1, codes * len(column.categories) + added)
        values = tuple(f"{left} x {right}" if left else right for left in values for right in column.categories)
    return codes, values


def _categories(name: str, column: pd.Series) -> pd.api.extensions.ExtensionArray:
    if not isinstance(column.dtype, pd.CategoricalDtype):
        raise ValueError(
            f"attribute {name!r} has {column.nunique()} distinct numbers, too many for classes or groups: add a "
            "column with bins of it (pandas.cut) to the table, and name that one"
        )
    values = list(column.cat.categories)
    if len(values) < 2:
        raise ValueError(f"attribute {name!r} must have at least two values, got {', '.join(values) or 'none'}")
    return column.cat
