"""What a build says to a person, and how it ends: `book/tools/progress.py`, on Snakemake with small
jobs."""

from __future__ import annotations

import contextlib
import math
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import progress
import pytest
from toy_notebooks import write_notebook

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "book" / "tools" / "progress.py"


SNAKEFILE = """
localrules: book, stage, html
rule book:
    input: "_build/html/index.html"
rule run:
    output: "_build/runs/{part}/{name}/run.json"
    log: "_build/logs/{part}/{name}.log"
    message: "{wildcards.part}/{wildcards.name}"
    shell: "exec > {log} 2>&1; bash job.sh {wildcards.name}; echo '{{\\"seconds\\": 1}}' > {output}"
rule stage:
    input: expand("_build/runs/part/{name}/run.json", name=["one", "two"])
    output: directory("_build/source")
    message: "stage"
    shell: "mkdir {output}"
rule html:
    input: "_build/source"
    output: "_build/html/index.html"
    message: "html"
    shell: "touch {output}"
"""


@pytest.fixture
def start(tmp_path):
    """Start a build of two pages, each of which runs a shell script that gets its name."""

    def start(script: str, **options) -> subprocess.Popen:
        (tmp_path / "Snakefile").write_text(SNAKEFILE)
        (tmp_path / "job.sh").write_text(script)
        words = [
            "snakemake",
            "book",
            "--cores",
            "2",
            "--nolock",
            "--keep-going",
            "--show-failed-logs",
            "-q",
            "host",
        ]
        command = [sys.executable, str(SCRIPT), "_build", sys.executable, "-m", *words]
        return subprocess.Popen(
            command, cwd=tmp_path, env=os.environ | {"TERM": "xterm"}, **options
        )

    return start


def test_without_a_terminal_a_line_for_each_page_and_what_failed_at_the_end(start, tmp_path):
    script = "echo working\n[ $1 = one ] || { echo Traceback of $1; exit 3; }"
    said, _ = (build := start(script, stdout=subprocess.PIPE, text=True)).communicate(timeout=100)
    assert build.returncode == 1 and "\x1b" not in said
    assert re.search(r"^\d of 2 pages: part/one, \d+ s$", said, re.MULTILINE)
    assert "part/two: failed\n" in said
    assert said.endswith(
        "--- part/two failed; its log, _build/logs/part/two.log, ends with\nworking\nTraceback of two\n\n"
        "The book is not built: part/two failed. All output: _build/logs/book.log\n"
    )
    assert "Job stats:" in (tmp_path / "_build" / "logs" / "book.log").read_text()


def read_all(master: int) -> str:
    """What is written to a terminal until nobody writes any more, which is an error on Linux."""
    said = b""
    with contextlib.suppress(OSError):
        while text := os.read(master, 65536):
            said += text
    os.close(master)
    return said.decode()


def test_a_terminal_shows_one_line_that_moves_and_a_second_build_that_nothing_has_changed(start):
    master, terminal = pty.openpty()
    build = start("[ $1 = one ] || sleep 3", stdout=terminal, stderr=terminal)
    os.close(terminal)
    said = read_all(master)
    assert build.wait(timeout=100) == 0
    *moved, last = [text for text in said.replace("\r\n", "\n").split("\r\x1b[K") if text]
    assert last.startswith("The book: _build/html/index.html (") and last.count("\n") == 1
    assert not any("\n" in line for line in moved)
    assert any(re.fullmatch(r"1 of 2 pages · .*about \d+ (s|min) left", line) for line in moved)
    again = start("exit 1", stdout=subprocess.PIPE, text=True).communicate(timeout=100)[0]
    assert again == "The book: _build/html/index.html (nothing has changed)\n"


GRID = """\
table: results/toy/squares.csv
runs:
  - {notebook: notebooks/toy/squares.ipynb, grid: {seed: [1, 2, 3]}}
"""
SQUARES = """\
import time
import pandas as pd
from whopays import record
assert seed != 3, "no third run"
time.sleep(2)
record(pd.DataFrame({"square": [seed**2]}));"""


@pytest.fixture
def sweep(tmp_path):
    """Start a sweep of three runs by the project's Snakefile; the third fails as long as the
    notebook says so."""
    write_notebook(
        tmp_path / "notebooks" / "toy" / "squares.ipynb",
        SQUARES,
        parameters="seed: int = 0  # seed",
    )
    (tmp_path / "_toc.yml").touch()
    (tmp_path / "grid.yml").write_text(GRID)
    shutil.copy(ROOT / "Snakefile", tmp_path)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    settings = {"TERM": "xterm", "PYTHONPATH": str(ROOT), "PATH": path}

    def start(*more: str, **options) -> subprocess.Popen:
        words = "snakemake sweep --forcerun point --cores 3 --nolock --keep-going --show-failed-logs -q host"
        command = [sys.executable, str(SCRIPT), "grid.yml", sys.executable, "-m", *words.split()]
        command += ["--config", "grid=grid.yml", *more]
        return subprocess.Popen(command, cwd=tmp_path, env=os.environ | settings, **options)

    return start


