"""Checks of recorded tables: what is run again, what agrees, what is said, and the exit status."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from toy_notebooks import finish, write_notebook

from whopays import cli, grids, runs, verify
from whopays.runs import RunError

PARAMETERS = """\
data: str = "x"  # data set
lr: float = 0.5  # learning rate
seeds: int = 2  # number of seeds
first_seed: int = 0  # the first
"""

# What the notebook of the tests records, for a kernel and for the tests alike.
TABLE = """\
import pandas as pd
rows = [
    {"seed": seed, "group": group, "step": step, "data": data, "seconds": 3.5,
     "accuracy": lr + seed / 7 - group / 10 + step}
    for seed in range(first_seed, first_seed + seeds) for group in (0, 1) for step in (0.25, 4.0)
]
table = pd.DataFrame(rows)
"""
WRITE = 'import os\ntable.to_parquet(os.environ["FAIRLIB_RUN"] + "/records.parquet")'

GRID = """\
table: results/part/toy-study.csv
runs:
  - notebook: notebooks/part/toy.ipynb
    parameters: {seeds: 5}
    grid: {data: [x, y], first_seed: [100, 105]}
"""

CLAIM = """\
- id: H-toy
  source: a source
  kind: trend
  statement: a statement
  statistic: {name: column_mean, column: accuracy}
  direction: greater
  threshold: 0.0
  margin: 0.1
  notebook: null
  tables: {embedded study: results/part/toy-study.csv}
