"""Grids of runs: their points, and the table gathered from them.

A grid file (YAML) has the ``table`` that is gathered and a list of ``runs``; a text ``earlier``
tells of runs of another design that these replaced, and what they said (shown in the ledger). Each
entry has a ``notebook``, and may have ``parameters`` and ``grid``: a list of values for each name,
of which every combination is a run. Paths start from the root of the project::

    table: results/pruning/matthew-effect-models.csv
    runs:
      - notebook: notebooks/pruning/matthew-effect.ipynb
        parameters: {seeds: 10}
        grid: {model: [cnn, tiny-resnet], epochs: [20, 40]}

The Snakefile executes the points.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlib.environment import written
from whopays import runs
from whopays.runs import OWN_TABLES, RECORDS, Given, ParameterError, RunError, read_yaml

UNFINISHED = "not finished, or without records"


@dataclass(frozen=True)
class Point:
    """One run of a grid.

    Attributes:
        id: Name of the run, which depends on its parameters only.
        notebook: Path of the notebook.
        parameters: Values of parameters; the others keep their defaults.
        varied: Names of the parameters that the grid varies.
        table: Path of the table in which the records are gathered.
        out: Folder of the run.
    """

    id: str
    notebook: Path
    parameters: Given
    varied: tuple[str, ...]
    table: Path
    out: Path

    @functools.cached_property
    def values(self) -> dict[str, Any]:
        """Values of all parameters of the notebook."""
        return runs.resolve_parameters(self.notebook, self.parameters)


def expand(grid: str | Path) -> list[Point]:
    """List the runs of a grid file, in its order.

    Raises:
        ParameterError: If the file is not a grid or has a duplicate run, or a parameter does not
            fit its notebook.
    """
    content = read_yaml(grid)
    _check(grid, content, {"runs": list, "table": str, "earlier": str}, {"runs", "table"})
    points: dict[str, Point] = {}
    for entry in content["runs"]:
        for point in _points(Path(grid), entry, content["table"]):
            if point.id in points:
                raise ParameterError(f"{grid}: duplicate run {point.id}")
            points[point.id] = point
    return list(points.values())


def _points(grid: Path, entry: Given, table: str) -> Iterator[Point]:
    _check(grid, entry, {"notebook": str, "parameters": dict, "grid": dict}, {"notebook"})
    axes = entry.get("grid", {})
    _check(grid, axes, dict.fromkeys(axes, list), set(axes))
    # Relative to the working directory, so that messages and the names of jobs are short.
    root = near_root(grid)
    notebook = root / entry["notebook"]
    for values in itertools.product(*axes.values()):
        varied = dict(zip(axes, values, strict=True))
        given = entry.get("parameters", {}) | varied
        id = run_name(notebook, varied, runs.resolve_parameters(notebook, given))
        yield Point(id, notebook, given, tuple(axes), root / table, runs_folder(grid) / id)


def near_root(path: str | Path) -> Path:
    """Return the root of a file's project, relative to the working directory."""
    return Path(os.path.relpath(runs.project_root(path)))


def runs_folder(grid: str | Path) -> Path:
    """Name the folder of a grid's runs, which need not exist."""
    root = near_root(grid)
    name = "-".join(Path(os.path.relpath(grid, root)).with_suffix("").parts).removeprefix("params-")
    return root / "_build" / "sweeps" / name


def command(point: Point) -> list[str]:
    """Return the words after ``whopays`` that execute a run."""
    given = [word for name, value in point.parameters.items() for word in ("-p", name, str(value))]
    return ["run", str(point.notebook), *given, "-o", str(point.out)]


def run_name(notebook: Path, varied: Given, parameters: Given) -> str:
    """Name a run by its notebook and varied parameters, and by a digest of all parameters."""
    label = "-".join([notebook.stem, *(f"{name}={value}" for name, value in varied.items())])
    return f"{re.sub(r'[^0-9A-Za-z_.=-]+', '_', label)[:100]}-{runs.digest_values(parameters)[:8]}"


def _check(grid: str | Path, found: Any, kinds: Mapping[str, type], needed: set[str]) -> None:
    if not isinstance(found, dict) or set(found) - set(kinds) or needed - set(found):
        known = f"{', '.join(kinds)} (needed: {', '.join(sorted(needed))})"
        raise ParameterError(f"{grid}: expected {known}, got {found!r}")
    for name, value in found.items():
        if not isinstance(value, kinds[name]) or (name in needed and not value):
            raise ParameterError(
                f"{grid}: {name} must be a non-empty {kinds[name].__name__}, got {value!r}"
            )


