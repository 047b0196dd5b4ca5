"""Measures of an audit by group: a table for each question."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fairlib import statistics
from fairlib._validation import check_number, lookup
from fairlib.auditing.predictions import ROLES, GroundTruth, Predictions
from fairlib.statistics import Quantity

BINS = 15
"""Bins of the calibration error."""

LARGE = 200_000
"""Number of losses above which fewer permutations are drawn, 200 at least."""

_NULLS = 1000  # Draws of the calibration error of perfectly calibrated models.


@dataclass(frozen=True)
class AuditSettings:
    """Settings of the comparison of two models.

    Attributes:
        reference: Group whose accuracy the others' are divided by; "" for the largest one.
        level: Coverage of the intervals.
        resamples: Number of permutations of a test, 20 or more.
        seed: Seed of the permutations.

    Raises:
        ValueError: If a number is out of range.
        TypeError: If an argument is of another type.
    """

    reference: str = ""
    level: float = 0.95
    resamples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        check_number("level", self.level, 0, 1, low_open=True)
        check_number("resamples", self.resamples, 20, whole=True)
        check_number("seed", self.seed, 0, whole=True)


def quantities(truth: GroundTruth, before: Predictions, after: Predictions) -> dict[str, Quantity]:
    """Sum accuracies, losses and their differences by group."""
    groups, k = truth.groups, len(truth.group_names)
    first, second = before.labels == truth.targets, after.labels == truth.targets
    return {
        "accuracy_before": statistics.share(first, groups, k),
        "accuracy_after": statistics.share(second, groups, k),
        "drop": statistics.drop(first, second, groups, k),
        "loss_before": statistics.numbers(before.loss, groups, k),
        "loss_after": statistics.numbers(after.loss, groups, k),
        "excessive_loss": statistics.numbers(after.loss - before.loss, groups, k),
    }


def table(summed: Mapping[str, Quantity], names: Sequence[str], level: float) -> pd.DataFrame:
    """Tabulate estimates and bounds by group, and for all samples together."""
    whole = {name: quantity.with_all() for name, quantity in summed.items()}
    columns: dict[str, np.ndarray] = {"size": whole["drop"].sizes}
    for name, quantity in whole.items():
        columns[name], columns[f"{name}_low"], columns[f"{name}_high"] = quantity.interval(level)
        if name == "drop":
            (lost, gained), right = quantity.sums.T, whole["accuracy_before"].sums[:, 0]
            low, high = statistics.ratio(lost, gained, right, statistics.normal_z(level))
            columns["relative_drop"] = (lost - gained) / np.where(right > 0, right, np.nan)
            # The ratio is of accuracy after to before, the relative drop 1 minus it: ends swap.
            columns["relative_drop_low"], columns["relative_drop_high"] = 1 - high, 1 - low
    return pd.DataFrame(columns, index=_rows(names))


def _rows(names: Sequence[str]) -> pd.Index:
    return pd.Index([*names, "all"], name="group")


def contrasts(drop: Quantity, names: list[str], settings: AuditSettings) -> pd.DataFrame:
    """Compare the drop of every group with that of all others together; NaN without two groups."""
    columns = ["difference", "difference_low", "difference_high", "p_value", "p_holm", "detectable"]
    index = pd.Index(names, name="group")
    if len(names) < 2:
        return pd.DataFrame(math.nan, index=index, columns=columns)
    # The smallest p-value of a permutation test is one by the number of permutations. Holm
    # multiplies it by the number of groups: with too few permutations nothing could ever be found.
    needed = math.ceil(2 * len(names) / (1 - settings.level))
    null = statistics.permuted(
        drop, permutations=max(settings.resamples, needed), seed=settings.seed
    )
    values = [
        *statistics.contrast(drop, null, level=settings.level),
        statistics.detectable_drop(drop, level=settings.level),
    ]
    return pd.DataFrame(dict(zip(columns, values, strict=True)), index=index)


def violations(
    summed: Mapping[str, Quantity], excess: np.ndarray, settings: AuditSettings
) -> pd.DataFrame:
    """Measure and test the largest differences between groups.

    NaN without two groups, and of losses that are NaN.

    Args:
        summed: Quantities of the groups that are compared.
        excess: Rise of each of their samples' loss, of which :data:`LARGE` and more are permuted
            less often.
        settings: Settings of the audit.
    """
    rows = {}
    for name in ("excessive_loss", "accuracy_before", "accuracy_after", "drop"):
        part, values, permutations = summed[name], None, settings.resamples
        if len(part.sizes) < 2 or not np.isfinite(part.sums).all():
            rows[name] = [math.nan] * len(statistics.Gap._fields)
            continue
        if name == "excessive_loss":
            # Counts under random labels are drawn at once, losses have to be shuffled one by one:
            # a thousand shuffles of a million losses would take minutes.
            values = excess
            permutations = min(permutations, max(200, permutations * LARGE // len(excess)))
        null = statistics.permuted(part, values, permutations=permutations, seed=settings.seed)
        rows[name] = [*statistics.gap(part, null, level=settings.level)]
    found = pd.DataFrame.from_dict(rows, orient="index", columns=statistics.Gap._fields)
    return found.astype(float).rename_axis("violation")


def ratios(table: pd.DataFrame, reference: str) -> pd.DataFrame:
    """Divide accuracies by the reference group's."""
    groups = table.drop("all")
    lookup("reference group", reference, dict.fromkeys(groups.index))
    accuracies = groups[["accuracy_before", "accuracy_after"]]
    return (accuracies / accuracies.loc[reference]).set_axis(
        ["ratio_before", "ratio_after"], axis=1
    )


