"""The training loop, of one network or of several that are stacked.

Constraints, teachers and masks plug into it as :mod:`fairlib.training.protocols`.
"""

import copy
import math
import timeit
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from types import NoneType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, cross_entropy
from tqdm import tqdm

from fairlib import environment
from fairlib._validation import (
    check_automatic,
    check_many,
    check_number,
    check_seed,
    check_settings,
    check_type,
    lookup,
    shown,
)
from fairlib.data import GroupedDataset
from fairlib.data.dataset import concatenated
from fairlib.models.normalization import fill_normalization
from fairlib.network import masks
from fairlib.network.evaluation import check_logits, evaluation_mode, placement, predict
from fairlib.network.memory import add_gradients, inherit
from fairlib.network.stacking import Stack
from fairlib.randomness import seeded
from fairlib.training.augmentation import AUGMENTATIONS, Generators
from fairlib.training.distillation import joint_objective
from fairlib.training.protocols import Batch, Constraint, ConstraintRun, Objective, Sparsifier


class DivergenceError(FloatingPointError):
    """The loss or the outputs of a training have become infinite or NaN.

    Example:
        The message says when, and what to lower.

        >>> import fairlib
        >>> digits = fairlib.load("digits").train
        >>> model = fairlib.build("mlp", like=digits)
        >>> fairlib.fit(model, digits, lr=1e9)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        fairlib.training.loop.DivergenceError: training diverged at epoch 1 of 10 (...); lower lr (1000000000.0)
    """


def _cross_entropy(inputs: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(logits, targets, reduction="none")


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": lambda parameters, *, momentum, **settings: torch.optim.Adam(parameters, **settings),
}

SCHEDULES: dict[
    str, Callable[[torch.optim.Optimizer, int], torch.optim.lr_scheduler.LRScheduler]
] = {
    "constant": lambda optimizer, steps: torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0),
    "cosine": lambda optimizer, steps: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps),
    "step": lambda optimizer, steps: torch.optim.lr_scheduler.MultiStepLR(
        optimizer, [steps // 2, steps * 3 // 4]
    ),
}

