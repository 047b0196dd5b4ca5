"""The arms of a study, completed and checked before anything is trained."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

from torch import nn

from fairlib._validation import check_many, check_number, lookup, name_and_settings
from fairlib.compression import DISTILLATION, FACTORIZATION, QUANTIZATION
from fairlib.data import GroupedDataset
from fairlib.linearization import LINEARIZATION
from fairlib.mitigation import MITIGATIONS
from fairlib.network import masks
from fairlib.pruning import PRUNING
from fairlib.training import Constraint, Objective
from fairlib.training.compressors import Kind, Method, Settings, share_of_bytes
from fairlib.training.loop import check_training

Named = str | tuple[str, Settings]
Function = Callable[..., nn.Module]
Methods = Named | Function | list[Named | Function]
Level = float | tuple[float, ...]

COMPRESSORS: dict[str, Kind] = {
    "prune": PRUNING,
    "linearize": LINEARIZATION,
    "quantize": QUANTIZATION,
    "factorize": FACTORIZATION,
    "distil": DISTILLATION,
}
"""Kinds of compression, by the word before the colon in a method's name."""

HELD_OUT = ("val", "train", "val-only")
"""Origins of the held-out data of a method: the validation part, or a share that the method splits
off its data, which are the training part, or with ``"val-only"`` the validation part."""

WHEN = {
    "never": (False, False),
    "before": (True, False),
    "after": (False, True),
    "both": (True, True),
}
"""Mitigation in the dense training and in the finetuning of a run, by the name of the time."""

OWN = ("val", "objective", "constraint", "seed", "device")
"""Arguments of :func:`fairlib.fit` that the study sets itself."""


class Step(NamedTuple):
    """One method of an arm: its full name, ``"prune:magnitude"``, its kind, name and settings."""

    full_name: str
    compressor: Kind
    method: str
    settings: Settings

    @property
    def entry(self) -> Method:
        """Entry of the method in its registry."""
        return self.compressor.methods[self.method]

    @property
    def trains(self) -> bool:
        """Tell whether the method trains with its settings."""
        return self.entry.trains or self.compressor.training(self.method, self.settings)


@dataclass(frozen=True)
class Arm:
    """One way through a study: the method and levels of compression, the trainings, the mitigation.

    An argument that is None is the one of the study. All arms of a study share its data, its
    networks before compression and, if they finetune alike, the control.

    Args:
        method: Method of compression: a name with its kind, ``(name, settings)`` or a function
            (:func:`study`); or a list of these, a pipeline.
        mitigation: Name of a mitigation or ``(name, settings)``.
        when: Times of mitigation: any of ``"never"``, ``"before"``, ``"after"`` and ``"both"``.
        finetune: Arguments of :func:`fairlib.fit` for the finetuning, which override the study's
            one by one.
        train: Arguments of :func:`fairlib.fit`, which override the study's one by one, for the
            trainings of a method that trains or of a network that is compressed at its initial
            weights. The dense training is the study's.
        compress: ``"trained"`` to compress and finetune the dense model; ``"initial"`` to compress
            the network at its initial weights, train it like the dense one and finetune it.
        levels: Levels of compression; of a pipeline tuples, one entry for each method.
        control: Train a control, the dense network finetuned in the same way. False saves that.

    Example:
        Two ways to the same sparsity, which share their dense network and their control:

        >>> import fairlib
        >>> from fairlib.studies import RunSettings
        >>> arms = {"at once": fairlib.Arm(), "at random": fairlib.Arm("prune:random")}
        >>> table = fairlib.study(
        ...     "digits", "mlp", "prune:magnitude", [0.9], arms=arms, seeds=[0],
        ...     train={"epochs": 1}, finetune={"epochs": 1}, run=RunSettings(cache=None, workers=1),
        ... )
        >>> compressed = table[table["stage"] == "compressed"].groupby("arm", sort=False)
        >>> compressed["method"].first().to_dict()
        {'at once': 'prune:magnitude', 'at random': 'prune:random'}
        >>> control = table[(table["stage"] == "control") & (table["split"] == "test")]
        >>> int(control.groupby("group")["accuracy"].nunique().max())
        1
    """

    method: Methods | None = None
    mitigation: Named | None = None
    when: str | Iterable[str] | None = None
    finetune: Settings | None = None
    train: Settings | None = None
    compress: str = "trained"
    levels: Iterable[Level] | None = None
    control: bool = True

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """Methods in the order in which they compress; mostly one."""
        return _steps(self.method)

    @cached_property
    def constraint(self) -> Constraint | None:
        """Mitigation of the arm, by its name and settings."""
        if self.mitigation is None:
            return None
        name, settings = name_and_settings("mitigation", self.mitigation)
        return lookup("mitigation", name, MITIGATIONS)(**settings)

    @property
    def mitigation_name(self) -> str:
        """Name of the mitigation in the table."""
        return name_and_settings("mitigation", self.mitigation or "none")[0]

    @property
    def full_name(self) -> str:
        """Names of the methods with their kinds, ``"prune:magnitude + quantize:weights"``."""
        return " + ".join(step.full_name for step in self.steps)

    @property
    def control_level(self) -> tuple[float, ...]:
        """Level at which nothing is compressed."""
        return tuple(step.compressor.control for step in self.steps)

    @property
    def finetunes(self) -> bool:
        """Tell whether the networks that the methods return can be finetuned."""
        return all(step.entry.finetunes for step in self.steps)

    def constraints(self, when: str) -> tuple[Constraint | None, Constraint | None]:
        """Return the constraints of the dense training and of the finetuning."""
        first, last = WHEN[when]
        return self.constraint if first else None, self.constraint if last else None

    def objective(self, dense: nn.Module, data: GroupedDataset) -> Objective | None:
        """Return the objective of the finetuning: of the first method that has one, or None."""
        found = (step.compressor.objective(dense, data, step.settings) for step in self.steps)
        return next((objective for objective in found if objective is not None), None)

    def kept(self, model: nn.Module, dense: nn.Module) -> float:
        """Return the share that a compressed model keeps; of bytes after several methods."""
        if len(self.steps) == 1:
            return self.steps[0].compressor.kept(model, dense)
        return share_of_bytes(model, dense)


