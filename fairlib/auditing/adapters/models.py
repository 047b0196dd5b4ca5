"""Models of any kind as predictions: torch modules, ONNX files, estimators, functions, scores."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from fairlib._tables import dense
from fairlib.auditing.adapters.scores import (
    class_codes,
    common_kind,
    is_scores,
    read_scores,
    scores_array,
)
from fairlib.auditing.predictions import GroundTruth, Predictions

if TYPE_CHECKING:
    from torch import nn

_AUDITABLE = (
    "a torch module, the path of an ONNX file, an estimator of scikit-learn, a function from a "
    "batch to scores, or logits, probabilities or labels with one row a sample"
)
_ALONE = 4  # Samples that a model is asked about again, alone.


@dataclass(frozen=True)
class Query:
    """Samples that a model is asked about.

    Attributes:
        role: Role of the model: ``"before"`` or ``"after"``.
        truth: Targets and groups of the samples.
        test: Their data set, a :class:`fairlib.GroupedDataset`; None if there are only scores.
        seed: Seed of a module that draws.
    """

    role: str
    truth: GroundTruth
    test: Any = None
    seed: int = 0


@dataclass(frozen=True)
class Answers:
    """Scores or labels of a model for every sample, before their kind is known.

    Attributes:
        values: Array ``(N, C)`` or ``(N,)``.
        about: Description of the model, for the report.
        notes: Warnings.
        asked: True if a model was asked; False if the scores themselves were given.
    """

    values: np.ndarray
    about: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    asked: bool = True


def read_answers(pair: Mapping[str, Answers], truth: GroundTruth, kind: str) -> list[Predictions]:
    """Read the answers of both models as predictions.

    Args:
        pair: Answers by role, ``"before"`` and ``"after"``.
        truth: Targets and groups of the samples.
        kind: Kind of the scores, one of :data:`fairlib.auditing.adapters.scores.SCORES`.
    """
    if kind == "auto":
        kind = common_kind([answers.values for answers in pair.values()], truth)
    read = []
    for role, answers in pair.items():
        # Nobody chose the kind of scores of a trained model: if they could be logits or
        # probabilities that is a note, and not an error as it is for an array.
        found = read_scores(answers.values, truth, role, kind=kind, strict=not answers.asked)
        read.append(replace(found, about=answers.about, notes=(*found.notes, *answers.notes)))
    return read


def read_model(model: Any, query: Query) -> Answers:
    """Ask a model about every sample, or take its scores as they are.

    Args:
        model: Torch module, path of an ONNX file, estimator of scikit-learn, function from a batch
            of inputs to scores, or the scores themselves (:func:`read_scores`).
        query: The samples.

    Raises:
        TypeError: If ``model`` is something else, or there is no data set; says what to give.
    """
    if is_scores(model):
        return Answers(scores_array(model, query.truth, query.role), asked=False)
    if query.test is None:
        raise TypeError(
            f"{query.role} is asked about a test set: give one, not targets= and groups=, or give "
            "its scores"
        )
    hint = type(model).__name__
    if isinstance(model, type):
        hint += ": give an instance, not the class"
    elif is_module(model):
        return from_module(model, query)
    elif isinstance(model, str | Path):
        from fairlib.auditing.adapters.onnx import open_model

        return _in_batches(*open_model(model), query)
    elif hasattr(model, "predict_proba") or hasattr(model, "predict"):
        return _in_batches(_estimate(model, query), {"model": hint}, query)
    elif callable(model):
        return _in_batches(model, {"model": getattr(model, "__qualname__", hint)}, query)
    elif isinstance(model, Mapping):
        hint += ": put a state_dict into a module first (fairlib.restore)"
    raise TypeError(f"{query.role} must be {_AUDITABLE}, got {hint}")


def is_module(model: Any) -> TypeGuard[nn.Module]:
    """Return True for a torch module, without importing torch."""
    return "torch" in sys.modules and isinstance(model, sys.modules["torch"].nn.Module)


def from_module(model: nn.Module, query: Query) -> Answers:
    """Ask a torch module; notes tell if it answers twice differently or changes its buffers."""
    from fairlib.network.evaluation import outputs

    notes: list[str] = []
    with held(model, query.role, query.seed, notes):
        try:
            scores = outputs(model, query.test)
        except RuntimeError as error:
            shape = tuple(query.test.inputs.shape[1:])
            raise ValueError(
                f"{query.role} does not take inputs {shape} of the test set: {error}"
            ) from error
        notes.extend(_notes_on_repetition(model, query))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    about = {"model": type(model).__name__, "parameters": parameters}
    return Answers(scores_array(scores, query.truth, query.role), about, notes)


def _estimate(model: Any, query: Query) -> Callable:
    """Make the function that asks an estimator for probabilities, or else for labels."""

    def call(batch: Any) -> Any:
        flat = batch.flatten(1).numpy()
        if not hasattr(model, "predict_proba"):
            return model.predict(flat)
        scores = model.predict_proba(flat)
        # Its columns are the classes it has seen, sorted by itself: they can be fewer than those
        # of the data and in another order.
        codes = class_codes(np.asarray(model.classes_), query.truth, query.role)
        full = np.zeros((len(scores), len(query.truth.target_names)))
        full[:, codes] = scores
        return full

    return call


def _in_batches(call: Callable, about: Mapping[str, Any], query: Query) -> Answers:
    """Ask a function from a batch of inputs to scores, batch by batch."""
    import torch

    from fairlib.network.evaluation import passes

    parts = []
    for rows in passes(query.test, torch.device("cpu")):
        part = dense(query.role, call(query.test.batch(rows, dtype=torch.float32)))
        if part.ndim not in (1, 2):
            raise ValueError(
                f"{query.role} must give scores (N, C) or labels (N,) of a batch, it gives "
                f"{part.shape}"
            )
        parts.append(part)
    return Answers(scores_array(np.concatenate(parts), query.truth, query.role), about)


def _notes_on_repetition(model: nn.Module, query: Query) -> list[str]:
    """Ask a module about a few samples again, together and alone.

    A model that draws at random, or whose answer depends on who else is in the batch, has no
    accuracy of a group that another run would repeat.
    """
    import torch

    from fairlib.network.evaluation import evaluation_mode, placement

    device, dtype = placement(model)
    few = torch.arange(min(_ALONE, len(query.test)))

    def answers(batches: Sequence[torch.Tensor]) -> torch.Tensor:
        found = [model(query.test.batch(rows, dtype=dtype, device=device)) for rows in batches]
        return torch.cat(found).double().cpu()

    with evaluation_mode(model), torch.no_grad():
        first, second = answers([few]), answers([few])
        try:
            alone = answers(few.split(1))
        except (RuntimeError, ValueError):  # A model that takes no batch of one looks at it, too.
            alone = torch.full_like(first, float("nan"))
    who = f"the model {query.role} compression"
    if not torch.allclose(first, second, rtol=1e-3, atol=1e-5):
        return [f"{who} draws at random: it answers the same samples differently"]
    if not torch.allclose(first, alone, rtol=1e-2, atol=1e-4):
        return [f"{who} looks at its batch: it answers a sample alone differently"]
    return []


@contextmanager
def held(model: nn.Module, role: str, seed: int, notes: list[str]) -> Iterator[None]:
    """Restore after a block the buffers of a model, with a note, and the random generators.

    Args:
        model: Torch module.
        role: ``"before"`` or ``"after"``, for the note.
        seed: Seed of what the model draws within the block.
        notes: List to which the note is added, once.
    """
    import torch

    # A model that counts its calls would leave the audit as another model, and one that draws would
    # move the generators of the caller's program and answer another audit differently.
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            torch.manual_seed(seed)
            yield
    finally:
        changed = []
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                if not torch.equal(buffer, before.get(name, buffer)):
                    changed.append(name)
                    buffer.copy_(before[name])
        note = (
            f"the model {role} compression changed its buffers ({', '.join(changed)}): "
            "they were put back"
        )
        if changed and note not in notes:
            notes.append(note)
