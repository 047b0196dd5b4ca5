"""What a page shows of numbers: recorded tables where they are there, and values over seeds as tables of texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from fairlib import effects, environment, plots
from fairlib.data import GroupedDataset, Splits
from fairlib.statistics import sign_flip_test, t_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EMBEDDED = ("digits", "synthetic-faces", "parabola")
"""Names of data that come with the package or are drawn; what is measured on others is a real-data run."""

Row = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Recorded:
    """A recorded table, or the place of one that is not there; true if it is there.

    As a text it is the line that says where the table comes from (:func:`fairlib.plots.provenance`), an empty one if
    there is none.

    Attributes:
        path: Path of the CSV file; its provenance lies beside it, under the same name with the suffix ``.json``.
        table: The table, with the names of groups as texts; None if there is none.
    """

    path: Path
    table: pd.DataFrame | None

    def __bool__(self) -> bool:
        return self.table is not None

    def __str__(self) -> str:
        if self.table is None:
            return ""
        embedded = set(self.table["data"].dropna()) <= set(EMBEDDED)
        evidence = "embedded study" if embedded else "real-data run"
        return plots.source(self.table, evidence, self.path.with_suffix(".json"))

    @property
    def provenance(self) -> dict[str, Any]:
        """Grid, parameters, hardware, versions and commit, from the file beside the table."""
        return json.loads(self.path.with_suffix(".json").read_text(encoding="utf-8"))

    def select(self, **where: Any) -> Recorded:
        """Some of its rows (:func:`fairlib.effects.select`), if it is there."""
        return self if self.table is None else Recorded(self.path, effects.select(self.table, **where))

    def draw(self, figure: Callable[..., Figure], *arguments: object, **settings: object) -> None:
        """Draw a figure of the table, with the line that says where it comes from; nothing if there is no table.

        Args:
            figure: Called with the table and what follows; gives back a figure.
            arguments, settings: What follows.
        """
        if self.table is not None:
            plots.provenance(figure(self.table, *arguments, **settings), self)

    def show(self, numbers: Callable[..., object], *arguments: object, **settings: object) -> None:
        """Show what a function says of the table, mostly a table of numbers; nothing if there is no table.

        Args:
            numbers: Called with the table and what follows.
            arguments, settings: What follows.
        """
        if self.table is not None:
            from IPython.display import display

            display(numbers(self.table, *arguments, **settings))


def recorded(path: str) -> Recorded:
    """A table that was recorded in ``results/``; where it is not there, one sentence says why.

    Without the project's files (in Colab) nobody can know whether there is such a table, and the sentence says that.

    Args:
        path: Path of the CSV file from the root of the project. On a page it is written out, since what a page depends
            on is found by these texts.
    """
    root = environment.project()
    if (root / path).is_file():
        return Recorded(root / path, pd.read_csv(root / path, dtype={"group": str, "upsampled_group": str}))
    if (root / "book" / "claims.yml").is_file():
        print(f"There is no recorded table {path} yet.")
    else:
        print(f"The table {path} is one of the project's files, which are not here: run this page in its repository.")
    return Recorded(root / path, None)


def intervals(
    values: Mapping[Any, ArrayLike | Row],
    *,
    names: str | Sequence[str] | None = None,
    digits: int = 3,
    sign: bool = False,
) -> pd.DataFrame:
    """Means over seeds with their 95 % t intervals, as texts: ``0.123 [0.101, 0.145]``.

    Args:
        values: By row - a text, or a tuple for several levels of rows - what stands in its columns: one value per seed
            ``(n,)``, of which the interval is shown; a number or a text, which is shown as it is; None for nothing. Or
            one value per seed for each row, where there is one column, "mean".
        names: Name of the rows, or one for each of their levels.
        digits: Digits after the point.
        sign: Whether positive numbers have a sign.

    Returns:
        DataFrame of texts, empty ones where a row lacks a column.

    Raises:
        ValueError: If a value over seeds is missing or not finite.
    """
    spec = f"{'+' if sign else ''}.{digits}f"
    rows = {row: own if isinstance(own, Mapping) else {"mean": own} for row, own in values.items()}
    texts = {row: {column: _text(value, spec) for column, value in own.items()} for row, own in rows.items()}
    return pd.DataFrame.from_dict(texts, orient="index").astype(object).fillna("").rename_axis(index=names)


def tested(
    values: Mapping[Any, ArrayLike], name: str, *, names: str | Sequence[str] | None = None, digits: int = 3
) -> pd.DataFrame:
    """Means over seeds against zero: 95 % t interval, p-value of flipping signs, number of seeds.

    Args:
        values: One value per seed by row, as in :func:`intervals`.
        name: What the values are: the first column.
        names, digits: As in :func:`intervals`.

    Returns:
        DataFrame with the columns ``name``, ``p-value`` and ``seeds``.
    """
    rows = {
        row: {name: own, "p-value": float(sign_flip_test(own)), "seeds": np.size(own)} for row, own in values.items()
    }
    return intervals(rows, names=names, digits=digits)


def beside(
    runs: pd.DataFrame,
    columns: Sequence[str] | Mapping[str, str],
    *,
    by: str | Sequence[str] = "arm",
    rival: Any = "",
    minus: Sequence[str] | None = None,
    digits: int = 3,
) -> pd.DataFrame:
    """Arms beside each other: means with 95 % t intervals, and differences from a rival, paired within the seed.

    Args:
        runs: One row per arm and seed, as :func:`fairlib.effects.by_run` gives it.
        columns: Columns whose means are shown, or their headings by column.
        by: The column that names the arms, or several: an arm is then a tuple.
        rival: The arm that is subtracted from all others; or a mapping from arms to the rival of each. Empty for none.
        minus: Columns whose differences are shown; all by default.
        digits: Digits after the point.

    Returns:
        DataFrame of texts with a row for each arm, in the order of the table.

    Raises:
        ValueError: If a rival is not in the table, or an arm has several rows of a seed.
    """
    headings = dict(columns) if isinstance(columns, Mapping) else {name: name for name in columns}
    keys = [by] if isinstance(by, str) else list(by)
    wide = runs.pivot(index="seed", columns=keys, values=list(headings))
    tuples = dict.fromkeys(runs[keys].itertuples(index=False, name=None))
    places = {key if len(keys) > 1 else key[0]: key for key in tuples}
    rivals = dict(rival) if isinstance(rival, Mapping) else {arm: rival for arm in places if rival and arm != rival}
    if unknown := [other for other in rivals.values() if other not in places]:
        raise ValueError(f"there is no {unknown[0]!r} to compare with; known: {', '.join(map(str, places))}")
    against = "its rival" if isinstance(rival, Mapping) else rival
    rows: dict[Any, dict[str, pd.Series]] = {}
    for arm, key in places.items():
        rows[arm] = {heading: wide[name, *key].dropna() for name, heading in headings.items()}
        for name in minus or headings if arm in rivals else ():
            difference = wide[name, *key] - wide[name, *places[rivals[arm]]]
            rows[arm][f"{headings[name]} minus that of {against}"] = difference.dropna()
    return intervals(rows, names=by, digits=digits)


def correlations(
    table: pd.DataFrame,
    pairs: Mapping[Any, tuple[str, str, Mapping[str, Any]]],
    columns: Mapping[str, Mapping[str, Any]],
    *,
    names: str | Sequence[str] | None = None,
) -> pd.DataFrame:
    """Rank correlations over groups (:func:`fairlib.effects.group_correlation`), as texts.

    Args:
        table: A study table.
        pairs: By row the two columns that are correlated and the values of columns that select rows.
        columns: By heading the further values of columns that select rows.
        names: As in :func:`intervals`.

    Returns:
        DataFrame of texts, empty ones where a correlation is not defined.
    """
    rows: dict[Any, dict[str, object]] = {row: {} for row in pairs}
    for row, (x, y, where) in pairs.items():
        for heading, more in columns.items():
            rows[row][heading] = None
            with suppress(ValueError):
                rows[row][heading] = effects.group_correlation(table, x=x, y=y, where={**where, **more})
    return intervals(rows, names=names, digits=2)


def sizes(data: Mapping[str, GroupedDataset | Splits]) -> pd.DataFrame:
    """Training images of the groups, from the largest to the smallest, for several data sets or settings.

    Args:
        data: By name what :func:`fairlib.load` gave, or one part of it.
    """
    rows: dict[str, Any] = {}
    for name, part in data.items():
        sizes = (part if isinstance(part, GroupedDataset) else part.train).group_sizes
        rows[name] = {rank: size for rank, size in enumerate(sorted(sizes, reverse=True), 1)}
    return intervals(rows, names="training images").rename_axis(columns="rank by size")


def cases(
    statement: str, seed: int, excess: ArrayLike, *, tolerance: float = 1e-8, **labels: object
) -> dict[str, object]:
    """A row of a page of theory: in how many of some cases a statement is violated, and by how much at most.

    Args:
        statement: Name of the statement: the id of a claim.
        seed: Seed of the cases.
        excess: By how much the left side of an inequality exceeds the right one, or two sides of an equation differ,
            case by case; any shape.
        tolerance: Largest excess that is rounding.
        labels: Further columns.

    Returns:
        ``statement seed cases violated discrepancy``: the number of cases, the share that exceeds the tolerance, the
        largest excess or 0.
    """
    excess = np.asarray(excess, dtype=float)
    found = {"violated": float((excess > tolerance).mean()), "discrepancy": max(float(excess.max()), 0.0)}
    return {"statement": statement, "seed": seed, "cases": excess.size} | found | labels


def _text(value: Any, spec: str) -> object:
    if value is None or isinstance(value, str):
        return value or ""
    if np.ndim(value):
        return format(t_interval(value), spec)
    return format(value, spec) if isinstance(value, float | np.floating) else str(value)
