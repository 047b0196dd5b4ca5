"""What a module remembers of its trainings: history, kept weights, and how many gradients went into it."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
from torch import Tensor, nn


@dataclass(frozen=True)
class TrainingRecord:
    """What a fitted module remembers of its training."""

    history: list[dict[str, float]]
    kept: dict[int, dict[str, Tensor]]


def history(module: nn.Module) -> pd.DataFrame:
    """How the last :func:`fit` of a module went.

    Returns:
        Indexed by epoch (from 1): ``lr loss accuracy`` on the training batches as they were met; ``gradients``, how
        many gradients of samples the epoch took; under a constraint ``objective``, what was descended on, and what the
        constraint reports (violations, multipliers); ``val_loss val_accuracy`` after the epoch if there was a
        validation set.

    Raises:
        ValueError: If the module does not come from :func:`fit`.
    """
    return pd.DataFrame(_record(module).history or {"epoch": []}).set_index("epoch")


def gradient_evaluations(module: nn.Module) -> int:
    """How many gradients of samples have gone into a module: the price of a model, whatever the machine.

    One is a forward and a backward pass of one sample; what :func:`fit` took of a batch of 64 counts as 64. All
    trainings that led to the module count, the dense one too, with what their constraints took besides, and so do the
    scores of the pruning methods that are made of gradients. A product of the Hessian with a vector counts as two. What
    only evaluates counts nothing, and what did not come from fairlib is not known.
    """
    return getattr(module, "_fairlib_gradients", 0)


def add_gradients(module: nn.Module, count: float) -> nn.Module:
    """The module, changed in place: its :func:`fairlib.gradient_evaluations` are ``count`` more."""
    module._fairlib_gradients = gradient_evaluations(module) + int(count)
    return module


def weights_at(module: nn.Module, step: int) -> dict[str, Tensor]:
    """The ``state_dict`` that a module had after ``step`` optimizer steps of its last :func:`fit`.

    Raises:
        ValueError: If it was not kept by ``fit(..., keep=step)``; the message lists the steps that were.
    """
    kept = _record(module).kept
    if step not in kept:
        raise ValueError(f"the weights at step {step} were not kept; kept: {sorted(kept) or 'none'} (fit's keep=)")
    return {name: tensor.clone() for name, tensor in kept[step].items()}


def steps_kept(module: nn.Module) -> list[int]:
    """The steps of its last :func:`fit` for which :func:`weights_at` has the weights of a module, ascending."""
    record = getattr(module, "_fairlib_training", None)
    return [] if record is None else sorted(record.kept)


def extend_history(earlier: nn.Module, later: nn.Module) -> nn.Module:
    """The later module; its history begins with that of the earlier one, if it has one, and counts on from there.

    Raises:
        ValueError: If the later one does not come from :func:`fit`.
    """
    record = getattr(earlier, "_fairlib_training", None)
    if record is None or not record.history:
        return later
    first, second, done = record.history, _record(later), record.history[-1]["epoch"]
    rows = first + [row | {"epoch": row["epoch"] + done} for row in second.history]
    later._fairlib_training = TrainingRecord(rows, second.kept)
    return later


def forget_history(module: nn.Module) -> nn.Module:
    """The module, changed in place, as if :func:`fit` had not trained it."""
    module.__dict__.pop("_fairlib_training", None)
    return module


def _record(module: nn.Module) -> TrainingRecord:
    record = getattr(module, "_fairlib_training", None)
    if record is None:
        raise ValueError(f"this {type(module).__name__} was not trained by fairlib.fit")
    return record
