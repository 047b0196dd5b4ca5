"""What an audit measures by group: a table for each question."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from fairlib import statistics
from fairlib._validation import lookup
from fairlib.auditing.predictions import Predictions, Samples
from fairlib.statistics import Quantity

WHEN = ("before", "after")

BINS = 15
"""Bins of the calibration error."""

LARGE = 200_000
"""Numbers from which on fewer permutations are drawn, 200 at least."""

_NULLS = 1000  # Draws of the calibration error of perfectly calibrated models.


def table(quantities: Mapping[str, Quantity], names: Sequence[str], level: float) -> pd.DataFrame:
    """Tabulate estimates and bounds by group, and for all samples together."""
    whole = {name: quantity.with_all() for name, quantity in quantities.items()}
    columns: dict[str, np.ndarray] = {"size": whole["drop"].sizes}
    for name, quantity in whole.items():
        columns[name], columns[f"{name}_low"], columns[f"{name}_high"] = quantity.interval(level)
        if name == "drop":
            (lost, gained), right = quantity.sums.T, whole["accuracy_before"].sums[:, 0]
            low, high = statistics.ratio(lost, gained, right, statistics.normal_z(level))
            columns["relative_drop"] = (lost - gained) / np.where(right > 0, right, np.nan)
            columns["relative_drop_low"], columns["relative_drop_high"] = 1 - high, 1 - low
    return pd.DataFrame(columns, index=pd.Index([*names, "all"], name="group"))


def contrasts(
    drop: Quantity, names: list[str], *, level: float, resamples: int, seed: int
) -> pd.DataFrame:
    """Compare the drop of every group with that of all others together; NaN without two groups."""
    columns = ["difference", "difference_low", "difference_high", "p_value", "p_holm", "detectable"]
    if len(names) < 2:
        return pd.DataFrame(math.nan, index=pd.Index(names, name="group"), columns=columns)
    # The smallest p-value of a permutation test, times the number of groups, must be able to be
    # significant.
    null = statistics.permuted(
        drop, permutations=max(resamples, math.ceil(2 * len(names) / (1 - level))), seed=seed
    )
    values = [
        *statistics.contrast(drop, null, level=level),
        statistics.detectable_drop(drop, level=level),
    ]
    return pd.DataFrame(
        dict(zip(columns, values, strict=True)), index=pd.Index(names, name="group")
    )


def violations(
    quantities: Mapping[str, Quantity],
    excess: np.ndarray,
    *,
    level: float,
    resamples: int,
    seed: int,
) -> pd.DataFrame:
    """Measure and test the largest differences between groups; NaN without two groups, and of
    losses that are NaN.

    Args: quantities: Quantities of the groups that are compared. excess: Rise of each of their
        samples' loss, of which :data:`LARGE` and more are permuted less often. level, resamples,
        seed: Arguments of :func:`fairlib.audit`.
    """
    rows = {}
    for name in ("excessive_loss", "accuracy_before", "accuracy_after", "drop"):
        part, values, permutations = quantities[name], None, resamples
        if len(part.sizes) < 2 or not np.isfinite(part.sums).all():
            rows[name] = [math.nan] * len(statistics.Gap._fields)
            continue
        if name == "excessive_loss":
            values, permutations = (
                excess,
                min(resamples, max(200, resamples * LARGE // len(excess))),
            )
        null = statistics.permuted(part, values, permutations=permutations, seed=seed)
        rows[name] = [*statistics.gap(part, null, level=level)]
    table = pd.DataFrame.from_dict(rows, orient="index", columns=statistics.Gap._fields)
    return table.astype(float).rename_axis("violation")


def ratios(table: pd.DataFrame, reference: str) -> pd.DataFrame:
    """Divide accuracies by the reference group's."""
    groups = table.drop("all")
    own = groups.loc[lookup("reference group", reference, {name: name for name in groups.index})]
    return pd.DataFrame(
        {f"ratio_{when}": groups[f"accuracy_{when}"] / own[f"accuracy_{when}"] for when in WHEN}
    )


