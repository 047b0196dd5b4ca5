"""The audit: what compressing a model did to each group, with intervals, nulls and everything needed to trust it."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from torch import nn

from fairlib import environment, plots, statistics
from fairlib._validation import check_number, lookup
from fairlib.auditing.report import body, finite, page, tables
from fairlib.data import GroupedDataset
from fairlib.diagnostics import DIAGNOSTICS, diagnose
from fairlib.network import gates, masks
from fairlib.network.evaluation import placement, predict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMALL = 30  # Below so many samples a group's bootstrap interval covers clearly less than it says.

_BY_PAIRS = {"max": ["estimate", "low", "high"], "mean": ["pairs", "pairs_low", "pairs_high"]}


@dataclass(frozen=True)
class Report:
    """What :func:`audit` found.

    Attributes:
        table: Indexed by group, last row ``all`` (every sample): ``size``; ``accuracy_before accuracy_after drop
            relative_drop loss_before loss_after excessive_loss``, each with ``_low`` and ``_high`` beside it; then the
            diagnostics of the model before compression, ``gradient_norm gradient_noise_floor
            gradient_debiased_square``.
        violations: Max-min over groups, indexed by ``excessive_loss`` (Eq. 3 of [T]), ``accuracy_before``,
            ``accuracy_after`` and ``drop``: ``estimate low high``, and of its permutation null ``null_mean null_upper
            p_value``; then the mean over all pairs of groups, ``pairs pairs_low pairs_high``. All is NaN without two
            groups that have samples, and the bounds are where a group has one.
        provenance: What was audited, on what, fed how, with which versions.
        notes: Warnings, and why what is NaN could not be computed.
        train: The same on the training set, if it was given.
    """

    table: pd.DataFrame
    violations: pd.DataFrame
    provenance: dict[str, object]
    notes: list[str] = field(default_factory=list)
    train: Report | None = None

    def fairness(self, tau: float = 0.05, *, pairs: str = "max") -> pd.DataFrame:
        r"""Whether the groups are treated alike, up to a tolerance, by the definitions of [B].

        - *Performance* fairness (Definition 1): the accuracies :math:`A_a` after compression differ by at most
          :math:`\tau`.
        - *Degradation* fairness (Definition 3): the drops :math:`R_a = A_a^{before} - A_a` (Definition 2, the column
          ``drop`` of the table) do.

        The definitions are about two groups. Of more, either the largest difference decides or the mean over all pairs.
        Intervals of small groups are too narrow, so while one has fewer than 30 samples nothing is decided.

        Args:
            tau: :math:`\tau`, at least 0.
            pairs: ``"max"`` or ``"mean"``.

        Returns:
            Indexed by ``performance`` and ``degradation``: ``difference low high`` and ``verdict``: ``"fair"`` if the
            whole interval is at most :math:`\tau`, ``"unfair"`` if it lies above, ``"not computable"`` without two
            groups that have samples, else ``"undecided"``.

        Raises:
            ValueError: If ``tau`` is negative or ``pairs`` is unknown.
        """
        check_number("tau", tau, 0)
        columns = lookup("choice of pairs", pairs, _BY_PAIRS)
        rows = self.violations.loc[["accuracy_after", "drop"], columns].set_axis(["difference", "low", "high"], axis=1)
        rows.index = pd.Index(["performance", "degradation"], name="fairness")
        sizes = self.table["size"].drop("all")
        trusted = not sizes.between(1, SMALL - 1).any()
        verdict = np.where(rows["high"] <= tau, "fair", np.where(rows["low"] > tau, "unfair", "undecided"))
        verdict = np.where(trusted, verdict, "undecided")
        return rows.assign(verdict=np.where(rows["difference"].isna(), "not computable", verdict))

    def plot(self) -> Figure:
        """Accuracy before and after, and excessive loss, of every group with its size and interval."""
        return plots.audit(self.table)

    def to_json(self, path: str | Path) -> Path:
        """Write everything but the figure as JSON; what is NaN becomes null."""
        return _write(path, json.dumps(finite(self._as_dict()), indent=1, allow_nan=False) + "\n")

    def to_html(self, path: str | Path) -> Path:
        """Write one self-contained HTML file: tables, figure and provenance, with no reference to anything outside."""
        return _write(path, page(self._body()))

    def _as_dict(self) -> dict[str, object]:
        return {
            "provenance": self.provenance,
            "notes": self.notes,
            "groups": self.table.reset_index().to_dict("records"),
            "violations": self.violations.reset_index().to_dict("records"),
            "train": self.train._as_dict() if self.train else None,
        }

    def _body(self) -> str:
        train = self.train._body() if self.train else ""
        return body(self.notes, self.table, self.violations, self.provenance, train)

    def _repr_html_(self) -> str:
        return tables(self.notes, self.table, self.violations)


def _write(path: str | Path, text: str) -> Path:
    with environment.written(path) as new:
        new.write_text(text, encoding="utf-8")
    return Path(path)


def audit(
    before: nn.Module,
    after: nn.Module,
    test: GroupedDataset,
    *,
    train: GroupedDataset | None = None,
    diagnostics: Sequence[str] = ("gradient",),
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Report:
    r"""Compare a model with its compressed version, group by group.

    For group :math:`a` with samples :math:`D_a`, dense parameters :math:`\hat\theta` and compressed ones
    :math:`\bar\theta`:

    - ``drop`` is accuracy before minus accuracy after, ``relative_drop`` that over accuracy before ([D]), undefined
      where accuracy before is 0;
    - ``excessive_loss`` is :math:`R(a) = J(\bar\theta; D_a) - J(\hat\theta; D_a)` in nats ([T] Eq. 2);
    - the fairness violation is :math:`\xi(D) = \max_{a, a'} |R(a) - R(a')|` ([T] Eq. 3), and likewise the largest
      differences of accuracies and of drops. A maximum over noisy groups is biased upward, so each stands beside its
      mean and 95th percentile when the group labels are permuted, and the p-value of what was seen.

    Args:
        before: The dense model, any classifier that gives logits; left as it is.
        after: The compressed model.
        test: Where accuracy and loss are measured.
        train: The training set, on whose objective the theory speaks; if given, ``report.train`` has the same on it.
        diagnostics: Names of :data:`fairlib.diagnostics.DIAGNOSTICS`, computed for the model before compression.
        level: Coverage of the intervals: bootstrap over samples within each group, paired between models; percentiles
            for the groups' estimates; for the largest differences the estimate plus and minus the quantile of the
            range of the resampled errors, which covers at least as often as it says.
        resamples: Bootstrap draws, and permutations.
        seed: Of both.

    Raises:
        ValueError: If outputs do not match the classes of the data, a diagnostic is unknown, or a group is called
            ``all``.
        FloatingPointError: If outputs are NaN or infinite.

    Warns:
        UserWarning: If the dense model does no better than always answering the most frequent class.
    """
    if "all" in test.group_names:
        raise ValueError("no group may be called 'all': that is the name of the row for all samples")
    for name in diagnostics:
        lookup("diagnostic", name, DIAGNOSTICS)
    frames = [_samples(model, test, role) for model, role in ((before, "before"), (after, "after"))]
    samples = pd.concat(frames, axis=1)
    present = [code for code in range(test.num_groups) if (test.groups == code).any()]
    notes = _size_notes(test)
    groups = test.groups.cpu().numpy()
    draws = statistics.resample_group_means(samples, groups, test.num_groups, resamples=resamples, seed=seed)
    table = _table(samples, groups, test, draws, level)
    chance = float(np.bincount(test.targets.cpu().numpy()).max() / len(test))
    if table.loc["all", "accuracy_before_low"] <= chance:
        accuracy = table.loc["all", "accuracy_before"]
        notes.append(
            f"the model before compression cannot be told from chance: accuracy {accuracy:.3f}, the most frequent "
            f"class has {chance:.3f}; was it fed the inputs it was trained on?"
        )
        warnings.warn(notes[-1], stacklevel=2)
    for name in diagnostics:
        columns, reason = diagnose(name, before, test)
        table = table.join(columns)
        notes += [reason] if reason else []
    if (table["accuracy_before"] == 0).any():
        notes.append("relative_drop is undefined where accuracy before compression is 0")
    return Report(
        table,
        _violations(samples, groups, present, draws, level, resamples, seed),
        _provenance(before, after, test, level, resamples),
        notes,
        None
        if train is None
        else audit(before, after, train, diagnostics=diagnostics, level=level, resamples=resamples, seed=seed),
    )


_DERIVED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "accuracy_before": lambda means: means[..., 0],
    "accuracy_after": lambda means: means[..., 2],
    "drop": lambda means: means[..., 0] - means[..., 2],
    "relative_drop": lambda means: (means[..., 0] - means[..., 2]) / np.where(means[..., 0] > 0, means[..., 0], np.nan),
    "loss_before": lambda means: means[..., 1],
    "loss_after": lambda means: means[..., 3],
    "excessive_loss": lambda means: means[..., 3] - means[..., 1],
}
_VIOLATIONS = ("excessive_loss", "accuracy_before", "accuracy_after", "drop")


def _size_notes(data: GroupedDataset) -> list[str]:
    """What is wrong with the intervals of small groups."""
    notes = []
    for name, size in data.group_sizes.items():
        if size == 0:
            notes.append(f"group {name} has no sample here")
        elif size == 1:
            notes.append(f"group {name} has one sample here, hence no interval")
        elif size < SMALL:
            notes.append(f"group {name} has {size} samples here: bootstrap intervals of so few are too narrow")
    return notes


def _samples(model: nn.Module, data: GroupedDataset, role: str) -> pd.DataFrame:
    try:
        predictions = predict(model, data)
    except FloatingPointError as error:
        raise FloatingPointError(f"{role} compression: {error}") from None
    return pd.DataFrame({f"correct_{role}": predictions.correct.astype(float), f"loss_{role}": predictions.loss})


def _table(
    samples: pd.DataFrame, groups: np.ndarray, data: GroupedDataset, draws: np.ndarray, level: float
) -> pd.DataFrame:
    """Estimates and bounds by group, and for all samples together, whose draws are the groups' weighted by size."""
    means = statistics.group_means(samples, groups, data.num_groups)
    sizes = np.bincount(groups, minlength=data.num_groups)

    def with_all(values: np.ndarray) -> np.ndarray:
        share = (sizes / sizes.sum())[:, None]
        return np.concatenate([values, np.nansum(values * share, axis=-2, keepdims=True)], axis=-2)

    columns: dict[str, np.ndarray] = {"size": np.append(sizes, sizes.sum())}
    for name, derive in _DERIVED.items():
        columns[name] = derive(with_all(means))
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", RuntimeWarning
            )  # An empty group is NaN in every draw, and so are its bounds.
            low, high = (np.nanquantile(derive(with_all(draws)), q, axis=0) for q in ((1 - level) / 2, (1 + level) / 2))
        low[:-1][sizes == 1] = high[:-1][sizes == 1] = np.nan
        columns[f"{name}_low"], columns[f"{name}_high"] = low, high
    return pd.DataFrame(columns, index=pd.Index([*data.group_names, "all"], name="group"))


