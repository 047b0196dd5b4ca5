"""The console command: ``whopays run | plan | gather | record | verify | ledger``."""

import argparse
import re
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from fairlib._version import __version__
from whopays import grids, plan, runs


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: Words of the command; by default those of the process.

    Returns:
        0 for success, 1 for a failure or a table that does not agree, 2 for an argument that does
        not exist or is not valid. An error is one line on standard error, after the notebook's
        traceback if there is one.

    Example:
        >>> from whopays.cli import main
        >>> main(["run", "none.ipynb", "-o", "runs/none"])  # "No such file" on standard error.
        1
    """
    options = vars(_parser().parse_args(argv))
    command = options.pop("command")
    try:
        return command(**options) or 0
    except (runs.RunError, OSError, ValueError) as error:
        # The cause is the error of the kernel: its traceback, without colours, says where.
        trace = getattr(error.__cause__, "traceback", None)
        if trace:
            print(re.sub(r"\x1b\[[\d;]*m", "", "\n".join(trace)), file=sys.stderr)
        print(f"whopays: {error}", file=sys.stderr)
        return 2 if isinstance(error, runs.ParameterError) else 1
    except KeyboardInterrupt:
        return 130


def _end(number: int, frame: object) -> None:
    """Exit by an exception, so that kernels are ended and temporary folders removed."""
    sys.exit(128 + number)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="whopays", description="Run, check and record what the book shows."
    )
    parser.add_argument("--version", action="version", version=f"whopays {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")

    def command(name: str, function: Callable[..., int | None], about: str) -> Callable[..., Any]:
        """Add a command; return what adds an argument, which the function gets by its name."""
        own = commands.add_parser(name, help=about)
        own.set_defaults(command=function)
        return own.add_argument

    run = command("run", _run, "execute a notebook by papermill, safely")
    run("notebook")
    several: dict[str, Any] = {"action": "append", "default": []}
    run(
        "-p",
        dest="given",
        nargs=2,
        metavar=("NAME", "VALUE"),
        help="value of a parameter",
        **several,
    )
    run(
        "-f",
        dest="files",
        metavar="FILE",
        help="YAML file of parameters; -p takes precedence",
        **several,
    )
    folder: dict[str, Any] = {"dest": "out", "metavar": "DIR", "required": True}
    run("-o", help="folder of the run, made at its end", **folder)
    run("--force", action="store_true", help="replace a finished run of other contents")

    command("plan", plan.show, "say how far a grid is, how long the rest takes, and what it lacks")(
        "grid"
    )
    command("gather", _gather, "write the table of a grid whose runs are finished")("grid")

    record = command(
        "record", _record, "run a list of grids within a given time, on a GPU, without Snakemake"
    )
    record(
        "names",
        nargs="*",
        metavar="GRID",
        help="a grid, or a file that lists grids in order of worth; params/gpu-list.txt by default",
    )
    record("-o", help="folder of the results", **folder)
    record(
        "--minutes",
        type=float,
        required=True,
        help="minutes until this has ended, packing included",
    )
    record("--spent", type=float, default=0.0, help="seconds of them that are over")
    record("--device", choices=("cuda", "cpu"), default="cuda")
    record("--at-once", type=int, default=1, help="runs at a time; 1 by default")

    verify = command("verify", _verify, "run the first seeds of a recorded table again and compare")
    verify("table")
    verify("--seeds", type=int, default=1, help="number of seeds; 1 by default")
    verify("--avx2", action="store_true", help="compute as a CPU without AVX-512 does")

    ledger = command(
        "ledger", _ledger, "write the verdicts of book/claims.yml: as a page, as a table"
    )
    ledger("out", nargs="?", metavar="PAGE", help="path of the page")
    ledger("--csv", metavar="PATH", help="a row for each claim, reading and table, as CSV")
    return parser


def _run(files: list[str], given: list[list[str]], **options: Any) -> None:
    # Snakemake and SLURM end a run by SIGTERM, which would leave its kernel running.
    signal.signal(signal.SIGTERM, _end)
    values: dict[str, Any] = {}
    for path in files:
        values |= runs.read_yaml(path)
    executed = runs.run_notebook(given=values | dict(given), **options)
    print(f"{options['out']}: {'finished' if executed else 'already finished, nothing to do'}")


def _gather(grid: str) -> None:
    print(grids.gather(grid))


def _record(names: list[str], **options: Any) -> int:
    from whopays import recording

    # Where the machine ends, what is finished is still packed.
    signal.signal(signal.SIGTERM, _end)
    found = recording.record_grids(names or [recording.LIST], **options)
    return int(any(each.counts()["failed"] or "skipped" in each.state for each in found))


def _verify(table: str, **options: Any) -> int:
    from whopays import verify

    signal.signal(signal.SIGTERM, _end)
    return int(not verify.verify(table, **options))


def _ledger(**asked: str | None) -> None:
    if not any(asked.values()):
        raise runs.ParameterError("nothing to write: ask for PAGE or --csv PATH")
    root = runs.project()
    path = root / "book" / "claims.yml"
    if not path.is_file():
        raise runs.RunError(
            f"there is no book/claims.yml in {root} or above it: run this in a folder of the "
            "project"
        )
    from whopays import ledger

    ledger.write(path, root, **asked)
