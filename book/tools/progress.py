"""Run the Snakemake command that builds the book or sweeps a grid, and say how far it is.

`python book/tools/progress.py FOLDER snakemake book ...`: on a terminal one line that moves,
elsewhere a line for each finished page. FOLDER is the folder of the build; Snakemake's own output
goes to FOLDER/logs/book.log. What failed is named at the end with its log, and the exit status is
Snakemake's. A signal ends everything that was started. `python book/tools/progress.py GRID
snakemake sweep ...` does the same for the runs of a grid.

The rest is expected to take as long for each page or run as those that have ended by now.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

STEPS = {
    "stage": "gathering the pages",
    "html": "building the HTML",
    "plain": "writing plain notebooks",
}
"""Jobs of a build that are no page, with their names on the screen."""

PATIENCE = 20
"""Seconds that a stopped build has to end by itself."""


class Build:
    """State of a build, from the lines that Snakemake prints.

    Attributes:
        total: Number of pages to run.
        running: Page or step, and when it began, by number of the job.
        finished: Seconds of each page or step.
        failed: Names of failed pages and steps.
    """

    unit, rule, log, missing = "page", "run", "book", "The book is not built"

    def __init__(self, folder: Path, now: float) -> None:
        self.folder, self.began = folder, now
        self.total, self.at_once = 0, 1
        self.running: dict[str, tuple[str, float]] = {}
        self.finished: dict[str, float] = {}
        self.failed: list[str] = []
        self._in_error = False

    def read(self, line: str, now: float) -> str:
        """Take in a line; return the page or step that has ended by it, or nothing."""
        if found := re.fullmatch(rf"{self.rule} +(\d+)", line):
            self.total = int(found[1])
        elif found := re.fullmatch(r"Job (\d+): (\S+)", line):
            self.running[found[1]] = (found[2], now)
            self.at_once = max(self.at_once, len(self.running))
        elif found := re.match(r"Finished jobid: (\d+)", line):
            name, began = self.running.pop(found[1], ("", now))
            if name:
                self.finished[name] = now - began
            return name
        elif re.match(r"Error in rule \w+", line):
            self._in_error = True
        elif self._in_error and (found := re.fullmatch(r" +jobid: (\d+)", line)):
            # Snakemake names the job some lines after it says that there is an error.
            self._in_error = False
            name, _ = self.running.pop(found[1], ("", now))
            if name:
                self.failed.append(name)
            return name
        return ""

    def done(self) -> int:
        """Count the pages that have ended, failed ones too."""
        return sum(name not in STEPS for name in [*self.finished, *self.failed])

    def left(self, now: float) -> float:
        """Estimate the seconds until all pages have ended; NaN before the first one has."""
        ended = [seconds for name, seconds in self.finished.items() if name not in STEPS]
        mean = statistics.fmean(ended) if ended else math.nan
        # At least a second each: the estimate never says that the time has run out.
        running = [
            max(mean - (now - began), 1)
            for name, began in self.running.values()
            if name not in STEPS
        ]
        waiting = self.total - self.done() - len(running)
        return max([(waiting * mean + sum(running)) / self.at_once, *running])

    def line(self, now: float) -> str:
        """Say in one line how far the build is."""
        steps = [STEPS[name] for name, _ in self.running.values() if name in STEPS]
        if not self.total and not steps:
            return "checking what is finished"
        parts = [f"{self.done()} of {self.total} {self.unit}s"] if self.total else []
        parts += [f"{len(self.failed)} failed"] if self.failed else []
        parts += [*steps, f"{duration(now - self.began)} so far"]
        if self.done() < self.total and (left := self.left(now)) >= 0:
            parts += [f"about {duration(left)} left"]
        return " · ".join(parts)

    def result(self) -> str:
        """Say what the build has made, and where it is."""
        return f"The book: {self.folder / 'html' / 'index.html'}"


class Sweep(Build):
    """State of the sweep of a grid. The tables are named by `whopays gather`."""

    unit, rule, log, missing = "run", "point", "sweep", "No table is written"

    def __init__(self, grid: str, now: float) -> None:
        from whopays import grids

        folder = grids.runs_folder(grid)
        super().__init__(folder, now)
        self.tables: list[str] = []

    def read(self, line: str, now: float) -> str:
        if line.endswith(".csv") and not line.startswith(" "):
            self.tables.append(line)
        return super().read(line, now)

    def result(self) -> str:
        return f"The table: {', '.join(self.tables)}"


def duration(seconds: float) -> str:
    if seconds < 90 * 60:
        return f"{max(seconds, 1):.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


class Screen:
    """Standard output: on a terminal a line that moves, elsewhere only lines that stay."""

    def __init__(self) -> None:
        self.moves = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"

    def move(self, line: str) -> None:
        if self.moves:
            # A line longer than the terminal would wrap, and the next one could not replace it.
            width = shutil.get_terminal_size().columns - 1
            self._write("\r\x1b[K" + (line if len(line) <= width else line[: width - 3] + "..."))

    def stay(self, line: str) -> None:
        self._write(("\r\x1b[K" if self.moves else "") + line + "\n")

    def _write(self, text: str) -> None:
        # If the terminal has been closed, the build goes on.
        with contextlib.suppress(OSError):
            sys.stdout.write(text)
            sys.stdout.flush()


def why(folder: Path, name: str) -> str:
    """Quote the end of the log of a failed page or step, after any warnings of Sphinx."""
    path = folder / "logs" / f"{name}.log"
    if not path.is_file():
        return f"{path} was not written"
    lines = path.read_text(encoding="utf-8", errors="replace").rstrip().splitlines()
    warned = [line for line in lines[:-60] if re.search(r"\b(WARNING|ERROR|CRITICAL): ", line)]
    # Sphinx ends with a summary: the warnings that made it fail are further up.
    return "\n".join([f"--- {name} failed; its log, {path}, ends with", *warned[:40], *lines[-60:]])


def start(command: Sequence[str], stopped: list[int]) -> subprocess.Popen[str]:
    """Start the command in its own process group, which a signal ends as a whole.

    Args:
        command: Words of the command.
        stopped: Numbers of the signals that have arrived, filled as they do.
    """
    # The command inherits the Makefile's lock (close_fds): as long as any process of it runs, no
    # other build begins. In a new session a terminal sends its signals to this process only.
    process = subprocess.Popen(
        command,
        start_new_session=True,
        close_fds=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )

    def stop(number: int, frame: object) -> None:
        # Gently at first; at once on a second signal, or on that of the alarm.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL if stopped else signal.SIGTERM)
        stopped.append(number)
        signal.alarm(PATIENCE)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, stop)
    return process


def build(state: Build, command: Sequence[str]) -> int:
    """Run the command; return its exit status, or 128 plus the signal that stopped it."""
    folder, screen, stopped = state.folder, Screen(), list[int]()
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    log = folder / "logs" / f"{state.log}.log"
    with log.open("w", encoding="utf-8") as file, start(command, stopped) as process:
        for line in process.stdout:
            file.write(line)
            file.flush()
            ended, now = state.read(line.rstrip("\n"), time.monotonic()), time.monotonic()
            if ended and not stopped:
                tell(screen, state, ended)
            screen.move("stopping" if stopped else state.line(now))
    signal.alarm(0)
    if stopped:
        screen.stay(
            f"Stopped. Finished {state.unit}s are kept: the same command goes on from here."
        )
        return 128 + stopped[0]
    if process.returncode:
        screen.stay("\n\n".join([why(folder, name) for name in state.failed or [state.log]]))
        failed = ", ".join(state.failed) or "Snakemake"
        screen.stay(f"\n{state.missing}: {failed} failed. All output: {log}")
    else:
        took = duration(time.monotonic() - state.began)
        screen.stay(f"{state.result()} ({took if state.finished else 'nothing has changed'})")
    return process.returncode


def tell(screen: Screen, state: Build, name: str) -> None:
    """Say for good what has failed; without a terminal also what has ended well."""
    if name in state.failed:
        screen.stay(f"{STEPS.get(name, name)}: failed")
    elif name in state.finished and not screen.moves:
        count = f"{state.done()} of {state.total} {state.unit}s: " if name not in STEPS else ""
        screen.stay(f"{count}{STEPS.get(name, name)}, {duration(state.finished[name])}")


def main(where: str, *command: str) -> int:
    now, path = time.monotonic(), Path(where)
    state = Sweep(where, now) if path.is_file() else Build(path, now)
    return build(state, command)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
