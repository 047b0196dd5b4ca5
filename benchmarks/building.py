"""Time that an environment, the book and the tests take at two commits, in turns.

``python benchmarks/building.py BEFORE AFTER --steps env "book QUICK=1" test --rounds 1``

Each commit is cloned and gets an environment of its own by ``make env``, once. In each round every
other step is a cold ``make`` of one clone and then of the other. CPU seconds are those of the whole
machine while a step runs, on which nothing else may run: pages that start as forks of one server
count for none of the processes that wait for them."""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from pathlib import Path

import pandas as pd

from fairlib import environment

REPOSITORY = Path(__file__).parents[1]
RESULTS = REPOSITORY / "results" / "benchmarks"


def busy() -> float:
    """CPU seconds that all processes of the machine have taken since it started."""
    with open("/proc/stat") as file:
        user, nice, system = file.readline().split()[1:4]
    return (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")


def timed(folder: Path, step: str) -> dict[str, float]:
    """Seconds that ``make`` with the words of a step takes: by the clock, and of all cores.

    Tests of an earlier commit may fail today; their time counts all the same, beside the status.
    """
    start, before = time.monotonic(), busy()
    with open(folder.with_suffix(".log"), "a") as log:
        ended = subprocess.run(["make", *step.split()], cwd=folder, stdout=log, stderr=log)
    return {"status": ended.returncode, "wall": time.monotonic() - start, "cpu": busy() - before}


def git(*words: object) -> str:
    """Answer of git, asked about this repository."""
    command = ["git", "-C", REPOSITORY, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("commits", nargs="+", help="one or two, the earlier one first")
    parser.add_argument("--steps", nargs="+", default=["env", "book QUICK=1", "book", "test"])
    parser.add_argument("--rounds", type=int, default=1)
    given = parser.parse_args()
    where = environment.describe("cpu")
    hardware, rows = f"{where['cpu']}, {os.cpu_count()} cores", []
    with tempfile.TemporaryDirectory() as folder:
        clones = {}
        for name in given.commits:
            commit = git("rev-parse", "--short", name)
            clones[commit] = Path(folder, f"clone-{commit}")
            git("clone", "--quiet", REPOSITORY, clones[commit])
            git("-C", clones[commit], "checkout", "--quiet", "--detach", commit)
        turns = [(turn, step) for turn in range(given.rounds) for step in given.steps]
        for turn, step in turns:
            if step == "env" and turn:
                continue
            for commit, clone in clones.items():
                if step.startswith("book"):
                    subprocess.run(["make", "clean"], cwd=clone, check=True, capture_output=True)
                row = {"commit": commit, "step": step, "round": turn, **timed(clone, step)}
                print(row, flush=True)
                rows.append({**row, "hardware": hardware})
                # After each step, since all of them together take an hour.
                table = pd.DataFrame(rows)
                table.to_csv(RESULTS / "building.csv", index=False, float_format="%.4g")


if __name__ == "__main__":
    main()
