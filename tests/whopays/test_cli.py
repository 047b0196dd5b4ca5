"""The command `whopays`: errors are one line, and the exit status says whose they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from toy_notebooks import finish, write_notebook

from fairlib import data, environment
from whopays import cli, grids, plan, runs, tables


@pytest.fixture
def notebook(tmp_path):
    source = "seeds: int = 2  # number of seeds\nlr: float = 0.5  # learning rate"
    cell = {
        "cell_type": "code",
        "metadata": {"tags": ["parameters"]},
        "source": source,
        "outputs": [],
    }
    path = tmp_path / "toy.ipynb"
    path.write_text(
        json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    )
    return path


@pytest.fixture
def asked(monkeypatch):
    """What `runs.run_notebook` is asked for, instead of running it."""
    calls = []
    monkeypatch.setattr(
        runs,
        "run_notebook",
        lambda *arguments, **options: calls.append((arguments, options)) or True,
    )
    return calls


def test_parameters_of_the_line_win_over_those_of_files_and_later_files_over_earlier(
    tmp_path, asked
):
    (tmp_path / "one.yml").write_text("seeds: 1\nlr: 0.1\ndata: x\n")
    (tmp_path / "two.yml").write_text("seeds: 2\nlr: 0.2\n")
    files = ["-f", str(tmp_path / "one.yml"), "-f", str(tmp_path / "two.yml")]
    assert cli.main(["run", "toy.ipynb", "-p", "seeds", "3", *files, "-o", "out", "--force"]) == 0
    given = {"seeds": "3", "lr": 0.2, "data": "x"}
    assert asked == [((), {"notebook": "toy.ipynb", "out": "out", "given": given, "force": True})]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (
            ["-p", "seed", "3"],
            2,
            "unknown parameter 'seed' (did you mean 'seeds'?); known: seeds, lr",
        ),
        (["-p", "seeds", "three"], 2, "parameter 'seeds' must be an int, got 'three'"),
        (["-f", "missing.yml"], 1, "No such file or directory: 'missing.yml'"),
    ],
)
def test_an_error_is_one_line_and_nothing_is_run(
    notebook, tmp_path, capsys, words, status, message
):
    assert cli.main(["run", str(notebook), *words, "-o", str(tmp_path / "out")]) == status
    error = capsys.readouterr().err
    assert error.startswith("whopays: ") and error.count("\n") == 1 and message in error
    assert not list(tmp_path.glob("out*"))


def test_a_failed_notebook_shows_its_traceback_first(notebook, capsys, monkeypatch):
    class Failure(Exception):
        traceback = ("\x1b[31mTraceback", "  line 1")

    def fail(*arguments, **options):
        raise runs.RunError("toy.ipynb failed: ValueError: no") from Failure()

    monkeypatch.setattr(runs, "run_notebook", fail)
    assert cli.main(["run", str(notebook), "-o", "out"]) == 1
    assert (
        capsys.readouterr().err
        == "Traceback\n  line 1\nwhopays: toy.ipynb failed: ValueError: no\n"
    )


@pytest.mark.parametrize(
    "words", [[], ["run"], ["run", "toy.ipynb"], ["walk"], ["run", "toy.ipynb", "-p", "x"]]
)
def test_an_incomplete_command_says_what_is_needed(words, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(words)
    assert "usage: whopays" in capsys.readouterr().err


CLAIMS = """
- id: H-x
  source: a source
  kind: trend
  statement: a statement
  statistic: {name: column_mean, column: value}
  direction: greater
  threshold: 0.0
  margin: 0.1
  notebook: null
  tables: {default run: table.csv}
