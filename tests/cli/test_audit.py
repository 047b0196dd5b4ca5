"""The command `fairlib audit`: errors are one line, and the exit status says whose they are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from io import BytesIO, TextIOWrapper
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fairlib
from fairlib import cli
from fairlib.auditing import files


@pytest.mark.parametrize("words", [[], ["walk"], ["audit", "said.csv"]])
def test_an_incomplete_command_says_what_is_needed(words, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(words)
    assert "usage: fairlib" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "plan", "gather", "verify", "ledger"])
def test_a_command_that_has_moved_is_answered_with_its_new_name(command, capsys):
    assert cli.main([command, "anything", "--else"]) == 2
    assert capsys.readouterr().err == (
        f"fairlib: 'fairlib {command}' is 'whopays {command}' since edition 0.3\n"
    )


def test_the_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"fairlib {fairlib.__version__}\n"


@pytest.fixture
def predictions(tmp_path, monkeypatch):
    """What two models said of 200 people: labels, and probabilities of "yes". The second errs on 21
    of 100 men."""
    monkeypatch.chdir(tmp_path)
    right = np.arange(200) % 2 == 0
    worse = right ^ ((np.arange(200) % 5 == 1) & (np.arange(200) >= 100)) ^ (np.arange(200) == 100)
    table = pd.DataFrame(
        {"smiling": right, "gender": np.repeat(["f", "m"], 100), "dense": right, "int8": worse}
    )
    table = table.replace({True: "yes", False: "no"})
    table.assign(p=np.where(right, 0.9, 0.2), q=np.where(worse, 0.8, 0.3)).to_csv(
        "said.csv", index=False
    )
    return [
        "audit",
        "said.csv",
        "--target",
        "smiling",
        "--group",
        "gender",
        "--before",
        "dense",
        "--after",
        "int8",
    ]


def test_an_audit_is_printed_and_written(predictions, capsys):
    words = [
        "--html",
        "a.html",
        "--json",
        "a.json",
        "--markdown",
        "a.md",
        "--model-card",
        "card.md",
    ]
    assert (
        cli.main([*predictions, *words, "--level", "0.9", "--reference", "m", "--seed", "3"]) == 0
    )
    settings = {"level": 0.9, "reference": "m", "seed": 3}
    report = files.audit_table(
        "said.csv", ["dense"], ["int8"], target="smiling", group=["gender"], **settings
    )
    out, error = capsys.readouterr()
    assert out.startswith(report.sentence) and error == ""
    low, high = report.table.loc["m", ["drop_low", "drop_high"]]
    assert f"m     100   1.000  0.790  0.210  {low:.3f} {high:.3f}" in out.replace(
        "  0.790 0.210", "  0.790  0.210"
    )
    assert "- only labels are known before compression" in out
    assert out.endswith("a.html\na.json\na.md\ncard.md\n")
    report.to_json("again.json")
    assert Path("a.json").read_text() == Path("again.json").read_text()
    assert all(Path(path).stat().st_size for path in words[1::2])


@pytest.mark.parametrize(
    ("condition", "value"),
    [
        ("worst-drop > 0.209", 0.21),
        ("worst-drop>=.21", 0.21),
        ("worst-accuracy < 0.8", 0.79),
        ("overall-drop > 1e-1", 0.105),
        ("overall-accuracy <= 0.895", 0.895),
        ("gap(drop) > 0.2", 0.21),
        (" gap(accuracy) > -1 ", 0.21),
        ("p(drop) < 0.01", None),
        ("unfair(drop) at 0.05", None),
        ("unfair(accuracy) at 0.1", None),
    ],
)
def test_a_condition_that_holds_fails_the_command(predictions, capsys, condition, value):
    assert cli.main([*predictions, "--fail-if", "worst-drop > 0.21", "--fail-if", condition]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fairlib: --fail-if '") and " holds: " in line
    assert value is None or float(line.rpartition(" ")[2]) == value


@pytest.mark.parametrize(
    "condition",
    [
        "worst-drop > 0.21",
        "worst-accuracy < 0.79",
        "gap(drop) < 0.2",
        "p(drop) > 0.01",
        "unfair(drop) at 0.21",
    ],
)
def test_a_condition_that_does_not_hold_passes(predictions, capsys, condition):
    assert cli.main([*predictions, "--fail-if", condition]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("tau", [0.0, 0.05, 0.1, 0.15, 0.3])
def test_unfair_is_what_the_report_calls_unfair(predictions, tau):
    report = files.audit_table("said.csv", ["dense"], ["int8"], target="smiling", group=["gender"])
    for measure, definition in (("drop", "degradation"), ("accuracy", "performance")):
        unfair = report.fairness(tau).loc[definition, "verdict"] == "unfair"
        assert cli.main([*predictions, "--fail-if", f"unfair({measure}) at {tau}"]) == 3 * unfair


def test_a_condition_that_cannot_be_decided_is_an_error(predictions, capsys):
    words = ["--fail-if", "gap(loss) > 0", "--fail-if", "worst-drop > 0.5"]
    assert cli.main([*predictions, *words]) == 2
    assert capsys.readouterr().err.startswith(
        "fairlib: --fail-if 'gap(loss) > 0' cannot be decided: too few groups"
    )
    assert cli.main([*predictions, *words, "--fail-if", "worst-drop > 0.1"]) == 3
    predictions[-3:] = ["p", "--after", "q"]
    assert cli.main([*predictions, *words[:2]]) == 3


@pytest.mark.parametrize(
    "condition",
    [
        "worst-drop",
        "worst-loss > 1",
        "gap(size) > 1",
        "worst-drop = 1",
        "worst-drop > 5%",
        "unfair(drop) > 1",
        "x at 1",
    ],
)
def test_an_unknown_condition_is_refused_before_anything_is_computed(
    predictions, capsys, monkeypatch, condition
):
    monkeypatch.delattr(files, "audit_table")
    with pytest.raises(SystemExit, match="2"):
        cli.main([*predictions, "--fail-if", condition])
    assert (
        f"unknown condition {condition!r}; fairlib audit --help lists them"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--before", "none"],
            "unknown column of 'said.csv' 'none'; known: smiling, gender, dense, int8, p, q",
        ),
        (["--level", "95"], "level must lie in (0, 1), got 95.0"),
        (["--size", "224"], "--size belongs to --images: predictions are audited as they are"),
        (["--json", "none/a.json"], "cannot write 'none/a.json': there is no folder 'none'"),
        (["--reference", "x"], "unknown reference group 'x'; known: f, m"),
    ],
)
def test_what_an_audit_does_not_accept_is_one_line(predictions, capsys, words, message):
    assert cli.main([*predictions, *words]) == 2
    out, error = capsys.readouterr()
    assert (out, error) == ("", f"fairlib: {message}\n")


def test_an_audit_of_nothing_or_of_two_things_is_refused(predictions, capsys):
    for words in (["--images", "photos"], ["--classes", "no,yes", "--positive", "yes"]):
        with pytest.raises(SystemExit, match="2"):
            cli.main([*predictions, *words])
    del predictions[1]
    with pytest.raises(SystemExit, match="2"):
        cli.main(predictions)
    assert "one of the arguments predictions --images is required" in capsys.readouterr().err


def test_a_warning_of_an_audit_is_one_line_unless_the_report_has_it(
    predictions, capsys, monkeypatch
):
    assert (
        cli.main([*predictions, "--before", "int8", "--classes", "no,yes", "--after", "dense"]) == 0
    )
    audit = files.audit

    def warn(*arguments, **options):
        warnings.warn("first\nsecond", stacklevel=1)
        return audit(*arguments, **options)

    monkeypatch.setattr(files, "audit", warn)
    assert cli.main([*predictions, "--before", "dense", "--after", "int8"]) == 0
    assert capsys.readouterr().err == "fairlib: first second\n"


def test_an_error_that_nobody_expected_is_one_line_too(predictions, capsys, monkeypatch):
    def fail(*arguments, **options):
        raise KeyError("no such key")

    monkeypatch.setattr(files, "audit", fail)
    assert cli.main(predictions) == 1
    assert capsys.readouterr().err == "fairlib: KeyError: 'no such key'\n"


def test_models_are_asked_with_all_that_was_said(monkeypatch, predictions, capsys):
    calls = []
    monkeypatch.setattr(files, "audit_models", lambda **given: calls.append(given))
    words = "audit --images photos --target smiling --group gender,age --before a.onnx "
    words += "--after b,c.onnx --size 224"
    cli.main(
        [
            *words.split(),
            "--normalize",
            "0.5,0.5,0.5/1,1,1",
            "--factory",
            "a:b",
            "--permutations",
            "99",
        ]
    )
    assert capsys.readouterr().err.splitlines()[0] == "fairlib: runs the code of a:b"
    assert calls == [
        {
            "pictures": files.Pictures(
                "photos",
                "smiling",
                ["gender", "age"],
                size=224,
                normalize=[["0.5"] * 3, ["1"] * 3],
            ),
            "before": "a.onnx",
            "after": "b,c.onnx",
            "factory": "a:b",
            "resamples": 99,
        }
    ]


def test_an_audit_of_predictions_imports_nothing_heavy(predictions):
    heavy = (
        "torch",
        "torchvision",
        "matplotlib",
        "sklearn",
        "scipy.stats",
        "onnxruntime",
        "jinja2",
    )
    code = f"""
