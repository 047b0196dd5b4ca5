"""Conditions of a recorded table: who its groups are, what its seeds share, which path it took."""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from whopays.effects import MissingRowsError, select
from whopays.runs import PATHS, Given, read_yaml

IS_ANSWER, NOT_ANSWER = "group is the answer", "group is not the answer"
NO_GROUPS = "no groups"
DEFAULTS = {
    "celeba": ("Blond_Hair", "gender"),
    "lfw": ("Wavy_Hair", "gender"),
    "utkface": ("race", "race"),
    "synthetic-faces": ("group", "group"),
}
"""Target and group that a data set has unless given; other data sets have one for both."""

ASKED_ELSE = {
    "setting": {"other target"},
    "task": {"two classes"},
    "group": {"plain, frequent", "marked, frequent"},
}
"""Values of columns in whose rows the answer is not the group: another attribute is asked for, or
the groups are digits with and without a mark."""

DRAWN = {"synthetic-faces", "parabola"}
"""Data that every seed draws anew: its samples are shared by no two seeds."""

ASSUMED = 0.25
"""Test samples for each training sample where a table does not have the sizes of both parts."""

OVERALL = {"overall_accuracy", "overall_change"}
"""Statistics of all samples together."""


def made_by(table: Path) -> dict[str, Any]:
    """Read how a table was made, its ``parameters`` and perhaps its ``grid``; empty if unknown."""
    # The table of a run has its parameters in run.json, a gathered one in the JSON of its name.
    run = table.suffix == ".parquet"
    beside = table.with_name("run.json") if run else table.parent / f"{table.stem}.json"
    return json.loads(beside.read_text(encoding="utf-8")) if beside.is_file() else {}


def earlier_design(root: Path, table: str) -> str:
    """Tell of runs of another design that a recorded table replaced, in the words of its grid."""
    grid = root / made_by(root / table).get("grid", "")
    return read_yaml(grid).get("earlier", "") if grid.is_file() else ""


def group_and_answer(statistic: Given, records: pd.DataFrame, given: Given) -> str:
    """Say whether the groups that a statistic compares are the classes that the network names.

    Where they are, a group that loses is an answer that is given less often, and not people who
    are served worse. It is computed from the parameters, so that no claim can leave it unsaid.

    Args:
        statistic: Statistic of a claim, with its arguments.
        records: Table that it is computed from.
        given: Parameters of the table.

    Returns:
        `IS_ANSWER`, also where this holds in some of several settings; `NOT_ANSWER`; or
        `NO_GROUPS`, for a quantity of all samples together and where there are no data, as in
        theory.
    """
    named = {statistic.get(key) for key in ("name", "of", "statistic")}
    ungrouped = "group" not in records and "column" in statistic
    if not given or "data" not in records or named & OVERALL or ungrouped:
        return NO_GROUPS
    for column, values in ASKED_ELSE.items():
        sides = [(statistic.get(side) or {}).get(column) for side in ("where", "each", "against")]
        chosen = {*pd.Series(sides).explode().dropna()}
        if chosen and chosen <= values:
            return NOT_ANSWER
    target, group = DEFAULTS.get(records["data"].dropna().iloc[0], ("", ""))
    same = (given.get("target") or target) == (given.get("group") or group)
    # A notebook with one parameter for both, or with settings of its own, has no target.
    return IS_ANSWER if same or "target" not in given else NOT_ANSWER


def share_of_test(statistic: Given, records: pd.DataFrame) -> tuple[float, bool]:
    """Count the test samples for each training sample, where seeds split the same data.

    Args:
        statistic: Statistic of a claim, with its arguments, which select the rows.
        records: Table that it is computed from.

    Returns:
        The ratio, 0 where every seed draws data of its own or there are none; and whether it is
        `ASSUMED`.
    """
    chosen = {
        column: wanted
        for column, wanted in (statistic.get("where") or {}).items()
        if column in records and column not in ("split", "stage", "level", "group")
    }
    rows = select(records, **chosen)
    if "data" not in rows or {*rows["data"].dropna().unique()} <= DRAWN:
        return 0.0, False
    try:
        train, test = (
            select(rows, stage="control", split=part)["size"].mean() for part in ("train", "test")
        )
    except (MissingRowsError, KeyError):
        return ASSUMED, True
    return test / train, False


def by_path(root: Path) -> dict[tuple[str, str, str], str]:
    """List the verdicts that depend on the numerical path, by table, claim and reading.

    The same trainings, one at a time, five or ten at once, differ in how sums are rounded; weights
    of few bits found better scales between the two recordings. A verdict that such a thing turns
    says nothing about the claim, in whichever way its table was recorded.
    """
    found = {}
    for path, ways in PATHS.items():
        rows = pd.read_csv(root / path).to_dict("records") if (root / path).is_file() else []
        for row in rows:
            said = [f"{row[column]} with {way}" for column, way in ways.items()]
            if len({row[column] for column in ways}) > 1:
                key = (row["table"], row["claim"], row["reading"])
                found[key] = f"depends on the numerical path: {', '.join(said)}"
    return found
