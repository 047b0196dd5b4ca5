"""The picture of the ledger: every verdict an interval in units of its margin.

It is written as SVG by hand: it takes the page's colours in light and dark, each line leads to the
row of its claim, and the ledger is written without matplotlib.
"""

import math
from collections.abc import Sequence
from html import escape
from itertools import product
from typing import NamedTuple

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


class Bar(NamedTuple):
    """An interval in units of the claim's margin, positive in the direction that is claimed."""

    claim: str
    verdict: str
    equality: bool
    title: str
    estimate: float
    low: float
    high: float
    worst: float


def bars(claims: Sequence[Claim], results: pd.DataFrame) -> dict[str, list[Bar]]:
    """Compute the intervals of verdicts that decide and have numbers, not of definitions, by paper.

    Args:
        claims: Claims of the claims file.
        results: Verdicts (:func:`whopays.claims.evaluate_claims`).
    """
    readings = {(claim.id, name): read for claim in claims for name, read in claim.readings.items()}
    found: dict[str, list[Bar]] = {paper: [] for paper in PAPERS}
    drawn = results["decides"] & (results["seeds"] > 0) & (results["kind"] != "definition")
    for row in results[drawn].itertuples():
        criterion = readings[row.claim, row.reading].criterion
        ends = (row.estimate, row.low, row.high, row.worst_estimate)
        estimate, low, high, worst = (criterion.in_margins(end) for end in ends)
        reading = " as repaired" if row.reading == "repaired" else ""
        title = f"{row.claim}{reading}, {origin(row)}: {row.verdict}"
        equality, (low, high) = criterion.direction == "equal", sorted((low, high))
        bar = Bar(row.claim, row.verdict, equality, title, estimate, low, high, worst)
        found[row.paper].append(bar)
    return {paper: own for paper, own in found.items() if own}


def figure(claims: Sequence[Claim], results: pd.DataFrame) -> list[str]:
    """Draw the intervals as inline SVG, a panel for each paper: the lines of an HTML block.

    Args:
        claims: Claims of the claims file.
        results: Verdicts (:func:`whopays.claims.evaluate_claims`).
    """
    panels = [line for paper, own in bars(claims, results).items() for line in _panel(paper, own)]
    return ['<div class="ledger-figure">', *panels, "</div>"]


def _panel(paper: str, own: Sequence[Bar]) -> list[str]:
    marks, y = [], 26
    # Equalities are apart: for them a place to the right is a value above the claimed one, and not
    # more of what is claimed.
    for verdict, equality in product(ORDER, (False, True)):
        group = [bar for bar in own if (bar.verdict, bar.equality) == (verdict, equality)]
        if not group:
            continue
        text = f"{verdict}{', equality' if equality else ''}: {len(group)}"
        marks.append(f'<text x="{SIDE}" y="{y + 12}" class="{slug(verdict)}">{text}</text>')
        y += LABEL
        for bar in sorted(group, key=lambda bar: -bar.estimate):
            marks.append(_mark(bar, y))
            y += STEP
    # Read aloud in place of the picture, which the lines of the list repeat with all numbers.
    counts = ", ".join(f"{sum(bar.verdict == name for bar in own)} {name}" for name in ORDER)
    alt = (
        f"Intervals of {len(own)} verdicts on the claims of [{paper}], in units of the margin and "
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


def _mark(bar: Bar, y: int) -> str:
    """Write a bar with a link to its row; arrows where it is clipped, a dot at the worst cell."""
    parts = []
    if bar.low <= CLIP and bar.high >= -CLIP:
        parts.append(f"M{_x(bar.low)} {y}H{_x(bar.high)}")
    if bar.low < -CLIP:
        parts.append(f"M{LEFT + 1} {y - 2}l-4 2l4 2")
    if bar.high > CLIP:
        parts.append(f"M{RIGHT - 1} {y - 2}l4 2l-4 2")
    worst = "" if math.isnan(bar.worst) else f'<circle cx="{_x(bar.worst)}" cy="{y}" r="1.6"/>'
    return (
        f'<a href="#{bar.claim}" tabindex="-1" class="{slug(bar.verdict)}">'
        f'<title>{escape(bar.title)}</title><path d="{"".join(parts)}"/>{worst}</a>'
    )


def _x(margins: float) -> float:
    """Place on the x axis; beyond its ends at the ends."""
    clipped = min(max(margins, -CLIP), CLIP)
    return round(WIDTH / 2 + clipped / CLIP * (WIDTH / 2 - SIDE), 1)
