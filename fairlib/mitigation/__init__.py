"""Constraints that hold groups together while a model trains, one a file. :func:`fairlib.fit` takes them."""

from fairlib.mitigation.equal_loss import EqualLoss
from fairlib.training import Constraint

__all__ = ["MITIGATIONS", "EqualLoss"]

MITIGATIONS: dict[str, type[Constraint]] = {
    "equal-loss": EqualLoss,
}
