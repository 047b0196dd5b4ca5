"""Whether trainings at once say what those of one training after the other say.

Both paths train the same networks, and round differently: after some epochs single networks differ,
and their distribution should not. ``python benchmarks/two_paths.py`` runs a study of a hundred
seeds by each path (pruning under equal losses, before and after; ten minutes) and compares what it
measures. The recorded tables are compared by sweeping their grid in two clones of one commit, in
one of them with ``FAIRLIB_AUTO=0``; then, in the one without it::

    python benchmarks/two_paths.py ../the-other-clone results/pruning/matthew-effect-study.csv ...

takes every statistic of the claims that name these tables, cell by cell, and their verdicts. Each
difference of the paths is taken seed by seed, with its 95 % t interval, which should hold zero in
95 % of the cases. The results stand in ``results/benchmarks/two_paths.csv`` and
``two_paths_claims.csv``."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

import fairlib
from fairlib.statistics import t_interval
from fairlib.studies import RunSettings
from whopays import claims

RESULTS = Path(__file__).parents[1] / "results" / "benchmarks"
STUDY = dict(
    data="digits", model="cnn", method="prune:magnitude", levels=[0.9], seeds=range(5000, 5100)
)
STUDY |= dict(mitigation=("equal-loss", {"step": 0.01}), when=["never", "before", "after"])
STUDY |= dict(
    train={"epochs": 40, "batch_size": 30},
    finetune={"epochs": 10},
    diagnostics=["gradient"],
)


def difference(alone: pd.Series, at_once: pd.Series) -> dict[str, object]:
    """Compare a statistic by seed, as both paths give it."""
    alone, at_once = alone.align(at_once, join="inner")
    found = t_interval(at_once - alone)
    means = {"seeds": len(alone), "alone": alone.mean(), "at_once": at_once.mean()}
    return means | found._asdict() | {"holds_zero": found.low <= 0 <= found.high}


def by_group(table: pd.DataFrame) -> pd.DataFrame:
    """Mean over the groups, and largest minus smallest, of every column; indexed by when, stage,
    split and seed."""
    groups = table.groupby(["when", "stage", "split", "seed"])[
        ["accuracy", "loss", "gradient_norm"]
    ]
    parts = {"mean": groups.mean(), "gap": groups.max() - groups.min()}
    return pd.concat(parts, axis=1, names=["over groups", "column"])


def compare_studies() -> pd.DataFrame:
    """Compare all that a study measures; a row for each time of mitigation, stage, split, column
    and statistic."""
    alone, at_once = (
        by_group(fairlib.study(**STUDY, run=RunSettings(cache=None, at_once=path)))
        for path in (False, True)
    )
    rows = []
    for where, part in alone.groupby(level=["when", "stage", "split"]):
        for name in part:
            found = difference(part[name].droplevel([0, 1, 2]), at_once.loc[where, name])
            if part[name].std() > 0:  # What is the same for every seed tells nothing.
                keys = zip(
                    ["when", "stage", "split", "over", "column"], (*where, *name), strict=True
                )
                rows.append(dict(keys) | found)
    return pd.DataFrame(rows)


def compare_claims(name: str, alone: pd.DataFrame, at_once: pd.DataFrame) -> pd.DataFrame:
    """Compare the statistics of the claims that name a table; a row for each claim, reading and
    cell."""
    rows = []
    for claim in claims.read_claims("book/claims.yml"):
        for reading, read in claim.readings.items():
            if name not in read.tables.values():
                continue
            before, after = (pd.DataFrame(read.values(table)) for table in (alone, at_once))
            said = [
                claims.on_table([read], table, str(read.notebook))["verdict"].iloc[0]
                for table in (alone, at_once)
            ]
            verdicts = dict(zip(["verdict_alone", "verdict_at_once"], said, strict=True))
            for cell in before:
                row = {"table": name, "claim": claim.id, "reading": reading, "cell": cell}
                rows.append(row | difference(before[cell], after[cell]) | verdicts)
    return pd.DataFrame(rows)


def main() -> None:
    if len(sys.argv) == 1:
        found, name = compare_studies(), "two_paths"
    else:
        other, *tables = sys.argv[1:]
        pairs = {
            each: [claims.read_records(Path(root, each)) for root in (other, "")] for each in tables
        }
        found = pd.concat([compare_claims(each, *pair) for each, pair in pairs.items()])
        name = "two_paths_claims"
        verdicts = found.drop_duplicates(["table", "claim", "reading"])
        changed = verdicts[verdicts["verdict_alone"] != verdicts["verdict_at_once"]]
        print(
            changed[["claim", "reading", "verdict_alone", "verdict_at_once"]].to_string(index=False)
        )
        print(f"{len(changed)} of {len(verdicts)} verdicts differ")
    print(found[~found["holds_zero"]].to_string(index=False))
    print(f"{found['holds_zero'].sum()} of {len(found)} intervals hold zero")
    found.to_csv(RESULTS / f"{name}.csv", index=False, float_format="%.6g", lineterminator="\n")


if __name__ == "__main__":
    main()
