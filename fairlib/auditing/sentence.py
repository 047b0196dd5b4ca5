"""The sentence of an audit: the group that compression cost most, and how certain that is."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from fairlib.auditing.findings import Findings

_NAMED = 5  # Groups of a list that a sentence names.
_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff\ud800-\udfff]"
)

Namer = Callable[[str], str]
"""Function that writes the name of a group: bold, with escapes."""


def visible(value: object) -> str:
    """Write a text with control characters and marks of direction as escapes."""
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), str(value))


def sentence(report: Findings, name: Namer = visible) -> str:
    """Name the group that compression cost most, with the certainty of that.

    The certainty is the p-value, and the difference that would have been missed half the time.
    Points are of accuracy, with their interval in brackets. A second sentence names groups that are
    too small to be judged.

    Args:
        report: Findings of an audit.
        name: Function that writes the name of a group; nothing else in the sentence needs an
            escape.
    """
    known = report.contrasts.dropna(subset=["difference"])
    if known.empty:
        said = _alone(report, name)
    elif np.ptp(report.table["drop"][known.index]) < 1e-9:
        said = _alike(report, known, name)
    else:
        said = _compared(report, known, name)
    if few := report.too_small:
        are = "group is" if len(few) == 1 else "groups are"
        said += f". {len(few)} {are} too small to be judged: {_listed(few, name)}"
    return f"On these samples compression {said}."


def _alone(report: Findings, name: Namer) -> str:
    """Describe the only group that is judged, or all samples if none is."""
    who, row, why = "all", report.table.loc["all"], "no group can be judged"
    for judged in report.contrasts.index:
        who, row = name(judged), report.table.loc[judged]
        why = "there is no other group to compare it with"
    verb = "cost" if row["drop"] > 0 else "gave"
    return f"{verb} {who} ({row['size']:,.0f} samples) {_cost(row)}; {why}"


def _alike(report: Findings, known: pd.DataFrame, name: Namer) -> str:
    """Describe groups whose drops are all the same."""
    least, judged = known["detectable"].idxmax(), _judged(report)
    drop = report.table["drop"][least]
    changed = f"every group{judged} by {_points(-drop)[0]} points" if drop else f"no group{judged}"
    missed = _missed(known["detectable"][least])
    return f"changed the accuracy of {changed}; for {name(least)}, {missed}"


def _compared(report: Findings, known: pd.DataFrame, name: Namer) -> str:
    """Describe the group with the largest drop, and others that fared worse beyond chance."""
    worst = report.table["drop"][known.index].idxmax()
    row, found, beyond = report.table.loc[worst], known.loc[worst], report.beyond_chance
    who = f"{name(worst)} ({row['size']:,.0f} samples)"
    gap = _points(found["difference"])[0]
    others, correction = "all others together", f", corrected for {len(known)} groups"
    if len(known) == 2:
        others, correction = name(known.index.drop(worst)[0]), ""
    if row["drop"] > 0:
        said = f"cost {who} most: {_cost(row)}, {gap} more than {others}"
    else:
        said = (
            f"cost no group{_judged(report)} accuracy: {who} gained least, {_cost(row)}, "
            f"{gap} less than {others}"
        )
    verdict = "is beyond chance" if worst in beyond else "cannot be told from chance"
    said += f", which {verdict} (p {p_value_text(found['p_holm'])}{correction})"
    said += f"; {_missed(found['detectable'])}"
    # The largest drop is often that of the smallest group, a matter of chance, beside a smaller
    # drop of a large group that is none: a sentence on the largest one alone would hide it.
    if further := [other for other in beyond if other != worst]:
        too = "too, " if worst in beyond else ""
        said += f"; {_listed(further, name)} fared worse than all others together, {too}"
        said += "beyond chance"
    return said


def _judged(report: Findings) -> str:
    return " that can be judged" if report.too_small else ""


def _listed(names: Sequence[str], name: Namer) -> str:
    rest = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(name, names[:_NAMED])) + rest


def _cost(row: pd.Series) -> str:
    """Write the loss or the gain of a group with its interval, as a positive number of points."""
    drop, low, high = row[["drop", "drop_low", "drop_high"]]
    if drop <= 0:
        drop, low, high = -drop, -high, -low
    value, *bounds = _points(drop, low, high)
    return f"{value} points of accuracy [{', '.join(bounds)}]"


def _points(*values: float) -> list[str]:
    """Write shares in points, with a decimal if the first one is below 10."""
    # The "z" of the format writes a small loss such as -0.0004 as 0.0 and not as -0.0 points.
    decimals = int(abs(values[0]) < 0.1)
    return [f"{100 * value:z.{decimals}f}" for value in values]


def _missed(detectable: float) -> str:
    if detectable >= 1:
        return "no difference would have been found reliably"
    points = _points(detectable)[0]
    return f"a difference below {points} points would have been missed more often than not"


def p_value_text(value: float) -> str:
    """Write a p-value with its sign of relation."""
    return "≤ 0.001" if value <= 0.001 else f"= {value:.2g}"
