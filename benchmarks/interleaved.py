"""Timing in turns: A B A B in one process, so that whatever disturbs the machine disturbs all
alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from fairlib import environment

RESULTS = Path(__file__).parents[1] / "results" / "benchmarks"


def compare(
    versions: Mapping[str, Callable[[], object]], goals: Mapping[str, float], rounds: int = 51
) -> pd.DataFrame:
    """CPU seconds of each version on one thread, and their ratio to the first version's.

    Args:
        versions: By name; all do the same work, the first is what the others are compared with.
        goals: The largest ratio aimed at, by version; a version without a goal is there for the
            record.
        rounds: In each, every version runs once, in turns; one round more goes before and does not
            count.

    Returns:
        Indexed by version: ``seconds`` (median of the rounds), ``ratio`` (median of the ratios
        within a round) with its quartiles ``low`` and ``high``, ``goal``, ``rounds`` and
        ``hardware``.
    """
    torch.set_num_threads(1)
    seconds = np.empty((rounds + 1, len(versions)))
    for i in range(rounds + 1):
        for j, run in enumerate(versions.values()):
            start = time.process_time()
            run()
            seconds[i, j] = time.process_time() - start
    ratios = seconds[1:] / seconds[1:, :1]
    low, ratio, high = np.quantile(ratios, [0.25, 0.5, 0.75], axis=0)
    table = pd.DataFrame(
        {"seconds": np.median(seconds[1:], axis=0), "ratio": ratio, "low": low, "high": high},
        index=pd.Index(versions, name="version"),
    )
    where = environment.describe("cpu")
    hardware = f"{where['cpu']}, 1 thread, torch {where['versions']['torch']}"
    return table.assign(goal=pd.Series(goals, dtype=float), rounds=rounds, hardware=hardware)


def report(name: str, table: pd.DataFrame) -> None:
    """Print a table of :func:`compare` and write it to ``results/benchmarks/NAME.csv``."""
    print(f"{name}: {table['hardware'].iloc[0]}, {table['rounds'].iloc[0]} rounds")
    for version, row in table.iterrows():
        goal = "" if np.isnan(row["goal"]) else f", goal {row['goal']:.3f}: {_verdict(row)}"
        speed = f"{row['seconds'] * 1e3:9.2f} ms"
        ratio = f"{row['ratio']:.3f} [{row['low']:.3f}, {row['high']:.3f}] of the first"
        print(f"  {version:28s}{speed}, {ratio} ({1 / row['ratio']:.1f}x as fast){goal}")
    RESULTS.mkdir(parents=True, exist_ok=True)
    table.to_csv(RESULTS / f"{name}.csv", float_format="%.5g")


def _verdict(row: pd.Series) -> str:
    return "met" if row["ratio"] <= row["goal"] else "missed"
