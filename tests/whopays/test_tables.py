"""Tables of texts against scipy, and recorded tables that are there, are not, or cannot be."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from claim_samples import study_table
from scipy import stats

import fairlib
from fairlib import environment
from whopays import claims, plots, tables

PATH = "results/part/page-study.csv"


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A project with one recorded table, of two seeds, and no claim."""
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "claims.yml").write_text("[]")
    (tmp_path / PATH).parent.mkdir(parents=True)
    rows = {
        "data": "digits",
        "model": "cnn",
        "method": "prune:magnitude",
        "seed": [0, 1],
        "group": [3, 7],
    }
    pd.DataFrame(rows | {"accuracy": [0.5, 0.7]}).to_csv(tmp_path / PATH, index=False)
    described = environment.describe("cpu") | {"commit": "0123456789", "dirty": False}
    (tmp_path / PATH).with_suffix(".json").write_text(json.dumps(described))
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    return tmp_path


def figure_of(table, height=1.0):
    figure, (axis,) = plots.new_figure()
    axis.plot(table["seed"], height * table["accuracy"])
    return figure


def text_of(values, digits=1, scale=100):
    values = scale * np.asarray(values)
    low, high = stats.t.interval(0.95, len(values) - 1, values.mean(), stats.sem(values))
    return f"{values.mean():.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


# Recorded tables


def test_a_recorded_table_is_found_from_any_folder_of_the_project(repository, capsys):
    found = tables.recorded(PATH)
    assert found and found.table["group"].tolist() == ["3", "7"]
    assert found.provenance["commit"] == "0123456789"
    assert not capsys.readouterr().out


def test_as_a_text_it_says_where_it_comes_from(repository):
    found = tables.recorded(PATH)
    assert str(found).startswith("digits, cnn, prune:magnitude, 2 seeds, ")
    assert str(found).endswith(", 2 seeds, embedded study")
    real = found.table.assign(data="utkface")
    real.to_csv(repository / PATH, index=False)
    assert "2 seeds, real-data run" in str(tables.recorded(PATH))
    large = PATH.replace("page-study", "faces-all")
    real.to_csv(repository / large, index=False)
    (repository / large).with_suffix(".json").write_text(json.dumps(found.provenance))
    assert "2 seeds, run at scale" in str(tables.recorded(large))


@pytest.mark.parametrize(
    ("parameters", "remarks"),
    [
        ({}, []),
        ({"near_duplicates": "together", "held_out": "val"}, []),
        ({"near_duplicates": "ignored"}, ["near-duplicates not kept together"]),
        (
            {"near_duplicates": "ignored", "held_out": "train"},
            ["near-duplicates not kept together", "held-out data known to the dense network"],
        ),
    ],
)
def test_as_a_text_it_says_how_its_data_were_split(repository, parameters, remarks):
    provenance = tables.recorded(PATH).provenance | {"parameters": {"seeds": 2} | parameters}
    (repository / PATH).with_suffix(".json").write_text(json.dumps(provenance))
    assert str(tables.recorded(PATH)).endswith(", ".join(["2 seeds", "embedded study", *remarks]))


def test_it_draws_and_shows_what_functions_make_of_it(repository, capsys):
    found = tables.recorded(PATH)
    found.draw(figure_of, height=2.0)
    figure = plt.gcf()
    assert figure.axes[0].lines[0].get_ydata().tolist() == [1.0, 1.4]
    assert str(found) in [text.get_text() for text in figure.texts]
    plt.close(figure)
    found.show(lambda table, name: f"mean {name} {table[name].mean():.1f}", "accuracy")
    assert "mean accuracy 0.6" in capsys.readouterr().out


def test_a_table_whose_runs_are_registered_is_not_recorded_yet(repository, capsys):
    path = "results/part/page-celeba.csv"
    (repository / "params" / "study").mkdir(parents=True)
    (repository / "params" / "study" / "page.yml").write_text(f"table: {path}\nruns: []\n")
    assert not tables.recorded(path)
    said = capsys.readouterr().out
    assert said == "Not recorded yet. To record it:\nmake sweep GRID=params/study/page.yml\n"


def test_some_of_its_rows_have_the_same_origin(repository):
    part = tables.recorded(PATH).select(seed=1)
    assert part.table["group"].tolist() == ["7"]
    assert str(part) == str(tables.recorded(PATH)).replace("2 seeds", "1 seed")


def test_where_none_is_recorded_one_sentence_says_so_and_nothing_is_drawn(repository, capsys):
    missing = tables.recorded("results/part/page-celeba.csv")
    assert not missing and missing.table is None and str(missing) == ""
    assert (
        capsys.readouterr().out == "There is no recorded table results/part/page-celeba.csv yet.\n"
    )
    missing.draw(figure_of)
    missing.select(seed=1).show(figure_of)
    assert not plt.get_fignums() and not capsys.readouterr().out


