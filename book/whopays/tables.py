"""Tables that pages show: recorded ones, and values over seeds formatted as texts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from fairlib.data import Splits
from whopays import effects, plots
from whopays.runs import project
from whopays.seeds import estimate, sign_flip_test

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EMBEDDED = ("digits", "synthetic-faces", "parabola")
"""Names of data sets that come with the package or are drawn; a study of any other one is a
real-data run.
"""

AT_SCALE = re.compile(r".*-(all|resnet18|resnet50)|[tbd]-(fig|tab)-.*")
"""Names of runs at scale, of all pictures of a data set, of a paper's network or grid."""

DASH, POINTS = "-", "percentage points"

# Remarks on recorded tables, by a parameter and the value of it that calls for the remark.
REMARKS = {
    ("near_duplicates", "ignored"): "near-duplicates not kept together",
    ("held_out", "train"): "held-out data known to the dense network",
}

Row = Mapping[str, Any]
# Contents of a table, by row and column.
Contents = dict[Any, dict[str, Any]]

Names = str | Sequence[str] | None


@dataclass(frozen=True, eq=False)
class Recorded:
    """A recorded table, or the path of a missing one; true if the table exists.

    As a text it is the line that says where the table comes from
    (:func:`whopays.plots.provenance`), with remarks on how it was computed; empty if the table is
    missing.

    Attributes:
        path: Path of the CSV file; its provenance has the same name with the suffix ``.json``.
        table: The table, with the names of groups as texts; None if it is missing.
    """

    path: Path
    table: pd.DataFrame | None

    def __bool__(self) -> bool:
        return self.table is not None

    def __str__(self) -> str:
        if self.table is None:
            return ""
        evidence = "run at scale" if AT_SCALE.fullmatch(self.path.stem) else "real-data run"
        if self.table["data"].dropna().isin(EMBEDDED).all():
            evidence = "embedded study"
        parameters = self.provenance.get("parameters", {})
        remarks = [text for (name, value), text in REMARKS.items() if parameters.get(name) == value]
        return ", ".join([plots.source(self.table, evidence), *remarks])

    @property
    def provenance(self) -> dict[str, Any]:
        """Grid, parameters, hardware, versions and commit of the recording."""
        return json.loads(self.path.with_suffix(".json").read_text(encoding="utf-8"))

    def select(self, **where: Any) -> Recorded:
        """Select rows (:func:`whopays.effects.select`) if the table exists."""
        return (
            self if self.table is None else Recorded(self.path, effects.select(self.table, **where))
        )

    def draw(self, figure: Callable[..., Figure], *arguments: object, **settings: object) -> None:
        """Draw a figure of the table with the line on its origin, if the table exists.

        Args:
            figure: Function that draws the table, its first argument, and returns a figure.
            arguments, settings: Further arguments of the function.
        """
        if self.table is not None:
            plots.provenance(figure(self.table, *arguments, **settings), self)

    def show(self, numbers: Callable[..., object], *arguments: object, **settings: object) -> None:
        """Display the result of a function of the table, if the table exists.

        Args:
            numbers: Function whose first argument is the table.
            arguments, settings: Further arguments of the function.
        """
        if self.table is not None:
            from IPython.display import display

            display(numbers(self.table, *arguments, **settings))


def recorded(path: str) -> Recorded:
    """Read a table of ``results/``; if it is missing, print the command that records it.

    Where no grid records it, or the project's files are missing (the wheel has none of them), the
    output says that instead.

    Args:
        path: Path of the CSV file from the root of the project. On a page it has to be a literal,
            since the files that a page depends on are found by these texts.
    """
    root = project()
    if (root / path).is_file():
        return Recorded(
            root / path, pd.read_csv(root / path, dtype={"group": str, "upsampled_group": str})
        )
    if (root / "book" / "claims.yml").is_file():
        for grid in (root / "params").rglob("*.yml"):
            if f"table: {path}\n" in grid.read_text(encoding="utf-8"):
                name = grid.relative_to(root).as_posix()
                print(f"Not recorded yet. To record it:\nmake sweep GRID={name}")
                break
        else:
            print(f"There is no recorded table {path} yet.")
    else:
        print(
            f"The table {path} is one of the project's files, which are not here: run this page "
            "in its repository."
        )
    return Recorded(root / path, None)


