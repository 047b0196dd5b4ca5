"""Sentences with computed numbers, and words that are held to the ledger's verdicts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fairlib.statistics import t_interval
from whopays import claims, prose

ROOT = Path(__file__).parents[2]
TABLE = "results/pruning/matthew-effect-utkface.csv"


def test_points_are_the_mean_in_hundredths_with_students_interval():
    assert prose.points([0.02, 0.04, 0.03]) == "3.0 points"
    low, high = 3 - 4.302653 * 1 / np.sqrt(3), 3 + 4.302653 * 1 / np.sqrt(3)
    assert prose.points([0.02, 0.04, 0.03], interval=True) == f"3.0 points [{low:.1f}, {high:.1f}]"
    assert prose.points(t_interval([0.02, 0.04]), interval=True) == "3.0 points [-9.7, 15.7]"
    assert prose.points(-0.0001) == "0.0 points"


def test_what_an_arm_loses_and_what_a_group_has_are_means_over_seeds():
    """By hand: *few*, a quarter of the test set, falls from 60 and 80 of a hundred to 40; *many*
    stays at 90."""
    sizes, after = {"many": 75, "few": 25}, {"many": (0.9, 0.9), "few": (0.4, 0.4)}
    before = {"many": (0.9, 0.9), "few": (0.6, 0.8)}
    rows = [
        {
            "seed": seed,
            "arm": arm,
            "stage": stage,
            "level": level,
            "split": split,
            "group": group,
            "size": size,
        }
        | {"accuracy": accuracies[group][seed] if (arm, split) == ("a", "test") else 1}
        for stage, level, accuracies in (("control", 32, before), ("compressed", 2, after))
        for arm in ("a", "b")
        for split in ("train", "test")
        for group, size in sizes.items()
        for seed in (0, 1)
    ]
    study = pd.DataFrame(rows).assign(when="never")
    assert prose.right(study, "few", "a") == "70"
    assert prose.right(study, "few", "a", 2) == "40"
    assert prose.lost(study, "a", 2, "smallest") == "30.0 points"
    assert prose.lost(study, "a", 2, "largest") == "0.0 points"
    assert prose.lost(study, "a", 2) == "7.5 points"
    with pytest.raises(ValueError, match="share of 1"):
        prose.lost(study, "a", 2, "smallest", share=1)
    assert prose.lost(study, "b", 2, "smallest") == "0.0 points"
    with pytest.raises(ValueError, match="level"):
        prose.lost(study, "a", 4)
    with pytest.raises(ValueError, match="nobody"):
        prose.right(study, "nobody", "a")


def test_a_text_loses_the_indentation_that_its_lines_share():
    assert prose.say("\n    - one\n      more\n").data == "- one\n  more"
    assert prose.in_short("\n found\n  so ").data == "> **In short.** found so"


def test_the_verdict_of_a_claim_is_the_ledgers(monkeypatch):
    monkeypatch.chdir(ROOT / "tests")
    own = [
        claim for claim in claims.read_claims(ROOT / "book" / "claims.yml") if claim.id == "T-fig-1"
    ]
    rows = claims.evaluate_claims(own, ROOT)
    row = rows[rows["table"] == TABLE].iloc[0]
    found = prose.verdict("T-fig-1", TABLE, expect=row["verdict"])
    assert (found.verdict, found.interval.estimate, found.seeds) == (
        row["verdict"],
        row["estimate"],
        row["seeds"],
    )
    assert f"it is {found}" == f"it is *{row['verdict']}*"


def test_words_that_the_ledger_does_not_bear_out_stop_the_page(monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(ValueError, match=r"T-fig-1 by .*change its words"):
        prose.verdict("T-fig-1", TABLE, expect="reversed")
    with pytest.raises(ValueError, match="no claim 'T-fig-0'"):
        prose.verdict("T-fig-0", TABLE)
    with pytest.raises(ValueError, match=r"known: .*utkface"):
        prose.verdict("T-fig-1", "results/nothing.csv")


def test_a_run_lists_what_it_decides_in_words_or_says_that_it_decides_nothing(monkeypatch):
    monkeypatch.chdir(ROOT)
    study, page = pd.read_csv(TABLE), "notebooks/pruning/matthew-effect.ipynb"
    spread = prose.points(prose.verdict("T-fig-1", TABLE).interval, interval=True)
    line = f"{claims.registered()['T-fig-1'].statement} **Supported**: {spread}. <small>[T-fig-1]"
    assert line in prose.decided(study, page).data
    few = prose.decided(study[study["seed"] < study["seed"].min() + 2], page).data
    assert few.startswith("This run decides no claim of the page.") and "- " not in few
