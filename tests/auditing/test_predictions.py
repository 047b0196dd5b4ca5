"""What a model said: how logits, probabilities and labels are told apart; what could be two of them
is refused."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
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
            "columns of before must name every value that occurs, lacks x, y, z; got",
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


ROWS = np.arange(200)
TARGETS = ROWS % 2
FEW = ROWS % 10 < 3
SAID = np.where(FEW & (ROWS % 3 == 0), 1 - TARGETS, TARGETS)
GROUPS = np.where(FEW, "few", "many")


def drops(before, after, targets=TARGETS, groups=GROUPS, **settings):
    return fairlib.audit(before, after, targets=targets, groups=groups, **QUICK | settings)


@pytest.mark.parametrize("role", ["before", "after", "targets", "groups"])
@pytest.mark.parametrize(
    "carry", [pd.Series, pd.DataFrame, lambda values: {"g": pd.Series(values)}]
)
def test_rows_of_another_index_are_refused(role, carry):
    """Positions would say that the many lose what the few do."""
    arguments = {"before": TARGETS, "after": SAID, "targets": TARGETS, "groups": GROUPS}
    if carry is not pd.Series:
        role, arguments["before"] = "groups", pd.Series(TARGETS)
    other = "targets" if role != "targets" else "after"
    arguments |= {other: pd.Series(arguments[other]), role: carry(arguments[role])}
    assert fairlib.audit(**arguments, **QUICK).table["drop"]["many"] == 0
    part = arguments[role]["g"] if isinstance(arguments[role], dict) else arguments[role]
    part.index = part.index[::-1]
    with pytest.raises(
        ValueError, match=r"must have the same index.*\.reindex\(\).*\.to_numpy\(\)"
    ):
        fairlib.audit(**arguments, **QUICK)


def test_one_index_of_any_kind_is_as_good_as_none():
    index = np.random.default_rng(0).permutation(200).astype(str)
    frame = pd.DataFrame({"y": TARGETS, "said": SAID, "g": GROUPS}, index)
    report = drops(frame["y"], frame[["said"]], frame["y"], frame[["g"]])
    pd.testing.assert_frame_equal(report.table, drops(TARGETS, SAID).table)


@pytest.mark.parametrize("missing", [np.nan, None, "nan", "NaN", "", "NA", "None", "<NA>"])
@pytest.mark.parametrize("convert", [list, np.array, pd.Series, pd.Categorical])
def test_a_text_that_says_missing_is_missing_as_in_tables(missing, convert):
    values = ["a", "b"] * 100
    values[7] = missing
    for role in ("targets", "groups", "after"):
        given = {"targets": ["a", "b"] * 100, "groups": GROUPS, "after": ["a", "b"] * 100}
        given[role] = convert(values)
        with pytest.raises(ValueError, match=f"{role} must be known of every sample.* in row 7"):
            drops(["a", "b"] * 100, **given)


def test_groups_by_name_are_crossed_whatever_holds_them():
    gender, race = np.where(ROWS % 4 < 2, "f", "m"), np.where(ROWS < 50, "black", "white")
    report = drops(TARGETS, SAID, groups={"gender": gender, "race": race})
    assert list(report.table.index) == ["f x black", "f x white", "m x black", "m x white", "all"]
    assert list(report.attributes) == ["gender", "race"]
    frame = drops(TARGETS, SAID, groups=pd.DataFrame({"gender": gender, "race": race}))
    pd.testing.assert_frame_equal(report.table, frame.table)
    alone = drops(TARGETS, SAID, groups={"gender": gender})
    assert list(alone.table.index) == ["f", "m", "all"] and not alone.attributes


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (pd.concat([pd.Series(GROUPS, name="value")] * 2, axis=1), r"got \['value', 'value'\]"),
        ({1: GROUPS, "1": GROUPS}, r"under a name of its own, got \['1', '1'\]"),
        ({}, r"got \[\]"),
        (pd.DataFrame(index=ROWS), r"got \[\]"),
        ({"a": GROUPS, "b": GROUPS[1:]}, "must be attributes of the same samples"),
        ({"a": GROUPS, "b": GROUPS[:, None]}, r"groups\['b'\] must be one label for each sample"),
        ({"a": pd.Series(GROUPS), "b": pd.Series(GROUPS, ROWS[::-1])}, "same index"),
    ],
)
def test_attributes_that_cannot_be_crossed_are_refused(groups, message):
    with pytest.raises(ValueError, match=message):
        drops(TARGETS, SAID, groups=groups)


P = np.clip(0.2 + 0.6 * TARGETS + np.sin(ROWS) / 5, 0.01, 0.99)  # Of class 1; some are wrong.
REVERSED = pd.Categorical(TARGETS.astype(str), ["1", "0"])


@pytest.mark.parametrize("targets", [REVERSED, TARGETS, np.where(TARGETS, "yes", "no")])
@pytest.mark.parametrize("convert", [float, int, np.float16])
def test_zeros_and_ones_beside_fractions_are_saturated_scores(targets, convert):
    """No answer changes: read as labels, those of class "0" would all have become wrong."""
    scores = 1 - P if targets is REVERSED else P
    saturated = (scores > 0.5).astype(convert)
    for pair in ((scores, saturated), (saturated[:, None], scores)):
        report = drops(*pair, targets)
        assert report.table["drop"].eq(0).all()
        assert set(report.provenance["scores"].values()) == {"probabilities"}


def test_a_model_whose_one_output_saturates_is_read_as_the_other_is():
    test = fairlib.GroupedDataset(P[:, None], TARGETS, FEW.astype(int), target_names=["no", "yes"])
    report = fairlib.audit(lambda batch: batch, lambda batch: (batch > 0.5).float(), test, **QUICK)
    assert report.table["drop"].eq(0).all() and report.table["loss_after"].notna().all()


def test_margins_of_one_model_are_margins_of_the_other():
    """Of a collapsed model all margins lie within [0, 1]: as probabilities they would be others."""
    margins = 4 * P - 2
    report = drops(margins, 0.2 * margins + 0.45)
    assert set(report.provenance["scores"].values()) == {"logits"}
    assert report.table.loc["all", "accuracy_after"] == 0.5


def test_what_nothing_tells_apart_is_refused_until_it_is_said():
    half = (P > 0.5).astype(float)
    with pytest.raises(ValueError, match=r"only 0.0 and 1.0, which could be .* class '0': give sc"):
        drops(1 - half, 1 - half, REVERSED)
    with pytest.raises(ValueError, match=r"after has only 0.0 and 1.0, which could be labels"):
        drops(np.column_stack([P, 1 - P]), 1 - half, REVERSED)
    assert drops(half, half, REVERSED, scores="labels").table["drop"].eq(0).all()
    assert drops(half, half).provenance["scores"] == {"before": "labels", "after": "labels"}
    said = drops(1 - half, 1 - half, REVERSED, scores="probabilities").table["accuracy_before"]
    pd.testing.assert_series_equal(
        said, drops(half.astype(int), half.astype(int), REVERSED).table["accuracy_before"]
    )
    for other in (2 * half - 1, 3 + half):
        with pytest.raises(ValueError, match="must be of one kind: one has fractions"):
            drops(P, other)
        with pytest.raises(ValueError, match="must be of one kind"):
            drops(other, 4 * P - 2)
    mixed = drops(P, np.where(half, "yes", "no"), np.where(TARGETS, "yes", "no"))
    assert mixed.provenance["scores"] == {"before": "probabilities", "after": "labels"}


MASKED = np.ma.masked_array(P, mask=ROWS == 3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (scipy.sparse.csr_array(np.eye(200)), r"must be dense, got csr_array: give .todense\(\)"),
        (torch.eye(200).to_sparse(), r"must be dense, got Tensor: give .to_dense\(\)"),
        (MASKED, "has masked entries: leave these samples out"),
        ([[1], [1, 2]] * 100, "must be an array, got rows of different lengths"),
    ],
)
def test_arrays_that_hide_numbers_are_refused(values, message):
    for role in ("before", "after", "targets", "groups"):
        given = {"before": P, "after": P, "targets": TARGETS, "groups": GROUPS} | {role: values}
        with pytest.raises((TypeError, ValueError), match=f"{role} {message}"):
            fairlib.audit(**given, **QUICK)


@pytest.mark.parametrize(
    "values",
    [
        SAID.astype(">i4"),
        np.ma.masked_array(SAID),
        torch.tensor(SAID).to(torch.float8_e4m3fn),
        pd.array(SAID, dtype="Int64"),
        pd.array(SAID.astype(str), dtype="string"),
        pd.Index(SAID),
        pd.Categorical(SAID),
    ],
)
def test_arrays_of_any_library_are_the_same_labels(values):
    want = drops(TARGETS, SAID).table
    pd.testing.assert_frame_equal(drops(TARGETS, values).table, want)
    pd.testing.assert_frame_equal(
        drops(TARGETS, SAID, groups=values).table,
        drops(TARGETS, SAID, groups=SAID).table,
    )
    pd.testing.assert_frame_equal(
        drops(P.astype(">f4"), pd.array(P, dtype="Float64")).table, drops(P, P).table, rtol=1e-5
    )


def test_targets_of_two_columns_are_refused():
    for targets in (np.eye(2, dtype=int)[TARGETS], TARGETS[:, None], pd.DataFrame({"y": TARGETS})):
        with pytest.raises(ValueError, match=r"targets must be one label for each sample, \(N,\)"):
            drops(TARGETS, SAID, targets)


def test_infinite_numbers_are_named():
    broken = torch.nn.Linear(1, 2)
    test = fairlib.GroupedDataset(P[:, None].astype(np.float32), TARGETS, FEW.astype(int))
    model = torch.nn.Linear(1, 2)
    broken.weight.data[0] = float("inf")
    with pytest.raises(FloatingPointError, match="after compression are NaN or infinite on 200"):
        fairlib.audit(model, broken, test, **QUICK)
    with pytest.raises(ValueError, match="after, row 0: unknown class 'inf'"):
        drops(TARGETS, np.where(TARGETS, -np.inf, np.inf))
