"""The command ``whopays plan``: progress of a grid, time for the rest, and what it lacks."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from fairlib import environment
from whopays import grids, runs

NO_FILES = ("digits", "synthetic-faces")
"""Names of data sets that need no files."""


def show(grid: str) -> int:
    """Print how far a grid is, how long the rest takes, and what it lacks; return 1 if it lacks."""
    plan, sweep = grids.plan(grid), f"'make sweep GRID={grid}"
    points = [point for own in plan.runs.values() for point in own]
    remarks = {
        "stale": "finished with other code, contents or settings; "
        f"{sweep} FORCE=1' runs them again",
        "failed": f"their notebooks, with the error: {points[0].out.parent}/failed",
    }
    print(f"runs    {len(points):6}")
    for name, own in plan.runs.items():
        print(f"{name:8}{len(own):6}" + (f"  {remarks[name]}" if own and name in remarks else ""))
    if plan.hours is None:
        print(
            "hours        ?  no run has finished on this machine: "
            f"start {sweep}', and ask again after the first"
        )
    else:
        pace = f"at the pace of {plan.timed} finished on this machine"
        print(f"hours   {plan.hours:6.2f}  left, {pace}")
    done = plan.runs["done"]
    found = lacks([point for point in points if point not in done])
    for sentence in found:
        print(f"whopays: {sentence}", file=sys.stderr)
    return 1 if found else 0


def data_sets(point: grids.Point) -> set[str]:
    """Name the data sets whose files a run needs."""
    values = runs.resolve_parameters(point.notebook, point.parameters)
    # A notebook may have several parameters that name data: data, other_data.
    named = {str(value) for name, value in values.items() if name.split("_")[-1] == "data"}
    return named - set(NO_FILES)


def lacks(points: Sequence[grids.Point]) -> list[str]:
    """Say which devices, data sets and memory these runs need that are not there."""
    found = Counter[str]()
    asked = Counter[tuple[Any, ...]]()
    for point in points:
        values = runs.resolve_parameters(point.notebook, point.parameters)
        root = runs.project_root(point.notebook) / str(values.get("root", "data"))
        device = str(values.get("device", "auto"))
        drawn = values.get("limit") or values.get("size")
        found["a GPU that is not there"] += device.startswith("cuda")
        for name in data_sets(point):
            image_size, seeds = values.get("image_size"), values.get("seeds")
            asked[name, str(root), image_size, drawn, seeds, device] += 1
    if +found:
        import torch

        if torch.cuda.is_available():
            found.clear()
    for data, count in asked.items():
        found[_lack_of(*data)] += count
    del found[""]
    return [f"{n} run{'s need' if n > 1 else ' needs'} {what}" for what, n in (+found).items()]


def _lack_of(name: str, place: str, image_size: Any, drawn: Any, seeds: Any, device: str) -> str:
    """Describe what is missing: a data set's files, or memory for its images in every worker."""
    import numpy as np

    from fairlib import data

    try:
        source = data.lookup("data set", name, data.DATASETS)
        split, seed = (0.7, 0.1, 0.2), data.seed_sequence(0)
        found = source(data.Request(place, image_size or None, split, seed))
        workers = 1 if device.startswith("cuda") else min(environment.workers(device), seeds or 1)
        people = min(len(found.table), drawn or sys.maxsize)
        needed = workers * people * found.images(np.arange(1)).nbytes / 1e9
    except (OSError, ValueError, IndexError) as error:
        return f"data that are not there: {error}"
    there = memory() / 1e9
    if needed <= there:
        return ""
    return f"{needed:.1f} GB of memory for images; this machine has {there:.1f}"


def memory() -> int:
    """Return the memory of this machine in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
