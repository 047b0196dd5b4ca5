"""Grouped data: samples with a target and a group, their splits, and the data sets by name.

>>> from fairlib.data import DATASETS
>>> sorted(DATASETS)[:3]
['celeba', 'cifar10', 'digits']
"""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairlib._tables import in_order
from fairlib._validation import check_number, check_settings, lookup
from fairlib.data import celeba, digits, folder, labelled, lfw, synthetic_faces, utkface
from fairlib.data.collection import Collection, Request, select_attributes
from fairlib.data.dataset import GroupedDataset, Sizes, Splits
from fairlib.data.near_duplicates import near_duplicates as near_duplicate_groups
from fairlib.data.splitting import (
    PARTS,
    check_fractions,
    check_group_sizes,
    drop_duplicates,
    fill_parts,
    first_parts,
    seed_sequence,
)

__all__ = ["DATASETS", "GroupedDataset", "Splits", "load"]

DATASETS: dict[str, Callable[..., Collection]] = {
    "synthetic-faces": synthetic_faces.synthetic_faces,
    "digits": digits.digits,
    "folder": folder.folder,
    "utkface": utkface.utkface,
    "celeba": celeba.celeba,
    "lfw": lfw.lfw,
    "cifar10": labelled.cifar10,
    "svhn": labelled.svhn,
    "mnist": labelled.mnist,
    "fashion-mnist": labelled.fashion_mnist,
}
"""Data sets by name: functions of a ``Request`` and settings that return a ``Collection``."""

EQUAL: dict[str, dict[str, Any]] = {
    "digits": {"imbalance": 1.0},
    "synthetic-faces": {"shares": (0.2,) * 5},
}
"""Settings that make all groups equally large, for the data sets that have such settings."""


NEAR_DUPLICATES = ("together", "ignored")
"""Treatments of photographs that are nearly the same: one part for all of them, or any parts."""


