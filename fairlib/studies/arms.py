"""The arms of a study: what they share, what is theirs, and everything that can be checked before a training."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import nn

from fairlib._validation import check_number, check_settings, lookup
from fairlib.data import GroupedDataset
from fairlib.linearization import Linearization
from fairlib.mitigation import MITIGATIONS
from fairlib.network import masks
from fairlib.pruning import Pruning
from fairlib.training import Constraint, fit
from fairlib.training.compressors import Compressor, Settings

Named = str | tuple[str, Settings]
Function = Callable[..., nn.Module]

COMPRESSORS: dict[str, Compressor] = {"prune": Pruning(), "linearize": Linearization()}
"""The kinds of compression by the word before the colon in a method's name."""

WHEN: dict[str, tuple[bool, bool]] = {
    "never": (False, False),
    "before": (True, False),
    "after": (False, True),
    "both": (True, True),
}
"""In which of its two trainings a run is mitigated: (dense, finetuning)."""

COMPRESS = ("trained", "initial")
"""Which network is compressed."""

OWN = ("val", "objective", "constraint", "sparsify", "stop", "start", "seed", "device", "progress")
"""Arguments of :func:`fairlib.fit` that a study fills in itself."""


@dataclass(frozen=True)
class Arm:
    """One way through a study: what is compressed by which method, how it is trained, and when it is mitigated.

    What is left out is as in the study. All arms of a study share its data, its networks before compression and, where
    they finetune alike, the control.

    Args:
        method: As in :func:`study`.
        mitigation: As in :func:`study`.
        when: As in :func:`study`.
        finetune: Arguments of :func:`fairlib.fit` for the finetuning, on top of the study's.
        train: Arguments of :func:`fairlib.fit` for the trainings of a method that trains, or of the network that was
            compressed at its initial weights, on top of the study's. The dense network is the study's own.
        compress: As in :func:`study`.
        levels: As in :func:`study`.
        control: Whether the arm has a control. False spares what nobody asks for: the dense network finetuned under a
            mitigation.
    """

    method: Named | Function | None = None
    mitigation: Named | None = None
    when: str | Iterable[str] | None = None
    finetune: Settings | None = None
    train: Settings | None = None
    compress: str | None = None
    levels: Iterable[float] | None = None
    control: bool = True


@dataclass(frozen=True)
class Plan:
    """An arm whose settings are complete and checked, its method taken apart.

    Attributes:
        name: Name of the arm; empty in a study without arms.
        full_name: Name of the method with its kind, ``"prune:magnitude"``.
        method: Name of the method within its kind.
        settings: Settings of the method.
    """

    name: str
    full_name: str
    compressor: Compressor
    method: str
    settings: Settings
    levels: tuple[float, ...]
    control: bool
    compress: str
    mitigation: str
    constraint: Constraint | None
    when: tuple[str, ...]
    train: Settings
    finetune: Settings


def plans(arms: Mapping[str, Arm] | Iterable[tuple[str, Arm]] | None, shared: Arm, train: Settings) -> tuple[Plan, ...]:
    """Complete and check all arms before anything is trained; without any, the study is its only arm.

    Raises:
        ValueError: As :func:`fairlib.study`.
        TypeError: As :func:`fairlib.study`.
    """
    if arms is None:
        return (_plan("", Arm(), shared, train),)
    pairs = list(arms.items() if isinstance(arms, Mapping) else arms)
    names = [name for name, _ in pairs]
    if not names or len(set(names)) < len(names) or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"arms must have names, each once; got {names}")
    return tuple(_plan(name, arm, shared, train) for name, arm in pairs)


