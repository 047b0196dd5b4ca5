"""Distillation into a smaller network. :func:`distil` calls the methods by name.

>>> from fairlib.distillation import METHODS
>>> list(METHODS)
['logits', 'alone']
"""

from typing import Any

from torch import nn

from fairlib._validation import check_number, check_settings, lookup, name_and_settings
from fairlib.data import GroupedDataset
from fairlib.models import MODELS, build
from fairlib.network.memory import memory_of
from fairlib.training import Constraint, fit
from fairlib.training.compressors import Compressor, Method, Settings
from fairlib.training.distillation import Distillation, check_values
from fairlib.training.loop import check_arguments, check_training

__all__ = ["METHODS", "Distilling", "check", "distil"]

Architecture = (
    str | tuple[str, Settings] | None
)  # The name of an architecture, or its name and settings.


def logits(
    model: nn.Module,
    *,
    student: nn.Module,
    data: GroupedDataset,
    train: Settings,
    distillation: Settings | None = None,
) -> nn.Module:
    """Train a student by :class:`fairlib.training.distillation.Distillation` from a model, its
    teacher.

    Args:
        model: The teacher.
        student: A module with its initial weights; not changed.
        data: The training set.
        train: Arguments of :func:`fairlib.fit`.
        distillation: Arguments of the objective: temperature and weights.

    Source:
        Hinton, Vinyals, Dean, Distilling the knowledge in a neural network (2015).
    """
    return fit(student, data, objective=Distillation(model, data, **(distillation or {})), **train)


def alone(
    model: nn.Module, *, student: nn.Module, data: GroupedDataset, train: Settings
) -> nn.Module:
    """Train a student by cross-entropy, without its teacher: what :func:`logits` is to be compared
    with."""
    return fit(student, data, **train)


METHODS = {
    function.__name__: Method(function, takes=("data", "train")) for function in (logits, alone)
}


def distil(
    model: nn.Module,
    student: nn.Module | float,
    *,
    data: GroupedDataset,
    method: str = "logits",
    architecture: Architecture = None,
    train: Settings | None = None,
    constraint: Constraint | None = None,
    seed: int = 0,
    **settings,
) -> nn.Module:
    """Train a smaller network, the student, that follows a trained one, its teacher.

    Both methods start from the same weights and see the same batches: what they differ by is what
    the teacher does.

    Args: model: The teacher; not changed. By ``"logits"`` it must do better than chance on
        ``data``. student: A module with its initial weights, not changed; or, of a model that
        :func:`fairlib.build` made, a width
            in (0, 1] by which the model's own is multiplied.
        data: The training set.
        method: ``"logits"``, or ``"alone"``: the same student trained by cross-entropy, without its
            teacher.
        architecture: Name of another architecture than the model's for a student that is given by
            its width, or the name and settings: ``"resnet10"``.
        train: Arguments of :func:`fairlib.fit`, which also replace ``seed`` and ``constraint``.
        constraint: Constraint of the training, such as ``EqualLoss(step=mu)``.
        seed: Seed of the student's initial weights and of its training.
        **settings: Further arguments of the method: of ``"logits"`` it is ``distillation``, the
            arguments of :class:`fairlib.training.distillation.Distillation`.

    Returns:
        The trained student in eval mode. :func:`fairlib.history` is that of its training, and
        :func:`fairlib.gradient_evaluations` counts that alone, not the teacher's.

    Raises: ValueError: If the name is unknown, the student has as many parameters as its teacher,
        or it is given by its
            width and the model was not made by :func:`fairlib.build` or has lost layers or channels
            since; or if the teacher performs at chance.
        TypeError: If a setting is unknown, or an argument is of another type.

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
    check(method, architecture=architecture, train=train, **settings)
    check_arguments({"model": model, "data": data, "constraint": constraint, "seed": seed})
    small = _student(model, student, architecture, seed)
    sizes = [sum(parameter.numel() for parameter in each.parameters()) for each in (small, model)]
    if sizes[0] >= sizes[1]:
        raise ValueError(
            f"student must be smaller than its teacher: it has {sizes[0]:,} parameters of {sizes[1]:,}"
        )
    trained = {"seed": seed, "constraint": constraint, **(train or {})}
    return METHODS[method].function(model, student=small, data=data, train=trained, **settings)


def check(
    method: str, *, architecture: Architecture = None, train: Settings | None = None, **settings
) -> None:
    """Check the arguments of :func:`distil` before anything is trained.

    Raises:
        ValueError: If a name is unknown, or a value is out of range.
        TypeError: If a setting is unknown.
    """
    lookup("distillation method", method, METHODS).check(
        f"distillation method {method!r}", settings, level="student"
    )
    if architecture is not None:
        name, own = name_and_settings("architecture", architecture)
        check_settings(f"architecture {name!r}", lookup("architecture", name, MODELS), own)
    check_training("train=", train or {}, given=("objective", "start"))
    check_settings(
        "distillation=", Distillation, settings.get("distillation") or {}, given=("teacher", "data")
    )
    check_values(**(settings.get("distillation") or {}))


class Distilling(Compressor):
    """Distillation, for a study: the level is the student's width, and ``kept`` the share of
    bytes."""

    level, control, inherits, place, methods = "width", 1.0, True, 0, METHODS

    def check(self, name: str, **settings: Any) -> None:
        check(name, **settings)

    def is_control(self, level: float, settings: Settings) -> bool:
        return level == self.control and not settings.get("architecture")

    def check_level(self, name: str, level: float) -> None:
        check_number("levels", level, 0, 1, low_open=True, high_closed=True)

    def compress(self, model: nn.Module, name: str, level: float, **settings: Any) -> nn.Module:
        return distil(model, level, method=name, **settings)


def _student(
    model: nn.Module, student: nn.Module | float, architecture: Architecture, seed: int
) -> nn.Module:
    """The student with its initial weights."""
    if isinstance(student, nn.Module):
        if architecture is not None:
            raise ValueError(
                f"{architecture=} is for a student given by its width; this is a module already"
            )
        return student
    check_number("student", student, 0, 1, low_open=True, high_closed=True)
    recipe = dict(memory_of(model).recipe or {})
    if not recipe:
        why = "was not made by fairlib.build, or has lost layers or channels since"
        raise ValueError(
            f"the width {student} is of no architecture: the model {why}; give a module as student"
        )
    if architecture is not None:
        name, own = name_and_settings("architecture", architecture)
        recipe = {size: recipe[size] for size in ("num_classes", "in_channels", "image_size")} | {
            "name": name,
            **own,
        }
    return build(**recipe | {"width": student * recipe.get("width", 1.0)}, seed=seed)
