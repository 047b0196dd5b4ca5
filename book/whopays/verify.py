"""Check recorded tables: run their first seeds again, and compare digit by digit.

Every combination that the grid varied is run; of runs that differ in ``first_seed`` alone, only the
first. Trained models are not taken from the cache, and a kernel gets as many threads as it had for
the recording. Finished runs of an earlier check are reused while their contents are the same.

Rows are matched by seed, varied parameters, group, level and columns of text. If these do not
identify them, up to three columns of numbers that hold the same values in both tables are added.
"""

import itertools
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pandas as pd

from whopays import claims, conditions, grids, runs
from whopays.runs import Given, ParameterError, RunError

TOLERANCE = 1e-5
"""Relative difference that rounding to the six stored digits can make: one in the last of them."""

# Limits PyTorch, and the oneDNN inside it, to the vector instructions that both kinds of CPU have.
_AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
# Clock times, and what is jackknifed over all seeds of a run and so differs when fewer are run.
_NOT_COUNTED = re.compile(r"seconds|^time_ratio$|^dual_share$|^hypervolume$")


def verify(table: str | Path, *, seeds: int = 1, avx2: bool = False) -> bool:
    """Run the first seeds of a recorded table again, and print what agrees.

    Args:
        table: CSV file in ``results/``, with its provenance in a JSON file beside it.
        seeds: Number of seeds for each combination of varied parameters, at most that of a recorded
            run.
        avx2: Compute as a CPU without AVX-512 does, for a table that was recorded on one: they
            round differently.

    Returns:
        True if the recorded rows and columns are there again, no row is new, numbers agree within
        `TOLERANCE` and no verdict changes. Clock times, and what is computed over all seeds at
        once, are printed and do not count.

    Raises:
        ValueError: If the table, its provenance, notebook or data do not exist, no grid recorded
            it, or a number is out of range.
        RuntimeError: If the notebook fails, or no columns identify the rows.
    """
    if seeds < 1:
        raise ParameterError(f"seeds must be at least 1, got {seeds}")
    table = Path(table)
    recorded = _provenance(table)
    print(
        f"{table}: recorded {recorded.get('started')} by {recorded['grid']} "
        f"at commit {_commit(recorded)}"
    )
    points = _points(table, recorded, seeds, "-avx2" if avx2 else "")
    threads = recorded.get("threads")
    # The number of threads and the choice of faster paths change the last digits, too.
    settings = {
        "OMP_NUM_THREADS": str(threads if isinstance(threads, int) else 1),
        "FAIRLIB_AUTO": str(int(recorded.get("automatic") is True)),
        **(_AVX2 if avx2 else {}),
    }
    with (
        tempfile.TemporaryDirectory() as cache,
        patch.dict(os.environ, settings, FAIRLIB_CACHE=cache),
    ):
        for point in points:
            _run(point)
    here = runs.read_run(points[0].out) or {}
    print(f"recorded with {', '.join(_environment(recorded))}")
    other = [fact for fact in _environment(here) if fact not in _environment(recorded)]
    print(f"here {', '.join(other) or 'the same'}, at commit {_commit(here)}")
    found = compare_tables(_read(table), _read(StringIO(grids.tabulate(points))), points[0].varied)
    verdicts = _verdicts(table, found.replaced)
    changed = verdicts[verdicts["recorded"] != verdicts["again"]]
    _print_comparison(found)
    print(f"verdicts: {len(verdicts)} claims name this table, {len(changed)} would change")
    for claim, verdict in changed.iterrows():
        print(f"  {claim}: {verdict['recorded']} -> {verdict['again']}")
    beyond = found.columns["relative"][found.columns["counts"]].max() > TOLERANCE
    agrees = not (found.problems or len(changed) or beyond)
    hint = "" if agrees else "; CPUs without AVX-512 round differently, try --avx2 (AVX2=1)"
    print(
        f"{table} {'agrees' if agrees else 'DOES NOT AGREE'} (relative tolerance "
        f"{TOLERANCE:g}){hint}"
    )
    return agrees


def _provenance(table: Path) -> dict[str, Any]:
    recorded = conditions.made_by(table) if table.is_file() and table.suffix == ".csv" else {}
    needed = ("grid", "notebook", "parameters", "points")
    lacking = ", ".join(name for name in needed if name not in recorded)
    if lacking or not isinstance(recorded["notebook"], str):
        raise ParameterError(
            f"table must be a CSV file in results/ that a grid recorded; beside {table} a JSON "
            f"file lacks {lacking or 'one notebook'}"
        )
    return recorded


