"""Grids of runs: their points, and the tables gathered from them.

A grid file (YAML) lists ``runs``. Each entry has a ``notebook``, the ``table`` that is gathered (or one ``table``
beside ``runs`` for all), and any of ``file`` (a parameter file), ``parameters`` and ``grid``: a list of values for each
name, of which every combination is a run. Paths start from the root of the project::

    table: results/pruning/matthew-effect-models.csv
    runs:
      - notebook: notebooks/pruning/matthew-effect.ipynb
        parameters: {seeds: 10}
        grid: {model: [cnn, tiny-resnet], epochs: [20, 40]}

The Snakefile executes the points.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlib.environment import written
from fairlib.evidence.runs import RECORDS, ParameterError, RunError, project_root, read_run, read_yaml, resolve

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Point:
    """One run of a grid.

    Attributes:
        id: Its name, which depends on its parameters only.
        notebook: What is executed.
        parameters: What is given; the others keep their defaults.
        varied: The names of those that the grid varies.
        table: Where its records are gathered.
        out: The folder of the run.
    """

    id: str
    notebook: Path
    parameters: Mapping[str, Any]
    varied: tuple[str, ...]
    table: Path
    out: Path


def expand(grid: str | Path) -> list[Point]:
    """The runs of a grid file, in its order.

    Raises:
        ParameterError: If it is not a grid, asks for a run twice, or a parameter does not fit its notebook.
    """
    content = read_yaml(grid)
    _check(grid, content, {"runs": list, "table": str}, needed={"runs"})
    shared = {name: content[name] for name in content if name == "table"}
    points = [point for entry in content["runs"] for point in _points(Path(grid), entry, shared)]
    seen = set()
    for point in points:
        if point.id in seen:
            raise ParameterError(f"{grid}: asks twice for {point.id}")
        seen.add(point.id)
    return points


def _points(grid: Path, entry: Mapping, shared: Mapping) -> Iterator[Point]:
    kinds = {"notebook": str, "table": str, "file": str, "parameters": dict, "grid": dict}
    _check(grid, entry, kinds, needed={"notebook", "table"} - set(shared))
    entry = {"parameters": {}, "grid": {}} | shared | entry
    axes = entry["grid"]
    _check(grid, axes, dict.fromkeys(axes, list), needed=set(axes))
    root = Path(os.path.relpath(project_root(grid)))
    notebook, table = root / entry["notebook"], root / entry["table"]
    fixed = (read_yaml(root / entry["file"]) if "file" in entry else {}) | entry["parameters"]
    name = "-".join(Path(os.path.relpath(grid, root)).with_suffix("").parts).removeprefix("params-")
    for values in itertools.product(*axes.values()):
        given = fixed | dict(zip(axes, values, strict=True))
        id = run_name(notebook, {axis: given[axis] for axis in axes}, resolve(notebook, given))
        yield Point(id, notebook, given, tuple(axes), table, root / "_build" / "sweeps" / name / id)


def run_name(notebook: Path, varied: Mapping[str, Any], parameters: Mapping[str, Any]) -> str:
    """Readable, and by a digest of all parameters unique."""
    label = "-".join([notebook.stem, *(f"{name}={value}" for name, value in varied.items())])
    digest = hashlib.sha256(json.dumps(parameters, sort_keys=True).encode()).hexdigest()
    return f"{re.sub(r'[^0-9A-Za-z_.=-]+', '_', label)[:100]}-{digest[:8]}"


def _check(grid: str | Path, found: object, kinds: Mapping[str, type], needed: set[str]) -> None:
    if not isinstance(found, dict) or set(found) - set(kinds) or needed - set(found):
        raise ParameterError(
            f"{grid}: expected {', '.join(kinds)} (needed: {', '.join(sorted(needed))}), got {found!r}"
        )
    for name, value in found.items():
        if not isinstance(value, kinds[name]) or (name in needed and not value):
            raise ParameterError(f"{grid}: {name} must be a {kinds[name].__name__} that is not empty, got {value!r}")


def gather(grid: str | Path) -> list[Path]:
    """Write the tables of a grid, CSV with six significant digits, each with its provenance in a JSON file beside it.

    A table has the rows of its runs in the order of the grid, with columns for the parameters that the grid varies
    where the records do not have them. Where the runs do not agree, the provenance is a list.

    Returns:
        The paths of the tables.

    Raises:
        RunError: If a run is not finished or has recorded nothing.
    """
    points = expand(grid)
    tables = list(dict.fromkeys(point.table for point in points))
    for table in tables:
        _gather(grid, [point for point in points if point.table == table], table)
    return tables


def _gather(grid: str | Path, points: Sequence[Point], table: Path) -> None:
    runs = [read_run(point.out) for point in points]
    lacking = [p.id for p, run in zip(points, runs, strict=True) if not run or RECORDS not in run["files"]]
    if lacking:
        raise RunError(
            f"{len(lacking)} of {len(points)} runs for {table} are not finished or recorded nothing, as {lacking[0]}"
        )
    table.parent.mkdir(parents=True, exist_ok=True)
    with written(table) as new_table, written(table.with_suffix(".json")) as new_provenance:
        new_table.write_text(tabulate(points), encoding="utf-8", newline="\n")
        provenance = {
            "grid": Path(os.path.relpath(grid, project_root(grid))).as_posix(),
            **_provenance(runs),
            "sha256": hashlib.sha256(new_table.read_bytes()).hexdigest(),
        }
        new_provenance.write_text(json.dumps(provenance, indent=1) + "\n", encoding="utf-8")


def tabulate(points: Iterable[Point]) -> str:
    """The records of finished runs as a table is stored: CSV with six significant digits."""
    import pandas as pd

    return pd.concat(map(_records, points)).to_csv(index=False, float_format="%.6g", lineterminator="\n")


def _records(point: Point) -> pd.DataFrame:
    import pandas as pd

    records = pd.read_parquet(point.out / RECORDS)
    new = {name: point.parameters[name] for name in point.varied if name not in records}
    return records.assign(**new)[[*new, *records]]


def _provenance(runs: Sequence[Mapping]) -> dict[str, object]:
    own = {"parameters", "started", "seconds", "files", "digest"}
    return {
        "runs": len(runs),
        "started": min(run["started"] for run in runs),
        "seconds": round(sum(run["seconds"] for run in runs), 1),
        "parameters": {
            name: one_or_all(run["parameters"].get(name) for run in runs) for run in runs for name in run["parameters"]
        },
        **{name: one_or_all(run[name] for run in runs) for name in runs[0] if name not in own},
    }


def one_or_all(values: Iterable) -> object:
    """The value that all have; else the list of the different ones, in their order."""
    different = []
    for value in values:
        if value not in different:
            different.append(value)
    return different[0] if len(different) == 1 else different
