"""What models said: logits, probabilities or labels, and what is then known of every sample.

These are told apart by their values; where the values allow two readings the caller has to say. No
torch is imported, so that a table of predictions is audited at once."""

from __future__ import annotations

import hashlib
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.special import log_softmax

from fairlib._tables import coded, cross_attributes, factorized, label_text, texts
from fairlib._validation import lookup

if TYPE_CHECKING:
    from fairlib.data import GroupedDataset

SCORES = ("auto", "logits", "probabilities", "labels")
"""Kinds of scores; ``"auto"`` tells them apart by their values."""

_LEAST = 1e-12  # A probability below it counts as this one, so that a loss is finite: 27.6 nats.


@dataclass(frozen=True)
class Samples:
    """Whom a model was asked about.

    Attributes:
        targets: Codes into ``target_names``, int ``(N,)``.
        groups: Codes into ``group_names``, int ``(N,)``.
        target_names, group_names: Names of classes and groups.
        attributes: By name of an attribute its codes and their names, where groups cross several.
    """

    targets: np.ndarray
    groups: np.ndarray
    target_names: tuple[str, ...]
    group_names: tuple[str, ...]
    attributes: Mapping[str, tuple[np.ndarray, tuple[str, ...]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Predictions:
    """What a model said of N samples.

    Attributes:
        labels: Predicted classes, codes, int ``(N,)``.
        loss: Cross-entropy in nats, ``(N,)``; NaN if only labels are known.
        confidence: Probability of the predicted class, ``(N,)``; NaN likewise.
        kind: ``"logits"``, ``"probabilities"`` or ``"labels"``.
        about: Description of the model, for the report.
        notes: Warnings.
    """

    labels: np.ndarray
    loss: np.ndarray
    confidence: np.ndarray
    kind: str
    about: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def samples_of(test: GroupedDataset) -> Samples:
    """Read targets and groups of a data set, and the attributes that its groups cross."""
    targets, groups = (codes.cpu().numpy() for codes in (test.targets, test.groups))
    each = (
        np.unravel_index(groups, [len(values) for values in test.attributes.values()])
        if test.attributes
        else ()
    )
    attributes = dict(
        zip(test.attributes, zip(each, test.attributes.values(), strict=True), strict=True)
    )
    return Samples(targets, groups, test.target_names, test.group_names, attributes)


def is_scores(said: Any) -> bool:
    """Whether this is what a model said: an array, a tensor, a list or a data frame."""
    return isinstance(said, np.ndarray | pd.DataFrame | pd.Series | list | tuple) or is_tensor(said)


def are_labels(said: Any, scores: str = "auto") -> bool:
    """Whether what a model said are labels: one a sample, and no number with a fraction."""
    if scores != "auto" or np.ndim(said) != 1:
        return scores == "labels"
    found = array(said)
    return not (found.dtype.kind == "f" and (found != np.round(found)).any())


def from_scores(
    values: Any, samples: Samples, role: str, *, scores: str = "auto", strict: bool = True
) -> Predictions:
    """Read what a model said: logits or probabilities ``(N, C)``, those of the last of two classes,
    or labels ``(N,)``.

    Args: values: Array, tensor, data frame or series. The columns of a data frame may be named by
        the classes. samples: Whom it is about. role: Which model it is in error messages:
        ``"before"`` or ``"after"``. scores: One of :data:`SCORES`. strict: Refuse values that could
        be logits or probabilities; else they are taken for logits, with a note.

    Raises: ValueError: If there is not one row a sample, a label is no class, the number of columns
        is not that of the
            classes, or the kind is ambiguous.
        FloatingPointError: If scores are NaN or infinite.
    """
    lookup("kind of scores", scores, dict.fromkeys(SCORES))
    if (
        isinstance(values, pd.DataFrame)
        and values.shape[1] > 1
        and not isinstance(values.columns, pd.RangeIndex)
    ):
        values = values.set_axis([*map(label_text, values.columns)], axis=1)
        if {*values.columns} != {*samples.target_names}:
            wanted, got = ", ".join(samples.target_names), ", ".join(values.columns)
            raise ValueError(
                f"columns of {role} must be the classes {wanted}, got {got}: rename, or give an array"
            )
        values = values[[*samples.target_names]]
    found, classes = array(values), len(samples.target_names)
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    if found.ndim not in (1, 2) or len(found) != len(samples.targets):
        raise ValueError(
            f"{role} must have a row for each of {len(samples.targets)} samples, got shape {found.shape}"
        )
    if are_labels(found, scores):
        return from_labels(found, samples, role)
    if found.dtype.kind not in "iufb":
        raise ValueError(f"{role} must be numbers for {scores}, got {found.dtype}")
    found = found.astype(np.float64)
    if len(broken := np.flatnonzero(~np.isfinite(found.reshape(len(found), -1)).all(1))):
        count = f"{len(broken)} of {len(found)} samples"
        raise FloatingPointError(
            f"scores {role} compression are NaN or infinite on {count}, the first {broken[0]}"
        )
    if (found.shape[1] if found.ndim == 2 else 2) != classes:
        names = ", ".join(samples.target_names)
        raise ValueError(
            f"{role} must have scores of {classes} classes ({names}), got shape {found.shape}: targets must name every "
            "class, in the order of the scores (as a Categorical does; --classes)"
        )
    kind, notes = _kind(found, role, strict) if scores == "auto" else (scores, ())
    if kind == "probabilities":
        whole = np.column_stack([1 - found, found]) if found.ndim == 1 else found
        if (whole < 0).any() or np.abs(whole.sum(1) - 1).max() > _sums(whole):
            raise ValueError(
                f"{role} must be probabilities: not negative, and every row with sum 1"
            )
        whole = whole / whole.sum(1, keepdims=True)
        if (whole[np.arange(len(whole)), samples.targets] < _LEAST).any():
            notes = (*notes, f"probabilities of 0 {role} compression count as {_LEAST:g} in losses")
        logarithms = np.log(np.maximum(whole, _LEAST))
    else:
        whole = np.column_stack([np.zeros(len(found)), found]) if found.ndim == 1 else found
        logarithms = log_softmax(whole, axis=1)
    if found.ndim == 1:
        notes = (*notes, f"{kind} {role} compression are those of {samples.target_names[1]!r}")
    labels = whole.argmax(1)
    rows = np.arange(len(labels))
    confidence = np.exp(logarithms[rows, labels])
    return Predictions(labels, -logarithms[rows, samples.targets], confidence, kind, notes=notes)


def _kind(found: np.ndarray, role: str, strict: bool) -> tuple[str, tuple[str, ...]]:
    """Tell logits from probabilities."""
    within = found.min() >= 0 and found.max() <= 1
    if found.ndim == 1:
        return ("probabilities" if within else "logits"), ()
    if found.min() >= 0 and np.abs(found.sum(1) - 1).max() <= _sums(found):
        said = f"scores {role} compression are probabilities (not negative, every row with sum 1): losses are -log p"
        return "probabilities", (said,)
    if within and found.max() > 0:
        if strict:
            raise ValueError(
                f"{role} lies between 0 and 1, but its rows do not sum to 1: give scores='logits', or probabilities "
                "of classes that exclude each other"
            )
        return "logits", (
            f"scores {role} compression lie between 0 and 1, as probabilities do: taken for logits",
        )
    return "logits", ()


def _sums(found: np.ndarray) -> float:
    """How far the sum of a row of probabilities may be from 1: each is rounded to eight bits at
    worst."""
    return found.shape[1] / 256


def from_labels(found: np.ndarray, samples: Samples, role: str) -> Predictions:
    """Read labels: names of classes, or their codes."""
    if found.ndim != 1:
        raise ValueError(f"{role} must be one label for each sample, got shape {found.shape}")
    places, names = factorized(role, found)
    codes = pd.Index(samples.target_names).get_indexer(names)[places]
    if found.dtype.kind in "iufb":  # Codes, unless they are names.
        given, named = found.astype(np.int64), not (codes < 0).any()
        unfit = (given != found) | (given < 0) | (given >= len(samples.target_names))
        if named and not unfit.any() and (given != codes).any():
            classes = ", ".join(samples.target_names)
            raise ValueError(
                f"{role}: its numbers could be codes or names of the classes {classes}: give texts"
            )
        codes = codes if named else np.where(unfit, -1, given)
    wrong = codes < 0
    if wrong.any():
        row, classes = np.flatnonzero(wrong)[0], ", ".join(samples.target_names)
        raise ValueError(
            f"{role}: {label_text(found[row])!r} in row {row} is none of the classes {classes}"
        )
    unknown = np.full(len(codes), np.nan)
    said = f"only labels are known {role} compression: no loss, no calibration"
    return Predictions(codes, unknown, unknown, "labels", notes=(said,))


def given(
    before: Any, after: Any, targets: Any, groups: Any, scores: str
) -> tuple[Samples, list[Predictions]]:
    """Read what two models said, beside targets and groups."""
    if targets is None or groups is None:
        raise TypeError(
            "give a test set, a GroupedDataset; or targets= and groups= beside what two models said"
        )
    roles = {"before": before, "after": after}
    for role, said in roles.items():
        if not is_scores(said):
            raise TypeError(
                f"{role} is asked about a test set: give one, not targets= and groups=, or give its scores"
            )
    labels = {role: texts(said) for role, said in roles.items() if are_labels(said, scores)}
    codes, names = coded("targets", targets)
    if not len(codes):
        raise ValueError("targets must hold at least one sample")
    width = max(np.shape(said)[1] if np.ndim(said) == 2 else 0 for said in roles.values())
    if width > len(names) and all(name.isdigit() and int(name) < width for name in names):
        codes, names = np.array([int(name) for name in names])[codes], tuple(map(str, range(width)))
    columns = [*groups.items()] if isinstance(groups, pd.DataFrame) else [("groups", groups)]
    attributes = {
        str(name): coded(f"groups[{name!r}]" if len(columns) > 1 else "groups", own)
        for name, own in columns
    }
    cells, group_names = cross_attributes(attributes.values())
    if len(set(group_names)) < len(group_names):
        raise ValueError(f"groups must have names of their own, got {', '.join(group_names)}")
    if len(codes) != len(cells):
        raise ValueError(
            f"targets and groups must be of the same samples, got {len(codes)} and {len(cells)}"
        )
    samples = Samples(codes, cells, names, group_names, attributes if len(attributes) > 1 else {})
    return samples, [
        from_scores(labels.get(role, said), samples, role, scores=scores)
        for role, said in roles.items()
    ]


def array(values: Any) -> np.ndarray:
    """Convert a tensor, a data frame, a series, a list or an array into an array."""
    if is_tensor(values):
        values = values.detach().cpu()
        return (values.double() if values.is_floating_point() else values).numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # A ragged list.
        return np.asarray(values)


def digest(path: str | Path) -> dict[str, Any]:
    """Describe a file: its name, bytes and SHA-256."""
    content = Path(path).read_bytes()
    return {
        "file": Path(path).name,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def is_tensor(values: Any) -> bool:
    return "torch" in sys.modules and isinstance(values, sys.modules["torch"].Tensor)
