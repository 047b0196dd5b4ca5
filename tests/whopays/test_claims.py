"""Verdicts on numbers worked by hand, and a claims file from which nothing of the checklist may
fall out."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from claim_samples import ENTRY, TABLE, claim, spread, untested, write

from whopays import claims, effects, tables
from whopays.verdict import judge

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "book" / "claims.yml"

CHECKLIST = {
    "T": """
        eq-1 eq-2 eq-3 eq-4 eq-5 eq-6 eq-7 eq-8 eq-9 eq-10 eq-11 eq-12 eq-13 eq-14 eq-15
        thm-1 thm-2 cor-1 prop-1 prop-2 prop-2-ce prop-2-mse prop-3
        fig-1 fig-1-minority fig-1-majority fig-2 fig-3 fig-4a fig-4b fig-4c fig-5 fig-5-accuracy fig-6 fig-7
        fig-7-gradient fig-7-distance fig-8 fig-8-accuracy fig-8-ethnicity fig-8-age fig-9 fig-9-cifar10 fig-9-svhn
        fig-10 fig-11 fig-12 fig-13 fig-14 fig-15
        tab-1 tab-1-accuracy tab-1-age tab-1-gender tab-1-svhn tab-1-mnist
        tab-2 tab-2-before tab-2-accuracy tab-2-violation
        verbal-cor-1-risk verbal-6.1-equal-losses verbal-6.1-equal-losses-hessian verbal-6.2-accuracy
        verbal-6.2-after-before verbal-6.2-equalize verbal-6.2-cost verbal-c2-gradient verbal-c2-hessian
        verbal-c3-all-others verbal-c3-male verbal-1-low-loses-more verbal-1-small-dense verbal-6.1-smaller-norms
        verbal-6.2-high-rates verbal-7-distance""",
    "B": """
        def-1 def-2 def-3 problem-fair problem-accuracy problem-pruning
        eq-1 eq-2 eq-3 eq-4 eq-4-convex eq-5 eq-inner eq-mask
        fig-1 fig-1-bias fig-1-sequential fig-2
        fig-3 fig-3a fig-3b fig-3c fig-3d fig-3e fig-3f fig-3g fig-3h
        fig-4 fig-4a fig-4b fig-4c fig-4d fig-4e fig-4f fig-4g fig-4h
        fig-5 fig-5-lfw fig-5-celeba fig-6 fig-7 fig-7-mask fig-7-weights fig-8 fig-8-weights fig-8-mask
        verbal-5-blond-accuracy verbal-5-blond-bias verbal-5-fairgrape
        fig-3-accuracy verbal-1-repair verbal-1-bias verbal-4.1-degradation verbal-4.1-celeba verbal-4.1-bags
        verbal-4.1-mobilenet verbal-4.1-ablations verbal-5-baselines verbal-5-fair verbal-5-fpgm verbal-5-degradation
        verbal-5-degradation-faces verbal-5-validation""",
    "D": """
        def-accuracy-parity prop-4.1 prop-4.2 prop-4.3 thm-4.4 prop-4.5 eq-1 eq-2 eq-3 eq-4 a.1
        eq-relative-drop alg-1 eq-mitigated-drop
        fig-1 fig-2a fig-2b fig-3 fig-4 fig-5a fig-5b
        fig-6 fig-6-r18-snl-svhn fig-6-r18-snl-cifar10 fig-6-r18-snl-age fig-6-r18-snl-race
        fig-6-r34-snl-age fig-6-r34-snl-race fig-6-r18-dr-age fig-6-r18-dr-race
        fig-7a fig-7b fig-7c fig-7d fig-8 fig-8-left fig-8-middle fig-8-right
        fig-9 fig-9-snl-age fig-9-snl-race fig-9-dr-age fig-9-dr-race fig-10a fig-10b
        fig-11 fig-11-r18-cifar10 fig-11-r18-svhn fig-11-r34-cifar10 fig-11-r34-svhn
        fig-12 fig-12-r34-age fig-12-r34-race fig-12-r34-cifar10 fig-12-r18-cifar10
        fig-13 fig-14 fig-15a fig-15b fig-15c
        verbal-7-snl-consistent verbal-7-smallest-dr verbal-d1-gradient verbal-d1-distance
        fig-1-majority fig-1-others fig-3-budget fig-4-each fig-7-grows fig-9-ages verbal-1-grows verbal-5-distance
        verbal-5-senet verbal-6-majority verbal-6-dr-high verbal-8-gradients""",
}


@pytest.fixture(autouse=True)
def column_statistic(monkeypatch):
    monkeypatch.setitem(
        claims.STATISTICS, "column", lambda table, *, column: table.set_index("seed")[column]
    )


# The claims file


def test_the_file_holds_every_row_of_the_checklist_and_nothing_else():
    expected = {f"{paper}-{name}" for paper, names in CHECKLIST.items() for name in names.split()}
    assert {entry.id for entry in claims.read_claims(FILE) if entry.paper != "H"} == expected


def test_paths_in_the_file_are_of_the_contracts_form():
    tested = [entry for entry in claims.read_claims(FILE) if entry.statistic]
    assert {"T-fig-1", "T-fig-1-majority", "T-fig-1-minority", "H-null-matthew"} <= {
        entry.id for entry in tested
    }
    for entry in tested:
        part, name = re.fullmatch(r"notebooks/([a-z-]+)/([a-z-]+)\.ipynb", entry.notebook).groups()
        forms = {"default run": rf"_build/runs/{part}/{name}/records\.parquet",
                 "embedded study": rf"results/{part}/{name}-(([a-z]+-)?study|vgg19|networks|resnet34)\.csv",
                 "real-data run": rf"results/{part}/{name}-[a-z0-9-]+\.csv",
                 "run at scale": rf"results/{part}/({name}|[tbd]-(fig|tab))-[a-z0-9-]+\.csv",
                 "paper-scale run": rf"results/{part}/[tbd]-(fig|tab)-[a-z0-9-]+\.csv"}  # fmt: skip
        for evidence, table in entry.tables.items():
            assert re.fullmatch(forms[evidence], table), (entry.id, table)
            at_scale = tables.AT_SCALE.fullmatch(Path(table).stem) is not None
            assert at_scale == evidence.endswith(("at scale", "paper-scale run"))


def test_effect_and_null_control_are_judged_by_the_same_measure():
    by_id = {entry.id: entry for entry in claims.read_claims(FILE)}
    effect, null = by_id["T-fig-1"], by_id["H-null-matthew"]
    ranked = {"where": None, "rank_where": effect.arguments["where"]}
    assert effect.arguments | ranked == null.arguments | {"where": None}
    assert (effect.threshold, effect.margin, effect.tables) == (
        null.threshold,
        null.margin,
        null.tables,
    )
    assert (effect.direction, null.direction) == ("greater", "equal")
    assert (effect.arguments["where"], null.arguments["where"]) == (
        {"setting": "unequal"},
        {"setting": "equal"},
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"id": "X-fig-1"}, "claim 'X-fig-1': unknown paper 'X'; known: T, B, D, H"),
        ({"id": "T fig 1"}, "an id is the letter"),
        ({"kind": "guess"}, "unknown kind 'guess'; known: definition"),
        ({"statement": ""}, "statement must be a text"),
        ({"statistic": {"name": "median"}}, "claim 'H-x': unknown statistic 'median'; known: acc"),
        ({"statistic": {"name": "column"}}, "argument: 'column'"),
        ({"statistic": {"name": "column", "column": "a", "levle": 1}}, "unexpected keyword argument 'levle'"),
        *(
            ({"statistic": {"name": "column", "column": "a", "each": each}}, "each must map columns to lists")
            for each in ({}, {"level": []}, ["level"], {"level": "every"}, {"level": 0.9}, None, {"against": {}})
        ),
        ({"direction": "up"}, "unknown direction 'up'; known: greater, less, equal"),
        ({"threshold": "0"}, "threshold must be a number, got '0'"),
        ({"margin": 0}, "margin must lie in (0, inf), got 0"),
        ({"tables": {}}, "needs the tables that test it"),
        ({"tables": {"my laptop": "a.csv"}}, "unknown kind of evidence 'my laptop'"),
        ({"tables": ["a.csv"]}, "tables must map"),
        ({"not_testable": "no data"}, "either a statistic or the reason not_testable"),
        ({"statistic": None}, "without a statistic there can be no direction, threshold, margin, tables"),
        ({"data": "utkfaces/race"}, "unknown data set 'utkfaces'; known: "),
        ({"repaired": {"statement": "better"}}, "repaired must have a statement and a statistic"),
        ({"repaired": {"statement": "b", "statistic": {"name": "median"}}}, "unknown statistic 'median'"),
    ],
)  # fmt: skip
def test_a_field_without_meaning_is_named_with_its_claim(changed, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        claim(**changed)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("claims: []", "must be a list of entries"),
        ("- {source: x}", "each with an id"),
        ("- {id: T-a, margn: 1}", "claim 'T-a': fields missing: .*'margin'.*, unknown: .'margn'."),
        (
            2
            * ENTRY.format(
                id="T-a", statistic="{name: column, column: a}", direction="less", threshold=0
            ),
            "claim 'T-a': duplicate id",
        ),
    ],
)
def test_a_broken_file_is_refused(tmp_path, text, message):
    path = tmp_path / "claims.yml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        claims.read_claims(path)


# Verdicts


@pytest.mark.parametrize(
    ("values", "direction", "expected"),
    [
        (spread(0.1, 0.05), "greater", "supported"),
        (spread(0.1, 0.05), "less", "reversed"),
        (spread(-0.1, 0.05), "greater", "reversed"),
        (spread(-0.1, 0.05), "less", "supported"),
        (spread(0.0, 0.03), "greater", "no effect"),
        (spread(0.01, 0.02), "less", "no effect"),
        (spread(0.0, 0.05), "greater", "undecided"),
        (spread(0.02, 0.05), "less", "undecided"),
        (spread(0.0, 0.03), "equal", "supported"),
        (spread(0.02, 0.01), "equal", "supported"),
        (spread(0.1, 0.05), "equal", "reversed"),
        (spread(-0.1, 0.05), "equal", "reversed"),
        (spread(0.029, 0.01), "equal", "undecided"),
        (np.zeros(10), "greater", "no effect"),
    ],
)
def test_each_verdict(values, direction, expected):
    found = judge(values, claim(direction).criterion)
    assert found.name == expected
    assert found.seeds == 10
    assert found.interval.estimate == pytest.approx(values.mean())
    assert (found.needed is not None) == (expected == "undecided")
    shifted = judge(values + 0.7, claim(direction, threshold=0.7).criterion)
    assert shifted.name == expected


def test_fewer_seeds_than_ten_decide_nothing():
    found = judge(spread(0.1, 0.05, 9), claim().criterion)
    assert (found.name, found.reason, found.needed) == (
        "undecided",
        "9 seeds; a verdict takes 10",
        10,
    )
    assert found.interval.low > 0
    assert judge([0.1], claim().criterion).name == "undecided"


def test_p_values_are_of_the_test_that_the_verdict_rests_on():
    pattern = 1 / 2**10
    assert judge(spread(0.1, 0.05), claim().criterion).p_value == 2 * pattern
    assert judge(spread(0.0, 0.02), claim().criterion).p_value == pattern
    assert judge(spread(0.0, 0.02), claim("equal").criterion).p_value == pattern
    assert judge(spread(0.1, 0.05), claim("equal").criterion).p_value == 2 * pattern
    # Against the end of the margin, where five of the ten values lie: they say nothing.
    assert judge(spread(0.05, 0.02), claim("equal").criterion).p_value == 2 / 2**5


@pytest.mark.parametrize("direction", ["greater", "less", "equal"])
@pytest.mark.parametrize("center", [0.004, 0.02, 0.035, -0.02])
def test_the_number_of_seeds_that_it_takes_decides(center, direction):
    found = judge(spread(center, 0.1), claim(direction).criterion)
    assert found.name == "undecided"
    assert found.needed > 10
    again = np.resize(spread(center, 0.1), found.needed + found.needed % 2)
    assert judge(again, claim(direction).criterion).name != "undecided"


def test_a_missing_value_is_no_verdict():
    with pytest.raises(ValueError, match="finite"):
        judge([0.1, np.nan], claim().criterion)
    with pytest.raises(ValueError, match="has no statistic"):
        _ = untested().criterion


# Evaluation


def test_each_kind_of_evidence_gets_its_own_verdict(tmp_path):
    write(tmp_path / "run.parquet", value=spread(0.1, 0.05))
    write(tmp_path / "faces.csv", value=spread(-0.1, 0.05))
    tables = {
        "default run": "run.parquet",
        "embedded study": "none.csv",
        "real-data run": "faces.csv",
    }
    entries = [
        claim(tables=tables),
        untested(id="T-fig-2"),
        untested(id="B-fig-2", not_testable="a sketch"),
    ]
    results = claims.evaluate_claims(entries, tmp_path)
    assert results["claim"].tolist() == ["H-x", "H-x", "H-x", "T-fig-2", "B-fig-2"]
    verdicts = ["supported", "undecided", "reversed", "undecided", "not testable here"]
    assert results["verdict"].tolist() == verdicts
    reasons = ["", "its table has not been recorded", "", "nothing tests it yet", "a sketch"]
    assert results["reason"].tolist() == reasons
    assert results["estimate"].tolist()[:3] == pytest.approx([0.1, np.nan, -0.1], nan_ok=True)
    assert results["survives"].all()


def test_a_table_that_lacks_what_the_statistic_needs_stops_the_build(tmp_path):
    TABLE.to_csv(tmp_path / "values.csv", index=False)
    entry = claim(statistic={"name": "drop_difference", "level": 0.95})
    with pytest.raises(
        ValueError, match=r"claim 'H-x', .*values\.csv: .*no compressed test rows at level 0\.95"
    ):
        claims.evaluate_claims([entry], tmp_path)


def test_a_group_without_accuracy_gets_no_verdict(tmp_path):
    TABLE.assign(accuracy=TABLE["accuracy"].where(TABLE["group"] != "C")).to_csv(
        tmp_path / "values.csv", index=False
    )
    with pytest.raises(ValueError, match="claim 'H-x'"):
        claims.evaluate_claims(
            [claim(statistic={"name": "drop_difference", "level": 0.9})], tmp_path
        )


def test_verdicts_that_chance_explains_among_many_do_not_survive(tmp_path):
    weak = np.array([0.2, 0.3, 0.4, 0.5, 0.6, 0.3, 0.5, -0.2, -0.1, 0.4])  # p = .02 by sign flips
    none = np.resize([-0.1, 0.1], 10)
    nothing = {f"none-{i}": none * (1 + i / 100) for i in range(20)}
    write(tmp_path / "values.csv", weak=weak, strong=np.full(10, 0.5), **nothing)
    few = [claim(id="H-weak", statistic={"name": "column", "column": "weak"})]
    many = [claim(id=f"H-{name}", statistic={"name": "column", "column": name}) for name in nothing]
    alone = claims.evaluate_claims(few, tmp_path).set_index("claim")
    assert alone.loc["H-weak", "verdict"] == "supported"
    assert 0.01 < alone.loc["H-weak", "p_value"] < 0.05
    assert alone.loc["H-weak", "survives"]
    strong = claim(id="H-strong", statistic={"name": "column", "column": "strong"})
    crowded = claims.evaluate_claims([*few, *many, strong], tmp_path).set_index("claim")
    assert not crowded.loc["H-weak", "survives"]
    assert crowded.loc["H-strong", "survives"]
    assert crowded.loc["H-none-0", "survives"]  # undecided: there is no verdict to lose
    again = [claim(id=f"H-again-{i}", statistic=strong.statistic) for i in range(30)]
    echoed = claims.evaluate_claims([*few, *many, strong, *again], tmp_path).set_index("claim")
    assert (
        echoed["test"].nunique() == 22 and not echoed.loc["H-weak", "survives"]
    )  # The same test again adds nothing.


def test_a_table_of_other_data_is_shown_elsewhere_and_decides_nothing(tmp_path):
    values = spread(0.1, 0.05)
    for name, data, attribute in (
        ("digits", "digits", ""),
        ("races", "utkface", "race"),
        ("ages", "utkface", "age9"),
    ):
        write(tmp_path / f"{name}.csv", value=values, data=[data] * len(values))
        (tmp_path / f"{name}.json").write_text(
            json.dumps({"parameters": {"target": attribute, "limit": 3000}})
        )
    for data, expected in (
        ("utkface/age9", "ages"),
        ("utkface", "ages races"),
        (None, "ages digits races"),
    ):
        tables = [
            ("embedded study", "digits.csv"),
            ("real-data run", "races.csv"),
            ("default run", "ages.csv"),
        ]
        found = claims.evaluate_claims([claim(data=data, tables=dict(tables))], tmp_path)
        assert (
            " ".join(sorted(found.loc[found["decides"], "table"].str.removesuffix(".csv")))
            == expected
        )
        assert (found["verdict"] == "supported").all()  # Shown, whether it counts or not.


def test_a_statement_that_was_repaired_has_a_verdict_for_each_reading(tmp_path):
    write(tmp_path / "values.csv", printed=spread(-0.1, 0.05), repaired=spread(0.1, 0.05))
    better = {
        "statement": "what can be proved",
        "statistic": {"name": "column", "column": "repaired"},
    }
    entry = claim(statistic={"name": "column", "column": "printed"}, repaired=better)
    found = claims.evaluate_claims([entry], tmp_path)
    assert found["reading"].tolist() == ["printed", "repaired"]
    assert found["verdict"].tolist() == ["reversed", "supported"]
    assert (found["claim"] == "H-x").all()
    criterion = {"tables": entry.tables, "direction": "less", "threshold": 0.0, "margin": 0.1}
    undefined = untested(not_testable="a symbol is undefined", repaired=better | criterion)
    assert claims.evaluate_claims([undefined], tmp_path)["verdict"].tolist() == [
        "not testable here",
        "reversed",
    ]


def test_a_table_whose_group_has_nothing_to_lose_decides_nothing(tmp_path):
    repeated = pd.concat([TABLE.assign(seed=TABLE["seed"] + 2 * shift) for shift in range(6)])
    entry = claim(statistic={"name": "drop_difference", "level": 0.9}, floor={})
    repeated.to_csv(tmp_path / "values.csv", index=False)
    assert claims.evaluate_claims([entry], tmp_path)["verdict"].tolist() == ["supported"]
    low = (
        (repeated["group"] == "C")
        & (repeated["stage"] == "control")
        & (repeated["split"] == "test")
    )
    repeated.assign(accuracy=repeated["accuracy"].mask(low, 0.05)).to_csv(
        tmp_path / "values.csv", index=False
    )
    found = claims.evaluate_claims([entry], tmp_path).iloc[0]
    assert (found["verdict"], found["reason"]) == ("undecided (floor)", "nothing to lose: C")
    assert math.isnan(found["p_value"]) and found["survives"]
    repeated.to_csv(
        tmp_path / "values.csv", index=False
    )  # Of another target nobody knows what a constant achieves.
    found = claims.evaluate_claims([replace(entry, floor={"classes": False})], tmp_path).iloc[0]
    assert found["verdict"] == "undecided (floor)" and "constant answer" in found["reason"]
    repeated[repeated["stage"] != "control"].to_csv(tmp_path / "values.csv", index=False)
    with pytest.raises(ValueError, match="claim 'H-x'"):
        claims.evaluate_claims([entry], tmp_path)


@pytest.mark.parametrize("floor", [None, {}])
def test_a_relative_drop_of_a_group_that_a_seed_does_not_recognize_decides_nothing(tmp_path, floor):
    low = (
        (TABLE["group"] == "C")
        & (TABLE["stage"] == "control")
        & (TABLE["split"] == "test")
        & (TABLE["seed"] == 0)
    )
    assert low.sum() == 1
    nobody = TABLE.assign(accuracy=TABLE["accuracy"].mask(low, 0.0))
    nobody.to_csv(tmp_path / "values.csv", index=False)
    entry = claim(
        statistic={"name": "drop_difference", "level": 0.9, "relative": True}, floor=floor
    )
    found = claims.evaluate_claims([entry], tmp_path).iloc[0]
    assert (found["verdict"], found["seeds"]) == ("undecided (floor)", 0)
    assert "above 0 in the control" in found["reason"]
    assert claims.on_table([entry], nobody, entry.notebook)["verdict"].tolist() == [
        "undecided (floor)"
    ]


def test_a_floor_needs_a_control(tmp_path):
    write(
        tmp_path / "values.csv",
        value=spread(0.1, 0.05),
        stage="dense",
        split="test",
        group="A",
        size=9,
        accuracy=0.5,
    )
    with pytest.raises(ValueError, match=r"claim 'H-x'.*no row with stage = 'control'"):
        claims.evaluate_claims([claim(floor={})], tmp_path)


def test_a_universal_claim_is_decided_cell_by_cell_and_its_table_must_have_every_cell(tmp_path):
    cells = pd.concat([pd.DataFrame({"seed": range(10), "level": level, "value": spread(mean, 0.05)})
                       for level, mean in ((0.5, 0.4), (0.7, 0.4), (0.9, -0.2))])  # fmt: skip
    cells.to_csv(tmp_path / "values.csv", index=False)
    mean = {"name": "column_mean", "column": "value"}
    found = claims.evaluate_claims(
        [claim(statistic=mean), claim(id="H-each", statistic=mean | {"each": {"level": "all"}})],
        tmp_path,
    )
    assert found["verdict"].tolist() == ["supported", "reversed"]
    assert found["estimate"].tolist() == pytest.approx([0.2, 0.2])
    assert found["worst_cell"].tolist() == ["", "level 0.9"]
    assert found["worst_estimate"].tolist() == pytest.approx([np.nan, -0.2], nan_ok=True)
    lacking = claim(statistic=mean | {"each": {"level": [0.5, 0.95]}})
    with pytest.raises(
        ValueError,
        match=r"claim 'H-x', .*cell 'level 0\.95': the table has no row with level = 0\.95",
    ):
        claims.evaluate_claims([lacking], tmp_path)


def test_the_same_number_under_two_names_is_one_test(tmp_path):
    write(
        tmp_path / "values.csv",
        a=spread(0.1, 0.05),
        b=spread(0.1, 0.05),
        c=[1.0] * 10,
        d=[1.0] * 10,
    )
    entries = [
        claim(id=f"H-{name}", statistic={"name": "column", "column": name}) for name in "abcd"
    ]
    entries.append(replace(entries[0], id="H-other", threshold=0.05))
    tests = claims.evaluate_claims(entries, tmp_path)["test"].tolist()
    assert tests[0] == tests[1] != tests[4]
    assert tests[2] != tests[3]  # Values that never vary say nothing about being the same test.


def test_false_discoveries_are_counted_apart_for_theory_and_for_experiments(tmp_path):
    weak = np.array([0.2, 0.3, 0.4, 0.5, 0.6, 0.3, 0.5, -0.2, -0.1, 0.4])
    nothing = {f"none-{i}": np.resize([-0.1, 0.1], 10) * (1 + i / 100) for i in range(20)}
    write(tmp_path / "values.csv", weak=weak, **nothing)
    own = {"notebook": "notebooks/theory/bounds.ipynb"}
    entries = [
        claim(id=f"H-{name}", statistic={"name": "column", "column": name}, **own)
        for name in nothing
    ]
    entries.append(
        claim(
            id="H-weak",
            statistic={"name": "column", "column": "weak"},
            notebook="notebooks/a/b.ipynb",
        )
    )
    found = claims.evaluate_claims(entries, tmp_path).set_index("claim")
    assert found.loc["H-weak", "survives"] and found.loc["H-weak", "family"] == "experiments"
    beside = [replace(entry, notebook="notebooks/a/b.ipynb") for entry in entries]
    assert not claims.evaluate_claims(beside, tmp_path).set_index("claim").loc["H-weak", "survives"]


def test_no_verdict_rests_on_a_gap_that_chance_gives(tmp_path):
    """Groups of 20 that are equally accurate, .95 and .7: the gap of the second network is wider,
    by chance alone."""
    rng, size = np.random.default_rng(0), 20
    rows = [(seed, arm, group, size, rng.binomial(size, accuracy) / size)
            for seed in range(40) for arm, accuracy in (("a", 0.95), ("b", 0.7)) for group in "ABCDE"]  # fmt: skip
    table = pd.DataFrame(rows, columns=["seed", "arm", "group", "size", "accuracy"])
    table = table.assign(stage="compressed", level=0.9, when="never", split="test")
    statistic = {
        "name": "contrast",
        "of": "group_gap",
        "where": {"arm": "b"},
        "against": {"arm": "a"},
    }
    table.to_csv(tmp_path / "values.csv", index=False)
    found = claims.evaluate_claims([claim(statistic=statistic)], tmp_path).iloc[0]
    assert found["verdict"] == "undecided" and found["low"] > 0.05
    assert found["reason"].startswith("supported, but")
    table["accuracy"] -= 0.3 * ((table["arm"] == "b") & (table["group"] == "A"))
    table.to_csv(tmp_path / "values.csv", index=False)
    assert claims.evaluate_claims([claim(statistic=statistic)], tmp_path)["verdict"].tolist() == [
        "supported"
    ]
    table.drop(columns="size").to_csv(tmp_path / "values.csv", index=False)
    found = claims.evaluate_claims([claim(statistic=statistic)], tmp_path).iloc[0]
    assert found["verdict"] == "undecided" and "without group sizes" in found["reason"]
    with pytest.raises(ValueError, match="relative gap of accuracies"):
        table.to_csv(tmp_path / "values.csv", index=False)
        claims.evaluate_claims([claim(statistic=statistic | {"relative": True})], tmp_path)


def test_claims_rest_on_no_statistic_that_chance_biases():
    for entry in claims.read_claims(FILE):
        for read in entry.readings.values():
            if read.statistic is None:
                continue
            assert effects.STATISTICS[read.statistic["name"]] not in effects.BY_CONTRAST, entry.id
            if read.arguments.get("of") == "group_gap" and read.arguments.get("column") == "loss":
                assert {read.arguments[side]["split"] for side in ("where", "against")} == {
                    "train"
                }, entry.id
            assert read.arguments.get("of") != "group_gap_by_chance", entry.id


def test_every_claim_about_a_change_against_the_control_names_its_floor():
    changes = {"drop_difference", "drop_correlation", "accuracy_change"}
    about = [
        entry
        for entry in claims.read_claims(FILE)
        if entry.statistic and changes & set(map(str, entry.statistic.values()))
    ]
    assert len(about) > 40
    without = [entry for entry in about if entry.floor is None]
    assert [
        entry.id for entry in without if entry.arguments.get("groups") != "largest"
    ] == []  # It always can lose.


# History


def test_claims_are_immutable():
    entry = claim()
    with pytest.raises(AttributeError):
        entry.threshold = 1.0
    assert replace(entry, threshold=1.0) != entry


def test_a_notebooks_claims_on_its_own_table():
    table = pd.concat([TABLE.assign(seed=TABLE["seed"] + 2 * shift) for shift in range(6)])
    here = {"notebook": "notebooks/a.ipynb", "tables": {"default run": "a.csv"}}
    asked = [
        claim(id="H-tested", statistic={"name": "drop_difference", "level": 0.9}, **here),
        claim(id="H-other-level", statistic={"name": "drop_difference", "level": 0.99}, **here),
        claim(id="H-elsewhere", statistic={"name": "drop_difference", "level": 0.9}),
        untested(id="H-untested", notebook="notebooks/a.ipynb"),
    ]
    found = claims.on_table(asked, table, "notebooks/a.ipynb")
    assert found["verdict"].to_dict() == {
        "H-tested": "supported",
        "H-other-level": "not in this run",
    }
    assert found.loc["H-tested", ["estimate", "seeds"]].tolist() == pytest.approx([0.225, 12])
    twice = claims.on_table(asked, pd.concat([table, table]), "notebooks/a.ipynb")
    assert twice.loc["H-tested", "verdict"].startswith(
        "not computable: several rows per seed and group"
    )


def test_a_table_that_nobody_recorded_says_how_long_a_gpu_takes_for_it(tmp_path, monkeypatch):
    (tmp_path / "results" / "benchmarks").mkdir(parents=True)
    counts = tmp_path / "results" / "benchmarks" / "grid_work.csv"
    counts.write_text(
        "table,pflop,most\nresults/a/x.csv,178.2,178.2\nresults/a/x.csv,178.2,534.6\n"
    )
    monkeypatch.setattr(claims, "project", lambda: tmp_path)
    assert "up to 2.0 hours" in claims.hours_of_grid(tmp_path / "results" / "a" / "x.csv")
    assert claims.hours_of_grid(tmp_path / "results" / "a" / "y.csv") == ""
