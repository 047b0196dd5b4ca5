"""Trainings on a GPU whose steps are recorded once and replayed.

A step of a small network is a few hundred kernels, and Python launches them more slowly than the
GPU computes them. So the step is captured as a CUDA graph, which one call replays. A graph reads
and writes the same memory every time, hence slots: a slot holds the tensors of one network, of its
optimizer, constraint, teacher and data. Trainings of one form share it: before each epoch a
training's tensors are copied in, and after it out again, so that constraints, validation and the
history see an ordinary model. Several slots go in turn, each on a stream of its own, and fill the
GPU together.

A graph repeats the kernels of a step and none of its Python. A trial finds steps whose Python waits
for the GPU, draws random numbers, or does something else from one step to the next; these are
launched by Python. A module that does something else only every so many steps, and keeps no count
of them in its attributes, is not found: ``FAIRLIB_AUTO=0`` is for such a one.
"""

from __future__ import annotations

import copy
import functools
import random
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fairlib.data import GroupedDataset
from fairlib.network import keeping, stacking
from fairlib.network.copying import copied
from fairlib.network.memory import TrainingMemory
from fairlib.randomness import generator, seeded
from fairlib.training.distillation import Distillation
from fairlib.training.loop import (
    DivergenceError,
    Loop,
    Member,
    Training,
    check,
    reproducible,
    set_rate,
    train,
)

SLOTS = 8
"""Most slots at a time."""

_FREE = ("seed", "val", "keep", "epochs", "lr", "schedule", "objective", "constraint")
"""Settings of :func:`fairlib.fit` that :func:`slot_form` leaves out or describes otherwise."""

Done = Callable[[int, nn.Module | DivergenceError], None]


class _NotReplayable(Exception):
    """Steps that must be launched by Python, for the reason in the message."""


