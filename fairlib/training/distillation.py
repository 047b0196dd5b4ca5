"""Distillation: a trained teacher as the objective of :func:`fairlib.fit`."""

import copy
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div

from fairlib._validation import check_number, lookup
from fairlib.data import GroupedDataset
from fairlib.network.evaluation import placement, predict
from fairlib.network.stacking import Stack, form, obstacle
from fairlib.training.protocols import Objective


class UntrainedTeacherError(ValueError):
    """The teacher of a distillation performs at chance."""


@dataclass(frozen=True, eq=False)
class Distillation:
    r"""Per-sample losses of a student that also follows a teacher.

    With logits :math:`z` of the student and :math:`t` of the teacher, temperature :math:`T` and
    weights :math:`\alpha, \beta`,

    .. math::
        \ell = \alpha \, \mathrm{CE}(y, z)
             + \beta \, T^2 \, \mathrm{KL}\big(\mathrm{softmax}(t / T) \,\|\, \mathrm{softmax}(z /
             T)\big) .

    The divergence is summed over the classes, so that its mean over a batch is what torch calls
    ``batchmean``. The teacher is a copy, frozen and in eval mode, and records no gradient.

    Args:
        teacher: A trained classifier; it is not changed.
        data: Data on which the teacher must be better than chance, usually the training set.
        temperature: :math:`T`, positive. SNL and [D] use 4.
        weight: Weight :math:`\beta` of the divergence, at least 0.
        hard: Weight :math:`\alpha` of the cross-entropy with the true class, at least 0.
        reduction: ``"batchmean"``, or ``"elements"``: the mean over the classes instead of the sum,
            which divides the divergence by their number C; it is the value of torch's ``"mean"``,
            and the released code of [D] uses it.

    Raises:
        ValueError: If a setting is out of range or unknown, or the teacher's accuracy, averaged
            over the C classes that the data have, is below 1/C plus three standard errors, so that
            it cannot be told from guessing.
        FloatingPointError: If the teacher's outputs are NaN or infinite.

    Source:
        Hinton, Vinyals, Dean, Distilling the knowledge in a neural network (2015); SNL (2022) for
        the weights.

    Example:
        A student that answers as its teacher does is at its goal; an untrained one is not.

        >>> import torch, fairlib
        >>> from fairlib.training.distillation import Distillation
        >>> points = [[1.0], [-1.0]] * 20
        >>> data = fairlib.GroupedDataset(points, targets=[1, 0] * 20, groups=[0, 1] * 20)
        >>> teacher = torch.nn.Linear(1, 2, bias=False)
        >>> teacher.weight.data = torch.tensor([[-2.0], [2.0]])
        >>> objective = Distillation(teacher, data, hard=0.0)
        >>> inputs = data.batch(range(40))
        >>> bool(objective(inputs, teacher(inputs), data.targets).max() < 1e-6)
        True
        >>> bool(objective(inputs, torch.zeros(40, 2), data.targets).min() > 1)
        True
    """

    teacher: nn.Module
    data: GroupedDataset = field(repr=False)
    _: KW_ONLY
    temperature: float = 4.0
    weight: float = 1.0
    hard: float = 1.0
    reduction: str = "batchmean"

    def __post_init__(self) -> None:
        check_values(self.temperature, self.weight, self.hard, self.reduction)
        _refuse_chance(self.teacher, self.data)
        object.__setattr__(
            self, "teacher", copy.deepcopy(self.teacher).eval().requires_grad_(False)
        )

    def __call__(self, inputs: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the losses ``(B,)`` of a batch, differentiable in ``logits`` ``(B, C)``."""
        if placement(self.teacher)[0] != inputs.device:
            self.teacher.to(inputs.device)
        with torch.no_grad():
            wanted = self.teacher(inputs)
        return self.follow(wanted, logits, targets)

    def follow(self, wanted: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the losses ``(B,)`` of logits ``(B, C)`` where the teacher's are ``wanted``."""
        # The teacher may be of another precision than the student.
        wanted = wanted.to(logits.dtype) / self.temperature
        followed = (logits / self.temperature).log_softmax(1)
        divergence = kl_div(followed, wanted.log_softmax(1), reduction="none", log_target=True)
        divergence = divergence.sum(1) if self.reduction == "batchmean" else divergence.mean(1)
        hard = cross_entropy(logits, targets, reduction="none")
        return self.hard * hard + self.weight * self.temperature**2 * divergence


def joint_objective(objectives: Sequence[Objective]) -> Objective:
    """Join the objectives of k networks to one of all their samples.

    Returns:
        Per-sample losses of ``(k * B, ...)`` samples, the first network's first.
    """
    first: Any = objectives[0]
    if all(objective is first for objective in objectives):
        return first
    if stack := _stacked_teachers(objectives):

        def follow(inputs: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
            with torch.no_grad():
                wanted = stack.to(inputs.device)(inputs)
            return first.follow(wanted, logits, targets)

        return follow

    def each(inputs: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
        parts = [tensor.chunk(len(objectives)) for tensor in (inputs, logits, targets)]
        losses = [objective(*part) for objective, *part in zip(objectives, *parts, strict=True)]
        return torch.cat(losses)

    return each


def _stacked_teachers(objectives: Sequence[Any]) -> Stack | None:
    """Return the teachers as one network; None if they cannot be stacked or teach differently."""
    # Not isinstance: a subclass may have losses of another kind.
    if any(type(objective) is not Distillation for objective in objectives):
        return None
    values = [(o.temperature, o.weight, o.hard, o.reduction) for o in objectives]
    # A stack makes the tensors of its members views of its own. So the teachers are copied first:
    # each also teaches elsewhere, and its objective is part of the cache key.
    teachers = [copy.deepcopy(objective.teacher) for objective in objectives]
    alike = all(form(teacher) == form(teachers[0]) for teacher in teachers)
    if len(set(values)) > 1 or any(map(obstacle, teachers)) or not alike:
        return None
    return Stack(teachers, torch.channels_last).eval()


def check_values(
    temperature: float = 4.0, weight: float = 1.0, hard: float = 1.0, reduction: str = "batchmean"
) -> None:
    """Refuse settings of :class:`Distillation` before there is a teacher."""
    check_number("temperature", temperature, 0, low_open=True)
    check_number("weight", weight, 0)
    check_number("hard", hard, 0)
    lookup("reduction", reduction, dict.fromkeys(("batchmean", "elements")))


def _refuse_chance(teacher: nn.Module, data: GroupedDataset) -> None:
    correct, targets = predict(teacher, data).correct, data.targets.cpu().numpy()
    sizes = np.bincount(targets, minlength=data.num_classes)
    hits = np.bincount(targets, weights=correct, minlength=data.num_classes)
    present = sizes > 0
    # Averaged over the classes: by its plain accuracy a teacher that always names the largest class
    # would seem to know something.
    accuracy = (hits[present] / sizes[present]).mean()
    chance = 1 / present.sum()
    error = np.sqrt((chance * (1 - chance) / sizes[present]).sum()) / present.sum()
    if accuracy < chance + 3 * error:
        raise UntrainedTeacherError(
            f"the teacher performs at chance: its accuracy by class is {accuracy:.3f} on average, "
            f"guessing gives {chance:.3f} +- {error:.3f}; train it first"
        )
