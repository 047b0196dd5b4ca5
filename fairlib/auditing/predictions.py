"""What can be audited: models of several kinds, or what they said, and what is then known of every sample.

Logits, probabilities and labels are told apart by their values; where these allow two readings the caller has to say.
No torch is imported unless a model or a tensor needs it, so that a table of predictions is audited at once.
"""

from __future__ import annotations

import hashlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.special import log_softmax

from fairlib._validation import lookup

if TYPE_CHECKING:
    from torch import nn

    from fairlib.data import GroupedDataset

SCORES = ("auto", "logits", "probabilities", "labels")
"""Kinds of scores; ``"auto"`` tells them apart by their values."""

_LEAST = 1e-12  # A probability below it counts as this one, so that a loss is finite: 27.6 nats.
_ALONE = 4  # Samples that a model is asked about again, alone.


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
    each = np.unravel_index(groups, [len(values) for values in test.attributes.values()]) if test.attributes else ()
    attributes = dict(zip(test.attributes, zip(each, test.attributes.values(), strict=True), strict=True))
    return Samples(targets, groups, test.target_names, test.group_names, attributes)


def coded(name: str, values: Any) -> tuple[np.ndarray, tuple[str, ...]]:
    """Turn labels of any kind into codes and their names.

    Args:
        name: Name of the argument in error messages.
        values: Texts, integers, booleans or a categorical series, ``(N,)``.

    Returns:
        Codes int ``(N,)`` and the names: the categories in their order, numbers ascending, or texts sorted.

    Raises:
        ValueError: If a value is missing (names the row), or they are not one-dimensional.
    """
    codes, found = _factorized(name, values)
    if isinstance(getattr(values, "dtype", None), pd.CategoricalDtype):
        names = [_plain(value) for value in values.dtype.categories]
    else:
        names = sorted(found)
        if all(name.removeprefix("-").isdigit() for name in names):
            names.sort(key=int)
    return pd.Index(names).get_indexer(found)[codes], tuple(names)


def texts(values: Any) -> np.ndarray:
    """Write labels as texts: 1, 1.0 and "1" are the same."""
    codes, found = _factorized("labels", values)
    return np.array(found, dtype=object)[codes]


def _factorized(name: str, values: Any) -> tuple[np.ndarray, list[str]]:
    series = pd.Series(array(values) if _is_tensor(values) else values)
    codes, found = pd.factorize(series)
    if len(missing := np.flatnonzero(codes < 0)):
        raise ValueError(f"{name} must be known of every sample: it is missing in row {missing[0]}")
    names = [_plain(value) for value in found]
    distinct = [*dict.fromkeys(names)]
    return pd.Index(distinct).get_indexer(names)[codes], distinct


def is_scores(said: Any) -> bool:
    """Whether this is what a model said: an array, a tensor, a list or a data frame."""
    return isinstance(said, np.ndarray | pd.DataFrame | pd.Series | list | tuple) or _is_tensor(said)


def are_labels(said: Any, scores: str = "auto") -> bool:
    """Whether what a model said are labels: one a sample, and no number with a fraction."""
    if scores != "auto" or np.ndim(said) != 1:
        return scores == "labels"
    return not _fractional(array(said))


def from_scores(values: Any, samples: Samples, role: str, *, scores: str = "auto", strict: bool = True) -> Predictions:
    """Read what a model said: logits or probabilities ``(N, C)``, those of the last of two classes, or labels ``(N,)``.

    Args:
        values: Array, tensor, data frame or series. The columns of a data frame may be named by the classes.
        samples: Whom it is about.
        role: Which model it is in error messages: ``"before"`` or ``"after"``.
        scores: One of :data:`SCORES`.
        strict: Refuse values that could be logits or probabilities; else they are taken for logits, with a note.

    Raises:
        ValueError: If there is not one row a sample, a label is no class, the number of columns is not that of the
            classes, or the kind is ambiguous.
        FloatingPointError: If scores are NaN or infinite.
    """
    lookup("kind of scores", scores, dict.fromkeys(SCORES))
    if isinstance(values, pd.DataFrame) and values.shape[1] > 1 and not isinstance(values.columns, pd.RangeIndex):
        values = values.set_axis([*map(_plain, values.columns)], axis=1)
        if {*values.columns} != {*samples.target_names}:
            wanted, got = ", ".join(samples.target_names), ", ".join(values.columns)
            raise ValueError(
                f"columns of {role} must be the classes {wanted}, got {got}: rename them, or give an array"
            )
        values = values[[*samples.target_names]]
    found, classes = array(values), len(samples.target_names)
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    if found.ndim not in (1, 2) or len(found) != len(samples.targets):
        raise ValueError(f"{role} must have a row for each of {len(samples.targets)} samples, got shape {found.shape}")
    if are_labels(found, scores):
        return _from_labels(found, samples, role)
    if found.dtype.kind not in "iufb":
        raise ValueError(f"{role} must be numbers for {scores}, got {found.dtype}")
    found = found.astype(np.float64)
    if len(broken := np.flatnonzero(~np.isfinite(found.reshape(len(found), -1)).all(1))):
        count = f"{len(broken)} of {len(found)} samples"
        raise FloatingPointError(f"scores {role} compression are NaN or infinite on {count}, the first {broken[0]}")
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
            raise ValueError(f"{role} must be probabilities: not negative, and every row with sum 1")
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
        return "logits", (f"scores {role} compression lie between 0 and 1, as probabilities do: taken for logits",)
    return "logits", ()


