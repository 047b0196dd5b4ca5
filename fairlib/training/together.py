"""Several trainings of one architecture at once, as one network of many groups
(:mod:`fairlib.network.stacking`)."""

import inspect
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from torch import nn

from fairlib import environment
from fairlib._validation import check_many, lookup
from fairlib.data import GroupedDataset
from fairlib.network import stacking
from fairlib.network.evaluation import placement
from fairlib.training.distillation import Distillation
from fairlib.training.loop import (
    DivergenceError,
    Member,
    check_arguments,
    check_training,
    fit,
    train,
)

AT_ONCE = 10
"""Members of a stack. A stack with fewer trainings is filled up with copies, so that rounding
depends on no other."""

_LISTED = ("val", "objective", "constraint")


@dataclass(frozen=True)
class Training:
    """The arguments of one :func:`fairlib.fit`.

    Attributes:
        model: Module to train.
        data: Training set.
        settings: The other arguments, by name.
    """

    model: nn.Module
    data: GroupedDataset
    settings: Mapping[str, Any]


def fit_many(
    models: Sequence[nn.Module],
    datas: GroupedDataset | Sequence[GroupedDataset],
    *,
    seeds: Sequence[int],
    divergence: str = "raise",
    **settings: Any,
) -> list[nn.Module | None]:
    """Train copies of several networks of one architecture at once.

    Each is trained as :func:`fairlib.fit` trains it, in its own order of batches, with its own
    augmentation, mask, statistics of normalization, constraint and teacher. They are computed
    together, ten at a time, which is faster for small networks: k convolutions are one convolution
    in k groups, k linear layers one batched product. Sums are rounded in another order, so that a
    training of several epochs ends elsewhere, as it does on another processor; it depends neither
    on the other members nor on how many there are. Networks of several architectures, or with data
    of several sizes, are so many stacks. Trained one after the other is what cannot be stacked:
    modules other than those of :func:`fairlib.build` and torch's usual ones, dropout, masks that
    change, a ``stop``, and a constraint that looks at the network at every step
    (:class:`fairlib.EqualCurvature`).

    Args: models: At least one module; none is changed. datas: Training set of each, or one for all.
        seeds: Seed of each. divergence: ``"raise"``, or ``"skip"`` for None in the place of a
        network whose training diverges. The others
            are trained on in both cases.
        **settings: Other arguments of :func:`fairlib.fit`. ``val``, ``objective`` and
            ``constraint`` may be lists, with one for each network.

    Returns:
        The trained copies in eval mode, in the order of ``models``.

    Raises: DivergenceError: If a training diverges; names the first. TypeError: If there is no such
        setting, or an argument is of another type. ValueError: If a setting is out of range, or
        there are not as many of a kind as there are models.

    Warns:
        UserWarning: If they cannot all be computed together, with the reason.

    Source:
        Wang et al., Horizontally fused training array (MLSys 2021).

    Example:
        Three networks, each with its own first weights and order of batches:

        >>> import fairlib
        >>> digits = fairlib.load("digits").train
        >>> models = [fairlib.build("cnn", like=digits, seed=seed) for seed in range(3)]
        >>> together = fairlib.fit_many(models, digits, seeds=range(3), epochs=1)
        >>> alone = fairlib.fit(models[2], digits, seed=2, epochs=1)
        >>> bool((together[2].classifier[4].bias - alone.classifier[4].bias).abs().max() < 1e-5)
        True
    """
    lookup("answer to divergence", divergence, dict.fromkeys(("raise", "skip")))
    models, seeds = check_many("models", models), check_many("seeds", seeds)
    if not models:
        raise ValueError("models must hold at least one module")
    own = {"datas": datas, "seeds": seeds} | {
        name: settings.pop(name) for name in _LISTED if name in settings
    }
    check_training("fit_many", settings, given=("model", "data", "seed"))
    rows = zip(*(_column(name, values, len(models)) for name, values in own.items()), strict=True)
    trainings = [
        Training(model, data, settings | dict(zip(["seed", *list(own)[2:]], row, strict=True)))
        for model, (data, *row) in zip(models, rows, strict=True)
    ]
    for training in trainings:
        check_arguments({"model": training.model, "data": training.data, **training.settings})
    forms = [_form(training) for training in trainings]
    differing = (name for name in forms[0] if any(each[name] != forms[0][name] for each in forms))
    if reason := next(filter(None, map(why_not, trainings)), next(differing, None)):
        warnings.warn(f"the networks are not trained all at once, since {reason}", stacklevel=2)
    found = fit_all(trainings, [place % AT_ONCE for place in range(len(trainings))])
    for place, trained in enumerate(found):
        if isinstance(trained, DivergenceError) and divergence == "raise":
            raise DivergenceError(f"network {place}: {trained}") from trained
    return [None if isinstance(trained, DivergenceError) else trained for trained in found]


