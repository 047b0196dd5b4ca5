"""What fairlib remembers of a module: how it was built and trained, and how many gradients went into it.

Nothing else knows where that is kept: in one attribute, which goes along with ``deepcopy`` and pickling, and which no
``state_dict`` holds. Weights that ``load_state_dict`` brings are weights of which nothing is remembered.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
from torch import Tensor, nn

_ATTRIBUTE = "_fairlib_memory"


@dataclass(frozen=True)
class TrainingMemory:
    """What is known of a module; what is not is None.

    Attributes:
        history: One row for each epoch of the last :func:`fairlib.fit`.
        kept: Step of that training to the ``state_dict`` after it.
        price: How many gradients of samples have gone into the module.
        recipe: The arguments of :func:`fairlib.build` that give the architecture.
        input_shape: Of one input, ``(C, H, W)`` or ``(D,)``.
    """

    history: Sequence[Mapping[str, float]] | None = None
    kept: Mapping[int, dict[str, Tensor]] = field(default_factory=dict)
    price: int | None = None
    recipe: Mapping[str, Any] | None = None
    input_shape: tuple[int, ...] | None = None


def memory_of(module: nn.Module) -> TrainingMemory:
    """What is known of a module; of one that fairlib has never met, nothing."""
    return getattr(module, _ATTRIBUTE, TrainingMemory())


def remember(module: nn.Module, **facts) -> nn.Module:
    """The module, changed in place: these attributes of its :class:`TrainingMemory` are replaced."""
    return inherit(module, module, **facts)


def inherit(module: nn.Module, source: nn.Module, **facts) -> nn.Module:
    """The module, changed in place: it remembers what another one does, with these attributes replaced."""
    if not hasattr(module, _ATTRIBUTE):
        module.register_load_state_dict_post_hook(_forget_training)
    setattr(module, _ATTRIBUTE, replace(memory_of(source), **facts))
    return module


def history(module: nn.Module) -> pd.DataFrame:
    """How the last :func:`fit` of a module went.

    Returns:
        Indexed by epoch (from 1): ``lr loss accuracy`` on the training batches as they were met; ``gradients``, how
        many gradients of samples the epoch took; under a constraint ``objective``, what was descended on, and what the
        constraint reports (violations, multipliers); ``val_loss val_accuracy`` after the epoch if there was a
        validation set.

    Raises:
        ValueError: If the module does not come from :func:`fit`, or ``load_state_dict`` gave it other weights since.
    """
    return pd.DataFrame(_history(module) or {"epoch": []}).set_index("epoch")


def gradient_evaluations(module: nn.Module) -> int | float:
    """How many gradients of samples have gone into a module: the price of a model, whatever the machine.

    One is a forward and a backward pass of one sample; what :func:`fit` took of a batch of 64 counts as 64. All
    trainings that led to the module count, the dense one too, with what their constraints took besides, and so do the
    scores of the pruning methods that are made of gradients. A product of the Hessian with a vector counts as two. What
    only evaluates counts nothing.

    Returns:
        NaN where the price is not known: of a module that :func:`build` did not make, also after :func:`fit`, whose
        own part is the column ``gradients`` of :func:`history`; and of one whose weights were loaded, by
        ``load_state_dict`` or :func:`restore`. ``fairlib.network.memory.remember(module, price=0)`` tells that nothing
        has gone into a module yet. What other loops than fairlib's train is not seen.
    """
    price = memory_of(module).price
    return math.nan if price is None else price


def add_gradients(module: nn.Module, count: float) -> nn.Module:
    """The module, changed in place: its :func:`fairlib.gradient_evaluations` are ``count`` more, if they are known."""
    price = memory_of(module).price
    return module if price is None else remember(module, price=price + int(count))


def weights_at(module: nn.Module, step: int) -> dict[str, Tensor]:
    """The ``state_dict`` that a module had after ``step`` optimizer steps of its last :func:`fit`.

    Raises:
        ValueError: If it was not kept by ``fit(..., keep=step)``; the message lists the steps that were.
    """
    _history(module)
    kept = memory_of(module).kept
    if step not in kept:
        raise ValueError(f"the weights at step {step} were not kept; kept: {sorted(kept) or 'none'} (fit's keep=)")
    return {name: tensor.clone() for name, tensor in kept[step].items()}


def extend_history(earlier: nn.Module, later: nn.Module) -> nn.Module:
    """The later module; its history begins with that of the earlier one, if it has one, and counts on from there.

    Raises:
        ValueError: If the later one does not come from :func:`fit`.
    """
    first = memory_of(earlier).history
    if not first:
        return later
    done = first[-1]["epoch"]
    return remember(later, history=[*first, *({**row, "epoch": row["epoch"] + done} for row in _history(later))])


def forget_history(module: nn.Module) -> nn.Module:
    """The module, changed in place, as if :func:`fit` had not trained it, but for its price."""
    return remember(module, history=None, kept={})


def _forget_training(module: nn.Module, *_: object) -> None:
    """Forget what the weights were made by; as a hook, after ``load_state_dict`` has brought others."""
    remember(module, history=None, kept={}, price=None)


def _history(module: nn.Module) -> Sequence[Mapping[str, float]]:
    found = memory_of(module).history
    if found is None:
        raise ValueError(f"this {type(module).__name__} was not trained by fairlib.fit, or has other weights since")
    return found
