"""The arms of a study, completed and checked before anything is trained."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from torch import nn

from fairlib._validation import check_many, check_number, lookup, name_and_settings
from fairlib.data import GroupedDataset
from fairlib.distillation import Distilling
from fairlib.factorization import Factorization
from fairlib.linearization import Linearization
from fairlib.mitigation import MITIGATIONS
from fairlib.network import masks
from fairlib.network.cost import stored_bytes
from fairlib.pruning import Pruning
from fairlib.quantization import Quantization
from fairlib.training import Constraint, Objective
from fairlib.training.compressors import Compressor, Settings
from fairlib.training.loop import check_training

Named = str | tuple[str, Settings]
Function = Callable[..., nn.Module]
Methods = Named | Function | list[Named | Function]
Level = float | tuple[float, ...]

COMPRESSORS: dict[str, Compressor] = {
    "prune": Pruning(),
    "linearize": Linearization(),
    "quantize": Quantization(),
    "factorize": Factorization(),
    "distil": Distilling(),
}
"""Kinds of compression, by the word before the colon in a method's name."""

HELD_OUT = ("val", "train", "val-only")
"""Where the held-out data of a method come from: the validation part, or a share of what it is
given, which is the training part, or with ``"val-only"`` the validation part."""

WHEN = {
    "never": (False, False),
    "before": (True, False),
    "after": (False, True),
    "both": (True, True),
}
"""Whether a run is mitigated in its dense training and in its finetuning, by the name of the
time."""

OWN = ("val", "objective", "constraint", "sparsify", "stop", "start", "seed", "device", "progress")
"""Arguments of :func:`fairlib.fit` that the study sets itself."""