def fit_all(
    trainings: Sequence[Training], places: Sequence[int | None]
) -> list[nn.Module | DivergenceError]:
    """Carry out trainings, those that can at once, in stacks of :data:`AT_ONCE`.

    Args: trainings: Trainings of any kind. places: Place of each in its stack, below
        :data:`AT_ONCE`, on which rounding may depend; None for one that is
            carried out alone.

    Returns:
        The trained copies, or the errors of those that diverged.
    """
    found: list[Any] = [None] * len(trainings)
    stacks: list[
        tuple[dict[str, object], dict[int, int]]
    ] = []  # Form, and position of a training by its place.
    for position, (training, place) in enumerate(zip(trainings, places, strict=True)):
        if place is None or why_not(training):
            found[position] = _alone(training)
            continue
        form = _form(training)
        stack = next(
            (stack for known, stack in stacks if place not in stack and known == form), None
        )
        if stack is None:
            stacks.append((form, stack := {}))
        stack[place] = position
    for _, stack in stacks:
        present = sorted(stack)
        order = [stack.get(place, stack[present[place % len(present)]]) for place in range(AT_ONCE)]
        results = train(
            [_member(trainings[position]) for position in order],
            stacked=True,
            progress=trainings[order[0]].settings.get("progress", False),
            **_shared(trainings[order[0]]),
        )
        for place, position in stack.items():
            found[position] = results[place]
    return found


def why_not(training: Training) -> str | None:
    """Say why a training cannot be carried out beside others, or None if it can: the end of a
    sentence."""
    constraint, objective = training.settings.get("constraint"), training.settings.get("objective")
    if training.settings.get("sparsify") or training.settings.get("stop"):
        return "masks that change, and a stop, belong to one network"
    if constraint is not None and not vars(type(constraint)).get(
        "by_batch"
    ):  # A subclass says so itself.
        return f"{type(constraint).__name__} looks at the network at every step"
    if objective is not None and type(objective) is not Distillation:
        return "an objective of your own sees one network at a time"
    model, data = training.model, training.data
    if reason := stacking.why_not(model):
        return reason
    device, dtype = placement(model)
    ours = type(model).__module__.startswith("fairlib.models.")
    if not ours and not stacking.agrees(
        model, data.batch(range(min(2, len(data))), dtype=dtype, device=device)
    ):
        return f"what a {type(model).__name__} computes is not the same in a stack"
    return None


def pays(training: Training) -> bool:
    """Whether a training gains by others beside it: on a CPU a small network does, on images of
    under 16 pixels.

    At 32 pixels most of what is gained is gained by the memory format alone, ``channels_last``
    (``benchmarks/together.py``). It is not known where a GPU gains.
    """
    weights = [parameter.numel() for parameter in training.model.parameters() if parameter.ndim > 1]
    small = math.prod(training.data.inputs.shape[2:]) < 16**2 and sum(weights) <= 20_000 * len(
        weights
    )
    on_cpu = environment.resolve_device(training.settings.get("device", "auto")).startswith("cpu")
    return environment.automatic() and on_cpu and small and why_not(training) is None


def _alone(training: Training) -> nn.Module | DivergenceError:
    try:
        return fit(training.model, training.data, **training.settings)
    except DivergenceError as error:
        return error


def _member(training: Training) -> Member:
    own = {name: value for name, value in training.settings.items() if name in (*_LISTED, "seed")}
    return Member(training.model, training.data, **own)


def _shared(training: Training) -> dict[str, Any]:
    """The arguments of :func:`fairlib.fit` that are no member's own, complete."""
    left_out = ("progress", *(field.name for field in fields(Member)))
    defaults = {
        name: each.default
        for name, each in inspect.signature(fit).parameters.items()
        if name not in left_out
    }
    return defaults | {
        name: value for name, value in training.settings.items() if name not in left_out
    }


def _form(training: Training) -> dict[str, object]:
    """What the trainings of a stack have in common: values, each under what to say where they
    differ."""
    data = training.data
    kind = (data.inputs.shape, data.inputs.dtype, data.normalize, data.num_classes)
    return {
        "their settings differ": repr(_shared(training)),
        "their data are not of one size, kind and normalization": kind,
    } | stacking.form(training.model)


def _column(name: str, values: Any, count: int) -> Sequence[Any]:
    """One value for each of ``count`` networks."""
    if not isinstance(values, list | tuple):
        return [values] * count
    if len(values) != count:
        raise ValueError(f"{name} must be one for each of the {count} models, got {len(values)}")
    return values