def _captured(step: Callable[[], None]) -> Callable[[], None]:
    """Capture a step on the current stream as a CUDA graph; return what replays it."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        step()
    return graph.replay


RECORDERS = {"cuda": _captured}
"""By type of device the function that records a step and returns what replays it."""


def why_called(training: Training) -> str | None:
    """Say why the steps of a training on a GPU cannot be replayed, or None where a trial decides.

    Returns:
        The end of a sentence with "since".
    """
    constraint, objective = (training.settings.get(name) for name in ("constraint", "objective"))
    if training.loop.sparsify:
        return "masks change from epoch to epoch"
    if constraint is not None:
        # Looked up in the class itself: a subclass may look at the model where its parent does not.
        own = vars(type(constraint))
        if not (own.get("by_batch") or own.get("by_tensors")):
            return f"{type(constraint).__name__} looks at the network at every step"
    if objective is not None and type(objective) is not Distillation:
        return "an objective of your own is computed step by step"
    return next(filter(None, map(stacking.hooked, training.model.modules())), None)


def run(trainings: Sequence[Training], device: str, done: Done) -> None:
    """Carry out trainings on a GPU, several at a time where there are several.

    Args:
        trainings: Trainings of any form.
        device: Name of the device.
        done: Function of the position of a training and its result, called as each ends.

    Warns:
        UserWarning: If steps are launched by Python, or fewer slots fit; once in a process for each
            reason.
    """
    waiting = deque(enumerate(trainings))
    resident: dict[int, GroupedDataset] = {}
    running: deque[Slot] = deque()
    idle: list[Slot] = []
    most = SLOTS

    def advance() -> None:
        """End the epoch that was launched first, and launch the next one of its slot."""
        slot = running.popleft()
        if slot.finish():
            running.append(slot)
        else:
            idle.append(slot)
            done(*slot.result())

    def begin(number: int, training: Training) -> None:
        """Load a training into an idle slot of its form, or a new one, and launch it."""
        if reason := why_called(training):
            raise _NotReplayable(reason)
        kind = type(training.arguments.constraint)
        # Only the state of fairlib's own is known to lie in tensors that `_state` finds.
        if not kind.__module__.startswith(("fairlib.", "builtins")):
            raise _NotReplayable(f"{kind.__name__} is not one of fairlib's constraints")
        if id(training.data) not in resident:
            resident[id(training.data)] = training.data.to(device)
        data, wanted = resident[id(training.data)], slot_form(training)
        slot = next((slot for slot in idle if slot.form == wanted), None)
        if slot is None:
            # The memory of slots that nothing fits any more goes to the new one.
            del idle[: max(0, len(idle) + len(running) + 1 - most)]
            slot = Slot(training, data, device)
        else:
            idle.remove(slot)
        slot.load(number, training, data)
        running.append(slot)

    with seeded(0), reproducible():
        while waiting or running:
            # Dropout draws from the one generator of the GPU: nothing may begin beside it.
            if not waiting or len(running) >= most or any(slot.draws for slot in running):
                advance()
                continue
            number, training = waiting.popleft()
            check(training)
            why = full = ""
            try:
                if training.arguments.epochs:
                    begin(number, training)
                    continue
            except _NotReplayable as error:
                why = str(error)
            except torch.OutOfMemoryError:
                full = "the memory of the GPU is full"
            except Exception as error:  # Whatever it is, the steps themselves may still be fine.
                why = f"they cannot be recorded ({type(error).__name__}: {error})"
            # Only here, after the error is gone: it holds a slot that was half made.
            if full and (running or idle):
                most = max(1, len(running))
                idle.clear()
                _say(f"{most} networks are trained at a time, since {full}")
                waiting.appendleft((number, training))
                continue
            (trained,) = train([training])
            if why or full:
                _say(f"the steps of a training are launched one by one, since {why or full}")
            done(number, trained)


class Slot:
    """Tensors of one network on a device, and its recorded steps.

    Args:
        training: A training of the slot's form.
        data: Its data on the device.
        device: Name of the device.

    Attributes:
        form: Text of properties that the trainings of a slot share.
        draws: Whether a step draws random numbers on the device, for example for dropout.

    Raises:
        RuntimeError: If replayed steps do not leave what called ones do, or a number that Python
            holds changes from step to step.
    """

    def __init__(self, training: Training, data: GroupedDataset, device: str) -> None:
        self.device, self.form = device, slot_form(training)
        self.stream = torch.cuda.Stream(device) if device.startswith("cuda") else None
        self.draws = False
        objective = training.settings.get("objective")
        if objective is not None:
            # A copy: the tensors of other teachers are copied into its.
            objective, given = copy.copy(objective), objective
            object.__setattr__(objective, "teacher", copied(given.teacher).to(device))
        settings = {**training.settings, "keep": (), "val": None, "objective": objective}
        own = replace(training, settings=settings, loop=replace(training.loop, start=0, stop=None))
        with torch.cuda.stream(self.stream), seeded(0):
            self._wait()
            twin_data = data._replace(*(tensor.clone() for tensor in _arrays(data)))
            member = Member(own, twin_data, device)
            self.twin = Loop([member], False, [generator(0)])
            self.twin.begin()
            self.twin.model.train()
            self.steps = {size: self._record(size) for size in set(self.twin.sizes)}

    def load(self, number: int, training: Training, data: GroupedDataset) -> None:
        """Begin a training, and launch its first epoch."""
        with torch.cuda.stream(self.stream):
            self._wait()
            member = Member(training, data, self.device)
            self.number, own = number, generator(training.arguments.seed)
            self.job = _Job([member], False, [own])
            self.job.begin()
            _copy_silently(self._fixed(self.twin), self._fixed(self.job))
            for tensor in _state(self.twin.optimizer.state)[0]:
                tensor.zero_()
            if self.draws:
                torch.manual_seed(own.initial_seed())
            self.job.totals, self.job.slot = self.twin.totals, self
        self._launch()

    def finish(self) -> bool:
        """End the epoch that was launched, and launch the next; return False if there is none."""
        with torch.cuda.stream(self.stream):
            goes_on = self.job.finish() and self.job.epoch < self.job.how.epochs
        if goes_on:
            self._launch()
        return goes_on

    def result(self) -> tuple[int, nn.Module | DivergenceError]:
        """Return the number of the training that has ended, and its network or error."""
        with torch.cuda.stream(self.stream):
            (trained,) = self.job.end()
        if self.stream:
            # Others read it on their own stream.
            self.stream.synchronize()
        del self.job
        return self.number, trained

    def _launch(self) -> None:
        with torch.cuda.stream(self.stream):
            _copy_silently(self._changing(self.twin), self._changing(self.job))
            self.job.launch()

    @torch.no_grad()
    def unload(self) -> None:
        """Copy out what the training has changed."""
        for own, trained in zip(self._changing(self.job), self._changing(self.twin), strict=True):
            own.copy_(trained)

    def replay(self, index: Tensor, drawn: Tensor | None, rate: float | None) -> None:
        """Replay a step of these samples, at this learning rate."""
        own_index, own_drawn, replay = self.steps[index.shape[1]]
        own_index.copy_(index)
        if drawn is not None:
            own_drawn.copy_(drawn)
        if rate is not None:
            set_rate(self.twin.optimizer, rate)
        replay()

    def _changing(self, loop: Loop) -> list[Tensor]:
        """List the tensors that a training changes, but those of the optimizer."""
        member, known = loop.members[0], set(map(id, self._fixed(loop)))
        tensors, _ = _state(member.model, member.constraint)
        return [tensor for tensor in tensors if id(tensor) not in known]

    def _fixed(self, loop: Loop) -> list[Tensor]:
        """List the tensors that a training only reads: its data and its teacher."""
        member = loop.members[0]
        teacher = getattr(member.objective, "teacher", None)
        return [*_arrays(member.data), *_state(teacher)[0]]

    def _wait(self) -> None:
        """Wait, on the slot's stream, for what was launched elsewhere."""
        if self.stream:
            self.stream.wait_stream(torch.cuda.default_stream(self.stream.device))

    def _record(self, size: int) -> tuple[Tensor, Tensor, Callable[[], None]]:
        """Record a step of so many samples, and try it against two steps that are called."""
        twin, member = self.twin, self.twin.members[0]
        index = torch.arange(size, device=self.device)[None]
        drawn = torch.zeros(size, 3, dtype=torch.int64, device=self.device)
        step = partial(twin.called, index, drawn if twin.augments else None, None)
        # At a rate at which numbers stay finite: of NaN a trial could tell nothing.
        set_rate(twin.optimizer, 1e-3)
        step()  # Optimizers make their tensors, and libraries choose their algorithms.
        roots = (member.model, member.constraint, dict(twin.optimizer.state), twin.totals)
        tensors, numbers = _state(*roots)
        before, draws = [tensor.detach().clone() for tensor in tensors], _draws(self.device)
        host = _host_draws(self.device)
        step()
        self.draws = not torch.equal(draws, _draws(self.device))
        with _never_waiting(self.device):
            step()
        called = [tensor.detach().clone() for tensor in tensors]
        if _state(*roots)[1] != numbers or _host_draws(self.device) != host:
            raise RuntimeError("numbers that Python holds change from step to step")
        if not all(part.isfinite().all() for part in member.model.parameters()):
            raise RuntimeError("its weights become infinite or NaN at once")
        for group in twin.optimizer.param_groups:
            group["capturable"] = True  # Adam refuses to be captured otherwise.
        # Masks are looked at within the graph, since other masks will be copied in.
        keeping.forget(member.model)
        _copy_silently(tensors, before)
        replay = RECORDERS[torch.device(self.device).type](step)
        keeping.forget(member.model)
        _copy_silently(tensors, before)
        _draws(self.device, draws)
        replay()
        replay()
        if not all(map(_agree, tensors, called, before)):
            raise RuntimeError("replayed, it leaves other numbers than called")
        return index, drawn, replay


