"""The picture of the ledger: every verdict an interval in units of its margin. Drawn by hand, since
it takes the page's colours in light and dark, and the ledger is written without matplotlib.
"""

from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

import pandas as pd

from whopays.claims import PAPERS, Claim
from whopays.ledger.text import origin, slug

CLIP = 8
WIDTH, SIDE, STEP, LABEL, AXIS = 340, 12, 4, 18, 34
ORDER = ("supported", "no effect", "undecided", "undecided (floor)", "reversed")


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
    """Intervals of all verdicts that decide and have numbers, by paper.

    Args:
        claims: Claims of the claims file.
        results: Verdicts (:func:`whopays.claims.evaluate_claims`).
    """
    criteria = {
        (claim.id, reading): read.criterion
        for claim in claims
        for reading, read in claim.readings.items()
        if read.statistic is not None
    }
    found: dict[str, list[Bar]] = {paper: [] for paper in PAPERS}
    for row in results[results["decides"] & (results["seeds"] > 0)].itertuples():
        criterion = criteria[row.claim, row.reading]
        unit = criterion.margin * (-1 if criterion.direction == "less" else 1)
        low, high = sorted((end - criterion.threshold) / unit for end in (row.low, row.high))
        estimate, worst = (
            (value - criterion.threshold) / unit for value in (row.estimate, row.worst_estimate)
        )
        reading = " as repaired" * (row.reading == "repaired")
        title = f"{row.claim}{reading}, {origin(row)}: {row.verdict}"
        bar = Bar(
            row.claim,
            row.verdict,
            criterion.direction == "equal",
            title,
            estimate,
            low,
            high,
            worst,
        )
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
    groups = []
    for verdict in ORDER:
        for equality in (False, True):
            group = [bar for bar in own if (bar.verdict, bar.equality) == (verdict, equality)]
            groups += (
                [(verdict, equality, sorted(group, key=lambda bar: -bar.estimate))] if group else []
            )
    marks, y = [], 26.0
    for verdict, equality, group in groups:
        text = f"{verdict}{', equality' * equality}: {len(group)}"
        marks.append(f'<text x="{SIDE}" y="{y + 12:g}" class="{slug(verdict)}">{text}</text>')
        y += LABEL
        for bar in group:
            marks.append(_mark(bar, y))
            y += STEP
    counts = ", ".join(f"{sum(bar.verdict == name for bar in own)} {name}" for name in ORDER)
    alt = (
        f"Intervals of {len(own)} verdicts on the claims of [{paper}], in units of the margin and positive in the "
        f"direction that is claimed, sorted by verdict: {counts}. The rows below have all numbers."
    )
    return [
        f'<svg viewBox="0 0 {WIDTH} {y + AXIS:g}" role="group" aria-label="{escape(alt)}">',
        f'<text x="{SIDE}" y="14" class="title">[{paper}] {escape(PAPERS[paper].partition(",")[0])}</text>',
        *_axis(22, y),
        *marks,
        "</svg>",
    ]


def _axis(top: float, bottom: float) -> list[str]:
    left, right = _x(-1), _x(1)
    lines = [
        f'<rect class="margin" x="{left:g}" y="{top:g}" width="{right - left:g}" height="{bottom - top:g}"/>'
    ]
    for tick in (-CLIP, -CLIP // 2, 0, CLIP // 2, CLIP):
        kind = "threshold" if tick == 0 else "tick"
        lines.append(f'<path class="{kind}" d="M{_x(tick):g} {top:g}V{bottom:g}"/>')
        lines.append(f'<text class="scale" x="{_x(tick):g}" y="{bottom + 12:g}">{tick:g}</text>')
    label = "margins beyond the threshold, as claimed: right"
    return [*lines, f'<text class="scale" x="{WIDTH / 2:g}" y="{bottom + 27:g}">{label}</text>']


def _mark(bar: Bar, y: float) -> str:
    """A bar with a link to its row; arrows where it is clipped, a dot at the worst cell."""
    low, high = max(bar.low, -CLIP), min(bar.high, CLIP)
    path = f"M{_x(low):.1f} {y:g}H{_x(high):.1f}" if low <= high else ""
    path += f"M{_x(-CLIP) + 1:g} {y - 2:g}l-4 2l4 2" * (bar.low < -CLIP)
    path += f"M{_x(CLIP) - 1:g} {y - 2:g}l4 2l-4 2" * (bar.high > CLIP)
    place = _x(min(max(bar.worst, -CLIP), CLIP))
    worst = f'<circle cx="{place:.1f}" cy="{y:g}" r="1.6"/>' if bar.worst == bar.worst else ""
    return (
        f'<a href="#{bar.claim}" tabindex="-1" class="{slug(bar.verdict)}"><title>{escape(bar.title)}</title>'
        f'<path d="{path}"/>{worst}</a>'
    )


def _x(value: Any) -> float:
    return WIDTH / 2 + value / CLIP * (WIDTH / 2 - SIDE)
