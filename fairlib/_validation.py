"""Errors that help: the one place where a name is looked up and an argument is checked."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any, TypeVar

T = TypeVar("T")


def lookup(kind: str, name: str, registry: Mapping[str, T]) -> T:
    """Give back ``registry[name]``.

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
        owner: What the settings are for, as the error shall name it: ``"model 'cnn'"``.
        function: Its keyword-only parameters are the known settings.
        settings: What the caller asked for.
        given: Parameters that the library fills in itself, hence no settings.

    Raises:
        TypeError: If a setting is unknown; the message lists the known ones.
    """
    if not isinstance(settings, Mapping):
        raise TypeError(f"{owner} must hold settings by name, got {settings!r}")
    parameters = inspect.signature(function).parameters.values()
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in set(given)]
    check_names(owner, settings, known)


def check_names(owner: str, settings: Iterable[str], known: Iterable[str]) -> None:
    """Refuse a setting whose name is not known.

    Raises:
        TypeError: If there is one; the message lists the known ones.
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
    """Refuse what is no number in [low, high), or no integer where ``whole``.

    The interval is open at ``low`` where ``low_open``, and closed at ``high`` where ``high_closed``.

    Raises:
        TypeError: If the value is no number, or no integer where one is needed.
        ValueError: If it is out of range.
    """
    kind, wanted = (Integral, "an integer") if whole else (Real, "a number")
    acceptable = isinstance(value, kind) and not isinstance(value, bool)
    if not acceptable:
        raise TypeError(f"{name} must be {wanted}, got {value!r}")
    if not (low <= value < high or (high_closed and value == high)) or (low_open and value == low):
        ends = "(" if low_open else "[", "]" if high_closed else ")"
        raise ValueError(f"{name} must lie in {ends[0]}{low:g}, {high:g}{ends[1]}, got {value}")
