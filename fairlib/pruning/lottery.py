"""The lottery ticket: iterative magnitude pruning, each round trained again from where the dense network began."""

import copy
from collections.abc import Mapping
from typing import Any

from torch import nn

from fairlib._validation import check_number
from fairlib.data import GroupedDataset
from fairlib.network import masks
from fairlib.network.memory import inherit, memory_of, remember, weights_at
from fairlib.pruning.selection import keep_highest, shrinking
from fairlib.randomness import seeded
from fairlib.training import fit


def lottery(
    model: nn.Module,
    *,
    sparsity: float,
    data: GroupedDataset,
    train: Mapping[str, Any],
    rewind: int = 0,
    rate: float = 0.2,
    seed: int = 0,
) -> nn.Module:
    r"""Prune by magnitude in rounds, rewinding weights *and* schedule before each training.

    With :math:`\theta_k` the weights after k steps of the dense training, round i = 1, 2, ... prunes the trained
    network by global magnitude to sparsity :math:`\min(s, 1 - (1 - r)^i)` (from a model pruned before, a share r of
    what it has left each round), sets the weights that are left back to
    :math:`\theta_k` - batch statistics too - and trains them to the end from step k on: with the learning rates of the
    dense training, and with its batches unless augmentation or dropout draw in between. The network that the last round
    has trained is given back; ``weights_at(it, rewind)`` is the ticket.

    Args:
        model: The trained dense network; left as it is. If ``fit(..., keep=rewind)`` trained it, its own weights at
            that step are rewound to, and it is what the first round prunes. If it kept no weights at all, every module
            is initialized anew by its ``reset_parameters``, from ``seed``, and trained densely first; of the model that
            leaves the architecture and the normalization of inputs.
        sparsity: Share of zeros among the prunable weights, in [0, 1).
        data: The training set.
        train: Arguments of :func:`fairlib.fit` of each training; those of the dense training.
        rewind: Step k: 0 is the initialization.
        rate: Share r of the weights left that each round prunes, in (0, 1).
        seed: Of the initialization and of each training (order of batches, augmentation).

    Returns:
        A trained masked copy in eval mode.

    Raises:
        ValueError: If ``rate`` or ``rewind`` is out of range, the model is already sparser than asked or kept the
            weights of other steps only, or it must be initialized anew and a module with parameters has no
            ``reset_parameters``.
        DivergenceError: If a training diverges.

    Source:
        Frankle, Carbin, The lottery ticket hypothesis (ICLR 2019); rewinding: Frankle et al., Linear mode connectivity
        and the lottery ticket hypothesis (ICML 2020).
    """
    check_number("rewind", rewind, 0, whole=True)
    settings = {"seed": seed, **train, "keep": rewind}
    trained = model if memory_of(model).kept else fit(_initialized(model, seed), data, **settings)
    start = weights_at(trained, rewind)
    for level in shrinking(sparsity, rate, start=masks.sparsity(trained)):
        scores = {name: weight.abs() for name, weight in masks.prunable(trained).items()}
        ticket = copy.deepcopy(trained)
        ticket.load_state_dict({**ticket.state_dict(), **start})
        inherit(ticket, trained)  # What led to the mask has gone into it.
        trained = fit(masks.apply(ticket, keep_highest(trained, scores, level)), data, start=rewind, **settings)
    return trained


def _initialized(model: nn.Module, seed: int) -> nn.Module:
    fresh = copy.deepcopy(model)
    with seeded(seed):
        for name, module in fresh.named_modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
            elif next(module.parameters(recurse=False), None) is not None:
                raise ValueError(
                    f"{name or type(module).__name__} has parameters but no reset_parameters to initialize them by; "
                    f"give a model that fairlib.fit(..., keep=...) has trained"
                )
    return remember(fresh, price=0)  # What the model had learned is gone.
