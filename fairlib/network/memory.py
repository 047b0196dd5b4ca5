"""Memory of a module: how it was built and trained, and how many gradients went into it.

The memory is one attribute of the module, which only this file knows. ``deepcopy`` and pickling
copy it, no ``state_dict`` holds it, and ``load_state_dict`` deletes its part about the weights.
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
    """Facts about a module; those that are unknown are None.

    Attributes:
        history: One row for each epoch of the last :func:`fairlib.fit`.
        snapshots: Number of optimizer steps of the last :func:`fairlib.fit` to the ``state_dict``
            after them.
        price: Number of gradients of samples that have gone into the module.
        recipe: The arguments of :func:`fairlib.build` that give the architecture.
        input_shape: Shape of one input, ``(C, H, W)`` or ``(D,)``.
        timing: ``seconds`` of the last :func:`fairlib.fit`, and ``dual_seconds`` of them that a
            constraint spent between epochs; empty if it was read from the cache.
    """

    history: Sequence[Mapping[str, float]] | None = None
    snapshots: Mapping[int, dict[str, Tensor]] = field(default_factory=dict)
    price: int | None = None
    recipe: Mapping[str, Any] | None = None
    input_shape: tuple[int, ...] | None = None
    timing: Mapping[str, float] = field(default_factory=dict)


def memory_of(module: nn.Module) -> TrainingMemory:
    """Return the memory of a module, an empty one if fairlib has never met it."""
    return getattr(module, _ATTRIBUTE, TrainingMemory())


def remember(module: nn.Module, **facts) -> nn.Module:
    """Replace attributes of a module's memory, in place, and return the module."""
    return inherit(module, module, **facts)


def inherit(module: nn.Module, source: nn.Module, **facts) -> nn.Module:
    """Copy the memory of another module, with some attributes replaced; return the module.

    Args:
        module: Module that gets the memory, in place.
        source: Module whose memory is copied.
        **facts: Attributes of :class:`TrainingMemory` that replace those of the source.
    """
    # Registered once: a copy of a module has the hook of its original, as it has its memory.
    # Without the hook, weights loaded by hand would pass for those whose history is known.
    if not hasattr(module, _ATTRIBUTE):
        module.register_load_state_dict_post_hook(_forget_training)
    setattr(module, _ATTRIBUTE, replace(memory_of(source), **facts))
    return module


def history(module: nn.Module) -> pd.DataFrame:
    """Tabulate how the last :func:`fit` of a module went.

    Returns:
        Indexed by epoch (from 1). ``lr``: the learning rate of the first step. ``loss`` and
        ``accuracy``: means over the training samples, each before the step of its batch.
        ``gradients``: the number of gradients of samples that the epoch took. Under a constraint
        also ``objective``, the mean of the minimized values, and the reports of the constraint
        (violations, multipliers). With a validation set also ``val_loss`` and ``val_accuracy`` on
        it after the epoch, the loss in nats.

    Raises:
        ValueError: If the module does not come from :func:`fit`, or ``load_state_dict`` gave it
            other weights since.

    Example:
        >>> import torch, fairlib
        >>> codes, model = [0] * 9 + [1], torch.nn.Linear(1, 2)
        >>> names = ["many", "few"]
        >>> data = fairlib.GroupedDataset(torch.zeros(10, 1), codes, codes, group_names=names)
        >>> settings = dict(epochs=30, lr=0.5, constraint=fairlib.EqualLoss(step=0.1))
        >>> fair = fairlib.fit(model, data, **settings)
        >>> curves = fairlib.history(fair)
        >>> list(curves)[-4:]
        ['violation[many]', 'violation[few]', 'multiplier[many]', 'multiplier[few]']
        >>> len(curves), bool(curves["multiplier[few]"].is_monotonic_increasing)
        (30, True)
    """
    return pd.DataFrame(_history(module) or {"epoch": []}).set_index("epoch")