def _violations(
    samples: pd.DataFrame,
    groups: np.ndarray,
    present: list[int],
    draws: np.ndarray,
    level: float,
    resamples: int,
    seed: int,
) -> pd.DataFrame:
    columns = ["estimate", "low", "high", "null_mean", "null_upper", "p_value", "pairs", "pairs_low", "pairs_high"]
    if len(present) < 2:
        return pd.DataFrame(np.nan, index=pd.Index(_VIOLATIONS, name="violation"), columns=columns)
    rows = {}
    values = samples.to_numpy()
    means = statistics.group_means(samples, groups, draws.shape[1])[present]
    unknown = math.nan if (np.bincount(groups) == 1).any() else 0.0  # One sample has no error that could be resampled.
    for name in _VIOLATIONS:
        derive = _DERIVED[name]
        estimate, pairs = np.ptp(derive(means)), _mean_over_pairs(derive(means))
        # |gap of the estimates - true gap| is at most the range of the estimates' errors, of which these are draws.
        # Percentiles of resampled gaps would be biased upward and miss a true gap of 0 always.
        # The mean over pairs is off by the mean over pairs of the errors' differences at most.
        errors = derive(draws[:, present]) - derive(means)
        reach = np.quantile(np.ptp(errors, axis=1), level) + unknown
        pairs_reach = np.quantile(_mean_over_pairs(errors), level) + unknown
        null = statistics.permutation_test(derive(values), groups, draws.shape[1], permutations=resamples, seed=seed)
        bounds = np.maximum(0.0, estimate - reach), estimate + reach
        pairs_bounds = np.maximum(0.0, pairs - pairs_reach), pairs + pairs_reach
        rows[name] = [estimate, *bounds, null.mean, null.upper, null.p_value, pairs, *pairs_bounds]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns).astype(float).rename_axis("violation")


