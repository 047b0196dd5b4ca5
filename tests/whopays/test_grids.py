"""Grids: checked as a whole, run point by point, gathered into tidy tables."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from toy_notebooks import RECORD, finish, write_notebook

from fairlib import environment
from whopays import grids, runs
from whopays.runs import ParameterError, RunError

ROOT = Path(__file__).parents[2]
GRID = """\
table: results/part/toy-study.csv
runs:
  - notebook: notebooks/part/toy.ipynb
    parameters: {lr: 0.25, quick: false}
    grid: {data: [x, y/z], seeds: [1, 2]}
  - notebook: notebooks/part/toy.ipynb
    parameters: {quick: false}
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "_toc.yml").touch()
    write_notebook(tmp_path / "notebooks" / "part" / "toy.ipynb", "print(seeds)")
    return tmp_path


@pytest.fixture
def grid(project):
    (project / "params" / "study").mkdir(parents=True)
    path = project / "params" / "study" / "part.yml"
    path.write_text(GRID)
    return path


class TestGrid:
    def test_every_combination_is_a_run_with_a_name_of_its_own(self, grid, project):
        points = grids.expand(grid)
        varied = [(point.parameters.get("data"), point.parameters.get("seeds")) for point in points]
        assert varied == [("x", 1), ("x", 2), ("y/z", 1), ("y/z", 2), (None, None)]
        assert all(
            point.parameters["lr"] == 0.25 and point.parameters["quick"] is False
            for point in points[:4]
        )
        assert [point.table.name for point in points] == ["toy-study.csv"] * 5
        assert points[2].id.startswith("toy-data=y_z-seeds=1-")
        assert (
            points[2].out.resolve() == project / "_build" / "sweeps" / "study-part" / points[2].id
        )
        grid.write_text(GRID.replace("[1, 2]", "[2, 3]"))
        assert len({point.id for point in points} & {point.id for point in grids.expand(grid)}) == 3

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ("seeds: [1, 2]", "sede: [1, 2]", "unknown parameter 'sede'"),
            ("seeds: [1, 2]", "seeds: [1, two]", "'seeds' must be an int"),
            ("seeds: [1, 2]", "seeds: 2", "seeds must be a non-empty list, got 2"),
            ("seeds: [1, 2]", "seeds: [1, 1]", "duplicate run toy-data=x-seeds=1"),
            (
                "    grid:",
                "    gird:",
                "expected notebook, parameters, grid .*, got .*'gird'",
            ),
            ("table: results/part/toy-study.csv", "", r"\(needed: runs, table\)"),
            ("runs:", "points:", r"expected runs, table, earlier \(needed: runs, table\)"),
        ],
    )
    def test_a_grid_is_checked_before_anything_runs(self, grid, old, new, message):
        grid.write_text(GRID.replace(old, new, 1))
        with pytest.raises(ParameterError, match=message):
            grids.expand(grid)

    def test_gathered_tables_are_tidy_and_say_where_they_come_from(self, grid, project):
        for number, point in enumerate(grids.expand(grid)):
            seed = point.parameters.get("seeds", 2)
            finish(
                point,
                pd.DataFrame({"seeds": [seed], "value": [number + 1 / 3]}),
                commit=f"c{number % 2}",
            )
        path = grids.gather(grid)
        table = pd.read_csv(path)
        assert list(table) == ["data", "seeds", "value"]
        assert table["data"].fillna("").tolist() == ["x", "x", "y/z", "y/z", ""]
        assert table["value"].tolist() == [0.333333, 1.33333, 2.33333, 3.33333, 4.33333]
        provenance = json.loads(path.with_suffix(".json").read_text())
        assert (
            provenance["runs"] == 5
            and provenance["seconds"] == 7.5
            and provenance["commit"] == ["c0", "c1"]
        )
        assert provenance["parameters"] == {
            "seeds": [1, 2],
            "lr": [0.25, 0.5],
            "data": ["x", "y/z", "a=b"],
            "quick": False,
        }
        assert provenance["grid"] == "params/study/part.yml" and provenance["versions"] == {
            "torch": "2"
        }
        assert provenance["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()

    def test_a_run_may_lack_what_later_ones_describe(self, grid):
        for number, point in enumerate(grids.expand(grid)):
            finish(
                point,
                pd.DataFrame({"value": [number]}),
                **({"cpu_capability": "AVX2"} if number % 2 else {}),
            )
        provenance = json.loads(grids.gather(grid).with_suffix(".json").read_text())
        assert provenance["cpu_capability"] == [None, "AVX2"] and provenance["device"] == "cpu"

    def test_nothing_is_gathered_from_an_unfinished_grid(self, grid, project, capsys):
        for point in grids.expand(grid)[2:]:
            finish(point, pd.DataFrame({"value": [1]}))
        damaged = grids.expand(grid)[1].out / "run.json"
        damaged.parent.mkdir()
        damaged.write_text("{}")
        message = (
            r"2 of 5 runs of .*part\.yml cannot be gathered: "
            r"toy-data=x-seeds=1-\w+ \(not finished, or without records"
        )
        with pytest.raises(RunError, match=message):
            grids.gather(grid)
        assert re.search(
            r"whopays: .*/toy-data=x-seeds=2-\w+: run\.json is not what", capsys.readouterr().err
        )
        assert not (project / "results").exists()

    def test_runs_of_other_contents_are_not_gathered(self, grid, project):
        points = grids.expand(grid)
        for point in points:
            finish(point, pd.DataFrame({"value": [1]}))
        table = grids.gather(grid)
        notebook = project / "notebooks" / "part" / "toy.ipynb"
        write_notebook(notebook, "print(seeds)  # edited")
        for point in points[1:4]:
            finish(point, pd.DataFrame({"value": [2]}))
        before = table.read_bytes()
        message = (
            r"2 of 5 runs of .*part\.yml cannot be gathered: toy-data=x-seeds=1-\w+ \(finished with other contents: "
            r"notebook\); toy-\w+ .*'make sweep GRID=.*part\.yml' runs what is not finished, with FORCE=1 also"
        )
        with pytest.raises(RunError, match=message):
            grids.gather(grid)
        assert table.read_bytes() == before

    def test_records_of_another_run_are_not_gathered(self, grid, capsys):
        points = grids.expand(grid)
        for number, point in enumerate(points):
            finish(point, pd.DataFrame({"value": [number]}))
        records = points[0].out / "records.parquet"
        shutil.copy(points[1].out / "records.parquet", records)
        with pytest.raises(RunError, match=r"1 of 5 runs .*data=x-seeds=1"):
            grids.gather(grid)
        assert "records.parquet is not what the run wrote" in capsys.readouterr().err
        shutil.copy(points[1].out / "run.json", records.with_name("run.json"))
        with pytest.raises(
            RunError, match=r"data=x-seeds=1-\w+ \(finished with other contents: parameters\)"
        ):
            grids.gather(grid)

    def test_a_gathered_table_makes_its_own_runs_no_older(self, grid, project):
        names = "read('results/part/toy-study.csv'); read('results/part/other.csv')"
        write_notebook(project / "notebooks" / "part" / "toy.ipynb", names)
        for point in grids.expand(grid):
            finish(point, pd.DataFrame({"value": [1]}), notebook="notebooks/part/toy.ipynb")
        assert grids.gather(grid) == grids.gather(grid)
        (project / "results" / "part" / "other.csv").write_text("a\n1\n")
        with pytest.raises(RunError, match="contents: files it names"):
            grids.gather(grid)

    def test_a_plan_tells_what_is_done_stale_failed_and_missing(self, grid, project, capsys):
        points = grids.expand(grid)
        done, stale, failed, damaged, missing = points
        finish(stale, pd.DataFrame({"value": [1]}), contents={})
        finish(done, pd.DataFrame({"value": [1]}))
        finish(damaged, pd.DataFrame({"value": [1]}))
        (damaged.out / "records.parquet").write_text("")
        for point in (failed, done):  # What has finished since counts as finished.
            (point.out.parent / "failed").mkdir(exist_ok=True)
            (point.out.parent / "failed" / f"{point.id}.ipynb").touch()
        assert grids.plan(grid) == {
            "done": [done],
            "stale": [stale],
            "failed": [failed],
            "missing": [damaged, missing],
        }
        assert "records.parquet is not what the run wrote" in capsys.readouterr().err

    def test_the_library_is_read_once_for_all_runs(self, grid, monkeypatch):
        calls = []
        monkeypatch.setattr(
            environment, "source_digest", lambda *_, without: calls.append(without) or "digest"
        )
        assert (
            set(grids.unfit(grids.expand(grid)).values()) == {grids.UNFINISHED} and len(calls) == 2
        )


@pytest.mark.slow
def test_a_sweep_runs_what_is_missing_and_mixes_nothing(grid, project, monkeypatch):
    shutil.copy(ROOT / "Snakefile", project)
    for package in ("fairlib", "book/whopays"):
        shutil.copytree(ROOT / package, project / package)
    monkeypatch.setattr(environment, "LIBRARY", project / "fairlib")
    monkeypatch.setattr(runs, "WORKSHOP", project / "book" / "whopays")
    monkeypatch.chdir(project)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", f"{project}:{project}/book")
    edit = """\
from pathlib import Path
if not Path("edited").exists():
    Path("edited").touch()
    with open("notebooks/part/toy.ipynb", "a") as notebook:
        notebook.write("\\n")
"""
    write_notebook(project / "notebooks" / "part" / "toy.ipynb", edit, RECORD)
    grid.write_text("""\
table: results/part/toy-study.csv
runs:
  - notebook: notebooks/part/toy.ipynb
    grid: {seeds: [1, 2]}
""")
    kept, damaged = grids.expand(grid)
    finish(kept, pd.DataFrame({"seed": [7], "lr": [0.5]}))
    finish(damaged, pd.DataFrame({"seed": [8], "lr": [0.5]}))
    (damaged.out / "run.json").write_text("")

    def sweep(*force: str) -> subprocess.CompletedProcess:
        command = [
            "snakemake",
            "sweep",
            "--forcerun",
            "point",
            "--cores",
            "2",
            "--config",
            f"grid={grid}",
            *force,
        ]
        return subprocess.run(
            [sys.executable, "-m", *command], capture_output=True, text=True, timeout=200
        )

    mixed = sweep()
    assert mixed.returncode != 0 and "run.json is not what the run wrote" in mixed.stderr
    assert f"cannot be gathered: {kept.id} (finished with other contents: notebook)" in mixed.stderr
    assert (project / "edited").exists() and not (project / "results").exists()
    finish(kept, pd.DataFrame({"seed": [9], "lr": [0.5]}))
    refused = sweep()
    assert (
        refused.returncode != 0
        and f"1 of 2 runs of {grid} cannot be gathered: {damaged.id}" in refused.stderr
    )
    assert "Traceback" not in mixed.stderr + refused.stderr
    done = sweep("force=1")
    assert done.returncode == 0, done.stderr
    assert pd.read_csv(project / "results" / "part" / "toy-study.csv")["seed"].tolist() == [9, 0, 1]