PRECISIONS = {"float32": False, "bfloat16": True}
"""Whether a training runs under autocast, by the name of its precision."""


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
    optimizer: str = "sgd",
    schedule: str = "cosine",
    augment: str = "none",
    objective: Objective | None = None,
    constraint: Constraint | None = None,
    sparsify: Sparsifier | None = None,
    stop: Callable[[Mapping[str, float]], bool] | None = None,
    start: int = 0,
    keep: int | Sequence[int] = (),
    seed: int = 0,
    device: str = "auto",
    precision: str = "float32",
    channels_last: bool | str = "auto",
    progress: bool = False,
) -> nn.Module:
    r"""Train a copy of a classifier, by SGD with momentum unless asked otherwise, and return it in
    eval mode.

    With gradient :math:`g` of the mean loss of a batch, learning rate :math:`\eta`, momentum
    :math:`\mu` and weight decay :math:`\gamma`, a step is :math:`v \leftarrow \mu v + g + \gamma
    \theta` and then :math:`\theta \leftarrow \theta - \eta v`. The data are moved to the device
    once, in their own dtype (uint8 images stay uint8), and converted batch by batch. On one CPU the
    result is bit-identical for one seed and one number of threads. On CUDA, cuDNN is restricted to
    deterministic algorithms; torch's TF32 settings are not changed. The weights of the last epoch
    are returned: nothing is selected.

    Args: model: Any module that maps inputs to logits; it is not changed. In the copy of a model
        made by
            :func:`fairlib.build` the normalization, if it is not set yet, is set from ``data``.
        data: Training set.
        val: Validation set, on which loss and accuracy are measured after each epoch for the
            history.
        epochs: Number of passes over ``data``, at least 0.
        lr: Learning rate at the start, positive.
        batch_size: Samples per step. A last batch of a single sample joins the one before it.
        momentum: Momentum of SGD, in [0, 1).
        weight_decay: Factor :math:`\gamma` of the weight decay of every parameter, at least 0.
        optimizer: ``"sgd"``, or ``"adam"`` with torch's default decay rates, which ignores
            ``momentum``.
        schedule: Learning rate after each step: ``"cosine"`` down to zero, ``"step"`` (a tenth from
            1/2 and again from 3/4 of the steps on) or ``"constant"``.
        augment: Augmentation of each batch: ``"none"``, ``"flip"``, ``"crop"`` (shifts of up to an
            eighth of the image) or ``"crop+flip"``.
        objective: Per-sample losses, for example a
            :class:`fairlib.training.distillation.Distillation`; cross-entropy by default.
        constraint: Constraint on groups, for example ``fairlib.EqualLoss(step=0.02)``.
        sparsify: Function that gives new masks after each epoch; masked weights stay zero in the
            next epoch.
        stop: Function of an epoch's row of the history; the training ends after the first epoch for
            which it is true.
        start: Step at which to begin, for models rewound to :func:`weights_at` that step. The
            batches before it are drawn and skipped, the learning rate is that of the schedule at
            this step, and momentum begins at zero. Augmentation and dropout draw nothing for
            skipped steps, so with them the batches differ from those of an uninterrupted training.
        keep: Steps after which the weights are kept for :func:`weights_at`; 0 is before the first
            step.
        seed: Seed of batch order, augmentation and dropout. The global generators are left as they
            were found.
        device: ``"auto"`` (CUDA if available) or a torch device. The result stays there.
        precision: ``"float32"`` or ``"bfloat16"`` (autocast; weights stay float32).
        channels_last: Whether images and weights have torch's channels-last format, which is mostly
            faster. With ``"auto"`` they have it during the training if a network with convolutions
            is trained on images of at least 16 pixels a side and the environment does not have
            ``FAIRLIB_AUTO=0``. On no device does a network have it that has a 1x1 convolution with
            a stride and fewer than 8 channels: PyTorch may write past a buffer there; where it is
            asked for, a warning says so.
        progress: Whether to show a progress bar.

    Returns:
        The trained copy in eval mode; :func:`history` gives its loss and accuracy by epoch.

    Raises: DivergenceError: If the loss, or an output after an epoch, becomes infinite or NaN; the
        message names the epoch
            and the settings to lower.
        TypeError: If an argument is of another type: data are no :class:`fairlib.GroupedDataset`, a
            setting no number.
        ValueError: If a setting is out of range, the model has nothing to train, there is no such
            device, an input does not fit the model, or the outputs do not match the classes of the
            data.

    Warns: UserWarning: If ``"bfloat16"`` takes a convolution more than 1.5 times as long as
        ``"float32"`` on this CPU.

    Example: Ten samples that look alike, of whom nine have class 0 and one has class 1. The loss is
        least where the classes have the probabilities 0.9 and 0.1, so the one is given the wrong
        answer; that is what a ``constraint`` is for (:class:`fairlib.EqualLoss`).

        >>> import torch, fairlib
        >>> data = fairlib.GroupedDataset(torch.zeros(10, 1), targets=[0] * 9 + [1], groups=[0] * 9 + [1])
        >>> model = torch.nn.Linear(1, 2)
        >>> trained = fairlib.fit(model, data, epochs=100, lr=0.5, momentum=0, weight_decay=0)
        >>> trained(torch.zeros(1, 1)).softmax(1).detach().numpy().round(1)
        array([[0.9, 0.1]], dtype=float32)
    """
    settings = locals()
    for name in ("model", "data", "val", "objective", "constraint", "seed"):
        del settings[name]
    member = Member(model, data, val, objective, constraint, seed)
    trained = train([member], progress=settings.pop("progress"), **settings)[0]
    if isinstance(trained, DivergenceError):
        raise trained
    return trained


def in_channels_last(asked: bool | str, model: nn.Module, data: GroupedDataset) -> bool:
    """Whether a training has the channels-last format, by the rule of :func:`fit`; as asked, but
    for a narrow layer."""
    check_automatic("channels_last", asked)
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    if any(map(_overflows, convolutions)):
        return False
    if isinstance(asked, bool):
        return asked
    return (
        environment.automatic()
        and bool(convolutions)
        and data.inputs.ndim == 4
        and min(data.inputs.shape[2:]) >= 16
    )


