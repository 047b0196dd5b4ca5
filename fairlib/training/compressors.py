"""The entries of the registries of compression methods, and what a study asks of a kind of
compression."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from torch import nn

from fairlib._validation import check_number, check_settings
from fairlib.data import GroupedDataset
from fairlib.network.cost import stored_bytes
from fairlib.training.protocols import Objective

Settings = Mapping[str, Any]
"""Settings by name, as the command line, a parameter file or a study's ``(name, settings)`` gives
them."""


@dataclass(frozen=True)
class Method:
    """An entry of a registry: a function from a model to its compressed copy, and what it has to be
    given.

    Attributes: function: Takes the model, then keyword arguments only. takes: Arguments that the
        caller of the registry fills in, among ``"data"``, ``"train"``, ``"seed"``, ``"val"``
            and ``"objective"``. A method that takes ``"train"`` trains; one that takes ``"data"``
            cannot do without.
        constrained: Whether its training accepts a constraint. A method that brings its own
            constraint does not.
        gather: Turns flat settings into the function's arguments where these are objects; raises a
            TypeError for an unknown setting. None if settings and arguments are the same.
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
        """Return the keyword arguments to call the function with.

        Args: owner: Name of the method in error messages, ``"pruning method 'snip'"``. offered:
            What the caller of the registry can fill in, by name; the function gets what it
            ``takes``. settings: Settings of the method.

        Raises:
            ValueError: If the method needs the training set and ``offered["data"]`` is None.
        """
        if "data" in self.takes and offered["data"] is None:
            raise ValueError(f"{owner} needs data=, the training set")
        own = dict(settings) if self.gather is None else self.gather(**settings)
        return {name: offered[name] for name in self.takes if name in offered} | own

    def check(self, owner: str, settings: Settings, level: str | None = None) -> None:
        """Refuse settings that the function does not have.

        Args:
            owner: Name of the method in error messages, ``"pruning method 'snip'"``.
            settings: Settings of the method.
            level: Name of the argument that says how far to compress, which is not a setting.

        Raises:
            TypeError: If a setting is unknown; the message lists the known ones.
        """
        if self.gather is not None:
            self.gather(**settings)
        else:
            check_settings(
                owner, self.function, settings, given=[*self.takes, *([level] if level else [])]
            )


class Compressor(Protocol):
    """A kind of compression, as a study sees it.

    Attributes:
        level: Name of the argument that says how far to compress: ``"sparsity"``, ``"budget"``.
        control: Level at which nothing is compressed.
        inherits: Whether a method that trains uses the arguments of the dense training by default.
        place: Place in a pipeline: a kind of a lower place cannot follow one of a higher.
        methods: Methods by name; by default none, for a kind of compression without a registry.
    """

    level: str
    control: float
    inherits: bool
    place: int = 2
    methods: ClassVar[Mapping[str, Method]] = {}

    @abstractmethod
    def compress(self, model: nn.Module, name: str, level: float, **settings: Any) -> nn.Module:
        """Return a copy of a model, compressed to a level by the method of that name and not
        finetuned."""

    @abstractmethod
    def check(self, name: str, **settings: Any) -> None:
        """Refuse a name or settings that :meth:`compress` does not know."""

    def is_control(self, level: float, settings: Settings) -> bool:
        """Return whether nothing is compressed at a level; by default at :attr:`control`."""
        return level == self.control

    def check_level(self, name: str, level: float) -> None:
        """Refuse a level that is out of range for the method of that name; by default what is not
        in [0, 1).

        Raises:
            ValueError: If it is.
        """
        check_number("levels", level, 0, 1)

    def finetunes(self, name: str) -> bool:
        """Return whether what the method gives can be finetuned; by default True."""
        return True

    def trains(self, name: str, settings: Settings) -> bool:
        """Return whether the method trains with these settings; by default what the registry
        says."""
        return name in self.methods and self.methods[name].trains

    def holds_out(self, name: str) -> bool:
        """Return whether the method takes held-out data, as ``val``; by default what the registry
        says."""
        return name in self.methods and "val" in self.methods[name].takes

    def constrained(self, name: str) -> bool:
        """Return whether the method's training accepts a constraint; by default what the registry
        says."""
        return name in self.methods and self.methods[name].constrained

    def kept(self, model: nn.Module, dense: nn.Module) -> float:
        """Return the share, in [0, 1], that a compressed model keeps of the dense one; by default
        of its bytes."""
        return stored_bytes(model) / stored_bytes(dense)

    def objective(
        self, dense: nn.Module, data: GroupedDataset, settings: Settings
    ) -> Objective | None:
        """Return the objective of the finetuning; by default None, the cross-entropy."""
        return None
