"""Errors that help: the one place where a name is looked up and an argument is checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

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


def check_settings(owner: str, function: Callable, settings: Mapping[str, object], given: Iterable[str] = ()) -> None:
    """Refuse a setting that ``function`` has no keyword-only parameter for.

    Args:
        owner: What the settings are for, as the error shall name it: ``"model 'cnn'"``.
        function: Its keyword-only parameters are the known settings.
        settings: What the caller asked for.
        given: Parameters that the library fills in itself, hence no settings.

    Raises:
        TypeError: If a setting is unknown; the message lists the known ones.
    """
    parameters = inspect.signature(function).parameters.values()
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in set(given)]
    for name in settings:
        if name not in known:
            raise TypeError(f"unknown setting {name!r} for {owner}; known: {', '.join(known) or 'none'}")
