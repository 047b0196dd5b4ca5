"""Files of the ledger: page, CSV, JSON, and a section at the end of each notebook."""

import math
from collections.abc import Sequence
from json import dumps, loads
from pathlib import Path

import pandas as pd

from fairlib import environment
from fairlib.statistics import Interval
from whopays.claims import Claim, evaluate_claims, read_claims
from whopays.ledger.counting import by_page, counted
from whopays.ledger.history import Written, claim_changes, first_written
from whopays.ledger.page import page
from whopays.ledger.text import origin, rendered
from whopays.prose import finding
from whopays.verdict import DECIDED

LEDGER_COLUMNS = [
    "claim",
    "paper",
    "kind",
    "reading",
    "evidence",
    "table",
    "decides",
    "verdict",
    "estimate",
    "low",
    "high",
    "in_points",
    "seeds",
    "needed",
    "worst_cell",
    "worst_estimate",
    "data",
    "groups",
    "registered",
    "recorded",
    "late",
    "overlap",
    "resplit_low",
    "resplit_high",
    "resplit",
    "doubled",
    "holm",
]
_CELL = "claims-of-this-page"


def write(
    claims_path: str | Path,
    root: str | Path,
    out: str | Path | None = None,
    *,
    csv: str | Path | None = None,
    notebooks: str | Path | None = None,
) -> None:
    """Write the ledger in the forms for which a path is given.

    Args:
        claims_path: Path of the claims file.
        root: Folder that the paths of the tables start from.
        out: Path of the page, MyST markdown (:func:`page`).
        csv: Path of the verdicts as a table of `LEDGER_COLUMNS`, a row for each claim,
            reading and table.
        notebooks: Folder of copies of the notebooks, which have their places below it as in the
            project; each gets its own rows as a section (:func:`own_rows`), before *Where this
            comes from*.
    """
    claims = read_claims(claims_path)
    results = evaluate_claims(claims, root)
    written = first_written(claims_path, claims, root)
    pairs = zip(results["claim"], results["table"], strict=True)
    dates = [written.get(pair, Written("", "", False)) for pair in pairs]
    results[["registered", "recorded", "late"]] = pd.DataFrame(dates, results.index)
    table = results[LEDGER_COLUMNS].replace(
        [math.inf, -math.inf], math.nan
    )  # The interval of one seed has no ends.
    if out is not None:
        history = claim_changes(claims_path)._replace(written=written)
        _replace(out, page(claims, results, history))
    if csv is not None:
        _replace(csv, table.to_csv(index=False, lineterminator="\n"))
    if notebooks is not None:
        for name in by_page(claims):
            if (path := Path(notebooks, name)).is_file():
                _append(path, own_rows(claims, results, name))


def own_rows(claims: Sequence[Claim], results: pd.DataFrame, notebook: str) -> str:
    """Write the section of a page that lists the verdicts of its claims.

    Args:
        claims: Claims of the claims file (:func:`whopays.claims.read_claims`).
        results: Verdicts of these claims (:func:`whopays.claims.evaluate_claims`).
        notebook: Path of the notebook, as the claims name it.
    """
    rows = counted(results)
    lines = []
    for claim in claims:
        for reading, read in claim.readings.items():
            if read.notebook == notebook:
                same = (rows["claim"] == claim.id) & (rows["reading"] == reading)
                own = [*rows[same & rows["counts"]].itertuples()][::-1]
                # Tables stand from the smallest runs to the largest.
                row = max(own, key=lambda row: row.verdict in DECIDED)
                others = {each.verdict for each in own} - {row.verdict}
                beside = [f"as {reading}"] * bool(claim.repaired) + [origin(row)]
                beside += [row.reason] * (row.verdict not in DECIDED)
                beside += [f"other tables: {', '.join(sorted(others))}"] * bool(others)
                found = Interval(row.estimate, row.low, row.high)
                lines.append(finding(read, row.verdict, found, "; ".join(filter(None, beside))))
    return rendered("own", claims=lines).rstrip()


def _append(path: Path, section: str) -> None:
    """Put the section into a notebook, once, before *Where this comes from* or at its end."""
    notebook = loads(path.read_text(encoding="utf-8"))
    # The section of an earlier build, by its id.
    cells = [cell for cell in notebook["cells"] if cell.get("id") != _CELL]
    ends = [
        place
        for place, cell in enumerate(cells)
        if "".join(cell["source"]).startswith("## Where this comes from")
    ]
    own = {"cell_type": "markdown", "id": _CELL, "metadata": {}, "source": section}
    cells.insert((ends or [len(cells)])[-1], own)
    _replace(path, dumps(notebook | {"cells": cells}, indent=1, ensure_ascii=False) + "\n")


def _replace(path: str | Path, text: str) -> None:
    with environment.written(path) as new:
        new.write_text(text, encoding="utf-8", newline="\n")
