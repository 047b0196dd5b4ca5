"""Verdicts of recorded tables that turn when the tables are recorded anew in stacks of five.

``whopays ledger --csv ten.csv`` at the commit whose tables were recorded with ten trainings in a
stack, and ``five.csv`` where they have been recorded with five; then ``python benchmarks/stacks.py
ten.csv five.csv``. Written to ``results/benchmarks/stacks_claims.csv`` are the claims of all tables
whose numbers differ, with both verdicts: one that turned is *undecided*. Rounded weights had a
better scale the second time, too (:func:`fairlib.compression.weights.weights`)."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

RESULT = Path(__file__).parents[1] / "results" / "benchmarks" / "stacks_claims.csv"
KEYS = ["table", "claim", "reading"]
NUMBERS = ["verdict", "estimate", "low", "high"]


def main(ten: str, five: str) -> None:
    tables = [pd.read_csv(path).set_index(KEYS)[NUMBERS] for path in (ten, five)]
    both = tables[0].add_suffix("_ten").join(tables[1].add_suffix("_five"), how="inner").dropna()
    again = both[both["estimate_ten"] != both["estimate_five"]]
    again.reset_index().to_csv(RESULT, index=False, float_format="%.6g")
    turned = again[again["verdict_ten"] != again["verdict_five"]]
    print(f"{len(turned)} of {len(again)} verdicts turned", turned.to_string(), sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
