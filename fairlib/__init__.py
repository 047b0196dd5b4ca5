"""fairlib: who pays when a neural network is compressed?

Group effects of compression - measured with their uncertainty, explained, and mitigated - in a few names:
:func:`load` grouped data, :func:`build` and :func:`fit` a model, :func:`prune` or :func:`linearize` it, :func:`audit`
what that did to each group, or run a whole :func:`study`.
"""

from fairlib._version import __version__
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
