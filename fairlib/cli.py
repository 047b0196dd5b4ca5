"""The console command: ``fairlib run``, ``fairlib gather``, ``fairlib verify``, ``fairlib ledger``."""

import argparse
import re
import signal
import sys
from collections.abc import Sequence

from fairlib.evidence import grids, runs


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: Its words; those of the process by default.

    Returns:
        0 when it is done, 1 when it failed or a table does not agree, 2 when it was asked for something that does not
        exist. An error is one line on standard error, after the notebook's traceback if there is one.
    """
    arguments = _parser().parse_args(argv)
    try:
        return arguments.command(arguments) or 0
    except (runs.RunError, OSError, ValueError) as error:
        trace = getattr(error.__cause__, "traceback", None)
        if trace:
            print(re.sub(r"\x1b\[[\d;]*m", "", "\n".join(trace)), file=sys.stderr)
        print(f"fairlib: {error}", file=sys.stderr)
        return 2 if isinstance(error, runs.ParameterError) else 1
    except KeyboardInterrupt:
        return 130


def _end(number: int, frame: object) -> None:
    """Leave by an exception, so that kernels end and temporary folders go."""
    sys.exit(128 + number)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fairlib", description="Who pays when a neural network is compressed?")
    commands = parser.add_subparsers(required=True, metavar="command")

    run = commands.add_parser("run", help="execute a notebook by papermill, safely")
    run.add_argument("notebook")
    run.add_argument(
        "-p",
        nargs=2,
        action="append",
        default=[],
        dest="parameters",
        metavar=("NAME", "VALUE"),
        help="a parameter",
    )
    run.add_argument(
        "-f", action="append", default=[], dest="files", metavar="FILE", help="parameters in YAML; -p wins"
    )
    run.add_argument("-o", required=True, dest="out", metavar="DIR", help="folder of the run, made when it is finished")
    run.add_argument("--force", action="store_true", help="replace a finished run of other contents")
    run.set_defaults(command=_run)

    gather = commands.add_parser("gather", help="write the tables of a grid whose runs are finished")
    gather.add_argument("grid")
    gather.set_defaults(command=_gather)

    verify = commands.add_parser("verify", help="run the first seeds of a recorded table again and compare")
    verify.add_argument("table")
    verify.add_argument("--seeds", type=int, default=1, help="how many seeds; 1 by default")
    verify.add_argument("--tolerance", type=float, help="largest relative difference that agrees; 1e-5 by default")
    verify.add_argument("--avx2", action="store_true", help="compute as a CPU without AVX-512 does")
    verify.set_defaults(command=_verify)

    ledger = commands.add_parser("ledger", help="write the ledger page of book/claims.yml")
    ledger.add_argument("out")
    ledger.set_defaults(command=_ledger)
    return parser


def _run(arguments: argparse.Namespace) -> None:
    signal.signal(signal.SIGTERM, _end)
    given = {}
    for path in arguments.files:
        given |= runs.read_yaml(path)
    given |= dict(arguments.parameters)
    executed = runs.run(arguments.notebook, arguments.out, given, force=arguments.force)
    print(f"{arguments.out}: {'finished' if executed else 'was finished already, nothing to do'}")


def _gather(arguments: argparse.Namespace) -> None:
    for table in grids.gather(arguments.grid):
        print(table)


def _verify(arguments: argparse.Namespace) -> int:
    from fairlib.evidence import verify

    signal.signal(signal.SIGTERM, _end)
    tolerance = verify.TOLERANCE if arguments.tolerance is None else arguments.tolerance
    agrees = verify.verify(arguments.table, seeds=arguments.seeds, tolerance=tolerance, avx2=arguments.avx2)
    return 0 if agrees else 1


def _ledger(arguments: argparse.Namespace) -> None:
    from fairlib.evidence import ledger

    ledger.write("book/claims.yml", ".", arguments.out)


if __name__ == "__main__":
    sys.exit(main())
