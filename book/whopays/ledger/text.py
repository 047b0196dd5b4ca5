"""Texts of a row of the ledger, and the markup of the page."""

import functools
import math
import re
from collections.abc import Iterable
from typing import Any

import pandas as pd

from whopays.conditions import NO_GROUPS, made_by
from whopays.runs import project
from whopays.verdict import DECIDED


def pipe_row(cells: Iterable[Any]) -> str:
    """Write a row of a MyST table."""
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def folded(title: str, lines: Iterable[str]) -> list[str]:
    """Fold lines under a title."""
    return [f"::::{{dropdown}} {title}", *lines, "::::"]


def slug(verdict: str) -> str:
    """Name the style of a verdict."""
    return re.sub(r"\W+", "-", verdict).strip("-")


def percent(share: float) -> str:
    """Write a share in percent."""
    return f"{100 * share:g} %"


def estimate_text(row: Any) -> str:
    """Write estimate and interval."""
    return f"{row.estimate:.3f} [{row.low:.3f}, {row.high:.3f}]"


def origin(row: Any) -> str:
    """Write kind of evidence and data."""
    return ", ".join(filter(None, [row.evidence, row.data]))


@functools.cache
def networks(table: str) -> str:
    """Describe the networks of a recorded table: their names, weights to two digits, and pixels."""
    import fairlib

    given = made_by(project() / table).get("parameters", {})
    names, size = given.get("model") or given.get("models") or [], given.get("image_size")
    names = names.split(",") if isinstance(names, str) else names
    parts = []
    for name in names if isinstance(size, int) else []:
        if given.get("width", 1) != 1:
            name += f":width={given['width']:g}"
        model = fairlib.build(name, num_classes=5, in_channels=3, image_size=size or 8)
        weights = float(f"{sum(each.numel() for each in model.parameters()):.2g}")
        parts.append(f"{name} of {weights:,.0f} weights")
    return f"{' and '.join(parts)} at {size} pixels" if parts else ""


def details(row: Any) -> str:
    """Write all that goes beside a verdict, from the estimate to reservations."""
    parts = [f"{estimate_text(row)}, {row.seeds} seeds{p_text(row)}"] if row.seeds else []
    if origin(row):
        parts.append(origin(row))
    if (
        row.evidence in ("run at scale", "paper-scale run")
        and row.seeds
        and (used := networks(row.table))
    ):
        parts.append(used)
    if row.worst_cell:
        parts.append(f"mean of the cells; the worst is {row.worst_cell}: {row.worst_estimate:.3f}")
    if row.reason:
        parts.append(row.reason)
    if row.seeds and row.groups != NO_GROUPS:
        parts.append(row.groups)
    if row.overlap:
        parts.append(_resplit(row))
    if row.earlier:
        parts.append(f"an earlier design: {row.earlier}")
    if row.verdict == "undecided" and row.seeds > 1 and not pd.isna(row.needed):
        parts.append(f"if the mean stays where it is, it takes about {row.needed} seeds")
    if not row.survives:
        parts.append("does not survive the false-discovery rate")
    return "; ".join(parts)


def _resplit(row: Any) -> str:
    """Write the interval of seeds that split the same data, and what it changes."""
    text = f"corrected for one data set [{row.resplit_low:.3f}, {row.resplit_high:.3f}]"
    if row.assumed:
        text += f", with {row.overlap:g} test samples for each training sample assumed"
    return text + f": {row.resplit}" * (row.verdict in DECIDED and row.resplit != row.verdict)


def p_text(row: Any) -> str:
    """Write the p-value after a comma; nothing if no test was made."""
    if math.isnan(row.p_value):
        return ""
    name = "p of equivalence" if row.equivalence else "p"
    return f", {name} < 0.001" if row.p_value < 0.001 else f", {name} = {row.p_value:.3f}"
