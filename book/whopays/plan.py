"""The command ``whopays plan``: progress of a grid, time for the rest, and what it lacks."""

from __future__ import annotations

import functools
import math
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fairlib import environment
from whopays import grids, runs

MASK_EPOCHS = 200
"""Epochs that a mask phase is taken to last where it may last longer: the budget ends it."""

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
    left = [point for point in points if point not in plan.runs["done"]]
    _show_work(work(left), plan.hours is None)
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


def measured_rate(kind: Work) -> float:
    """Measure the operations per second of a training step here, the fastest of three."""
    import torch

    place: dict[str, Any] = {"device": "cuda" if torch.cuda.is_available() else "cpu"}
    place["memory_format"] = torch.channels_last
    model, images = _network(kind.network, kind.size), torch.rand(32, 3, kind.size, kind.size)
    model, images, seconds = model.to(**place), images.to(**place), []
    for _ in range(3):
        start = time.perf_counter()
        model(images).square().sum().backward()
        # Reading a number waits for the GPU.
        next(model.parameters()).grad.sum().item()
        seconds.append(time.perf_counter() - start)
    return float(len(images) * kind.each / min(seconds))


def gpu_shares() -> Any:
    """Read the operations per second of recorded runs on a GPU, and its peak."""
    import pandas as pd

    return pd.read_csv(runs.project() / "results" / "benchmarks" / "gpu_shares.csv")


def recorded_rate(kind: Work) -> float:
    """Look up the operations per second of the recorded network whose passes are nearest."""
    table = gpu_shares()
    nearest = (table["gflop"] * 1e9 / kind.each).map(math.log).abs().idxmin()
    return float(table["tflops"][nearest]) * 1e12


def goal_rate(kind: Work) -> float:
    """Return a tenth of a GPU's peak in bfloat16, the goal of the benchmarks."""
    return float(gpu_shares()["peak"].max()) * 1e11


def hours(kinds: Sequence[Work], rate: Callable[[Work], float]) -> tuple[float, float]:
    """Sum the hours of runs at a rate: with short mask phases, and with all that is allowed."""
    seconds = [(each.runs / rate(each) / 3600, each) for each in kinds]
    return sum(t * each.flops for t, each in seconds), sum(t * each.most for t, each in seconds)


def _show_work(kinds: Sequence[Work], unknown: bool) -> None:
    """Print operations and hours of runs; those of this machine if no finished run tells them."""
    if not kinds:
        return
    total = hours(kinds, lambda _: 1e15 / 3600)
    print(f"work    {_span(*total)} PFLOP left, counted to within a fifth")
    for each in kinds:
        flops = _span(each.flops / 1e15, each.most / 1e15)
        print(f"  {each.runs:4} x {flops} PFLOP: {each.network} at {each.size} pixels")
    rates = {"here, at the rate of a step measured now": measured_rate} if unknown else {}
    rates |= {"on a GPU, as fast as recorded runs if 16 went at once": recorded_rate}
    rates |= {"on a GPU, at a tenth of its peak": goal_rate}
    for where, rate in rates.items():
        print(f"hours   {_span(*hours(kinds, rate))} {where}")


def _span(low: float, most: float) -> str:
    return f"{low:.3g}" + (f" to {most:.3g}" if most > low else "")


def data_sets(point: grids.Point) -> set[str]:
    """Name the data sets whose files a run needs."""
    # A notebook may have several parameters that name data: data, other_data.
    named = {str(value) for name, value in point.values.items() if name.endswith("data")}
    return named - set(NO_FILES)


def lacks(points: Sequence[grids.Point]) -> list[str]:
    """Say which devices, data sets and memory these runs need that are not there."""
    found = Counter[str]()
    asked = Counter[tuple[Any, ...]]()
    for point in points:
        values, device = point.values, point.values.get("device", "auto")
        root = runs.project_root(point.notebook) / values.get("root", "data")
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
