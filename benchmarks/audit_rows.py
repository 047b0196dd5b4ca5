"""What `fairlib audit` takes for a table of predictions: seconds on one core, and memory at its
peak.

``python benchmarks/audit_rows.py``; goals: 2 seconds for 10,000 rows, 60 seconds and 2 GiB for a
million. Two classes and five groups, as labels and as probabilities, whose losses are permuted. The
seconds are those of the processor, the start of Python included, and the least of several rounds:
on a machine with nothing else to do the clock says the same."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from fairlib import environment

RESULTS = Path(__file__).parents[1] / "results" / "benchmarks"
GOALS = {10_000: (2.0, 2.0), 1_000_000: (60.0, 2.0)}  # Seconds and GiB.
ROUNDS = 5
COLUMNS = {"labels": ("said", "said_after"), "probabilities": ("p", "p_after")}


def write(path: Path, rows: int) -> None:
    """Draw what two models said; the compressed one is worse for the smallest group."""
    generator = np.random.default_rng(0)
    group = generator.choice([*"ABCDE"], rows, p=[0.4, 0.3, 0.15, 0.1, 0.05])
    target = generator.integers(0, 2, rows)
    logits = 3 * (2 * target - 1) + generator.normal(0, 2, rows)
    after = logits * np.where(group == "E", 0.6, 0.9) + generator.normal(0, 0.8, rows)
    table = pd.DataFrame({"smiling": np.where(target, "yes", "no"), "group": group})
    for name, score in (("", logits), ("_after", after)):
        table[f"p{name}"] = (1 / (1 + np.exp(-score))).round(4)
        table[f"said{name}"] = np.where(score > 0, "yes", "no")
    table.to_csv(path, index=False)


def audited(path: Path, kind: str) -> tuple[float, float]:
    """Seconds of the processor, and peak resident memory in GiB."""
    before, after = COLUMNS[kind]
    words = [
        "audit",
        str(path),
        "--target",
        "smiling",
        "--group",
        "group",
        "--before",
        before,
        "--after",
        after,
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "fairlib.cli", *words],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, words)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20


def main() -> None:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for rows, goals in GOALS.items():
            path = Path(folder, f"{rows}.csv")
            write(path, rows)
            for kind in COLUMNS:
                measured = np.min([audited(path, kind) for _ in range(ROUNDS)], axis=0)
                found.append((kind, rows, *measured, *goals))
                seconds, memory = (
                    f"{value:.2f} (goal {goal:g})"
                    for value, goal in zip(measured, goals, strict=True)
                )
                print(f"{rows:9,} rows of {kind:13} {seconds} s, {memory} GiB")
    table = pd.DataFrame(
        found, columns=["predictions", "rows", "seconds", "peak_gib", "goal_seconds", "goal_gib"]
    )
    where = environment.describe("cpu")
    table["hardware"] = f"{where['cpu']}, 1 thread, numpy {where['versions']['numpy']}"
    table.to_csv(RESULTS / "audit_rows.csv", index=False, float_format="%.4g", lineterminator="\n")


if __name__ == "__main__":
    main()