class _Job(Loop):
    """A training whose steps are replayed in a slot."""

    slot: Slot | None = None

    def called(self, index: Tensor, drawn: Tensor | None, rate: float | None) -> None:
        if self.slot:
            self.slot.replay(index, drawn, rate)

    def before_reading(self) -> None:
        if self.slot:
            self.slot.unload()


def slot_form(training: Training) -> str:
    """Describe what the trainings of a slot share: all that a step reads but tensors' values."""
    how, data, model = training.arguments, training.data, training.model
    shared = {name: value for name, value in vars(how).items() if name not in _FREE}
    # The reference of an accuracy gap is a tensor of its run, which is copied in.
    given = {k: v for k, v in vars(how.constraint or data).items() if k != "reference"}
    constraint = how.constraint and (type(how.constraint), given)
    arrays = (data.inputs.shape, data.inputs.dtype, data.normalize)
    classes = data.num_classes, data.num_groups
    texts = []
    for module in (model, getattr(how.objective, "teacher", None)):
        tensors, numbers = _state(module)
        shapes = [(tensor.shape, tensor.dtype, tensor.requires_grad) for tensor in tensors]
        texts.append((repr(module), shapes, numbers))
    bits = sorted(keeping.kept(model, keeping.BITS).items())
    objective = repr(how.objective)
    return repr(
        (shared, training.loop.optimizer, constraint, objective, arrays, classes, texts, bits)
    )


