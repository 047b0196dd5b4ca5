"""Distillation into a smaller network, the student, and the same student without its teacher."""

from typing import Any

from torch import nn

from fairlib._validation import check_number, lookup
from fairlib.data import GroupedDataset
from fairlib.models import build
from fairlib.network.memory import memory_of
from fairlib.training import fit
from fairlib.training.compressors import Kind, Method, Settings, check_positive_share
from fairlib.training.distillation import Distillation, check_distillation
from fairlib.training.loop import check_arguments, check_training


def distil(
    model: nn.Module,
    student: nn.Module | float,
    method: str = "logits",
    *,
    data: GroupedDataset,
    distillation: Settings | None = None,
    train: Settings | None = None,
    seed: int = 0,
) -> nn.Module:
    """Train a smaller network, the student, that follows a trained one, its teacher.

    Args:
        model: The teacher; not changed. It must do better than chance on ``data``.
        student: A module with its initial weights, not changed; or, for a model that
            :func:`fairlib.build` made, a width in (0, 1] by which the model's is multiplied.
        method: ``"logits"``: the objective is :class:`fairlib.training.distillation.Distillation`.
        data: The training set.
        distillation: Arguments of the objective: temperature and weights.
        train: Arguments of :func:`fairlib.fit`, such as ``constraint``; by default those of the
            function, with this ``seed``.
        seed: Seed of the student's initial weights and of its training.

    Returns:
        The trained student in eval mode. :func:`fairlib.history` is that of its training, and
        :func:`fairlib.gradient_evaluations` counts that alone, not the teacher's.

    Raises:
        ValueError: If the name is unknown, the student has as many parameters as its teacher, it is
            given by its width and the model was not made by :func:`fairlib.build` or has lost
            layers or channels since, or the teacher performs at chance.
        TypeError: If a setting is unknown, or an argument is of another type.

    Source:
        Hinton, Vinyals, Dean, Distilling the knowledge in a neural network (2015).

    Example:
        >>> import fairlib
        >>> digits = fairlib.load("digits").train
        >>> teacher = fairlib.fit(fairlib.build("mlp", like=digits), digits, epochs=5)
        >>> student = fairlib.distil(teacher, 0.25, data=digits, train={"epochs": 2})
        >>> [layer.out_features for layer in student.classifier if hasattr(layer, "out_features")]
        [16, 8, 10]
        >>> fairlib.gradient_evaluations(student) == 2 * len(digits)
        True
    """
    if method != "logits":
        raise ValueError(f"unknown distillation method {method!r}; known: logits")
    _check(method, train=train, distillation=distillation)
    check_arguments({"model": model, "data": data, "seed": seed})
    small = _untrained(model, student, seed)
    objective = Distillation(model, data, **(distillation or {}))
    return fit(small, data, objective=objective, **{"seed": seed, **(train or {})})


def _alone(
    model: nn.Module, student: float, *, data: GroupedDataset, train: Settings, seed: int
) -> nn.Module:
    """Train the student of the same initial weights on the same batches, by cross-entropy."""
    return fit(_untrained(model, student, seed), data, **{"seed": seed, **train})


def _untrained(model: nn.Module, student: nn.Module | float, seed: int) -> nn.Module:
    """Return the student with its initial weights.

    Raises:
        ValueError: If it is not smaller than the model, or the model's width cannot be changed.
    """
    if isinstance(student, nn.Module):
        small = student
    else:
        check_number("student", student, 0, 1, low_open=True, high_closed=True)
        recipe = memory_of(model).recipe
        if not recipe:
            why = "the model was not made by fairlib.build, or has lost layers or channels since"
            raise ValueError(
                f"the width {student} is of no architecture: {why}; give a module as student"
            )
        # The recipe of a student is that of its teacher, so a student of a student multiplies the
        # width that it had itself.
        small = build(**{**recipe, "width": student * recipe.get("width", 1.0)}, seed=seed)
    size, whole = (sum(p.numel() for p in each.parameters()) for each in (small, model))
    if size >= whole:
        raise ValueError(
            f"student must be smaller than its teacher: it has {size:,} parameters of {whole:,}"
        )
    return small


_TRAININGS = {
    "logits": Method(distil, takes=("data", "train", "seed")),
    "alone": Method(_alone, takes=("data", "train", "seed")),
}


def _check(name: str, *, train: Settings | None = None, **settings: Any) -> None:
    """Refuse a training of a student, or its settings, before anything is trained."""
    training = lookup("distillation method", name, _TRAININGS)
    training.check(f"distillation method {name!r}", settings)
    check_training("train=", train or {}, given=("objective",))
    check_distillation(settings.get("distillation"))


def _trained(model: nn.Module, name: str, *, width: float, **settings: Any) -> nn.Module:
    """Train the student of a study."""
    return _TRAININGS[name].function(model, width, **settings)


DISTILLATION = Kind(
    _trained,
    level="width",
    control=1.0,
    methods=_TRAININGS,
    check=_check,
    inherits=True,
    place=0,
    check_level=check_positive_share,
)
"""Students of a study: the level is their width as a share of the teacher's. ``"distil:alone"`` is
the student trained without its teacher."""
