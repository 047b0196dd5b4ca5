"""The numbers in the README are those of the recorded table."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import values

from fairlib import statistics
from whopays import effects

ROOT = Path(__file__).parents[2]


def test_the_numbers_under_the_figure_are_computed_from_the_table_it_names():
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    table = pd.read_csv(ROOT / re.search(r"results/[\w./-]+\.csv", readme)[0])
    unequal, equal = {"setting": "unequal"}, {"setting": "equal"}
    losses = {
        "the smallest third loses {} points": -effects.accuracy_change(
            table, level=0.9, groups="smallest", where=unequal
        ),
        "the largest third {}": -effects.accuracy_change(
            table, level=0.9, groups="largest", where=unequal
        ),
        "the same classes differ by {}": effects.drop_difference(
            table, level=0.9, where=equal, rank_where=unequal
        ),
    }
    for words, lost in losses.items():
        estimate, low, high = (f"{100 * bound:.1f}" for bound in statistics.t_interval(lost))
        assert words.format(estimate) in readme and f"[{low}, {high}]" in readme
    assert f"Means over {table['seed'].nunique()} seeds" in readme


def test_what_it_says_of_faces_is_what_the_tables_say():
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert "where the network must name the race, not where it must name the gender" in readme
    assert "nor in a larger network, at 32 pixels no better than the small one" in readme
    for name in (
        "races_difference",
        "gender_difference",
        "resnet18_difference",
        "resnet18_accuracy",
    ):
        values.VALUES[name]()  # Raises where a table does not bear the words.
