"""The command ``whopays plan``: how far a grid is, how long the rest takes, and what it needs that
is not there.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from fairlib import environment
from whopays import grids, runs

NO_FILES = ("digits", "synthetic-faces")
"""Names of data sets that need no files."""


def add(commands: Any) -> None:
    """Add the command to the parser of all commands."""
    plan = commands.add_parser(
        "plan", help="say how far a grid is, how long the rest takes, and what it lacks"
    )
    plan.add_argument("grid")
    plan.set_defaults(command=_plan)


def _plan(arguments: argparse.Namespace) -> int:
    plan, sweep = grids.plan(arguments.grid), f"'make sweep GRID={arguments.grid}"
    print(f"runs    {sum(map(len, plan.runs.values())):6}")
    for name, points in plan.runs.items():
        remarks = {
            "stale": f"  finished with other code, contents or settings; {sweep} FORCE=1' runs them again",
            "failed": f"  their notebooks, with the error: {points[0].out.parent if points else ''}/failed",
        }
        print(f"{name:8}{len(points):6}{remarks.get(name, '') if points else ''}")
    if plan.hours is None:
        print(
            f"hours        ?  no run has finished on this machine: start {sweep}', and ask again after the first"
        )
    else:
        print(
            f"hours   {plan.hours:6.2f}  left, at the pace of {plan.timed} finished on this machine"
        )
    tables = dict.fromkeys(
        point.table.with_suffix(".json") for points in plan.runs.values() for point in points
    )
    for table in [table for table in tables if table.is_file()]:
        one = json.loads(table.read_text(encoding="utf-8"))
        place = one["cpu"] if one["device"] == "cpu" else one["device"]
        print(
            f"        {one['seconds'] / 3600:6.2f}  hours of runs on {place}, when {table.stem}.csv was recorded"
        )
    lacks = _lacks(
        [point for name, points in plan.runs.items() if name != "done" for point in points]
    )
    print("".join(f"whopays: {sentence}\n" for sentence in lacks), end="", file=sys.stderr)
    return 1 if lacks else 0


def _lacks(points: Sequence[grids.Point]) -> list[str]:
    """Say which devices, data sets and memory these runs need that are not there."""
    asked, lacks, gpus = Counter[tuple[Any, ...]](), Counter[str](), 0
    for point in points:
        values = runs.resolve_parameters(point.notebook, point.parameters)
        root = runs.project_root(point.notebook) / str(values.get("root", "data"))
        names = {
            str(value) for name, value in values.items() if name.split("_")[-1] == "data"
        } - set(NO_FILES)
        drawn, device = values.get("limit") or values.get("size"), str(values.get("device", "auto"))
        asked.update(
            (name, str(root), values.get("image_size"), drawn, values.get("seeds"), device)
            for name in names
        )
        gpus += device.startswith("cuda")
    if gpus:
        import torch

        lacks["a GPU that is not there"] = 0 if torch.cuda.is_available() else gpus
    for data, count in asked.items():
        lacks[_lack_of(*data)] += count
    return [
        f"{n} run{'s need' if n > 1 else ' needs'} {what}"
        for what, n in lacks.items()
        if what and n
    ]


def _lack_of(name: str, place: str, image_size: Any, drawn: Any, seeds: Any, device: str) -> str:
    """What is lacking for a data set: its files, or memory for its images in each process that is
    at work.
    """
    import numpy as np

    from fairlib import data

    try:
        source = data.lookup("data set", name, data.DATASETS)
        found = source(
            data.Request(place, image_size or None, (0.7, 0.1, 0.2), data.seed_sequence(0))
        )
        at_work = 1 if device.startswith("cuda") else min(environment.workers(device), seeds or 1)
        needed = (
            at_work
            * min(len(found.table), drawn or sys.maxsize)
            * found.images(np.arange(1)).nbytes
            / 1e9
        )
    except (OSError, ValueError, IndexError) as error:
        return f"data that are not there: {error}"
    there = environment.memory() / 1e9
    return (
        f"{needed:.1f} GB of memory for images; this machine has {there:.1f}"
        if needed > there
        else ""
    )