def _sums(found: np.ndarray) -> float:
    """How far the sum of a row of probabilities may be from 1: each is rounded to eight bits at worst."""
    return found.shape[1] / 256


def _from_labels(found: np.ndarray, samples: Samples, role: str) -> Predictions:
    if found.ndim != 1:
        raise ValueError(f"{role} must be one label for each sample, got shape {found.shape}")
    places, names = _factorized(role, found)
    codes = pd.Index(samples.target_names).get_indexer(names)[places]
    if found.dtype.kind in "iufb":  # Codes, unless they are names.
        given, named = found.astype(np.int64), not (codes < 0).any()
        unfit = (given != found) | (given < 0) | (given >= len(samples.target_names))
        if named and not unfit.any() and (given != codes).any():
            classes = ", ".join(samples.target_names)
            raise ValueError(f"{role}: its numbers could be codes or names of the classes {classes}: give texts")
        codes = codes if named else np.where(unfit, -1, given)
    wrong = codes < 0
    if wrong.any():
        row, classes = np.flatnonzero(wrong)[0], ", ".join(samples.target_names)
        raise ValueError(f"{role}: {_plain(found[row])!r} in row {row} is none of the classes {classes}")
    unknown = np.full(len(codes), np.nan)
    said = f"only labels are known {role} compression: no loss, no calibration"
    return Predictions(codes, unknown, unknown, "labels", notes=(said,))


def predictions(model: Any, test: GroupedDataset, role: str, *, scores: str = "auto", seed: int = 0) -> Predictions:
    """Ask a model about every sample of a data set, or read what it said.

    Args:
        model: Torch module, path of an ONNX file, estimator of scikit-learn, function from a batch of inputs to
            scores, or the scores themselves (:func:`from_scores`).
        test: Samples.
        role: ``"before"`` or ``"after"``.
        scores: One of :data:`SCORES`.
        seed: Seed of what a module draws.

    Raises:
        TypeError: If it is something else; says what to give.
    """
    samples = samples_of(test)
    if isinstance(model, type):
        raise TypeError(f"{role} must be {_AUDITABLE}, got {type(model).__name__}: give an instance, not the class")
    if "torch" in sys.modules and isinstance(model, sys.modules["torch"].nn.Module):
        return _from_module(model, test, samples, role, scores, seed)
    if isinstance(model, str | Path):
        from fairlib.auditing.onnx import session

        call, about = session(model)
    elif hasattr(model, "predict_proba") or hasattr(model, "predict"):
        call, about = _estimator(model, samples), {"model": type(model).__name__}
    elif is_scores(model):
        about = {"model": f"scores {np.shape(model)}"}
        return replace(from_scores(model, samples, role, scores=scores), about=about)
    elif callable(model):
        call, about = model, {"model": getattr(model, "__qualname__", type(model).__name__)}
    else:
        raise TypeError(f"{role} must be {_AUDITABLE}, got {type(model).__name__}{_hint(model)}")
    found = _called(call, test, role)
    return replace(from_scores(found, samples, role, scores=scores, strict=False), about=about)


_AUDITABLE = (
    "a torch module, the path of an ONNX file, an estimator of scikit-learn, a function from a batch to scores, or "
    "logits, probabilities or labels with one row a sample"
)


def _hint(model: Any) -> str:
    return ": put a state_dict into a module first (fairlib.restore)" if isinstance(model, Mapping) else ""


