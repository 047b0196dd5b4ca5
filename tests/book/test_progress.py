"""What a build says to a person, and how it ends: `book/tools/progress.py`, on Snakemake with small
jobs."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import termios
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
    assert "part/one\n" in said and "part/two: failed\n" in said
    assert said.endswith(
        "--- part/two failed; its log, _build/logs/part/two.log, ends with\nworking\nTraceback of two\n\n"
        "The book is not built: part/two failed. All output: _build/logs/book.log\n"
    )
    assert "Job stats:" in (tmp_path / "_build" / "logs" / "book.log").read_text()


def open_terminal() -> tuple[int, int]:
    """Open a terminal of 24 lines and 100 columns; a new one has none."""
    master, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 100))
    return master, terminal


def read_all(master: int) -> str:
    """What is written to a terminal until nobody writes any more, which is an error on Linux."""
    said = b""
    with contextlib.suppress(OSError):
        while text := os.read(master, 65536):
            said += text
    os.close(master)
    return said.decode()


def test_a_terminal_shows_one_line_that_moves_and_a_second_build_none(start):
    master, terminal = open_terminal()
    build = start("[ $1 = one ] || sleep 3", stdout=terminal, stderr=terminal)
    os.close(terminal)
    said = read_all(master)
    assert build.wait(timeout=100) == 0
    assert said.endswith("The book: _build/html/index.html\r\n") and said.count("\n") == 1
    assert re.search(r"\r *50%\|[^\r]*\| 1/2 \[", said)
    again = start("exit 1", stdout=subprocess.PIPE, text=True).communicate(timeout=100)[0]
    assert again == "The book: _build/html/index.html\n"


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


@pytest.mark.slow
def test_a_sweep_shows_one_line_that_moves_and_the_log_of_a_failed_run_and_goes_on(sweep, tmp_path):
    master, terminal = open_terminal()
    first = sweep(stdout=terminal, stderr=terminal)
    os.close(terminal)
    said = read_all(master)
    assert first.wait(timeout=100) == 1
    assert re.search(r"\d/3 \[.* runs", said)
    said = said.replace("\r\n", "\n").replace("\r", "\n")
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
    *runs, last = again.splitlines()
    assert last == "The table: results/toy/squares.csv" and "\x1b" not in again
    assert sorted(run[:14] for run in runs if run.startswith("squares")) == [
        f"squares-seed={seed}" for seed in (1, 2, 3)
    ]
    assert (
        tmp_path / "results" / "toy" / "squares.csv"
    ).read_text() == "seed,square\n1,1\n2,4\n3,9\n"


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
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


def test_the_job_of_an_error_is_named_some_lines_later():
    lines = ["total 3", "run          2", "Job 7: part/one", "Job 8: part/two"]
    lines += ["Error in rule run:", "    message: part/one", "    jobid: 7"]
    lines += ["Finished jobid: 8 (Rule: run)"]
    found = list(progress.events(line + "\n" for line in lines))
    assert found == [
        ("total", "2"),
        ("begun", "part/one"),
        ("begun", "part/two"),
        ("failed", "part/one"),
        ("ended", "part/two"),
    ]
