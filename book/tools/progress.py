"""Run the Snakemake command that builds the book or sweeps a grid, with a progress bar.

`python book/tools/progress.py FOLDER snakemake book ...` builds into FOLDER; `python
book/tools/progress.py GRID snakemake sweep ...` carries out the runs of a grid. On a terminal a bar
moves, elsewhere each finished page or run is a line. Snakemake's own output goes to a log. What
failed is named at the end with the end of its log, and the exit status is Snakemake's. A signal
ends everything that was started.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

STEPS = {
    "stage": "gathering the pages",
    "html": "building the HTML",
    "plain": "writing plain notebooks",
}
"""Jobs of a build that are no page, with their names on the screen."""

PATIENCE = 20
"""Seconds that a stopped build has to end by itself."""


EVENTS = re.compile(
    r"(?:run|point) +(?P<total>\d+)$|Job (?P<begun>\d+: \S+)$|Finished jobid: (?P<ended>\d+)"
    r"| +jobid: (?P<failed>\d+)$"
)
"""Lines of Snakemake that tell something; it gives the number of a job by itself after an error."""


def events(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Read the lines that Snakemake prints.

    Yields:
        ``total`` and the number of pages or runs; ``begun``, ``ended`` or ``failed`` and the name
        of a job.
    """
    jobs: dict[str, str] = {}
    for found in filter(None, map(EVENTS.match, lines)):
        event = str(found.lastgroup)
        number, _, name = found[event].partition(": ")
        if name:
            jobs[number] = name
        # Jobs without a message are no page and no run.
        if number in jobs or event == "total":
            yield event, jobs.get(number, number)


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


def main(where: str, *command: str) -> int:
    """Run the command; return its exit status, or 128 plus the signal that stopped it."""
    folder, unit, log, missing = Path(where), "pages", "book", "The book is not built"
    made = f"The book: {folder / 'html' / 'index.html'}"
    if folder.is_file():
        from whopays import grids

        folder, unit, log = grids.runs_folder(where), "runs", "sweep"
        missing, made = "No table is written", f"The table: {grids.expand(where)[0].table}"
    output = folder / "logs" / f"{log}.log"
    output.parent.mkdir(parents=True, exist_ok=True)
    stopped, seen = list[int](), defaultdict(list)
    bar = tqdm(total=0, unit=f" {unit}", disable=None, leave=False, dynamic_ncols=True)
    with output.open("w", 1, "utf-8") as file, start(command, stopped) as process, bar:

        def kept(line: str) -> str:
            file.write(line)
            return line

        for event, name in events(map(kept, process.stdout or ())):
            shown = STEPS.get(name, name)
            seen[event].append(name)
            if event == "total":
                bar.total = int(name)
            elif event == "begun":
                bar.set_postfix_str(shown)
            elif not stopped:
                bar.update(name not in STEPS)
                if event == "failed" or bar.disable:
                    tqdm.write(shown + ": failed" * (event == "failed"), sys.stdout)
    signal.alarm(0)
    if stopped:
        print(f"Stopped. Finished {unit} are kept: the same command goes on from here.")
        return 128 + stopped[0]
    if process.returncode:
        print("\n\n".join(why(folder, name) for name in seen["failed"] or [log]))
        failed = ", ".join(seen["failed"]) or "Snakemake"
        print(f"\n{missing}: {failed} failed. All output: {output}")
    else:
        print(made)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
