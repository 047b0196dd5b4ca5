"""The picture of the ledger: every verdict an interval in units of its margin.

It is written as SVG by hand: it takes the page's colours in light and dark, each line leads to the
row of its claim, and the ledger is written without matplotlib.
"""

import math
from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import Any

import pandas as pd

from whopays.claims import PAPERS, Claim
from whopays.ledger.text import origin, slug

CLIP = 8  # Margins at which the axis ends.
WIDTH, SIDE, STEP, LABEL, AXIS = 340, 12, 3, 18, 34
LEFT, RIGHT = SIDE, WIDTH - SIDE
ORDER = (
    *("supported", "supported, negligible", "no effect", "undecided", "undecided (floor)"),
    *("reversed, negligible", "reversed"),
)


Key = tuple[str, str]
"""Id of a claim, and *printed* or *repaired*."""


def figure(claims: Sequence[Claim], results: pd.DataFrame) -> list[str]:
    """Draw the intervals as inline SVG, a panel for each paper: the lines of an HTML block.

    Drawn are verdicts that decide and have numbers, but not those of definitions.

    Args:
        claims: Claims of the claims file.
        results: Verdicts (:func:`whopays.claims.evaluate_claims`).
    """
    readings = {(claim.id, name): read for claim in claims for name, read in claim.readings.items()}
    drawn = results["decides"] & (results["seeds"] > 0) & (results["kind"] != "definition")
    panels = [
        line
        for paper in PAPERS
        for line in _panel(paper, results[drawn & (results["paper"] == paper)], readings)
    ]
    return ['<div class="ledger-figure">', *panels, "</div>"]


def _panel(paper: str, rows: pd.DataFrame, readings: dict[Key, Claim]) -> list[str]:
    """Draw the panel of a paper, or nothing where no row is drawn."""
    bars: list[tuple[Any, ...]] = []
    for row in rows.itertuples():
        criterion = readings[row.claim, row.reading].criterion
        ends = (row.estimate, row.low, row.high, row.worst_estimate)
        mean, low, high, worst = map(criterion.in_margins, ends)
        # Equalities are apart: for them a place to the right is a value above the claimed one, and
        # not more of what is claimed.
        order = ORDER.index(row.verdict), criterion.direction == "equal", -mean
        bars.append((order, row, *sorted((low, high)), worst))
    bars.sort(key=lambda bar: bar[0])
    marks, y = [], 26
    for (place, equality), group in groupby(bars, key=lambda bar: bar[0][:2]):
        own, verdict = list(group), ORDER[place]
        text = f"{verdict}{', equality' if equality else ''}: {len(own)}"
        marks.append(f'<text x="{SIDE}" y="{y + 12}" class="{slug(verdict)}">{text}</text>')
        y += LABEL
        for _, row, low, high, worst in own:
            marks.append(_mark(row, low, high, worst, y))
            y += STEP
    if not bars:
        return []
    # Read aloud in place of the picture, which the lines of the list repeat with all numbers.
    counts = ", ".join(f"{(rows['verdict'] == name).sum()} {name}" for name in ORDER)
    alt = (
        f"Intervals of {len(bars)} verdicts on the claims of [{paper}], in units of the margin and "
        f"positive in the direction that is claimed, sorted by verdict: {counts}. The rows below "
        "have all numbers."
    )
    title = f"[{paper}] {escape(PAPERS[paper].partition(',')[0])}"
    return [
        f'<svg viewBox="0 0 {WIDTH} {y + AXIS}" role="group" aria-label="{escape(alt)}" '
        f'data-paper="{paper}">',
        f'<text x="{SIDE}" y="14" class="title">{title}</text>',
        *_axis(22, y),
        *marks,
        "</svg>",
    ]


def _axis(top: int, bottom: int) -> list[str]:
    size = f'width="{_x(1) - _x(-1)}" height="{bottom - top}"'
    lines = [f'<rect class="margin" x="{_x(-1)}" y="{top}" {size}/>']
    for tick in (-CLIP, -CLIP // 2, 0, CLIP // 2, CLIP):
        kind = "tick" if tick else "threshold"
        lines.append(f'<path class="{kind}" d="M{_x(tick)} {top}V{bottom}"/>')
        lines.append(f'<text class="scale" x="{_x(tick)}" y="{bottom + 12}">{tick}</text>')
    label = "margins beyond the threshold, as claimed: right"
    return [*lines, f'<text class="scale" x="{WIDTH // 2}" y="{bottom + 27}">{label}</text>']


def _mark(row: Any, low: float, high: float, worst: float, y: int) -> str:
    """Write a bar with a link to its row; arrows where it is clipped, a dot at the worst cell."""
    parts = []
    if low <= CLIP and high >= -CLIP:
        parts.append(f"M{_x(low)} {y}H{_x(high)}")
    if low < -CLIP:
        parts.append(f"M{LEFT + 1} {y - 2}l-4 2l4 2")
    if high > CLIP:
        parts.append(f"M{RIGHT - 1} {y - 2}l4 2l-4 2")
    dot = "" if math.isnan(worst) else f'<circle cx="{_x(worst)}" cy="{y}" r="1.6"/>'
    reading = " as repaired" if row.reading == "repaired" else ""
    title = f"{row.claim}{reading}, {origin(row)}: {row.verdict}"
    return (
        f'<a href="#{row.claim}" tabindex="-1" class="{slug(row.verdict)}">'
        f'<title>{escape(title)}</title><path d="{"".join(parts)}"/>{dot}</a>'
    )


def _x(margins: float) -> float:
    """Place on the x axis; beyond its ends at the ends."""
    clipped = min(max(margins, -CLIP), CLIP)
    return round(WIDTH / 2 + clipped / CLIP * (WIDTH / 2 - SIDE), 1)