def gradient_evaluations(module: nn.Module) -> int | float:
    """Count the gradients of samples that have gone into a module: its price on any machine.

    One gradient is a forward and a backward pass of one sample: a step of :func:`fit` on a batch of
    64 counts as 64. All trainings that led to the module count, the dense one and the extra
    gradients of constraints included, and so do gradients that a pruning method computes for its
    scores. A product of the Hessian with a vector counts as two, an evaluation as nothing. Training
    by other loops than fairlib's is not seen.

    Returns:
        The number; NaN where it is not known: for a module that :func:`build` did not make,
        also after :func:`fit` (whose own number is the column ``gradients`` of :func:`history`),
        and for one whose weights were loaded, by ``load_state_dict`` or :func:`restore`. Call
        ``fairlib.network.memory.remember(module, price=0)`` on a module of your own into which
        nothing has gone yet.

    Example:
        >>> import fairlib
        >>> digits = fairlib.load("digits").train
        >>> dense = fairlib.fit(fairlib.build("mlp", like=digits), digits, epochs=2)
        >>> fairlib.gradient_evaluations(dense) == 2 * len(digits)
        True
        >>> pruned = fairlib.prune(dense, "magnitude", sparsity=0.9)  # It needs no gradient.
        >>> tuned = fairlib.fit(pruned, digits, epochs=1)
        >>> fairlib.gradient_evaluations(tuned) == 3 * len(digits)
        True
    """
    price = memory_of(module).price
    return math.nan if price is None else price


def add_gradients(module: nn.Module, count: float) -> nn.Module:
    """Add to the number of gradients of a module, if it is known, in place; return the module."""
    price = memory_of(module).price
    return module if price is None else remember(module, price=price + int(count))


def weights_at(module: nn.Module, step: int) -> dict[str, Tensor]:
    """Return the ``state_dict`` that a module had after some steps of its last :func:`fit`.

    Args:
        module: The trained module.
        step: Number of optimizer steps.

    Returns:
        A copy of it.

    Raises:
        ValueError: If it was not kept by ``fit(..., keep=step)``; the message lists the steps that
            were kept.

    Example:
        >>> import torch, fairlib
        >>> data = fairlib.GroupedDataset(torch.zeros(10, 1), [0] * 9 + [1], [0] * 9 + [1])
        >>> model = torch.nn.Linear(1, 2)
        >>> trained = fairlib.fit(model, data, epochs=3, keep=[0, 2])  # 3 steps
        >>> torch.equal(fairlib.weights_at(trained, 0)["bias"], model.bias)
        True
        >>> early = fairlib.restore(model, fairlib.weights_at(trained, 2))
        >>> torch.equal(early.bias, trained.bias)
        False
    """
    _history(module)
    kept = memory_of(module).snapshots
    if step not in kept:
        raise ValueError(
            f"the weights at step {step} were not kept; kept: {sorted(kept) or 'none'} "
            "(fit's keep=)"
        )
    return {name: tensor.clone() for name, tensor in kept[step].items()}


def extend_history(earlier: nn.Module, later: nn.Module) -> nn.Module:
    """Put the history of an earlier module before that of a later one, in place.

    The later one's epochs count on from there.

    Returns:
        The later module; unchanged where the earlier one has no history.

    Raises:
        ValueError: If the later module does not come from :func:`fit`.
    """
    first = memory_of(earlier).history
    if not first:
        return later
    done = first[-1]["epoch"]
    return remember(
        later, history=[*first, *({**row, "epoch": row["epoch"] + done} for row in _history(later))]
    )


def forget_history(module: nn.Module) -> nn.Module:
    """Forget the training of a module, but not its price, in place; return the module."""
    return remember(module, history=None, snapshots={}, timing={})


def _forget_training(module: nn.Module, *_: object) -> None:
    """Forget how the weights came about: a hook that runs after ``load_state_dict``."""
    remember(module, history=None, snapshots={}, price=None, timing={})


def _history(module: nn.Module) -> Sequence[Mapping[str, float]]:
    found = memory_of(module).history
    if found is None:
        raise ValueError(
            f"this {type(module).__name__} was not trained by fairlib.fit, "
            "or has other weights since"
        )
    return found