"""


_WATCHED = ("OMP_NUM_THREADS", "ONEDNN_MAX_CPU_ISA", "FAIRLIB_AUTO")


def computed(values: dict) -> pd.DataFrame:
    names = dict(values)
    exec(TABLE, names)
    return names["table"]


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "_toc.yml").touch()
    (tmp_path / "params").mkdir()
    write_notebook(
        tmp_path / "notebooks" / "part" / "toy.ipynb", TABLE, WRITE, parameters=PARAMETERS
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def record(grid: str = GRID, change=lambda table: table) -> Path:
    """Record the table of a grid, by runs whose records a function changes."""
    path = Path("params", "toy.yml")
    path.write_text(grid)
    for point in grids.expand(path):
        finish(point, change(computed(runs.resolve_parameters(point.notebook, point.parameters))))
    return grids.gather(path)


@pytest.fixture
def rerun(project, monkeypatch):
    """What is asked of `runs.run_notebook`, which is not run: its records are computed here, and
    changed by ``.change``."""
    asked = SimpleNamespace(change=lambda table: table, parameters=[], variables={}, description={})

    def run(notebook, out, given, *, force):
        values = runs.resolve_parameters(notebook, given)
        asked.parameters.append(values)
        asked.variables = {name: os.environ.get(name) for name in _WATCHED}
        asked.cache = os.environ["FAIRLIB_CACHE"]
        point = SimpleNamespace(out=out, notebook=notebook, parameters=given)
        finish(point, asked.change(computed(values)), **asked.description)

    monkeypatch.setattr(runs, "run_notebook", run)
    return asked


def off(amount: float, column: str = "accuracy"):
    """A change of the third row."""

    def change(table: pd.DataFrame) -> pd.DataFrame:
        table.loc[2, column] += amount
        return table

    return change


@pytest.mark.slow
def test_a_table_agrees_with_a_run_of_its_notebook(project, capsys):
    table = record()
    assert cli.main(["verify", str(table)]) == 0
    said = capsys.readouterr().out
    assert "recorded 2026-01-01T00:00:00+00:00 by params/toy.yml at commit abc" in said
    assert "accuracy: 8 of 8 agree\n" in said and said.endswith(
        "toy-study.csv agrees (relative tolerance 1e-05)\n"
    )
    assert "recorded with device cpu, cpu c, torch 2" in said and "\nhere cpu " in said
    folders = list(project.glob("_build/verify/toy-study/*/run.json"))
    assert len(folders) == 2
    times = [folder.stat().st_mtime_ns for folder in folders]
    assert cli.main(["verify", str(table)]) == 0
    assert times == [folder.stat().st_mtime_ns for folder in folders], (
        "finished runs are not run again"
    )


def test_what_varied_is_run_and_of_first_seeds_the_first(rerun):
    assert verify.verify(record(), seeds=3)
    assert [(p["data"], p["first_seed"], p["seeds"]) for p in rerun.parameters] == [
        ("x", 100, 3),
        ("y", 100, 3),
    ]
    rerun.parameters.clear()
    assert verify.verify(Path("results/part/toy-study.csv"), seeds=99)
    assert [p["seeds"] for p in rerun.parameters] == [5, 5]


def test_runs_have_the_recorded_threads_no_cache_and_on_demand_other_instructions(
    rerun, monkeypatch
):
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    cache = os.environ["FAIRLIB_CACHE"]
    table = record()
    verify.verify(table)
    assert rerun.variables == {
        "OMP_NUM_THREADS": "1",
        "ONEDNN_MAX_CPU_ISA": None,
        "FAIRLIB_AUTO": "0",
    }
    assert rerun.cache != cache == os.environ["FAIRLIB_CACHE"] and not Path(rerun.cache).exists()
    verify.verify(table, avx2=True)
    assert rerun.variables["ONEDNN_MAX_CPU_ISA"] == "AVX2"


@pytest.mark.parametrize(
    ("described", "variable"),
    [
        ({"automatic": False}, "0"),
        ({"automatic": True}, "1"),
        ({"automatic": [False, True]}, "0"),
    ],
)
def test_faster_paths_are_chosen_if_they_were_for_all_runs_of_the_table(rerun, described, variable):
    table = record(GRID.replace("data: [x, y], ", ""))
    beside = table.with_suffix(".json")
    recorded = json.loads(beside.read_text())
    beside.write_text(json.dumps(recorded | described))
    verify.verify(table)
    assert rerun.variables["FAIRLIB_AUTO"] == variable


@pytest.mark.parametrize("then", ["AVX2", ["AVX2", "AVX512"], "AVX512"])
def test_vector_instructions_are_mentioned_where_they_differ(rerun, capsys, then):
    table = record()
    described = json.loads(table.with_suffix(".json").read_text()) | {"cpu_capability": then}
    table.with_suffix(".json").write_text(json.dumps(described))
    rerun.description = {"cpu_capability": "AVX512"}
    assert verify.verify(table)
    recorded, here = re.findall(r"^(?:recorded with|here) .*", capsys.readouterr().out, re.M)
    assert f"cpu_capability {then}" in recorded
    assert ("cpu_capability AVX512" in here) == (then != "AVX512")


def test_a_changed_number_is_named_with_its_size_and_place(rerun, capsys):
    table = record()
    before = table.read_bytes()
    rerun.change = off(0.02)
    assert cli.main(["verify", str(table)]) == 1
    said = capsys.readouterr().out
    value = 0.5 + 100 / 7 - 0.1 + 0.25
    worst = f"accuracy: 6 of 8 agree, largest relative difference {0.02 / (value + 0.02):.2g} at"
    assert f"  {worst} seed=100 data=x first_seed=100 group=1 step=0.25\n" in said
    assert (
        "DOES NOT AGREE (relative tolerance 1e-05); CPUs without AVX-512 round differently" in said
    )
    assert table.read_bytes() == before


def test_the_last_stored_digit_may_differ_by_one(rerun, monkeypatch):
    def ones(amount):
        return lambda table: table.assign(accuracy=1 + amount)

    table = record(change=ones(0.0000049999))
    rerun.change = ones(0.0000050001)
    assert pd.read_csv(table)["accuracy"].eq(1).all()
    assert verify.verify(table)
    monkeypatch.setattr(verify, "TOLERANCE", 9e-6)
    assert not verify.verify(table)


def test_a_clock_does_not_count(rerun, capsys):
    table = record()
    rerun.change = off(1.0, "seconds")
    assert verify.verify(table)
    said = capsys.readouterr().out
    assert (
        "seconds: 6 of 8 agree, largest relative difference" in said and "(does not count)" in said
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.drop(columns="accuracy"), "column accuracy no longer exists"),
        (lambda table: table.drop(index=3), "2 rows are recorded only, the first: seed=100 data=x"),
        (
            lambda table: pd.concat([table, table.tail(1).assign(group=7)]),
            "2 rows are new, the first: seed=100 data=x",
        ),
    ],
)
def test_rows_and_columns_have_to_be_the_same(rerun, capsys, change, message):
    # Steps are told apart by more than their number: with rows gone it is no longer the same in
    # both tables.
    named = lambda table: table.assign(step=table["step"].map("step {}".format))  # noqa: E731
    table = record(change=named)
    rerun.change = lambda table: change(named(table))
    assert not verify.verify(table)
    assert message in capsys.readouterr().out


def test_new_columns_do_no_harm(rerun):
    table = record()
    rerun.change = lambda table: table.assign(arm="one")
    assert verify.verify(table)


def test_a_parameter_that_no_longer_exists_is_left_out_and_a_new_one_has_its_default(
    rerun, capsys, project
):
    table = record()
    changed = PARAMETERS.replace("lr: float = 0.5", "rate: float = 0.5")
    write_notebook(project / "notebooks" / "part" / "toy.ipynb", parameters=changed)
    with pytest.raises(NameError, match="lr"):  # The table of the tests is computed from lr.
        verify.verify(table)
    said = capsys.readouterr().out
    assert "left out: lr = 0.5, which the notebook no longer has\n" in said


def test_a_varied_parameter_that_no_longer_exists_leaves_one_run(rerun, capsys, project):
    table = record()
    write_notebook(
        project / "notebooks" / "part" / "toy.ipynb", parameters=PARAMETERS.replace("data:", "set:")
    )
    with pytest.raises(NameError, match="data"):
        verify.verify(table)
    assert [p["first_seed"] for p in rerun.parameters] == [100]
    assert (
        "left out: data = ['x', 'y'], which the notebook no longer has\n" in capsys.readouterr().out
    )


def test_recorded_parameters_win_over_defaults_and_grids_of_today(rerun, project):
    table = record(GRID.replace("{seeds: 5}", "{seeds: 5, lr: 0.75}"))
    Path("params", "toy.yml").write_text(GRID.replace("{seeds: 5}", "{seeds: 2, lr: 0.1}"))
    write_notebook(
        project / "notebooks" / "part" / "toy.ipynb", parameters=PARAMETERS.replace("0.5", "0.3")
    )
    assert verify.verify(table)
    assert {p["lr"] for p in rerun.parameters} == {0.75}


PAIRS = """\
table: results/part/toy-study.csv
runs:
  - notebook: notebooks/part/toy.ipynb
    parameters: {seeds: 5, data: x, lr: 0.25}
  - notebook: notebooks/part/toy.ipynb
    parameters: {seeds: 5, data: y, lr: 0.75}
