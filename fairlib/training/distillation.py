"""Distillation: a trained teacher as the objective of :func:`fairlib.fit`."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div

from fairlib._validation import check_number, check_settings, lookup
from fairlib.data import GroupedDataset
from fairlib.network.copying import copied
from fairlib.network.evaluation import predict
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
            which divides the divergence by their number C; it is what torch's ``"mean"`` computes,
            and the released code of [D] uses.

    Raises:
        ValueError: If a setting is out of range or unknown, or the teacher's accuracy, averaged
            over the C classes that the data have, is below 1/C plus three standard errors, so that
            it cannot be told from guessing (``UntrainedTeacherError``).
        FloatingPointError: If the teacher's outputs are NaN or infinite.

    Source:
        Hinton, Vinyals, Dean, Distilling the knowledge in a neural network (2015); SNL (2022) for
        the weights.

    Example:
        A student that answers as its teacher does is at its goal; an untrained one is not.

        >>> import torch, fairlib
        >>> from fairlib.training.distillation import Distillation
        >>> inputs = [[1.0], [-1.0]] * 20
        >>> data = fairlib.GroupedDataset(inputs, targets=[1, 0] * 20, groups=[0, 1] * 20)
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
        settings = {k: value for k, value in vars(self).items() if k not in ("teacher", "data")}
        check_distillation(settings)
        _refuse_chance(self.teacher, self.data)
        teacher = copied(self.teacher).eval().requires_grad_(False)
        object.__setattr__(self, "teacher", teacher)

    def __call__(self, inputs: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the losses ``(B,)`` of a batch, differentiable in ``logits`` ``(B, C)``."""
        # The teacher was copied where its model was; the training may be on a GPU.
        with torch.no_grad():
            wanted = self.teacher.to(inputs.device)(inputs)
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
    stack = _stacked_teachers(objectives)
    if stack is not None:
        # A copy, not a replace(): a new Distillation would judge the stack, which is no classifier
        # of one batch, on the data of the first.
        joint = copy.copy(first)
        object.__setattr__(joint, "teacher", stack)
        return joint

    def losses(inputs: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
        batch = (tensor.chunk(len(objectives)) for tensor in (inputs, logits, targets))
        return torch.cat([own(*part) for own, *part in zip(objectives, *batch, strict=True)])

    return losses


def _stacked_teachers(objectives: Sequence[Any]) -> Stack | None:
    """Stack the teachers of distillations that differ in nothing else; None if they cannot be."""
    # The text of a distillation holds its numbers and the modules of its teacher.
    if type(objectives[0]) is not Distillation or len(set(map(repr, objectives))) > 1:
        return None
    teachers = [copied(objective.teacher) for objective in objectives]
    if any(obstacle(each) or form(each) != form(teachers[0]) for each in teachers):
        return None
    return Stack(teachers).eval()


def check_distillation(settings: Mapping[str, Any] | None) -> None:
    """Refuse settings of :class:`Distillation` before there is a teacher.

    Raises:
        TypeError: If a setting is unknown.
        ValueError: If a value is out of range or unknown.
    """
    given = settings or {}
    check_settings("distillation=", Distillation, given, given=("teacher", "data"))
    for name, value in given.items():
        if name == "reduction":
            lookup(name, value, dict.fromkeys(("batchmean", "elements")))
        else:
            check_number(name, value, 0, low_open=name == "temperature")


def _refuse_chance(teacher: nn.Module, data: GroupedDataset) -> None:
    # Accuracy over all samples would let a teacher pass that always gives the largest class; its
    # mean over the classes is 1/C for that one and for any other that does not look at its input.
    # The error is that of such a mean, each class a binomial share of its own number of samples.
    correct = pd.Series(predict(teacher, data).correct)
    classes = correct.groupby(data.targets.cpu().numpy()).agg(["mean", "size"])
    accuracy, chance = classes["mean"].mean(), 1 / len(classes)
    error = chance * np.sqrt((chance * (1 - chance) / classes["size"]).sum())
    if accuracy < chance + 3 * error:
        raise UntrainedTeacherError(
            f"the teacher performs at chance: its accuracy by class is {accuracy:.3f} on average, "
            f"guessing gives {chance:.3f} +- {error:.3f}; train it first"
        )
