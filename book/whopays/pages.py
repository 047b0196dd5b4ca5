"""Steps that many pages share: parameters as arguments, recorded tables with verdicts, rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pandas as pd

from whopays import effects, plots, prose, tables
from whopays.effects import Arguments

OF_DATA = ("target", "group", "image_size", "limit", "root", "near_duplicates")
"""Parameters that :func:`fairlib.load` takes under the same name."""

OF_TRAINING = ("epochs", "lr", "weight_decay", "batch_size", "augment", "precision")
"""Parameters that :func:`fairlib.fit` takes under the same name."""


def settings(page: Mapping[str, Any]) -> tuple[Arguments, Arguments, Arguments]:
    """Resolve the parameters of a page into arguments of fairlib.

    ``attribute`` is target and group at once; ``rare`` is the share kept of the second target in
    the second group, as Dai et al. have it, beside ``size``, the number of images that are drawn;
    a ``finetune_lr`` of 0 is a fifth of ``lr``.

    Args:
        page: Names and values of the page, its ``globals()``.

    Returns:
        Arguments of :func:`fairlib.load` beside the name of the data set; of :func:`fairlib.fit`
        for the dense training; of :func:`fairlib.study` other than methods, levels and mitigation,
        whose data and training are the first two.

    Raises:
        KeyError: If the page has no seeds.

    Example:
        >>> from whopays.pages import settings
        >>> page = {"data": "digits", "target": "parity", "model": "cnn", "epochs": 9}
        >>> attributes, train, common = settings(page | {"seeds": 5, "first_seed": 100})
        >>> attributes, train, common["seeds"]
        ({'target': 'parity'}, {'epochs': 9}, range(100, 105))
    """
    # A function of the page may have the name of a parameter that the page lacks, for example
    # "group", and would pass for it: parameters are scalars.
    given: Arguments = {
        k: value for k, value in page.items() if isinstance(value, str | int | float)
    }
    attributes, train = _chosen(given, OF_DATA), _chosen(given, OF_TRAINING)
    common = _chosen(given, ("model", "device", "held_out"))
    if "attribute" in given:
        attributes |= dict.fromkeys(["target", "group"], given["attribute"])
    if "rare" in given:
        attributes |= {"rare": {(1, 1): given["rare"]}, "limit": given["size"]}
        if given["data"] == "synthetic-faces":
            attributes["shares"] = (0.5, 0.5)
    common |= {"data": (given.get("data"), attributes), "train": train, "progress": True}
    common["seeds"] = range(given["first_seed"], given["first_seed"] + given["seeds"])
    if "width" in given:
        common["model"] = given.get("model"), {"width": given["width"]}
    if "finetune_epochs" in given:
        common["finetune"] = {"epochs": given["finetune_epochs"]}
        if "finetune_lr" in given:
            common["finetune"]["lr"] = given["finetune_lr"] or given["lr"] / 5
    return attributes, train, common


def _chosen(given: Arguments, names: tuple[str, ...]) -> Arguments:
    return {name: given[name] for name in names if name in given}


def linearizers(page: Mapping[str, Any], train: Arguments) -> dict[str, Arguments]:
    """Resolve the parameters of a page into settings of the linearizers that train, by name.

    Args:
        page: Names and values of the page, its ``globals()``.
        train: Arguments of :func:`fairlib.fit` for the dense training (:func:`settings`).
    """
    mask = {name: page[name] for name in ("augment", "precision")}
    mask |= {"epochs": page["mask_epochs"], "lr": page["mask_lr"]}
    mask["batch_size"] = page["mask_batch"] or page["batch_size"]
    steps = train | {"epochs": page.get("step_epochs"), "lr": page["lr"] / 5}
    widths = 1.0, 0.75, 0.5, 0.25, 0.125
    return {
        "snl": {"exact": True, "penalty": page["penalty"], "train": mask},
        "deepreduce": {"train": steps, "widths": widths, "from_scratch": train},
        "senet": {"train": steps},
    }


def values(text: str, kind: type = float) -> list[Any]:
    """Split a parameter that lists several values, separated by commas: float, int or str."""
    return [kind(part.strip()) for part in text.split(",") if part.strip()]


def evidence(path: str) -> tuple[tables.Recorded, Callable[..., prose.Said]]:
    """Read a recorded table; return with it the function that looks up a verdict by this table.

    Args:
        path: Path of the CSV file, a literal (:func:`whopays.tables.recorded`). The function is
            :func:`whopays.prose.verdict` with it.
    """
    return tables.recorded(path), partial(prose.verdict, table=path)


def lean(study: pd.DataFrame, control: str = "") -> pd.DataFrame:
    """Keep controls and the test part of compressed networks, the rows that statistics need.

    Args:
        study: Table of :func:`fairlib.study`.
        control: Name of an arm whose control becomes that of the arm ``equal loss``, too.
    """
    if control:
        own = study[(study["stage"] == "control") & (study["arm"] == control)]
        study = pd.concat([study, own.assign(arm="equal loss")])
    tested = (study["stage"] == "compressed") & (study["split"] == "test")
    return study[(study["stage"] == "control") | tested].reset_index(drop=True)


def dropped(study: pd.DataFrame, *on: str, **where: Any) -> pd.DataFrame:
    """Select compressed networks, with what each group lost of its test accuracy.

    Args:
        study: Table of :func:`fairlib.study` (:func:`whopays.effects.against_control`).
        on: Names of the columns in which a row and its control agree, beside seed and group.
        where: Values of columns that select the rows; ``split`` is ``test`` unless given.
    """
    rows = effects.against_control(study, on=[*on, "seed", "group"])
    return effects.select(rows, stage="compressed", **{"split": "test"} | where)


def draw(figure: Callable[..., Any], study: pd.DataFrame, *arguments: object) -> None:
    """Draw a figure of a study that ran here, with the line that says where it comes from.

    Args:
        figure: Function that draws the table, its first argument, as
            :meth:`whopays.tables.Recorded.draw` takes it.
        study: Table of :func:`fairlib.study`.
        arguments: Further arguments of the function.
    """
    plots.provenance(figure(study, *arguments), study)