def test_a_sweep_shows_one_line_that_moves_and_the_log_of_a_failed_run_and_goes_on(sweep, tmp_path):
    master, terminal = pty.openpty()
    first = sweep(stdout=terminal, stderr=terminal)
    os.close(terminal)
    said = read_all(master)
    assert first.wait(timeout=100) == 1
    said = said.replace("\r\n", "\n").replace("\r\x1b[K", "\0")
    moved = [line for line in said.split("\0") if "\n" not in line]
    said = said.replace("\0", "\n")
    assert any(re.fullmatch(r"1 of 3 runs · 1 failed · \d+ s so far", line) for line in moved)
    assert (
        re.search(r"^squares-seed=3-\w+: failed$", said, re.MULTILINE)
        and "AssertionError: no third run" in said
    )
    assert re.search(
        r"No table is written: squares-seed=3-\w+ failed\. All output: .*sweep\.log$", said.strip()
    )

    notebook = tmp_path / "notebooks" / "toy" / "squares.ipynb"
    notebook.write_text(notebook.read_text().replace("seed != 3", "seed != 4"))
    again, _ = sweep("force=1", stdout=subprocess.PIPE, text=True).communicate(timeout=100)
    assert "\x1b" not in again and re.search(
        r"^3 of 3 runs: squares-seed=\d-\w+, \d+ s$", again, re.MULTILINE
    )
    assert re.search(r"^The table: results/toy/squares\.csv \(\d+ s\)$", again.splitlines()[-1])
    assert (
        tmp_path / "results" / "toy" / "squares.csv"
    ).read_text() == "seed,square\n1,1\n2,4\n3,9\n"


def test_what_is_left_of_a_sweep_is_what_its_runs_took(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    state = progress.Sweep("grid.yml", now=100)
    assert state.line(100) == "checking what is finished"
    for line in ("point        5", "sweep        1", "Job 1: a", "Job 2: b"):
        state.read(line, 110)
    assert state.line(130) == "0 of 5 runs · 30 s so far"
    state.read("Finished jobid: 1 (Rule: point)", 210)
    assert (
        state.left(210) == (3 * 100 + 1) / 2
    )  # Three wait, and one should have ended by now; two at a time.
    assert state.line(210) == "1 of 5 runs · 2 min so far · about 3 min left"


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name
)
def test_a_signal_ends_everything_that_was_started(start, tmp_path, number):
    build = start("echo $$ > $1.pid\nsleep 300", stdout=subprocess.PIPE, text=True)
    pids = [tmp_path / "one.pid", tmp_path / "two.pid"]
    end = time.monotonic() + 100
    while not all(path.is_file() and path.read_text() for path in pids):
        assert time.monotonic() < end
        time.sleep(0.1)
    build.send_signal(number)
    said, _ = build.communicate(timeout=60)
    assert build.returncode == 128 + number
    assert said == "Stopped. Finished pages are kept: the same command goes on from here.\n"
    end = time.monotonic() + 20  # The last of them is removed by the system, a moment later.
    for path in pids:
        while is_running(int(path.read_text())):
            assert time.monotonic() < end
            time.sleep(0.1)


def test_a_snakefile_that_cannot_be_read_shows_snakemakes_words(start, tmp_path):
    build = start("", stdout=subprocess.PIPE, text=True)
    build.send_signal(signal.SIGKILL)
    build.communicate()
    (tmp_path / "Snakefile").write_text("input: broken\n")
    command = [
        sys.executable,
        str(SCRIPT),
        "_build",
        sys.executable,
        "-m",
        "snakemake",
        "book",
        "--cores",
        "1",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1 and "Snakefile" in done.stdout
    assert done.stdout.endswith(
        "The book is not built: Snakemake failed. All output: _build/logs/book.log\n"
    )


@pytest.fixture
def state(tmp_path):
    """A build of two pages."""
    state = progress.Build(tmp_path, now=0)
    for line in ("Job stats:", "run          2", "stage        1", "total        5"):
        assert state.read(line, 0) == ""
    return state


def test_what_is_left_of_a_build_is_what_its_pages_took(state):
    assert math.isnan(state.left(0))
    state.read("Job 7: part/one", 0)
    state.read("Job 8: part/two", 40)
    assert state.line(40) == "0 of 2 pages · 40 s so far"
    assert state.read("Finished jobid: 7 (Rule: run)", 220) == "part/one"
    assert state.left(220) == 220 - 180
    assert state.line(220) == "1 of 2 pages · 4 min so far · about 40 s left"
    assert state.left(10_000) == 1, "it never says that time has run out"
    state.read("Finished jobid: 8 (Rule: run)", 400)
    state.read("Job 9: html", 400)
    assert state.line(410) == "2 of 2 pages · building the HTML · 7 min so far"


def test_a_failed_page_is_done_and_counts_for_no_pace(state):
    state.read("Job 7: part/one", 0)
    for line in ("Error in rule run:", "    message: part/one", "    jobid: 7"):
        name = state.read(line, 5)
    assert name == "part/one" and state.failed == ["part/one"] and not state.finished
    assert state.line(5) == "1 of 2 pages · 1 failed · 5 s so far"