def load(
    name: str,
    *,
    target: str | Sequence[str] | None = "",
    group: str | Sequence[str] | None = "",
    image_size: int | None = 0,
    limit: int | None = 0,
    root: str | Path = "data",
    seed: int = 0,
    fractions: Sequence[float] = (0.7, 0.1, 0.2),
    equal: bool = False,
    rare: Sizes | None = None,
    rare_in: Sequence[str] = PARTS,
    near_duplicates: str = "together",
    **settings: Any,
) -> Splits:
    """Load a data set, split for training, validation and test.

    First, samples whose target or group is undefined are left out. Then, of images with the same
    bytes, the first is kept if all agree on target and group (in CIFAR-10, SVHN, MNIST and
    Fashion-MNIST the first is in the training part), and none if they do not. The rest is split so
    that every crossing of target and group follows ``fractions``; photographs that are nearly the
    same go to one part. ``report`` counts the samples that each step dropped.

    For your own data use ``"folder"``: pictures and a table (CSV, Excel or Parquet), whose
    columns are the attributes. Its settings (:func:`fairlib.data.folder.folder`) name the table and
    its columns, among them one that assigns the parts (``split``) and one that says who is shown
    (``person``: nobody is in two parts), the order of a model's ``classes``, and what it expects
    (``normalize``).

    Args:
        name: Name of the data set in ``DATASETS``.
        target: Name of the attribute to predict, or several names, which are crossed; "" or None
            for the data set's own default (``folder`` has none).
        group: Name of the attribute that defines the groups, or several names, which are crossed:
            ``["gender", "race"]`` makes "male x White"; "" or None for the data set's own default.
        image_size: Height and width in pixels; 0 or None for the data set's own default.
        limit: Number of samples to draw by the seed, before any is decoded; 0 or None, or more than
            there are, for all. For a data set that has a setting ``size``, it is the ``size``:
            ``synthetic-faces`` draws so many faces.
        root: Folder that holds the data set's folder, or that folder itself; ignored for ``digits``
            and ``synthetic-faces``, which need no files.
        seed: Seed of all that is random in the data. The samples that are drawn and the split have
            separate random streams; the seeds of weights and of training are other seeds.
        fractions: Shares of train, val and test; 0 for no such part: ``(0, 0, 1)`` loads a test set
            alone. Samples that a data set itself assigns to a part stay there.
        equal: True makes all groups of the training part equally large: by the settings in
            ``EQUAL``, or else by reducing every group to the size of the smallest.
        rare: Shares of samples to keep, in (0, 1], by group or by ``(group, target)``, given by
            name or code: ``{(1, 1): 0.1}`` keeps a tenth of the second group's second target
            (``Splits.imbalance``).
        rare_in: Names of the parts to which ``rare`` applies.
        near_duplicates: ``"together"``: near-duplicates (:mod:`fairlib.data.near_duplicates`, found
            in the pixels as they are loaded, at ``image_size``) go to the same part. Where the data
            set itself or the person shown decides on parts, those in the first part stay there, and
            those in the other parts are dropped, as copies with the same bytes are.
            ``report`` counts the images that have a near-duplicate (``near_duplicates``) and the
            dropped ones (``near_duplicates_dropped``). Only photographs are compared: not
            ``digits``, ``mnist``, ``fashion-mnist`` and ``synthetic-faces``. ``"ignored"``: images
            are split one by one.
        settings: Settings of this data set: the keyword-only parameters of ``DATASETS[name]``.

    Returns:
        Train, val and test, with inputs uint8 ``(N, C, image_size, image_size)``; None for a part
        that was not asked for, by ``fractions`` or by a column ``split`` that leaves it out.

    Raises:
        ValueError: If a name, an attribute or a value is unknown or wrong, a group has fewer than
            two samples in a part or is called "all", or a setting is given twice (by its name, and
            by ``limit`` or ``equal``).
        TypeError: If a setting is unknown, or a count is not an integer.
        FileNotFoundError: If the data are missing; says how to get them.
        OSError: If an image cannot be read.

    Example:
        >>> import fairlib
        >>> faces = fairlib.load("synthetic-faces", limit=400, image_size=16)
        >>> faces.train.group_sizes.to_dict()
        {'A': 126, 'B': 61, 'C': 42, 'D': 31, 'E': 20}
        >>> faces.report["test"], faces.report["duplicates"]
        (80, 0)

        Two attributes crossed, and a group made rare in the training part, not in the test part:

        >>> settings = dict(group=["group", "expression"], image_size=16)
        >>> settings |= dict(rare={"E x lively": 0.1}, rare_in=["train"])
        >>> faces = fairlib.load("synthetic-faces", **settings)
        >>> [part.group_sizes.tail(2).to_dict() for part in (faces.train, faces.test)]
        [{'E x calm': 49, 'E x lively': 5}, {'E x calm': 14, 'E x lively': 14}]
    """
    source = lookup("data set", name, DATASETS)
    # A data set with a size of its own takes the limit as that size. Of any other, limit samples
    # are drawn here, so that no data set has to know of limits.
    sized = "size" in inspect.signature(source).parameters
    implied = EQUAL.get(name, {}) if equal else {}
    if limit:
        check_number("limit", limit, 1, whole=True)
        implied = implied | ({"size": limit} if sized else {})
    for setting in implied:
        if setting in settings:
            raise ValueError(
                f"{setting} of data set {name!r} is given twice: by limit= or equal=, and as "
                f"{setting}="
            )
    settings = settings | implied
    check_settings(f"data set {name!r}", source, settings)
    if image_size:
        check_number("image_size", image_size, 1, whole=True)
    lookup("treatment of near_duplicates", near_duplicates, dict.fromkeys(NEAR_DUPLICATES))
    draw_seed, split_seed = seed_sequence(seed).spawn(2)
    request = Request(str(root), image_size or None, check_fractions(fractions), draw_seed)
    collection = source(request, **settings)

    targets, target_names = _select(name, collection, "target", target)
    groups, group_names = _select(name, collection, "group", group)
    if "all" in group_names:
        raise ValueError(
            f"a group of {group!r} is called 'all', the audit's name for everybody: give it "
            "another name"
        )
    # A model's classes may be in another order than the attribute's values, and more. The split
    # is made with the values, so that it does not depend on the model.
    positions, class_names = in_order(target_names, collection.classes)
    labels = np.column_stack([targets, groups])
    rows, images, report = _samples(collection, labels, request, 0 if sized else limit)
    labels = labels[rows]
    stay, parts, counts = _parts(
        collection,
        rows,
        images,
        labels,
        request.fractions,
        near_duplicates == "together",
        np.random.default_rng(split_seed),
    )
    images, (targets, groups) = images[stay], labels[stay].T
    open_parts = collection.parts is None or (collection.parts < 0).any()
    requested = {
        part: parts == code
        for code, part in enumerate(PARTS)
        if code in parts or (open_parts and request.fractions[code])
    }
    if requested.keys() != {"test"}:  # An audit of a test set alone lists small groups.
        check_group_sizes(parts, groups, group_names, requested)

    whole = GroupedDataset(
        images, positions[targets], groups, class_names, group_names, collection.normalize
    )
    del images  # They would be in memory three times while the parts are copied.
    if group and not isinstance(group, str) and len(group) > 1:
        whole.attributes = {one: select_attributes(collection.table, one)[1] for one in group}
    sizes = dict(zip(PARTS, np.bincount(parts, minlength=len(PARTS)).tolist(), strict=True))
    data = {part: whole.subset(members) for part, members in requested.items()}
    splits = Splits(
        **{part: data.get(part) for part in PARTS}, name=name, report=report | counts | sizes
    )
    if equal and name not in EQUAL:
        if splits.train is None:
            raise ValueError(
                "equal=True makes the groups of the training part equally large, but there is none"
            )
        smallest = int(splits.train.group_sizes.min())
        splits = splits.imbalance(dict.fromkeys(group_names, smallest), seed, parts=("train",))
    if rare:
        shares = {key: float(share) for key, share in rare.items()}
        splits = splits.imbalance(shares, seed, parts=rare_in)
    return splits


