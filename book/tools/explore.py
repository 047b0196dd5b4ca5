"""Data of the slider: accuracies of groups, as an element that ``slider.js`` brings to life.

Without scripts, and on paper, it is tables.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import values
from jinja2 import Environment
from markupsafe import Markup

from fairlib.statistics import t_interval
from whopays import effects, plots

CHOICES = {entry["title"]: entry for entry in values.SHOWN["choices"]}
"""Table, rows and unit of a choice, by its title."""

FLOOR = 100 * effects.FLOOR
"""Accuracy in percent below which a group, here an answer, has next to nothing left to lose."""

ENDS = {"rank 1": "largest", "rank 10": "smallest"}
"""Words for ranks of ten digits, of which every seed draws anew which is rare."""


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
    by_level = [plots.split_by_size(test[test["level"] == level]) for level in kept.index]
    groups = []
    for label, own in by_level[0].items():
        found = [t_interval(100 * level[label]["accuracy"]) for level in by_level]
        groups.append(
            {
                "name": ENDS.get(own["group"].iloc[0], own["group"].iloc[0]),
                "size": round(own["train_size"].mean()),
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


def html() -> str:
    """Write all choices as an element: their data, and tables for paper and without scripts."""
    choices = [choice(title) for title in CHOICES]
    # A slash after "<" would end the script, whatever the quotes around it.
    data = json.dumps({"choices": choices, "floor": FLOOR}, separators=(",", ":"))
    data = data.replace("</", "<\\/")
    template = Path(__file__).with_name("explore.html.jinja").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template).render(choices=choices, data=Markup(data), floor=FLOOR)
