"""fairlib: who pays when a neural network is compressed?

Group effects of compression - measured with their uncertainty, explained, and mitigated - in a few names:
:func:`load` grouped data, :func:`build` and :func:`fit` a model, :func:`prune` or :func:`linearize` it, :func:`audit`
what that did to each group, or run a whole :func:`study`.
"""

from fairlib._version import __version__
from fairlib.auditing import Report, audit
from fairlib.compaction import compact
from fairlib.data import GroupedDataset, Splits, load
from fairlib.linearization import linearize
from fairlib.masks import restore, sparsity
from fairlib.mitigation import AccuracyGap, EqualAccuracy, EqualCurvature, EqualLoss, GroupDRO, Reweight
from fairlib.models import build
from fairlib.pruning import prune
from fairlib.runs import record
from fairlib.studies import study
from fairlib.training import DivergenceError, fit, gradient_evaluations, history, weights_at

__all__ = [
    "AccuracyGap",
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
