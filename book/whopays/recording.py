"""The command ``whopays record``: a list of grids, run in order within a given time.

It is for a machine that is lent for minutes, with a GPU and without Snakemake. Runs end up where
``make sweep`` leaves them, so either goes on where the other stopped. A run that time cuts off
leaves the networks that it has trained in fairlib's cache, where the next call finds them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fairlib._validation import check_number
from whopays import grids, plan, runs

LIST = "params/gpu-list.txt"
"""File of the grids that are recorded where none is named, in order of worth."""

RESERVE = 20.0
"""Seconds of the given time that are kept for ending what runs, and for packing."""

PARTS, LARGEST = 4, 15 * 2**20
"""Most archives that are left, and most bytes of one: what is brought home from a lent machine."""

_STOP = 8.0  # Seconds that an interrupted run has to end its kernel before it is killed.


@dataclass
class Progress:
    """How far a grid is.

    Attributes:
        grid: Path of the grid.
        state: ``not reached``, ``unfinished``, ``finished`` (its table is gathered), or ``skipped``
            and why.
        points: Its runs.
        ended: Exit status by id of the runs that have ended; 0 for the finished ones.
        seconds: Time that its runs took in this call, the interrupted ones included.
        new: Ids of the runs that this call has finished.
    """

    grid: str
    state: str = "not reached"
    points: list[grids.Point] = field(default_factory=list)
    ended: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    new: set[str] = field(default_factory=set)

    def counts(self) -> dict[str, int | str | float]:
        """Count the runs, by how they ended."""
        statuses = list(self.ended.values())
        return {
            "grid": self.grid,
            "state": self.state,
            "runs": len(self.points),
            "done": statuses.count(0),
            "failed": len(statuses) - statuses.count(0),
            "seconds": round(self.seconds, 1),
        }


@dataclass
class _Log:
    """Lines for the terminal and for a file, each with the seconds since the beginning."""

    path: Path
    began: float = field(default_factory=time.monotonic)

    def __call__(self, text: str) -> None:
        line = f"{time.monotonic() - self.began:6.0f} s  {text}"
        print(line, flush=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def listed(names: Iterable[str | Path]) -> list[str]:
    """Read which grids are named: grid files (``.yml``), and lists of one grid a line.

    In a list ``#`` begins a comment. A grid that is named twice counts once.
    """
    found: list[str] = []
    for name in map(Path, names):
        lines = [str(name)] if name.suffix == ".yml" else name.read_text("utf-8").splitlines()
        found += [grid for line in lines if (grid := line.partition("#")[0].strip())]
    return list(dict.fromkeys(found))


def record_grids(
    names: Iterable[str | Path],
    out: str | Path,
    *,
    minutes: float,
    spent: float = 0.0,
    device: str = "cuda",
    at_once: int = 1,
) -> list[Progress]:
    """Run grids one after another until all are done or the time is over; gather the finished ones.

    The folder ``out`` then holds ``log.txt``, ``summary.json`` and at most :data:`PARTS` archives
    ``recorded-0.tar.gz``, ... of at most :data:`LARGEST` bytes. Unpacked in the root of a project
    they give the gathered tables, the finished runs of all grids, and the log and notebook of each
    run that failed.

    Args:
        names: Grids in order of worth, or lists of them (:func:`listed`).
        out: Folder of the results.
        minutes: Minutes until this call has returned.
        spent: Seconds of these minutes that are already over.
        device: ``"cuda"``, or ``"cpu"`` to leave a GPU alone.
        at_once: Number of runs at a time.

    Returns:
        How far each grid is, in their order.

    Raises:
        RunError: If there is no GPU and the device is not ``"cpu"``.
        ValueError: If ``at_once`` is less than 1.
        OSError: If a list cannot be read.
    """
    check_number("at_once", at_once, 1, whole=True)
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    machine, found, out = _machine(device), [Progress(name) for name in listed(names)], Path(out)
    out.mkdir(parents=True, exist_ok=True)
    log = _Log(out / "log.txt", time.monotonic() - spent)
    log(f"{minutes:g} minutes on {machine}, {at_once} run{'s' * (at_once > 1)} at a time")
    end = log.began + 60 * minutes - RESERVE
    try:
        for progress, point, status, seconds in _ended(_left(found, end, log), at_once, end):
            progress.seconds += seconds
            if status is None:
                log(f"{point.id} interrupted after {seconds:.0f} s")
                continue
            progress.ended[point.id] = status
            if status == 0:
                progress.new.add(point.id)
            log(f"{point.id} {_outcome(point, status)} after {seconds:.0f} s")
            _gather(progress, log)
            if progress.state == "finished":
                # A machine that ends without a word then costs one grid, not all.
                _pack(_results(found), out, log)
    finally:
        counts = [progress.counts() for progress in found]
        line = "{grid}: {state}, {done} of {runs} runs done, {failed} failed, {seconds} s"
        for row in counts:
            log(line.format(**row))
        summary = {"machine": machine, "grids": counts}
        (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
        _pack(_results(found), out, log)
    return found


def _machine(device: str) -> str:
    """Name the device, and refuse the CPU unless it was asked for."""
    import torch

    if device == "cpu":
        return "the CPU"
    if not torch.cuda.is_available():
        raise runs.RunError(
            f"torch {torch.__version__} sees no GPU here; --device cpu runs the grids on the CPU"
        )
    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"


def _left(
    found: Iterable[Progress], end: float, log: Callable[[str], None]
) -> Iterator[tuple[Progress, grids.Point]]:
    """Yield the runs to do, grid by grid: one is only looked at when it is its turn."""
    for progress in found:
        if time.monotonic() > end:  # Gathering many finished grids takes time, too.
            return
        try:
            points = grids.expand(progress.grid)
            unfit = grids.unfit(points)
            lacks = plan.lacks([point for point in points if point.id in unfit])
        except (OSError, ValueError) as error:
            lacks = [str(error)]
        if lacks:
            progress.state = f"skipped: {'; '.join(lacks)}"
            log(f"{progress.grid} {progress.state}")
            continue
        progress.state, progress.points = "unfinished", points
        progress.ended = {point.id: 0 for point in points if point.id not in unfit}
        _gather(progress, log)
        yield from ((progress, point) for point in points if point.id in unfit)


def _gather(progress: Progress, log: Callable[[str], None]) -> None:
    """Gather the table of a grid, if all its runs are finished."""
    if [*progress.ended.values()].count(0) < len(progress.points):
        return
    try:
        table = grids.gather(progress.grid)
    except (runs.RunError, OSError) as error:
        log(f"{progress.grid} cannot be gathered: {error}")
        return
    progress.state = "finished"
    log(f"{progress.grid} finished: {table}")


def _ended(
    waiting: Iterator[tuple[Progress, grids.Point]], at_once: int, end: float
) -> Iterator[tuple[Progress, grids.Point, int | None, float]]:
    """Run points in order; yield each that ends, with its exit status and seconds.

    Those that run at ``end``, by the monotonic clock, are interrupted: their status is None.
    """
    threads = str(max(1, (os.cpu_count() or 1) // at_once))
    running: dict[subprocess.Popen, tuple[Progress, grids.Point, float]] = {}
    try:
        while time.monotonic() < end:
            while len(running) < at_once and (found := next(waiting, None)):
                progress, point = found
                path = _traces(point)[0]
                path.parent.mkdir(parents=True, exist_ok=True)
                command = [sys.executable, "-m", "whopays", *grids.command(point)]
                with path.open("w") as file:
                    process = subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=file,
                        stderr=subprocess.STDOUT,
                        env={"OMP_NUM_THREADS": threads, **os.environ},
                    )
                running[process] = progress, point, time.monotonic()
            if not running:
                return
            for process in [each for each in running if each.poll() is not None]:
                progress, point, began = running.pop(process)
                yield progress, point, process.returncode, time.monotonic() - began
            time.sleep(0.1)
        for progress, point, began in running.values():
            yield progress, point, None, time.monotonic() - began
    finally:
        for process in running:
            process.terminate()
        last = time.monotonic() + _STOP
        for process in running:
            try:
                process.wait(max(0.0, last - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()


def _traces(point: grids.Point) -> tuple[Path, Path]:
    """Return the paths of a run's log and, if it fails, of its notebook."""
    folder = point.out.parent
    return folder / "logs" / f"{point.id}.log", folder / "failed" / f"{point.id}.ipynb"


