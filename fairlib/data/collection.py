"""Raw material of a data set before target, group and split are chosen: pictures and attributes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from fairlib._tables import cross_attributes
from fairlib._validation import check_many, lookup

Images = Callable[[np.ndarray], np.ndarray]
"""Function from an integer index ``(n,)`` to the pictures of those rows, uint8 ``(n, C, H, W)``."""


@dataclass(frozen=True)
class Request:
    """Arguments of ``load`` that every data set gets; its settings are keyword-only parameters.

    Attributes:
        root: Folder that holds the data set's folder, or that folder itself (for data sets that are
            files).
        image_size: Height and width in pixels, or None for the data set's own default.
        fractions: Shares of train, val and test; three numbers with sum 1.
        seed: Seed of all that is random in the data set.
    """

    root: str
    image_size: int | None
    fractions: tuple[float, ...]
    seed: np.random.SeedSequence


@dataclass(frozen=True)
class Collection:
    """All samples of a data set, before their pictures are decoded.

    Attributes:
        table: A row for each sample and a column for each attribute: categorical, NaN where it is
            undefined; or float, which can be neither target nor group.
        images: Function from an integer index ``(n,)`` to the pictures of those rows, uint8
            ``(n, C, H, W)``: only these are decoded.
        target, group: Names of the default target and the default group; None if the user has to
            choose.
        parts: Part of each sample, int ``(N,)``: 0 train, 1 val, 2 test, -1 if :func:`fairlib.load`
            is to assign it; None if it is to assign all.
        photographs: True if images that are nearly the same are the same picture. Handwritten
            digits of different people, and drawings, look alike without being copies.
        report: Counts of the samples that were found and skipped.
        people: The person that each sample shows, ``(N,)``: all of a person's samples go to one
            part; None if the split is by samples.
        classes: Names of the target's classes in the order of their codes; None for the order of
            the attribute.
        normalize: Mean and standard deviation of inputs; see :class:`fairlib.GroupedDataset`.
    """

    table: pd.DataFrame
    images: Images
    target: str | None
    group: str | None
    parts: np.ndarray | None = None
    photographs: bool = False
    report: Mapping[str, Any] = field(default_factory=dict)
    people: np.ndarray | None = None
    classes: Sequence[object] | None = None
    normalize: Any = None


def table_of(**columns: tuple[ArrayLike, Sequence[str]]) -> pd.DataFrame:
    """Make a table of categorical attributes from ``(codes, names)``; code -1 is undefined."""
    return pd.DataFrame(
        {
            name: pd.Categorical.from_codes(codes, [*names])
            for name, (codes, names) in columns.items()
        }
    )


def select_attributes(
    table: pd.DataFrame, names: str | Sequence[str]
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Select one attribute of a table, or cross several.

    Args:
        table: A column for each attribute; the selected ones must be categorical.
        names: Name of a column, or several: ``["gender", "race"]`` has the values "male x White",
            "male x Black", ...

    Returns:
        Codes, int64 ``(N,)``, -1 where an attribute is undefined; and the names of the codes.

    Raises:
        ValueError: If an attribute is unknown, numeric or has fewer than two values, none is given,
            or one is given twice.
    """
    asked = (names,) if isinstance(names, str) else check_many("attributes to cross", names)
    if not asked or len(set(asked)) < len(asked):
        raise ValueError(f"attributes to cross must be one or more names, each once; got {asked}")
    attributes = dict(table.items())
    columns = []
    for name in asked:
        # Columns of LFW and CelebA have underscores where people write blanks.
        known = name if name in attributes else str(name).replace(" ", "_")
        column = lookup("attribute", known, attributes)
        if not isinstance(column.dtype, pd.CategoricalDtype):
            raise ValueError(
                f"attribute {name!r} has {column.nunique()} distinct numbers, too many for "
                "classes: name a column with bins of it (pandas.cut) instead"
            )
        values = column.cat.categories
        if len(values) < 2:
            raise ValueError(
                f"attribute {name!r} must have at least two values, "
                f"got {', '.join(values) or 'none'}"
            )
        columns.append((column.cat.codes.to_numpy(np.int64), values))
    return cross_attributes(columns)
