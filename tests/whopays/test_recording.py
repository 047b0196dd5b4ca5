"""A list of grids, run within a given time: in order, resumed to the bit, whole in the end."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from toy_notebooks import finish, write_notebook

from whopays import cli, grids, recording, runs

PARAMETERS = """\
data: str = "digits"  # data set
seed: int = 0  # a negative one fails
device: str = "auto"  # auto, cpu or cuda
"""
STUDY = """\
import os, time
from pathlib import Path
import fairlib
from fairlib.studies import RunSettings
from whopays import record
assert seed >= 0, "a negative seed"
table = fairlib.study(
    data=(data, {"limit": 300}), model="cnn", method="prune:magnitude", levels=[0.5, 0.9], seeds=[seed],
    train={"epochs": 2}, finetune={"epochs": 1}, device=device, progress=False, run=RunSettings(workers=1),
)
record(table)
if (wait := Path("wait")).exists():
    wait.rename("waiting")
    time.sleep(600)
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "_toc.yml").touch()
    write_notebook(tmp_path / "notebooks" / "part" / "toy.ipynb", STUDY, parameters=PARAMETERS)
    monkeypatch.chdir(tmp_path)
    # What record sets for its runs ends with the test.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return tmp_path


def write_grid(name: str, axes: str, parameters: str = "{}") -> str:
    path = Path("params", f"{name}.yml")
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        f"table: results/part/{name}.csv\n"
        "runs:\n"
        "  - notebook: notebooks/part/toy.ipynb\n"
        f"    parameters: {parameters}\n"
        f"    grid: {axes}\n"
    )
    return str(path)


def finish_all(grid: str) -> None:
    """Leave finished runs at all points of a grid."""
    for point in grids.expand(grid):
        finish(point, pd.DataFrame({"value": [point.parameters["seed"]]}))


def record(*names: str, minutes: float = 30.0, **options) -> dict[str, dict]:
    """Record on the CPU; return the summary by grid."""
    recording.record_grids(names, "out", minutes=minutes, device="cpu", **options)
    rows = json.loads(Path("out", "summary.json").read_text())["grids"]
    return {Path(row["grid"]).stem: row for row in rows}


def archived() -> list[str]:
    names = []
    for path in sorted(Path("out").glob("recorded-*.tar.gz")):
        with tarfile.open(path) as archive:
            names += archive.getnames()
    return names


def test_a_list_names_grids_in_order_once_and_may_have_comments(project):
    Path("list.txt").write_text("# the best first\nb.yml  # ten minutes\n\na.yml\n")
    assert recording.listed(["list.txt", "c.yml", "a.yml"]) == ["b.yml", "a.yml", "c.yml"]
    with pytest.raises(FileNotFoundError, match=r"none\.txt"):
        recording.listed(["none.txt"])


def test_without_a_card_it_refuses_in_one_sentence(project, monkeypatch, capsys):
    grid = write_grid("one", "{seed: [0]}")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cli.main(["record", grid, "-o", "out", "--minutes", "1"]) == 1
    error = capsys.readouterr().err
    assert "sees no GPU here; --device cpu runs the grids on the CPU" in error
    assert error.count("\n") == 1 and not Path("out").exists()


def test_finished_runs_are_gathered_without_running_anything(project, monkeypatch):
    grid = write_grid("one", "{seed: [0, 1]}")
    finish_all(grid)
    monkeypatch.setattr(recording.subprocess, "Popen", None)
    row = record(grid)["one"]
    assert row == {
        "grid": grid,
        "state": "finished",
        "runs": 2,
        "done": 2,
        "failed": 0,
        "seconds": 0,
    }
    assert pd.read_csv("results/part/one.csv")["value"].tolist() == [0, 1]
    assert archived()[:2] == ["results/part/one.csv", "results/part/one.json"]
    # Nothing of it is missing where the archive is unpacked.
    assert {Path(name).name for name in archived()[2:]} == {"run.json", "records.parquet"}
    assert len(archived()) == 6


def test_a_grid_whose_data_are_missing_is_skipped_and_an_unknown_one_too(project, capsys):
    faces = write_grid("faces", "{seed: [0, 1]}", "{data: utkface}")
    done = write_grid("done", "{seed: [0]}")
    finish_all(done)
    words = ["-o", "out", "--minutes", "30", "--device", "cpu"]
    assert cli.main(["record", faces, "params/none.yml", done, *words]) == 1
    rows = json.loads(Path("out", "summary.json").read_text())["grids"]
    assert "skipped: 2 runs need data that are not there: found no file" in rows[0]["state"]
    assert rows[1]["state"] == "skipped: [Errno 2] No such file or directory: 'params/none.yml'"
    assert rows[2]["state"] == "finished"
    assert capsys.readouterr().out == Path("out", "log.txt").read_text()


def test_when_the_time_is_over_nothing_begins(project, monkeypatch):
    first, second = write_grid("first", "{seed: [0]}"), write_grid("second", "{seed: [0]}")
    monkeypatch.setattr(recording.subprocess, "Popen", None)
    spent = 30 * 60 - recording.RESERVE
    rows = record(first, second, spent=spent)
    assert [row["state"] for row in rows.values()] == ["not reached", "not reached"]
    assert archived() == []


@pytest.mark.parametrize("at_once", [0, 1.5])
def test_a_number_of_runs_below_one_is_refused(project, at_once):
    with pytest.raises((ValueError, TypeError), match="at_once"):
        record(write_grid("one", "{seed: [0]}"), at_once=at_once)


