"""The page of the ledger: a picture, a row for each claim, counts, and reservations."""

from collections.abc import Sequence
from html import escape as html
from pathlib import PurePosixPath
from typing import Any

import pandas as pd

from whopays.claims import EVIDENCE, PAPERS, RATE, Claim
from whopays.effects import FLOOR
from whopays.ledger import history as changed
from whopays.ledger.counting import counted, pages_table, papers_table, stricter_table
from whopays.ledger.figure import CLIP, figure
from whopays.ledger.text import (
    details,
    estimate_text,
    folded,
    origin,
    p_text,
    percent,
    slug,
)
from whopays.prose import escape
from whopays.verdict import DECIDED, MIN_SEEDS

_INTRODUCTION = (
    "Every claim of the papers, and this book's own, with what the recorded tables say about it. "
    "This page is computed from the claims file, these tables and the file's history; nothing on "
    "it is typed. It begins with the rows of one paper, and a filter leads to the others. [How to "
    "read it](reading-the-ledger.md) says how a verdict is made. The same as a table, for those "
    "who compute: `whopays ledger --csv ledger.csv`."
)
_FIGURE = (
    "Each line is the 95 % interval of one verdict that counts, in units of the claim's margin: 0 "
    "is the threshold, the shaded band the margin. To the right lies what is claimed; for "
    f"equalities, a value above the claimed one. Arrows: the interval goes on beyond {CLIP} "
    "margins. Dots: the worst cell of a statement about each of several. A line leads to its row."
)
_COUNTS = (
    "Claims, and in parentheses distinct tests: rows that ask the same of the same numbers are "
    "one test. A claim counts once in each verdict that a table of its data gave, so that the "
    "verdicts add up to more than the claims; it is *decided* where one of them is supported, "
    "reversed or no effect. Definitions are counted by themselves and not among the supported. A "
    "repaired claim counts as printed; how it counts as repaired stands apart."
)
_STRICTER = (
    "Verdicts that count and rest on an interval, by who the groups are: "
    "where *the group is the answer*, the network has to name the group, and a group that loses is "
    "an answer that is given less often; only where it is not are the groups people who are asked "
    "something else. Below, how many stand (on their side, negligible or not) with the interval "
    "[corrected for one data set](#one-data-set), after Holm's correction of Student's p-values "
    "for all tests, and if every margin were twice as wide."
)


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
    parts = ["(ledger)=", "# The ledger of claims", "", _INTRODUCTION, ""]
    parts += ["## All verdicts at a glance", "", _FIGURE, "", *figure(claims, results), ""]
    own_rows = dict(iter(rows.groupby("claim", sort=False)))
    for paper, title in PAPERS.items():
        if own := [claim for claim in claims if claim.paper == paper]:
            parts += [f"## [{paper}] {title}", ""]
            parts += [line for claim in own for line in claim_block(claim, own_rows[claim.id])]
    parts += ["## Counted", "", _COUNTS, "", *papers_table(rows), "", _on_real_images(rows), ""]
    parts += [*folded("By page", ["", *pages_table(claims, rows), ""]), ""]
    parts += ["## Under stricter rules", "", _STRICTER, "", *stricter_table(rows), ""]
    parts += ["## One test, several rows", "", *_shared_tests(claims, results), ""]
    parts += ["## Groups at the floor", "", *_floors(claims, results), ""]
    parts += [
        "## Verdicts that do not survive the false-discovery rate",
        "",
        *_discoveries(results),
        "",
    ]
    parts += ["## Written after its table", "", *changed.late_section(history.written), ""]
    parts += [
        "## Changes of registered claims",
        "",
        *changed.section(history, {claim.id for claim in claims}),
        "",
    ]
    return "\n".join(parts)


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


def _on_real_images(rows: pd.DataFrame) -> str:
    real = rows[
        rows["counts"] & rows["evidence"].isin(EVIDENCE[2:]) & rows["verdict"].isin(DECIDED)
    ]
    data = sorted({name for names in real["data"] for name in names.split(", ") if name})
    names = f" ({', '.join(data)})" if data else ""
    return (
        f"On real images that the book does not carry{names} stand {real['claim'].nunique()} of "
        f"{rows['claim'].nunique()} claims, by {real['test'].nunique()} distinct tests: these are "
        "the real-data runs, the runs at scale and the paper-scale runs."
    )


def _shared_tests(claims: Sequence[Claim], results: pd.DataFrame) -> list[str]:
    statements = {
        (claim.id, name): read.statement
        for claim in claims
        for name, read in claim.readings.items()
    }
    lines = []
    for _, own in results[results["seeds"] > 0].groupby("test", sort=False):
        if len({statements[row.claim, row.reading] for row in own.itertuples()}) > 1:
            row = next(own.itertuples())
            names = ", ".join(f"[{name}](#{name})" for name in dict.fromkeys(own["claim"]))
            lines.append(f"- {names}: {row.verdict} {escape(estimate_text(row))}, {origin(row)}")
    if not lines:
        return ["No two rows with different statements rest on one test."]
    text = (
        "Different statements for which the same was asked of the same numbers: they stand or "
        "fall together."
    )
    return [text, "", *folded(f"{len(lines)} tests stand behind several rows", lines)]


def _floors(claims: Sequence[Claim], results: pd.DataFrame) -> list[str]:
    asked = {
        table
        for claim in claims
        for read in claim.readings.values()
        for table in read.tables.values()
        if read.floor is not None
    }
    low = results[results["verdict"] == "undecided (floor)"]
    lines = [
        "Claims about who loses have the condition that every group has something to lose; "
        f"{low['table'].nunique()} of their {len(asked)} tables do not meet it. A group is at the "
        f"floor where the control avoids less than {percent(FLOOR)} of the errors of a constant "
        "answer, or can lose less than the margin.",
        "",
    ]
    for table, rows in low.groupby("table"):
        reasons = ", ".join(sorted({*rows["reason"]}))
        lines.append(f"- {escape(table)}, {rows['claim'].nunique()} claims: {escape(reasons)}")
    return lines


def _discoveries(results: pd.DataFrame) -> list[str]:
    tested = results[(results["seeds"] >= MIN_SEEDS) & results["p_value"].notna()]
    counts = tested.groupby("family")["test"].nunique()
    families = " and ".join(f"{number} tests of {name}" for name, number in sorted(counts.items()))
    lost = results[~results["survives"]]
    if not families:
        return [f"No test has {MIN_SEEDS} seeds or more yet."]
    rule = f"Benjamini and Hochberg at a rate of {percent(RATE)}, for each family apart"
    head = f"{rule}: {families}, of {MIN_SEEDS} seeds or more"
    if lost.empty:
        return [f"{head}. Every verdict survives."]
    lines = [
        f"- [{row.claim}](#{row.claim}), {origin(row)}: {row.verdict}{p_text(row)}"
        for row in lost.itertuples()
    ]
    return [f"{head}. These do not survive:", "", *lines]
