"""Columns of a table, read as text, as the scores or labels of a model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from fairlib._tables import in_order


def read_columns(
    columns: pd.DataFrame, numbers: pd.DataFrame, classes: Sequence[str], kind: str, scored: bool
) -> pd.Series | np.ndarray:
    """Read the predictions of a model.

    Args:
        columns: Cells as text, indexed by the number of the row: a column of labels or of numbers,
            or a column of numbers for each class.
        numbers: The same cells as numbers (:func:`numbers_of`).
        classes: Names of the classes, in the order of the columns.
        kind: One of :data:`fairlib.auditing.adapters.scores.SCORES`.
        scored: True if the column of one of the models has fractions (:func:`has_fractions`).

    Returns:
        Labels as a series of texts, or numbers ``(N,)`` or ``(N, C)``.

    Raises:
        ValueError: If a prediction is missing, or neither a class nor a number, or the number of
            columns is not that of the classes; names the row.
    """
    for name, column in columns.items():
        if column.isna().any():
            raise ValueError(
                f"row {column.isna().idxmax()} has no prediction in column {name!r}. Rows are not "
                "dropped silently, since that could flatter the model: remove the row yourself, or "
                "give the missing answer a label and name that in --classes"
            )
    if columns.shape[1] == 1 and kind in ("auto", "labels"):
        labels = without_zero_fraction(columns.iloc[:, 0])
        unknown = labels[~labels.isin(classes)]
        if kind == "auto" and labels.isin(["0", "1"]).all() and (scored or unknown.empty):
            return numbers.to_numpy()  # Saturated scores or labels: the two models tell together.
        # A column of scores has numbers with a fraction, which are no classes. Whole numbers that
        # are no classes can be scores or misspelt labels: the caller has to say.
        if unknown.empty or kind == "labels" or not has_fractions(numbers):
            if len(unknown):
                raise ValueError(
                    f"row {unknown.index[0]} of column {labels.name!r}: unknown class "
                    f"{unknown.iloc[0]!r}; known: {', '.join(classes)}; if it is a class, "
                    "list all classes in --classes; if the column holds scores, give --scores"
                )
            return labels
    broken = numbers.isna().any(axis=1)
    if broken.any():
        row = broken.idxmax()
        raise ValueError(f"scores must be numbers, got {', '.join(columns.loc[row])} in row {row}")
    return numbers.to_numpy()


def numbers_of(columns: pd.DataFrame) -> pd.DataFrame:
    """Read cells as numbers, with points or commas; NaN where a cell is none."""
    return columns.apply(
        lambda column: pd.to_numeric(column.str.replace(",", "."), errors="coerce")
    )


def has_fractions(numbers: pd.DataFrame) -> bool:
    """Return True if a number has a fraction, as scores have and codes of classes do not."""
    return bool((numbers.notna() & (numbers % 1 != 0)).any(axis=None))


def class_order(
    targets: pd.Series, classes: Sequence[str] | None, positive: str | None
) -> Sequence[str] | None:
    """Put the classes into the order of the scores: as given, or the ``positive`` one of two last.

    Returns:
        Their names, or None if the order is not given.

    Raises:
        ValueError: If ``classes`` lacks a target, or ``positive`` is not one of two.
    """
    found = sorted(targets.dropna().unique())
    if positive and (len(found) != 2 or positive not in found):
        raise ValueError(
            f"--positive must be one of two classes, got {positive!r}; there are {', '.join(found)}"
        )
    if positive:
        return sorted(found, key=positive.__eq__)
    return classes and in_order(found, classes)[1]


def without_zero_fraction(column: pd.Series) -> pd.Series:
    """Write labels such as 1.0 as 1.

    pandas saves a column of whole numbers with a gap as 1.0 and 0.0, beside a column without a gap
    as 1 and 0.
    """
    return column.str.replace(r"^(-?\d+)[.,]0+$", r"\1", regex=True)
