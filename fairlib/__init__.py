"""fairlib: who pays when a neural network is compressed?

Group effects of compression - measured with their uncertainty, explained, and mitigated - in a few names:
:func:`load` grouped data, :func:`build` and :func:`fit` a model, :func:`prune` or :func:`linearize` it, :func:`audit`
what that did to each group, or run a whole :func:`study`.
"""

from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from fairlib._version import __version__

if TYPE_CHECKING:
    from fairlib.auditing import Report, audit
    from fairlib.data import GroupedDataset, Splits, load
    from fairlib.evidence.runs import record
    from fairlib.linearization import linearize
    from fairlib.mitigation import AccuracyGap, EqualAccuracy, EqualCurvature, EqualLoss, GroupDRO, Reweight
    from fairlib.models import build
    from fairlib.network.compaction import compact
    from fairlib.network.masks import sparsity
    from fairlib.network.memory import gradient_evaluations, history, weights_at
    from fairlib.network.restore import restore
    from fairlib.pruning import prune
    from fairlib.studies import Arm, study
    from fairlib.training import DivergenceError, fit

__all__ = [
    "AccuracyGap",
    "Arm",
    "DivergenceError",
    "EqualAccuracy",
    "EqualCurvature",
    "EqualLoss",
    "GroupDRO",
    "GroupedDataset",
    "Report",
    "Reweight",
    "Splits",
    "__version__",
    "audit",
    "build",
    "compact",
    "fit",
    "gradient_evaluations",
    "history",
    "linearize",
    "load",
    "prune",
    "record",
    "restore",
    "sparsity",
    "study",
    "weights_at",
]

# Where the names are defined, as the imports above tell the type checkers. At run time a module is imported when
# one of its names is first used: the console command and the Snakefile need no torch, which takes seconds.
_HOMES = {
    "auditing": ("Report", "audit"),
    "data": ("GroupedDataset", "Splits", "load"),
    "evidence.runs": ("record",),
    "linearization": ("linearize",),
    "mitigation": ("AccuracyGap", "EqualAccuracy", "EqualCurvature", "EqualLoss", "GroupDRO", "Reweight"),
    "models": ("build",),
    "network.compaction": ("compact",),
    "network.masks": ("sparsity",),
    "network.memory": ("gradient_evaluations", "history", "weights_at"),
    "network.restore": ("restore",),
    "pruning": ("prune",),
    "studies": ("Arm", "study"),
    "training": ("DivergenceError", "fit"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """A public name, or a module of the package, at its first use."""
    if name in _HOME:
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    elif find_spec(f"{__name__}.{name}"):
        value = import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *(module.name for module in iter_modules(__path__) if module.name[0] != "_")])