def _commit(run: Given) -> str:
    return f"{run.get('commit')}{' with uncommitted changes' if run.get('dirty') else ''}"


def _points(table: Path, recorded: Given, seeds: int, suffix: str) -> list[grids.Point]:
    """List the runs to do, and print how the notebook's parameters differ from the recorded."""
    root = grids.near_root(table)
    notebook = root / recorded["notebook"]
    if not notebook.is_file():
        raise ParameterError(f"{table} was recorded by {notebook}, which no longer exists")
    known, fixed = runs.parameters(notebook), dict(recorded["parameters"])
    for name in [name for name in fixed if name not in known]:
        print(f"left out: {name} = {fixed.pop(name)!r}, which the notebook no longer has")
    lists = [name for name, value in fixed.items() if isinstance(value, list)]
    varied = tuple(name for name in fixed if name in lists or name == "first_seed")
    points: dict[tuple, grids.Point] = {}
    for values in recorded["points"]:
        given = fixed | {name: values[name] for name in lists}
        if "seeds" in given:
            given["seeds"] = min(seeds, given["seeds"])
        resolved = runs.resolve_parameters(notebook, given)
        id = grids.run_name(notebook, {name: given[name] for name in varied}, resolved)
        out = root / "_build" / "verify" / table.stem / (id + suffix)
        # Runs that differ in their seeds alone test the same: the first of them is enough.
        same = tuple(given[name] for name in varied if name != "first_seed")
        points.setdefault(same, grids.Point(id, notebook, given, varied, table, out))
    return list(points.values())


def _run(point: grids.Point) -> None:
    print(f"running {point.id} with seeds = {point.parameters.get('seeds')}", flush=True)
    try:
        if not runs.run_notebook(point.notebook, point.out, point.parameters, force=True):
            print("finished by an earlier check, and unchanged since")
    except RunError as error:
        # Missing data are no failure of the check: the command ends with 2.
        absent = getattr(error.__cause__, "ename", "") == "FileNotFoundError"
        raise (ParameterError if absent else RunError)(str(error)) from None


def _environment(run: Given) -> list[str]:
    versions = run.get("versions")
    # The versions are a list if the runs of the table differed in them.
    named = versions if isinstance(versions, dict) else {"versions": versions}
    facts = {name: run.get(name) for name in ("device", "cpu", "cpu_capability")} | named
    return [f"{name} {value}" for name, value in facts.items() if value]


def _read(table: Path | StringIO) -> pd.DataFrame:
    """Read every cell as a text, numbers in one form: 1 for 1.0, as pandas may have stored them."""
    cells = pd.read_csv(table, dtype=str, keep_default_na=False)
    numbers = cells.apply(pd.to_numeric, errors="coerce")
    return cells.where(numbers.isna(), numbers.map("{:.15g}".format))


class Comparison(NamedTuple):
    """A recorded table compared with its first seeds, run again.

    Attributes:
        keys: Columns by which rows are matched.
        columns: Indexed by column: ``rows``, ``agree`` (rows with the same stored digits),
            ``relative`` (largest difference; infinite where only one is a number), ``where`` (keys
            of the row that differs most) and ``counts`` (False for clock times and for what is
            computed over all seeds at once).
        problems: Rows and columns that only one of the tables has.
        replaced: The recorded table with the new numbers in it, but for those that do not count.
    """

    keys: list[str]
    columns: pd.DataFrame
    problems: list[str]
    replaced: pd.DataFrame


