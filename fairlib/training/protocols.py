"""The places of the training loop where constraints, teachers and masks plug in.

- A *constraint* (:class:`Constraint`) turns the losses of a batch into what is minimized, and may
  act after each epoch.
- A *teacher* is an :class:`Objective`: per-sample losses from inputs, logits and targets,
  cross-entropy by default.
- *Masks* need no place: a masked weight has a masked gradient in any loop
  (:mod:`fairlib.network.masks`). Masks that change during a training come from a
  :class:`Sparsifier`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor, nn

from fairlib.data import GroupedDataset


class Objective(Protocol):
    """Per-sample losses, cross-entropy by default; a teacher plugs in here."""

    def __call__(self, inputs: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
        """Losses ``(B,)`` of a batch, differentiable in ``logits`` ``(B, C)``."""


@dataclass(frozen=True)
class Batch:
    """A batch of B samples as the model saw it in one step.

    Attributes:
        inputs: ``(B, C, H, W)`` or ``(B, D)``, augmented, in the dtype of the model.
        targets: int64 ``(B,)``.
        groups: int64 codes ``(B,)``.
        logits: ``(B, C)`` over C classes.
        losses: Per-sample objective ``(B,)``, differentiable in the logits.
    """

    inputs: Tensor
    targets: Tensor
    groups: Tensor
    logits: Tensor
    losses: Tensor


class ConstraintRun(Protocol):
    """The state of a constraint during one training."""

    def loss(self, batch: Batch) -> Tensor:
        """Return the scalar to descend on, in place of ``batch.losses.mean()``."""

    def end_epoch(self) -> dict[str, float]:
        """Act after an epoch, for example by a dual update, and return numbers by name for the
        history.

        ``"gradients"`` among them is the number of per-sample gradients that the constraint took
        itself."""


class Constraint(Protocol):
    """The settings of a constraint, without state: what :func:`fairlib.fit` takes as
    ``constraint``.

    Attributes:
        by_batch: Whether its :meth:`ConstraintRun.loss` computes from the batch alone, never from
            the model, so that several networks can be trained at once (:func:`fairlib.fit_many`). A
            subclass must say so itself.
        by_tensors: Whether it computes from tensors alone, those of the model too, and changes its
            own in place, so that a GPU can repeat its kernels (:mod:`fairlib.training.slots`). Only
            constraints of fairlib are repeated.
    """

    by_batch: ClassVar[bool] = False
    by_tensors: ClassVar[bool] = False

    def start(self, model: nn.Module, data: GroupedDataset, objective: Objective) -> ConstraintRun:
        """Begin a training.

        Args:
            model: The model that is trained; its weights change from step to step.
            data: Training set, on the model's device.
            objective: Per-sample losses of the training.
        """

    def relative_to(self, dense: nn.Module, data: GroupedDataset) -> Constraint:
        """Return the constraint for finetuning after compression; by default the constraint itself.

        Args:
            dense: The model before compression, which the constraint may compare with.
            data: Training set.
        """
        return self


class Sparsifier(Protocol):
    """Masks that change while a model trains."""

    def __call__(self, model: nn.Module, progress: float, /) -> Mapping[str, Tensor]:
        """Return the masks (:mod:`fairlib.network.masks`) for a share ``progress``, in (0, 1], of
        the epochs done."""