"""


@pytest.fixture
def project(tmp_path):
    """A project with one claim, supported by its table."""
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "claims.yml").write_text(CLAIMS)
    pd.DataFrame({"seed": range(10), "value": range(1, 11)}).to_csv(
        tmp_path / "table.csv", index=False
    )
    return tmp_path


def test_the_ledger_is_written_from_the_claims_of_the_project_from_any_of_its_folders(
    project, monkeypatch
):
    (project / "notebooks" / "part").mkdir(parents=True)
    monkeypatch.chdir(project / "notebooks" / "part")
    assert cli.main(["ledger", "ledger.md"]) == 0
    assert "\n# The ledger" in Path("ledger.md").read_text(encoding="utf-8")
    assert cli.main(["ledger", "--csv", "ledger.csv"]) == 0
    (record,) = pd.read_csv("ledger.csv").itertuples()
    assert (record.verdict, record.estimate) == ("supported", 5.5)
    (project / "table.csv").unlink()
    assert cli.main(["ledger", "--csv", "ledger.csv"]) == 0
    (record,) = pd.read_csv("ledger.csv").itertuples()
    assert (record.verdict, record.decides) == ("undecided", False) and pd.isna(record.estimate)


def test_a_ledger_that_is_not_asked_for_or_has_no_claims_is_refused(
    project, tmp_path_factory, monkeypatch, capsys
):
    monkeypatch.chdir(project)
    assert cli.main(["ledger"]) == 2
    assert "ask for PAGE or --csv PATH" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    monkeypatch.setattr(environment, "LIBRARY", project / "site-packages" / "fairlib")
    assert cli.main(["ledger", "ledger.md"]) == 1
    assert "there is no book/claims.yml in" in capsys.readouterr().err


def test_a_grid_that_is_none_is_refused(tmp_path, capsys):
    (tmp_path / "grid.yml").write_text("- 1\n")
    assert cli.main(["gather", str(tmp_path / "grid.yml")]) == 2
    assert "must map names to values, got list" in capsys.readouterr().err


@pytest.fixture
def grid(tmp_path, monkeypatch):
    """A grid of two runs that need CUDA and two data sets, one of which is not there."""
    monkeypatch.chdir(tmp_path)
    parameters = 'data: str = "digits"  # data\nother_data: str = ""  # more\nroot: str = "data"\n'
    parameters += 'device: str = "cuda"\nseeds: int = 1'
    write_notebook(tmp_path / "toy.ipynb", parameters=parameters)
    (tmp_path / "grid.yml").write_text(
        "table: toy.csv\nruns: [{notebook: toy.ipynb, parameters: {other_data: digits}, grid: {data: [digits, mnist]}}]"
    )
    return grids.expand("grid.yml")


def test_a_plan_counts_runs_and_says_what_they_need_that_is_not_there(grid, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cli.main(["plan", "grid.yml"]) == 1
    out, error = capsys.readouterr()
    counts = [
        "runs         2",
        "done         0",
        "stale        0",
        "failed       0",
        "missing      2",
    ]
    assert (
        out.splitlines()[:5] == counts
        and "'make sweep GRID=grid.yml', and ask again after the first" in out
    )
    gpu, data = error.splitlines()
    assert gpu == "whopays: 2 runs need a GPU that is not there"
    assert (
        data.startswith("whopays: 1 run needs data that are not there: found no file in")
        and "by hand" in data
    )

    here = {"cpu": environment.cpu(), "cores": os.cpu_count()}
    finish(grid[0], pd.DataFrame({"value": [1]}), contents={}, **here)
    finish(grid[1], pd.DataFrame({"value": [1]}), seconds=900, **here)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert cli.main(["plan", "grid.yml"]) == 0
    out, error = capsys.readouterr()
    assert (
        "stale        1  finished with other code" in out
        and "hours     0.12  left, at the pace of 2 finished" in out
    )
    assert error == ""


@pytest.mark.parametrize(
    ("device", "memory", "said"),
    [
        ("cuda", 7e9, "1 run needs 8.0 GB of memory for images; this machine has 7.0"),
        ("cuda", 9e9, ""),
        ("cpu", 23e9, "1 run needs 24.0 GB of memory for images; this machine has 23.0"),
        ("cpu", 25e9, ""),
    ],
)
def test_a_plan_says_that_a_machine_is_too_small(device, memory, said, grid, capsys, monkeypatch):
    """Ten million pictures of 800 bytes, on a GPU in one process, on four cores in three, one for
    each seed."""
    table, picture = pd.DataFrame(index=range(10_000_000)), np.zeros((1, 100))
    pictures = data.Collection(table, lambda rows: picture[rows], target=None, group=None)
    monkeypatch.setitem(data.DATASETS, "mnist", lambda request: pictures)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(environment, "workers", {"cpu": 4}.get)
    monkeypatch.setattr(plan, "memory", lambda: memory)
    Path("grid.yml").write_text(
        Path("grid.yml").read_text().replace("digits}", f"digits, device: {device}, seeds: 3}}", 1)
    )
    assert cli.main(["plan", "grid.yml"]) == bool(said)
    assert capsys.readouterr().err == (f"whopays: {said}\n" if said else "")


def test_a_plan_takes_a_picture_that_cannot_be_read_for_data_that_are_not_there(
    grid, capsys, monkeypatch
):
    def unreadable(rows):
        raise OSError("cannot identify image file")

    pictures = data.Collection(pd.DataFrame(index=range(3)), unreadable, target=None, group=None)
    monkeypatch.setitem(data.DATASETS, "mnist", lambda request: pictures)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert cli.main(["plan", "grid.yml"]) == 1
    assert (
        capsys.readouterr().err
        == "whopays: 1 run needs data that are not there: cannot identify image file\n"
    )


def test_a_plan_of_no_grid_is_refused(tmp_path, capsys):
    assert cli.main(["plan", str(tmp_path / "none.yml")]) == 1
    (tmp_path / "grid.yml").write_text("table: x.csv\nruns: 3")
    assert cli.main(["plan", str(tmp_path / "grid.yml")]) == 2
    missing, wrong = capsys.readouterr().err.splitlines()
    assert "No such file" in missing and "runs must be a non-empty list, got 3" in wrong


def test_data_that_a_plan_does_not_look_for_are_those_that_come_with_the_package():
    assert {*plan.NO_FILES, "parabola"} == set(tables.EMBEDDED)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        (["--help"], []),
        (["plan", "grid.yml"], []),
        (["gather", "grid.yml"], ["numpy", "pandas"]),
        (["ledger", "ledger.md"], ["numpy", "pandas"]),
    ],
)
def test_a_command_that_trains_nothing_starts_without_torch(
    notebook, project, tmp_path, words, heavy
):
    (tmp_path / "grid.yml").write_text("table: gathered.csv\nruns: [{notebook: toy.ipynb}]")
    (point,) = grids.expand(tmp_path / "grid.yml")
    finish(point, pd.DataFrame({"value": [1.0]}))
    code = f"""
import sys
from whopays import cli
try:
    status = cli.main({words})
except SystemExit as end:
    status = end.code
assert status == 0
print([name for name in ("torch", "matplotlib", "numpy", "pandas") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == str(heavy), done.stderr
    assert (tmp_path / words[-1].replace("grid.yml", "gathered.csv")).exists() or words[0] in (
        "--help",
        "plan",
    )