def _mean_over_pairs(values: np.ndarray) -> np.ndarray:
    """The mean of all absolute differences along the last axis."""
    first, second = np.triu_indices(values.shape[-1], 1)
    return np.abs(values[..., first] - values[..., second]).mean(axis=-1)


def _provenance(
    before: nn.Module, after: nn.Module, data: GroupedDataset, level: float, resamples: int
) -> dict[str, object]:
    scale = "uint8 divided by 255" if data.inputs.dtype == torch.uint8 else f"{data.inputs.dtype} as they are"
    outside = f"; then mean {data.normalize[0]}, std {data.normalize[1]}" if data.normalize else ""
    return {
        "model": f"{type(before).__name__}, {sum(p.numel() for p in before.parameters()):,} parameters",
        "sparsity": {"before": _sparsity(before), "after": _sparsity(after)},
        "ReLUs kept": {"before": _relus(before), "after": _relus(after)},
        "samples": len(data),
        "input": f"{tuple(data.inputs.shape[1:])}, {scale}{outside}",
        "intervals": f"{level:.0%} percentile bootstrap over samples within groups, {resamples} draws",
        "null": f"group labels permuted {resamples} times",
        **environment.describe(str(placement(before)[0])),
    }


def _sparsity(model: nn.Module) -> float:
    try:
        return masks.sparsity(model)
    except ValueError:
        return math.nan


def _relus(model: nn.Module) -> str:
    masks_ = gates.read(model).values()
    if not masks_:
        return "all"
    return f"{sum(int(mask.sum()) for mask in masks_):,} of {sum(mask.numel() for mask in masks_):,}"
