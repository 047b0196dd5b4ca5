"""Trainings carried out: read from the cache, stacked with others of their form, or alone.

:func:`fit_all` is the one place that knows how; :mod:`fairlib.network.stacking` explains stacks.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from torch import nn

from fairlib import environment
from fairlib._validation import check_many, lookup
from fairlib.data import GroupedDataset
from fairlib.network import stacking
from fairlib.network.evaluation import placement
from fairlib.training import slots
from fairlib.training.cache import entry_path, read_entry, write_entry
from fairlib.training.distillation import Distillation
from fairlib.training.loop import (
    AT_ONCE,
    DivergenceError,
    Training,
    check_arguments,
    check_training,
    train,
)

_LISTED = ("val", "objective", "constraint")
_MEMBERS_OWN = (*_LISTED, "seed")  # Settings in which the members of a stack may differ.


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
    of several sizes, are so many stacks. Networks that cannot be stacked are trained one after
    another: those with modules other than those of :func:`fairlib.build` and torch's usual ones,
    with dropout, and under a constraint that looks at the network at every step
    (:class:`fairlib.EqualCurvature`).

    Args:
        models: At least one module; none is changed.
        datas: Training set of each, or one for all.
        seeds: Seed of each.
        divergence: ``"raise"``, or ``"skip"`` for None in the place of a network whose training
            diverges. The others are trained on in both cases.
        **settings: Other arguments of :func:`fairlib.fit`. ``val``, ``objective`` and
            ``constraint`` may be lists, with one for each network.

    Returns:
        The trained copies in eval mode, in the order of ``models``.

    Raises:
        DivergenceError: If a training diverges; names the first.
        TypeError: If there is no such setting, or an argument is of another type.
        ValueError: If a setting is out of range, or there are not as many of a kind as there are
            models.

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
    columns = {"data": _column("datas", datas, models), "seed": _column("seeds", seeds, models)}
    for name in set(_LISTED) & set(settings):
        columns[name] = _column(name, settings.pop(name), models)
    check_training("fit_many", settings, given=("model", "data", "seed"))
    trainings = []
    for place, model in enumerate(models):
        own = {name: values[place] for name, values in columns.items()}
        check_arguments({"model": model, **own})
        trainings.append(Training(model, own.pop("data"), {**settings, **own}))
    reasons = [why_alone(training) for training in trainings]
    if reason := next(filter(None, reasons), None) or _difference(trainings):
        warnings.warn(f"the networks are not trained all at once, since {reason}", stacklevel=2)
    for i, alone in enumerate(reasons):
        if not alone:
            trainings[i] = replace(trainings[i], place=i % AT_ONCE)
    found = fit_all(trainings)
    for i, trained in enumerate(found):
        if isinstance(trained, DivergenceError) and divergence == "raise":
            raise DivergenceError(f"network {i}: {trained}") from trained
    return [None if isinstance(trained, DivergenceError) else trained for trained in found]


def fit_all(
    trainings: Sequence[Training], cache: Path | None = None
) -> list[nn.Module | DivergenceError]:
    """Run many trainings: read from the cache, stacked with like ones, or one by one.

    Trainings that have a ``place`` and agree in architecture, settings and shape of the data are
    stacked; any other is run alone. Every result is written to the cache at once, so that a study
    that is interrupted loses little.

    Args:
        trainings: Trainings of any kind. Set ``place`` only where ``why_alone`` returns None.
        cache: Folder of the entries; None switches the cache off.

    Returns:
        The trained copies, or the errors of those that diverged, in the same order.

    Warns:
        UserWarning: If an entry cannot be written; the trained model is returned all the same.
    """
    results: list[Any] = [None] * len(trainings)
    # Read the cache group by group: identical trainings fall into different groups, so that the
    # second reads what the first wrote.
    for group in _groups(trainings):
        paths = {i: entry_path(cache, trainings[i]) for i in group}
        for i, path in paths.items():
            results[i] = path and read_entry(path, trainings[i])
        missing = [i for i in group if results[i] is None]

        def done(number: int, trained: nn.Module | DivergenceError) -> None:
            i = missing[number]  # noqa: B023  Called within this turn of the loop.
            results[i], path = trained, paths[i]  # noqa: B023
            if path and isinstance(trained, nn.Module):
                write_entry(path, trained)

        _fit_group([trainings[i] for i in missing], done)
    return results


def _groups(trainings: Sequence[Training]) -> list[list[int]]:
    """Group trainings, by their positions: those carried out together, or one alone.

    The stack of a training is the first of its form in which its place is free. Where trainings
    come job by job and seed by seed, the trainings of a job therefore share a stack.
    """
    groups: list[list[int]] = []
    stacks: list[tuple[object, dict[int, int]]] = []
    for i, training in enumerate(trainings):
        if training.place is None:
            groups.append([i])
            continue
        # On a GPU all go together, each in a slot: any form, any number.
        place, form = (i, "slots") if _replays(training) else (training.place, _form(training))
        same = (taken for known, taken in stacks if place not in taken and known == form)
        stack = next(same, None)
        if stack is None:
            stack = {}
            stacks.append((form, stack))
        stack[place] = i
    return groups + [list(stack.values()) for _, stack in stacks]


def _fit_group(group: Sequence[Training], done: slots.Done) -> None:
    """Carry out trainings of one stack, of several slots, or one alone, or none.

    Args:
        group: The trainings.
        done: Function of the position of a training and its result.
    """
    if group and _replays(group[0]):
        slots.run(group, environment.resolve_device(group[0].arguments.device), done)
        return
    if len(group) == 1 and group[0].place is None:
        done(0, *train(group))
        return
    by_place = {training.place: training for training in group if training.place is not None}
    # The kernels of torch round by the number of members and by the position among them. So a stack
    # always has all its members: empty places are filled up with copies, and each training sits in
    # its own place. Then its result depends on no other, nor on what the cache already holds.
    present = sorted(by_place)
    if not present:
        return
    members = [
        by_place.get(place, by_place[present[place % len(present)]]) for place in range(AT_ONCE)
    ]
    results = train(members, stacked=True)
    for number, training in enumerate(group):
        done(number, results[cast(int, training.place)])


def _replays(training: Training) -> bool:
    """Tell whether the device of a training is one that replays steps."""
    return environment.resolve_device(training.arguments.device).split(":")[0] in slots.RECORDERS


def why_alone(training: Training) -> str | None:
    """Say why a training cannot be carried out beside others, or None if it can.

    Returns:
        The end of a sentence with "since".
    """
    constraint, objective = (training.settings.get(name) for name in ("constraint", "objective"))
    if training.loop.sparsify or training.loop.stop:
        return "masks that change, and a stop, belong to one network"
    # Looked up in the class itself: a subclass may compute from the model what its parent does not.
    if constraint is not None and not vars(type(constraint)).get("by_batch"):
        return f"{type(constraint).__name__} looks at the network at every step"
    if objective is not None and type(objective) is not Distillation:
        return "an objective of your own sees one network at a time"
    model, data = training.model, training.data
    if reason := stacking.obstacle(model):
        return reason
    device, dtype = placement(model)
    ours = type(model).__module__.startswith("fairlib.models.")
    # A network of someone else may mix up the members of a stack; that shows in a trial alone.
    sample = range(min(2, len(data)))
    if not ours and not stacking.agrees(model, data.batch(sample, dtype=dtype, device=device)):
        return f"what a {type(model).__name__} computes is not the same in a stack"
    return None


def pays(training: Training) -> bool:
    """Tell whether a training is faster beside others: in a slot of a GPU, or in a stack.

    Stacks are for small networks on images below 16 pixels. At 32 pixels most of what they gain is
    gained by the memory format alone, channels-last (``benchmarks/together.py``).
    """
    if _replays(training):
        return slots.obstacle(training) is None
    weights = [parameter.numel() for parameter in training.model.parameters() if parameter.ndim > 1]
    return (
        environment.automatic()
        and environment.resolve_device(training.arguments.device).startswith("cpu")
        and math.prod(training.data.inputs.shape[2:]) < 16**2
        and sum(weights) <= 20_000 * len(weights)
        and why_alone(training) is None
    )


def _form(training: Training) -> dict[str, object]:
    """Return properties that stacked trainings must share, keyed by the message if they differ."""
    shared = {name: v for name, v in vars(training.arguments).items() if name not in _MEMBERS_OWN}
    data = training.data
    kind = (data.inputs.shape, data.inputs.dtype, data.normalize, data.num_classes)
    return {
        "their settings differ": (repr(shared), training.loop),
        "their data are not of one size, kind and normalization": kind,
    } | stacking.form(training.model)


def _difference(trainings: Sequence[Training]) -> str | None:
    """Say why trainings do not share one stack, or None if they do."""
    first, *others = map(_form, trainings)
    return next((name for name in first if any(f[name] != first[name] for f in others)), None)


def _column(name: str, values: Any, models: Sequence[nn.Module]) -> Sequence[Any]:
    """Return one value for each model."""
    if not isinstance(values, list | tuple):
        return [values] * len(models)
    if len(values) != len(models):
        count = len(models)
        raise ValueError(f"{name} must be one for each of the {count} models, got {len(values)}")
    return values
