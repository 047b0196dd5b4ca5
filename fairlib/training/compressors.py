"""Methods and kinds of compression: entries of the registries, and their use in a study."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from fairlib._validation import check_number, check_settings
from fairlib.data import GroupedDataset
from fairlib.network.cost import stored_bytes
from fairlib.training.protocols import Objective

Settings = Mapping[str, Any]
"""Settings by name, as the command line, a parameter file or a study's ``(name, settings)`` has
them."""


@dataclass(frozen=True)
class Method:
    """Entry of a registry: a function from a model to its compressed copy, and what it takes.

    Attributes:
        function: Takes the model, then keyword arguments only.
        takes: Arguments that the caller of the registry fills in, among ``"data"``, ``"train"``,
            ``"seed"``, ``"val"`` and ``"objective"``. A method that takes ``"train"`` trains; one
            that takes ``"data"`` cannot do without.
        constrained: True if its training accepts a constraint. A method that brings its own
            constraint does not.
        finetunes: True if its result can be trained.
    """

    function: Callable[..., nn.Module]
    takes: tuple[str, ...] = ()
    constrained: bool = True
    finetunes: bool = True

    @property
    def trains(self) -> bool:
        """Tell whether the method trains."""
        return "train" in self.takes

    def arguments(self, owner: str, offered: Settings, settings: Settings) -> dict[str, Any]:
        """Return the keyword arguments to call the function with.

        Args:
            owner: Name of the method in error messages, ``"pruning method 'snip'"``.
            offered: Arguments that the caller of the registry can fill in, by name; the function
                gets those that it ``takes``.
            settings: Settings of the method.

        Raises:
            ValueError: If the method needs the training set and ``offered["data"]`` is None.
        """
        if "data" in self.takes and offered["data"] is None:
            raise ValueError(f"{owner} needs data=, the training set")
        return {**{name: offered[name] for name in self.takes}, **settings}

    def check(self, owner: str, settings: Settings, level: str = "") -> None:
        """Refuse settings that the function does not have.

        Args:
            owner: Name of the method in error messages, ``"pruning method 'snip'"``.
            settings: Settings of the method.
            level: Name of the argument that says how far to compress, which is not a setting.

        Raises:
            TypeError: If a setting is unknown; the message lists the known ones.
        """
        check_settings(owner, self.function, settings, given=(*self.takes, level))


def check_share(name: str, level: float) -> None:
    """Refuse a level of compression outside [0, 1).

    Raises:
        ValueError: If it is.
    """
    check_number("levels", level, 0, 1)


def check_positive_share(name: str, level: float) -> None:
    """Refuse a level of compression outside (0, 1).

    Raises:
        ValueError: If it is.
    """
    check_number("levels", level, 0, 1, low_open=True)


def share_of_bytes(model: nn.Module, dense: nn.Module) -> float:
    """Return the share of a dense model's bytes that a compressed one takes."""
    return stored_bytes(model) / stored_bytes(dense)


@dataclass(frozen=True)
class Kind:
    """Kind of compression, as a study sees it: ``"prune"`` of ``"prune:magnitude"``.

    Attributes:
        function: Takes a model, the name of a method, the level by its name and settings; returns
            a compressed copy that is not finetuned.
        level: Name of the argument that says how far to compress: ``"sparsity"``, ``"budget"``.
        control: Level at which nothing is compressed.
        methods: Methods by name.
        check: Refuses a name or settings, given as keywords, that ``function`` does not know.
        inherits: True if a method that trains uses the arguments of the dense training by default.
        place: Place in a pipeline: a kind of a lower place cannot follow one of a higher.
        check_level: Refuses a level that is out of range for the method of a name.
        kept: Share, in [0, 1], that a compressed model keeps of the dense one; by default of bytes.
        objective: Objective of the finetuning, given the dense model, the data and the settings;
            None for the cross-entropy.
        training: Tells whether settings let a method train whose entry does not say so.
    """

    function: Callable[..., nn.Module]
    level: str
    control: float
    methods: Mapping[str, Method]
    check: Callable[..., None] = lambda name, **settings: None
    inherits: bool = False
    place: int = 2
    check_level: Callable[[str, float], None] = check_share
    kept: Callable[[nn.Module, nn.Module], float] = share_of_bytes
    objective: Callable[[nn.Module, GroupedDataset, Settings], Objective | None] = (
        lambda dense, data, settings: None
    )
    training: Callable[[str, Settings], bool] = lambda name, settings: False