def _overflows(layer: nn.Conv2d) -> bool:
    """Whether oneDNN, in this format, writes past its buffer when it differentiates by the weights
    of a layer.

    With the oneDNN 3.13.3 of torch 2.15, on a CPU with AVX2 and without AVX-512, it does so for a
    1x1 convolution with a stride and fewer than 8 channels: other tensors change, with several
    threads the gradient is wrong, or the process dies."""
    return (
        layer.groups == 1
        and layer.in_channels < 8
        and set(layer.kernel_size) == {1}
        and max(layer.stride) > 1
    )


@cache
def _bfloat16_time() -> float:
    """How long a convolution takes in bfloat16 on this CPU, in times of float32."""
    seconds = []
    for dtype in (torch.bfloat16, torch.float32):
        inputs, weight = (
            torch.ones(8, 64, 16, 16, dtype=dtype),
            torch.ones(64, 64, 3, 3, dtype=dtype),
        )
        seconds.append(min(timeit.repeat(partial(conv2d, inputs, weight), number=1, repeat=5)))
    return seconds[0] / seconds[1]


def check_training(owner: str, settings: Mapping[str, Any], given: Iterable[str] = ()) -> None:
    """Refuse arguments of :func:`fit` before anything is trained.

    Args:
        owner: What they are for in the error message: ``"finetune="``.
        settings: Arguments by name.
        given: Names of arguments that the library fills in.

    Raises:
        TypeError: If :func:`fit` has no such argument, or it must be of another type.
        ValueError: If a value is out of range or unknown.
    """
    check_settings(owner, fit, settings, given)
    check_arguments(settings, f" of {owner}")


def check_arguments(arguments: Mapping[str, Any], of: str = "") -> None:
    """Refuse values that :func:`fit` does not take.

    Args:
        arguments: Any of its arguments, by name.
        of: What follows their names in the error message.

    Raises:
        TypeError: If an argument must be of another type.
        ValueError: If it is out of range, unknown, or not a device of this machine.
    """
    for name, value in arguments.items():
        if name in _CHECKS:
            _CHECKS[name](f"{name}{of}", value)


def _check_constraint(name: str, constraint: Any) -> None:
    if constraint is not None and (
        isinstance(constraint, type) or not hasattr(constraint, "start")
    ):
        raise TypeError(
            f"{name} must be an object such as fairlib.EqualLoss(step=0.02), got {shown(constraint)}"
        )


def _check_device(name: str, device: Any) -> None:
    try:
        torch.empty(0, device=environment.resolve_device(device))
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(
            f"{name} must be 'auto' or a device of this machine, got {device!r}: {error}"
        ) from None


_function = partial(check_type, kinds=(Callable, NoneType), wanted="a function")
_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "model": partial(check_type, kinds=nn.Module, wanted="a torch.nn.Module"),
    "data": partial(check_type, kinds=GroupedDataset, wanted="a GroupedDataset"),
    "val": partial(check_type, kinds=(GroupedDataset, NoneType), wanted="a GroupedDataset"),
    "epochs": partial(check_number, low=0, whole=True),
    "lr": partial(check_number, low=0, low_open=True),
    "batch_size": partial(check_number, low=1, whole=True),
    "momentum": partial(check_number, low=0, high=1),
    "weight_decay": partial(check_number, low=0),
    "optimizer": partial(lookup, registry=OPTIMIZERS),
    "schedule": partial(lookup, registry=SCHEDULES),
    "augment": partial(lookup, registry=AUGMENTATIONS),
    "precision": partial(lookup, registry=PRECISIONS),
    "channels_last": check_automatic,
    "objective": _function,
    "constraint": _check_constraint,
    "sparsify": _function,
    "stop": _function,
    "seed": check_seed,
    "device": _check_device,
}


@dataclass(frozen=True)
class Member:
    """What one network of a training has to itself: the arguments of :func:`fit` of these names."""

    model: nn.Module
    data: GroupedDataset
    val: GroupedDataset | None = None
    objective: Objective | None = None
    constraint: Constraint | None = None
    seed: int = 0


