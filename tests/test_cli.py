"""The console command: errors are one line, and the exit status says whose they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from toy_notebooks import finish, write_notebook

import fairlib
from fairlib import cli, data, environment
from fairlib.auditing import files
from fairlib.cli import plan
from whopays import grids, runs, tables


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
    assert asked == [
        (("toy.ipynb", "out", {"seeds": "3", "lr": 0.2, "data": "x"}), {"force": True})
    ]


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
    assert error.startswith("fairlib: ") and error.count("\n") == 1 and message in error
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
        == "Traceback\n  line 1\nfairlib: toy.ipynb failed: ValueError: no\n"
    )


@pytest.mark.parametrize(
    "words", [[], ["run"], ["run", "toy.ipynb"], ["walk"], ["run", "toy.ipynb", "-p", "x"]]
)
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
    assert cli.main(["ledger", "--csv", "ledger.csv", "--json", "ledger.json"]) == 0
    assert pd.read_csv("ledger.csv")["verdict"].tolist() == ["supported"]
    assert json.loads(Path("ledger.json").read_text())[0]["estimate"] == 5.5
    (project / "table.csv").unlink()
    assert cli.main(["ledger", "--json", "ledger.json"]) == 0
    (record,) = json.loads(Path("ledger.json").read_text())
    assert (record["verdict"], record["decides"], record["estimate"]) == ("undecided", False, None)


def test_a_ledger_that_is_not_asked_for_or_has_no_claims_is_refused(
    project, tmp_path_factory, monkeypatch, capsys
):
    monkeypatch.chdir(project)
    assert cli.main(["ledger"]) == 2
    assert "ask for PAGE, --csv PATH, --json PATH or --notebooks DIR" in capsys.readouterr().err
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
    assert gpu == "fairlib: 2 runs need a GPU that is not there"
    assert (
        data.startswith("fairlib: 1 run needs data that are not there: found no file train-images")
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
    monkeypatch.setattr(environment, "memory", lambda: memory)
    Path("grid.yml").write_text(
        Path("grid.yml").read_text().replace("digits}", f"digits, device: {device}, seeds: 3}}", 1)
    )
    assert cli.main(["plan", "grid.yml"]) == bool(said)
    assert capsys.readouterr().err == (f"fairlib: {said}\n" if said else "")


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
        == "fairlib: 1 run needs data that are not there: cannot identify image file\n"
    )


@pytest.mark.parametrize(("device", "place"), [("cpu", "Some CPU"), ("Some GPU", "Some GPU")])
def test_a_plan_says_how_long_the_recorded_table_took_and_where(
    grid, project, capsys, device, place
):
    (table,) = {point.table.with_suffix(".json") for point in grids.expand("grid.yml")}
    cli.main(["plan", "grid.yml"])
    assert "recorded" not in capsys.readouterr().out
    table.parent.mkdir(parents=True, exist_ok=True)
    table.write_text(json.dumps({"seconds": 5400, "device": device, "cpu": "Some CPU"}))
    cli.main(["plan", "grid.yml"])
    assert (
        f"          1.50  hours of runs on {place}, when {table.stem}.csv was recorded\n"
        in capsys.readouterr().out
    )


def test_a_plan_of_no_grid_is_refused(tmp_path, capsys):
    assert cli.main(["plan", str(tmp_path / "none.yml")]) == 1
    (tmp_path / "grid.yml").write_text("runs: 3")
    assert cli.main(["plan", str(tmp_path / "grid.yml")]) == 2
    missing, wrong = capsys.readouterr().err.splitlines()
    assert "No such file" in missing and "runs must be a non-empty list, got 3" in wrong


def test_data_that_a_plan_does_not_look_for_are_those_that_come_with_the_package():
    assert {*plan.NO_FILES, "parabola"} == set(tables.EMBEDDED)


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
    (tmp_path / "grid.yml").write_text("runs: [{notebook: toy.ipynb, table: gathered.csv}]")
    (point,) = grids.expand(tmp_path / "grid.yml")
    finish(point, pd.DataFrame({"value": [1.0]}))
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
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == str(heavy), done.stderr
    assert (tmp_path / words[-1].replace("grid.yml", "gathered.csv")).exists() or words[0] in (
        "--help",
        "plan",
    )


@pytest.fixture
def predictions(tmp_path, monkeypatch):
    """What two models said of 200 people: labels, and probabilities of "yes". The second errs on 21
    of 100 men."""
    monkeypatch.chdir(tmp_path)
    right = np.arange(200) % 2 == 0
    worse = right ^ ((np.arange(200) % 5 == 1) & (np.arange(200) >= 100)) ^ (np.arange(200) == 100)
    table = pd.DataFrame(
        {"smiling": right, "gender": np.repeat(["f", "m"], 100), "dense": right, "int8": worse}
    )
    table = table.replace({True: "yes", False: "no"})
    table.assign(p=np.where(right, 0.9, 0.2), q=np.where(worse, 0.8, 0.3)).to_csv(
        "said.csv", index=False
    )
    return [
        "audit",
        "said.csv",
        "--target",
        "smiling",
        "--group",
        "gender",
        "--before",
        "dense",
        "--after",
        "int8",
    ]


def test_an_audit_is_printed_and_written(predictions, capsys):
    words = [
        "--html",
        "a.html",
        "--json",
        "a.json",
        "--markdown",
        "a.md",
        "--model-card",
        "card.md",
    ]
    assert (
        cli.main([*predictions, *words, "--level", "0.9", "--reference", "m", "--seed", "3"]) == 0
    )
    settings = {"level": 0.9, "reference": "m", "seed": 3}
    report = files.audit_table(
        "said.csv", ["dense"], ["int8"], target="smiling", group=["gender"], **settings
    )
    out, error = capsys.readouterr()
    assert out.startswith(report.sentence) and error == ""
    low, high = report.table.loc["m", ["drop_low", "drop_high"]]
    assert f"m     100   1.000  0.790  0.210  {low:.3f} {high:.3f}" in out.replace(
        "  0.790 0.210", "  0.790  0.210"
    )
    assert "- only labels are known before compression" in out
    assert out.endswith("a.html\na.json\na.md\ncard.md\n")
    report.to_json("again.json")
    assert Path("a.json").read_text() == Path("again.json").read_text()
    assert all(Path(path).stat().st_size for path in words[1::2])


@pytest.mark.parametrize(
    ("condition", "value"),
    [
        ("worst-drop > 0.209", 0.21),
        ("worst-drop>=.21", 0.21),
        ("worst-accuracy < 0.8", 0.79),
        ("overall-drop > 1e-1", 0.105),
        ("overall-accuracy <= 0.895", 0.895),
        ("gap(drop) > 0.2", 0.21),
        (" gap(accuracy) > -1 ", 0.21),
        ("p(drop) < 0.01", None),
        ("unfair(drop) at 0.05", None),
        ("unfair(accuracy) at 0.1", None),
    ],
)
def test_a_condition_that_holds_fails_the_command(predictions, capsys, condition, value):
    assert cli.main([*predictions, "--fail-if", "worst-drop > 0.21", "--fail-if", condition]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fairlib: --fail-if '") and " holds: " in line
    assert value is None or float(line.rpartition(" ")[2]) == value


@pytest.mark.parametrize(
    "condition",
    [
        "worst-drop > 0.21",
        "worst-accuracy < 0.79",
        "gap(drop) < 0.2",
        "p(drop) > 0.01",
        "unfair(drop) at 0.21",
    ],
)
def test_a_condition_that_does_not_hold_passes(predictions, capsys, condition):
    assert cli.main([*predictions, "--fail-if", condition]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("tau", [0.0, 0.05, 0.1, 0.15, 0.3])
def test_unfair_is_what_the_report_calls_unfair(predictions, tau):
    report = files.audit_table("said.csv", ["dense"], ["int8"], target="smiling", group=["gender"])
    for measure, definition in (("drop", "degradation"), ("accuracy", "performance")):
        unfair = report.fairness(tau).loc[definition, "verdict"] == "unfair"
        assert cli.main([*predictions, "--fail-if", f"unfair({measure}) at {tau}"]) == 3 * unfair


def test_a_condition_that_cannot_be_decided_is_an_error(predictions, capsys):
    words = ["--fail-if", "gap(loss) > 0", "--fail-if", "worst-drop > 0.5"]
    assert cli.main([*predictions, *words]) == 2
    assert capsys.readouterr().err.startswith(
        "fairlib: --fail-if 'gap(loss) > 0' cannot be decided: too few groups"
    )
    assert cli.main([*predictions, *words, "--fail-if", "worst-drop > 0.1"]) == 3
    predictions[-3:] = ["p", "--after", "q"]
    assert cli.main([*predictions, *words[:2]]) == 3


@pytest.mark.parametrize(
    "condition",
    [
        "worst-drop",
        "worst-loss > 1",
        "gap(size) > 1",
        "worst-drop = 1",
        "worst-drop > 5%",
        "unfair(drop) > 1",
        "x at 1",
    ],
)
def test_an_unknown_condition_is_refused_before_anything_is_computed(
    predictions, capsys, monkeypatch, condition
):
    monkeypatch.delattr(files, "audit_table")
    with pytest.raises(SystemExit, match="2"):
        cli.main([*predictions, "--fail-if", condition])
    assert (
        f"unknown condition {condition!r}; fairlib audit --help lists those there are"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--before", "none"],
            "unknown column of 'said.csv' 'none'; known: smiling, gender, dense, int8, p, q",
        ),
        (["--level", "95"], "level must lie in (0, 1), got 95.0"),
        (["--size", "224"], "--size belongs to --images: predictions are audited as they are"),
        (["--json", "none/a.json"], "cannot write 'none/a.json': there is no folder 'none'"),
        (["--reference", "x"], "unknown reference group 'x'; known: f, m"),
    ],
)
def test_what_an_audit_does_not_accept_is_one_line(predictions, capsys, words, message):
    assert cli.main([*predictions, *words]) == 2
    out, error = capsys.readouterr()
    assert (out, error) == ("", f"fairlib: {message}\n")


def test_an_audit_of_nothing_or_of_two_things_is_refused(predictions, capsys):
    for words in (["--images", "photos"], ["--classes", "no,yes", "--positive", "yes"]):
        with pytest.raises(SystemExit, match="2"):
            cli.main([*predictions, *words])
    del predictions[1]
    with pytest.raises(SystemExit, match="2"):
        cli.main(predictions)
    assert "one of the arguments predictions --images is required" in capsys.readouterr().err


def test_a_warning_of_an_audit_is_one_line_unless_the_report_has_it(
    predictions, capsys, monkeypatch
):
    assert (
        cli.main([*predictions, "--before", "int8", "--classes", "no,yes", "--after", "dense"]) == 0
    )
    audit = files.audit

    def warn(*arguments, **options):
        warnings.warn("first\nsecond", stacklevel=1)
        return audit(*arguments, **options)

    monkeypatch.setattr(files, "audit", warn)
    assert cli.main([*predictions, "--before", "dense", "--after", "int8"]) == 0
    assert capsys.readouterr().err == "fairlib: first second\n"


def test_an_error_that_nobody_expected_is_one_line_too(predictions, capsys, monkeypatch):
    def fail(*arguments, **options):
        raise KeyError("no such key")

    monkeypatch.setattr(files, "audit", fail)
    assert cli.main(predictions) == 1
    assert capsys.readouterr().err == "fairlib: KeyError: 'no such key'\n"


def test_models_are_asked_with_all_that_was_said(monkeypatch, predictions, capsys):
    calls = []
    monkeypatch.setattr(files, "audit_models", lambda **given: calls.append(given))
    words = "audit --images photos --target smiling --group gender,age --before a.onnx --after b,c.onnx --size 224"
    cli.main(
        [
            *words.split(),
            "--normalize",
            "0.5,0.5,0.5/1,1,1",
            "--factory",
            "a:b",
            "--permutations",
            "99",
        ]
    )
    assert capsys.readouterr().err.splitlines()[0] == "fairlib: runs the code of a:b"
    assert calls == [
        {
            "images": "photos",
            "target": "smiling",
            "group": ["gender", "age"],
            "before": "a.onnx",
            "after": "b,c.onnx",
            "size": 224,
            "normalize": [["0.5"] * 3, ["1"] * 3],
            "factory": "a:b",
            "resamples": 99,
        }
    ]


def test_an_audit_of_predictions_imports_nothing_heavy(predictions):
    heavy = (
        "torch",
        "torchvision",
        "matplotlib",
        "sklearn",
        "scipy.stats",
        "onnxruntime",
        "jinja2",
    )
    code = f"""
import sys
from fairlib import cli
assert cli.main({predictions}) == 0
print([name for name in {heavy} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
