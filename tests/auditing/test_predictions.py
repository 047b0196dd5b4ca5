"""What a model said: how logits, probabilities and labels are told apart; what could be two of them
is refused."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch

import fairlib
from fairlib._tables import coded
from fairlib.auditing.adapters.scores import read_scores
from fairlib.auditing.predictions import GroundTruth

QUICK = {"resamples": 20, "diagnostics": ()}
TWO = GroundTruth(np.array([0, 1, 1]), np.array([0, 0, 1]), ("no", "yes"), ("a", "b"))
THREE = GroundTruth(np.array([0, 1, 2]), np.array([0, 0, 1]), ("x", "y", "z"), ("a", "b"))
pytestmark = pytest.mark.filterwarnings(
    "ignore:the model before compression cannot be told from chance"
)


def test_no_torch_is_imported_for_what_models_said():
    code = """
import sys, fairlib
fairlib.audit([0, 1] * 20, [0] * 40, targets=[0, 1] * 20, groups=["a", "b"] * 20)
print({"torch", "sklearn", "matplotlib", "scipy.stats"} & set(sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


def test_kinds_of_scores_are_told_apart_by_their_values():
    logits = np.array([[2.0, 0.0, -1.0], [0.1, 0.2, 0.3], [0.0, 0.0, 5.0]])
    soft = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    for values, kind in (
        (logits, "logits"),
        (soft, "probabilities"),
        (soft.astype(np.float16), "probabilities"),
    ):
        assert read_scores(values, THREE, "before").kind == kind
    assert read_scores(soft, THREE, "before").loss == pytest.approx(
        read_scores(logits, THREE, "before").loss
    )
    one = read_scores(np.array([0.2, 0.7, 0.4]), TWO, "before")
    assert one.kind == "probabilities" and one.labels.tolist() == [0, 1, 0]
    assert one.loss == pytest.approx(-np.log([0.8, 0.7, 0.4])) and "those of 'yes'" in one.notes[-1]
    margins = read_scores(np.array([[-1.5], [2.5], [-0.5]]), TWO, "before")
    assert margins.kind == "logits" and margins.loss == pytest.approx(
        np.log1p(np.exp([-1.5, -2.5, 0.5]))
    )
    for labels in (
        ["x", "z", "z"],
        [0, 2, 2],
        [0.0, 2.0, 2.0],
        pd.Series(["x", "z", "z"], dtype="category"),
    ):
        said = read_scores(labels, THREE, "before")
        assert (
            said.kind == "labels"
            and said.labels.tolist() == [0, 2, 2]
            and np.isnan(said.loss).all()
        )
    sure = read_scores(np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), TWO, "before")
    assert (
        sure.loss[1] == pytest.approx(27.6, abs=0.1)
        and "count as 1e-12 in losses" in sure.notes[-1]
    )


@pytest.mark.parametrize(
    ("values", "scores", "message"),
    [
        (
            np.full((3, 3), 0.4),
            "auto",
            "is between 0 and 1, but its rows do not sum to 1: give scores='logits'",
        ),
        (np.full((3, 3), 0.4), "probabilities", "not negative, and every row with sum 1"),
        (np.zeros((3, 2)), "auto", r"scores of 3 classes \(x, y, z\), got shape \(3, 2\)"),
        (np.zeros((2, 3)), "auto", r"a row for each of 3 samples, got shape \(2, 3\)"),
        (np.zeros((3, 3, 1)), "auto", r"got shape \(3, 3, 1\)"),
        ([0.1, 0.5, 0.2], "auto", "scores of 3 classes"),
        (["x", "w", "z"], "auto", "before, row 1: unknown class 'w'; known: x, y, z"),
        ([0, 1, 3], "auto", "before, row 2: unknown class '3'; known: x, y, z"),
        (["x", None, "z"], "auto", "missing in row 1"),
        (
            pd.DataFrame(np.eye(3), columns=["p_x", "p_y", "p_z"]),
            "auto",
            "columns of before must be the classes x, y, z",
        ),
        (np.zeros((3, 3)), "labels", "one label for each sample"),
        (
            np.zeros((3, 3)),
            "odds",
            "unknown kind of scores 'odds'; known: auto, logits, probabilities, labels",
        ),
        (np.full((3, 3), "x"), "auto", "scores of .* must be numbers, got"),
    ],
)
def test_what_can_be_read_in_two_ways_or_in_none_is_refused(values, scores, message):
    with pytest.raises(ValueError, match=f"{message}"):
        read_scores(values, THREE, "before", kind=scores)


def test_probabilities_of_eight_bits_are_probabilities_still():
    soft = np.random.default_rng(0).dirichlet(np.ones(10), 50)
    samples = GroundTruth(np.arange(50) % 10, np.zeros(50, dtype=int), tuple("abcdefghij"), ("g",))
    rounded = read_scores(np.round(soft * 256) / 256, samples, "after")
    assert rounded.kind == "probabilities" and rounded.loss.mean() == pytest.approx(
        read_scores(soft, samples, "after").loss.clip(max=27.6).mean(), rel=0.5
    )


def test_integers_are_codes_unless_they_can_only_be_names():
    samples = GroundTruth(np.array([0, 1, 2]), np.array([0, 0, 1]), ("1", "2", "3"), ("a", "b"))
    assert read_scores(np.array([1, 2, 3]), samples, "before").labels.tolist() == [0, 1, 2]
    assert read_scores(np.array([0, 1, 2]), samples, "before").labels.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="could be codes or names of the classes 1, 2, 3"):
        read_scores(np.array([1, 2, 2]), samples, "before")


def test_what_is_not_finite_is_refused():
    with pytest.raises(FloatingPointError, match="NaN or infinite on 1 of 3 samples, the first 1"):
        read_scores(np.array([[0, 0, 0], [0, np.inf, 0], [0, 0, 0]]), THREE, "before")


def test_labels_become_codes_by_their_names():
    codes, names = coded("groups", [10, 9, 94110, 9])
    assert names == ("9", "10", "94110") and codes.tolist() == [1, 0, 2, 0]
    codes, names = coded(
        "groups", pd.Series(["b", "a", "b"], dtype=pd.CategoricalDtype(["b", "a", "c"]))
    )
    assert names == ("b", "a", "c") and codes.tolist() == [0, 1, 0]
    assert coded("targets", torch.tensor([True, False]))[1] == ("False", "True")
    assert coded("targets", [1.0, 2.0, 10.0])[1] == ("1", "2", "10")
    with pytest.raises(
        ValueError, match="groups must be known of every sample: it is missing in row 1"
    ):
        coded("groups", ["a", np.nan])
    assert coded("groups", pd.Categorical([1.0, 0.0], categories=[1.0, 0.0]))[1] == ("1", "0")
    report = fairlib.audit(
        [3, 7] * 20, [3, 3] * 20, targets=[3, 7] * 20, groups=[94110] * 20 + [10] * 20
    )
    assert report.provenance["classes"] == "3, 7" and report.table.loc["94110", "drop"] == 0.5
    with pytest.raises(ValueError, match="after, row 1: unknown class '5'; known: 3, 7"):
        fairlib.audit([3, 7] * 20, [3, 5] * 20, targets=[3, 7] * 20, groups=[1, 2] * 20)
