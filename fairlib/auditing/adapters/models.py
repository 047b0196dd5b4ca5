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

    from fairlib.data import GroupedDataset

_AUDITABLE = (
    "a torch module, the path of an ONNX file, an estimator of scikit-learn, a function from a "
    "batch to scores, or logits, probabilities or labels with one row a sample"
)
_ALONE = 4  # Samples that a model is asked about again, alone.


@dataclass(frozen=True)
class Answers:
    """Scores or labels of a model for every sample, before their kind is known.

    Attributes:
        values: Scores ``(N, C)`` or scores or labels ``(N,)``, as :func:`scores_array` takes them.
        about: Description of the model, for the report.
        notes: Warnings.
        asked: True if a model was asked; False if the scores themselves were given.
    """

    values: Any
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
    arrays = {role: scores_array(one.values, truth, role) for role, one in pair.items()}
    if kind == "auto":
        kind = common_kind(list(arrays.values()), truth)
    read = []
    for role, answers in pair.items():
        # Nobody chose the kind of scores of a trained model: if they could be logits or
        # probabilities that is a note, and not an error as it is for an array.
        found = read_scores(arrays[role], truth, role, kind=kind, strict=not answers.asked)
        read.append(replace(found, about=answers.about, notes=(*found.notes, *answers.notes)))
    return read


def read_model(
    model: Any, role: str, truth: GroundTruth, test: GroupedDataset | None, seed: int = 0
) -> Answers:
    """Ask a model about every sample, or take its scores as they are.

    Args:
        model: Torch module, path of an ONNX file, estimator of scikit-learn, function from a batch
            of inputs to scores, or the scores themselves (:func:`scores_array`).
        role: Role of the model: ``"before"`` or ``"after"``.
        truth: Targets and groups of the samples.
        test: Their data set; None if there are only scores.
        seed: Seed of a module that draws.

    Raises:
        TypeError: If ``model`` is something else, or there is no data set; says what to give.
    """
    if is_scores(model):
        return Answers(model, asked=False)
    if test is None:
        raise TypeError(
            f"{role} is asked about a test set: give one, not targets= and groups=, or give "
            "its scores"
        )
    hint = type(model).__name__
    if isinstance(model, type):
        hint += ": give an instance, not the class"
    elif is_module(model):
        return from_module(model, role, test, seed)
    elif isinstance(model, str | Path):
        from fairlib.auditing.adapters.onnx import open_model

        return _in_batches(*open_model(model), role, test)
    elif hasattr(model, "predict_proba") or hasattr(model, "predict"):
        return _in_batches(_estimate(model, role, truth), {"model": hint}, role, test)
    elif callable(model):
        about = {"model": getattr(model, "__qualname__", hint)}
        return _in_batches(model, about, role, test)
    elif isinstance(model, Mapping):
        hint += ": put a state_dict into a module first (fairlib.restore)"
    raise TypeError(f"{role} must be {_AUDITABLE}, got {hint}")


def is_module(model: Any) -> TypeGuard[nn.Module]:
    """Return True for a torch module, without importing torch."""
    return "torch" in sys.modules and isinstance(model, sys.modules["torch"].nn.Module)


def from_module(model: nn.Module, role: str, test: GroupedDataset, seed: int) -> Answers:
    """Ask a torch module; notes tell if it answers twice differently or changes its buffers."""
    from fairlib.network.evaluation import outputs

    notes: list[str] = []
    with held(model, role, seed, notes):
        try:
            scores = outputs(model, test)
        except RuntimeError as error:
            shape = tuple(test.inputs.shape[1:])
            raise ValueError(
                f"{role} does not take inputs {shape} of the test set: {error}"
            ) from error
        notes.extend(_notes_on_repetition(model, role, test))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    about = {"model": type(model).__name__, "parameters": parameters}
    return Answers(scores, about, notes)


def _estimate(model: Any, role: str, truth: GroundTruth) -> Callable:
    """Make the function that asks an estimator for probabilities, or else for labels."""

    def call(batch: Any) -> Any:
        flat = batch.flatten(1).numpy()
        if not hasattr(model, "predict_proba"):
            return model.predict(flat)
        scores = model.predict_proba(flat)
        # Its columns are the classes it has seen, sorted by itself: they can be fewer than those
        # of the data and in another order.
        codes = class_codes(np.asarray(model.classes_), truth, role)
        full = np.zeros((len(scores), len(truth.target_names)))
        full[:, codes] = scores
        return full

    return call


def _in_batches(
    call: Callable, about: Mapping[str, Any], role: str, test: GroupedDataset
) -> Answers:
    """Ask a function from a batch of inputs to scores, batch by batch."""
    import torch

    from fairlib.network.evaluation import passes

    parts = []
    for rows in passes(test, torch.device("cpu")):
        part = dense(role, call(test.batch(rows, dtype=torch.float32)))
        if part.ndim not in (1, 2):
            raise ValueError(
                f"{role} must give scores (N, C) or labels (N,) of a batch, it gives {part.shape}"
            )
        parts.append(part)
    return Answers(np.concatenate(parts), about)


def _notes_on_repetition(model: nn.Module, role: str, test: GroupedDataset) -> list[str]:
    """Ask a module about a few samples again, together and alone.

    A model that draws at random, or whose answer depends on who else is in the batch, has no
    accuracy of a group that another run would repeat.
    """
    import torch

    from fairlib.network.evaluation import evaluation_mode, placement

    device, dtype = placement(model)
    few = torch.arange(min(_ALONE, len(test)))

    def answers(batches: Sequence[torch.Tensor]) -> torch.Tensor:
        found = [model(test.batch(rows, dtype=dtype, device=device)) for rows in batches]
        return torch.cat(found).double().cpu()

    with evaluation_mode(model), torch.no_grad():
        first, second = answers([few]), answers([few])
        try:
            alone = answers(few.split(1))
        except (RuntimeError, ValueError):  # A model that takes no batch of one looks at it, too.
            alone = torch.full_like(first, float("nan"))
    who = f"the model {role} compression"
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