"""


def test_which_values_went_together_is_recorded_whatever_happens_to_the_grid(rerun, project):
    table = record(PAIRS)
    Path("params", "toy.yml").unlink()
    assert verify.verify(table)
    assert [(p["data"], p["lr"]) for p in rerun.parameters] == [("x", 0.25), ("y", 0.75)]


def test_a_verdict_that_would_change_is_a_disagreement_within_any_tolerance(
    rerun, project, capsys, monkeypatch
):
    (project / "book").mkdir()
    (project / "book" / "claims.yml").write_text(CLAIM)
    table = record(
        GRID.replace("seeds: 5", "seeds: 10").replace(
            "data: [x, y], first_seed: [100, 105]", "data: [x]"
        )
    )
    assert verify.verify(table, seeds=10)
    assert "verdicts: 1 claims name this table, 0 would change\n" in capsys.readouterr().out
    rerun.change = lambda table: table.assign(accuracy=-table["accuracy"])
    monkeypatch.setattr(verify, "TOLERANCE", 1e9)
    assert not verify.verify(table, seeds=10)
    assert "1 would change\n  H-toy: supported -> reversed\n" in capsys.readouterr().out


def test_rows_that_nothing_identifies_are_an_error(rerun, capsys):
    table = record()
    rerun.change = lambda table: table.assign(
        step=table["step"] * 2, accuracy=table["accuracy"] * 2
    )
    assert cli.main(["verify", str(table)]) == 1
    error = capsys.readouterr().err
    what = "seed, data, first_seed, group do not identify the rows; columns whose values changed: step, accuracy"
    assert error == f"whopays: {what}\n"


def test_seeds_that_were_not_recorded_are_an_error():
    rows = pd.DataFrame({"seed": ["1"], "loss": ["2"]})
    with pytest.raises(
        RunError, match="no recorded row has the seed of the rows that were run again"
    ):
        verify.compare_tables(rows, rows.assign(seed="7"), ["first_seed"])


def test_numbers_identify_rows_where_they_must_and_the_order_of_rows_does_not_matter():
    sizes, steps = ["9", "9", "8", "8"], ["1", "2", "1", "2"]
    old = pd.DataFrame(
        {"seed": ["0"] * 4, "size": sizes, "step": steps, "loss": ["0.1", "0.2", "0.3", ""]}
    )
    new = old.assign(loss=["0.5", "0.2", "0.3", ""]).iloc[::-1]
    found = verify.compare_tables(old, new, [])
    assert found.keys == ["seed", "size", "step"]
    assert found.columns.loc["loss"].tolist() == [4, 3, 0.8, "seed=0 size=9 step=1", True]
    assert found.replaced["loss"].tolist() == ["0.5", "0.2", "0.3", ""] and not found.problems
    found = verify.compare_tables(old, new.assign(loss=["0.1", "0.2", "0.3", "0.4"]), [])
    assert found.columns.loc["loss", ["relative", "where"]].tolist() == [
        np.inf,
        "seed=0 size=8 step=2",
    ]


class TestWhatDoesNotExist:
    @pytest.fixture
    def refused(self, capsys):
        def refused(table, status=2):
            assert cli.main(["verify", str(table)]) == status
            error = capsys.readouterr().err
            assert error.startswith("whopays: ") and error.count("\n") == 1
            return error

        return refused

    def test_a_table(self, rerun, refused):
        for table in ("results/nothing.csv", record().with_suffix(".json")):
            assert f"table must be a CSV file in results/ that a grid recorded; beside {table}" in (
                refused(table)
            )

    def test_a_provenance(self, rerun, refused):
        table = record()
        table.with_suffix(".json").unlink()
        assert "lacks grid, notebook, parameters, points" in refused(table)

    def test_a_grid_that_recorded_it(self, rerun, refused):
        table = record()
        table.with_suffix(".json").write_text(json.dumps({"date": "2026", "parameters": {}}))
        why = "toy-study.csv a JSON file lacks"
        assert f"{why} grid, notebook, points\n" in refused(table)
        several = {"grid": "", "parameters": {}, "points": [], "notebook": ["a", "b"]}
        table.with_suffix(".json").write_text(json.dumps(several))
        assert f"{why} one notebook\n" in refused(table)

    def test_its_notebook(self, rerun, refused, project):
        table = record()
        (project / "notebooks" / "part" / "toy.ipynb").unlink()
        assert "was recorded by notebooks/part/toy.ipynb, which no longer exists" in refused(table)

    @pytest.mark.parametrize(("name", "status"), [("FileNotFoundError", 2), ("DivergenceError", 1)])
    def test_its_data_without_the_traceback_of_a_failed_notebook(
        self, rerun, refused, monkeypatch, name, status
    ):
        class Failure(Exception):
            ename, traceback = name, ("a traceback",)

        def fail(*arguments, **options):
            raise RunError(f"toy.ipynb failed: {name}: no data/UTKFace") from Failure()

        table = record()
        monkeypatch.setattr(runs, "run_notebook", fail)
        assert f"toy.ipynb failed: {name}: no data/UTKFace" in refused(table, status)


def test_a_number_of_seeds_below_one_is_refused(rerun):
    with pytest.raises(ValueError, match="seeds must be at least 1, got 0"):
        verify.verify(record(), seeds=0)
