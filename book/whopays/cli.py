"""The console command: ``whopays run | plan | gather | record | verify | ledger``."""

import argparse
import re
import signal
import sys
from collections.abc import Sequence
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
    arguments = _parser().parse_args(argv)
    try:
        return arguments.command(arguments) or 0
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

    run = commands.add_parser("run", help="execute a notebook by papermill, safely")
    run.add_argument("notebook")
    several: dict[str, Any] = {"action": "append", "default": []}
    run.add_argument(
        "-p",
        dest="given",
        nargs=2,
        metavar=("NAME", "VALUE"),
        help="value of a parameter",
        **several,
    )
    run.add_argument(
        "-f",
        dest="files",
        metavar="FILE",
        help="YAML file of parameters; -p takes precedence",
        **several,
    )
    run.add_argument(
        "-o", dest="out", metavar="DIR", required=True, help="folder of the run, made at its end"
    )
    run.add_argument(
        "--force", action="store_true", help="replace a finished run of other contents"
    )
    run.set_defaults(command=_run)

    about = "say how far a grid is, how long the rest takes, and what it lacks"
    planned = commands.add_parser("plan", help=about)
    planned.add_argument("grid")
    planned.set_defaults(command=lambda arguments: plan.show(arguments.grid))
    gather = commands.add_parser(
        "gather", help="write the tables of a grid whose runs are finished"
    )
    gather.add_argument("grid")
    gather.set_defaults(command=_gather)

    record = commands.add_parser(
        "record", help="run a list of grids within a given time, on a GPU, without Snakemake"
    )
    record.add_argument(
        "grids",
        nargs="*",
        metavar="GRID",
        help="a grid, or a file that lists grids in order of worth; params/gpu-list.txt by default",
    )
    record.add_argument(
        "-o", dest="out", metavar="DIR", required=True, help="folder of the results"
    )
    record.add_argument(
        "--minutes",
        type=float,
        required=True,
        help="minutes until this has ended, packing included",
    )
    record.add_argument("--spent", type=float, default=0.0, help="seconds of them that are over")
    record.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    record.add_argument("--at-once", type=int, default=1, help="runs at a time; 1 by default")
    record.add_argument(
        "--force", action="store_true", help="run again what is finished with other contents"
    )
    record.set_defaults(command=_record)

    verify = commands.add_parser(
        "verify", help="run the first seeds of a recorded table again and compare"
    )
    verify.add_argument("table")
    verify.add_argument("--seeds", type=int, default=1, help="number of seeds; 1 by default")
    verify.add_argument(
        "--tolerance", type=float, help="largest relative difference to accept; 1e-5 by default"
    )
    verify.add_argument("--avx2", action="store_true", help="compute as a CPU without AVX-512 does")
    verify.set_defaults(command=_verify)

    ledger = commands.add_parser(
        "ledger", help="write the verdicts of book/claims.yml: as a page, as a table"
    )
    ledger.add_argument("out", nargs="?", metavar="PAGE", help="path of the page")
    ledger.add_argument(
        "--csv", metavar="PATH", help="a row for each claim, reading and table, as CSV"
    )
    ledger.add_argument("--json", metavar="PATH", help="the same as JSON, a list of records")
    ledger.add_argument(
        "--notebooks", metavar="DIR", help="folder of copies of notebooks/, each to get its rows"
    )
    ledger.set_defaults(command=_ledger)
    return parser


def _run(arguments: argparse.Namespace) -> None:
    # Snakemake and SLURM end a run by SIGTERM, which would leave its kernel running.
    signal.signal(signal.SIGTERM, _end)
    given: dict[str, Any] = {}
    for path in arguments.files:
        given |= runs.read_yaml(path)
    given |= dict(arguments.given)
    executed = runs.run_notebook(arguments.notebook, arguments.out, given, force=arguments.force)
    print(f"{arguments.out}: {'finished' if executed else 'already finished, nothing to do'}")


def _gather(arguments: argparse.Namespace) -> None:
    for table in grids.gather(arguments.grid):
        print(table)


def _record(arguments: argparse.Namespace) -> int:
    from whopays import recording

    # Where the machine ends, what is finished is still packed.
    signal.signal(signal.SIGTERM, _end)
    options = vars(arguments)
    del options["command"]
    found = recording.record_grids(options.pop("grids") or [recording.LIST], **options)
    bad = [each for each in found if each.counts()["failed"] or each.state.startswith("skipped")]
    return 1 if bad else 0


def _verify(arguments: argparse.Namespace) -> int:
    from whopays import verify

    signal.signal(signal.SIGTERM, _end)
    tolerance = verify.TOLERANCE if arguments.tolerance is None else arguments.tolerance
    agrees = verify.verify(
        arguments.table, seeds=arguments.seeds, tolerance=tolerance, avx2=arguments.avx2
    )
    return 0 if agrees else 1


def _ledger(arguments: argparse.Namespace) -> None:
    asked = {name: getattr(arguments, name) for name in ("out", "csv", "json", "notebooks")}
    if not any(asked.values()):
        raise runs.ParameterError(
            "nothing to write: ask for PAGE, --csv PATH, --json PATH or --notebooks DIR"
        )
    root = runs.project()
    path = root / "book" / "claims.yml"
    if not path.is_file():
        raise runs.RunError(
            f"there is no book/claims.yml in {root} or above it: run this in a folder of the "
            "project"
        )
    from whopays import ledger

    ledger.write(path, root, **asked)
