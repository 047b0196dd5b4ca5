"""The lottery ticket: prune by magnitude in rounds, and rewind the weights before each training."""

from torch import nn

from fairlib._validation import check_number
from fairlib.data import GroupedDataset
from fairlib.network import masks
from fairlib.network.copying import copied
from fairlib.network.memory import inherit, memory_of, remember, weights_at
from fairlib.pruning.selection import keep_highest, shrinking
from fairlib.randomness import seeded
from fairlib.training import LoopSettings, Training, carry_out, fit
from fairlib.training.compressors import Settings


def lottery(
    model: nn.Module,
    *,
    sparsity: float,
    data: GroupedDataset,
    train: Settings,
    rewind: int = 0,
    rate: float = 0.2,
    seed: int = 0,
) -> nn.Module:
    r"""Prune by magnitude in rounds, rewinding weights *and* schedule before each training.

    Let :math:`\theta_k` be the weights after k steps of the dense training. Round i = 1, 2, ...
    prunes the trained network by global magnitude to sparsity :math:`\min(s, 1 - (1 - r)^i)` (each
    round a share r of the weights left, if the model was pruned before), sets the weights that are
    left and the batch statistics back to those of step k, and trains from step k to the end: with
    the learning rates of the dense training, and with its batches unless augmentation or dropout
    use random numbers in between.

    Args:
        model: The trained dense network; not changed. If ``fit(..., keep=rewind)`` trained it, the
            first round prunes it, and its weights at that step are the ones restored. If it kept
            the weights of no step, every module is initialized anew by its ``reset_parameters``,
            from ``seed``, and trained densely first; then only the model's architecture and its
            normalization of inputs matter.
        sparsity: Share of zeros among the prunable weights, in [0, 1).
        data: The training set.
        train: Arguments of :func:`fairlib.fit` for each training; should be those of the dense
            training.
        rewind: Step k to go back to; 0 is the initialization.
        rate: Share r of the weights left that each round prunes, in (0, 1).
        seed: Seed of the initialization and of each training (order of batches, augmentation).

    Returns:
        The masked copy that the last round has trained, in eval mode; ``fairlib.weights_at(it,
        rewind)`` is the ticket.

    Raises:
        ValueError: If ``rate`` or ``rewind`` is out of range, the model is already sparser than
            asked, it kept weights but not those of step ``rewind``, or it must be initialized anew
            and a module with parameters has no ``reset_parameters``.
        DivergenceError: If a training diverges.

    Source:
        Frankle, Carbin, The lottery ticket hypothesis (ICLR 2019); rewinding: Frankle et al.,
        Linear mode connectivity and the lottery ticket hypothesis (ICML 2020).
    """
    check_number("rewind", rewind, 0, whole=True)
    settings = {"seed": seed, **train, "keep": rewind}
    trained = (
        model if memory_of(model).snapshots else fit(_initialized(model, seed), data, **settings)
    )
    start = weights_at(trained, rewind)
    for level in shrinking(sparsity, rate, start=masks.sparsity(trained)):
        scores = {name: weight.abs() for name, weight in masks.prunable(trained).items()}
        ticket = copied(trained)
        # Weights, biases and batch statistics of step k, and with start= the learning rates and
        # batches from there on. Rewinding the weights alone would train them with the small
        # learning rates of the end of the schedule: another method, "finetuning".
        ticket.load_state_dict({**ticket.state_dict(), **start})
        # Loading a state makes a network forget how it was trained. The mask has cost all trainings
        # so far, and the ticket goes on counting gradients from there.
        inherit(ticket, trained)
        masked = masks.with_masks(ticket, keep_highest(trained, scores, level))
        trained = carry_out(Training(masked, data, settings, LoopSettings(start=rewind)))
    return trained


def _initialized(model: nn.Module, seed: int) -> nn.Module:
    """Copy a model with new random weights, which forgets its training."""
    fresh = copied(model)
    with seeded(seed):
        for name, module in fresh.named_modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
            elif next(module.parameters(recurse=False), None) is not None:
                raise ValueError(
                    f"{name or type(module).__name__} has parameters but no reset_parameters to "
                    "initialize them by; give a model that fairlib.fit(..., keep=...) has trained"
                )
    return remember(fresh, price=0)