def _outcome(point: grids.Point, status: int) -> str:
    if status == 0:
        return "done"
    lines = _traces(point)[0].read_text(encoding="utf-8", errors="replace").splitlines()
    return f"failed ({lines[-1] if lines else f'status {status}'})"


def _results(found: Iterable[Progress]) -> Iterator[Path]:
    """Yield the files to bring home, those first that nobody has: tables, then the runs that this
    call has finished, those finished before, and traces of failed ones."""
    new, before, failed = list[Path](), list[Path](), list[Path]()
    for progress in found:
        if progress.state == "finished":
            table = progress.points[0].table
            yield from (table, table.with_suffix(".json"))
        for point in progress.points:
            if progress.ended.get(point.id) == 0:
                (new if point.id in progress.new else before).extend(point.out.iterdir())
            elif point.id in progress.ended:
                failed += filter(Path.exists, _traces(point))
    yield from (*new, *before, *failed)


def _pack(paths: Iterable[Path], out: Path, log: Callable[[str], None]) -> None:
    """Pack files into archives, none of which may become too large; say how many found no room."""
    parts: list[list[Path]] = [[]]
    room = LARGEST
    for path in paths:
        # A file takes no more in the archive than on the disk, but for its header.
        size = path.stat().st_size + 1024
        if size > room:
            parts.append([])
            room = LARGEST
        parts[-1].append(path)
        room -= size
    for old in out.glob("recorded-*.tar.gz"):
        old.unlink()
    for number, part in enumerate(parts[:PARTS]):
        with tarfile.open(out / f"recorded-{number}.tar.gz", "w:gz", compresslevel=6) as archive:
            for path in part:
                archive.add(path, path.resolve().relative_to(runs.project_root(path)).as_posix())
    if left := sum(map(len, parts[PARTS:])):
        log(f"{left} files of finished runs found no room in {PARTS} archives; they are here only")
