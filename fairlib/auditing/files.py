"""Audits of files: columns of a table, or two files of models and a folder of pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from fairlib._tables import read_text_table
from fairlib.auditing.adapters.columns import (
    class_order,
    has_fractions,
    numbers_of,
    read_columns,
    without_zero_fraction,
)
from fairlib.auditing.adapters.onnx import RUNS_CODE, check_model
from fairlib.auditing.adapters.weights import load_weights
from fairlib.auditing.comparison import audit
from fairlib.auditing.predictions import ROLES
from fairlib.auditing.report import Report
from fairlib.environment import sha256

if TYPE_CHECKING:
    from fairlib.data import Splits

_LEFT_OUT = {
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
    """Audit the predictions of two models, columns of one table.

    Rows without a target or a group are left out, and counted in a note. A prediction must be there
    in all others: a model that answers for some people only is not the better for it.

    Args:
        predictions: Path of a CSV, ``.xlsx`` or ``.parquet`` file, one row a sample.
        before: Name of a column of labels, or of numbers: a score of the positive class, of two; or
            names of columns of scores, one for each class in its order.
        after: The same of the compressed model.
        target: Name of the column of true classes.
        group: Names of columns of attributes; several are crossed.
        classes: Classes in the order of the columns; by default the values of the target, sorted.
        positive: The positive class, of two; by default the last one.
        settings: Further arguments of :func:`fairlib.audit`.

    Raises:
        ValueError: If a column is unknown, a prediction is missing, or is no class and no number,
            scores do not match the classes, no row is left, or :func:`fairlib.audit` refuses the
            values; names the row.
        FileNotFoundError: If there is no such file.
    """
    path = Path(predictions)
    if path.suffix.lower() in RUNS_CODE:
        raise ValueError(
            f"{str(path)!r} may run code when it is read: write a table, "
            "DataFrame(...).to_csv(PATH)"
        )
    table = read_text_table(path, dict.fromkeys([target, *group, *before, *after]))
    unknown = {name: int(table[name].isna().sum()) for name in (target, *group)}
    known = table.dropna(subset=list(unknown))
    if known.empty:
        raise ValueError(
            f"no row of {str(path)!r} has both a target ({target}) and a group ({', '.join(group)})"
        )
    truth = without_zero_fraction(known[target])
    order = class_order(truth, classes, positive)
    # Row by row a missing target or group is left out. A missing prediction is no reason to leave a
    # row out: a model that is silent on difficult people would look better than it is.
    names, kind = order or sorted(truth.unique()), settings.get("scores", "auto")
    pair = [known[list(columns)] for columns in (before, after)]
    numbers = list(map(numbers_of, pair))
    scored = any(map(has_fractions, numbers))
    first, second = (
        read_columns(columns, values, names, kind, scored)
        for columns, values in zip(pair, numbers, strict=True)
    )
    report = audit(
        first,
        second,
        # Categories keep the order of the scores, and name classes that no row has.
        targets=truth.astype(pd.CategoricalDtype(order)) if order else truth,
        groups=known[list(group)],
        **settings,
    )
    if len(known) < len(table):
        missing = ", ".join(f"{count} without {name}" for name, count in unknown.items() if count)
        report.notes.insert(
            0, f"{len(table) - len(known)} of {len(table)} rows are left out: {missing}"
        )
    report.provenance.update(
        before={"model": ", ".join(before)}, after={"model": ", ".join(after)}, data=_about(path)
    )
    return report


@dataclass(frozen=True)
class Pictures:
    """A folder of pictures and the table of their attributes.

    Attributes:
        images: Folder to which the paths of pictures are relative; none of them is for training.
        target: Name of the attribute to predict.
        group: Names of attributes; several are crossed.
        table: Path of the table of attributes; by default ``people.csv`` in the folder.
        file: Name of its column of paths.
        size: Height and width of the pictures, in pixels.
        normalize: Normalization that the models expect, if they do not normalize themselves:
            ``"imagenet"``, or mean and std of R, G and B.
        classes: Classes in the order of the models' outputs; by default the values of the target,
            sorted.
        positive: The positive class, of two; by default the last one.
    """

    images: str | Path
    target: str
    group: Sequence[str]
    table: str | Path | None = None
    file: str = "file"
    size: int = 64
    normalize: Any = None
    classes: Sequence[str] | None = None
    positive: str | None = None

    @property
    def source(self) -> Path:
        """Path of the table of attributes."""
        return Path(self.table or Path(self.images, "people.csv"))

    def load(self) -> Splits:
        """Load all pictures as a test set.

        Raises:
            ValueError: If the folder cannot be loaded like that (:func:`fairlib.load`).
            FileNotFoundError: If there is no such file.
        """
        from fairlib.data import load

        targets = read_text_table(self.source, [self.target])[self.target]
        return load(
            "folder",
            root="",
            # Nothing is trained on these pictures: near copies cannot leak into a test set.
            near_duplicates="ignored",
            target=self.target,
            group=list(self.group),
            image_size=self.size,
            fractions=(0, 0, 1),
            table=str(self.source),
            images=str(self.images),
            file=self.file,
            classes=class_order(targets, self.classes, self.positive),
            normalize=self.normalize,
        )


def audit_models(
    before: str | Path,
    after: str | Path,
    pictures: Pictures,
    *,
    model: str | None = None,
    factory: str | None = None,
    **settings: Any,
) -> Report:
    """Audit two models from files on a folder of pictures.

    Args:
        before: Path of the dense model: ``.onnx``; or ``.safetensors``, weights for ``model`` or
            ``factory``.
        after: Path of the compressed model, of either kind.
        pictures: The pictures.
        model: Name of a model of :func:`fairlib.build`.
        factory: ``"package.module:function"``, which is imported and called without arguments, for
            a module.
        settings: Further arguments of :func:`fairlib.audit`.

    Raises:
        ValueError: If a file is no model, or does not fit its module, the pictures or the classes;
            says which option would help.
        FileNotFoundError: If there is no such file.
        ImportError: If onnxruntime is missing.
    """
    paths = [check_model(path, (".onnx", ".safetensors")) for path in (before, after)]
    weights = [path for path in paths if path.suffix.lower() == ".safetensors"]
    if [model, factory].count(None) != (1 if weights else 2):
        raise ValueError(
            "--model or --factory is needed for .safetensors, which are weights, and for nothing "
            "else"
        )
    splits = pictures.load()
    models = [
        load_weights(path, splits.test, model, factory) if path in weights else path
        for path in paths
    ]
    settings.setdefault("diagnostics", ("gradient",) if paths[0] in weights else ())
    report = audit(models[0], models[1], splits.test, **settings)
    left_out = [
        f"{splits.report[key]} {why}" for key, why in _LEFT_OUT.items() if splits.report[key]
    ]
    if left_out:
        found = splits.report["found"]
        report.notes.insert(0, f"of {found} pictures are left out: {', '.join(left_out)}")
    for role, path in zip(ROLES, paths, strict=True):
        if path in weights:
            report.provenance[role] |= {"file": path.name, "sha256": sha256(path)}
    report.provenance["data"] = {
        "images": Path(pictures.images).name,
        **_about(pictures.source),
    }
    return report


def _about(path: Path) -> dict[str, Any]:
    return {"file": path.name, "bytes": path.stat().st_size, "sha256": sha256(path)}