def compare_tables(
    recorded: pd.DataFrame, fresh: pd.DataFrame, varied: Sequence[str]
) -> Comparison:
    """Compare rows that were run again with the recorded rows of the same seeds.

    Args:
        recorded: Recorded table; its cells are texts.
        fresh: Rows that were run again; their cells are texts.
        varied: Names of the parameters that varied; those that are columns identify rows, with the
            seed.

    Raises:
        RuntimeError: If no columns identify the rows.
    """
    scope = [
        name for name in dict.fromkeys(["seed", *varied]) if name in recorded and name in fresh
    ]
    old = recorded[_rows(recorded, scope).isin(_rows(fresh, scope))] if scope else recorded
    if old.empty:
        raise RunError(
            f"no recorded row has the {', '.join(scope)} of the rows that were run again"
        )
    keys, others = _keys(old, fresh, scope), recorded.drop(old.index)
    old, new = (part.set_axis(_rows(part, keys)) for part in (old, fresh))
    both = old.index.intersection(new.index)
    lost, added = old.index.difference(both), new.index.difference(both)
    shared = [name for name in old if name in new and name not in keys]
    rows = [_difference(old.loc[both, name], new.loc[both, name]) for name in shared]
    columns = pd.DataFrame(rows, shared, ["rows", "agree", "relative", "where"])
    columns["counts"] = [not _NOT_COUNTED.search(name) for name in shared]
    # Some old tables name the run of each row.
    gone = [name for name in old if name not in new and name != "run"]
    problems = [f"column {name} no longer exists" for name in gone]
    for rows, what in ((lost, "recorded only"), (added, "new")):
        if len(rows):
            problems += [f"{len(rows)} rows are {what}, the first: {_label(rows[0], keys)}"]
    # Only what counts: a clock that differs must not change a verdict.
    again = old.loc[both].assign(**new.loc[both, list(columns.index[columns["counts"]])])
    replaced = pd.concat([others, again, new.loc[added]], ignore_index=True)
    return Comparison(keys, columns, problems, replaced[list(recorded)])


def _rows(table: pd.DataFrame, names: Sequence[str]) -> pd.MultiIndex:
    return pd.MultiIndex.from_frame(table[list(names)])


def _keys(old: pd.DataFrame, new: pd.DataFrame, scope: list[str]) -> list[str]:
    """Choose the columns that identify the rows in both tables."""
    texts, equal, changed = list[str](), list[str](), list[str]()
    for name in old.columns.difference(scope, sort=False):
        if name not in new or _NOT_COUNTED.search(name):
            continue
        filled = old[name][old[name] != ""]
        numbers = len(filled) and pd.to_numeric(filled, errors="coerce").notna().all()
        if name in ("group", "level") or not numbers:
            texts += [name] if set(old[name]) & set(new[name]) else []
        else:
            (equal if set(old[name]) == set(new[name]) else changed).append(name)
    # Numbers are measured, as a rule, and then no key. But some tables tell rows apart only by a
    # number, such as a step. It has the same values in both tables, most of them repeated.
    equal.sort(key=lambda name: old[name].nunique())
    certain = scope + texts
    for size in range(4):
        for further in itertools.combinations(equal, size):
            keys = [*certain, *further]
            if keys and not old.duplicated(keys).any() and not new.duplicated(keys).any():
                return keys
    raise RunError(
        f"{', '.join(certain)} do not identify the rows; "
        f"columns whose values changed: {', '.join(changed) or 'none'}"
    )


def _difference(old: pd.Series, new: pd.Series) -> tuple[Any, ...]:
    x, y = (pd.to_numeric(column, errors="coerce") for column in (old, new))
    same = old == new
    # Where only one of the two is a number, the difference is infinite.
    relative = ((x - y).abs() / np.maximum(x.abs(), y.abs())).mask(same, 0).fillna(np.inf)
    where = "" if same.all() else _label(relative.idxmax(), old.index.names)
    return len(same), same.sum(), relative.max(), where


def _label(row: Sequence[str], keys: Sequence[str]) -> str:
    return " ".join(map("{}={}".format, keys, row))


def _verdicts(table: Path, replaced: pd.DataFrame) -> pd.DataFrame:
    """Judge the claims that name the table: as recorded, and with the new numbers."""
    root = runs.project_root(table)
    path, name = root / "book" / "claims.yml", table.resolve().relative_to(root).as_posix()
    asked = []
    for claim in claims.read_claims(path) if path.is_file() else []:
        for reading, read in claim.readings.items():
            if name in read.tables.values():
                id = claim.id if reading == "printed" else f"{claim.id}-{reading}"
                asked.append(replace(read, id=id, notebook="", repaired=None))
    again = StringIO(replaced.to_csv(index=False))
    tables = {"recorded": pd.read_csv(table), "again": pd.read_csv(again)}
    verdicts = {key: claims.on_table(asked, rows, "")["verdict"] for key, rows in tables.items()}
    return pd.DataFrame(verdicts)


def _print_comparison(found: Comparison) -> None:
    print(f"rows matched by {', '.join(found.keys)}")
    for name, row in found.columns.iterrows():
        text = f"  {name}: {row['agree']} of {row['rows']} agree"
        if row["where"]:
            text += f", largest relative difference {row['relative']:.2g} at {row['where']}"
        print(text + ("" if row["counts"] else " (does not count)"))
    for problem in found.problems:
        print(problem)
