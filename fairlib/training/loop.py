"""The one training loop. Constraints, teachers and masks plug into it at :mod:`fairlib.training.protocols`."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from fairlib import environment
from fairlib._validation import check_number, lookup
from fairlib.data import GroupedDataset
from fairlib.models.normalization import fill_normalization
from fairlib.network import masks
from fairlib.network.evaluation import check_logits, placement, predict
from fairlib.network.memory import add_gradients, inherit
from fairlib.randomness import seeded
from fairlib.training.protocols import Batch, Constraint, ConstraintRun, Objective, Sparsifier


class DivergenceError(FloatingPointError):
    """Training has left the floating-point numbers."""


def _cross_entropy(inputs: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(logits, targets, reduction="none")


def _crop(images: Tensor) -> Tensor:
    """Shift each image by up to an eighth of its size, repeating the pixels of the edge."""
    n, _, height, width = images.shape
    reach = (max(1, height // 8), max(1, width // 8))
    dy, dx = (torch.randint(-r, r + 1, (n, 1), device="cpu").to(images.device) for r in reach)
    rows = (torch.arange(height, device=images.device) + dy).clamp(0, height - 1)
    columns = (torch.arange(width, device=images.device) + dx).clamp(0, width - 1)
    sample = torch.arange(n, device=images.device)[:, None, None]
    return images.permute(0, 2, 3, 1)[sample, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def _flip(images: Tensor) -> Tensor:
    """Mirror each image left to right with probability one half."""
    chosen = torch.rand(len(images)).lt(0.5).to(images.device)
    return torch.where(chosen[:, None, None, None], images.flip(3), images)


AUGMENTATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda images: images,
    "flip": _flip,
    "crop": _crop,
    "crop+flip": lambda images: _flip(_crop(images)),
}

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": lambda parameters, *, lr, momentum, weight_decay: torch.optim.Adam(
        parameters, lr=lr, weight_decay=weight_decay
    ),
}

SCHEDULES: dict[str, Callable[[torch.optim.Optimizer, int], torch.optim.lr_scheduler.LRScheduler]] = {
    "constant": lambda optimizer, steps: torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0),
    "cosine": lambda optimizer, steps: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps),
    "step": lambda optimizer, steps: torch.optim.lr_scheduler.MultiStepLR(optimizer, [steps // 2, steps * 3 // 4]),
}


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
    channels_last: bool = False,
    progress: bool = False,
) -> nn.Module:
    r"""Train a copy of a classifier, by SGD with momentum unless asked otherwise, and give it back in eval mode.

    With gradient :math:`g` of the mean loss of a batch, learning rate :math:`\eta`, momentum :math:`\mu` and weight
    decay :math:`\gamma`, a step is :math:`v \leftarrow \mu v + g + \gamma \theta` and then
    :math:`\theta \leftarrow \theta - \eta v`. The data are moved to the device once, as they are (uint8 images stay
    uint8), and fed by the batch. On one CPU the result is bit-identical for one seed and one number of threads; on CUDA
    cuDNN is held to deterministic algorithms, and torch's settings of TF32 stand as they are. The weights of the last
    epoch are returned: nothing is selected.

    Args:
        model: Any module that maps inputs to logits; left as it is. A model of the zoo whose normalization is not set
            yet has it set from ``data``.
        data: The training set.
        val: Where loss and accuracy are measured after each epoch, for the history.
        epochs: Passes over ``data``; 0 gives back a copy.
        lr: Learning rate at the start.
        batch_size: Samples of a step. A last batch of a single sample joins the one before it.
        momentum: Of SGD, in [0, 1).
        weight_decay: Factor of the squared-norm penalty, on every parameter.
        optimizer: ``"sgd"``, or ``"adam"``, with torch's factors of decay and without ``momentum``.
        schedule: ``"cosine"`` to zero by the step, ``"step"`` (x0.1 at 1/2 and at 3/4) or ``"constant"``.
        augment: ``"none"``, ``"flip"``, ``"crop"`` (shifts of up to an eighth) or ``"crop+flip"``, by the batch.
        objective: Per-sample losses; cross-entropy by default. A teacher plugs in here.
        constraint: For example ``fairlib.EqualLoss(step=0.02)``.
        sparsify: The masks of the model after each epoch; what is masked stays zero in the next.
        stop: Ends the training after an epoch for whose row of the history it is true.
        start: Step at which to begin: the batches before it are drawn and passed over, and the learning rate is what
            the schedule gives there. Momentum begins at zero. Augmentation and dropout do not draw before it, so that
            with them other batches follow. For models rewound to :func:`weights_at` that step.
        keep: Numbers of steps after which the weights are kept for :func:`weights_at`; 0 is before the first.
        seed: Order of batches, augmentation and dropout. The global generators are left as they were found.
        device: ``"auto"`` (CUDA where there is one) or a torch device. The result stays there.
        precision: ``"float32"`` or ``"bfloat16"`` (autocast; weights stay float32).
        channels_last: Memory format of images and weights; faster where convolutions are large.
        progress: Show a bar.

    Returns:
        The trained copy, in eval mode; :func:`history` tells how it went.

    Raises:
        DivergenceError: If the loss, or the output after an epoch, becomes infinite or NaN; the message says at which
            epoch and what to lower.
        TypeError: If a setting is no number, or no integer where one is needed.
        ValueError: If a setting is out of range, an input does not fit the model, or the outputs do not match the
            classes of the data.
    """
    _check(epochs, batch_size, lr, momentum, weight_decay)
    target = torch.device(environment.resolve(device))
    trained = copy.deepcopy(model).to(target)
    resident = data.to(target)
    fill_normalization(trained, resident)
    batches = len(_split(torch.arange(len(data)), batch_size))
    check_number("start", start, 0, epochs * batches + 1, whole=True)
    stepper = lookup("optimizer", optimizer, OPTIMIZERS)(
        trained.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay
    )
    loop = _Loop(
        model=trained,
        data=resident,
        batch_size=batch_size,
        optimizer=stepper,
        scheduler=lookup("schedule", schedule, SCHEDULES)(stepper, max(1, epochs * batches)),
        augment=lookup("augmentation", augment, AUGMENTATIONS),
        objective=objective or _cross_entropy,
        autocast=lookup("precision", precision, {"float32": False, "bfloat16": True}),
        layout=torch.channels_last if channels_last else torch.contiguous_format,
        keep=_steps_to_keep(keep, start, epochs * batches),
        start=start,
    )
    with seeded(seed), _reproducible():
        running = constraint.start(trained, resident, loop.objective) if constraint else None
        loop.keep_weights()
        rounds = range(1, epochs + 1)
        for epoch in tqdm(rounds, desc="epochs", leave=False) if progress else rounds:
            seen = loop.epoch(running)
            if seen is None:
                continue
            reported = running.end_epoch() if running else {}
            seen["gradients"] += reported.pop("gradients", 0)
            row = {"epoch": epoch} | seen | reported
            if sparsify:
                masks.impose(trained, sparsify(trained, epoch / epochs))
            row |= loop.validation(val)
            _refuse_divergence(row, epochs, lr, constraint)
            loop.history.append(row)
            if stop and stop(row):
                break
    inherit(trained, model, history=loop.history, kept=loop.kept)
    return add_gradients(trained, sum(row["gradients"] for row in loop.history)).eval()


@dataclass
class _Loop:
    """The state of one training."""

    model: nn.Module
    data: GroupedDataset
    batch_size: int
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    augment: Callable[[Tensor], Tensor]
    objective: Objective
    autocast: bool
    layout: torch.memory_format
    keep: set[int]
    start: int
    step: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
    kept: dict[int, dict[str, Tensor]] = field(default_factory=dict)

    def __post_init__(self):
        self.device, self.dtype = placement(self.model)
        self.model.to(memory_format=self.layout)

    def epoch(self, running: ConstraintRun | None) -> dict[str, float] | None:
        """Train on every batch of an epoch from step ``start`` on; None if that leaves none.

        Returns:
            Learning rate of the first step, mean loss and accuracy over the batches as they were met, and how many
            samples they had, whose gradients were taken.
        """
        self.model.train()
        rate, seen = math.nan, 0
        totals = torch.zeros(3, device=self.device)  # Read once an epoch: reading waits for a GPU.
        for index in _split(torch.randperm(len(self.data)).to(self.device), self.batch_size):
            self.optimizer.zero_grad(set_to_none=True)
            if self.step < self.start:
                self._advance()
                continue
            if not seen:
                rate = self.scheduler.get_last_lr()[0]
            batch = self._forward(index)
            loss = running.loss(batch) if running else batch.losses.mean()
            loss.backward()
            self._advance()
            seen += len(index)
            hits = (batch.logits.argmax(1) == batch.targets).sum()
            totals += torch.stack([batch.losses.detach().sum(), hits, loss.detach() * len(index)])
        if not seen:
            return None
        loss, accuracy, objective = (totals / seen).tolist()
        row = {"lr": rate, "loss": loss, "accuracy": accuracy, "gradients": seen}
        return row | ({"objective": objective} if running else {})

    def _advance(self) -> None:
        """A step of optimizer (which does nothing without gradients) and schedule."""
        self.optimizer.step()
        self.scheduler.step()
        self.step += 1
        self.keep_weights()

    def validation(self, val: GroupedDataset | None) -> dict[str, float]:
        """Loss and accuracy after the epoch; NaN where the weights have left the numbers."""
        try:
            seen = predict(self.model, self.data.subset(range(1)) if val is None else val)
        except FloatingPointError:
            return {"val_loss": math.nan, "val_accuracy": math.nan}
        return {} if val is None else {"val_loss": seen.loss.mean().item(), "val_accuracy": seen.correct.mean().item()}

    def keep_weights(self) -> None:
        if self.step in self.keep:
            state = self.model.state_dict()
            self.kept[self.step] = {name: tensor.detach().cpu().clone() for name, tensor in state.items()}

    def _forward(self, index: Tensor) -> Batch:
        inputs = self.data.batch(index, dtype=self.dtype, device=self.device)
        if inputs.ndim == 4:
            inputs = self.augment(inputs).contiguous(memory_format=self.layout)
        targets = self.data.targets[index]
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            logits = self.model(inputs)
        if self.step == self.start:
            check_logits(logits, self.data)
        logits = logits.to(self.dtype)
        losses = self.objective(inputs, logits, targets)
        return Batch(inputs, targets, self.data.groups[index], logits, losses)


def _steps_to_keep(keep: int | Sequence[int], start: int, steps: int) -> set[int]:
    wanted = {int(keep)} if hasattr(keep, "__index__") else set(keep)
    if any(not start <= step <= steps for step in wanted):
        raise ValueError(f"keep must lie between {start} and the {steps} steps of this training, got {sorted(wanted)}")
    return wanted


def _check(epochs: int, batch_size: int, lr: float, momentum: float, weight_decay: float) -> None:
    check_number("epochs", epochs, 0, whole=True)
    check_number("batch_size", batch_size, 1, whole=True)
    check_number("lr", lr, 0, low_open=True)
    check_number("momentum", momentum, 0, 1)
    check_number("weight_decay", weight_decay, 0)


def _split(order: Tensor, batch_size: int) -> list[Tensor]:
    """Batches of an epoch; a single sample at the end, of which batch normalization makes nothing, joins the last."""
    parts = list(order.split(batch_size))
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


def _refuse_divergence(row: dict[str, float], epochs: int, lr: float, constraint: Constraint | None) -> None:
    if all(math.isfinite(value) for value in row.values()):
        return
    others = {name: value for name, value in row.items() if name not in ("epoch", "lr", "gradients")}
    advice = f"lower lr ({lr})" + (f", or the strength of {constraint}" if constraint else "")
    state = ", ".join(f"{name} {value:.3g}" for name, value in others.items())
    raise DivergenceError(f"training diverged at epoch {row['epoch']} of {epochs} ({state}); {advice}")


@contextmanager
def _reproducible() -> Iterator[None]:
    """cuDNN picks the same algorithm every time; its settings are put back afterwards."""
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before
