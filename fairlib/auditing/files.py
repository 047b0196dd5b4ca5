"""Audits of files: a table of what two models said, or two files of models and a folder of
pictures."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from fairlib._tables import read_text_table
from fairlib.auditing.comparison import Report, audit
from fairlib.auditing.onnx import RUNS_CODE, check_model
from fairlib.auditing.predictions import digest

if TYPE_CHECKING:
    from torch import nn

    from fairlib.data import GroupedDataset


_LEFT = {
    "undefined": "without target or group",
    "duplicates": "copies of others",
    "conflicting": "copies of others with another target or group",
}


def audit_table(
    predictions: str | Path,
    before: Sequence[str],
    after: Sequence[str],
    *,
    target: str,
    group: Sequence[str],
    classes: Sequence[str] | None = None,
    positive: str | None = None,
    **settings: Any,
) -> Report:
    """Audit what two models said, from columns of one table.

    Rows without a target or a group are left out, and counted in a note. A prediction must be there
    in all others: a model that answers for some people only is not the better for it.

    Args: predictions: Path of a CSV, ``.xlsx`` or ``.parquet`` file, one row a sample. before: Name
        of a column of labels, or of numbers: a score of the positive class, of two; or names of
        columns of
            scores, one for each class in its order.
        after: Likewise, of the compressed model.
        target: Name of the column of true classes.
        group: Names of columns of attributes; several are crossed.
        classes: Classes in the order of the columns; by default the values of the target, sorted.
        positive: The positive class, of two; by default the last one.
        settings: Further arguments of :func:`fairlib.audit`.

    Raises: ValueError: If a column is unknown, a prediction is missing, or is no class and no
        number, scores do not match
            the classes, no row is left, or :func:`fairlib.audit` refuses what it finds; names the
            row.
        FileNotFoundError: If there is no such file.
    """
    path = Path(predictions)
    if path.suffix.lower() in RUNS_CODE:
        raise ValueError(
            f"{str(path)!r} may run code when it is read: write a table, DataFrame(...).to_csv(PATH)"
        )
    table = read_text_table(path, dict.fromkeys([target, *group, *before, *after]))
    unknown = {name: int(table[name].isna().sum()) for name in (target, *group)}
    known = table.dropna(subset=[*unknown])
    if known.empty:
        raise ValueError(
            f"no row of {str(path)!r} has both a target ({target}) and a group ({', '.join(group)})"
        )
    truth = _plain(known[target])
    order = _ordered(truth, classes, positive)
    names = order or sorted(truth.unique())
    kind = settings.get("scores", "auto")
    said = [
        _said(known[[*columns]], role, names, kind)
        for role, columns in (("before", before), ("after", after))
    ]
    targets = pd.Series(pd.Categorical(truth, order)) if order else truth
    report = audit(said[0], said[1], targets=targets, groups=known[[*group]], **settings)
    if len(known) < len(table):
        missing = ", ".join(f"{count} without {name}" for name, count in unknown.items() if count)
        report.notes.insert(
            0, f"{len(table) - len(known)} of {len(table)} rows are left out: {missing}"
        )
    models = {"before": {"model": ", ".join(before)}, "after": {"model": ", ".join(after)}}
    report.provenance.update(models, data=digest(path))
    return report


def _ordered(
    targets: pd.Series, classes: Sequence[str] | None, positive: str | None
) -> Sequence[str] | None:
    """Put the classes in the order of the scores, if it is known: as given, or the ``positive`` one
    of two last."""
    found = sorted(targets.dropna().unique())
    if positive and (len(found) != 2 or positive not in found):
        raise ValueError(
            f"--positive must be one of two classes, got {positive!r}; there are {', '.join(found)}"
        )
    if classes and (len(set(classes)) < len(classes) or not set(found) <= set(classes)):
        raise ValueError(
            f"--classes must name each of {', '.join(found)} once, got {', '.join(classes)}"
        )
    return sorted(found, key=positive.__eq__) if positive else classes


def _said(columns: pd.DataFrame, role: str, names: Sequence[str], kind: str) -> Any:
    """What a model said, as text if it is labels, else as numbers."""
    for name, column in columns.items():
        if column.isna().any():
            raise ValueError(
                f"row {column.isna().idxmax()} has no prediction in column {name!r}: to leave it out would flatter the "
                "model; remove the row, or give the answer a label of its own and name it in --classes"
            )
    labels = _plain(columns.iloc[:, 0])
    unknown = ~labels.isin(names)
    numbers = columns.apply(
        lambda column: pd.to_numeric(column.str.replace(",", "."), errors="coerce")
    )
    fractions = numbers.notna() & (numbers % 1 != 0)
    whole = not (unknown.any() and fractions.any(axis=None))
    if columns.shape[1] == 1 and (kind == "labels" or (kind == "auto" and whole)):
        if unknown.any():
            row = unknown.idxmax()
            raise ValueError(
                f"{labels[row]!r} in row {row} of column {labels.name!r} is none of the classes {', '.join(names)}: "
                "name all of them in --classes if it is one; if it is a number, say --scores"
            )
        return labels
    if (broken := numbers.isna().any(axis=1)).any():
        row = broken.idxmax()
        raise ValueError(f"scores must be numbers, got {', '.join(columns.loc[row])} in row {row}")
    if columns.shape[1] != len(names) and (columns.shape[1], len(names)) != (1, 2):
        raise ValueError(
            f"--{role} must name a column of scores for each class, {', '.join(names)} (--classes if there are more), "
            f"or of two classes the one of the last; got {', '.join(columns)}"
        )
    return numbers.to_numpy() if columns.shape[1] > 1 else numbers.iloc[:, 0]


def _plain(column: pd.Series) -> pd.Series:
    """Labels as text; 1.0 and 1 are the same."""
    return column.str.replace(r"^(-?\d+)\.0+$", r"\1", regex=True)


def audit_models(
    before: str | Path,
    after: str | Path,
    images: str | Path,
    *,
    target: str,
    group: Sequence[str],
    table: str | Path | None = None,
    file: str = "file",
    size: int = 64,
    normalize: Any = None,
    classes: Sequence[str] | None = None,
    positive: str | None = None,
    model: str | None = None,
    factory: str | None = None,
    **settings: Any,
) -> Report:
    """Audit two models from files on a folder of pictures.

    Args: before: Path of the dense model: ``.onnx``; or ``.safetensors``, weights for ``model`` or
        ``factory``. after: Path of the compressed model, likewise. images: Folder to which the
        paths of pictures are relative; none of them is for training. target: Name of the attribute
        to predict. group: Names of attributes; several are crossed. table: Path of the table of
        attributes; by default ``people.csv`` in the folder. file: Name of its column of paths.
        size: Height and width of the pictures, in pixels. normalize: What the models expect, if
        they do not normalize: ``"imagenet"``, or mean and std of R, G and B. classes: Classes in
        the order of the models' outputs; by default the values of the target, sorted. positive: The
        positive class, of two; by default the last one. model: Name of a model of
        :func:`fairlib.build`. factory: ``"package.module:function"``, which is imported and called
        without arguments, for a module. settings: Further arguments of :func:`fairlib.audit`.

    Raises: ValueError: If a file is no model, does not fit its module, the pictures or the classes;
        or the folder cannot be
            loaded as it is asked for (:func:`fairlib.load`); says which option would help.
        FileNotFoundError: If there is no such file.
        ImportError: If onnxruntime is missing.
    """
    paths = [check_model(path, (".onnx", ".safetensors")) for path in (before, after)]
    weights = [path for path in paths if path.suffix.lower() == ".safetensors"]
    if [model, factory].count(None) != (1 if weights else 2):
        raise ValueError(
            "--model or --factory is needed for .safetensors, which are weights, and for nothing else"
        )
    from fairlib.data import load

    source = Path(table or Path(images, "people.csv"))
    order = _ordered(read_text_table(source, [target])[target], classes, positive)
    folder = {
        "table": str(source),
        "images": str(images),
        "file": file,
        "classes": order,
        "normalize": normalize,
    }
    asked: dict[str, Any] = {
        "target": target,
        "group": [*group],
        "image_size": size,
        "fractions": (0, 0, 1),
    }
    splits = load("folder", root="", near_duplicates="ignored", **asked, **folder)
    models = [
        _module(path, splits.test, model, factory) if path in weights else path for path in paths
    ]
    settings.setdefault("diagnostics", ("gradient",) if paths[0] in weights else ())
    report = audit(models[0], models[1], splits.test, **settings)
    left = ", ".join(
        f"{splits.report[key]} {why}" for key, why in _LEFT.items() if splits.report[key]
    )
    if left:
        report.notes.insert(0, f"of {splits.report['found']} pictures are left out: {left}")
    for role, path in zip(("before", "after"), paths, strict=True):
        if path in weights:
            report.provenance[role] |= {"file": path.name, "sha256": digest(path)["sha256"]}
    report.provenance["data"] = {"images": Path(images).name, **digest(source)}
    return report


def _module(path: Path, test: GroupedDataset, model: str | None, factory: str | None) -> nn.Module:
    """Put the weights of a file into the model they belong to, in their dtype."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from fairlib.models import build
    from fairlib.network.restore import restore

    try:
        state = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"cannot read {str(path)!r} as safetensors: {error}") from error
    module = restore(build(model, like=test) if model else _made(str(factory)), state)
    dtypes = {tensor.dtype for tensor in state.values() if tensor.is_floating_point()}
    return module.to(dtypes.pop()) if len(dtypes) == 1 else module


def _made(factory: str) -> nn.Module:
    """Import a function, from this folder too, and call it."""
    module, _, function = factory.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"--factory must be package.module:function, got {factory!r}: {error}"
        ) from error
    finally:
        sys.path.pop(0)
