"""Trainings carried out: read from the cache, beside others, or alone.

:func:`fit_all` is the one place that knows how. On a GPU they go in turn
(:mod:`fairlib.training.slots`), on a CPU those of one form as a stack
(:mod:`fairlib.network.stacking`).
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
from fairlib.training.loop import (
    AT_ONCE,
    DivergenceError,
    Training,
    check_arguments,
    check_training,
    declares_settings,
    train,
)
from fairlib.training.protocols import Constraint, Objective

_LISTED = ("val", "objective", "constraint")
_MEMBERS_OWN = (*_LISTED, "seed")  # Settings in which the members of a stack may differ.


@declares_settings
def fit(
    model: nn.Module,
    data: GroupedDataset,
    *,
    val: GroupedDataset | None = None,
    epochs: int = 10,
    lr: float = 0.05,
    batch_size: int = 64,
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    schedule: str = "cosine",
    augment: str = "none",
    objective: Objective | None = None,
    constraint: Constraint | None = None,
    keep: int | Sequence[int] = (),
    seed: int = 0,
    device: str = "auto",
    precision: str = "float32",
) -> nn.Module:
    r"""Train a copy of a classifier by SGD with momentum, and return it in eval mode.

    With gradient :math:`g` of the mean loss of a batch, learning rate :math:`\eta`, momentum
    :math:`\mu` and weight decay :math:`\gamma`, a step is :math:`v \leftarrow \mu v + g + \gamma
    \theta` and then :math:`\theta \leftarrow \theta - \eta v`. The data are moved to the device
    once, in their own dtype (uint8 images stay uint8), and converted batch by batch. On one CPU the
    result is bit-identical for one seed and one number of threads. On CUDA a step is recorded once
    and replayed, if it can be (:mod:`fairlib.training.slots`; ``FAIRLIB_AUTO=0`` switches that
    off), and cuDNN takes the fastest of its deterministic algorithms, which two processes may
    choose differently; torch's TF32 settings are not changed. The weights of the last epoch are
    returned: nothing is selected.

    During the training images and weights have torch's channels-last format, which is mostly
    faster, if a network with convolutions is trained on images of at least 16 pixels a side and the
    environment does not have ``FAIRLIB_AUTO=0``. A network never has it that has a 1x1 convolution
    with a stride and fewer than 8 channels: PyTorch may write past a buffer there.

    Args:
        model: Any module that maps inputs to logits; it is not changed. In the copy of a model made
            by :func:`fairlib.build` the normalization, if it is not set yet, is set from ``data``.
        data: Training set.
        val: Validation set, on which loss and accuracy are measured after each epoch for the
            history.
        epochs: Number of passes over ``data``, at least 0.
        lr: Learning rate at the start, positive.
        batch_size: Samples per step. A last batch of a single sample joins the one before it.
        momentum: Momentum of SGD, in [0, 1).
        weight_decay: Factor :math:`\gamma` of the weight decay of every parameter, at least 0.
        schedule: Learning rate after each step: ``"cosine"`` down to zero, ``"step"`` (a tenth from
            1/2 and again from 3/4 of the steps on) or ``"constant"``.
        augment: Augmentation of each batch: ``"none"``, ``"flip"``, ``"crop"`` (shifts of up to an
            eighth of the image) or ``"crop+flip"``.
        objective: Per-sample losses, for example a
            :class:`fairlib.training.distillation.Distillation`; cross-entropy by default.
        constraint: Constraint on groups, for example ``fairlib.EqualLoss(step=0.02)``.
        keep: Steps after which the weights are kept for :func:`fairlib.weights_at`; 0 is before the
            first step.
        seed: Seed of batch order, augmentation and dropout. The global generators are left as they
            were found.
        device: ``"auto"`` (CUDA if available) or a torch device. The result stays there.
        precision: ``"float32"`` or ``"bfloat16"`` (autocast; weights stay float32).

    Returns:
        The trained copy in eval mode; :func:`history` has its loss and accuracy by epoch.

    Raises:
        DivergenceError: If the loss, or an output after an epoch, becomes infinite or NaN; the
            message names the epoch and the settings to lower.
        TypeError: If an argument is of another type: data are no :class:`fairlib.GroupedDataset`, a
            setting no number.
        ValueError: If a setting is out of range, the model has nothing to train, there is no such
            device, an input does not fit the model, or the outputs do not match the classes of the
            data.

    Example:
        Ten samples look alike; nine of them have class 0 and one has class 1. The loss is least
        where the classes have the probabilities 0.9 and 0.1, so the one is given the wrong answer;
        that is what a ``constraint`` is for (:class:`fairlib.EqualLoss`).

        >>> import torch, fairlib
        >>> codes = [0] * 9 + [1]
        >>> data = fairlib.GroupedDataset(torch.zeros(10, 1), targets=codes, groups=codes)
        >>> model = torch.nn.Linear(1, 2)
        >>> trained = fairlib.fit(model, data, epochs=100, lr=0.5, momentum=0, weight_decay=0)
        >>> trained(torch.zeros(1, 1)).softmax(1).detach().numpy().round(1)
        array([[0.9, 0.1]], dtype=float32)
    """
    # Nothing may come before this line: it would be among the settings.
    settings = locals()
    return carry_out(Training(settings.pop("model"), settings.pop("data"), settings))


def carry_out(training: Training) -> nn.Module:
    """Return the trained copy, as :func:`fairlib.fit` does.

    Raises:
        DivergenceError: If the training diverges.
    """
    (trained,) = fit_all([training])
    if isinstance(trained, DivergenceError):
        raise trained
    return trained


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
    together, five at a time, which is faster for small networks on a CPU: k convolutions are one
    convolution in k groups, k linear layers one batched product. Sums are rounded in another order,
    so that a training of several epochs ends elsewhere, as it does on another processor; it depends
    neither on the other members nor on how many there are. Networks of several architectures, or
    with data of several sizes, are so many stacks. Networks that cannot be stacked are trained one
    after another: those with modules other than those of :func:`fairlib.build` and torch's usual
    ones, with dropout, and under a constraint that looks at the network at every step
    (:class:`fairlib.EqualCurvature`). On a GPU each is computed as it would be alone, several in
    turn (:mod:`fairlib.training.slots`).

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
    reason = next(filter(None, reasons), None) or _difference(trainings)
    # On a GPU they need not be alike, and what is launched by Python says so itself.
    if reason and not replays(trainings[0].arguments.device):
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
    """Run many trainings: read from the cache, beside others, or one by one.

    Trainings that have a ``place`` are carried out together on a GPU, and on a CPU stacked if they
    agree in architecture, settings and shape of the data; any other is run alone. Every result is
    written to the cache at once, so that a study that is interrupted loses little.

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
    stacks: list[tuple[dict[str, object], dict[int, int]]] = []
    for i, training in enumerate(trainings):
        if training.place is None:
            groups.append([i])
            continue
        # On a GPU all go together, each in a slot: any form, any number.
        if replays(training.arguments.device):
            place, wanted = i, dict[str, object]()
        else:
            place, wanted = training.place, _form(training)
        same = (taken for known, taken in stacks if place not in taken and known == wanted)
        stack = next(same, None)
        if stack is None:
            stack = {}
            stacks.append((wanted, stack))
        stack[place] = i
    return groups + [list(stack.values()) for _, stack in stacks]


