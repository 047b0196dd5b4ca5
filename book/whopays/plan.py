"""The command ``whopays plan``: progress of a grid, work that is left, and what it lacks."""

from __future__ import annotations

import functools
import re
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from whopays import grids, runs

MASK_EPOCHS = 200
"""Epochs that a mask phase is taken to last where it may last longer: the budget ends it."""

PFLOP_PER_HOUR = 99e-3 * 3600
"""Operations of a GPU at a tenth of 990 TFLOP/s, its peak in bfloat16."""

BOUNDS = ("flops", "most")
"""Operations of a run, to an early and to the last end of its mask phase (:class:`Work`)."""

NO_FILES = ("digits", "synthetic-faces")
"""Names of data sets that need no files."""


def show(grid: str) -> int:
    """Print how far a grid is, how much work is left, and what it lacks; return 1 if it lacks."""
    progress = grids.plan(grid)
    points = [point for own in progress.values() for point in own]
    remarks = {
        "stale": "finished with other code, contents or settings; "
        f"'make sweep GRID={grid} FORCE=1' runs them again",
        "failed": f"their notebooks, with the error: {points[0].out.parent}/failed",
    }
    print(f"runs    {len(points):6}")
    for name, own in progress.items():
        print(f"{name:8}{len(own):6}" + (f"  {remarks[name]}" if own and name in remarks else ""))
    left = [point for point in points if point not in progress["done"]]
    if kinds := work(left):
        _show_work(kinds)
    found = lacks(left)
    for sentence in found:
        print(f"whopays: {sentence}", file=sys.stderr)
    return 1 if found else 0


class Work(NamedTuple):
    """Arithmetic of runs that differ in their seeds alone.

    Attributes:
        runs: Number of runs.
        network: Name of the architecture, with its settings.
        size: Height and width of its images in pixels.
        flops: Operations of one run, two for a multiply-accumulate; a mask phase that may take
            longer ends after `MASK_EPOCHS`.
        most: Operations of one run that takes all that its parameters allow.
        each: Operations of a forward and backward pass of one image.
    """

    runs: int
    network: str
    size: int
    flops: float
    most: float
    each: float


def work(points: Sequence[grids.Point]) -> list[Work]:
    """Estimate the operations of runs, by network and parameters.

    They are passes over the training images, which ``params/passes.yml`` counts for each notebook,
    times the multiply-accumulates of :func:`fairlib.cost`; a backward pass takes as much as two
    forward ones. Runs of notebooks that are not in the file are left out.
    """
    found = Counter[tuple[Any, ...]]()
    for point in points:
        rules = runs.project_root(point.notebook) / "params" / "passes.yml"
        known = runs.read_yaml(rules) if rules.is_file() else {"passes": {}}
        if rule := known["passes"].get(point.notebook.stem):
            values = point.values
            images = known["images"][values.get("data") or values["two_data"]]
            drawn = values.get("limit") or values.get("size") or images
            samples = min(images, drawn) * (1 + values.get("scarce", 1.0)) / 2 * values["seeds"]
            few = {"mask_epochs": min(values.get("mask_epochs", 0), MASK_EPOCHS)}
            low, most = (samples * _evaluate(rule, own) for own in (values | few, values))
            size = values["image_size"] or 8  # The embedded data's own.
            for name in str(values.get("models") or values["model"]).split(","):
                name += f":width={values['width']:g}" if values.get("width", 1) != 1 else ""
                each = _operations(name, size)
                found[name, size, low * each, most * each, each] += 1
    return [Work(count, *kind) for kind, count in found.items()]


def _evaluate(rule: str, values: dict[str, Any]) -> float:
    """Evaluate a formula of parameters, of which a text stands for the number of its values."""
    import pandas as pd

    names: dict[str, float] = {}
    for name, value in values.items():
        names[name] = value
        if isinstance(value, str):
            parts = list(filter(None, re.split("[,;]", value)))
            names[name] = len(parts)
            if all(re.fullmatch(r"[\d.]+", part) for part in parts):
                names[f"{name}_sum"] = sum(map(float, parts))
    return float(pd.eval(rule, local_dict=names, global_dict={}, engine="python"))


@functools.cache
def _network(name: str, size: int) -> Any:
    import fairlib

    return fairlib.build(name, num_classes=5, in_channels=3, image_size=size)


@functools.cache
def _operations(name: str, size: int) -> float:
    import torch

    import fairlib

    costs = fairlib.cost(_network(name, size), torch.zeros(1, 3, size, size), latency=False)
    return 6.0 * float(costs["macs"].iloc[0])


def _show_work(kinds: Sequence[Work]) -> None:
    """Print the operations of runs, and their hours at a tenth of a GPU's peak."""
    total, most = (sum(each.runs * getattr(each, way) for each in kinds) / 1e15 for way in BOUNDS)
    print(f"work    {_span(total, most)} PFLOP left, counted to within a fifth")
    for each in kinds:
        flops = _span(each.flops / 1e15, each.most / 1e15)
        print(f"  {each.runs:4} x {flops} PFLOP: {each.network} at {each.size} pixels")
    hours = _span(total / PFLOP_PER_HOUR, most / PFLOP_PER_HOUR)
    print(f"hours   {hours} on a GPU, at a tenth of its peak")


def _span(low: float, most: float) -> str:
    return f"{low:.3g}" + (f" to {most:.3g}" if most > low else "")


def data_sets(point: grids.Point) -> set[str]:
    """Name the data sets whose files a run needs."""
    # A notebook may have several parameters that name data: data, other_data.
    named = {str(value) for name, value in point.values.items() if name.endswith("data")}
    return named - set(NO_FILES)


def lacks(points: Sequence[grids.Point]) -> list[str]:
    """Say which devices and data sets these runs need that are not there."""
    found, asked = Counter[str](), Counter[tuple[str, str]]()
    for point in points:
        root = runs.project_root(point.notebook) / point.values.get("root", "data")
        found["a GPU that is not there"] += point.values.get("device", "").startswith("cuda")
        asked.update((name, str(root)) for name in data_sets(point))
    if +found:
        import torch

        if torch.cuda.is_available():
            found.clear()
    for data, count in asked.items():
        if lack := _lack_of(*data):
            found[lack] += count
    return [f"{n} run{'s need' if n > 1 else ' needs'} {what}" for what, n in (+found).items()]


def _lack_of(name: str, place: str) -> str:
    """Say which files of a data set are missing or cannot be read; nothing if none are."""
    import numpy as np

    from fairlib import data

    try:
        source = data.lookup("data set", name, data.DATASETS)
        found = source(data.Request(place, None, (0.7, 0.1, 0.2), data.seed_sequence(0)))
        found.images(np.arange(1))
    except (OSError, ValueError, IndexError) as error:
        return f"data that are not there: {error}"
    return ""