def train(
    members: Sequence[Member], *, stacked: bool = False, progress: bool = False, **settings: Any
) -> list[nn.Module | DivergenceError]:
    """Train copies of networks in one loop.

    Args: members: One network; or, ``stacked``, several whose data are of one size and shape.
        stacked: Whether they are trained as one (:mod:`fairlib.network.stacking`), and draw from
        generators of their
            own instead of torch's global ones.
        progress: Whether to show a progress bar.
        **settings: Arguments of :func:`fit` that all of them have.

    Returns:
        What :func:`fit` returns, or the error that it raises, for each member.
    """
    for member in members:
        check_arguments(vars(member) | settings)
    epochs, device = (
        settings["epochs"],
        torch.device(environment.resolve_device(settings.pop("device"))),
    )
    for model in (member.model for member in members):
        if not any(parameter.requires_grad or not epochs for parameter in model.parameters()):
            raise ValueError(f"model has no parameter to train: {shown(model)}")
    if (
        PRECISIONS[settings["precision"]]
        and device.type == "cpu"
        and (times := _bfloat16_time()) > 1.5
    ):
        warnings.warn(
            f"bfloat16 takes {times:.1f} times as long as float32 on this CPU", stacklevel=3
        )
    copies = [copy.deepcopy(member.model).to(device) for member in members]
    resident = {id(data): data.to(device) for data in (member.data for member in members)}
    datas = [resident[id(member.data)] for member in members]
    for model, data in zip(copies, datas, strict=True):
        fill_normalization(model, data)
    with seeded(members[0].seed), _reproducible():
        runs = [_Run(*each) for each in zip(members, copies, datas, strict=True)]
        _Loop(runs, stacked, device, settings).run(progress)
    return [run.result() for run in runs]


@dataclass
class _Run:
    """The state of one member of a training."""

    member: Member
    model: nn.Module
    data: GroupedDataset
    history: list[dict[str, float]] = field(default_factory=list)
    kept: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    constraint: ConstraintRun | None = None
    error: DivergenceError | None = None

    def result(self) -> nn.Module | DivergenceError:
        if self.error:
            return self.error
        inherit(self.model, self.member.model, history=self.history, kept=self.kept)
        return add_gradients(self.model, sum(row["gradients"] for row in self.history)).eval()

    def validation(self) -> dict[str, float]:
        """Validation loss and accuracy after an epoch; NaN if an output is infinite or NaN."""
        val = self.member.val
        try:
            seen = predict(self.model, self.data.subset(range(1)) if val is None else val)
        except FloatingPointError:
            return {"val_loss": math.nan, "val_accuracy": math.nan}
        return (
            {}
            if val is None
            else {"val_loss": seen.loss.mean().item(), "val_accuracy": seen.correct.mean().item()}
        )

    def keep_weights(self, step: int) -> None:
        state = self.model.state_dict()
        ordinary = torch.contiguous_format
        self.kept[step] = {
            name: tensor.detach().cpu().clone(memory_format=ordinary)
            for name, tensor in state.items()
        }


