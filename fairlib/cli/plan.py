"""The command ``fairlib plan``: how far a grid is, how long the rest takes, and what it needs that is not there."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from fairlib.evidence import grids, runs

NO_FILES = ("digits", "synthetic-faces")
"""Names of data sets that need no files."""


def add(commands: Any) -> None:
    """Add the command to the parser of all commands."""
    plan = commands.add_parser("plan", help="say how far a grid is, how long the rest takes, and what it lacks")
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
        print(f"hours        ?  no run has finished on this machine: start {sweep}', and ask again after the first")
    else:
        print(f"hours   {plan.hours:6.2f}  left, at the pace of {plan.timed} finished on this machine")
    lacks = _lacks([point for name, points in plan.runs.items() if name != "done" for point in points])
    print("".join(f"fairlib: {sentence}\n" for sentence in lacks), end="", file=sys.stderr)
    return 1 if lacks else 0


def _lacks(points: Sequence[grids.Point]) -> list[str]:
    """Say which devices and data sets these runs need that are not there."""
    found, asked = [], Counter[tuple[str, str]]()
    for point in points:
        values = runs.resolve(point.notebook, point.parameters)
        root = runs.project_root(point.notebook) / str(values.get("root", "data"))
        names = {str(value) for name, value in values.items() if name.split("_")[-1] == "data"} - set(NO_FILES)
        asked.update((name, str(root)) for name in names)
        asked["cuda", ""] += str(values.get("device")).startswith("cuda")
    if count := asked.pop(("cuda", ""), 0):
        import torch

        if not torch.cuda.is_available():
            found.append(f"{count} run{'s need' if count > 1 else ' needs'} a GPU that is not there")
    for (name, place), count in asked.items():
        from fairlib import data

        try:
            source = data.lookup("data set", name, data.DATASETS)
            source(data.Request(place, None, (0.7, 0.1, 0.2), data.seed_sequence(0)))
        except (OSError, ValueError) as error:
            found.append(f"{count} run{'s need' if count > 1 else ' needs'} data that are not there: {error}")
    return found
