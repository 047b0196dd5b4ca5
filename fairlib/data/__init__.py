"""Grouped data: what a data set is, how it is split, and the registry of those that can be loaded by name."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairlib._validation import check_settings, lookup
from fairlib.data import celeba, digits, folder, labelled, lfw, synthetic_faces, utkface
from fairlib.data.collection import Collection, Request, select
from fairlib.data.dataset import GroupedDataset, Splits
from fairlib.data.splitting import (
    PARTS,
    check_fractions,
    check_group_sizes,
    drop_duplicates,
    seed_sequence,
    stratified_parts,
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
"""By name: from a ``Request`` and the data set's own settings to its ``Collection``."""

EQUAL: dict[str, dict[str, object]] = {"digits": {"imbalance": 1.0}, "synthetic-faces": {"shares": (0.2,) * 5}}
"""Settings of the data sets that can be drawn with groups of equal size; of any other the larger groups are cut."""


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
    rare: Mapping[str | int | tuple[str | int, str | int], float] | None = None,
    rare_in: Sequence[str] = PARTS,
    **settings: object,
) -> Splits:
    """Load a data set, split for training, validation and test.

    In this order: samples whose target or group is undefined are left out; of images with the same bytes one
    is kept if they agree on target and group (the first: of CIFAR-10, SVHN, MNIST and Fashion-MNIST that of the
    training part), none if they don't; the rest is split so that every crossing of target and group follows
    ``fractions``. ``report`` counts what each step took.

    Args:
        name: One of ``DATASETS``.
        target: The attribute to predict, or several, which are crossed; "" or None for the data set's own default
            (``folder`` has none).
        group: The attribute that defines the groups, likewise: ``["gender", "race"]`` makes "male x White".
        image_size: Height and width in pixels; 0 or None for the data set's own default.
        limit: How many samples are drawn by the seed, before anything is decoded; 0 or None for all. A data set that
            has no ``limit`` but a ``size`` takes it as that: ``synthetic-faces`` draws so many faces.
        root: Folder that holds the data set's folder, or that folder itself; not read for data that come with the
            package or are drawn.
        seed: Governs all that is random in the data - what is drawn, and the split, from streams of their
            own - and is apart from the seeds of weights and of training.
        fractions: Shares of train, val and test. What a data set assigns to a part itself stays there.
        equal: Make all groups of the training part equally large: by the settings in ``EQUAL``, or by cutting every
            group to the size of the smallest.
        rare: Shares of samples to keep, in (0, 1], by group or by ``(group, target)``, names or codes:
            ``{(1, 1): 0.1}`` keeps a tenth of the second group's second target (``Splits.imbalance``).
        rare_in: The parts that ``rare`` thins out.
        settings: Settings of this data set: the keyword-only parameters of ``DATASETS[name]``.

    Returns:
        Splits whose inputs are uint8 ``(N, C, image_size, image_size)``.

    Raises:
        ValueError: If a name, an attribute or a value is unknown or wrong, a group has fewer than two samples in a
            part, or a setting is given twice (as itself and by ``limit`` or ``equal``).
        TypeError: If a setting is unknown.
        FileNotFoundError: If the data are not there.
        OSError: If an image cannot be read.
    """
    source = lookup("data set", name, DATASETS)
    settings = _completed(name, source, settings, limit, equal)
    check_settings(f"data set {name!r}", source, settings)
    _check_image_size(image_size)
    draw_seed, split_seed = seed_sequence(seed).spawn(2)
    request = Request(str(root), image_size or None, check_fractions(fractions), draw_seed)
    collection = source(request, **settings)

    targets, target_names = _select(name, collection, "target", target)
    groups, group_names = _select(name, collection, "group", group)
    rows = np.flatnonzero((targets >= 0) & (groups >= 0))
    images = collection.images(rows)
    kept, dropped = drop_duplicates(images, np.stack([targets[rows], groups[rows]], axis=1))
    images, rows = images[kept], rows[kept]
    targets, groups = targets[rows], groups[rows]

    given = None if collection.parts is None else collection.parts[rows]
    cells = groups * len(target_names) + targets
    parts = _complete(given, cells, request.fractions, np.random.default_rng(split_seed))
    check_group_sizes(parts, groups, group_names)
    splits = {
        part: GroupedDataset(images[members], targets[members], groups[members], target_names, group_names)
        for part, members in ((part, parts == code) for code, part in enumerate(PARTS))
    }
    report = {
        **collection.report,
        "undefined": len(collection.table) - len(kept) - sum(dropped.values()),
        **dropped,
        **{part: len(data) for part, data in splits.items()},
    }
    splits = Splits(**splits, name=name, report=report)
    if equal and name not in EQUAL:
        smallest = int(splits.train.group_sizes.min())
        splits = splits.imbalance(dict.fromkeys(group_names, smallest), seed, parts=("train",))
    if rare:
        splits = splits.imbalance({key: float(share) for key, share in rare.items()}, seed, parts=rare_in)
    return splits


def _completed(
    name: str, source: Callable, settings: Mapping[str, Any], limit: int | None, equal: bool
) -> dict[str, object]:
    """The data set's own settings, with those that ``limit`` and ``equal`` stand for."""
    more = dict(EQUAL.get(name, {})) if equal else {}
    if limit:
        known = inspect.signature(source).parameters
        more["size" if "size" in known and "limit" not in known else "limit"] = limit
    if twice := sorted(set(more) & set(settings)):
        raise ValueError(f"{twice[0]} of data set {name!r} is given twice: by limit= or equal=, and as {twice[0]}=")
    return {**settings, **more}


def _select(
    name: str, collection: Collection, role: str, asked: str | Sequence[str] | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Codes and names of what was asked for as target or as group, or else of the default."""
    attributes = getattr(collection, role) if asked is None or asked == "" else asked
    if attributes is None:
        known = ", ".join(collection.table) or "none"
        raise ValueError(f"data set {name!r} has no default {role}: give {role}=, of the attributes {known}")
    return select(collection.table, attributes)


def _complete(
    given: np.ndarray | None, cells: np.ndarray, fractions: tuple[float, ...], rng: np.random.Generator
) -> np.ndarray:
    """Deal what the data set left open out to the parts that it does not fill itself."""
    parts = np.full(len(cells), -1) if given is None else given.copy()
    undecided = parts < 0
    free = np.setdiff1d(np.arange(len(PARTS)), parts)
    if undecided.any():
        shares = np.asarray(fractions)[free]
        parts[undecided] = free[stratified_parts(cells[undecided], shares / shares.sum(), rng)]
    return parts


def _check_image_size(image_size: int | None) -> None:
    if image_size is None:
        return
    if isinstance(image_size, bool) or not isinstance(image_size, int | np.integer) or image_size < 0:
        raise ValueError(f"image_size must be a positive integer, or 0 for the data set's own, got {image_size!r}")
