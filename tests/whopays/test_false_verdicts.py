"""Tables without an effect, simulated for every statistic of the registry: a small form of the
benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import false_verdicts
import pandas as pd
import pytest

from fairlib.statistics import accuracies_by_chance
from whopays import claims, effects

CLAIMS = Path(__file__).parents[2] / "book" / "claims.yml"


def form(name: str, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    """What sets two uses of a statistic apart, beside the columns and the rows."""
    return name, arguments.get("of"), arguments.get("statistic"), "beyond" in arguments


def test_every_statistic_is_simulated_in_every_form_that_a_claim_uses():
    assert {case.name for case in false_verdicts.CASES} == set(effects.STATISTICS)
    readings = [
        read
        for claim in claims.read_claims(CLAIMS)
        for read in claim.readings.values()
        if read.statistic
    ]
    asked = {form(read.statistic["name"], read.statistic) for read in readings}
    assert asked - {form(case.name, case.arguments) for case in false_verdicts.CASES} == set()
    labels = [case.label for case in false_verdicts.CASES]
    assert len(set(labels)) == len(labels)


@pytest.mark.slow
@pytest.mark.parametrize("fall", [0.0, 0.15])
def test_tables_without_an_effect_rarely_give_a_verdict(fall):
    """None of the statistics is above 5 % at a level of 1 % for all of them together
    (Bonferroni)."""
    found = false_verdicts.run((3, 10, fall), simulations=40, at_once=40)
    held = found[~found["excused"]]
    assert held.loc[held["p_value"] < 0.01 / len(held), "claim"].tolist() == []


def test_the_recorded_simulation_names_the_statistics_that_no_claim_may_be_decided_by():
    recorded = pd.read_csv(false_verdicts.RESULTS / "false_verdicts.csv")
    settings = recorded[["groups", "seeds", "fall"]].drop_duplicates()
    assert [tuple(row) for row in settings.to_numpy()] == [
        tuple(row) for row in false_verdicts.SETTINGS
    ]
    assert set(recorded["claim"]) == {case.label for case in false_verdicts.CASES}
    assert (recorded["simulations"] >= 2000).all()
    held = recorded[~recorded["excused"]]
    assert held.loc[held["p_value"] < 0.01 / len(held), "claim"].tolist() == []
    assert held["false"].max() < 0.07
    losses = recorded[(recorded["claim"] == "contrast group_gap loss") & (recorded["fall"] == 0.15)]
    assert (losses["false"] > 0.25).all() and losses["excused"].all()


@pytest.mark.slow
def test_seeds_that_split_one_pool_assert_more_than_the_pool_shows():
    """Of 300 studies 5 % are 15; the interval over seeds is false in far more, the corrected one in
    no more than 5 %."""
    found = false_verdicts.one_pool((5, 10, 0.15), simulations=300).set_index("claim")
    assert set(found.index) == set(false_verdicts.POOLED)
    assert found.loc["drop_difference", "false"] > 0.1
    assert (found["corrected"] < 0.05).all()
    recorded = pd.read_csv(false_verdicts.RESULTS / "false_verdicts_one_pool.csv")
    settings = recorded[["groups", "seeds", "fall"]].drop_duplicates().to_numpy()
    assert [tuple(row) for row in settings] == [tuple(s) for s in false_verdicts.POOL_SETTINGS]
    assert (recorded["simulations"] >= 2000).all()


def test_the_gap_of_a_less_accurate_network_is_wider_by_chance():
    """Ten groups of 55 samples: .077, where the true accuracies are alike before (.95) and after
    (.80)."""
    before, after = (
        accuracies_by_chance([55] * 10, a, draws=20_000, seed=i) for i, a in enumerate((0.95, 0.8))
    )
    gap = (after.max(axis=1) - after.min(axis=1)).mean() - (
        before.max(axis=1) - before.min(axis=1)
    ).mean()
    assert gap == pytest.approx(0.077, abs=0.002)
