"""Check recorded tables: run their first seeds again with the recorded parameters, and compare
digit by digit.

Every combination that the grid varied is run; of runs that differ in ``first_seed`` alone, only the
first. Trained models are not taken from the cache, and a kernel gets as many threads as it had for
the recording. Finished runs of an earlier check are reused while their contents are the same.

Rows are matched by seed, varied parameters, group, level and columns of text. If these do not
identify them, up to three columns of numbers that hold the same values in both tables are added.
"""

import itertools
import json
import operator
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from whopays import claims, grids, runs
from whopays.runs import ParameterError, RunError

# Six digits are stored: rounding alone can make nearly equal numbers differ by one in the last.
TOLERANCE = 1e-5

_AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
}  # Read by PyTorch and by the oneDNN inside it.
# Clock times, and what is jackknifed over all seeds of a run and so differs when fewer are run.
_NOT_COUNTED = re.compile(r"seconds|^time_ratio$|^dual_share$|^hypervolume$")


def verify(
    table: str | Path, *, seeds: int = 1, tolerance: float = TOLERANCE, avx2: bool = False
) -> bool:
    """Run the first seeds of a recorded table again, and print what agrees.

    Args:
        table: CSV file in ``results/``, with its provenance in a JSON file beside it.
        seeds: Number of seeds for each combination of varied parameters, at most that of a recorded
            run.
        tolerance: Largest relative difference that counts as agreement.
        avx2: Compute as a CPU without AVX-512 does, for a table that was recorded on one: they
            round differently.

    Returns:
        Whether the recorded rows and columns are there again, no row is new, numbers agree within
        the tolerance and no verdict changes. Clock times, and what is computed over all seeds at
        once, are printed and do not count.

    Raises:
        ValueError: If the table, its provenance, notebook or data do not exist, no grid recorded
            it, or a number is out of range.
        RuntimeError: If the notebook fails, or no columns identify the rows.
    """
    if seeds < 1 or not tolerance >= 0:
        raise ParameterError(
            f"seeds must be at least 1 and tolerance at least 0, got {seeds} and {tolerance}"
        )
    table = Path(table)
    recorded = _provenance(table)
    print(
        f"{table}: recorded {recorded.get('started')} by {recorded['grid']} at commit {_commit(recorded)}"
    )
    points = _points(table, recorded, seeds, "-avx2" if avx2 else "")
    threads = recorded.get("threads")
    settings = {"OMP_NUM_THREADS": str(threads if isinstance(threads, int) else 1)} | (
        _AVX2 if avx2 else {}
    )
    settings["FAIRLIB_AUTO"] = str(int(recorded.get("automatic") is True))
    _execute(points, settings)
    _print_environments(recorded, runs.read_run(points[0].out) or {})
    found = compare_tables(_read(table), _read(StringIO(grids.tabulate(points))), points[0].varied)
    verdicts = _verdicts(table, found.replaced)
    changed = verdicts[verdicts["recorded"] != verdicts["again"]]
    _print_comparison(found)
    print(f"verdicts: {len(verdicts)} claims name this table, {len(changed)} would change")
    for claim, verdict in changed.iterrows():
        print(f"  {claim}: {verdict['recorded']} -> {verdict['again']}")
    beyond = found.columns["relative"][found.columns["counts"]].max() > tolerance
    agrees = not (found.problems or len(changed) or beyond)
    hint = "" if agrees or avx2 else "; CPUs without AVX-512 round differently, try --avx2 (AVX2=1)"
    print(
        f"{table} {'agrees' if agrees else 'DOES NOT AGREE'} (relative tolerance {tolerance:g}){hint}"
    )
    return agrees


def _provenance(table: Path) -> dict[str, Any]:
    beside = table.with_suffix(".json")
    if table.suffix != ".csv" or not table.is_file():
        raise ParameterError(
            f"table must be a CSV file in results/, there is no recorded table {table}"
        )
    if not beside.is_file():
        raise ParameterError(
            f"{table} has no provenance: without {beside.name} its parameters are unknown"
        )
    recorded = json.loads(beside.read_text(encoding="utf-8"))
    lacking = ", ".join(
        name for name in ("grid", "notebook", "parameters", "runs") if name not in recorded
    )
    if lacking or not isinstance(recorded["notebook"], str):
        lacking = lacking or "one notebook"
        raise ParameterError(
            f"{table} cannot be run again, since no grid recorded it: {beside.name} lacks {lacking}"
        )
    return recorded


def _commit(run: Mapping[str, Any]) -> str:
    return f"{run.get('commit')}{' with uncommitted changes' if run.get('dirty') else ''}"