@torch.no_grad()
def _agree(found: Tensor, expected: Tensor, before: Tensor) -> bool:
    """Tell whether two replayed steps leave in a tensor what two called ones do."""
    if not found.is_floating_point():
        return torch.equal(found, expected)
    # Some kernels add in another order each time; a step that is left out is half of the change.
    room = 0.05 * (expected - before).abs().nan_to_num().max() if found.numel() else 0
    return torch.allclose(found, expected, rtol=1e-4, atol=float(room), equal_nan=True)


def _arrays(data: GroupedDataset) -> list[Tensor]:
    return [data.inputs, data.targets, data.groups]


def _state(*roots: object) -> tuple[list[Tensor], list[object]]:
    """List the tensors within objects, each once, and their numbers and texts.

    Modules, objects of fairlib, lists and dictionaries are looked into; data sets are not, since
    trainings share them.
    """
    tensors: list[Tensor] = []
    numbers: list[object] = []
    seen: dict[int, object] = {}

    def visit(value: object) -> None:
        if isinstance(value, bool | int | float | str | None):
            numbers.append(value)
            return
        if id(value) in seen or isinstance(value, GroupedDataset):
            return
        seen[id(value)] = value
        inside: Iterable[object] = ()
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, nn.Module):
            numbers.append(type(value))
            # Neither hooks, nor what is remembered of its training.
            own = vars(value).items()
            inside = [v for k, v in own if "hook" not in k and not isinstance(v, TrainingMemory)]
        elif isinstance(value, Mapping):
            inside = value.values()
        elif isinstance(value, list | tuple):
            inside = value
        elif type(value).__module__.startswith("fairlib."):
            inside = vars(value).values()
        else:
            numbers.append(repr(value))
        for each in inside:
            visit(each)

    for root in roots:
        visit(root)
    return tensors, numbers


def _copy_silently(into: Sequence[Tensor], from_: Sequence[Tensor]) -> None:
    # Through ``data``, which torch does not count as a change: a weight's keeper would read its
    # bits from the GPU again, in the midst of a capture.
    for one, other in zip(into, from_, strict=True):
        one.data.copy_(other.data)


def _draws(device: str, state: Tensor | None = None) -> Tensor:
    """Read the state of the random numbers of a device, after it was set if one is given."""
    own = (device,) if device.startswith("cuda") else ()
    module: Any = torch.cuda if own else torch.random
    if state is not None:
        module.set_rng_state(state, *own)
    return module.get_rng_state(*own)


def _host_draws(device: str) -> list[object]:
    """Read the states of random numbers that Python draws while a step is launched."""
    found: list[object] = [random.getstate(), repr(np.random.get_state())]
    return found + [torch.get_rng_state().tolist()] * device.startswith("cuda")


@contextmanager
def _never_waiting(device: str) -> Iterator[None]:
    """Make an error of what waits for a GPU within a block.

    In a capture it would be an error, too, after which CUDA names another cause.
    """
    if not device.startswith("cuda"):
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # It warns that it does not see everything.
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@functools.cache
def _say(sentence: str) -> None:
    warnings.warn(sentence, stacklevel=2)
