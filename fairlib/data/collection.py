"""What a data set provides before target, group and split are chosen: pictures and their
attributes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from fairlib._tables import cross_attributes
from fairlib._validation import lookup


@dataclass(frozen=True)
class Request:
    """What ``load`` asks every data set for; a data set's own settings are its keyword-only
    parameters.

    Attributes: root: Folder that holds the data set's folder, or that folder itself (for data sets
        that are files). image_size: Height and width in pixels, or None for the data set's own
        default. fractions: Shares of train, val and test; three numbers with sum 1. seed: Seed of
        all that is random in the data set.
    """

    root: str
    image_size: int | None
    fractions: tuple[float, ...]
    seed: np.random.SeedSequence


@dataclass(frozen=True)
class Collection:
    """All samples of a data set, before their pictures are decoded.

    Attributes: table: A row for each sample and a column for each attribute: categorical, NaN where
        it is undefined; or float,
            which can be neither target nor group.
        images: Function from an integer index ``(n,)`` to the pictures of those rows, uint8 ``(n,
            C, H, W)``.
        target, group: Names of the default target and the default group; None if the user has to
            choose.
        parts: Part of each sample, int ``(N,)``: 0 train, 1 val, 2 test, -1 if :func:`fairlib.load`
            is to assign it; None if it is to assign all.
        photographs: Whether the pictures are photographs, in which images that are nearly the same
            are the same picture. Handwritten digits of different people, and drawings, look alike
            without being copies.
        report: Counts of what was found and what was skipped.
        people: The person whom each sample shows, ``(N,)``: all of a person's samples go to one
            part; None if the split is by samples.
        classes: Names of the target's classes in the order of their codes; None for the order of
            the attribute.
        normalize: What a model expects outside; see :class:`fairlib.GroupedDataset`.
    """

    table: pd.DataFrame
    images: Callable[[np.ndarray], np.ndarray]
    target: str | None
    group: str | None
    parts: np.ndarray | None = None
    photographs: bool = False
    report: Mapping[str, Any] = field(default_factory=dict)
    people: np.ndarray | None = None
    classes: Sequence[object] | None = None
    normalize: Any = None


def check_count(name: str, value: object, wanted: str = "a positive integer") -> None:
    """Refuse an argument that is not a positive integer.

    Raises: ValueError: If ``value`` is not a positive integer; names the argument, and says what is
        ``wanted``.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} must be {wanted}, got {value!r}")


def table_of(**columns: tuple[ArrayLike, Sequence[str]]) -> pd.DataFrame:
    """Make a table of categorical attributes, each given by its codes ``(N,)`` (-1: undefined) and
    their names."""
    return pd.DataFrame(
        {
            name: pd.Categorical.from_codes(codes, [*names])
            for name, (codes, names) in columns.items()
        }
    )


def draw(count: int, limit: int | None, rng: np.random.Generator) -> np.ndarray:
    """Choose the samples that a data set uses: all of them, or ``limit`` at random.

    Returns:
        Ascending indices, int64 ``(min(limit, count),)``.

    Raises:
        ValueError: If ``limit`` is neither None nor a positive integer.
    """
    if limit is None:
        return np.arange(count)
    check_count("limit", limit, "None or a positive integer")
    return np.sort(rng.choice(count, limit, replace=False)) if limit < count else np.arange(count)


def select(table: pd.DataFrame, names: str | Sequence[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Select one attribute of a table, or cross several.

    Args: table: A column for each attribute; the selected ones must be categorical. names: Name of
        a column, or several: ``["gender", "race"]`` has the values "male x White", "male x Black",
        ...
            A column ``Wavy_Hair`` may also be called "Wavy Hair".

    Returns: Codes, int64 ``(N,)``, -1 where one of the attributes is undefined; and the names of
        the values.

    Raises: ValueError: If an attribute is unknown (the message lists the known ones), is a
        quantity, or has fewer than two
            values; if no attribute is given, or one is given twice.
    """
    names = (
        [names]
        if isinstance(names, str)
        else list(names)
        if isinstance(names, Iterable)
        else [names]
    )
    if (
        not names
        or not all(isinstance(name, str) for name in names)
        or len(set(names)) < len(names)
    ):
        raise ValueError(f"attributes to cross must be one or more names, each once; got {names}")
    columns = []
    for name in names:
        known = name if name in table else name.replace(" ", "_")
        column = _categories(
            name, lookup("attribute", known, {column: table[column] for column in table})
        )
        columns.append((column.codes.to_numpy().astype(np.int64), column.categories))
    return cross_attributes(columns)


def crossed(table: pd.DataFrame, names: str | Sequence[str] | None) -> dict[str, tuple[str, ...]]:
    """The values of each attribute, where :func:`select` crosses several; the last one changes
    fastest."""
    if names is None or isinstance(names, str) or len(names) < 2:
        return {}
    columns = {name: table[name if name in table else name.replace(" ", "_")] for name in names}
    return {name: tuple(map(str, column.cat.categories)) for name, column in columns.items()}


def in_order(
    names: tuple[str, ...], classes: Iterable[object] | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Give the values of an attribute, ``names``, the order of ``classes``, which may name more;
    None is their own.

    Returns:
        The new code of each name, int64; and the names in the new order.

    Raises:
        ValueError: If ``classes`` lacks a name, or names one twice.
    """
    if classes is None:
        return np.arange(len(names)), names
    order = (
        []
        if isinstance(classes, str) or not isinstance(classes, Iterable)
        else [*map(str, classes)]
    )
    if lacking := [name for name in names if name not in order]:
        raise ValueError(
            f"classes must name every value of the target, lacks {', '.join(lacking)}; got {classes!r}"
        )
    if len(set(order)) < len(order):
        raise ValueError(f"classes must name every class once, got {classes!r}")
    return np.array([*map(order.index, names)]), tuple(order)


def _categories(name: str, column: pd.Series) -> Any:
    """The accessor ``.cat`` of a column that has classes or groups."""
    if not isinstance(column.dtype, pd.CategoricalDtype):
        found = f"attribute {name!r} has {column.nunique()} distinct numbers"
        raise ValueError(
            f"{found}, too many for classes: name a column with bins of it (pandas.cut) instead"
        )
    values = list(column.cat.categories)
    if len(values) < 2:
        raise ValueError(
            f"attribute {name!r} must have at least two values, got {', '.join(values) or 'none'}"
        )
    return column.cat
