"""Sentences of a page whose numbers and verdicts are computed, shown as Markdown."""

from __future__ import annotations

import functools
import textwrap
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fairlib.statistics import Interval, t_interval
from whopays import claims, effects
from whopays.runs import project

if TYPE_CHECKING:
    import pandas as pd
    from IPython.display import Markdown


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
    # A mean that rounds to -0.0 is no loss.
    mean, low, high = (f"{100 * end:.1f}".replace("-0.0", "0.0") for end in values)
    return f"{mean} points" + f" [{low}, {high}]" * interval


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
    """

    verdict: str
    interval: Interval
    seeds: int
    reason: str

    def __str__(self) -> str:
        return f"*{self.verdict}*"


def verdict(claim: str, table: str, *, expect: str = "", reading: str = "printed") -> Said:
    """Look up the verdict on a claim by one recorded table, and hold words to it.

    Args:
        claim: Id of the claim, ``"T-fig-1"``.
        table: Path of the table as the claims name it, a literal (:func:`whopays.tables.recorded`).
        expect: The verdict that the words of the page rest on; the page fails where the ledger says
            otherwise.
        reading: The claim as ``"printed"`` or as ``"repaired"``.

    Raises:
        ValueError: If there is no such claim, it names no such table, or the verdict is not the
            expected one.
    """
    found = _verdicts(claim)
    if (reading, table) not in found:
        raise ValueError(
            f"claim {claim!r} has no verdict as {reading} by {table!r}; known: {sorted(found)}"
        )
    said = found[reading, table]
    if expect and said.verdict != expect:
        raise ValueError(
            f"{claim} by {table} is {said.verdict}, the page says {expect}: change its words"
        )
    return said


@functools.cache
def _verdicts(claim: str) -> dict[tuple[str, str], Said]:
    """Judge a claim, by reading and table."""
    if claim not in claims.registered():
        raise ValueError(f"there is no claim {claim!r} in book/claims.yml")
    found = claims.evaluate_claims([claims.registered()[claim]], project())
    said = {}
    for row in found.itertuples():
        interval = Interval(row.estimate, row.low, row.high)
        said[row.reading, row.table] = Said(row.verdict, interval, row.seeds, row.reason)
    return said