def means(
    values: Mapping[Any, ArrayLike | Row],
    *,
    names: Names = None,
    digits: int | Mapping[str, int] | None = None,
    sign: bool = False,
) -> pd.DataFrame:
    """Format means over seeds with their 95 % t intervals as texts: ``-5.0 [-6.5, -3.6]``.

    Values over seeds are shares, shown in percentage points with one digit, which the corner of
    the table says; ``digits`` names those that are none, and their headings name the unit.

    Args:
        values: By row (a text, or a tuple for several levels of rows) the contents of its columns
            by name: one value per seed ``(n,)``, shown by mean and interval; a :func:`number` or a
            text; None for what does not exist. For a single column, "mean", one value per seed by
            row.
        names: Name of the rows, or of each of their levels.
        digits: Digits after the decimal point of values that are no shares: of all columns, or by
            the name of the column.
        sign: Whether positive means have a sign.

    Returns:
        DataFrame of texts, with a dash where a row lacks a column.

    Raises:
        ValueError: If a value over seeds is missing or not finite.
    """
    of = digits.get if isinstance(digits, Mapping) else lambda _: digits
    rows = {row: own if isinstance(own, Mapping) else {"mean": own} for row, own in values.items()}
    texts = {
        row: {
            column: estimate(value, of(column), sign) if np.ndim(value) else number(value)
            for column, value in own.items()
        }
        for row, own in rows.items()
    }
    table = pd.DataFrame.from_dict(texts, orient="index").astype(object).fillna(DASH)
    return table.rename_axis(index=names, columns=None if of("") is not None else POINTS)


def number(value: Any, digits: int = 3) -> str:
    """Format a number or a text: ``11,204,524``, ``0.250``, a dash for what does not exist.

    Args:
        value: Number, text, or None or NaN for what does not exist.
        digits: Digits after the decimal point of a number that is not whole.
    """
    if isinstance(value, str | bool):
        return str(value) or DASH
    if pd.isna(value):
        return DASH
    return format(value, f",.{digits * (value % 1 > 0)}f")


def shown(table: pd.DataFrame, digits: int = 2) -> pd.DataFrame:
    """Format all numbers of a table (:func:`number`).

    Args:
        table: Table of numbers and texts.
        digits: Digits after the decimal point of numbers that are not whole.
    """
    return table.map(number, digits=digits)


def tested(
    values: Mapping[Any, ArrayLike], name: str, *, names: Names = None, digits: int | None = None
) -> pd.DataFrame:
    """Test means over seeds against zero: interval, p-value of the sign-flip test, seeds.

    Args:
        values: By row one value per seed, ``(n,)``.
        name: Name of the quantity, which heads the first column.
        names: Name of the rows, or of each of their levels.
        digits: Digits after the decimal point; None for shares, shown in percentage points.

    Returns:
        DataFrame with the columns ``name``, ``p-value`` and ``seeds``.
    """
    rows: Contents = {}
    for row, own in values.items():
        p_value = sign_flip_test(own)
        tested = "< 0.001" if p_value < 0.001 else p_value
        rows[row] = {name: own, "p-value": tested, "seeds": np.size(own)}
    return means(rows, names=names, digits=digits)


def beside(
    runs: pd.DataFrame,
    columns: Sequence[str] | Mapping[str, str],
    *,
    by: str | Sequence[str] = "arm",
    rival: Any = "",
    minus: Sequence[str] | None = None,
    digits: int | Mapping[str, int] | None = None,
) -> pd.DataFrame:
    """Compare arms: means with intervals, and paired differences from a rival arm.

    Args:
        runs: One row per arm and seed (:func:`whopays.effects.by_run`).
        columns: Names of the columns whose means are shown, or a mapping from these to their
            headings.
        by: Name of the column that names the arms, or several names: an arm is then a tuple.
        rival: Name of the arm that is subtracted from all others, or a mapping from arms to rivals;
            empty for none.
        minus: Names of the columns whose differences are shown; all by default.
        digits: Digits of what is no share (:func:`means`).

    Returns:
        DataFrame of texts with a row for each arm, in the order of the table; with the number of
        ``seeds`` where the arms differ in it.

    Raises:
        ValueError: If a rival is not in the table, or an arm has several rows of a seed.

    Example:
        >>> import pandas as pd
        >>> from whopays import tables
        >>> runs = pd.DataFrame({"arm": ["plain"] * 3 + ["fair"] * 3, "seed": [0, 1, 2] * 2})
        >>> runs["bias"] = [0.4, 0.5, 0.6, 0.1, 0.2, 0.3]
        >>> tables.beside(runs, ["bias"], rival="plain")
        percentage points               bias bias minus that of plain
        arm
        plain              50.0 [25.2, 74.8]                        -
        fair               20.0 [-4.8, 44.8]                    -30.0
    """
    headings = columns if isinstance(columns, Mapping) else {name: name for name in columns}
    # A second row of a seed is an error.
    runs = runs.set_index("seed")
    parts = {
        arm: own[list(headings)].set_flags(allows_duplicate_labels=False)
        for arm, own in runs.groupby(by, sort=False)
    }
    rivals, against = rival, "its rival"
    if not isinstance(rival, Mapping):
        rivals, against = {arm: rival for arm in parts if rival and arm != rival}, rival
    if unknown := [other for other in rivals.values() if other not in parts]:
        raise ValueError(f"unknown rival {unknown[0]!r}; known: {', '.join(map(str, parts))}")
    if isinstance(digits, Mapping):
        digits = {**digits, **{f"{name} minus that of {against}": digits[name] for name in digits}}
    rows: Contents = {}
    for arm, own in parts.items():
        rows[arm] = {heading: own[name].dropna() for name, heading in headings.items()}
        # Paired: the same seed has the same data and the same dense network in both arms.
        difference = own - parts[rivals.get(arm, arm)]
        for name in minus or headings if arm in rivals else ():
            rows[arm][f"{headings[name]} minus that of {against}"] = difference[name].dropna()
    # A missing run would pass unseen: the number of seeds is shown as soon as arms differ in it.
    seeds = {arm: own.iloc[:, 0].count() for arm, own in parts.items()}
    if len(set(seeds.values())) > 1:
        rows = {arm: {"seeds": str(seeds[arm])} | own for arm, own in rows.items()}
    return means(rows, names=by, digits=digits)


