"""Helpful errors: the one place where names are looked up and arguments are checked."""

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any, TypeVar

import yaml

T = TypeVar("T")


def lookup(kind: str, name: str, registry: Mapping[str, T]) -> T:
    """Look up ``registry[name]``.

    Raises:
        ValueError: If the name is unknown; the message lists the known ones.
    """
    try:
        return registry[name]
    except (KeyError, TypeError):  # A list is no key of a dictionary.
        raise ValueError(f"unknown {kind} {name!r}; known: {', '.join(registry)}") from None


def check_automatic(name: str, value: Any) -> None:
    """Refuse a value that is neither True nor False nor ``"auto"``.

    Raises:
        ValueError: If ``value`` is something else.
    """
    if not (isinstance(value, bool) or value == "auto"):
        raise ValueError(f"{name} must be True, False or 'auto', got {value!r}")


def check_settings(
    owner: str, function: Callable, settings: Mapping[str, Any], given: Iterable[str] = ()
) -> None:
    """Refuse a setting that ``function`` has no keyword-only parameter for.

    Args:
        owner: Owner of the settings in the error message: ``"model 'cnn'"``.
        function: Function whose keyword-only parameters are the known settings.
        settings: Settings by name.
        given: Names of parameters that the library fills in, and that are therefore not settings.

    Raises:
        TypeError: If ``settings`` is not a mapping, or a setting is unknown; the message lists the
            known ones.
    """
    if not isinstance(settings, Mapping):
        raise TypeError(
            f"settings for {owner} must be a mapping from names to values, got {settings!r}"
        )
    parameters = inspect.signature(function).parameters.values()
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in set(given)]
    check_names(owner, settings, known)


def check_names(owner: str, settings: Iterable[str], known: Iterable[str]) -> None:
    """Refuse unknown names of settings.

    Raises:
        TypeError: If a name is unknown; the message lists the known ones.
    """
    known = list(known)
    for name in settings:
        if name not in known:
            raise TypeError(
                f"unknown setting {name!r} for {owner}; known: {', '.join(known) or 'none'}"
            )


def check_type(name: str, value: Any, kinds: type | tuple[Any, ...], wanted: str) -> Any:
    """Refuse an argument of another type; return it otherwise.

    Args:
        name: Name of the argument in the error message.
        value: Value of the argument.
        kinds: Type or types that are accepted.
        wanted: These types in words: ``"a GroupedDataset"``.

    Raises:
        TypeError: If the value is of another type; for splits the message asks for one part.
    """
    if not isinstance(value, kinds):
        # By name: importing the class here would import torch, and be a step up in the house.
        hint = "; give a part, such as .train" if type(value).__name__ == "Splits" else ""
        raise TypeError(f"{name} must be {wanted}, got {shown(value)}{hint}")
    return value


def shown(value: Any) -> str:
    """Write a value for an error message: its type alone if the value is long."""
    text = repr(value)
    return text if len(text) <= 80 and "\n" not in text else type(value).__name__


def check_many(name: str, values: Any) -> tuple:
    """Return several values as a tuple.

    Raises:
        TypeError: If they are a single one, or one text.
    """
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must hold several values, as a list does, got {shown(values)}")
    return tuple(values)


def check_seed(name: str, seed: Any) -> None:
    """Refuse a seed that torch does not take: anything but an integer of 64 bits.

    Raises:
        TypeError: If it is not an integer.
        ValueError: If it is too large.
    """
    check_number(name, seed, -(2**63), 2**63, whole=True)


def name_and_settings(kind: str, choice: Any) -> tuple[str, dict[str, Any]]:
    """Split a choice into its name and its settings; there are none if it is a name alone.

    Settings are also read off the name, as YAML with numbers such as 1e-3, each after a colon:
    ``"resnet18:stem=imagenet:width=0.5"``.

    Raises:
        TypeError: If it is neither a name nor a pair of a name and settings, or a setting is given
            twice.
        ValueError: If the text after ``=`` is no YAML.
    """
    name, settings = (
        choice if isinstance(choice, tuple | list) and len(choice) == 2 else (choice, {})
    )
    if not isinstance(name, str) or not isinstance(settings, Mapping):
        raise TypeError(f"{kind} must be a name or (name, settings), got {shown(choice)}")
    # A colon that no setting follows is part of the name, as in "prune:magnitude".
    name, *words = re.split(r":(?=\w+=)", name)
    found = dict(settings)
    for key, text in (word.split("=", 1) for word in words):
        if key in found:
            raise TypeError(f"{key} of {kind} {name!r} is given twice")
        found[key] = _value(f"{key} of {kind} {name!r}", text)
    return name, found


def _value(what: str, text: str) -> Any:
    # YAML 1.1 reads 2:4 in base sixty, as 124.
    if re.fullmatch(r"\d+:\d+", text):
        return text
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{what} cannot be read: {text!r}") from error
    # YAML 1.1 takes 1e-3 for a text, since it lacks a point.
    number = isinstance(value, str) and re.fullmatch(r"[-+]?[\d.]+e[-+]?\d+", value)
    return float(value) if number else value


def check_number(
    name: str,
    value: Any,
    low: float,
    high: float = math.inf,
    *,
    whole: bool = False,
    low_open: bool = False,
    high_closed: bool = False,
) -> None:
    """Refuse an argument that is not a number in [low, high).

    Args:
        name: Name of the argument in the error message.
        value: Value of the argument.
        low: Lower end of the range.
        high: Upper end of the range.
        whole: Refuse numbers that are not integers.
        low_open: Refuse ``low`` itself.
        high_closed: Accept ``high`` itself.

    Raises:
        TypeError: If the value is not a number, or not an integer where ``whole``.
        ValueError: If the value is out of range.
    """
    kind, wanted = (Integral, "an integer") if whole else (Real, "a number")
    # True is the integer 1 in Python: epochs=True would train for one epoch.
    acceptable = isinstance(value, kind) and not isinstance(value, bool)
    if not acceptable:
        raise TypeError(f"{name} must be {wanted}, got {value!r}")
    # NaN is neither below nor above a bound: only a test for being inside refuses it.
    if not (low <= value < high or (high_closed and value == high)) or (low_open and value == low):
        ends = "(" if low_open else "[", "]" if high_closed else ")"
        raise ValueError(f"{name} must lie in {ends[0]}{low:g}, {high:g}{ends[1]}, got {value}")