def test_archives_stay_within_their_size_and_what_finds_no_room_is_counted(project, monkeypatch):
    monkeypatch.setattr(recording, "LARGEST", 12_000)
    monkeypatch.setattr(recording, "PARTS", 2)
    Path("out").mkdir()
    Path("out", "recorded-7.tar.gz").touch()
    paths, said = [Path(f"file-{i}") for i in range(8)], []
    for path in paths:
        path.write_bytes(np.random.default_rng(0).bytes(3000))
    recording._pack(paths, Path("out"), said.append)
    assert archived() == [f"file-{i}" for i in range(4)]
    assert sorted(path.name for path in Path("out").iterdir()) == [
        "recorded-0.tar.gz", "recorded-1.tar.gz"
    ]  # fmt: skip
    assert all(path.stat().st_size <= 12_000 for path in Path("out").iterdir())
    assert len(said) == 1 and said[0].startswith("4 files of finished runs found no room")


@pytest.mark.slow
def test_a_failing_run_stops_no_other_and_is_reported(project):
    grid = write_grid("mixed", "{seed: [-1, 0]}")
    other = write_grid("other", "{seed: [1]}")
    rows = record(grid, other, at_once=2)
    assert (rows["mixed"]["state"], rows["mixed"]["done"], rows["mixed"]["failed"]) == (
        "unfinished",
        1,
        1,
    )
    assert rows["other"]["state"] == "finished" and rows["other"]["seconds"] > 0
    log = Path("out", "log.txt").read_text()
    failed = grids.expand(grid)[0].id
    assert f"{failed} failed (whopays: " in log and "AssertionError: a negative seed" in log
    names = archived()
    assert f"_build/sweeps/mixed/failed/{failed}.ipynb" in names
    assert f"_build/sweeps/mixed/logs/{failed}.log" in names
    assert "results/part/other.csv" in names and "results/part/mixed.csv" not in names
    assert sum(name.endswith("/run.json") for name in names) == 2


@pytest.mark.slow
def test_a_run_that_time_cuts_off_goes_on_to_the_same_bits(project, monkeypatch):
    grid = write_grid("cut", "{seed: [0, 1]}")
    row = record(grid)["cut"]
    assert row["state"] == "finished"
    whole = Path("results/part/cut.csv").read_bytes()
    for path in ("results", "_build", os.environ["FAIRLIB_CACHE"]):
        Path(path).rename(f"{path}-whole")

    # The clock leaps to the end of the time once the first run has trained and waits.
    clock = time.monotonic
    monkeypatch.setattr(
        recording.time, "monotonic", lambda: clock() + 1e6 * Path("waiting").exists()
    )
    Path("wait").touch()
    rows = record(grid, write_grid("next", "{seed: [5]}"))
    assert (rows["cut"]["state"], rows["cut"]["done"]) == ("unfinished", 0)
    assert rows["next"]["state"] == "not reached"
    assert "interrupted after" in Path("out", "log.txt").read_text()
    assert archived() == [] and not list(Path("_build").rglob("run.json"))
    assert not list(Path("_build").rglob("*.tmp-*")), "the interrupted run left its folder"
    trained = cached()
    assert trained

    Path("waiting").unlink()
    assert record(grid)["cut"]["state"] == "finished"
    assert Path("results/part/cut.csv").read_bytes() == whole
    assert trained.items() <= cached().items(), "a training of the interrupted run ran again"


@pytest.mark.slow
def test_what_is_finished_is_packed_when_the_machine_ends(project):
    done, cut = write_grid("done", "{seed: [0]}"), write_grid("cut", "{seed: [1]}")
    finish_all(done)
    Path("wait").touch()
    words = ["-o", "out", "--minutes", "30", "--device", "cpu"]
    process = subprocess.Popen([sys.executable, "-m", "whopays", "record", done, cut, *words])
    while process.poll() is None and not Path("waiting").exists():
        time.sleep(0.1)
    process.terminate()
    assert process.wait(60) == 128 + signal.SIGTERM
    assert "results/part/done.csv" in archived()
    states = [row["state"] for row in json.loads(Path("out", "summary.json").read_text())["grids"]]
    assert states == ["finished", "unfinished"]
    assert not list(Path("_build").rglob("*.tmp-*")), "the interrupted run left its folder"


def cached() -> dict[str, tuple[int, str]]:
    """The entries of the cache: a training that runs again makes a new file of the same name."""
    return {
        path.name: (path.stat().st_ino, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in Path(os.environ["FAIRLIB_CACHE"]).iterdir()
    }


def test_a_run_finished_with_other_contents_is_not_run_again(project, monkeypatch):
    grid, asked = write_grid("old", "{seed: [3]}"), []
    finish_all(grid)
    notebook = Path("notebooks/part/toy.ipynb")
    notebook.write_text(notebook.read_text().replace("2}", "3}"))

    class Ended:
        """A process that has failed."""

        returncode = 1

        def __init__(self, command, stdout, **options):
            asked.append(command[3:])
            stdout.write("whopays: finished with other contents (notebook); --force replaces it")

        def poll(self):
            return self.returncode

    monkeypatch.setattr(recording.subprocess, "Popen", Ended)
    assert record(grid)["old"]["failed"] == 1
    assert "--force replaces it) after" in Path("out", "log.txt").read_text()
    assert asked == [grids.command(grids.expand(grid)[0])]
    assert runs.read_run(grids.expand(grid)[0].out)
