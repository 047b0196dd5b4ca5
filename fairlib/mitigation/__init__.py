"""Constraints that hold groups together while a model trains, one a file. :func:`fairlib.fit` takes them."""

from fairlib.mitigation.accuracy_gap import AccuracyGap
from fairlib.mitigation.equal_accuracy import EqualAccuracy
from fairlib.mitigation.equal_curvature import EqualCurvature
from fairlib.mitigation.equal_loss import EqualLoss
from fairlib.mitigation.group_dro import GroupDRO
from fairlib.mitigation.reweight import Reweight
from fairlib.training import Constraint

__all__ = ["MITIGATIONS", "AccuracyGap", "EqualAccuracy", "EqualCurvature", "EqualLoss", "GroupDRO", "Reweight"]

MITIGATIONS: dict[str, type[Constraint]] = {
    "equal-loss": EqualLoss,
    "equal-curvature": EqualCurvature,
    "accuracy-gap": AccuracyGap,
    "equal-accuracy": EqualAccuracy,
    "group-dro": GroupDRO,
    "reweight": Reweight,
}
