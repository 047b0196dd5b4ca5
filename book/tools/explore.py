"""Data of the slider: accuracies of groups, as an element that ``slider.js`` brings to life.

Without scripts, and on paper, it is tables.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import values
from jinja2 import Environment
from markupsafe import Markup

from fairlib.statistics import t_interval
from whopays import effects

RANKS = ("largest", "2nd", "3rd", *(f"{place}th" for place in range(4, 10)), "smallest")
"""Names of ten classes by size, where every seed draws anew which digit is rare."""

CHOICES = {entry["title"]: entry for entry in values.SHOWN["choices"]}
"""Table, rows and unit of a choice, by its title."""

FLOOR = 100 * effects.FLOOR
"""Accuracy in percent below which a group, here an answer, has next to nothing left to lose."""


def choice(title: str) -> dict[str, Any]:
    """Compute test accuracies of all groups in percent over what is kept, the control first.

    Returns:
        ``title``; ``unit``; ``levels``, shares kept as texts; ``seeds``; and ``groups``, the
        largest first, each with ``name``, ``size`` (mean number of training images), and for each
        level ``accuracy`` (mean over seeds) and ``half`` (half of its 95 % interval).
    """
    entry = CHOICES[title]
    table = effects.select(values.table(f"results/{entry['table']}.csv"), **entry["rows"])
    # Some tables were recorded with the training sizes and some without: they are computed alike
    # for all.
    table = table.drop(columns="train_size", errors="ignore")
    train = {"stage": "control", "split": "train"}
    table = effects.attach(table, {"train_size": "size"}, on=["seed", "group"], where=train)
    test = effects.select(table, split="test", stage=["control", "compressed"])
    # Levels mean different things for different ways; the share kept is the common axis.
    kept = test.groupby("level")["kept"].mean().sort_values(ascending=False)
    # Where every seed draws the sizes anew, the largest group is another one in each, and a group
    # is shown by its rank instead of its name.
    largest = test.loc[test.groupby("seed")["train_size"].idxmax(), "group"]
    named = largest.nunique() == 1
    by_level = [_by_size(test[test["level"] == level], names=named) for level in kept.index]
    groups = []
    for place, (label, size) in enumerate(by_level[0].columns[::-1], start=1):
        found = [t_interval(100 * own[label, size]) for own in by_level]
        groups.append(
            {
                "name": label or RANKS[place - 1],
                "size": round(size),
                "accuracy": [round(float(one.estimate), 1) for one in found],
                "half": [round(float(one.high - one.estimate), 1) for one in found],
            }
        )
    return {
        "title": title,
        "unit": entry["unit"],
        "levels": [f"{float(f'{100 * share:.2g}'):g} %" for share in kept],
        "seeds": int(test["seed"].nunique()),
        "groups": groups,
    }


def _by_size(rows: pd.DataFrame, *, names: bool) -> pd.DataFrame:
    """Sort accuracies by seed (rows) and group: columns (name, mean size), the smallest first.

    Where every seed draws the sizes anew, a group is the one of that rank in each seed and has no
    name.
    """
    if not names:
        ranked = effects.groups_by_size(rows, column="accuracy")
        return ranked.set_axis(pd.MultiIndex.from_tuples([("", size) for size in ranked]), axis=1)
    sizes = rows.groupby("group")["train_size"].mean().sort_values(kind="stable")
    found = rows.pivot(index="seed", columns="group", values="accuracy")[list(sizes.index)]
    return found.set_axis(pd.MultiIndex.from_tuples(list(sizes.items())), axis=1)


def html() -> str:
    """Write all choices as an element: their data, and tables for paper and without scripts."""
    choices = [choice(title) for title in CHOICES]
    # A slash after "<" would end the script, whatever the quotes around it.
    data = json.dumps({"choices": choices, "floor": FLOOR}, separators=(",", ":"))
    data = data.replace("</", "<\\/")
    template = Path(__file__).with_name("explore.html.jinja").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template).render(choices=choices, data=Markup(data), floor=FLOOR)
