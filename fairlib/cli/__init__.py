"""The console command: ``fairlib audit``."""

import argparse
import sys
from collections.abc import Sequence

from fairlib import _namesake  # noqa: F401  It warns.
from fairlib._version import __version__
from fairlib.cli import audit

# Commands of fairlib until edition 0.2: for one edition the old name answers with the new one.
_MOVED = ("run", "plan", "gather", "verify", "ledger")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: Words of the command; by default those of the process.

    Returns:
        0 for success, 1 for a failure, 2 for an argument that does not exist or is not valid, 3 for
        an audit of which a condition holds. An error is one line on standard error.

    Example:
        >>> from fairlib.cli import main
        >>> columns = ["--target", "y", "--group", "g", "--before", "a", "--after", "b"]
        >>> main(["audit", "none.csv", *columns])
        2
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in _MOVED:
        print(
            f"fairlib: 'fairlib {words[0]}' is 'whopays {words[0]}' since edition 0.3",
            file=sys.stderr,
        )
        return 2
    arguments = _parser().parse_args(words)
    try:
        return audit.run_audit(arguments)
    except audit.AuditError as error:
        audit.say(f"fairlib: {error}", sys.stderr)
        return error.status
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fairlib", description="Who pays when a neural network is compressed?"
    )
    parser.add_argument("--version", action="version", version=f"fairlib {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    audit.add_audit(commands)
    return parser
