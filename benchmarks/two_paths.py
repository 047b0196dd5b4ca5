"""Whether tables of trainings at once say what those of one training after the other say.

Both paths train the same networks, and round differently: after some epochs single networks differ, and their
distribution should not. For each claim that names a table, and each cell of its statistic, the difference of the two
paths is taken seed by seed, with its 95 % t interval, which should hold zero in 95 % of the cases. The verdicts are
those of each table. Sweep a grid in two clones of one commit, in one of them with ``FAIRLIB_AUTO=0``; then, in the one
without it::

    python benchmarks/two_paths.py ../the-other-clone results/pruning/matthew-effect-study.csv ...

The table ``results/benchmarks/two_paths.csv`` has a row for each table, claim and cell.
"""

import sys
from pathlib import Path

import pandas as pd

from fairlib.evidence import claims
from fairlib.statistics import t_interval

OUT = Path("results/benchmarks/two_paths.csv")


def compare(known: list[claims.Claim], name: str, after_another: pd.DataFrame, at_once: pd.DataFrame) -> pd.DataFrame:
    """Compare the statistics of one table by both paths; a row for each claim, reading and cell."""
    rows = []
    for claim in known:
        for reading, read in claim.readings.items():
            if name not in read.tables.values():
                continue
            before, after = (pd.DataFrame(read.values(table)) for table in (after_another, at_once))
            shared = before.index.intersection(after.index)
            verdicts = [
                claims.on_table([read], table, read.notebook)["verdict"].iloc[0] for table in (after_another, at_once)
            ]
            for cell in before:
                one, other = (table.loc[shared, cell].to_numpy(float) for table in (before, after))
                found = t_interval(other - one)
                row = {"table": name, "claim": claim.id, "reading": reading, "cell": cell, "seeds": len(shared)}
                row |= {"after_another": one.mean(), "at_once": other.mean(), "difference": found.estimate}
                row |= {"low": found.low, "high": found.high, "holds_zero": found.low <= 0 <= found.high}
                rows.append(row | dict(zip(["verdict_after_another", "verdict_at_once"], verdicts, strict=True)))
    return pd.DataFrame(rows)


def main() -> None:
    other, *tables = sys.argv[1:]
    known = claims.load("book/claims.yml")
    found = pd.concat(
        [compare(known, name, claims.read_table(Path(other, name)), claims.read_table(name)) for name in tables]
    )
    decided = found.drop_duplicates(["table", "claim", "reading"])
    changed = decided[decided["verdict_after_another"] != decided["verdict_at_once"]]
    counts = found.groupby("table", sort=False)["holds_zero"].agg(["size", "sum"])
    print(counts.rename(columns={"size": "statistics", "sum": "hold zero"}))
    print(f"{len(decided)} verdicts, {len(changed)} differ")
    print(changed[["claim", "reading", "verdict_after_another", "verdict_at_once"]].to_string(index=False))
    print(found[~found["holds_zero"]].to_string(index=False))
    found.to_csv(OUT, index=False, float_format="%.6g", lineterminator="\n")


if __name__ == "__main__":
    main()