def _points(table: Path, recorded: Mapping[str, Any], seeds: int, suffix: str) -> list[grids.Point]:
    """The runs to do. Print which recorded parameters no longer exist, and which value those have
    that are new.
    """
    root = Path(os.path.relpath(runs.project_root(table)))
    notebook = root / recorded["notebook"]
    if not notebook.is_file():
        raise ParameterError(f"{table} was recorded by {notebook}, which no longer exists")
    known, fixed = runs.parameters(notebook), dict(recorded["parameters"])
    for name in [name for name in fixed if name not in known]:
        print(f"left out: {name} = {fixed.pop(name)!r}, which the notebook no longer has")
    for name in [name for name in known if name not in fixed]:
        print(
            f"not recorded, so the default of the notebook applies: {name} = {known[name].default!r}"
        )
    lists = {
        name: value for name, value in recorded["parameters"].items() if isinstance(value, list)
    }
    varied = tuple(name for name in fixed if name in lists or name == "first_seed")
    points: dict[tuple, grids.Point] = {}
    for values in _varied(table, root, recorded, lists):
        given = fixed | {name: value for name, value in values.items() if name in fixed}
        if "seeds" in given:
            given["seeds"] = min(seeds, given["seeds"])
        id = grids.run_name(
            notebook,
            {name: given[name] for name in varied},
            runs.resolve_parameters(notebook, given),
        )
        point = grids.Point(
            id,
            notebook,
            given,
            varied,
            table,
            root / "_build" / "verify" / table.stem / (id + suffix),
        )
        points.setdefault(tuple(given[name] for name in varied if name != "first_seed"), point)
    return list(points.values())


def _varied(
    table: Path, root: Path, recorded: Mapping[str, Any], lists: Mapping[str, list[Any]]
) -> list[dict]:
    """The values that varied, run by run: all combinations if there were as many runs, else those
    of the grid.
    """
    combined = [
        dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())
    ]
    if len(combined) == recorded["runs"]:
        return combined
    for grid in [root / recorded["grid"], *sorted(root.glob("params/**/*.yml"))]:
        if grid.is_file() and table.name in grid.read_text(encoding="utf-8"):
            points = [
                point for point in grids.expand(grid) if point.table.resolve() == table.resolve()
            ]
            resolved = [
                runs.resolve_parameters(point.notebook, point.parameters) for point in points
            ]
            if {
                name: grids.one_or_all(values.get(name) for values in resolved) for name in lists
            } == lists:
                return [{name: values[name] for name in lists} for values in resolved]
    raise ParameterError(
        f"{table}: no grid yields its {recorded['runs']} runs any more, which varied {lists}"
    )


def _execute(points: Sequence[grids.Point], settings: Mapping[str, str]) -> None:
    with (
        tempfile.TemporaryDirectory() as cache,
        runs.variables({**settings, "FAIRLIB_CACHE": cache}),
    ):
        for point in points:
            print(f"running {point.id} with seeds = {point.parameters.get('seeds')}", flush=True)
            try:
                if not runs.run_notebook(point.notebook, point.out, point.parameters, force=True):
                    print("finished by an earlier check, and unchanged since")
            except RunError as error:
                absent = getattr(error.__cause__, "ename", "") == "FileNotFoundError"
                raise (ParameterError if absent else RunError)(str(error)) from None


