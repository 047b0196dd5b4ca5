"""Helpful errors: the one place where names are looked up and arguments are checked."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any, TypeVar

T = TypeVar("T")


def lookup(kind: str, name: str, registry: Mapping[str, T]) -> T:
    """Look up ``registry[name]``.

    Raises:
        ValueError: If the name is unknown; the message lists the known ones.
    """
    try:
        return registry[name]
    except (KeyError, TypeError):
        raise ValueError(f"unknown {kind} {name!r}; known: {', '.join(registry)}") from None


def check_settings(owner: str, function: Callable, settings: Mapping[str, Any], given: Iterable[str] = ()) -> None:
    """Refuse a setting that ``function`` has no keyword-only parameter for.

    Args:
        owner: Name of what the settings are for in the error message: ``"model 'cnn'"``.
        function: Function whose keyword-only parameters are the known settings.
        settings: Settings by name.
        given: Names of parameters that the library fills in, and that are therefore not settings.

    Raises:
        TypeError: If ``settings`` is not a mapping, or a setting is unknown; the message lists the known ones.
    """
    if not isinstance(settings, Mapping):
        raise TypeError(f"settings for {owner} must be a mapping from names to values, got {settings!r}")
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
            raise TypeError(f"unknown setting {name!r} for {owner}; known: {', '.join(known) or 'none'}")


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
    acceptable = isinstance(value, kind) and not isinstance(value, bool)
    if not acceptable:
        raise TypeError(f"{name} must be {wanted}, got {value!r}")
    if not (low <= value < high or (high_closed and value == high)) or (low_open and value == low):
        ends = "(" if low_open else "[", "]" if high_closed else ")"
        raise ValueError(f"{name} must lie in {ends[0]}{low:g}, {high:g}{ends[1]}, got {value}")