def test_without_the_project_nobody_says_that_there_is_none(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(environment, "LIBRARY", tmp_path / "fairlib")
    assert not tables.recorded(PATH)
    said = capsys.readouterr().out
    assert "one of the project's files, which are not here" in said and PATH in said
    assert "no recorded" not in said


def test_outside_the_project_the_tables_are_those_that_came_with_the_library(
    repository, tmp_path, monkeypatch, capsys
):
    here = str(tables.recorded(PATH))
    library = tmp_path / "site-packages" / "fairlib"
    monkeypatch.setattr(environment, "LIBRARY", library)
    records = library.parent / "whopays" / "records"
    records.mkdir(parents=True)
    for part in ("book", "results"):
        shutil.move(repository / part, records / part)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    found = tables.recorded(PATH)
    assert found.table["group"].tolist() == ["3", "7"] and str(found) == here
    assert not tables.recorded("results/part/page-celeba.csv")
    assert (
        capsys.readouterr().out == "There is no recorded table results/part/page-celeba.csv yet.\n"
    )


def test_verdicts_are_those_of_the_project_or_none(repository, tmp_path, monkeypatch, capsys):
    table, page = pd.DataFrame({"seed": range(10), "value": 0.5}), "notebooks/part/page.ipynb"
    entry = """
- {id: H-x, source: a, kind: trend, statement: b, direction: greater, threshold: 0.0, margin: 0.1,
   statistic: {name: column_mean, column: value}, notebook: notebooks/part/page.ipynb, tables: {default run: a.csv}}
"""
    (repository / "book" / "claims.yml").write_text(entry)
    loaded = claims.read_claims(repository / "book" / "claims.yml")
    pd.testing.assert_frame_equal(
        claims.verdicts(table, page), claims.on_table(loaded, table, page)
    )
    assert claims.verdicts(table, page).loc["H-x", "verdict"] == "supported"
    assert not capsys.readouterr().out
    (tmp_path / "elsewhere").mkdir()
    (repository / "book" / "claims.yml").unlink()
    monkeypatch.setattr(environment, "LIBRARY", tmp_path / "elsewhere")
    empty = claims.verdicts(table, page).round(3)
    assert empty.empty and list(empty) == ["verdict", "estimate", "low", "high", "seeds", "decides"]
    assert "one of the project's files, which are not here" in capsys.readouterr().out


# Tables of texts


def test_intervals_are_students_and_what_is_no_sample_stands_as_it_is():
    a, b = np.array([0.1, 0.2, 0.6]), pd.Series([1.0, 2.0, 4.0])
    rows = {"one": {"x": a, "runs": 1200, "kept": 0.25, "t": b}, "two": {"x": b, "note": "!"}}
    table = tables.means(rows, digits={"t": 2})
    assert table.loc["one"].tolist() == [text_of(a), "1,200", "0.250", text_of(b, 2, 1), "-"]
    assert table.loc["two"].tolist() == [text_of(b), "-", "-", "-", "!"]
    signed = tables.means({("b", 1): a, ("a", 2): a}, names=["name", "level"], sign=True)
    assert signed.index.names == ["name", "level"] and signed.index.tolist() == [("b", 1), ("a", 2)]
    assert signed["mean"].tolist() == ["+30.0 [-35.7, +95.7]"] * 2
    assert signed.columns.name == table.columns.name == "percentage points"
    alike = {"all": [0.25, 0.25], "no loss": [-1e-5, -2e-5], "one seed": [0.5]}
    assert tables.means(alike)["mean"].tolist() == ["25.0", "0.0", "50.0"]
    with pytest.raises(ValueError, match="finite"):
        tables.means({"one": [0.1, np.nan]})


def test_numbers_have_separators_and_what_does_not_exist_is_a_dash():
    texts = tables.shown(pd.DataFrame([[11204524, 278528.0, 0.5, "a"], [3, np.nan, 1.0, None]]))
    assert texts.to_numpy().tolist() == [
        ["11,204,524", "278,528", "0.50", "a"],
        ["3", "-", "1", "-"],
    ]


def test_tested_gives_intervals_p_values_and_seeds():
    values = np.array([0.1, 0.2, 0.6, 0.3, 0.2, 0.4])
    table = tables.tested({0.5: values, 0.9: np.tile(values, 2)}, "drop", names="sparsity")
    assert table.loc[0.5].tolist() == [text_of(values), f"{2 / 2**6:.3f}", "6"]
    assert table.loc[0.9, "p-value"] == "< 0.001"
    assert table.index.name == "sparsity" and list(table) == ["drop", "p-value", "seeds"]


RUNS = pd.DataFrame(
    {
        "arm": ["b", "b", "a", "a", "c", "c"],
        "seed": [0, 1] * 3,
        "bias": [0.3, 0.5, 0.1, 0.2, 0.0, 0.4],
        "kept": 0.5,
    }
)


def test_arms_stand_beside_each_other_and_are_subtracted_within_the_seed():
    table = tables.beside(RUNS, {"bias": "gap", "kept": "kept"}, rival="a", minus=["bias"])
    assert table.index.tolist() == ["b", "a", "c"] and table.index.name == "arm"
    assert table["gap"].tolist() == [text_of([0.3, 0.5]), text_of([0.1, 0.2]), text_of([0.0, 0.4])]
    assert table["gap minus that of a"].tolist() == [text_of([0.2, 0.3]), "-", text_of([-0.1, 0.2])]
    assert list(table) == ["gap", "kept", "gap minus that of a"]
    plain = tables.beside(RUNS, ["bias"], rival="a", digits={"bias": 2})
    assert plain.loc["b"].tolist() == [text_of(each, 2, 1) for each in ([0.3, 0.5], [0.2, 0.3])]
    with pytest.raises(ValueError, match="unknown rival 'd'; known: b, a, c"):
        tables.beside(RUNS, ["bias"], rival="d")


def test_each_arm_may_have_a_rival_of_its_own_and_several_columns_may_name_the_arms():
    crossed = pd.concat([RUNS.assign(weight=0), RUNS.assign(weight=1, bias=RUNS["bias"] * 2)])
    rivals = {(name, 1): (name, 0) for name in "abc"}
    table = tables.beside(crossed, ["bias"], by=["arm", "weight"], rival=rivals)
    assert table.loc[("b", 1), "bias minus that of its rival"] == text_of([0.3, 0.5])
    assert table.loc[("b", 0), "bias minus that of its rival"] == "-"
    assert table.index.names == ["arm", "weight"]


def test_an_arm_that_lacks_a_seed_is_compared_in_those_that_both_have():
    longer = pd.concat(
        [RUNS, pd.DataFrame({"arm": ["a"], "seed": [2], "bias": [0.9], "kept": 0.5})]
    )
    table = tables.beside(longer, ["bias"], rival="a")
    assert table.loc["a", "bias"] == text_of([0.1, 0.2, 0.9])
    assert table.loc["b", "bias minus that of a"] == text_of([0.2, 0.3])
    assert table["seeds"].tolist() == ["2", "3", "2"]


def test_correlations_are_spearmans_and_empty_where_not_defined():
    table = study_table(
        {s: [30, 20, 10] for s in (0, 1)},
        {0: [0.9, 0.7, 0.8], 1: [0.9, 0.8, 0.7]},
        {0: [0] * 3, 1: [0] * 3},
    )
    table = table[table["split"] == "train"].drop(columns="accuracy").merge(
        table[table["split"] == "test"][["seed", "stage", "level", "group", "accuracy"]]
    )  # fmt: skip
    pairs = {("size and accuracy", "test"): ("size", "accuracy", {"level": 0.0})}
    stages = {name: {"stage": name} for name in ("control", "dense", "unknown")}
    found = tables.correlations(table, pairs, stages, names=["correlation of", "on"])
    expected = [stats.spearmanr([3, 2, 1], row)[0] for row in ([9, 7, 8], [9, 8, 7])]
    assert found.iloc[0].tolist() == [text_of(expected, 2, 1), "-", "-"]
    assert found.index.names == ["correlation of", "on"]
    with pytest.raises(ValueError, match="the table has no column acuracy"):
        tables.correlations(table, {"a": ("size", "acuracy", {})}, stages)
    with pytest.raises(ValueError, match="several rows per seed and group"):
        tables.correlations(pd.concat([table, table]), pairs, stages)


def test_sizes_stand_from_the_largest_to_the_smallest():
    data = {
        name: SimpleNamespace(train=fairlib.GroupedDataset(np.eye(5), [0] * 5, groups))
        for name, groups in {"two": [0, 1, 1, 1, 1], "three": [0, 0, 2, 1, 0]}.items()
    }
    table = tables.sizes(data)
    assert table.to_numpy().tolist() == [["4", "1", "-"], ["3", "1", "1"]]
    assert list(table) == [1, 2, 3]


def test_cases_count_what_exceeds_the_tolerance():
    row = tables.cases("T-eq-1", 3, [[-0.5, 2e-9], [0.25, 1e-3]], kind="relu")
    expected = {
        "statement": "T-eq-1",
        "seed": 3,
        "cases": 4,
        "violated": 0.5,
        "discrepancy": 0.25,
        "kind": "relu",
    }
    assert row == expected
    assert tables.cases("T-eq-1", 3, [-1.0, 0.1], tolerance=0.2)["violated"] == 0
    assert tables.cases("T-eq-1", 3, [-1.0])["discrepancy"] == 0


@pytest.mark.parametrize("excess", [[], [np.nan, -1.0], [np.inf]])
def test_cases_that_were_not_computed_do_not_pass(excess):
    with pytest.raises(ValueError, match="excess of 'T-eq-1' must be finite numbers, at least one"):
        tables.cases("T-eq-1", 3, excess)
