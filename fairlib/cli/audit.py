"""The command ``fairlib audit``: its arguments, its conditions and its output."""

from __future__ import annotations

import argparse
import inspect
import math
import operator
import os
import re
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from fairlib.auditing import Report

_PAGES = ("to_html", "to_json", "to_markdown", "to_model_card")
_OF_PICTURES = ("table", "file", "size", "normalize")
_OF_MODELS = ("model", "factory")
_COMPARED = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "at": operator.gt,
}
_GAPS = {"gap": "estimate", "p": "p_value", "unfair": "low"}
_MEASURES = {"drop": "drop", "accuracy": "accuracy_after", "loss": "excessive_loss"}
_CONDITION = re.compile(
    r"((?:overall|worst)-(?:drop|accuracy)|(?:gap|p)\((?:drop|accuracy|loss)\)) *([<>]=?)"
    r" *(-?[\d.]+(?:e-?\d+)?)|(unfair\((?:drop|accuracy)\)) +(at) +([\d.]+(?:e-?\d+)?)"
)


class AuditError(Exception):
    """Raised where an audit cannot be carried out; ``status`` is the exit status of the command."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def add_audit(commands: Any) -> None:
    """Add the command to the parser of all commands."""
    audit = commands.add_parser(
        "audit",
        help="say what compression did to each group, from predictions or models",
        usage="fairlib audit PREDICTIONS|--images DIR --target COLUMN --group COLUMN --before WHAT "
        "--after WHAT ...",
        description=inspect.cleandoc(run_audit.__doc__ or ""),
        epilog=inspect.cleandoc(_condition.__doc__ or ""),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,  # The defaults are those of the functions.
    )
    add, source = audit.add_argument, audit.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "predictions", nargs="?", help="CSV, .xlsx or .parquet file with a row for each sample"
    )
    source.add_argument(
        "--images",
        metavar="DIR",
        help="pictures to ask two models about, none of them for training",
    )
    add("--target", metavar="COLUMN", required=True, help="true classes")
    add(
        "--group",
        metavar="COLUMN,...",
        type=_names,
        required=True,
        help="attributes; several are crossed",
    )
    scores = (
        "labels; scores of the positive one of two classes; or COLUMN,COLUMN,...: scores of the "
        "classes"
    )
    add(
        "--before",
        metavar="WHAT",
        required=True,
        help=f"column of {scores}. With --images .onnx or .safetensors",
    )
    add("--after", metavar="WHAT", required=True, help="the same of the compressed model")
    order = audit.add_mutually_exclusive_group()
    order.add_argument(
        "--classes", metavar="NAME,...", type=_names, help="order of the scores; by default sorted"
    )
    order.add_argument(
        "--positive", metavar="NAME", help="the positive one of two classes; by default the last"
    )
    add(
        "--scores",
        choices=("logits", "probabilities", "labels"),
        help="kind of the scores; by default told by values",
    )
    add(
        "--table",
        metavar="FILE",
        help="table of the pictures' attributes; by default people.csv in their folder",
    )
    add("--file", metavar="COLUMN", help="its column of paths; by default file")
    add(
        "--size", metavar="PIXELS", type=int, help="height and width of the pictures; by default 64"
    )
    add(
        "--normalize",
        metavar="HOW",
        type=_normalization,
        help="imagenet, or MEAN,MEAN,MEAN/STD,STD,STD of RGB",
    )
    add(
        "--model",
        metavar="NAME",
        help="model of fairlib.build that weights in .safetensors belong to",
    )
    add(
        "--factory",
        metavar="MODULE:FUNCTION",
        help="function that makes this model; runs the module's code",
    )
    add(
        "--reference",
        metavar="GROUP",
        help="group whose accuracy the others' are divided by; by default the largest",
    )
    add("--level", type=float, help="coverage of the intervals; by default 0.95")
    add(
        "--permutations",
        dest="resamples",
        metavar="COUNT",
        type=int,
        help="permutations of a test; by default 1000",
    )
    add("--seed", type=int, help="seed of the permutations; by default 0")
    add(
        "--fail-if",
        metavar="CONDITION",
        type=_condition,
        action="append",
        help="exit with 3 if it holds; see below",
    )
    for kind in _PAGES:
        add(
            f"--{kind[3:].replace('_', '-')}",
            dest=kind,
            metavar="PATH",
            help="file to write the report to",
        )


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _normalization(text: str) -> Any:
    return [part.split(",") for part in text.split("/")] if "/" in text else text


def _condition(text: str) -> tuple[str, str, float]:
    """Conditions of --fail-if, about groups of 10 samples or more.

    NUMBER is a share, of losses it is in nats:

      QUANTITY > NUMBER    or >=, <, <=; QUANTITY is one of
        overall-drop       accuracy before minus accuracy after, of all samples
        overall-accuracy   accuracy after, of all samples
        worst-drop         drop of the group that lost most
        worst-accuracy     accuracy after of the group that has least
        gap(drop)          largest difference of drops; also gap(accuracy), after, and gap(loss),
                           excessive
        p(drop)            p-value of that difference; also p(accuracy), p(loss)
      unfair(drop) at NUMBER
                           its interval is above NUMBER; also unfair(accuracy), after

    Exit status: 0; 2 if an argument or a file is not valid, or a condition cannot be decided; 3 if
    a condition holds.
    """
    found = _CONDITION.fullmatch(text.strip())
    if not found:
        raise argparse.ArgumentTypeError(
            f"unknown condition {text!r}; fairlib audit --help lists them"
        )
    quantity, sign, number = (part for part in found.groups() if part)
    return quantity, sign, float(number)


def run_audit(arguments: argparse.Namespace) -> int:
    """Say what compression did to each group: from predictions of two models, columns of a table,

      fairlib audit predictions.csv --target smiling --group gender --before dense --after int8
          --html report.html

    or from two models, which are asked about a folder of pictures:

      fairlib audit --images photos --table people.csv --target smiling --group gender,age
          --size 224 --normalize imagenet --before dense.onnx --after int8.onnx
          --fail-if "worst-drop > 0.05"
    """
    given = dict(vars(arguments))
    conditions = given.pop("fail_if", [])
    paths = {kind: given.pop(kind) for kind in _PAGES if kind in given}
    # Warnings would be printed with a line of the library, several lines each; here they are one
    # line, after the report, and not at all if the report has them as notes.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        try:
            _check_folders(paths.values())
            report = _audited(given)
            written = [getattr(report, kind)(path) for kind, path in paths.items()]
            say("\n".join([_summary(report), *map(str, written)]))
        except (ValueError, TypeError, OSError, FloatingPointError, ImportError) as error:
            raise AuditError(_line(error), 2) from error
        except Exception as error:
            raise AuditError(_line(f"{type(error).__name__}: {error}"), 1) from error
    messages = list(dict.fromkeys(_line(warning.message) for warning in caught))
    messages = [text for text in messages if text not in report.notes]
    status = 0
    for condition in conditions:
        outcome, message = _outcome(report, *condition)
        status = max(status, outcome)
        messages.extend([message] if message else [])
    for message in messages:
        say(f"fairlib: {message}", sys.stderr)
    return status


def _check_folders(paths: Iterable[str]) -> None:
    """Refuse pages that cannot be written before minutes are spent on the audit."""
    for path in paths:
        folder = Path(path).parent
        if not folder.is_dir():
            raise FileNotFoundError(f"cannot write {path!r}: there is no folder {str(folder)!r}")


def _audited(given: dict[str, Any]) -> Report:
    """Audit predictions, or models on pictures."""
    from fairlib.auditing import files

    if "images" not in given:
        for name in (*_OF_PICTURES, *_OF_MODELS):
            if name in given:
                raise ValueError(
                    f"--{name} belongs to --images: predictions are audited as they are"
                )
        columns = {role: _names(given[role]) for role in ("before", "after")}
        return files.audit_table(**given | columns)
    # Importing the module of a factory runs its code: whoever audits somebody else's model should
    # see that it does.
    if "factory" in given:
        say(f"fairlib: runs the code of {given['factory']}", sys.stderr)
    own = ("images", "target", "group", "classes", "positive", *_OF_PICTURES)
    pictures = files.Pictures(**{name: given.pop(name) for name in own if name in given})
    return files.audit_models(pictures=pictures, **given)


def say(text: str, stream: TextIO | None = None) -> None:
    """Print a text from which no name in it can steer a terminal or a CI server.

    A character that the stream cannot encode is printed as its escape.
    """
    from fairlib.auditing.sentence import visible

    # GitHub obeys lines that begin with two colons, and ##[...] anywhere, as Azure does ##vso[...].
    lines = [
        re.sub(r"^\s*:(?=:)|#(?=#\w*\[)", r"\g<0>\\", visible(line)) for line in text.split("\n")
    ]
    stream = stream or sys.stdout
    coding = getattr(stream, "encoding", None) or "utf-8"
    encoded = "\n".join(lines).encode(coding, "backslashreplace")
    try:
        print(encoded.decode(coding), file=stream, flush=True)
    except BrokenPipeError:
        # The reader has enough, as head has: the status must say all the same what was found.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _line(message: object) -> str:
    """Write a message as one line."""
    return " ".join(str(message).split())


def _summary(report: Report) -> str:
    """Write the sentences, accuracies by group and the notes as plain text."""
    from fairlib.auditing.sentence import visible

    columns = ["size", "accuracy_before", "accuracy_after", "drop", "drop_low", "drop_high"]
    headings = ["size", "before", "after", "drop", "low", "high"]
    table = report.table[columns].set_axis(headings, axis=1).rename_axis(None).rename(visible)
    alone = [f"{visible(name)}: {part.sentence}" for name, part in report.attributes.items()]
    text = table.to_string(float_format="{:.3f}".format, na_rep="-")
    notes = [f"- {visible(note)}" for note in report.notes]
    return "\n".join([report.sentence, *alone, "", text, "", *notes])


def _outcome(report: Report, quantity: str, sign: str, number: float) -> tuple[int, str]:
    """Decide a condition: the exit status, and a message unless it does not hold."""
    kind, measure = re.findall(r"\w+", quantity)
    column = _MEASURES[measure]
    if kind in _GAPS:
        value = report.violations.loc[column, _GAPS[kind]]
    elif kind == "overall":
        value = report.table.loc["all", column]
    else:
        # A group of five people often has the worst drop by chance: as in the report, small groups
        # are not judged.
        groups = report.table[column].drop(["all", *report.too_small])
        value = groups.max() if measure == "drop" else groups.min()
    text = f"--fail-if '{quantity} {sign} {number:g}'"
    if math.isnan(value):
        why = "too few groups of 10 samples or more, or no losses are known"
        return 2, f"{text} cannot be decided: {why}"
    return (3, f"{text} holds: {value:.4g}") if _COMPARED[sign](value, number) else (0, "")
