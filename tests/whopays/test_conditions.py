"""Who the groups of a table are, how its seeds overlap, and which verdicts rounding turns."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from claim_samples import claim, spread, study_table, write

from whopays import claims, conditions
from whopays.ledger import text

GAP = {"name": "contrast", "of": "group_gap", "where": {"split": "test"}}


def table(data: str = "utkface", **columns) -> pd.DataFrame:
    sizes = {0: [100, 50, 10], 1: [10, 50, 100]}
    known = {0: [0.9, 0.8, 0.7], 1: [0.9, 0.8, 0.7]}
    return study_table(sizes, known, known, data=data, **columns)


@pytest.mark.parametrize(
    ("data", "given", "expected"),
    [
        ("digits", {"target": "", "group": ""}, conditions.IS_ANSWER),
        ("digits", {"target": "digit", "group": "mark"}, conditions.NOT_ANSWER),
        ("utkface", {"target": "race", "group": "race"}, conditions.IS_ANSWER),
        ("utkface", {"target": "gender", "group": ""}, conditions.NOT_ANSWER),
        ("utkface", {"target": "", "group": "race"}, conditions.IS_ANSWER),
        ("utkface", {"attribute": "age4"}, conditions.IS_ANSWER),
        ("celeba", {"target": "", "group": ""}, conditions.NOT_ANSWER),
        ("celeba", {"target": ["Blond_Hair", "Young"], "group": "gender"}, conditions.NOT_ANSWER),
        ("synthetic-faces", {"target": "expression", "group": ""}, conditions.NOT_ANSWER),
        ("utkface", {}, conditions.NO_GROUPS),
    ],
)
def test_whether_the_group_is_the_answer_follows_from_the_parameters(data, given, expected):
    assert conditions.group_and_answer(GAP, table(data), given) == expected


def test_a_setting_with_another_target_and_a_statistic_without_groups_are_told_apart():
    given = {"target": "race", "group": "race"}
    other = GAP | {"where": {"setting": "other target"}}
    assert conditions.group_and_answer(other, table(), given) == conditions.NOT_ANSWER
    two = {"where": {"task": "two classes"}, "against": {"task": "five classes"}}
    assert conditions.group_and_answer(GAP | two, table(), given) == conditions.IS_ANSWER
    del two["against"]
    assert conditions.group_and_answer(GAP | two, table(), given) == conditions.NOT_ANSWER
    marks = {"setting": "corner", "group": ["plain, frequent", "marked, frequent"]}
    assert conditions.group_and_answer(GAP | {"where": marks}, table("digits"), given) == (
        conditions.NOT_ANSWER
    )
    marks["group"] = ["plain, frequent", "plain, rare"]
    assert conditions.group_and_answer(GAP | {"where": marks}, table("digits"), given) == (
        conditions.IS_ANSWER
    )
    every = GAP | {"each": {"setting": ["unequal", "other target"]}, "where": None}
    assert conditions.group_and_answer(every, table(), given) == conditions.IS_ANSWER
    for statistic in (
        {"name": "overall_change", "level": 0.9},
        {"name": "contrast", "of": "overall_accuracy"},
    ):
        assert conditions.group_and_answer(statistic, table(), given) == conditions.NO_GROUPS
    theory = table().drop(columns="data")
    assert conditions.group_and_answer(GAP, theory, given) == conditions.NO_GROUPS
    mean = {"name": "column_mean", "column": "seconds"}
    ungrouped = table().drop(columns="group")
    assert conditions.group_and_answer(mean, ungrouped, given) == conditions.NO_GROUPS


def test_the_share_of_test_samples_is_that_of_the_rows_of_the_claim():
    """The parts for testing have 10, 11 and 12 samples, those for training 160 in all."""
    both = pd.concat([table(setting="unequal"), table("synthetic-faces", setting="drawn")])
    here = {"where": {"setting": "unequal", "split": "test"}}
    assert conditions.share_of_test(here, both) == (pytest.approx(33 / 160), False)
    assert conditions.share_of_test({"where": {"setting": "drawn"}}, both) == (0.0, False)
    assert conditions.share_of_test({}, both.drop(columns="size")) == (0.25, True)
    assert conditions.share_of_test({}, both[both["split"] == "test"]) == (0.25, True)
    assert conditions.share_of_test({}, pd.DataFrame({"seed": [0]})) == (0.0, False)


def test_the_ledger_has_the_verdicts_by_stricter_rules(tmp_path):
    """The interval .1 -+ .0377 is widened by the root of 3.5, to .0706, and that of .05 -+ .0377
    reaches 0; with a margin of .15 in place of .03 no verdict is more than negligible."""
    write(tmp_path / "far.csv", value=spread(0.1, 0.05), data="digits")
    write(tmp_path / "near.csv", value=spread(0.05, 0.05), data="digits")
    write(tmp_path / "drawn.csv", value=spread(0.05, 0.05), data="synthetic-faces")
    asked = {"name": "column_mean", "column": "value"}
    entries = [
        claim(id=f"H-{name}", statistic=asked, margin=0.075, tables={"default run": f"{name}.csv"})
        for name in ("far", "near", "drawn")
    ]
    found = claims.evaluate_claims(entries, tmp_path).set_index("claim")
    assert found["verdict"].tolist() == ["supported"] * 3
    assert found["resplit"].tolist() == ["supported", "undecided", "supported"]
    assert found.loc["H-far", ["resplit_low", "resplit_high"]].tolist() == pytest.approx(
        [0.1 - 0.0706, 0.1 + 0.0706], abs=1e-4
    )
    assert found["overlap"].tolist() == [0.25, 0.25, 0] and found["assumed"].tolist() == [
        True, True, False,
    ]  # fmt: skip
    assert found["doubled"].tolist() == ["supported, negligible"] * 3
    # Student's p-values are .00027 and .0154; sign flips would give 2 / 1024 to the first.
    assert found["holm"].all()
    many = [
        claim(
            id=f"H-none-{i}",
            statistic=asked,
            threshold=0.05 + i / 1e4,
            tables={"default run": "near.csv"},
        )
        for i in range(20)
    ]
    crowded = claims.evaluate_claims([*entries, *many], tmp_path).set_index("claim")
    assert crowded["holm"].drop([entry.id for entry in many]).tolist() == [True, False, False]


@pytest.mark.parametrize("name", conditions.PATHS)
def test_a_verdict_that_depends_on_the_numerical_path_is_undecided(name, tmp_path):
    path, ways = tmp_path / name, conditions.PATHS[name]
    path.parent.mkdir(parents=True)
    rows = [
        ("values.csv", "H-x", "printed", "no effect", "supported"),
        ("values.csv", "H-y", "printed", "supported", "supported"),
    ]
    columns = ["table", "claim", "reading", *ways]
    pd.DataFrame(rows, columns=columns).to_csv(path, index=False)
    write(tmp_path / "values.csv", value=spread(0.1, 0.05))
    asked = {"name": "column_mean", "column": "value"}
    entries = [claim(statistic=asked), claim(id="H-y", statistic=asked)]
    found = claims.evaluate_claims(entries, tmp_path).set_index("claim")
    assert found["verdict"].tolist() == ["undecided", "supported"]
    first, second = ways.values()
    said = f"numerical path: no effect with {first}, supported with {second}"
    assert said in found.loc["H-x", "reason"]
    path.unlink()
    assert claims.evaluate_claims(entries, tmp_path)["verdict"].tolist() == ["supported"] * 2


def test_a_table_tells_of_the_design_that_it_replaced(tmp_path):
    Path(tmp_path, "grid.yml").write_text("earlier: fewer pictures\nruns: []\n")
    Path(tmp_path, "new.json").write_text(json.dumps({"grid": "grid.yml", "parameters": {}}))
    Path(tmp_path, "gone.json").write_text(json.dumps({"grid": "gone.yml", "parameters": {}}))
    assert conditions.earlier_design(tmp_path, "new.csv") == "fewer pictures"
    assert conditions.earlier_design(tmp_path, "gone.csv") == ""
    assert conditions.earlier_design(tmp_path, "none.csv") == ""
    write(tmp_path / "new.csv", value=spread(0.1, 0.05))
    entry = claim(
        statistic={"name": "column_mean", "column": "value"}, tables={"default run": "new.csv"}
    )
    row = next(claims.evaluate_claims([entry], tmp_path).itertuples())
    assert text.details(row).endswith("an earlier design: fewer pictures")


def test_a_group_that_is_not_the_answer_needs_a_constant_answer_whatever_the_claim_says(tmp_path):
    rows = pd.concat(
        [table("celeba").assign(seed=2 * shift + table()["seed"]) for shift in range(6)]
    )
    rows.to_csv(tmp_path / "values.csv", index=False)
    entry = claim(statistic={"name": "drop_difference", "level": 0.9}, floor={})
    given = {"parameters": {"target": "Blond_Hair", "group": "gender"}}
    assert claims.evaluate_claims([entry], tmp_path)["verdict"].item() == "no effect"
    (tmp_path / "values.json").write_text(json.dumps(given))
    found = claims.evaluate_claims([entry], tmp_path).iloc[0]
    assert found["verdict"] == "undecided (floor)" and "constant answer" in found["reason"]
    assert found["groups"] == conditions.NOT_ANSWER