def rates(samples: Samples, before: np.ndarray, after: np.ndarray, level: float) -> pd.DataFrame:
    """Count shares of samples that are predicted to be of a class, and of errors, by group and
    class."""
    k, classes, z = len(samples.group_names), len(samples.target_names), statistics.normal_z(level)

    def count(labels: np.ndarray, where: np.ndarray | slice = slice(None)) -> np.ndarray:
        cells = samples.groups[where] * classes + labels[where]
        counts = np.bincount(cells, minlength=k * classes).reshape(k, classes)
        return np.concatenate([counts, counts.sum(0, keepdims=True)]).ravel()

    positives = count(samples.targets)
    sizes = np.repeat(positives.reshape(-1, classes).sum(1), classes)
    columns = {"positives": positives}
    for when, labels in zip(WHEN, (before, after), strict=True):
        chosen, hits = count(labels), count(labels, labels == samples.targets)
        for name, found, of in (
            ("selection_rate", chosen, sizes),
            ("false_negative_rate", positives - hits, positives),
            ("false_positive_rate", chosen - hits, sizes - positives),
        ):
            columns[f"{name}_{when}"] = found / np.where(of > 0, of, np.nan)
            columns[f"{name}_{when}_low"], columns[f"{name}_{when}_high"] = statistics.wilson(
                found, of, z
            )
    names = [[*samples.group_names, "all"], samples.target_names]
    return pd.DataFrame(columns, index=pd.MultiIndex.from_product(names, names=["group", "class"]))


def flips(samples: Samples, before: np.ndarray, after: np.ndarray, level: float) -> pd.DataFrame:
    """Count predictions that changed, by group, and what became of them."""
    changed, first, second = before != after, before == samples.targets, after == samples.targets
    marks = {
        "lost": first & ~second,
        "gained": second & ~first,
        "other": changed & ~first & ~second,
    }
    share = statistics.share(changed, samples.groups, len(samples.group_names)).with_all()
    names = ("changed", "changed_low", "changed_high")
    columns: dict[str, np.ndarray] = dict(zip(names, share.interval(level), strict=True))
    for name, mark in marks.items():
        counts = np.bincount(samples.groups[mark], minlength=len(samples.group_names))
        columns[name] = np.append(counts, counts.sum())
    return pd.DataFrame(columns, index=pd.Index([*samples.group_names, "all"], name="group"))


def calibration(
    samples: Samples,
    before: Predictions,
    after: Predictions,
    first: np.ndarray,
    second: np.ndarray,
    seed: int,
) -> pd.DataFrame:
    """Compute expected calibration errors by group, beside those of perfectly calibrated models."""
    rows = {}
    for code, name in enumerate([*samples.group_names, "all"]):
        members = samples.groups == code if name != "all" else slice(None)
        row: dict[str, float] = {}
        for when, said, right in zip(WHEN, (before, after), (first, second), strict=True):
            confidence = said.confidence[members]
            known = len(confidence) and said.kind != "labels"
            error, null = (
                _calibration_error(confidence, right[members], seed)
                if known
                else (math.nan, [math.nan])
            )
            row |= {when: float(error), f"{when}_null_mean": float(np.mean(null))}
            row[f"{when}_null_upper"] = float(np.quantile(null, 0.95))
        rows[name] = row
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("group")


def _calibration_error(
    confidence: np.ndarray, right: np.ndarray, seed: int
) -> tuple[float, np.ndarray]:
    r"""The expected calibration error, and draws of it for a model whose confidence is its
    probability to be right.

    :math:`\sum_b |\sum_{i \in b} (r_i - p_i)| / n` over bins of equal width (Guo et al. 2017). The
    null draws how many of a bin are right at the bin's mean confidence."""
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    size, expected, hits = (
        np.bincount(bins, weights=w, minlength=BINS) for w in (None, confidence, right)
    )
    chance = np.divide(expected, size, out=np.zeros(BINS), where=size > 0).clip(0, 1)
    draws = np.random.default_rng(seed).binomial(size.astype(np.int64), chance, (_NULLS, BINS))
    return np.abs(hits - expected).sum() / len(bins), np.abs(draws - expected).sum(1) / len(bins)
