"""Scores of any kind, read as predictions: logits, probabilities and labels.

They are told apart by their values; where the values allow two readings the caller has to say. No
torch is imported, so that a table of predictions is audited at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import log_softmax

from fairlib._tables import dense, factorized, in_order, is_tensor, label_text
from fairlib._validation import lookup
from fairlib.auditing.predictions import GroundTruth, Predictions

SCORES = ("auto", "logits", "probabilities", "labels")
"""Kinds of scores; ``"auto"`` tells them apart by their values."""

_LEAST = 1e-12  # A probability below it counts as this one, so that a loss is finite: 27.6 nats.


def is_scores(values: Any) -> bool:
    """Return True if values can hold scores: an array, a tensor, a list or a data frame."""
    # Sparse arrays are among them: the error of reading says how to make them dense.
    arrays = np.ndarray | pd.DataFrame | pd.Series | list | tuple
    arrays |= pd.Index | pd.api.extensions.ExtensionArray
    return isinstance(values, arrays) or is_tensor(values) or hasattr(values, "todense")


def read_scores(
    values: Any, truth: GroundTruth, role: str, *, kind: str = "auto", strict: bool = True
) -> Predictions:
    """Read the scores of a model.

    They are logits or probabilities ``(N, C)``, those of the last of two classes ``(N,)``, or
    labels ``(N,)``.

    Args:
        values: Array, tensor, data frame or series. The columns of a data frame may be named by the
            classes.
        truth: Targets and groups of the samples.
        role: Role of the model in error messages: ``"before"`` or ``"after"``.
        kind: One of :data:`SCORES`.
        strict: Refuse values that could be logits or probabilities; else take them for logits, with
            a note.

    Raises:
        ValueError: If there is not one row a sample, a label is no class, the number of columns is
            not that of the classes, or the kind is ambiguous.
        FloatingPointError: If scores are NaN or infinite.
    """
    lookup("kind of scores", kind, dict.fromkeys(SCORES))
    found = scores_array(values, truth, role)
    # One value a sample is a label if no number has a fraction, as margins and probabilities have.
    whole = found.dtype.kind != "f" or bool((found == np.round(found)).all())
    if kind == "labels" or (kind == "auto" and found.ndim == 1 and whole):
        if found.ndim != 1:
            raise ValueError(f"{role} must be one label for each sample, got shape {found.shape}")
        codes, unknown = class_codes(found, truth, role), np.full(len(found), np.nan)
        # Labels 0.0 and 1.0 are what pandas makes of a column with a gap. Where the classes are in
        # another order than the numbers, they would say the opposite as scores.
        either = kind == "auto" and found.dtype.kind == "f" and len(truth.target_names) == 2
        if either and np.isin(found, (0, 1)).all() and (codes != found).any():
            raise ValueError(
                f"{role} has only 0.0 and 1.0, which could be labels, or scores of the class "
                f"{truth.target_names[1]!r}: give scores='labels' or 'probabilities' (--scores)"
            )
        note = f"only labels are known {role} compression: no loss, no calibration"
        return Predictions(codes, unknown, unknown, "labels", notes=(note,))
    found = _numbers(found, truth, role, kind)
    notes: list[str] = []
    if kind == "auto":
        kind, notes = _tell_apart(found, role, strict)
    if found.ndim == 1:
        # One number a sample is about the second class: logits are relative to the first.
        first = 1 - found if kind == "probabilities" else np.zeros(len(found))
        found = np.column_stack([first, found])
        notes.append(f"{kind} {role} compression are those of {truth.target_names[1]!r}")
    rows = np.arange(len(found))
    if kind == "probabilities":
        if not _sum_to_one(found):
            raise ValueError(
                f"{role} must be probabilities: not negative, and every row with sum 1"
            )
        found = found / found.sum(1, keepdims=True)
        if (found[rows, truth.targets] < _LEAST).any():
            notes.append(f"probabilities of 0 {role} compression count as {_LEAST:g} in losses")
        logarithms = np.log(np.maximum(found, _LEAST))
    else:
        logarithms = log_softmax(found, axis=1)
    labels = found.argmax(1)
    confidence = np.exp(logarithms[rows, labels])
    loss = -logarithms[rows, truth.targets]
    return Predictions(labels, loss, confidence, kind, notes=tuple(notes))


def scores_array(values: Any, truth: GroundTruth, role: str) -> np.ndarray:
    """Return scores or labels as an array ``(N,)`` or ``(N, C)``, columns in the order of classes.

    Raises:
        ValueError: If there is not one row a sample, or columns are named by something else.
        TypeError: If values are sparse or ragged.
    """
    found = dense(role, _in_order_of_classes(values, truth, role))
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    if found.ndim not in (1, 2) or len(found) != len(truth.targets):
        raise ValueError(
            f"{role} must have a row for each of {len(truth.targets)} samples, "
            f"got shape {found.shape}"
        )
    return found


def common_kind(columns: Sequence[np.ndarray], truth: GroundTruth) -> str:
    """Tell by both models what one number a sample is, of two classes.

    Compression saturates scores: zeros and ones beside fractions are scores, and not labels.

    Returns:
        The kind of both; ``"auto"`` where each can be read alone, since it has texts, labels or
        scores of every class.

    Raises:
        ValueError: If the numbers are of two kinds.
    """
    numbers = (column.ndim == 1 and column.dtype.kind in "iuf" for column in columns)
    if len(truth.target_names) != 2 or not all(numbers):
        return "auto"
    whole = [(column == np.round(column)).all() for column in columns]
    if all(whole):
        return "auto"
    kind = _kind_of_numbers(np.concatenate(columns))
    if any(whole) and kind == "logits":
        raise ValueError(
            "before and after must be of one kind: one has fractions, as scores have, the other "
            "only whole numbers, as labels are; give scores= or labels of both"
        )
    return kind


def class_codes(found: np.ndarray, truth: GroundTruth, role: str) -> np.ndarray:
    """Turn labels, names of classes or their codes, into codes.

    Raises:
        ValueError: If a label is no class, or integers can be both names and codes.
    """
    places, names = factorized(role, found)
    codes = pd.Index(truth.target_names).get_indexer(names)[places]
    known = ", ".join(truth.target_names)
    if truth.numbered and found.dtype.kind in "iufb":
        # Integers are names if all of them are, as zip codes can be; else they are codes. If they
        # can be either and the two readings differ (classes named 1, 2, 3), each guess would score
        # right answers as wrong ones without a sign of it.
        given, named = found.astype(np.int64), not (codes < 0).any()
        unfit = (given != found) | (given < 0) | (given >= len(truth.target_names))
        if named and not unfit.any() and (given != codes).any():
            raise ValueError(
                f"{role}: its numbers could be codes or names of the classes {known}: give texts"
            )
        codes = codes if named else np.where(unfit, -1, given)
    if (codes < 0).any():
        row = np.flatnonzero(codes < 0)[0]
        raise ValueError(
            f"{role}, row {row}: unknown class {label_text(found[row])!r}; known: {known}"
        )
    return codes


def _in_order_of_classes(values: Any, truth: GroundTruth, role: str) -> Any:
    """Put the columns of a data frame, if they have names, into the order of the classes."""
    named = isinstance(values, pd.DataFrame) and not isinstance(values.columns, pd.RangeIndex)
    if not named or not 1 < values.shape[1] == len(truth.target_names):
        return values
    names = [label_text(name) for name in values.columns]
    return values.iloc[:, in_order(truth.target_names, names, f"columns of {role}")[0]]


def _numbers(found: np.ndarray, truth: GroundTruth, role: str, kind: str) -> np.ndarray:
    """Refuse scores that are no finite numbers of each class; return them as float64."""
    if found.dtype.kind not in "iufb":
        raise ValueError(f"scores of {role} must be numbers, got {found.dtype}")
    found = found.astype(np.float64)
    broken = np.flatnonzero(~np.isfinite(found.reshape(len(found), -1)).all(1))
    if len(broken):
        raise FloatingPointError(
            f"scores {role} compression are NaN or infinite on {len(broken)} of {len(found)} "
            f"samples, the first {broken[0]}"
        )
    classes = len(truth.target_names)
    if (found.shape[1] if found.ndim == 2 else 2) != classes:
        raise ValueError(
            f"{role} must have scores of {classes} classes ({', '.join(truth.target_names)}), got "
            f"shape {found.shape}: targets must name every class, in the order of the scores (as a "
            "Categorical does; --classes)"
        )
    return found


def _tell_apart(found: np.ndarray, role: str, strict: bool) -> tuple[str, list[str]]:
    """Tell logits from probabilities by their values; return the kind and notes.

    Logits that are taken for probabilities, or the other way round, still have the right largest
    class: accuracies would be right and every loss and confidence wrong, so a guess gets a note.
    """
    if found.ndim == 1:
        return _kind_of_numbers(found), []
    scores = f"scores {role} compression"
    if _sum_to_one(found):
        how = "not negative, every row with sum 1"
        return "probabilities", [f"{scores} are probabilities ({how}): losses are -log p"]
    # All zeros are the logits of a fresh layer; other numbers of [0, 1] are most likely sigmoids
    # of classes that do not exclude each other.
    if _kind_of_numbers(found) == "logits" or found.max() == 0:
        return "logits", []
    if strict:
        raise ValueError(
            f"{role} is between 0 and 1, but its rows do not sum to 1: give scores='logits', "
            "or probabilities of classes that exclude each other"
        )
    return "logits", [f"{scores} are between 0 and 1, as probabilities do: taken for logits"]


def _kind_of_numbers(found: np.ndarray) -> str:
    return "logits" if ((found < 0) | (found > 1)).any() else "probabilities"


def _sum_to_one(found: np.ndarray) -> bool:
    """Return True if rows can be probabilities: not negative, with sum 1 up to rounding.

    Each of C probabilities is rounded to eight bits at worst, as int8 models give them.
    """
    error = np.abs(found.sum(1) - 1).max()
    return bool(found.min() >= 0 and error <= found.shape[1] / 256)
