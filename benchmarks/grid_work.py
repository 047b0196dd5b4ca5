"""How much arithmetic the grids for a GPU are, and how much of a GPU recorded runs have used.

``python benchmarks/grid_work.py``. ``results/benchmarks/grid_work.csv`` has the operations of every
grid of ``params/paper`` and ``params/gpu-list.txt``, in PFLOP (:func:`whopays.plan.work`), by
network: ``most`` with as many epochs of a mask phase as are allowed, ``pflop`` with 200 at most.
``results/benchmarks/gpu_shares.csv`` has the TFLOP/s of recorded runs: the operations of their
grids over their seconds, times the runs at once. How many these were nobody recorded; it is taken
to be the cores of the machine, as a sweep has them by default. ``share`` is that of the peak in
bfloat16 that the maker states; the runs were in float32."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from whopays import grids, plan

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "benchmarks"
PEAK = 990.0
"""Peak of an H100 or H200 in bfloat16, TFLOP/s."""

RECORDED = {
    "ResNet-18, 32 and 64 pixels, and cnn beside it": [
        "pruning/matthew-effect-resnet18",
        "pruning/matthew-effect-64-resnet18",
        "explanation/group-curvature-utkface-all",
        "explanation/group-gradients-utkface-all",
    ],
    "cnn, 32 pixels": ["mitigation/t-tab-2"],
}
"""Tables of runs that were at work at once, all on one H200."""


def shares() -> pd.DataFrame:
    """Return what the recorded runs reached, a row for each set of runs."""
    rows = []
    for name, tables in RECORDED.items():
        found = [json.loads((ROOT / f"results/{table}.json").read_text()) for table in tables]
        kinds = [kind for run in found for kind in plan.work(grids.expand(ROOT / run["grid"]))]
        flops = sum(kind.runs * kind.flops for kind in kinds)
        seconds, cores = sum(run["seconds"] for run in found), found[0]["cores"]
        largest = max(kinds, key=lambda kind: kind.runs * kind.flops)
        rate = flops / seconds * cores / 1e12
        row = {"runs": name, "device": found[0]["device"], "at_once": cores, "seconds": seconds}
        row |= {"pflop": flops / 1e15, "gflop": largest.each / 1e9, "tflops": rate, "peak": PEAK}
        rows.append(row | {"share": rate / PEAK})
    return pd.DataFrame(rows)


def work() -> pd.DataFrame:
    """Return the operations of each grid, a row for each network."""
    lines = (ROOT / "params" / "gpu-list.txt").read_text(encoding="utf-8").splitlines()
    listed = [ROOT / line for line in lines if line and line[0] != "#"]
    rows = []
    for grid in dict.fromkeys([*sorted(ROOT.glob("params/paper/*/*.yml")), *listed]):
        points = grids.expand(grid)
        table = points[0].table.resolve().relative_to(ROOT).as_posix()
        for kind in plan.work(points):
            row = {"table": table, "runs": kind.runs, "network": kind.network, "size": kind.size}
            flops = {"pflop": kind.flops, "most": kind.most}
            rows.append(row | {key: kind.runs * each / 1e15 for key, each in flops.items()})
    return pd.DataFrame(rows)


if __name__ == "__main__":
    for name, table in (("gpu_shares", shares()), ("grid_work", work())):
        table.to_csv(RESULTS / f"{name}.csv", index=False, float_format="%.4g")
        print(table.to_string())