def _samples(
    collection: Collection, labels: np.ndarray, request: Request, limit: int | None
) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Draw the samples, without undefined ones and copies: rows, their images, counts."""
    rows = np.arange(len(labels))
    if limit and limit < len(rows):
        rng = np.random.default_rng(request.seed)
        rows = np.sort(rng.choice(len(rows), limit, replace=False))
    report = {"not_drawn": len(labels) - len(rows), **collection.report}
    defined = rows[(labels[rows] >= 0).all(axis=1)]
    images = collection.images(defined)
    unique, dropped = drop_duplicates(images, labels[defined])
    report |= {"undefined": len(rows) - len(defined), **dropped}
    return defined[unique], images[unique], report


def _parts(
    collection: Collection,
    rows: np.ndarray,
    images: np.ndarray,
    labels: np.ndarray,
    fractions: Sequence[float],
    together: bool,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
    """Assign samples to parts: a mask of those that stay, the part of each that does, counts."""
    targets, groups = labels.T
    cells = groups * (targets.max(initial=0) + 1) + targets
    parts = np.full(len(rows), -1) if collection.parts is None else collection.parts[rows]
    stay = np.ones(len(rows), dtype=bool)
    counts = {}
    # Whole people first, then photographs that are nearly the same, and the crossings of target
    # and group last: only the step before the last can drop samples of a part that is fixed, and
    # only the last can move single samples.
    if collection.people is not None:
        people = collection.people[rows]
        counts["people"] = len(set(people))
        parts = fill_parts(parts, groups, fractions, rng, people=people)
    units = np.arange(len(rows))
    if collection.photographs and together:
        units = near_duplicate_groups(images)
        stay = first_parts(parts, units)
        counts["near_duplicates"] = int((np.bincount(units) > 1)[units].sum())
        counts["near_duplicates_dropped"] = int((~stay).sum())
    return stay, fill_parts(parts[stay], cells[stay], fractions, rng, units[stay]), counts


def _select(
    name: str, collection: Collection, role: str, names: str | Sequence[str] | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return codes and names of the requested attributes, or of the default."""
    attributes = getattr(collection, role) if names is None or names == "" else names
    if attributes is None:
        known = ", ".join(collection.table) or "none"
        raise ValueError(
            f"data set {name!r} has no default {role}: give {role}=, of the attributes {known}"
        )
    return select_attributes(collection.table, attributes)
