"""Counts of claims and verdicts: by paper and kind of evidence, and under stricter rules."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from whopays.claims import EVIDENCE, PAPERS, Claim
from whopays.conditions import IS_ANSWER, NO_GROUPS, NOT_ANSWER
from whopays.ledger.text import pipe_table
from whopays.verdict import DECIDED, MIN_SEEDS, VERDICTS, side

TOLD = (*VERDICTS, "definition")
"""What is counted, in the order of the tables."""


def counted(results: pd.DataFrame) -> pd.DataFrame:
    """Mark the rows by which claims are counted, in a column ``counts``.

    A column ``told`` has the verdict, and *definition* for definitions: that code follows one is no
    finding, and would swell what is supported.

    These are the rows that decide. A claim in a reading that no table decides counts by the rows
    that have no numbers (not testable, not recorded yet); where all its tables are of other data,
    by an added row, *undecided*.

    Args:
        results: Verdicts (:func:`whopays.claims.evaluate_claims`).
    """
    keys = [results["claim"], results["reading"]]
    decided = results["decides"].groupby(keys).transform("any")
    counts = results["decides"] | (~decided & (results["seeds"] == 0))
    # A claim of which all tables are elsewhere would vanish from the counts.
    missing = results[~counts.groupby(keys).transform("any")].drop_duplicates(["claim", "reading"])
    empty: dict[str, Any] = dict.fromkeys(("evidence", "table", "data", "worst_cell"), "")
    empty |= {"verdict": "undecided", "seeds": 0, "needed": pd.NA, "groups": NO_GROUPS}
    empty |= {"overlap": 0.0, "in_points": False}
    empty |= dict.fromkeys(("estimate", "low", "high", "p_value"), float("nan"))
    added = missing.assign(
        **empty, survives=True, reason="no table of the data that it names", counts=True
    )
    marked = results.assign(counts=counts)
    if len(added):
        marked = pd.concat([marked, added.astype(marked.dtypes)], ignore_index=True)
    told = marked["verdict"].mask(marked["kind"] == TOLD[-1], TOLD[-1])
    return marked.assign(told=told)


def papers_table(rows: pd.DataFrame) -> list[str]:
    """Count claims and distinct tests by paper, verdict and kind of evidence, as a MyST table.

    Args:
        rows: Verdicts with a column ``counts`` (:func:`counted`).
    """
    rows = rows[rows["counts"]]
    printed, repaired = rows[rows["reading"] == "printed"], rows[rows["reading"] == "repaired"]
    kinds = {"claims": printed, "decided": printed[printed["told"].isin(DECIDED)]}
    kinds |= {name: printed[printed["told"] == name] for name in TOLD}
    if len(repaired):
        kinds["as repaired"] = repaired
        kinds |= {
            f"as repaired, {name}": repaired[repaired["verdict"] == name] for name in VERDICTS
        }
    for name in EVIDENCE:
        own = rows[(rows["evidence"] == name) & rows["told"].isin(DECIDED)]
        kinds[f"decided by a{'n' * (name[0] == 'e')} {name}"] = own
    papers = [paper for paper in PAPERS if paper in set(rows["paper"])]
    # One test counts once in a paper, however many claims rest on it.
    counts = [
        [name, *(_count(own[own["paper"] == paper]) for paper in papers), _count(own)]
        for name, own in kinds.items()
        if len(own) or not name.startswith("as repaired")
    ]
    return pipe_table(["counted", *map("[{}]".format, papers), "all"], counts)


def stricter_table(rows: pd.DataFrame) -> list[str]:
    """Count the verdicts that stand under stricter rules, as a MyST table.

    Rows are verdicts that count and rest on an interval, by who their groups are; a verdict stands
    if it stays on its side, whether negligible or not.

    Args:
        rows: Verdicts with a column ``counts`` (:func:`counted`).
    """
    decided = rows[rows["counts"] & rows["verdict"].isin(DECIDED) & (rows["seeds"] >= MIN_SEEDS)]
    decided = decided[decided["p_value"].notna()]
    same = decided["verdict"].map(side)
    stands = {
        "by their intervals": decided["counts"],
        "with the corrected interval": decided["resplit"].map(side) == same,
        "after Holm's correction": decided["holm"],
        "with twice the margin": decided["doubled"].map(side) == same,
    }
    stand = pd.DataFrame(stands)
    stand["under all three"] = stand.all(axis=1)
    kinds = (IS_ANSWER, NOT_ANSWER, NO_GROUPS)
    found = pd.DataFrame({kind: stand[decided["groups"] == kind].sum() for kind in kinds})
    return pipe_table(["verdicts", *kinds, "all"], found.assign(all=stand.sum()).itertuples())


def by_page(claims: Sequence[Claim]) -> dict[str, list[str]]:
    """Group the ids of claims by notebook; those without a notebook last, under ``""``."""
    pages: dict[str, list[str]] = {}
    for claim in claims:
        for notebook in dict.fromkeys(read.notebook or "" for read in claim.readings.values()):
            pages.setdefault(notebook, []).append(claim.id)
    return dict(sorted(pages.items(), key=lambda page: (not page[0], page[0])))


def _count(rows: pd.DataFrame) -> str:
    """Count claims, and in parentheses distinct tests if there are any."""
    tests = rows.loc[rows["seeds"] > 0, "test"].nunique()
    return f"{rows['claim'].nunique()}" + (f" ({tests})" if tests else "")