def complete_arms(
    arms: Mapping[str, Arm] | Iterable[tuple[str, Arm]] | None, shared: Arm, train: Settings
) -> dict[str, Arm]:
    """Complete and check all arms.

    Args:
        arms: Arms by name; None if the study itself is the only one, whose name is empty.
        shared: Arguments of the study, which an arm takes where it has none itself.
        train: Arguments of the dense training.

    Returns:
        Arms without None but for the mitigation: ``when`` is a tuple, ``train`` and ``finetune``
        are complete, and ``levels`` are those except the control's, ascending, each a tuple with
        one entry for each step.

    Raises:
        ValueError: If an arm has no name, no method or an argument that does not fit; names the
            arm.
        TypeError: If a setting is unknown.
    """
    if arms is None:
        return {"": _complete(Arm(), shared, train)}
    pairs = list(arms.items() if isinstance(arms, Mapping) else arms)
    names = [name for name, _ in pairs]
    has_names = all(isinstance(name, str) and name for name in names)
    if not names or len(set(names)) < len(names) or not has_names:
        raise ValueError(f"arms must have names, each once; got {names}")
    found = {}
    for name, arm in pairs:
        try:
            found[name] = _complete(arm, shared, train)
        except (TypeError, ValueError) as error:
            raise type(error)(f"arm {name!r}: {error}") from error
    return found


def _complete(arm: Arm, shared: Arm, train: Settings) -> Arm:
    if not isinstance(arm, Arm):
        raise TypeError(f"an arm must be an Arm, got {arm!r}")
    # Not vars(arm), in which cached properties are found as well.
    given = {each.name: getattr(arm, each.name) for each in fields(arm)}
    full = replace(shared, **{name: value for name, value in given.items() if value is not None})
    if full.method is None:
        raise ValueError("a method is needed, as method= of the study or of the arm")
    check_training("train=", arm.train or {}, given=OWN)
    for arguments in (shared.finetune, arm.finetune):
        check_training("finetune=", arguments or {}, given=OWN)
    lookup("network to compress", full.compress, dict.fromkeys(("trained", "initial")))
    # The steps to keep are those of the dense training: the finetuning may not even have as many.
    inherited = {key: value for key, value in train.items() if key != "keep"}
    inherited |= {"epochs": 5, "lr": float(train.get("lr", 0.05)) / 10}
    full = replace(
        full,
        when=_times(full),
        train={**train, **(arm.train or {})},
        finetune={**inherited, **(shared.finetune or {}), **(arm.finetune or {})},
        levels=_levels(full),
    )
    if arm.mitigation is not None and full.when == ("never",):
        raise ValueError(
            f"mitigation={full.mitigation_name!r} never acts; give when='before', 'after' or 'both'"
        )
    _refuse_trainings(arm, full)
    return full


def _refuse_trainings(arm: Arm, full: Any) -> None:
    """Refuse arguments of trainings that an arm does not have.

    Args:
        arm: The arm as it was given.
        full: The same, completed.
    """
    steps = full.steps
    trained = [step for step in steps if step.trains]
    if full.compress == "initial" and trained:
        name = trained[0].full_name
        raise ValueError(
            f"compress='initial' needs a method that does not train, and {name!r} as set up does"
        )
    if arm.train and not trained and full.compress == "trained":
        raise ValueError(
            f"train={dict(arm.train)} asks for another dense network: {steps[0].full_name!r} "
            "itself trains nothing, and all arms share one; make it a separate study"
        )
    if arm.train and trained and not any(step.compressor.inherits for step in trained):
        pair = f"({trained[0].full_name!r}, {{'train': ...}})"
        raise ValueError(f"train={dict(arm.train)} is a setting of the method: {pair}")
    if full.finetunes:
        return
    if full.compress == "initial" or {"after", "both"} & set(full.when):
        why = "compress='initial' or when='after' asks for"
        raise ValueError(f"what {full.full_name!r} gives cannot be trained, which {why}")
    if full.finetune["epochs"]:
        raise ValueError(
            f"what {full.full_name!r} gives cannot be finetuned: give finetune={{'epochs': 0}}, or "
            "quantize its weights by 'quantize:weights'"
        )


