"""The page of the ledger: a picture, a row for each claim, counts, and reservations."""

from collections.abc import Sequence
from html import escape as html
from pathlib import PurePosixPath
from typing import Any

import pandas as pd

from whopays.claims import EVIDENCE, PAPERS, RATE, Claim
from whopays.effects import FLOOR
from whopays.ledger import history as changed
from whopays.ledger.counting import counted, papers_table, stricter_table
from whopays.ledger.figure import CLIP, figure
from whopays.ledger.text import details, percent, rendered, slug
from whopays.prose import escape
from whopays.verdict import DECIDED, MIN_SEEDS


def page(claims: Sequence[Claim], results: pd.DataFrame, history: changed.History) -> str:
    """Write the text of the ledger.

    Args:
        claims: Claims of the claims file (:func:`whopays.claims.read_claims`).
        results: Verdicts of these claims (:func:`whopays.claims.evaluate_claims`).
        history: Changes of the claims file (:func:`whopays.ledger.claim_changes`).

    Returns:
        MyST markdown for a page in the folder ``book``; other pages link to a claim by
        ``[T-fig-1](#T-fig-1)``, other documents by ``ledger.html#T-fig-1``.
    """
    rows = counted(results)
    pairs = zip(rows["claim"], rows["table"], strict=True)
    rows["written"] = [history.written.get(pair, "") for pair in pairs]
    own = dict(iter(rows.groupby("claim", sort=False)))
    blocks = {
        f"[{paper}] {title}": "\n".join(
            line
            for claim in claims
            if claim.paper == paper
            for line in claim_block(claim, own[claim.id])
        )
        for paper, title in PAPERS.items()
    }
    judged = rows["verdict"].isin(DECIDED) & rows["counts"]
    tested = results[(results["seeds"] >= MIN_SEEDS) & results["p_value"].notna()]
    return rendered(
        "page",
        rows=rows,
        figure=figure(claims, results),
        blocks=blocks,
        papers=papers_table(rows),
        real=rows[judged & rows["evidence"].isin(EVIDENCE[2:])],
        stricter=stricter_table(rows),
        asked=_with_floors(claims),
        low=results[results["verdict"] == "undecided (floor)"],
        families=sorted(tested.groupby("family")["test"].nunique().items()),
        lost=list(results[~results["survives"]].itertuples()),
        late=changed.late_section(history.written),
        changes=changed.section(history, {claim.id for claim in claims}),
        limits={"clip": CLIP, "floor": percent(FLOOR), "rate": percent(RATE), "seeds": MIN_SEEDS},
    )


def claim_block(claim: Claim, rows: pd.DataFrame) -> list[str]:
    """Write the row of one claim: its place, statement, and the verdicts of its readings.

    Args:
        claim: The claim.
        rows: Its verdicts, with a column ``counts`` (:func:`whopays.ledger.counting.counted`) and
            a column ``written`` (:class:`whopays.ledger.history.Written`, or an empty text).
    """
    pages = dict.fromkeys(read.notebook for read in claim.readings.values() if read.notebook)
    names = " ".join(PurePosixPath(name).stem for name in pages)
    links = [f"[](../{name})" for name in pages]
    place = [
        f'<a class="claim-id" href="#{claim.id}">{claim.id}</a>',
        f"*{escape(claim.source)}*",
        claim.kind,
        *links,
    ]
    lines = [
        f'<div class="claim" id="{claim.id}" data-paper="{claim.paper}" data-page="{names}">',
        "",
    ]
    lines += [f"({claim.id})=", " &middot; ".join(place), ""]
    for reading, read in claim.readings.items():
        known = "" if claim.repaired is None else f"*As {reading}:* "
        lines += [
            known + escape(read.statement),
            "",
            *_verdicts(rows[rows["reading"] == reading]),
            "",
        ]
        if read.not_testable:
            lines += [escape(read.not_testable), ""]
    return [*lines, "</div>", ""]


def _verdicts(rows: pd.DataFrame) -> list[str]:
    """Write the verdicts of a reading as an HTML list: counted ones first, other data last."""
    # 0: counts; 1: does not count, without numbers; 2: other data.
    place = (~rows["counts"]).astype(int) + (~rows["counts"] & (rows["seeds"] > 0))
    ordered = rows.loc[place.sort_values(kind="stable").index]
    return ["<ul>", *map(_verdict, ordered.itertuples()), "</ul>"]


def _verdict(row: Any) -> str:
    given = {"verdict": row.verdict * row.counts, "evidence": row.evidence, "data": row.data}
    given["groups"] = row.groups * (row.seeds > 0)
    given["written"] = row.written and str(row.written).partition(" (")[0]
    data = " ".join(f'data-{name}="{html(value)}"' for name, value in given.items())
    other = "<i>elsewhere</i> " * (row.seeds > 0 and not row.counts)
    beside = "" if row.verdict == "not testable here" else f" {html(details(row))}"
    beside += row.written and f"; {row.written}"
    return f'<li {data}>{other}<b class="{slug(row.verdict)}">{html(row.verdict)}</b>{beside}</li>'


def _with_floors(claims: Sequence[Claim]) -> set[str]:
    """Collect the tables of claims that ask whether every group has something to lose."""
    readings = [read for claim in claims for read in claim.readings.values()]
    return {table for read in readings if read.floor is not None for table in read.tables.values()}