def unfit(points: Iterable[Point]) -> dict[str, str]:
    """Say by id why runs cannot be gathered.

    The reason is :data:`UNFINISHED`, or which contents have changed since.

    The tables that the notebook itself recorded may change (:func:`whopays.runs.contents`).
    """
    # Cached by notebook: contents reads all of fairlib and whopays.
    now = functools.cache(lambda notebook: runs.contents(notebook, {}))
    found = {}
    for point in points:
        wanted = now(point.notebook) | {"parameters": runs.digest_values(point.values)}
        run = runs.read_run(point.out)
        if not run or RECORDS not in run["files"]:
            found[point.id] = UNFINISHED
            continue
        changed = [name for name in runs.changed_contents(run, wanted) if name != OWN_TABLES]
        if changed:
            found[point.id] = f"finished with other contents: {', '.join(changed)}"
    return found


def plan(grid: str | Path) -> dict[str, list[Point]]:
    """Tell how far the runs of a grid are.

    Returns:
        By state the runs: ``done``; ``stale``, finished with other contents; ``failed``;
        ``missing``.

    Raises:
        ParameterError: As :func:`expand` does.
    """
    points = expand(grid)
    why = unfit(points)
    found: dict[str, list[Point]] = {"done": [], "stale": [], "failed": [], "missing": []}
    for point in points:
        state = "stale" if point.id in why else "done"
        if why.get(point.id) == UNFINISHED:
            has_failed = (point.out.parent / "failed" / f"{point.id}.ipynb").exists()
            state = "failed" if has_failed else "missing"
        found[state].append(point)
    return found


def refusal(grid: str | Path, found: Mapping[str, str]) -> str:
    """Say which runs of a grid cannot be gathered, why (:func:`unfit`), and what to do."""
    named = "; ".join([f"{id} ({why})" for id, why in found.items()][:5])
    return (
        f"{len(found)} of {len(expand(grid))} runs of {grid} cannot be gathered: {named}"
        f"{'; ...' if len(found) > 5 else ''}. 'make sweep GRID={grid}' runs what is not finished, "
        "with FORCE=1 also what has other contents"
    )


def gather(grid: str | Path) -> Path:
    """Write the table of a grid (CSV), with its provenance in a JSON file beside it.

    It has the rows of its runs in the order of the grid, and a column for each parameter that
    the grid varies, unless the records have one. Provenance in which the runs differ is a list.

    Returns:
        The path of the table.

    Raises:
        RunError: If a run is not finished, has recorded nothing, or was made by other contents than
            the current ones (:func:`unfit`): one table has the records of one experiment.
    """
    points = expand(grid)
    if found := unfit(points):
        raise RunError(refusal(grid, found))
    table = points[0].table
    done = [run for point in points if (run := runs.read_run(point.out))]
    table.parent.mkdir(parents=True, exist_ok=True)
    with written(table) as new_table, written(table.with_suffix(".json")) as new_provenance:
        new_table.write_text(tabulate(points), encoding="utf-8", newline="\n")
        provenance = {
            "grid": Path(os.path.relpath(grid, runs.project_root(grid))).as_posix(),
            **_provenance(done),
            "sha256": hashlib.sha256(new_table.read_bytes()).hexdigest(),
        }
        new_provenance.write_text(json.dumps(provenance, indent=1) + "\n", encoding="utf-8")
    return table


def tabulate(points: Iterable[Point]) -> str:
    """Format the records of finished runs as a table is stored: CSV with six significant digits."""
    import pandas as pd

    parts = []
    for point in points:
        records = pd.read_parquet(point.out / RECORDS)
        new = {name: point.parameters[name] for name in point.varied if name not in records}
        # The varied parameters first, as they tell the rows of the runs apart.
        parts.append(records.assign(**new)[[*new, *records]])
    return pd.concat(parts).to_csv(index=False, float_format="%.6g", lineterminator="\n")


def _provenance(found: Sequence[Given]) -> dict[str, Any]:
    # The files of a run say nothing of the table, and its clock and counts are added up.
    own = {"parameters", "started", "seconds", "trainings", "files", "checksum"}
    counts = [run["trainings"] for run in found if "trainings" in run]
    parameters = _common([run["parameters"] for run in found])
    lists = [name for name, value in parameters.items() if isinstance(value, list)]
    return {
        "runs": len(found),
        "started": min(run["started"] for run in found),
        "seconds": round(sum(run["seconds"] for run in found), 1),
        "parameters": parameters,
        "points": [{name: run["parameters"][name] for name in lists} for run in found],
        "trainings": {way: sum(count[way] for count in counts) for way in ("at once", "alone")},
        **{name: value for name, value in _common(found).items() if name not in own},
    }


def _common(found: Sequence[Given]) -> dict[str, Any]:
    """Map each name to the value that all runs share, or to the list of distinct values."""
    return {name: one_or_all(run.get(name) for run in found) for run in found for name in run}


def one_or_all(values: Iterable[Any]) -> Any:
    """Return the value that all share; else the list of distinct values, in their order."""
    different: list[Any] = []
    for value in values:
        if value not in different:
            different.append(value)
    return different[0] if len(different) == 1 else different