def _steps(choice: Any) -> tuple[Step, ...]:
    """Return the methods of an arm, checked, in an order that makes sense."""
    several: list[Any] = choice if isinstance(choice, list) else [choice]
    if len(several) == 2 and isinstance(several[1], Mapping):  # A name and settings, from a file.
        several = [choice]
    steps = tuple(map(_step, several))
    if not steps:
        raise ValueError("a pipeline must name at least one method, got none")
    # A method of an earlier place would undo the later one: a student has new weights, and factors
    # are not those that were pruned or rounded. Pruning and linearization share the middle place:
    # one acts on weights, the other on ReLUs, so they may follow each other either way.
    for before, after in pairwise(steps):
        first, second = before.compressor.place, after.compressor.place
        if second < first or second == first != Kind.place:
            raise ValueError(
                f"{after.full_name!r} cannot follow {before.full_name!r}, whose work it would "
                "undo: distil first, then factorize, then prune or linearize, and quantize last"
            )
    return steps


def _step(choice: Named | Function) -> Step:
    if callable(choice):
        # Bound here without a call, since a study may train for hours before it first compresses.
        signature = inspect.signature(choice)
        names = {"level", "data", "seed"} | {"val"} & signature.parameters.keys()
        try:
            signature.bind(None, **dict.fromkeys(names))
        except TypeError as error:
            wanted = "a function of a module and level=, data= and seed="
            raise TypeError(
                f"method must be {wanted}, but {choice.__name__} is not: {error}"
            ) from error
        return Step(choice.__name__, _own(choice), choice.__name__, {})
    full_name, settings = name_and_settings("method", choice)
    kind, _, name = full_name.partition(":")
    if own := {"finetune", "constraint"} & set(settings):
        raise TypeError(
            f"{full_name!r} has no setting {min(own)!r} in a study, which has finetune= and "
            "mitigation="
        )
    compressor = lookup("kind of compression", kind, COMPRESSORS)
    compressor.check(name, **settings)
    return Step(full_name, compressor, name, settings)


def _times(arm: Arm) -> tuple[str, ...]:
    """Return the times of mitigation, checked."""
    when = (arm.when,) if isinstance(arm.when, str) else check_many("when", arm.when)
    if not when or len(set(when)) < len(when):
        raise ValueError(f"when must name at least one time, and each once; got {list(when)}")
    for time in when:
        lookup("time of mitigation", time, WHEN)
    if arm.constraint is None and set(when) != {"never"}:
        raise ValueError(f"when={list(when)} needs a mitigation; known: {', '.join(MITIGATIONS)}")
    return when


def _levels(arm: Arm) -> tuple[tuple[float, ...], ...]:
    """Return the levels except the control's, ascending, each once, as tuples by step."""
    # A set, since 1 and 1.0 are one level, and ascending: the rows of an arm do not depend on how
    # its levels were written down.
    chosen = set()
    for level in check_many("levels", arm.levels or ()):
        entries = tuple(level) if isinstance(level, tuple | list) else (level,)
        if len(entries) != len(arm.steps):
            raise ValueError(
                f"levels must have {len(arm.steps)} entries each, one for each method, "
                f"got {level!r}"
            )
        # The control's entry of a step may be out of range, as a budget of 1 is: it is not checked.
        active = [
            (step, entry)
            for step, entry in zip(arm.steps, entries, strict=True)
            if entry != step.compressor.control
        ]
        for step, entry in active:
            step.compressor.check_level(step.method, entry)
        if active:
            chosen.add(tuple(map(float, entries)))
    return tuple(sorted(chosen))


def _own(function: Function) -> Kind:
    """Describe a user's function as a kind of compression with one method."""
    takes = ("val",) if "val" in inspect.signature(function).parameters else ()
    return Kind(
        lambda model, name, **settings: function(model, **settings),
        level="level",
        control=0.0,
        methods={function.__name__: Method(function, takes)},
        inherits=True,
        check_level=lambda name, level: check_number("levels", level, -math.inf),
        kept=_kept,
    )


def _kept(model: nn.Module, dense: nn.Module) -> float:
    try:
        return 1 - masks.sparsity(model)
    except ValueError:  # No prunable weights.
        return math.nan