def rates(truth: GroundTruth, before: np.ndarray, after: np.ndarray, level: float) -> pd.DataFrame:
    """Compute the rates of selection and of errors by group and class."""
    k, classes, z = len(truth.group_names), len(truth.target_names), statistics.normal_z(level)

    def count(labels: np.ndarray, where: np.ndarray | slice = slice(None)) -> np.ndarray:
        cells = truth.groups[where] * classes + labels[where]
        counts = np.bincount(cells, minlength=k * classes).reshape(k, classes)
        return np.concatenate([counts, counts.sum(0, keepdims=True)]).ravel()

    positives = count(truth.targets)
    sizes = np.repeat(positives.reshape(-1, classes).sum(1), classes)
    columns = {"positives": positives}
    for role, labels in zip(ROLES, (before, after), strict=True):
        chosen, hits = count(labels), count(labels, labels == truth.targets)
        shares = {
            "selection_rate": (chosen, sizes),
            "false_negative_rate": (positives - hits, positives),
            "false_positive_rate": (chosen - hits, sizes - positives),
        }
        for name, (found, size) in shares.items():
            name = f"{name}_{role}"
            columns[name] = found / np.where(size > 0, size, np.nan)
            columns[f"{name}_low"], columns[f"{name}_high"] = statistics.wilson(found, size, z)
    names = [[*truth.group_names, "all"], truth.target_names]
    return pd.DataFrame(columns, index=pd.MultiIndex.from_product(names, names=["group", "class"]))


def flips(
    truth: GroundTruth,
    before: np.ndarray,
    after: np.ndarray,
    summed: Mapping[str, Quantity],
    level: float,
) -> pd.DataFrame:
    """Count predictions that changed, by group, and how many became right or wrong."""
    drop = summed["drop"].with_all().sums.astype(np.int64)
    changed = statistics.share(before != after, truth.groups, len(truth.group_names)).with_all()
    share, low, high = changed.interval(level)
    found = pd.DataFrame(
        {"changed": share, "changed_low": low, "changed_high": high}, _rows(truth.group_names)
    )
    found[["lost", "gained"]] = drop
    # A label that changed and is not in the drop was wrong before and is wrong in another way.
    return found.assign(other=changed.sums[:, 0].astype(np.int64) - drop.sum(1))


def calibration(
    truth: GroundTruth, before: Predictions, after: Predictions, seed: int
) -> pd.DataFrame:
    """Compute expected calibration errors by group, beside those of perfectly calibrated models.

    An error of few samples is never zero, however good the model: without the null a small group
    would always look worse calibrated than a large one.
    """
    members = [*(truth.groups == code for code in range(len(truth.group_names))), slice(None)]
    tables = []
    for role, answers in zip(ROLES, (before, after), strict=True):
        right = answers.labels == truth.targets
        rows = [_calibration_error(answers.confidence[m], right[m], seed) for m in members]
        columns = [f"{role}{end}" for end in ("", "_null_mean", "_null_upper")]
        tables.append(pd.DataFrame(rows, _rows(truth.group_names), columns))
    return tables[0].join(tables[1])


def _calibration_error(
    confidence: np.ndarray, right: np.ndarray, seed: int
) -> tuple[float, float, float]:
    r"""Compute the expected calibration error, and its mean and 95th percentile if calibrated.

    All are NaN without samples or confidence. The error is :math:`\sum_b |\sum_{i \in b} (r_i -
    p_i)| / n` over bins of equal width (Guo et al. 2017). The null draws how many of a bin are
    right at the bin's mean confidence.
    """
    if not len(right) or np.isnan(confidence).any():
        return math.nan, math.nan, math.nan
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    size, expected, hits = (
        np.bincount(bins, weights=weights, minlength=BINS) for weights in (None, confidence, right)
    )
    chance = np.divide(expected, size, out=np.zeros(BINS), where=size > 0).clip(0, 1)
    draws = np.random.default_rng(seed).binomial(size.astype(np.int64), chance, (_NULLS, BINS))
    null = np.abs(draws - expected).sum(1) / len(bins)
    error = np.abs(hits - expected).sum() / len(bins)
    return float(error), float(null.mean()), float(np.quantile(null, 0.95))