def _print_environments(recorded: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    print(f"recorded with {', '.join(_environment(recorded))}")
    other = [fact for fact in _environment(here) if fact not in _environment(recorded)]
    print(f"here {', '.join(other) or 'the same'}, at commit {_commit(here)}")
    then, now = recorded.get("cpu_capability"), here.get("cpu_capability")
    if then and now and then != now:
        print(
            f"recorded with the vector instructions {then}, run again with {now}, which round differently"
        )


def _environment(run: Mapping[str, Any]) -> list[str]:
    versions = run.get("versions")
    named = (
        versions if isinstance(versions, dict) else {"versions": versions}
    )  # A list where the runs differed.
    return [
        f"{name} {value}"
        for name, value in {"device": run.get("device"), "CPU": run.get("cpu"), **named}.items()
    ]


def _read(table: Path | StringIO) -> pd.DataFrame:
    """Read every cell as a text; a number gives the same text whether it was stored as an integer
    or as a float.
    """
    cells = pd.read_csv(table, dtype=str, keep_default_na=False)
    numbers = cells.apply(pd.to_numeric, errors="coerce")
    return cells.where(numbers.isna(), numbers.map("{:.15g}".format))


class Comparison(NamedTuple):
    """A recorded table compared with its first seeds, run again.

    Attributes:
        keys: Columns by which rows are matched.
        columns: Indexed by column: ``rows``, ``agree`` (rows with the same stored digits),
            ``absolute`` and ``relative`` (largest differences; infinite where only one is a
            number), ``where`` (keys of the row that differs most) and ``counts`` (False for clock
            times and for what is computed over all seeds at once).
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
    keys = _keys(old, fresh, scope)
    place = pd.Series(old.index, index=_rows(old, keys))
    old, new = old.set_axis(place.index), fresh.set_axis(_rows(fresh, keys))
    both = old.index.intersection(new.index)
    lost, added = old.index.difference(both), new.index.difference(both)
    shared = [name for name in old if name in new and name not in keys]
    rows = [_difference(old.loc[both, name], new.loc[both, name]) for name in shared]
    columns = pd.DataFrame(rows, shared, ["rows", "agree", "absolute", "relative", "where"])
    columns["counts"] = [not _NOT_COUNTED.search(name) for name in shared]
    # Old tables name the run of each row.
    problems = [
        f"column {name} no longer exists" for name in old if name not in new and name != "run"
    ]
    for rows, what in ((lost, "recorded only"), (added, "new")):
        problems += (
            [f"{len(rows)} rows are {what}, the first: {_label(rows[0], rows)}"]
            if len(rows)
            else []
        )
    replaced, counted = recorded.drop(place[lost]), list(columns.index[columns["counts"]])
    replaced.loc[place[both], counted] = new.loc[both, counted].to_numpy()
    return Comparison(
        keys,
        columns,
        problems,
        pd.concat([replaced, new.loc[added].reindex(columns=list(recorded))]),
    )


def _rows(table: pd.DataFrame, names: Sequence[str]) -> pd.MultiIndex:
    return pd.MultiIndex.from_frame(table[list(names)])


def _keys(old: pd.DataFrame, new: pd.DataFrame, scope: list[str]) -> list[str]:
    values = {
        name: (set(old[name]), set(new[name]))
        for name in old
        if name in new and not _NOT_COUNTED.search(name)
    }
    filled = {
        name: old[name][old[name] != ""]
        for name in values
        if name not in (*scope, "group", "level")
    }
    # Numbers, and nothing but numbers and empty cells.
    numbers = [
        name
        for name, own in filled.items()
        if len(own) and pd.to_numeric(own, errors="coerce").notna().all()
    ]
    certain = scope + [
        name
        for name in values
        if name not in (*scope, *numbers) and set.intersection(*values[name])
    ]
    equal = sorted(
        (name for name in numbers if operator.eq(*values[name])),
        key=lambda name: old[name].nunique(),
    )
    for size in range(4):
        for further in itertools.combinations(equal, size):
            keys = [*certain, *further]
            if keys and not old.duplicated(keys).any() and not new.duplicated(keys).any():
                return keys
    other = ", ".join(name for name in numbers if name not in equal)
    raise RunError(
        f"{', '.join(certain)} do not identify the rows; columns whose values changed: {other or 'none'}"
    )


def _difference(old: pd.Series, new: pd.Series) -> tuple[Any, ...]:
    x, y = (pd.to_numeric(column, errors="coerce") for column in (old, new))
    same = old == new
    absolute = (x - y).abs().mask(same, 0).fillna(np.inf)
    relative = (absolute / np.maximum(x.abs(), y.abs())).mask(same, 0).fillna(np.inf)
    where = "" if same.all() else _label(relative.idxmax(), old.index)
    return len(same), same.sum(), absolute.max(), relative.max(), where


def _label(row: Sequence[str], among: pd.MultiIndex) -> str:
    """The keys of a row, without those that all rows share."""
    named = zip(among.names, row, among.levels, strict=True)
    return (
        " ".join(f"{name}={value}" for name, value, level in named if len(level) > 1)
        or "the only row"
    )


def _verdicts(table: Path, replaced: pd.DataFrame) -> pd.DataFrame:
    """Verdicts of the claims that name the table: as recorded, and with the new numbers."""
    root = runs.project_root(table)
    path, name = root / "book" / "claims.yml", table.resolve().relative_to(root).as_posix()
    known = claims.read_claims(path) if path.is_file() else []
    asked = [
        replace(
            read,
            id=claim.id if reading == "printed" else f"{claim.id}-{reading}",
            notebook="",
            repaired=None,
        )
        for claim in known
        for reading, read in claim.readings.items()
        if name in read.tables.values()
    ]
    both = {"recorded": table, "again": StringIO(replaced.to_csv(index=False))}
    return pd.DataFrame(
        {
            name: claims.on_table(asked, pd.read_csv(text), "")["verdict"]
            for name, text in both.items()
        }
    )


def _print_comparison(found: Comparison) -> None:
    print(f"rows matched by {', '.join(found.keys)}")
    for name, row in found.columns.iterrows():
        worst = f", largest difference {row['absolute']:.2g}, relative {row['relative']:.2g} at {row['where']}"
        counts = "" if row["counts"] else " (does not count)"
        print(
            f"  {name}: {row['agree']} of {row['rows']} agree{worst if row['where'] else ''}{counts}"
        )
    for problem in found.problems:
        print(problem)
