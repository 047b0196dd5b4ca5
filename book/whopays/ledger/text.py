"""Texts of a row of the ledger, and the markup of the page."""

import functools
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from whopays.conditions import NO_GROUPS, made_by
from whopays.plots import plain
from whopays.prose import escape
from whopays.runs import project
from whopays.seeds import Interval, estimate
from whopays.verdict import DECIDED


def rendered(name: str, /, **values: Any) -> str:
    """Fill in a Jinja template of this folder, in which functions of this module are filters."""
    return _template(name).render(values)


@functools.cache
def _template(name: str) -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "myst": escape,
        "estimate": estimate_text,
        "origin": origin,
        "p": p_text,
    }
    return environment.get_template(f"{name}.md.jinja")


def pipe_table(
    head: Sequence[str], rows: Iterable[Iterable[Any]], align: str = "---" + " --:" * 9
) -> list[str]:
    """Write a MyST table, of numbers but for its first column unless ``align`` says otherwise."""
    lines: list[Iterable[Any]] = [head, align.split()[: len(head)], *rows]
    return ["| " + " | ".join(map(str, cells)) + " |" for cells in lines]


def slug(verdict: str) -> str:
    """Name the style of a verdict."""
    return re.sub(r"\W+", "-", verdict).strip("-")


def percent(share: float) -> str:
    """Write a share in percent."""
    return f"{100 * share:g} %"


def estimate_text(row: Any, of: str = "estimate low high") -> str:
    """Write estimate and interval, or other numbers of a row; shares in percentage points."""
    found = Interval(*(getattr(row, name) for name in of.split()))
    return estimate(found, None if row.in_points else 3) + " points" * row.in_points


def origin(row: Any) -> str:
    """Write kind of evidence and data."""
    return ", ".join(filter(None, [row.evidence, plain(row.data)]))


@functools.cache
def networks(table: str) -> str:
    """Describe the networks of a recorded table: their names, weights to two digits, and pixels."""
    import fairlib

    given = made_by(project() / table).get("parameters", {})
    names, size = given.get("model") or given.get("models") or [], given.get("image_size")
    names = names.split(",") if isinstance(names, str) else names
    parts = []
    for name in names if isinstance(size, int) else []:
        width = f":width={given['width']:g}" if given.get("width", 1) != 1 else ""
        model = fairlib.build(name + width, num_classes=5, in_channels=3, image_size=size or 8)
        weights = float(f"{sum(each.numel() for each in model.parameters()):.2g}")
        parts.append(f"{plain(name)} of {weights:,.0f} weights")
    return f"{' and '.join(parts)} at {size} pixels" if parts else ""


def details(row: Any) -> str:
    """Write all that goes beside a verdict, from the estimate to reservations."""
    lines = rendered("details", row=row, networks=networks, no_groups=NO_GROUPS, decided=DECIDED)
    return "; ".join(filter(None, lines.splitlines()))


def p_text(row: Any) -> str:
    """Write the p-value after a comma; nothing if no test was made."""
    if math.isnan(row.p_value):
        return ""
    name = "p of equivalence" if row.equivalence else "p"
    return f", {name} < 0.001" if row.p_value < 0.001 else f", {name} = {row.p_value:.3f}"