class _Loop:
    """One training, of one network or of several that are stacked."""

    def __init__(
        self, runs: Sequence[_Run], stacked: bool, device: torch.device, settings: Mapping[str, Any]
    ) -> None:
        self.runs, self.device, self.batch_size, self.step = runs, device, settings["batch_size"], 0
        self.epochs, self.lr, self.start = settings["epochs"], settings["lr"], settings["start"]
        self.sparsify, self.stop = settings["sparsify"], settings["stop"]
        self.augment = AUGMENTATIONS[settings["augment"]]
        self.asked = settings["channels_last"]
        last = in_channels_last(
            self.asked if not stacked else self.asked is True, runs[0].model, runs[0].data
        )
        if self.asked is True and not last:
            warnings.warn(
                "channels_last=True is not followed: PyTorch would write past a buffer",
                stacklevel=4,
            )
        self.layout = torch.channels_last if last else torch.contiguous_format
        self.autocast, self.dtype = PRECISIONS[settings["precision"]], placement(runs[0].model)[1]
        self.data, self.offsets = _joined([run.data for run in runs])
        steps = self.epochs * len(
            _split(self.offsets.new_empty(1, len(runs[0].data)), self.batch_size)
        )
        check_number("start", self.start, 0, steps + 1, whole=True)
        self.keep = _steps_to_keep(settings["keep"], self.start, steps)
        self.stack = Stack([run.model for run in runs], torch.channels_last) if stacked else None
        self.model = (
            runs[0].model.to(memory_format=self.layout) if self.stack is None else self.stack
        )
        seeds = [run.member.seed for run in runs]
        self.generators: Generators = [
            torch.Generator().manual_seed(seed) if stacked else None for seed in seeds
        ]
        self.objective = joint_objective([run.member.objective or _cross_entropy for run in runs])
        of_optimizer = {name: settings[name] for name in ("lr", "momentum", "weight_decay")}
        self.optimizer = OPTIMIZERS[settings["optimizer"]](self.model.parameters(), **of_optimizer)
        self.scheduler = SCHEDULES[settings["schedule"]](self.optimizer, max(1, steps))

    def run(self, progress: bool) -> None:
        for run in self.runs:
            if given := run.member.constraint:
                run.constraint = given.start(
                    run.model, run.data, run.member.objective or _cross_entropy
                )
        self._keep_weights()
        for epoch in tqdm(
            range(1, self.epochs + 1), desc="epochs", leave=False, disable=not progress
        ):
            rows = self._epoch()
            is_sound = [False] * len(rows) if self.stack is None else self._are_finite(self.stack)
            for run, row, sound in zip(self.runs, rows, is_sound, strict=True):
                if row and not run.error:
                    self._end_epoch(run, {"epoch": epoch} | row, sound and run.member.val is None)
            if all(run.error for run in self.runs):
                break
            if self.stop and self.runs[0].history and self.stop(self.runs[0].history[-1]):
                break
        if self.stack is not None:
            self.stack.release(self.layout)
        elif self.asked == "auto":
            self.model.to(memory_format=torch.contiguous_format)

    def _are_finite(self, stack: Stack) -> list[bool]:
        """Whether each member's outputs for its first sample are finite: one pass instead of one
        for each member."""
        with evaluation_mode(stack), torch.no_grad():
            logits = stack(
                self.data.batch(self.offsets.flatten(), dtype=self.dtype, device=self.device)
            )
        return logits.isfinite().all(1).tolist()

    def _end_epoch(self, run: _Run, row: dict[str, float], is_sound: bool) -> None:
        reported = run.constraint.end_epoch() if run.constraint else {}
        row["gradients"] += reported.pop("gradients", 0)
        row |= reported
        if self.sparsify:
            masks.set_masks(run.model, self.sparsify(run.model, row["epoch"] / self.epochs))
        row |= {} if is_sound else run.validation()
        run.error = _divergence(row, self.epochs, self.lr, run.member.constraint)
        run.history.append(row)

    def _epoch(self) -> list[dict[str, float]]:
        """Train for an epoch, skipping the steps before ``start``.

        Returns: For each member the learning rate of the first step, mean loss and accuracy over
            the batches when they were trained on, and the number of per-sample gradients; nothing
            if all steps were skipped.
        """
        self.model.train()
        rate, seen, count = math.nan, 0, len(self.runs)
        totals = torch.zeros(
            count, 3, device=self.device
        )  # Read once an epoch: reading waits for a GPU.
        orders = torch.stack(
            [torch.randperm(len(self.runs[0].data), generator=own) for own in self.generators]
        )
        for index in _split(orders.to(self.device) + self.offsets, self.batch_size):
            self.optimizer.zero_grad(set_to_none=True)
            if self.step < self.start:
                self._advance()
                continue
            if not seen:
                rate = float(self.scheduler.get_last_lr()[0])
            batch, parts = self._forward(index.flatten())
            size = index.shape[1]
            losses = self._losses(batch, parts)
            losses.sum().backward()
            self._advance()
            seen += size
            hits = (batch.logits.argmax(1) == batch.targets).view(count, size).sum(1)
            totals += torch.stack(
                [batch.losses.detach().view(count, -1).sum(1), hits, losses.detach() * size], 1
            )
        if not seen:
            return [{}] * count
        rows = []
        for run, (loss, accuracy, objective) in zip(
            self.runs, (totals / seen).tolist(), strict=True
        ):
            row = {"lr": rate, "loss": loss, "accuracy": accuracy, "gradients": seen}
            rows.append(row | {"objective": objective} if run.constraint else row)
        return rows

    def _losses(self, batch: Batch, parts: Sequence[Batch]) -> Tensor:
        """What each member descends on, ``(k,)``."""
        means = batch.losses.view(len(self.runs), -1).mean(1)
        if not any(run.constraint for run in self.runs):
            return means
        held = [
            run.constraint.loss(part) if run.constraint and not run.error else mean
            for run, part, mean in zip(self.runs, parts, means, strict=True)
        ]
        return torch.stack(held)

    def _advance(self) -> None:
        """Step the optimizer, which does nothing without gradients, and the schedule."""
        self.optimizer.step()
        self.scheduler.step()
        self.step += 1
        self._keep_weights()

    def _keep_weights(self) -> None:
        if self.step in self.keep:
            for run in self.runs:
                run.keep_weights(self.step)

    def _forward(self, index: Tensor) -> tuple[Batch, Sequence[Batch]]:
        """The batch of all members; and, where one has a constraint, that of each, with losses of
        its logits."""
        inputs = self.data.batch(index, dtype=self.dtype, device=self.device)
        if inputs.ndim == 4:
            inputs = self.augment(inputs, self.generators).contiguous(memory_format=self.layout)
        targets = self.data.targets[index]
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            logits = self.model(inputs)
        if self.step == self.start:
            check_logits(logits, self.data)
        logits = logits.to(self.dtype)
        count = len(self.runs)
        constrained = count > 1 and any(run.constraint for run in self.runs)
        each = logits.chunk(count) if constrained else [logits]
        logits = torch.cat(list(each)) if constrained else logits
        losses = self.objective(inputs, logits, targets)
        batch = Batch(inputs, targets, self.data.groups[index], logits, losses)
        if not constrained:
            return batch, [batch]
        others = (tensor.chunk(count) for tensor in (inputs, targets, batch.groups))
        return batch, [
            Batch(*part) for part in zip(*others, each, losses.chunk(count), strict=True)
        ]