import sys
from fairlib import cli
assert cli.main({predictions}) == 0
print([name for name in {heavy} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def renamed(name):
    """Give the second group another name."""
    table = pd.read_csv("said.csv")
    table["gender"] = table["gender"].replace({"m": name})
    table.to_csv("said.csv", index=False)


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-8", "utf-16"])
@pytest.mark.parametrize("name", ["m", "Łódź", "naïve ≤ 漢字"])
def test_a_condition_decides_whatever_the_output_can_encode(
    predictions, monkeypatch, encoding, name
):
    """The sentence has a sign, as in "p ≤ 0.001", that not every encoding has."""
    renamed(name)
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(sys, stream, TextIOWrapper(BytesIO(), encoding))
    assert cli.main([*predictions, "--fail-if", "worst-drop > 0.05"]) == 3
    assert cli.main([*predictions, "--fail-if", "worst-drop > 0.5"]) == 0
    for stream, text in ((sys.stdout, "On these samples compression cost"), (sys.stderr, "holds")):
        stream.flush()
        assert text in stream.buffer.getvalue().decode(encoding)


def test_a_condition_decides_where_nobody_reads_on(predictions):
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "fairlib.cli", *predictions, "--fail-if", "worst-drop > 0.05"]
    done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert done.returncode == 3 and len(done.stderr.splitlines()) == 1 and "holds" in done.stderr


@pytest.mark.parametrize(
    "name",
    ["\x1b]0;owned\x07\x1b[2Jx", "a\x9b2J", "x\u202ey", "::stop-commands::x", "  ::error::x",
     "a\n::set-output name=x::y", "##[error]x", "x ##vso[task.complete result=Failed;]", ":::x"],
)  # fmt: skip
@pytest.mark.parametrize("where", ["group", "class", "column", "error"])
def test_no_name_steers_a_terminal_or_a_build(predictions, capsys, name, where):
    table = pd.read_csv("said.csv")
    if where == "group":
        table["gender"] = table["gender"].replace({"m": name})
    elif where == "class":
        table = table.replace({"yes": name})
        table.loc[table.index[-20:], ["dense", "int8"]] = table.loc[table.index[-20:], "smiling"]
    elif where == "column":
        table[name] = np.repeat([*"abcd"], 50)
        predictions[predictions.index("gender")] = f"{name.strip()},gender"
    else:
        table.loc[3, "dense"] = name
    table.to_csv("said.csv", index=False)
    assert cli.main([*predictions, "--fail-if", "gap(loss) > 0"]) == 2
    out, err = capsys.readouterr()
    assert out or where == "error"
    for text in (out, err):
        assert not re.search(
            r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]|^\s*::|##\w*\[", text, re.MULTILINE
        )