def _fit_group(group: Sequence[Training], done: slots.Done) -> None:
    """Carry out trainings of one stack, of several slots, or one alone, or none.

    Args:
        group: The trainings.
        done: Function of the position of a training and its result.
    """
    if group and replays(group[0].arguments.device):
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


def replays(device: str) -> bool:
    """Tell whether trainings on a device are carried out in slots: on a GPU, if it may be so."""
    kind = environment.resolve_device(device).split(":")[0]
    return environment.automatic() and kind in slots.RECORDERS


def why_alone(training: Training) -> str | None:
    """Say why a training cannot be carried out beside others, or None if it can.

    Returns:
        The end of a sentence with "since".
    """
    reason, constraint = slots.why_called(training), training.settings.get("constraint")
    if reason or replays(training.arguments.device):
        return reason
    if training.loop.stop:
        return "a stop belongs to one network"
    if constraint is not None and not vars(type(constraint)).get("by_batch"):
        return f"{type(constraint).__name__} looks at the network at every step"
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
    if why_alone(training) or not environment.automatic():
        return False
    weights = [parameter.numel() for parameter in training.model.parameters() if parameter.ndim > 1]
    return replays(training.arguments.device) or (
        environment.resolve_device(training.arguments.device).startswith("cpu")
        and math.prod(training.data.inputs.shape[2:]) < 16**2
        and sum(weights) <= 20_000 * len(weights)
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
