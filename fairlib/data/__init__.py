"""Grouped data: what a data set is, how it is split, and the registry of the data sets that have a
name.

>>> from fairlib.data import DATASETS
>>> list(DATASETS)
['synthetic-faces', 'digits', 'folder', 'utkface', 'celeba', 'lfw', 'cifar10', 'svhn', 'mnist', 'fashion-mnist']
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairlib._validation import check_settings, lookup
from fairlib.data import celeba, digits, folder, labelled, lfw, synthetic_faces, utkface
from fairlib.data.collection import Collection, Request, check_count, crossed, in_order, select
from fairlib.data.dataset import GroupedDataset, Sizes, Splits
from fairlib.data.near_duplicates import near_duplicates as grouped
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
"""Data sets by name: functions of a ``Request`` and the data set's own settings that return a
``Collection``."""

EQUAL: dict[str, dict[str, Any]] = {
    "digits": {"imbalance": 1.0},
    "synthetic-faces": {"shares": (0.2,) * 5},
}
"""Settings that make all groups equally large, for the data sets that have such settings."""


NEAR_DUPLICATES = ("together", "ignored")
"""What :func:`load` may do with photographs that are nearly the same: keep them in one part, or
split them freely."""


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

    People of one's own are ``"folder"``: pictures and a table (CSV, Excel or Parquet), whose
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
        limit: Number of samples to draw by the seed, before any is decoded; 0 or None for all. For
            a data set that has a setting ``size`` and no ``limit``, it is the ``size``:
            ``synthetic-faces`` draws so many faces.
        root: Folder that holds the data set's folder, or that folder itself; ignored for ``digits``
            and ``synthetic-faces``, which need no files.
        seed: Seed of all that is random in the data. The samples that are drawn and the split have
            separate random streams; the seeds of weights and of training are other seeds.
        fractions: Shares of train, val and test; 0 for no such part: ``(0, 0, 1)`` loads a test set
            alone. Samples that a data set itself assigns to a part stay there.
        equal: Whether to make all groups of the training part equally large: by the settings in
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
            are split one by one, as in edition 0.1.
        settings: Settings of this data set: the keyword-only parameters of ``DATASETS[name]``.

    Returns:
        Train, val and test, with inputs uint8 ``(N, C, image_size, image_size)``; None for a part
        that was not asked for, by ``fractions`` or by a column ``split`` that leaves it out.

    Raises:
        ValueError: If a name, an attribute or a value is unknown or wrong, a group has fewer than
            two samples in a part or is called "all", or a setting is given twice (by its name, and
            by ``limit`` or ``equal``).
        TypeError: If a setting is unknown.
        FileNotFoundError: If the data are missing; says how to get them.
        OSError: If an image cannot be read.

    Example:
        >>> import fairlib
        >>> faces = fairlib.load("synthetic-faces", limit=400, image_size=16)
        >>> faces.train
        GroupedDataset(280 samples, uint8 (1, 16, 16), 5 classes, groups A: 126, B: 61, C: 42, D: 31, E: 20)
        >>> faces.report["test"], faces.report["duplicates"]
        (80, 0)

        Two attributes crossed, and a group made rare in what is learned from, not in what is tested
        on:

        >>> rare = dict(rare={"E x lively": 0.1}, rare_in=["train"])
        >>> faces = fairlib.load("synthetic-faces", group=["group", "expression"], image_size=16, **rare)
        >>> [part.group_sizes.tail(2).to_dict() for part in (faces.train, faces.test)]
        [{'E x calm': 49, 'E x lively': 5}, {'E x calm': 14, 'E x lively': 14}]
    """
    source = lookup("data set", name, DATASETS)
    settings = _completed(name, source, settings, limit, equal)
    check_settings(f"data set {name!r}", source, settings)
    if image_size:
        check_count("image_size", image_size, "a positive integer, or 0 for the data set's own")
    lookup("treatment of near_duplicates", near_duplicates, dict.fromkeys(NEAR_DUPLICATES))
    draw_seed, split_seed = seed_sequence(seed).spawn(2)
    request = Request(str(root), image_size or None, check_fractions(fractions), draw_seed)
    collection = source(request, **settings)

    targets, target_names = _select(name, collection, "target", target)
    places, class_names = in_order(target_names, collection.classes)
    groups, group_names = _select(name, collection, "group", group)
    if "all" in group_names:
        raise ValueError(
            f"a group of {group!r} is called 'all', the audit's name for everybody: give it another name"
        )
    rows = np.flatnonzero((targets >= 0) & (groups >= 0))
    images = collection.images(rows)
    kept, dropped = drop_duplicates(images, np.stack([targets[rows], groups[rows]], axis=1))
    undefined = len(collection.table) - len(kept) - sum(dropped.values())
    images, rows = images[kept], rows[kept]
    given = None if collection.parts is None else collection.parts[rows]
    asked = np.asarray(request.fractions) * (given is None or (given < 0).any())
    rng = np.random.default_rng(split_seed)
    if collection.people is not None:
        people = collection.people[rows]
        dropped["people"] = len(set(people))
        given = fill_parts(given, groups[rows], request.fractions, rng, people=people)

    units = None
    if collection.photographs and near_duplicates == "together":
        units = grouped(images)
        stay = np.ones(len(rows), dtype=bool) if given is None else first_parts(given, units)
        dropped["near_duplicates"] = int((np.bincount(units) > 1)[units].sum())
        dropped["near_duplicates_dropped"] = int((~stay).sum())
        images, rows, units = images[stay], rows[stay], units[stay]
        given = None if given is None else given[stay]

    targets, groups = targets[rows], groups[rows]
    cells = groups * len(target_names) + targets
    parts = fill_parts(given, cells, request.fractions, rng, units)
    members = {
        part: parts == code for code, part in enumerate(PARTS) if asked[code] or code in parts
    }
    if members.keys() != {"test"}:  # An audit lists small groups.
        check_group_sizes(parts, groups, group_names, members)
    names = (class_names, group_names, collection.normalize)
    whole = {
        part: GroupedDataset(images[m], places[targets[m]], groups[m], *names)
        for part, m in members.items()
    }
    for part in whole.values():
        part.attributes = crossed(collection.table, group)
    sizes = {part: len(whole.get(part, ())) for part in PARTS}
    report = {**collection.report, "undefined": undefined, **dropped, **sizes}
    splits = Splits(**{part: whole.get(part) for part in PARTS}, name=name, report=report)
    if equal and name not in EQUAL:
        if splits.train is None:
            raise ValueError(
                "equal=True makes the groups of the training part equally large, but there is none"
            )
        smallest = int(splits.train.group_sizes.min())
        splits = splits.imbalance(dict.fromkeys(group_names, smallest), seed, parts=("train",))
    if rare:
        splits = splits.imbalance(
            {key: float(share) for key, share in rare.items()}, seed, parts=rare_in
        )
    return splits


def _completed(
    name: str, source: Callable, settings: Mapping, limit: int | None, equal: bool
) -> dict[str, Any]:
    """The data set's own settings, and the settings that ``limit`` and ``equal`` mean for this data
    set."""
    more = dict(EQUAL.get(name, {})) if equal else {}
    if limit:
        known = inspect.signature(source).parameters
        more["size" if "size" in known and "limit" not in known else "limit"] = limit
    if twice := sorted(set(more) & set(settings)):
        raise ValueError(
            f"{twice[0]} of data set {name!r} is given twice: by limit= or equal=, and as {twice[0]}="
        )
    return {**settings, **more}


def _select(
    name: str, collection: Collection, role: str, asked: str | Sequence[str] | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Codes and names of the target or the group: of the attributes that were asked for, or else of
    the default."""
    attributes = getattr(collection, role) if asked is None or asked == "" else asked
    if attributes is None:
        known = ", ".join(collection.table) or "none"
        raise ValueError(
            f"data set {name!r} has no default {role}: give {role}=, of the attributes {known}"
        )
    return select(collection.table, attributes)
