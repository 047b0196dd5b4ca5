"""fairlib: who pays when a neural network is compressed?

Group effects of compression - measured with their uncertainty, explained, and mitigated - in a few
names: :func:`load` grouped data, :func:`build` and :func:`fit` a model, :func:`prune` or
:func:`linearize` it, :func:`audit` what that did to each group, or run a whole :func:`study`."""

from typing import Any

import lazy_loader

from fairlib import _namesake  # noqa: F401  It warns.

# The names stand in __init__.pyi, for type checkers too. A module is imported when one of its names
# is first used: the console command and the Snakefile need no torch, which takes seconds.
_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

_MOVED = {name: f"whopays.{name}" for name in ("effects", "plots", "record")}
_MOVED |= dict.fromkeys(("quantization", "factorization", "distillation"), "fairlib.compression")
_MOVED["evidence"] = "whopays"


def __getattr__(name: str) -> Any:
    """Import a name of the stub at its first use; refuse one that has moved, with its place."""
    if name in _MOVED:
        raise AttributeError(f"fairlib.{name} has moved: it is {_MOVED[name]} since edition 0.3")
    return _load(name)
