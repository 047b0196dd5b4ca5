"""What a data set hands over before target, group and split are chosen: pictures and their attributes."""

from __future__ import annotations

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
        table: A row for each sample, a categorical column for each attribute; NaN where it is undefined.
        images: From an integer index ``(n,)`` to the pictures of those rows, uint8 ``(n, C, H, W)``.
        target, group: The attributes that are taken when none is asked for.
        parts: Codes (0 train, 1 val, 2 test) of samples that the data set itself assigns, -1 for those it
            leaves open, ``(N,)``; None if it leaves all open.
        report: What was found and skipped.
    """

    table: pd.DataFrame
    images: Callable[[np.ndarray], np.ndarray]
    target: str
    group: str
    parts: np.ndarray | None = None
    report: Mapping[str, object] = field(default_factory=dict)


def select(table: pd.DataFrame, names: str | Sequence[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """One attribute of the table, or the crossing of several.

    Args:
        table: Categorical columns.
        names: A column, or several: ``["gender", "race"]`` has the values "male x White", "male x Black", ...

    Returns:
        int64 codes ``(N,)``, -1 where one of the attributes is undefined, and the names of the values.

    Raises:
        ValueError: If an attribute is unknown (the message lists the known ones), none is given or one stands
            twice.
    """
    names = [names] if isinstance(names, str) else list(names)
    if not names or len(set(names)) < len(names):
        raise ValueError(f"attributes to cross must be one or more, each once; got {names}")
    columns = {name: table[name] for name in table}
    codes, values = np.zeros(len(table), dtype=np.int64), ("",)
    for name in names:
        column = lookup("attribute", name, columns).cat
        added = column.codes.to_numpy().astype(np.int64)
        codes = np.where((codes < 0) | (added < 0), -1, codes * len(column.categories) + added)
        values = tuple(f"{left} x {right}" if left else right for left in values for right in column.categories)
    return codes, values