def test_saturated_scores_are_scores_in_a_table_too(predictions, capsys):
    """No answer changes; read as labels of "0", every answer would have."""
    right = np.arange(200) % 2
    p = np.where(right, 0.8, 0.2)
    table = pd.DataFrame({"smiling": right, "gender": np.repeat(["f", "m"], 100), "dense": 1 - p})
    for one, zero in (("1.0", "0.0"), ("1", "0"), ("1,0", "0,0")):
        table.assign(int8=np.where(right, zero, one)).to_csv("said.csv", sep=";", index=False)
        for words in (predictions, [*predictions, "--scores", "probabilities"]):
            assert cli.main([*words, "--positive", "0", "--fail-if", "worst-drop > 0"]) == 0
    out, err = capsys.readouterr()
    assert "cost no" not in err and "probabilities after compression are those of '0'" in out
    table["dense"] = table["int8"] = np.where(right, "0.0", "1.0")
    table.to_csv("said.csv", index=False)
    assert cli.main([*predictions, "--positive", "0"]) == 2
    assert "could be labels, or scores of the class '0'" in capsys.readouterr().err
    assert cli.main([*predictions, "--positive", "0", "--scores", "probabilities"]) == 0
    table["smiling"] = np.where(right, "yes", "no")
    table.assign(dense=p).to_csv("said.csv", index=False)
    table["int8"] = right
    table.assign(dense=p, int8=right).to_csv("said.csv", index=False)
    assert cli.main([*predictions, "--fail-if", "worst-drop > 0"]) == 0