def _joined(datas: Sequence[GroupedDataset]) -> tuple[GroupedDataset, Tensor]:
    """All data sets as one, and the position ``(k, 1)`` of the first sample of each; one that all
    share stands once."""
    first, count = datas[0], len(datas)
    offsets = torch.zeros(count, 1, dtype=torch.int64, device=first.targets.device)
    if all(data is first for data in datas):
        return first, offsets
    starts = torch.arange(count, device=offsets.device)[:, None] * len(first)
    return concatenated(datas), offsets + starts


def _steps_to_keep(keep: int | Sequence[int], start: int, steps: int) -> set[int]:
    wanted = {int(keep)} if hasattr(keep, "__index__") else set(check_many("keep", keep))
    if any(not start <= step <= steps for step in wanted):
        raise ValueError(
            f"keep must lie between {start} and the {steps} steps of this training, got {sorted(wanted)}"
        )
    return wanted


def _split(orders: Tensor, batch_size: int) -> list[Tensor]:
    """Batches ``(k, B)``; a last sample alone, which batch normalization cannot train on, joins the
    batch before."""
    parts = list(orders.split(batch_size, dim=1))
    if len(parts) > 1 and parts[-1].shape[1] == 1:
        parts[-2:] = [torch.cat(parts[-2:], 1)]
    return parts


def _divergence(
    row: dict[str, float], epochs: int, lr: float, constraint: Constraint | None
) -> DivergenceError | None:
    if all(math.isfinite(value) for value in row.values()):
        return None
    advice = f"lower lr ({lr})" + (f", or the strength of {constraint}" if constraint else "")
    left_out = ("epoch", "lr", "gradients")
    state = ", ".join(f"{name} {value:.3g}" for name, value in row.items() if name not in left_out)
    return DivergenceError(
        f"training diverged at epoch {row['epoch']} of {epochs} ({state}); {advice}"
    )


@contextmanager
def _reproducible() -> Iterator[None]:
    """Within the block cuDNN picks the same algorithm every time; afterwards its settings are
    restored."""
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before
