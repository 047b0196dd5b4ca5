"""Mitigations: constraints on groups that :func:`fairlib.fit` takes as ``constraint``, one a file.

>>> from fairlib.mitigation import MITIGATIONS
>>> MITIGATIONS["equal-loss"](step=0.02).step  # fairlib.EqualLoss, by the name that a study takes.
0.02
"""

from fairlib.mitigation.accuracy_gap import AccuracyGap
from fairlib.mitigation.equal_accuracy import EqualAccuracy
from fairlib.mitigation.equal_curvature import EqualCurvature
from fairlib.mitigation.equal_loss import EqualLoss
from fairlib.mitigation.equalized_odds import EqualizedOdds
from fairlib.mitigation.group_dro import GroupDRO
from fairlib.mitigation.reweight import Reweight
from fairlib.training import Constraint

__all__ = [
    "MITIGATIONS",
    "AccuracyGap",
    "EqualAccuracy",
    "EqualCurvature",
    "EqualLoss",
    "EqualizedOdds",
    "GroupDRO",
    "Reweight",
]

MITIGATIONS: dict[str, type[Constraint]] = {
    "equal-loss": EqualLoss,
    "equal-curvature": EqualCurvature,
    "accuracy-gap": AccuracyGap,
    "equal-accuracy": EqualAccuracy,
    "equalized-odds": EqualizedOdds,
    "group-dro": GroupDRO,
    "reweight": Reweight,
}
