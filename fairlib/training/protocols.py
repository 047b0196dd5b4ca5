"""The places of the training loop where constraints, teachers and masks plug in.

- A *constraint* (:class:`Constraint`) turns the losses of a batch into what is minimized, and may act after each epoch.
- A *teacher* is an :class:`Objective`: per-sample losses from inputs, logits and targets, cross-entropy by default.
- *Masks* need no place: a masked weight has a masked gradient in any loop (:mod:`fairlib.network.masks`). Masks that
  change during a training come from a :class:`Sparsifier`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from fairlib.data import GroupedDataset


class Objective(Protocol):
    """What a sample's loss is: the place of a teacher."""

    def __call__(self, inputs: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
        """Losses ``(B,)`` of a batch, differentiable in ``logits`` ``(B, C)``."""
        ...


@dataclass(frozen=True)
class Batch:
    """One step's data, as the model saw it: ``inputs``, ``targets``, ``groups``, ``logits`` and ``losses`` ``(B,)``."""

    inputs: Tensor
    targets: Tensor
    groups: Tensor
    logits: Tensor
    losses: Tensor


class ConstraintRun(Protocol):
    """A constraint at work in one training: this is what holds state."""

    def loss(self, batch: Batch) -> Tensor:
        """The scalar to descend on, in place of ``batch.losses.mean()``."""
        ...

    def end_epoch(self) -> dict[str, float]:
        """Act after an epoch (a dual update, say); the numbers go into the history.

        One called ``"gradients"`` tells how many sample gradients the constraint took beside those of the losses.
        """
        ...


class Constraint(Protocol):
    """The settings of a constraint, without state."""

    def start(self, model: nn.Module, data: GroupedDataset, objective: Objective) -> ConstraintRun:
        """Begin a training of ``model``, which changes under way, on ``data``, which lies on the model's device."""
        ...

    def relative_to(self, dense: nn.Module, data: GroupedDataset) -> Constraint:
        """The constraint of a finetuning, where it counts from the model before compression; by default as it is."""
        return self


class Sparsifier(Protocol):
    """Masks that follow a training: what pruning plugs in when it goes on while the model trains."""

    def __call__(self, model: nn.Module, progress: float, /) -> Mapping[str, Tensor]:
        """Masks (see :mod:`fairlib.network.masks`) of the model after a share ``progress`` in (0, 1] of the epochs."""
        ...
