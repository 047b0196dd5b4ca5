"""The training loop, of one network or of several that are stacked.

Constraints, teachers and masks plug into it as :mod:`fairlib.training.protocols`.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import NoneType, SimpleNamespace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LRScheduler, MultiStepLR

from fairlib import environment
from fairlib._validation import (
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
from fairlib.network.copying import check_module, copied
from fairlib.network.evaluation import check_logits, evaluation_mode, placement, predict
from fairlib.network.memory import add_gradients, inherit
from fairlib.network.stacking import Stack
from fairlib.randomness import generator, seeded
from fairlib.training.augmentation import AUGMENTATIONS, Generators
from fairlib.training.distillation import joint_objective
from fairlib.training.protocols import Batch, ConstraintRun, Objective, Sparsifier

AT_ONCE = 5
"""Number of members of a stack."""


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
        fairlib.training.loop.DivergenceError: training diverged at epoch 1 of 10 ...
    """


def _cross_entropy(inputs: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(logits, targets, reduction="none")


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": lambda parameters, *, momentum, **settings: torch.optim.Adam(parameters, **settings),
}

LR_SCHEDULES: dict[str, Callable[[torch.optim.Optimizer, int], LRScheduler]] = {
    "constant": lambda optimizer, steps: ConstantLR(optimizer, factor=1.0),
    "cosine": CosineAnnealingLR,
    "step": lambda optimizer, steps: MultiStepLR(optimizer, [steps // 2, steps * 3 // 4]),
}

FUSED = {"cuda"}
"""Devices on which one kernel updates all weights, with a learning rate that lies there, too."""

PRECISIONS = {"float32": False, "bfloat16": True}
"""Use of autocast in a training, by the name of its precision."""


@dataclass(frozen=True)
class LoopSettings:
    """Settings of the loop beyond those of :func:`fairlib.fit`, for methods of compression.

    Args:
        optimizer: ``"sgd"``, or ``"adam"`` with torch's default decay rates, which ignores
            ``momentum``.
        start: Step at which to begin, for models rewound to :func:`fairlib.weights_at` that step.
            The batches before it are drawn and skipped, the learning rate is that of the schedule
            at this step, and momentum begins at zero. Augmentation and dropout draw nothing for
            skipped steps, so with them the batches differ from those of an uninterrupted training.
        stop: Function of an epoch's row of the history; the training ends after the first epoch for
            which it is true.
        sparsify: Function that returns new masks after each epoch; masked weights stay zero in the
            next epoch.
    """

    optimizer: str = "sgd"
    start: int = 0
    stop: Callable[[Mapping[str, float]], bool] | None = None
    sparsify: Sparsifier | None = None


@dataclass(frozen=True)
class Training:
    """One training, to be carried out by :func:`fairlib.training.fit_all` or :func:`carry_out`.

    Args:
        model: Module of which a copy is trained.
        data: Training set.
        settings: The other arguments of :func:`fairlib.fit`, by name.
        loop: Settings beyond those of :func:`fairlib.fit`.
        place: Place in a stack, below ``AT_ONCE``, on which rounding may depend on a CPU; None for
            a training that is carried out alone.
    """

    model: nn.Module
    data: GroupedDataset
    settings: Mapping[str, Any] = field(default_factory=dict)
    loop: LoopSettings = LoopSettings()
    place: int | None = None

    def __post_init__(self) -> None:
        check_settings("a Training", _declared[0], self.settings, given=("model", "data"))

    @property
    def arguments(self) -> SimpleNamespace:
        """Settings completed by the defaults of :func:`fairlib.fit`."""
        parameters = inspect.signature(_declared[0]).parameters
        defaults = {name: parameter.default for name, parameter in parameters.items()}
        del defaults["model"], defaults["data"]
        return SimpleNamespace(**{**defaults, **self.settings})


_Function = TypeVar("_Function", bound=Callable[..., Any])
_declared: list[Callable[..., Any]] = []


def declares_settings(function: _Function) -> _Function:
    """Take the parameters of :func:`fairlib.fit` as the settings of a training; return it.

    It stands above the loop, in the module that chooses how a training is carried out.
    """
    _declared[:] = [function]
    return function


def trains_channels_last(model: nn.Module, data: GroupedDataset) -> bool:
    """Tell whether :func:`fairlib.fit` trains a network in channels-last format."""
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    return (
        environment.automatic()
        and bool(convolutions)
        and not any(map(_overflows, convolutions))
        and data.inputs.ndim == 4
        and min(data.inputs.shape[2:]) >= 16
    )


def _overflows(layer: nn.Conv2d) -> bool:
    """Tell whether oneDNN writes past its buffer when it differentiates a channels-last layer.

    The oneDNN 3.13.3 of torch 2.15, on a CPU with AVX2 and without AVX-512, does so for a 1x1
    convolution with a stride and fewer than 8 channels: other tensors change, with several threads
    the gradient is wrong, or the process dies.
    """
    return (
        layer.groups == 1
        and layer.in_channels < 8
        and set(layer.kernel_size) == {1}
        and max(layer.stride) > 1
    )


def check_training(owner: str, settings: Mapping[str, Any], given: Iterable[str] = ()) -> None:
    """Refuse arguments of :func:`fairlib.fit` before anything is trained.

    Args:
        owner: Name of the arguments in the error message: ``"finetune="``.
        settings: Arguments by name.
        given: Names of arguments that the library fills in.

    Raises:
        TypeError: If :func:`fairlib.fit` has no such argument, or it must be of another type.
        ValueError: If a value is out of range or unknown.
    """
    check_settings(owner, _declared[0], settings, given)
    check_arguments(settings, f" of {owner}")


def check_arguments(arguments: Mapping[str, Any], of: str = "") -> None:
    """Refuse values that :func:`fairlib.fit` does not take.

    Args:
        arguments: Any of its arguments, by name.
        of: Words that follow their names in the error message.

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
            f"{name} must be an object such as fairlib.EqualLoss(step=0.02), "
            f"got {shown(constraint)}"
        )


def _check_device(name: str, device: Any) -> None:
    # Only an allocation tells whether a device is there: torch accepts the name of any.
    try:
        torch.empty(0, device=environment.resolve_device(device))
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(
            f"{name} must be 'auto' or a device of this machine, got {device!r}: {error}"
        ) from None


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "model": partial(check_type, kinds=nn.Module, wanted="a torch.nn.Module"),
    "data": partial(check_type, kinds=GroupedDataset, wanted="a GroupedDataset"),
    "val": partial(check_type, kinds=(GroupedDataset, NoneType), wanted="a GroupedDataset"),
    "epochs": partial(check_number, low=0, whole=True),
    "lr": partial(check_number, low=0, low_open=True),
    "batch_size": partial(check_number, low=1, whole=True),
    "momentum": partial(check_number, low=0, high=1),
    "weight_decay": partial(check_number, low=0),
    "schedule": partial(lookup, registry=LR_SCHEDULES),
    "augment": partial(lookup, registry=AUGMENTATIONS),
    "precision": partial(lookup, registry=PRECISIONS),
    "objective": partial(check_type, kinds=(Callable, NoneType), wanted="a function"),
    "constraint": _check_constraint,
    "seed": check_seed,
    "device": _check_device,
}


def train(
    trainings: Sequence[Training], *, stacked: bool = False
) -> list[nn.Module | DivergenceError]:
    """Train copies of networks in one loop, each step launched by Python.

    Args:
        trainings: One training; or, ``stacked``, several whose settings, but for ``val``,
            ``objective``, ``constraint`` and ``seed``, are equal and whose data are of one size and
            shape.
        stacked: Train them as one network (:mod:`fairlib.network.stacking`); each then draws from
            its own generator instead of torch's global one.

    Returns:
        For each training its network, or the error if it diverged.
    """
    for training in trainings:
        check(training)
    device = environment.resolve_device(trainings[0].arguments.device)
    # Members that share a data set share its copy on the device, too: by that `_joined` sees that
    # it need not hold the samples once for each.
    resident = {id(training.data): training.data.to(device) for training in trainings}
    members = [Member(training, resident[id(training.data)], device) for training in trainings]
    with seeded(members[0].how.seed), reproducible():
        loop = Loop(members, stacked, [None])
        loop.begin()
        while loop.epoch < loop.how.epochs:
            loop.launch()
            if not loop.finish():
                break
        return loop.end()


def check(training: Training) -> None:
    """Refuse a training before it begins.

    Raises:
        TypeError: If an argument must be of another type.
        ValueError: If a setting is out of range, or the model has no parameter to train.
    """
    how = training.arguments
    check_arguments({"model": training.model, "data": training.data, **vars(how)})
    check_module("model", training.model)
    if not any(p.requires_grad or not how.epochs for p in training.model.parameters()):
        raise ValueError(f"model has no parameter to train: {shown(training.model)}")


class Member:
    """State of one network of a training.

    Args:
        training: The training.
        data: Its data on the device.
        device: Name of the device.
    """

    def __init__(self, training: Training, data: GroupedDataset, device: str) -> None:
        self.training, self.how, self.data, self.device = training, training.arguments, data, device
        self.model = copied(training.model).to(device)
        fill_normalization(self.model, data)
        self.objective: Objective = self.how.objective or _cross_entropy
        self.constraint: ConstraintRun | None = None
        self.history: list[dict[str, float]] = []
        self.snapshots: dict[int, dict[str, Tensor]] = {}
        self.dual_seconds, self.began = 0.0, environment.clock(device)
        self.error: DivergenceError | None = None

    def start(self) -> None:
        if self.how.constraint:
            start = self.how.constraint.start
            self.constraint = self._timed(start, self.model, self.data, self.objective)

    def result(self) -> nn.Module | DivergenceError:
        if self.error:
            return self.error
        # No GPU is waited for: the last numbers of the training have been read from it.
        seconds = environment.clock(self.device) - self.began
        timing = {"seconds": seconds, "dual_seconds": self.dual_seconds}
        facts = {"history": self.history, "snapshots": self.snapshots, "timing": timing}
        inherit(self.model, self.training.model, **facts)
        return add_gradients(self.model, sum(row["gradients"] for row in self.history)).eval()

    def keep_weights(self, step: int) -> None:
        # The copies are on the CPU, where they cost no memory of a GPU, and in the ordinary format:
        # a restored network must not compute in another format than one that was never stacked.
        self.snapshots[step] = {
            name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
            for name, tensor in self.model.state_dict().items()
        }

    def act(self, row: dict[str, float]) -> None:
        """Let the constraint, and new masks, act after an epoch."""
        if self.constraint:
            reported = self._timed(self.constraint.end_epoch)
            row["gradients"] += reported.pop("gradients", 0)
            row |= reported
        if sparsify := self.training.loop.sparsify:
            masks.set_masks(self.model, sparsify(self.model, row["epoch"] / self.how.epochs))

    def end_epoch(self, row: dict[str, float], is_finite: bool) -> None:
        """Validate, and note the epoch in the history, or that the training has diverged."""
        try:
            if self.how.val is not None:
                seen = predict(self.model, self.how.val)
                row["val_loss"] = seen.loss.mean().item()
                row["val_accuracy"] = seen.correct.mean().item()
            elif not is_finite:
                raise FloatingPointError
        except FloatingPointError:
            row |= {"val_loss": math.nan, "val_accuracy": math.nan}
        self.history.append(row)
        if not all(map(math.isfinite, row.values())):
            left_out = ("epoch", "lr", "gradients")
            state = ", ".join(f"{name} {row[name]:.3g}" for name in row if name not in left_out)
            advice = f"lower lr ({self.how.lr})"
            if self.how.constraint:
                advice += f", or the strength of {self.how.constraint}"
            when = f"epoch {row['epoch']} of {self.how.epochs}"
            self.error = DivergenceError(f"training diverged at {when} ({state}); {advice}")

    def _timed(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the constraint, and add up the time that it takes."""
        before = environment.clock(self.device)
        result = function(*arguments)
        self.dual_seconds += environment.clock(self.device) - before
        return result


class Loop:
    """One training, of one network or of several that are stacked.

    Args:
        members: The networks.
        stacked: Several are trained as one.
        generators: Where one network draws the order of its batches and their augmentation from;
            the members of a stack draw from their own.
    """

    def __init__(self, members: Sequence[Member], stacked: bool, generators: Generators) -> None:
        self.members, first, self.step, self.epoch = members, members[0], 0, 0
        self.how, self.loop, self.device = (
            first.how,
            first.training.loop,
            torch.device(first.device),
        )
        self.dtype, self.layout = placement(first.model)[1], torch.contiguous_format
        self.data, self.offsets = _joined([member.data for member in members])
        self.samples = len(first.data)
        self.sizes = [len(own) for own in _split(torch.arange(self.samples), self.how.batch_size)]
        steps = self.how.epochs * len(self.sizes)
        check_number("start", self.loop.start, 0, steps + 1, whole=True)
        keep = self.how.keep
        self.keep = [keep] if hasattr(keep, "__index__") else check_many("keep", keep)
        for step in self.keep:
            check_number("keep", step, self.loop.start, steps + 1, whole=True)
        self.generators = generators
        self.model: nn.Module = first.model
        if stacked:
            # Every member draws the numbers that it would draw alone. Dropout cannot, since it
            # takes no generator: a network with dropout is never stacked.
            seeds = [member.how.seed for member in members]
            self.generators = list(map(generator, seeds))
            self.model = Stack([member.model for member in members])
        else:
            # Set in both cases: a network that comes in channels-last format, and must not be
            # trained in it, would else make oneDNN write past a buffer.
            if trains_channels_last(first.model, first.data):
                self.layout = torch.channels_last
            self.model.to(memory_format=self.layout)
        named = self.how.augment if self.data.inputs.ndim == 4 else "none"
        self.augmentation = AUGMENTATIONS[named]
        self.augments = self.augmentation != AUGMENTATIONS["none"]
        self.objective = joint_objective([member.objective for member in members])
        self.rates = _rates(self.how.schedule, self.how.lr, steps)
        fused = self.device.type in FUSED
        self.optimizer = lookup("optimizer", self.loop.optimizer, OPTIMIZERS)(
            self.model.parameters(),
            lr=self.how.lr,
            momentum=self.how.momentum,
            weight_decay=self.how.weight_decay,
            fused=fused or None,
        )
        if fused:
            # On the GPU it can change between the replays of a graph, where a number could not.
            for group in self.optimizer.param_groups:
                group["lr"] = torch.full((), self.how.lr, device=self.device)
        # Sums by member of losses, hits and what was minimized, on the device until the epoch ends:
        # reading one waits for a GPU.
        self.totals = torch.zeros(len(members), 3, device=self.device)

    def begin(self) -> None:
        """Start the constraints."""
        for member in self.members:
            member.start()
        self._keep_weights()

    def end(self) -> list[nn.Module | DivergenceError]:
        """Return the trained networks, or the errors of those that diverged."""
        if isinstance(self.model, Stack):
            self.model.release()
        else:
            self.model.to(memory_format=torch.contiguous_format)
        return [member.result() for member in self.members]

    def launch(self) -> None:
        """Draw the next epoch and launch its steps, without waiting for a GPU."""
        self.model.train()
        self.epoch, self.seen, self.first_rate = self.epoch + 1, 0, math.nan
        self.totals.zero_()
        draws = [torch.randperm(self.samples, generator=own) for own in self.generators]
        orders = torch.stack(draws).to(self.device) + self.offsets
        # A skipped step draws its batch, and the rates are those of their steps: what follows is
        # the rest of the uninterrupted training.
        skipped = min(max(0, self.loop.start - self.step), len(self.sizes))
        augmentations = iter(self._augmentations(self.sizes[skipped:]))
        for index in orders.split(self.sizes, dim=1):
            if self.step >= self.loop.start:
                rate = self.rates[self.step]
                if not self.seen:
                    self.first_rate = rate
                self.called(index, next(augmentations), rate)
                self.seen += index.shape[1]
            self.step += 1
            self._keep_weights()

    def finish(self) -> bool:
        """Read the sums of the epoch, let constraints act, and note the history.

        Returns:
            Whether the training goes on.
        """
        self.before_reading()
        if not self.seen:
            return True
        rows = []
        for member, means in zip(self.members, (self.totals / self.seen).tolist(), strict=True):
            row = {"epoch": self.epoch, "lr": self.first_rate}
            row |= {"loss": means[0], "accuracy": means[1], "gradients": self.seen}
            if member.constraint:
                row["objective"] = means[2]
            rows.append(row)
        self._end_epoch(rows)
        stop, history = self.loop.stop, self.members[0].history
        return not (all(member.error for member in self.members) or (stop and stop(history[-1])))

    def called(self, index: Tensor, drawn: Tensor | None, rate: float | None) -> None:
        """Take a step.

        Args:
            index: Samples ``(k, B)``.
            drawn: Numbers of their augmentation, if there is any.
            rate: Learning rate; None leaves it as it is.
        """
        if rate is not None:
            set_rate(self.optimizer, rate)
        self.optimizer.zero_grad(set_to_none=True)
        self.totals += self._backward(index, drawn)
        self.optimizer.step()

    def before_reading(self) -> None:
        """Bring the networks up to date before they are read; here they always are."""

    def _augmentations(self, sizes: Sequence[int]) -> Iterable[Tensor | None]:
        """Draw the augmentations of batches of these sizes."""
        if not self.augments:
            return [None] * len(sizes)
        shape = self.data.inputs.shape[1:]
        draws = (self.augmentation.draw(size, shape, self.generators) for size in sizes)
        if self.device.type == "cpu" or not sizes:
            # Drawn when their step comes: dropout draws from the same generator there.
            return draws
        each = [len(self.members) * size for size in sizes]
        return torch.cat(list(draws)).to(self.device).split(each)

    def _backward(self, index: Tensor, drawn: Tensor | None) -> Tensor:
        """Compute the gradients of a batch ``(k, B)``, augmented by the drawn numbers.

        Returns:
            For each member the sums of losses, of hits and of what was minimized, ``(k, 3)``.
        """
        count, size = index.shape
        inputs, targets, groups = self._batch(index.flatten(), drawn)
        with torch.autocast(self.device.type, torch.bfloat16, PRECISIONS[self.how.precision]):
            try:
                logits = self.model(inputs)
            except ValueError as error:
                # The words are torch's, of batch and other normalizations alike.
                if len(inputs) > 1 or "more than 1" not in str(error):
                    raise
                raise ValueError(
                    f"batch_size={self.how.batch_size} leaves one sample in a batch of "
                    f"{self.samples}, of which normalization has no variance: give two at least, "
                    f"or a model without it ({error})"
                ) from error
        if self.step == self.loop.start:
            check_logits(logits, self.data)
        logits = logits.to(self.dtype)
        each: tuple[Tensor, ...] = (logits,)
        held = any(member.constraint for member in self.members)
        if held and count > 1:
            # A constraint may differentiate its losses by its logits. So the joint losses are
            # computed from the members' logits, not these taken as parts of the joint ones.
            each = logits.chunk(count)
            logits = torch.cat(each)
        losses = self.objective(inputs, logits, targets)
        minimized = losses.view(count, -1).mean(1)
        if held:
            parts = [tensor.chunk(count) for tensor in (inputs, targets, groups)]
            parts += [each, losses.chunk(count)]
            values = list(minimized)
            for i, (member, *part) in enumerate(zip(self.members, *parts, strict=True)):
                # A member that has diverged stays in the stack, but a constraint may refuse NaN.
                if member.constraint and not member.error:
                    values[i] = member.constraint.loss(Batch(*part))
            minimized = torch.stack(values)
        # The gradient of the sum in a member's weights is that of the member alone, since no other
        # member's value depends on them.
        minimized.sum().backward()
        hits = (logits.argmax(1) == targets).view(count, size).sum(1)
        loss = losses.detach().view(count, -1).sum(1)
        return torch.stack([loss, hits, minimized.detach() * size], 1)

    def _batch(self, index: Tensor, drawn: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return inputs, augmented, targets and groups of samples."""
        inputs = self.data.batch(index, dtype=self.dtype, device=self.device)
        if drawn is not None:
            inputs = self.augmentation.apply(inputs, drawn)
        if inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=self.layout)
        return inputs, self.data.targets[index], self.data.groups[index]

    def _end_epoch(self, rows: Sequence[dict[str, float]]) -> None:
        for member, row in zip(self.members, rows, strict=True):
            if not member.error:
                member.act(row)
        # The losses of an epoch are those before its last step, so weights that became infinite in
        # that step show in the outputs alone: one sample of each member, in one pass for all.
        with evaluation_mode(self.model), torch.no_grad():
            first = self.data.batch(self.offsets.flatten(), dtype=self.dtype, device=self.device)
            is_finite = self.model(first).isfinite().all(1).tolist()
        for member, row, finite in zip(self.members, rows, is_finite, strict=True):
            if not member.error:
                member.end_epoch(row, finite)

    def _keep_weights(self) -> None:
        if self.step in self.keep:
            self.before_reading()
            for member in self.members:
                member.keep_weights(self.step)


def _joined(datas: Sequence[GroupedDataset]) -> tuple[GroupedDataset, Tensor]:
    """Join data sets to one; one that all members share is taken once.

    Returns:
        The data, and the position ``(k, 1)`` of the first sample of each member.
    """
    first, count = datas[0], len(datas)
    offsets = torch.zeros(count, 1, dtype=torch.int64, device=first.targets.device)
    if all(data is first for data in datas):
        return first, offsets
    starts = torch.arange(count, device=offsets.device)[:, None] * len(first)
    return concatenated(datas), offsets + starts


def _split(order: Tensor, batch_size: int) -> list[Tensor]:
    """Split an order of samples ``(N,)`` into batches."""
    parts = list(order.split(batch_size))
    # Batch normalization cannot train on a single sample.
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


def _rates(schedule: str, lr: float, steps: int) -> list[float]:
    """Compute the learning rate of each step of a training."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    scheduler, rates = LR_SCHEDULES[schedule](optimizer, max(1, steps)), []
    for _ in range(steps):
        rates.append(float(scheduler.get_last_lr()[0]))
        optimizer.step()
        scheduler.step()
    return rates


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate, in place where it is a tensor."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


@contextmanager
def reproducible() -> Iterator[None]:
    """Restrict cuDNN to deterministic algorithms within a block, of which it times the fastest."""
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = True, True
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before
