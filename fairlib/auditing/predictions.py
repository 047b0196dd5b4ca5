"""Ground truth and predictions: all that a comparison of two models needs to know of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

ROLES = ("before", "after")
"""Roles of the two models of an audit: the dense one and the compressed one."""


@dataclass(frozen=True)
class GroundTruth:
    """Targets and groups of the evaluated samples.

    Attributes:
        targets: Codes into ``target_names``, int ``(N,)``.
        groups: Codes into ``group_names``, int ``(N,)``.
        target_names, group_names: Names of classes and groups.
        attributes: Codes and names of each attribute, by its name, if the groups cross several.
        numbered: True if integers that a model answers may be codes of classes; False if they can
            only be their names.

    Raises:
        ValueError: If a group is called ``all``, as the row for all samples is.
    """

    targets: np.ndarray
    groups: np.ndarray
    target_names: tuple[str, ...]
    group_names: tuple[str, ...]
    attributes: Mapping[str, tuple[np.ndarray, tuple[str, ...]]] = field(default_factory=dict)
    numbered: bool = True

    def __post_init__(self) -> None:
        for names in (self.group_names, *(names for _, names in self.attributes.values())):
            if "all" in names:
                raise ValueError(
                    "no group may be called 'all': that is the name of the row for all samples"
                )


@dataclass(frozen=True)
class Predictions:
    """Answers of a model for N samples.

    Attributes:
        labels: Predicted classes, codes, int ``(N,)``.
        loss: Cross-entropy in nats, ``(N,)``; NaN if only labels are known.
        confidence: Probability of the predicted class, ``(N,)``; NaN if only labels are known.
        kind: ``"logits"``, ``"probabilities"`` or ``"labels"``.
        about: Description of the model, for the report.
        notes: Warnings.
    """

    labels: np.ndarray
    loss: np.ndarray
    confidence: np.ndarray
    kind: str
    about: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
