"""Ground truth from data sets and from labels of any kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fairlib._tables import coded, cross_attributes, dense, read_attributes
from fairlib._validation import check_type
from fairlib.auditing.adapters.scores import is_scores
from fairlib.auditing.predictions import GroundTruth

if TYPE_CHECKING:
    from fairlib.data import GroupedDataset


def ground_truth(
    test: GroupedDataset | None, targets: Any, groups: Any, scores: Mapping[str, Any]
) -> GroundTruth:
    """Read targets and groups of a data set, or as they are given.

    Args:
        test: Data set, or None.
        targets, groups: Labels in the place of a data set (:func:`truth_of_labels`).
        scores: Scores of the models, or the models, by role.

    Raises:
        TypeError: If there is neither a data set nor labels, or both.
        ValueError: If labels do not fit each other.
    """
    if test is None:
        if targets is None or groups is None:
            raise TypeError(
                "give a test set, a GroupedDataset; or targets= and groups= beside the scores of "
                "two models"
            )
        return truth_of_labels(targets, groups, scores)
    check_data("test", test)
    if targets is not None or groups is not None:
        raise TypeError("targets and groups are in test: give either test or targets= and groups=")
    return truth_of_dataset(test)


def check_data(name: str, data: Any) -> None:
    """Refuse an argument that is no :class:`fairlib.GroupedDataset`."""
    from fairlib.data import GroupedDataset

    check_type(name, data, GroupedDataset, "a GroupedDataset")


def truth_of_dataset(test: GroupedDataset) -> GroundTruth:
    """Read targets and groups of a data set, and the attributes that its groups cross."""
    targets, groups = test.targets.cpu().numpy(), test.groups.cpu().numpy()
    attributes = {}
    if test.attributes:
        # A code of crossed groups is a position in the grid of all combinations, the last
        # attribute's changing fastest.
        codes = np.unravel_index(groups, [len(names) for names in test.attributes.values()])
        for name, own in zip(test.attributes, codes, strict=True):
            attributes[name] = (own, test.attributes[name])
    return GroundTruth(targets, groups, test.target_names, test.group_names, attributes)


def truth_of_labels(targets: Any, groups: Any, scores: Mapping[str, Any]) -> GroundTruth:
    """Read targets and groups that are given as labels.

    Args:
        targets: Classes ``(N,)``, texts or integers.
        groups: Groups ``(N,)``; or a data frame or a mapping of several attributes, which are
            crossed.
        scores: Scores of the models, by role.

    Raises:
        ValueError: If a label is missing, their numbers differ or are 0, or two groups have one
            name.
    """
    codes, names = coded("targets", targets)
    if not len(codes):
        raise ValueError("targets must hold at least one sample")
    shapes = [dense(role, each).shape for role, each in scores.items() if is_scores(each)]
    width = max((shape[1] for shape in shapes if len(shape) == 2), default=0)
    # Scores of ten classes beside a small test set, in which class 7 does not occur: without its
    # place the columns after it would be taken for the classes before them.
    if width > len(names) and all(name.isdigit() and int(name) < width for name in names):
        codes = np.array([int(name) for name in names])[codes]
        names = tuple(map(str, range(width)))
    attributes = read_attributes("groups", groups)
    cells, group_names = cross_attributes(attributes.values())
    if len(set(group_names)) < len(group_names):
        raise ValueError(f"groups must have distinct names, got {', '.join(group_names)}")
    if len(codes) != len(cells):
        raise ValueError(
            f"targets and groups must be of the same samples, got {len(codes)} and {len(cells)}"
        )
    crossed = attributes if len(attributes) > 1 else {}
    return GroundTruth(codes, cells, names, group_names, crossed, numbered=False)
