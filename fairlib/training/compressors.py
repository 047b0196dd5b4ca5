"""What every kind of compression offers to a study, and what a registry tells of each of its methods."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import nn

from fairlib._validation import check_settings
from fairlib.data import GroupedDataset
from fairlib.training.protocols import Objective

Settings = Mapping[str, Any]
"""Settings by name, as the command line, a parameter file or a study's ``(name, settings)`` gives them."""


@dataclass(frozen=True)
class Method:
    """An entry of a registry: a function from a model to its compressed copy, and what it has to be given.

    Attributes:
        function: Takes the model, then keyword arguments only.
        takes: Arguments that the caller of the registry fills in, among ``"data"``, ``"train"``, ``"seed"``, ``"val"``
            and ``"objective"``. A method that takes ``"train"`` trains; one that takes ``"data"`` cannot do without.
        constrained: Whether a constraint may be among the arguments of its training; a method with a rule of its own
            for what a training is held to has none.
        gather: Turns flat settings into the function's own arguments, where these are objects, and refuses unknown
            ones with a TypeError.
    """

    function: Callable[..., nn.Module]
    takes: tuple[str, ...] = ()
    constrained: bool = True
    gather: Callable[..., dict[str, Any]] | None = None

    @property
    def trains(self) -> bool:
        """Whether the method trains."""
        return "train" in self.takes

    def arguments(self, owner: str, offered: Settings, settings: Settings) -> dict[str, Any]:
        """What the function is called with: its share of what is offered, and its own settings.

        Raises:
            ValueError: If it needs the training set and there is none.
        """
        if "data" in self.takes and offered["data"] is None:
            raise ValueError(f"{owner} needs data=, the training set")
        own = dict(settings) if self.gather is None else self.gather(**settings)
        return {name: offered[name] for name in self.takes if name in offered} | own

    def check(self, owner: str, settings: Settings, level: str | None = None) -> None:
        """Refuse settings that the function does not have.

        Args:
            owner: What the settings are for, as the error names it.
            settings: What the caller asked for.
            level: The argument that says how far to compress, which is no setting.

        Raises:
            TypeError: If a setting is unknown; the message lists the known ones.
        """
        if self.gather is not None:
            self.gather(**settings)
        else:
            check_settings(owner, self.function, settings, given=[*self.takes, *([level] if level else [])])


class Compressor(Protocol):
    """A kind of compression, as a study sees it.

    Attributes:
        level: The argument that says how far to compress: ``"sparsity"``, ``"budget"``.
        control: The level at which nothing is compressed.
        inherits: Whether the trainings of its methods are by default like the dense one.
    """

    level: str
    control: float
    inherits: bool

    def compress(self, model: nn.Module, name: str, level: float, **settings: Any) -> nn.Module:
        """Compress a model to a level by the method of that name, without any finetuning."""
        ...

    def check(self, name: str, **settings: Any) -> None:
        """Refuse a name or settings that :meth:`compress` would not understand, before anything is trained."""
        ...

    def trains(self, name: str, settings: Settings) -> bool:
        """Whether the method trains with these settings."""
        ...

    def constrained(self, name: str) -> bool:
        """Whether a constraint may be among the arguments of the method's training."""
        ...

    def kept(self, model: nn.Module, dense: nn.Module) -> float:
        """The share that a compressed model keeps of the dense one, in [0, 1]."""
        ...

    def objective(self, dense: nn.Module, data: GroupedDataset, settings: Settings) -> Objective | None:
        """The objective of the finetuning; None is the cross-entropy."""
        ...