def correlations(
    table: pd.DataFrame,
    pairs: Mapping[Any, tuple[str, str, Row]],
    columns: Mapping[str, Row],
    *,
    names: Names = None,
) -> pd.DataFrame:
    """Format rank correlations over groups (:func:`whopays.effects.group_correlation`) as texts.

    Args:
        table: Table of :func:`fairlib.study`.
        pairs: By row the names of two columns and the values of columns that select its rows.
        columns: By heading further values of columns that select rows.
        names: Name of the rows, or of each of their levels.

    Returns:
        DataFrame of texts, a dash where there are no such rows or the correlation is not defined.

    Raises:
        ValueError: If a column is missing, or there are several rows per seed and group.
    """
    rows: Contents = {row: {} for row in pairs}
    if missing := {name for x, y, _ in pairs.values() for name in (x, y)} - set(table):
        raise ValueError(f"the table has no column {', '.join(sorted(missing))}")
    for row, (x, y, where) in pairs.items():
        for heading, more in columns.items():
            rows[row][heading] = None
            # A dash: the table has no such rows, or all groups are alike.
            with suppress(effects.MissingRowsError, effects.UndefinedError):
                rows[row][heading] = effects.group_correlation(
                    table, x=x, y=y, where={**where, **more}
                )
    return means(rows, names=names, digits=2)


def sizes(data: Mapping[str, Splits]) -> pd.DataFrame:
    """List the training images of the groups, the largest first, for several data sets.

    Args:
        data: By name the splits of :func:`fairlib.load`.
    """
    rows: dict[str, Any] = {}
    for name, splits in data.items():
        rows[name] = dict(enumerate(sorted(splits.train.group_sizes, reverse=True), 1))
    return means(rows, names="training images").rename_axis(columns="rank by size")


def cases(
    statement: str, seed: int, excess: ArrayLike, *, tolerance: float = 1e-8, **labels: object
) -> dict[str, object]:
    """Count in how many random cases a statement of theory is violated, and by how much at most.

    Args:
        statement: Id of the claim.
        seed: Seed of the cases.
        excess: For each case the left side of an inequality minus the right one, or the difference
            of the two sides of an equation; any shape.
        tolerance: Largest excess that counts as rounding.
        labels: Further columns of the row.

    Returns:
        ``statement seed cases violated discrepancy``: the number of cases, the share that exceeds
        the tolerance, the largest excess or 0.

    Raises:
        ValueError: If there is no case, or an excess is NaN or infinite, since nothing was checked
            then.
    """
    excess = np.asarray(excess, dtype=float)
    # NaN exceeds no tolerance, so that a broken check would count as a proof.
    if not excess.size or not np.isfinite(excess).all():
        raise ValueError(
            f"excess of {statement!r} must be finite numbers, at least one; got {excess!r}"
        )
    found = {
        "violated": float((excess > tolerance).mean()),
        "discrepancy": max(float(excess.max()), 0.0),
    }
    return {"statement": statement, "seed": seed, "cases": excess.size} | found | labels
