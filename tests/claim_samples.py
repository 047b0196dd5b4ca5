"""Claims, values and tables that the tests of claims and ledger share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from whopays.claims import Claim

ENTRY = """
- id: {id}
  source: a source
  kind: trend
  statement: a statement
  statistic: {statistic}
  direction: {direction}
  threshold: {threshold}
  margin: 0.03
  notebook: null
  tables: {{default run: values.csv}}
"""


def claim(direction: str = "greater", **changed) -> Claim:
    """A claim about the column `value` of a table with one row per seed."""
    fields = {"id": "H-x", "source": "a source", "kind": "trend", "statement": "a statement",
              "statistic": {"name": "column", "column": "value"}, "direction": direction, "threshold": 0.0,
              "margin": 0.03, "notebook": None, "tables": {"default run": "values.csv"}}  # fmt: skip
    return Claim(**(fields | changed))


def untested(**changed) -> Claim:
    return claim(
        **({"statistic": None, "threshold": None, "margin": None, "tables": {}} | changed),
        direction=None,
    )


def spread(center: float, half: float, n: int = 10) -> np.ndarray:
    """Values whose mean is `center`; of ten, the 95 % interval reaches .754 times `half` to either
    side."""
    return center + half * np.resize([-1.0, 1.0], n)


def write(path: Path, **columns) -> Path:
    table = pd.DataFrame({"seed": range(len(next(iter(columns.values())))), **columns})
    if path.suffix == ".parquet":
        table.to_parquet(path)
    else:
        table.to_csv(path, index=False)
    return path


def study_table(sizes: dict, control: dict, compressed: dict, **columns) -> pd.DataFrame:
    """A study table from {seed: values by group}; test sizes and the dense stage mislead."""
    rows = []
    for seed in sizes:
        for position, group in enumerate("ABCDEF"[: len(sizes[seed])]):
            for stage, level, accuracy in (("dense", 0.0, 0.5), ("control", 0.0, control[seed][position]),
                                           ("compressed", 0.9, compressed[seed][position]),
                                           ("compressed", 0.5, 0.1)):  # fmt: skip
                for split, size, value in (
                    ("train", sizes[seed][position], 1.0),
                    ("test", 10 + position, accuracy),
                ):
                    rows.append({"seed": seed, "stage": stage, "level": level, "split": split, "group": group,
                                 "when": "never", "size": size, "accuracy": value} | columns)  # fmt: skip
    return pd.DataFrame(rows)


TABLE = study_table(
    sizes={0: [100, 50, 10], 1: [10, 50, 100]},
    control={0: [0.9, 0.8, 0.7], 1: [0.9, 0.8, 0.7]},
    compressed={0: [0.9, 0.7, 0.4], 1: [0.8, 0.8, 0.75]},
)