def _from_module(
    model: nn.Module, test: GroupedDataset, samples: Samples, role: str, scores: str, seed: int
) -> Predictions:
    """Ask a torch module, and whether it answers twice alike; what it changed in its buffers is put back."""
    import torch

    from fairlib.network.evaluation import evaluation_mode, outputs, placement

    device, dtype = placement(model)
    notes: list[str] = []
    with held(model, role, seed, notes):
        try:
            found = outputs(model, test)
        except RuntimeError as error:
            shape = tuple(test.inputs.shape[1:])
            raise ValueError(f"{role} does not take inputs {shape} of the test set: {error}") from error
        few = torch.arange(min(_ALONE, len(test)))

        def asked(parts: Sequence[Any]) -> Any:
            return torch.cat([model(test.batch(rows, dtype=dtype, device=device)) for rows in parts]).double().cpu()

        with evaluation_mode(model), torch.inference_mode():
            first, second = asked([few]), asked([few])
            try:
                alone = asked(few.split(1))
            except (RuntimeError, ValueError):  # It takes no batch of one.
                alone = torch.full_like(first, float("nan"))
        if not torch.allclose(first, second, rtol=1e-3, atol=1e-5):
            notes.append(f"the model {role} compression draws at random: it answers the same samples differently")
        elif not torch.allclose(first, alone, rtol=1e-2, atol=1e-4):
            notes.append(f"the model {role} compression looks at its batch: it answers a sample alone differently")
    said = from_scores(found.numpy(), samples, role, scores=scores, strict=False)
    size = sum(tensor.numel() * tensor.element_size() for tensor in (*model.parameters(), *model.buffers()))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    about = {"model": type(model).__name__, "parameters": parameters, "bytes": size}
    return replace(said, about=about, notes=(*said.notes, *notes))


@contextmanager
def held(model: nn.Module, role: str, seed: int, notes: list[str]) -> Iterator[None]:
    """Hold what a model changes: its buffers are put back, with a note, and so are the random generators.

    Args:
        model: Torch module.
        role: ``"before"`` or ``"after"``, for the note.
        seed: Seed of what the model draws within the block.
        notes: List to which the note is added, once.
    """
    import torch

    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            torch.manual_seed(seed)
            yield
    finally:
        changed = [name for name, buffer in model.named_buffers() if not torch.equal(buffer, before.get(name, buffer))]
        with torch.no_grad():
            for name in changed:
                model.get_buffer(name).copy_(before[name])
        note = f"the model {role} compression changed its buffers ({', '.join(changed)}): they were put back"
        notes.extend([note] if changed and note not in notes else [])


def _called(call: Callable, test: GroupedDataset, role: str) -> np.ndarray:
    """Call a function batch by batch."""
    import torch

    from fairlib.network.evaluation import passes

    parts = [array(call(test.batch(rows, dtype=torch.float32))) for rows in passes(test, torch.device("cpu"))]
    if any(part.ndim == 0 or part.ndim > 2 for part in parts):
        raise ValueError(f"{role} must give scores (N, C) or labels (N,) of a batch, it gives {parts[0].shape}")
    return np.concatenate(parts)


def _estimator(model: Any, samples: Samples) -> Callable:
    """An estimator as a function of a batch; its classes are those of the data, by name or by code."""

    def call(batch: Any) -> Any:
        flat = batch.flatten(1).numpy()
        if not hasattr(model, "predict_proba"):
            return model.predict(flat)
        scores = model.predict_proba(flat)
        codes = _from_labels(np.asarray(model.classes_), replace(samples, targets=np.arange(len(scores[0]))), "before")
        whole = np.zeros((len(scores), len(samples.target_names)))
        whole[:, codes.labels] = scores
        return whole

    return call


def array(values: Any) -> np.ndarray:
    """Convert a tensor, a data frame, a series, a list or an array into an array."""
    if _is_tensor(values):
        values = values.detach().cpu()
        return (values.double() if values.is_floating_point() else values).numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # A ragged list.
        return np.asarray(values)


def digest(path: str | Path) -> dict[str, Any]:
    """Describe a file: its name, bytes and SHA-256."""
    content = Path(path).read_bytes()
    return {"file": Path(path).name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _fractional(found: np.ndarray) -> bool:
    """Whether numbers are no labels: floats of which one is no whole number."""
    return found.dtype.kind == "f" and not bool((found == np.round(found)).all())


def _is_tensor(values: Any) -> bool:
    return "torch" in sys.modules and isinstance(values, sys.modules["torch"].Tensor)


def _plain(value: Any) -> str:
    """A label as a text: 1.0 and 1 are the same."""
    return str(int(value)) if isinstance(value, float | np.floating) and value == round(value) else str(value)
