"""What can be asked: torch modules, ONNX files, estimators of scikit-learn and functions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairlib.auditing.predictions import (
    Predictions,
    Samples,
    array,
    from_labels,
    from_scores,
    is_scores,
    samples_of,
)

if TYPE_CHECKING:
    from torch import nn

    from fairlib.data import GroupedDataset

_ALONE = 4  # Samples that a model is asked about again, alone.


def predictions(
    model: Any, test: GroupedDataset, role: str, *, scores: str = "auto", seed: int = 0
) -> Predictions:
    """Ask a model about every sample of a data set, or read what it said.

    Args: model: Torch module, path of an ONNX file, estimator of scikit-learn, function from a
        batch of inputs to
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
        raise TypeError(
            f"{role} must be {_AUDITABLE}, got {type(model).__name__}: give an instance, not the class"
        )
    if "torch" in sys.modules and isinstance(model, sys.modules["torch"].nn.Module):
        return _from_module(model, test, samples, role, scores, seed)
    if isinstance(model, str | Path):
        from fairlib.auditing.onnx import session

        call, about = session(model)
    elif hasattr(model, "predict_proba") or hasattr(model, "predict"):
        call, about = _estimator(model, samples, role), {"model": type(model).__name__}
    elif is_scores(model):
        about = {"model": f"scores {np.shape(model)}"}
        return replace(from_scores(model, samples, role, scores=scores), about=about)
    elif callable(model):
        call, about = model, {"model": getattr(model, "__qualname__", type(model).__name__)}
    else:
        hint = (
            ": put a state_dict into a module first (fairlib.restore)"
            if isinstance(model, Mapping)
            else ""
        )
        raise TypeError(f"{role} must be {_AUDITABLE}, got {type(model).__name__}{hint}")
    found = _called(call, test, role)
    return replace(from_scores(found, samples, role, scores=scores, strict=False), about=about)


_AUDITABLE = (
    "a torch module, the path of an ONNX file, an estimator of scikit-learn, a function from a batch to scores, or "
    "logits, probabilities or labels with one row a sample"
)


def _from_module(
    model: nn.Module, test: GroupedDataset, samples: Samples, role: str, scores: str, seed: int
) -> Predictions:
    """Ask a torch module, and whether it answers twice alike; what it changed in its buffers is put
    back."""
    import torch

    from fairlib.network.evaluation import evaluation_mode, outputs, placement

    device, dtype = placement(model)
    notes: list[str] = []
    with held(model, role, seed, notes):
        try:
            found = outputs(model, test)
        except RuntimeError as error:
            shape = tuple(test.inputs.shape[1:])
            raise ValueError(
                f"{role} does not take inputs {shape} of the test set: {error}"
            ) from error
        few = torch.arange(min(_ALONE, len(test)))

        def asked(parts: Sequence[Any]) -> Any:
            return (
                torch.cat([model(test.batch(rows, dtype=dtype, device=device)) for rows in parts])
                .double()
                .cpu()
            )

        with evaluation_mode(model), torch.inference_mode():
            first, second = asked([few]), asked([few])
            try:
                alone = asked(few.split(1))
            except (RuntimeError, ValueError):  # It takes no batch of one.
                alone = torch.full_like(first, float("nan"))
        if not torch.allclose(first, second, rtol=1e-3, atol=1e-5):
            notes.append(
                f"the model {role} compression draws at random: it answers the same samples differently"
            )
        elif not torch.allclose(first, alone, rtol=1e-2, atol=1e-4):
            notes.append(
                f"the model {role} compression looks at its batch: it answers a sample alone differently"
            )
    said = from_scores(found.numpy(), samples, role, scores=scores, strict=False)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    about = {"model": type(model).__name__, "parameters": parameters}
    return replace(said, about=about, notes=(*said.notes, *notes))


@contextmanager
def held(model: nn.Module, role: str, seed: int, notes: list[str]) -> Iterator[None]:
    """Hold what a model changes: its buffers are put back, with a note, and so are the random
    generators.

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
        changed = [
            name
            for name, buffer in model.named_buffers()
            if not torch.equal(buffer, before.get(name, buffer))
        ]
        with torch.no_grad():
            for name in changed:
                model.get_buffer(name).copy_(before[name])
        note = f"the model {role} compression changed its buffers ({', '.join(changed)}): they were put back"
        notes.extend([note] if changed and note not in notes else [])


def _called(call: Callable, test: GroupedDataset, role: str) -> np.ndarray:
    """Call a function batch by batch."""
    import torch

    from fairlib.network.evaluation import passes

    parts = [
        array(call(test.batch(rows, dtype=torch.float32)))
        for rows in passes(test, torch.device("cpu"))
    ]
    if any(part.ndim == 0 or part.ndim > 2 for part in parts):
        raise ValueError(
            f"{role} must give scores (N, C) or labels (N,) of a batch, it gives {parts[0].shape}"
        )
    return np.concatenate(parts)


def _estimator(model: Any, samples: Samples, role: str) -> Callable:
    """An estimator as a function of a batch; its classes are those of the data, by name or by
    code."""

    def call(batch: Any) -> Any:
        flat = batch.flatten(1).numpy()
        if not hasattr(model, "predict_proba"):
            return model.predict(flat)
        scores = model.predict_proba(flat)
        codes = from_labels(
            np.asarray(model.classes_), replace(samples, targets=np.arange(len(scores[0]))), role
        )
        whole = np.zeros((len(scores), len(samples.target_names)))
        whole[:, codes.labels] = scores
        return whole

    return call