@dataclass(frozen=True)
class Arm:
    """One way through a study: the method and levels of compression, the trainings, and the
    mitigation.

    An argument that is None is the one of the study. All arms of a study share its data, its
    networks before compression and, if they finetune alike, the control.

    Args: method: Method of compression: a name with its kind, ``(name, settings)`` or a function
        (:func:`study`); or a
            list of these, a pipeline.
        mitigation: Name of a mitigation or ``(name, settings)``.
        when: Times of mitigation: any of ``"never"``, ``"before"``, ``"after"`` and ``"both"``.
        finetune: Arguments of :func:`fairlib.fit` for the finetuning, which override the study's
            one by one.
        train: Arguments of :func:`fairlib.fit`, which override the study's one by one, for the
            trainings of a method that trains or of a network that is compressed at its initial
            weights. The dense training is the study's.
        compress: Network that is compressed: ``"trained"`` or ``"initial"``.
        levels: Levels of compression; of a pipeline tuples, one entry for each method.
        control: Whether the arm has a control, the dense network finetuned in the same way. False
            saves its training.

    Example:
        Two ways to the same sparsity, which share their dense network and their control:

        >>> import fairlib
        >>> arms = {"at once": fairlib.Arm(), "at random": fairlib.Arm("prune:random")}
        >>> table = fairlib.study(
        ...     "digits", "mlp", "prune:magnitude", [0.9], arms=arms, seeds=[0],
        ...     train={"epochs": 1}, finetune={"epochs": 1}, cache=None, workers=1,
        ... )
        >>> table[table["stage"] == "compressed"].groupby("arm", sort=False)["method"].first().to_dict()
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
    compress: str | None = None
    levels: Iterable[Level] | None = None
    control: bool = True


@dataclass(frozen=True)
class Step:
    """One method of an arm.

    Attributes:
        full_name: Name of the method with its kind, ``"prune:magnitude"``.
        compressor: Kind of compression.
        method: Name of the method within its kind.
        settings: Settings of the method.
    """

    full_name: str
    compressor: Compressor
    method: str
    settings: Settings

    @property
    def trains(self) -> bool:
        """Whether the method trains."""
        return self.compressor.trains(self.method, self.settings)

    def is_control(self, level: float) -> bool:
        """Whether the method compresses nothing at a level."""
        return self.compressor.is_control(level, self.settings)


@dataclass(frozen=True)
class Plan:
    """An arm whose settings are complete and checked.

    Attributes: name: Name of the arm; empty in a study without arms. steps: Methods, in the order
        in which they compress; mostly one. levels: Levels except the control's, ascending, each
        with an entry for each step. control: Whether the arm has a control. compress: Network that
        is compressed, ``"trained"`` or ``"initial"``. mitigation: Name of the mitigation,
        ``"none"`` without one. constraint: The mitigation itself. when: Times of mitigation. train:
        Arguments of the trainings of the method, or of a network that is compressed at its initial
        weights. finetune: Arguments of the finetuning.
    """

    name: str
    steps: tuple[Step, ...]
    levels: tuple[tuple[float, ...], ...]
    control: bool
    compress: str
    mitigation: str
    constraint: Constraint | None
    when: tuple[str, ...]
    train: Settings
    finetune: Settings

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
        """Whether what the methods give can be finetuned."""
        return all(step.compressor.finetunes(step.method) for step in self.steps)

    def objective(self, dense: nn.Module, data: GroupedDataset) -> Objective | None:
        """Return the objective of the finetuning: of the first method that has one, else None."""
        found = (step.compressor.objective(dense, data, step.settings) for step in self.steps)
        return next((objective for objective in found if objective is not None), None)

    def kept(self, model: nn.Module, dense: nn.Module) -> float:
        """Return the share that a compressed model keeps: of what the method takes away, of bytes
        after several."""
        if len(self.steps) == 1:
            return self.steps[0].compressor.kept(model, dense)
        return stored_bytes(model) / stored_bytes(dense)


def plans(
    arms: Mapping[str, Arm] | Iterable[tuple[str, Arm]] | None, shared: Arm, train: Settings
) -> tuple[Plan, ...]:
    """Complete and check all arms.

    Args:
        arms: Arms by name; None if the study itself is the only one.
        shared: Arguments of the study, which an arm takes where it has none of its own.
        train: Arguments of the dense training.

    Raises: ValueError: If an arm has no name, no method or an argument that does not fit; names the
        arm. TypeError: If a setting is unknown.
    """
    if arms is None:
        return (_plan("", Arm(), shared, train),)
    pairs = list(arms.items() if isinstance(arms, Mapping) else arms)
    names = [name for name, _ in pairs]
    if (
        not names
        or len(set(names)) < len(names)
        or not all(isinstance(name, str) and name for name in names)
    ):
        raise ValueError(f"arms must have names, each once; got {names}")
    found = []
    for name, arm in pairs:
        try:
            found.append(_plan(name, arm, shared, train))
        except (TypeError, ValueError) as error:
            raise type(error)(f"arm {name!r}: {error}") from error
    return tuple(found)


def _plan(name: str, arm: Arm, shared: Arm, train: Settings) -> Plan:
    if not isinstance(arm, Arm):
        raise TypeError(f"an arm must be an Arm, got {arm!r}")
    full = replace(shared, **{key: value for key, value in vars(arm).items() if value is not None})
    if full.method is None:
        raise ValueError("a method is needed, as method= of the study or of the arm")
    steps = _steps(full.method)
    for role, arguments in (
        ("train", arm.train),
        ("finetune", shared.finetune),
        ("finetune", arm.finetune),
    ):
        check_training(f"{role}=", arguments or {}, given=OWN)
    compress = full.compress or "trained"
    lookup("network to compress", compress, dict.fromkeys(("trained", "initial")))
    trained = [step for step in steps if step.trains]
    if compress == "initial" and trained:
        named_so = trained[0].full_name
        raise ValueError(
            f"compress='initial' needs a method that does not train, and {named_so!r} as set up does"
        )
    if arm.train and not trained and compress == "trained":
        why = f"{steps[0].full_name!r} itself trains nothing, and all arms share one; make it a study of its own"
        raise ValueError(f"train={dict(arm.train)} asks for another dense network: {why}")
    if arm.train and trained and not any(step.compressor.inherits for step in trained):
        pair = f"({trained[0].full_name!r}, {{'train': ...}})"
        raise ValueError(f"train={dict(arm.train)} is a setting of the method: {pair}")
    mitigated = _mitigation(full)
    if arm.mitigation is not None and mitigated[2] == ("never",):
        raise ValueError(
            f"mitigation={mitigated[0]!r} never acts; give when='before', 'after' or 'both'"
        )
    gentle = {"epochs": 5, "lr": float(train.get("lr", 0.05)) / 10}
    inherited = {key: value for key, value in train.items() if key != "keep"}
    tune = inherited | gentle | dict(shared.finetune or {}) | dict(arm.finetune or {})
    levels = _levels(full.levels or (), steps)
    plan = Plan(
        name, steps, levels, arm.control, compress, *mitigated, {**train, **(arm.train or {})}, tune
    )
    if not plan.finetunes and (compress == "initial" or {"after", "both"} & set(plan.when)):
        why = "compress='initial' or when='after' asks for"
        raise ValueError(f"what {plan.full_name!r} gives cannot be trained, which {why}")
    if tune["epochs"] and not plan.finetunes:
        why = "cannot be finetuned: give finetune={'epochs': 0}, or quantize its weights by 'quantize:weights'"
        raise ValueError(f"what {plan.full_name!r} gives {why}")
    return plan


def _steps(choice: Methods) -> tuple[Step, ...]:
    """The methods of an arm, checked, in an order that makes sense."""
    several: list[Any] = choice if isinstance(choice, list) else [choice]
    if len(several) == 2 and isinstance(several[1], Mapping):  # A name and settings, from a file.
        several = [choice]
    steps = tuple(map(_step, several))
    if not steps:
        raise ValueError("a pipeline must name at least one method, got none")
    for before, after in pairwise(steps):
        first, second = before.compressor.place, after.compressor.place
        if second < first or second == first != Compressor.place:
            why = "distil first, then factorize, then prune or linearize, and quantize last"
            raise ValueError(
                f"{after.full_name!r} cannot follow {before.full_name!r}, whose work it would undo: {why}"
            )
    return steps


def _step(choice: Named | Function) -> Step:
    if callable(choice):
        signature = inspect.signature(choice)
        try:
            signature.bind(
                None,
                **dict.fromkeys({"level", "data", "seed"} | {"val"} & signature.parameters.keys()),
            )
        except TypeError as error:
            wanted = "a function of a module and level=, data= and seed="
            raise TypeError(
                f"method must be {wanted}, but {choice.__name__} is not: {error}"
            ) from error
        return Step(choice.__name__, _Own(choice), choice.__name__, {})
    full_name, settings = name_and_settings("method", choice)
    kind, _, name = full_name.partition(":")
    if own := {"finetune", "constraint"} & set(settings):
        raise TypeError(
            f"{full_name!r} has no setting {min(own)!r} in a study, which has finetune= and mitigation="
        )
    compressor = lookup("kind of compression", kind, COMPRESSORS)
    compressor.check(name, **settings)
    return Step(full_name, compressor, name, settings)


def _mitigation(arm: Arm) -> tuple[str, Constraint | None, tuple[str, ...]]:
    """Name and constraint of the mitigation, and its times."""
    when = (arm.when,) if isinstance(arm.when, str) else check_many("when", arm.when)
    if not when or len(set(when)) < len(when):
        raise ValueError(f"when must name at least one time, and each once; got {list(when)}")
    for time in when:
        lookup("time of mitigation", time, WHEN)
    if arm.mitigation is None:
        if set(when) != {"never"}:
            raise ValueError(
                f"when={list(when)} needs a mitigation; known: {', '.join(MITIGATIONS)}"
            )
        return "none", None, when
    name, settings = name_and_settings("mitigation", arm.mitigation)
    return name, lookup("mitigation", name, MITIGATIONS)(**settings), when


def _levels(levels: Iterable[Level], steps: Sequence[Step]) -> tuple[tuple[float, ...], ...]:
    """The levels except the control's, ascending, each once, as tuples of one entry for each
    step."""
    chosen = set()
    for level in check_many("levels", levels):
        entries = tuple(level) if isinstance(level, tuple | list) else (level,)
        if len(entries) != len(steps):
            raise ValueError(
                f"levels must have {len(steps)} entries each, one for each method, got {level!r}"
            )
        for entry, step in zip(entries, steps, strict=True):
            if not step.is_control(entry):
                step.compressor.check_level(step.method, entry)
        if not all(step.is_control(entry) for entry, step in zip(entries, steps, strict=True)):
            chosen.add(tuple(map(float, entries)))
    return tuple(sorted(chosen))


@dataclass(frozen=True)
class _Own(Compressor):
    """A user's function as a kind of compression."""

    function: Function
    level: str = "level"
    control: float = 0.0
    inherits: bool = True

    def compress(self, model: nn.Module, name: str, level: float, **settings: Any) -> nn.Module:
        return self.function(model, level=level, **settings)

    def holds_out(self, name: str) -> bool:
        return "val" in inspect.signature(self.function).parameters

    def check_level(self, name: str, level: float) -> None:
        check_number("levels", level, -math.inf)

    def check(self, name: str, **settings: Any) -> None:
        """Nothing is known of the function that could be refused."""

    def kept(self, model: nn.Module, dense: nn.Module) -> float:
        try:
            return 1 - masks.sparsity(model)
        except ValueError:
            return math.nan
