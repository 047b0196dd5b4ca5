"""The console command: errors are one line, and the exit status says whose they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairlib import cli
from fairlib.evidence import runs

ROOT = Path(__file__).parents[1]


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


def test_the_ledger_is_written_from_the_claims_of_the_project(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert cli.main(["ledger", str(tmp_path / "ledger.md")]) == 0
    assert "\n# The ledger" in (tmp_path / "ledger.md").read_text(encoding="utf-8")


def test_a_grid_that_is_none_is_refused(tmp_path, capsys):
    (tmp_path / "grid.yml").write_text("- 1\n")
    assert cli.main(["gather", str(tmp_path / "grid.yml")]) == 2
    assert "must map names to values, got list" in capsys.readouterr().err
