"""Runs the Snakemake command that builds the book or sweeps a grid, and says how far it is.

`python book/tools/progress.py FOLDER snakemake book ...`: on a terminal one line that moves,
elsewhere a line for each finished page. FOLDER is the folder of the build; Snakemake's own output
goes to FOLDER/logs/book.log. What failed stands at the end with its log, and the exit status is
Snakemake's. A signal ends everything that was started. `python book/tools/progress.py GRID
snakemake sweep ...` does the same for the runs of a grid.

How long the rest takes follows from the seconds of each page's last run, or from `seconds.json`
beside this file, scaled by what this build has measured so far. The runs of a grid are expected to
take as long as those that have ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

TYPICAL = json.loads(Path(__file__).with_name("seconds.json").read_text(encoding="utf-8"))
AFTER = {
    "stage": "gathering the pages",
    "html": "building the HTML",
    "plain": "writing plain notebooks",
}  # The jobs that are no page.
PATIENCE = 20  # Seconds that a stopped build has to end by itself.


class Build:
    """What is known of a build from the lines that Snakemake prints."""

    unit, rule, kind, log, missing = "page", "run", "build", "book", "The book is not built"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.expected = expected(folder)
        self.total = 0  # Pages to run.
        self.at_once = 1
        self.running: dict[
            str, tuple[str, float]
        ] = {}  # By number of the job: page or step, when it began.
        self.finished: dict[str, float] = {}  # Seconds of each page or step.
        self.failed: list[str] = []
        self._in_error = False

    def read(self, line: str, now: float) -> str:
        """Take in a line; give back what has ended by it: a page, a step or nothing."""
        if found := re.fullmatch(rf"{self.rule} +(\d+)", line):
            self.total = int(found[1])
        elif found := re.fullmatch(r"Job (\d+): (\S+)", line):
            self.running[found[1]] = (found[2], now)
            self.at_once = max(self.at_once, len(self.running))
        elif found := re.match(r"Finished jobid: (\d+)", line):
            return self._end(found[1], now)
        elif re.match(r"Error in rule \w+", line):
            self._in_error = True
        elif self._in_error and (found := re.fullmatch(r" +jobid: (\d+)", line)):
            self._in_error = False
            if name := self._end(found[1], now):
                del self.finished[name]
                self.failed.append(name)
            return name
        return ""

    def _end(self, job: str, now: float) -> str:
        name, began = self.running.pop(job, ("", now))
        if name:
            self.finished[name] = now - began
        return name

    def done(self) -> int:
        """Pages that have ended, failed ones too."""
        return len([name for name in [*self.finished, *self.failed] if name not in AFTER])

    def left(self, now: float) -> float:
        """Seconds until the book is built: as long as such a page takes, times how slow this build
        has been so far.
        """
        usual = sum(self.expected.get(name, 0) for name in self.finished)
        pace = (sum(self.finished.values()) + 60) / (usual + 60)
        open_ = [
            max(pace * self.expected.get(name, 60) - (now - began), 1)
            for name, began in self.running.values()
        ]
        seen = {*self.finished, *self.failed, *(name for name, _ in self.running.values())}
        waiting = [
            seconds
            for name, seconds in self.expected.items()
            if name not in seen and name not in AFTER
        ]
        count = (
            self.total
            - self.done()
            - len([1 for name, _ in self.running.values() if name not in AFTER])
        )
        mean = sum(waiting) / len(waiting) if waiting else 60
        pages = max([(count * mean * pace + sum(open_)) / self.at_once, *open_])
        return pages + pace * sum(self.expected.get(name, 0) for name in AFTER if name not in seen)

    def line(self, now: float) -> str:
        """How far the build is, in one line."""
        names = [AFTER.get(name, name) for name, _ in self.running.values()]
        parts = [f"{self.done()} of {self.total} {self.unit}s"] if self.total else []
        parts += [f"{len(self.failed)} failed"] if self.failed else []
        parts += [", ".join(names)] if names else []
        parts += [f"about {duration(self.left(now))} left"]
        return " · ".join(parts) if self.total or names else "checking what has changed"

    def result(self) -> str:
        """What there is in the end, and where."""
        return f"The book: {self.folder / 'html' / 'index.html'}"


class Sweep(Build):
    """What is known of the sweep of a grid."""

    unit, rule, kind, log, missing = "run", "point", "sweep", "sweep", "No table is written"

    def __init__(self, grid: str, now: float) -> None:
        from whopays import grids

        super().__init__(grids.runs_folder(grid))
        self.before = [
            json.loads(path.read_text("utf-8"))["seconds"]
            for path in self.folder.glob("*/run.json")
        ]
        self.began = now
        self.tables: list[str] = []

    def read(self, line: str, now: float) -> str:
        """Take in a line; give back which run has ended by it. The tables are named by `whopays
        gather`.
        """
        if line.endswith(".csv") and not line.startswith(" "):
            self.tables.append(line)
        return super().read(line, now)

    def left(self, now: float) -> float:
        """Seconds until all runs have ended; NaN as long as no run of this grid has."""
        seconds = list(self.finished.values()) or self.before
        mean = sum(seconds) / len(seconds) if seconds else float("nan")
        open_ = [max(mean - (now - began), 1) for _, began in self.running.values()]
        waiting = self.total - self.done() - len(open_)
        return max([(waiting * mean + sum(open_)) / self.at_once, *open_])

    def line(self, now: float) -> str:
        """How far the sweep is, in one line."""
        if not self.total:
            return "checking which runs are finished"
        parts = [f"{self.done()} of {self.total} runs"] + [f"{len(self.failed)} failed"] * bool(
            self.failed
        )
        parts += [f"{duration(now - self.began)} so far"]
        if (left := self.left(now)) >= 0:
            end = time.strftime(
                "%H:%M" if left < 12 * 3600 else "%a %H:%M", time.localtime(time.time() + left)
            )
            parts += [f"about {duration(left)} left, until {end}"]
        return " · ".join(parts)

    def result(self) -> str:
        """The tables that were gathered."""
        return f"The table: {', '.join(self.tables)}"


def expected(folder: Path) -> dict[str, float]:
    """The seconds that each page and step should take: of the last run in this folder, else the
    recorded ones.
    """
    quick = folder.name == "quick"
    found = {
        name: 12 if quick and name not in AFTER else seconds for name, seconds in TYPICAL.items()
    }
    for path in folder.glob("runs/*/*/run.json"):
        found[f"{path.parts[-3]}/{path.parts[-2]}"] = json.loads(path.read_text(encoding="utf-8"))[
            "seconds"
        ]
    return found


def duration(seconds: float) -> str:
    if seconds < 90 * 60:
        return f"{max(seconds, 1):.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


class Screen:
    """Where the progress is shown: a line that moves on a terminal, lines that stay elsewhere."""

    def __init__(self) -> None:
        self.moves = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"

    def move(self, line: str) -> None:
        if self.moves:
            width = shutil.get_terminal_size().columns - 1
            self._write("\r\x1b[K" + (line if len(line) <= width else line[: width - 3] + "..."))

    def stay(self, line: str) -> None:
        self._write(("\r\x1b[K" if self.moves else "") + line + "\n")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # The terminal may have been closed.
            sys.stdout.write(text)
            sys.stdout.flush()


def why(folder: Path, name: str) -> str:
    """Quote the end of the log of a failed page or step, after any warnings of Sphinx."""
    path = folder / "logs" / f"{name}.log"
    if not path.is_file():
        return f"{path} was not written"
    lines = path.read_text(encoding="utf-8", errors="replace").rstrip().splitlines()
    warned = [line for line in lines[:-60] if re.search(r"\b(WARNING|ERROR|CRITICAL): ", line)]
    before = warned[:40] if name == "html" else []
    return "\n".join([f"--- {name} failed; its log, {path}, ends with", *before, *lines[-60:]])


class Child:
    """The command, in a group of its own, which is ended as a whole; its output is read without
    waiting.
    """

    def __init__(self, command: list[str]) -> None:
        self.stopped = 0  # Number of the first signal.
        self.patience = float("inf")  # Time after which the group is killed.
        # It inherits the lock of the Makefile: as long as it runs, no other build begins.
        options = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
        }
        self.process = subprocess.Popen(command, start_new_session=True, close_fds=False, **options)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self.stop)

    def stop(self, number: int, frame: object = None) -> None:
        """End the group: gently at first; at once when it is asked for again."""
        self._kill(signal.SIGKILL if self.stopped else signal.SIGTERM)
        self.stopped = self.stopped or number
        self.patience = min(self.patience, time.monotonic() + PATIENCE)

    def _kill(self, number: int) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def output(self) -> Iterator[bytes]:
        """What it prints, as soon as it does; twice a second nothing."""
        with self.process.stdout as pipe, selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while True:
                ended = self.process.poll() is not None
                text = (
                    os.read(pipe.fileno(), 1 << 16)
                    if selector.select(timeout=0 if ended else 0.5)
                    else b""
                )
                if ended and not text:
                    return
                yield text
                if time.monotonic() > self.patience:
                    self._kill(signal.SIGKILL)


def build(state: Build, command: list[str]) -> int:
    """Run the command; give back its exit status, or 128 and the number of the signal that stopped
    it.
    """
    folder, screen, began, rest = state.folder, Screen(), time.monotonic(), b""
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    child = Child(command)
    with (folder / "logs" / f"{state.log}.log").open("wb") as log:
        for text in child.output():
            log.write(text)
            log.flush()
            *lines, rest = (rest + text).split(b"\n")
            for line in lines:
                ended = state.read(line.decode(errors="replace"), time.monotonic())
                if ended and not child.stopped:
                    tell(screen, state, ended)
            screen.move("stopping" if child.stopped else state.line(time.monotonic()))
    if child.stopped:
        screen.stay(
            f"Stopped. Finished {state.unit}s are kept: the next {state.kind} goes on from here."
        )
        return 128 + child.stopped
    if child.process.returncode:
        screen.stay("\n\n".join([why(folder, name) for name in state.failed or [state.log]]))
        failed = ", ".join(state.failed) or "Snakemake"
        screen.stay(f"\n{state.missing}: {failed} failed. All output: {log.name}")
    else:
        took = duration(time.monotonic() - began)
        screen.stay(f"{state.result()} ({took if state.finished else 'nothing has changed'})")
    return child.process.returncode


def tell(screen: Screen, state: Build, name: str) -> None:
    """Say for good what has failed; without a terminal also what has ended well."""
    if name in state.failed:
        screen.stay(f"{AFTER.get(name, name)}: failed")
    elif name in state.finished and not screen.moves:
        count = f"{state.done()} of {state.total} {state.unit}s: " if name not in AFTER else ""
        screen.stay(f"{count}{AFTER.get(name, name)}, {duration(state.finished[name])}")


if __name__ == "__main__":
    where, *words = sys.argv[1:]
    sys.exit(
        build(
            Sweep(where, time.monotonic()) if Path(where).is_file() else Build(Path(where)), words
        )
    )
