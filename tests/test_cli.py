"""The console command: errors are one line, and the exit status says whose they are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import fairlib
from fairlib import cli, environment
from fairlib.evidence import grids, runs


@pytest.fixture
def notebook(tmp_path):
    source = "seeds: int = 2  # number of seeds\nlr: float = 0.5  # learning rate"
    cell = {"cell_type": "code", "metadata": {"tags": ["parameters"]}, "source": source, "outputs": []}
    path = tmp_path / "toy.ipynb"
    path.write_text(json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    return path


@pytest.fixture
def asked(monkeypatch):
    """What `runs.run` is asked for, instead of running it."""
    calls = []
    monkeypatch.setattr(runs, "run", lambda *arguments, **options: calls.append((arguments, options)) or True)
    return calls


def test_parameters_of_the_line_win_over_those_of_files_and_later_files_over_earlier(tmp_path, asked):
    (tmp_path / "one.yml").write_text("seeds: 1\nlr: 0.1\ndata: x\n")
    (tmp_path / "two.yml").write_text("seeds: 2\nlr: 0.2\n")
    files = ["-f", str(tmp_path / "one.yml"), "-f", str(tmp_path / "two.yml")]
    assert cli.main(["run", "toy.ipynb", "-p", "seeds", "3", *files, "-o", "out", "--force"]) == 0
    assert asked == [(("toy.ipynb", "out", {"seeds": "3", "lr": 0.2, "data": "x"}), {"force": True})]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["-p", "seed", "3"], 2, "unknown parameter 'seed' (did you mean 'seeds'?); known: seeds, lr"),
        (["-p", "seeds", "three"], 2, "parameter 'seeds' must be an int, got 'three'"),
        (["-f", "missing.yml"], 1, "No such file or directory: 'missing.yml'"),
    ],
)
def test_an_error_is_one_line_and_nothing_is_run(notebook, tmp_path, capsys, words, status, message):
    assert cli.main(["run", str(notebook), *words, "-o", str(tmp_path / "out")]) == status
    error = capsys.readouterr().err
    assert error.startswith("fairlib: ") and error.count("\n") == 1 and message in error
    assert not list(tmp_path.glob("out*"))


def test_a_failed_notebook_shows_its_traceback_first(notebook, capsys, monkeypatch):
    class Failure(Exception):
        traceback = ("\x1b[31mTraceback", "  line 1")

    def fail(*arguments, **options):
        raise runs.RunError("toy.ipynb failed: ValueError: no") from Failure()

    monkeypatch.setattr(runs, "run", fail)
    assert cli.main(["run", str(notebook), "-o", "out"]) == 1
    assert capsys.readouterr().err == "Traceback\n  line 1\nfairlib: toy.ipynb failed: ValueError: no\n"


@pytest.mark.parametrize("words", [[], ["run"], ["run", "toy.ipynb"], ["walk"], ["run", "toy.ipynb", "-p", "x"]])
def test_an_incomplete_command_says_what_is_needed(words, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(words)
    assert "usage: fairlib" in capsys.readouterr().err


def test_the_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"fairlib {fairlib.__version__}\n"


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
    pd.DataFrame({"seed": range(10), "value": range(1, 11)}).to_csv(tmp_path / "table.csv", index=False)
    return tmp_path


def test_the_ledger_is_written_from_the_claims_of_the_project_from_any_of_its_folders(project, monkeypatch):
    (project / "notebooks" / "part").mkdir(parents=True)
    monkeypatch.chdir(project / "notebooks" / "part")
    assert cli.main(["ledger", "ledger.md"]) == 0
    assert "\n# The ledger" in Path("ledger.md").read_text(encoding="utf-8")
    assert cli.main(["ledger", "--csv", "ledger.csv", "--json", "ledger.json"]) == 0
    assert pd.read_csv("ledger.csv")["verdict"].tolist() == ["supported"]
    assert json.loads(Path("ledger.json").read_text())[0]["estimate"] == 5.5
    (project / "table.csv").unlink()
    assert cli.main(["ledger", "--json", "ledger.json"]) == 0
    (record,) = json.loads(Path("ledger.json").read_text())
    assert (record["verdict"], record["decides"], record["estimate"]) == ("undecided", False, None)


def test_a_ledger_that_is_not_asked_for_or_has_no_claims_is_refused(project, tmp_path_factory, monkeypatch, capsys):
    monkeypatch.chdir(project)
    assert cli.main(["ledger"]) == 2
    assert (
        "ask for a page (fairlib ledger PAGE), for --csv PATH, --json PATH or --notebooks DIR"
        in capsys.readouterr().err
    )
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    monkeypatch.setattr(environment, "LIBRARY", project / "site-packages" / "fairlib")
    assert cli.main(["ledger", "ledger.md"]) == 1
    assert "there is no book/claims.yml in" in capsys.readouterr().err


def test_a_grid_that_is_none_is_refused(tmp_path, capsys):
    (tmp_path / "grid.yml").write_text("- 1\n")
    assert cli.main(["gather", str(tmp_path / "grid.yml")]) == 2
    assert "must map names to values, got list" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        (["--help"], []),
        (["gather", "grid.yml"], ["numpy", "pandas"]),
        (["ledger", "ledger.md"], ["numpy", "pandas"]),
    ],
)
def test_a_command_that_trains_nothing_starts_without_torch(notebook, project, tmp_path, words, heavy):
    (tmp_path / "grid.yml").write_text("runs: [{notebook: toy.ipynb, table: gathered.csv}]")
    (point,) = grids.expand(tmp_path / "grid.yml")
    point.out.mkdir(parents=True)
    pd.DataFrame({"value": [1.0]}).to_parquet(point.out / "records.parquet")
    run = {"files": ["records.parquet"], "parameters": {}, "started": "2026-01-01T00:00:00+00:00", "seconds": 1.5}
    (point.out / "run.json").write_text(json.dumps(run))
    code = f"""
import sys
from fairlib import cli, environment
try:
    status = cli.main({words})
except SystemExit as end:
    status = end.code
assert status == 0
print([name for name in ("torch", "matplotlib", "numpy", "pandas") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == str(heavy), done.stderr
    assert (tmp_path / words[-1].replace("grid.yml", "gathered.csv")).exists() or words == ["--help"]