def _plan(name: str, arm: Arm, shared: Arm, train: Settings) -> Plan:
    where = f"arm {name!r}: " if name else ""
    given = {field.name: getattr(arm, field.name) for field in fields(arm)}
    full = replace(shared, **{key: value for key, value in given.items() if value is not None})
    if full.method is None:
        raise ValueError(f"{where}a method is needed, as method= of the study or of each arm")
    full_name, compressor, method, settings = _method(full.method)
    if own := {"finetune", "constraint"} & set(settings):
        raise TypeError(f"{full_name!r} has no setting {min(own)!r} in a study, which has finetune= and mitigation=")
    compressor.check(method, **settings)
    for role, arguments in (("train", arm.train), ("finetune", shared.finetune), ("finetune", arm.finetune)):
        check_settings(f"{role}=", fit, arguments or {}, given=OWN)
    compress = full.compress or "trained"
    lookup("network to compress", compress, dict.fromkeys(COMPRESS))
    trains = compressor.trains(method, settings)
    if compress == "initial" and trains:
        raise ValueError(f"compress='initial' needs a method that does not train, and {full_name!r} as set up does")
    if arm.train and not trains and compress == "trained":
        raise ValueError(
            f"{where}train={dict(arm.train)} asks for another dense network, since {full_name!r} itself trains "
            "nothing; all arms share the dense network of train= of the study: make it a study of its own"
        )
    mitigation, constraint, when = _mitigation(full, where)
    gentle = {"epochs": 5, "lr": float(train.get("lr", 0.05)) / 10}
    inherited = {key: value for key, value in train.items() if key != "keep"}
    return Plan(
        name,
        full_name,
        compressor,
        method,
        settings,
        _levels(full.levels or (), compressor.control),
        arm.control,
        compress,
        mitigation,
        constraint,
        when,
        train={**train, **(arm.train or {})},
        finetune=inherited | gentle | dict(shared.finetune or {}) | dict(arm.finetune or {}),
    )


def _method(choice: Named | Function) -> tuple[str, Compressor, str, dict[str, Any]]:
    """Name with the kind, kind, name within the kind, and settings."""
    if not isinstance(choice, str | tuple):
        return choice.__name__, _Own(choice), choice.__name__, {}
    full_name, settings = named(choice)
    kind, _, name = full_name.partition(":")
    return full_name, lookup("kind of compression", kind, COMPRESSORS), name, settings


def _mitigation(arm: Arm, where: str) -> tuple[str, Constraint | None, tuple[str, ...]]:
    """Name, constraint and times."""
    when = (arm.when,) if isinstance(arm.when, str) else tuple(arm.when or ())
    for time in when:
        lookup("time of mitigation", time, WHEN)
    if arm.mitigation is None:
        if set(when) != {"never"}:
            raise ValueError(f"{where}when={list(when)} needs a mitigation; known: {', '.join(MITIGATIONS)}")
        return "none", None, when
    name, settings = named(arm.mitigation)
    return name, lookup("mitigation", name, MITIGATIONS)(**settings), when


def _levels(levels: Iterable[float], control: float) -> tuple[float, ...]:
    """The levels but that of the control, ascending."""
    chosen = [level for level in levels if level != control]
    for level in chosen:
        check_number("levels", level, 0, 1)
    return tuple(sorted({float(level) for level in chosen}))


def named(choice: Named) -> tuple[str, dict[str, Any]]:
    """Name and settings of what is given by its name alone or with settings."""
    return (choice, {}) if isinstance(choice, str) else (choice[0], dict(choice[1]))


@dataclass(frozen=True)
class _Own(Compressor):
    """A function of one's own as a kind of compression."""

    function: Function
    level: str = "level"
    control: float = 0.0
    inherits: bool = True

    def compress(self, model: nn.Module, name: str, level: float, **settings: Any) -> nn.Module:
        return self.function(model, level=level, **settings)

    def check(self, name: str, **settings: Any) -> None:
        """Nothing is known of it that could be checked."""

    def trains(self, name: str, settings: Settings) -> bool:
        return False

    def constrained(self, name: str) -> bool:
        return False

    def kept(self, model: nn.Module, dense: nn.Module) -> float:
        try:
            return 1 - masks.sparsity(model)
        except ValueError:
            return math.nan

    def objective(self, dense: nn.Module, data: GroupedDataset, settings: Settings) -> None:
        return None
