"""Sentences of a page whose numbers and verdicts are computed, shown as Markdown."""

from __future__ import annotations

import functools
import re
import textwrap
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fairlib.statistics import Interval, t_interval
from whopays import claims, effects
from whopays.runs import project
from whopays.seeds import estimate
from whopays.verdict import DECIDED

if TYPE_CHECKING:
    import pandas as pd
    from IPython.display import Markdown


DECIDES = (
    "A verdict takes ten seeds, the data that a claim names, and groups with something to lose. "
    "Verdicts by recorded tables stand below, under *The claims of this page*."
)
"""Sentences that follow the verdicts of a run."""


def say(text: str) -> Markdown:
    """Show a text as Markdown: paragraphs and lists, with formulas between dollar signs.

    Args:
        text: Markdown, as a rule an f-string whose numbers are computed; the indentation that all
            of its lines share is taken away.
    """
    from IPython.display import Markdown

    return Markdown(textwrap.dedent(text).strip())


def in_short(text: str) -> Markdown:
    """Show the finding of a page, three sentences at most, as the quotation that opens it.

    Args:
        text: Markdown of one paragraph (:func:`say`).
    """
    return say("> **In short.** " + " ".join(text.split()))


def points(values: ArrayLike | Interval, *, interval: bool = False) -> str:
    """Format a mean over seeds in percentage points: ``3.1 points``, or ``3.1 points [1.4, 4.8]``.

    Args:
        values: One share per seed, ``(n,)``, for example of
            :func:`whopays.effects.drop_difference`; or a mean with its interval; or a single share,
            ``()``.
        interval: Whether to add the 95 % interval over seeds.

    Raises:
        ValueError: If a value is missing or not finite, or the interval is asked for and there is a
            single value.
    """
    if not isinstance(values, Interval):
        values = t_interval(np.atleast_1d(values))
    # The interval of one seed is infinite, its mean is not.
    if not np.isfinite(values if interval else values.estimate).all():
        raise ValueError(
            f"values must give a finite mean{' and interval' * interval}, got {values}"
        )
    mean, *ends = estimate(values).split(" ", 1)
    return " ".join([mean, "points", *(ends if interval else ())])


def lost(
    study: pd.DataFrame, arm: str, level: float, groups: str = "", share: float = 1 / 3
) -> str:
    """Format what an arm loses against the control, mean over the seeds: ``3.1 points``.

    Args:
        study: Table of :func:`fairlib.study` with arms.
        arm: Name of the arm.
        level: Its level.
        groups: ``"smallest"`` or ``"largest"``, for the mean accuracy of these groups; otherwise
            that of the test set.
        share: Share of the groups that these are.

    Raises:
        ValueError: If the table has no such arm or level.
    """
    where = {"arm": arm}
    if groups:
        return points(
            -effects.accuracy_change(study, level=level, groups=groups, share=share, where=where)
        )
    return points(-effects.overall_change(study, level=level, where=where))


def right(study: pd.DataFrame, group: str, arm: str, level: float | str | None = None) -> str:
    """Format how many of a hundred test samples of a group are classified right: ``17``.

    Args:
        study: Table of :func:`fairlib.study` with arms.
        group: Name of the group.
        arm: Name of the arm.
        level: Its level, or None for its control.

    Raises:
        ValueError: If the table has no such group, arm or level.
    """
    of = {"stage": "control"} if level is None else {"stage": "compressed", "level": level}
    rows = effects.select(study, split="test", group=group, arm=arm, **of)
    return f"{100 * rows['accuracy'].mean():.0f}"


class Said(NamedTuple):
    """Verdict of the ledger on a claim by one table; as a text in italics, ``*supported*``.

    Attributes:
        verdict: supported, reversed, no effect, undecided, undecided (floor) or not testable here.
        interval: Mean of the claim's statistic over seeds, with its 95 % interval.
        seeds: Number of seeds.
        reason: Why it is open, where there is more to say than the interval does.
        resplit: The verdict by the interval corrected for one data set.
    """

    verdict: str
    interval: Interval
    seeds: int
    reason: str
    resplit: str

    def __str__(self) -> str:
        return f"*{self.verdict}*"


def verdict(claim: str, table: str, *, expect: str = "") -> Said:
    """Look up the verdict on a claim, as printed, by one recorded table, and hold words to it.

    Args:
        claim: Id of the claim, ``"T-fig-1"``.
        table: Path of the table as the claims name it, a literal (:func:`whopays.tables.recorded`).
        expect: The verdict that the words of the page rest on; the page fails where the ledger says
            otherwise.

    Raises:
        ValueError: If there is no such claim, it names no such table, or the verdict is not the
            expected one.
    """
    said = _judged(claim, table)
    if expect and said.verdict != expect:
        raise ValueError(
            f"{claim} by {table} is {said.verdict}, the page says {expect}: change its words"
        )
    return said


@functools.cache
def _judged(claim: str, table: str) -> Said:
    """Judge a claim, as printed, by one of its tables: a page asks for few of them."""
    found = claims.registered()
    tables = sorted(found[claim].tables.values()) if claim in found else []
    if table not in tables:
        raise ValueError(f"no claim {claim!r} has a verdict by {table!r}; known: {tables}")
    asked = [replace(found[claim], repaired=None, tables={"default run": table})]
    (row,) = claims.evaluate_claims(asked, project()).itertuples()
    return Said(
        row.verdict,
        Interval(row.estimate, row.low, row.high),
        row.seeds,
        row.reason,
        row.resplit,
    )


def decided(table: pd.DataFrame, notebook: str) -> Markdown:
    """List the claims of a page that its own run decides, or say that it decides none.

    Args:
        table: Table of :func:`fairlib.study`.
        notebook: Path of the page, as the claims name it: ``"notebooks/pruning/removal.ipynb"``.
    """
    found = claims.verdicts(table, notebook)
    lines = []
    for row in found[found["decides"] & found["verdict"].isin(DECIDED)].itertuples():
        name, _, reading = row.Index.strip(")").partition(" (")
        read = claims.registered()[name].readings[reading or "printed"]
        lines.append(finding(read, row.verdict, Interval(row.estimate, row.low, row.high), reading))
    known = "\n".join(["these claims of the page and no other:\n", *lines, ""])
    return say(f"This run decides {known if lines else 'no claim of the page.'}\n{DECIDES}")


def finding(claim: claims.Claim, verdict: str, interval: Interval, beside: str = "") -> str:
    """Write a claim as an item of a list: its statement, verdict, interval and small code.

    Args:
        claim: The claim, in one reading.
        verdict: Its verdict.
        interval: Mean over seeds with its interval; NaN for none.
        beside: Further text, shown in parentheses.
    """
    text = f"- {escape(claim.statement)} **{verdict.capitalize()}**"
    if not np.isnan(interval.estimate):
        in_points = claim.in_points and points(interval, interval=True)
        text += f": {in_points or estimate(interval, 3)}"
    known = f" ({escape(beside)})" if beside else ""
    return f"{text}{known}. <small>[{claim.id}](#{claim.id})</small>"


def escape(text: str) -> str:
    """Escape a text for MyST: one line, $mathematics$ untouched, all other markup escaped."""
    parts = re.split(r"(\$[^$]+\$)", " ".join(text.split()))
    # Between dollar signs is mathematics, where a backslash is no escape.
    parts[::2] = [re.sub(r"([\\`*_<>\[\]{}|#~^$&@])", r"\\\1", part) for part in parts[::2]]
    # At the start of a line "1." or "-" would begin a list.
    return re.sub(r"^(\d*)([-+.)](?=\s|$)|\()", r"\1\\\2", "".join(parts))
