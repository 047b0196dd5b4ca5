"""The audit: what compressing a model did to each group, with intervals, nulls and everything needed to trust it."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    """The findings of :func:`audit`.

    Attributes:
        table: Indexed by group, last row ``all`` (every sample): ``size``; ``accuracy_before accuracy_after drop
            relative_drop loss_before loss_after excessive_loss``, each with ``_low`` and ``_high`` beside it; then the
            diagnostics of the model before compression, ``gradient_norm gradient_noise_floor
            gradient_debiased_square``.
        violations: Max-min over groups, indexed by ``excessive_loss`` (Eq. 3 of [T]), ``accuracy_before``,
            ``accuracy_after`` and ``drop``: ``estimate low high``, and its permutation null, ``null_mean null_upper
            p_value``; then the mean over all pairs of groups, ``pairs pairs_low pairs_high``. Everything is NaN without
            two groups that have samples, and bounds are NaN where a group has only one sample.
        provenance: Models, data, how they were fed, intervals, hardware and versions.
        notes: Warnings, and the reasons for what is NaN.
        train: The report on the training set, if one was given.

    Example:
        >>> import tempfile, torch, fairlib
        >>> from pathlib import Path
        >>> signs = torch.tensor([1.0, -1.0]).repeat(50)
        >>> groups = torch.tensor([0] * 60 + [1] * 40)
        >>> inputs = torch.nn.functional.one_hot(groups) * signs[:, None]
        >>> test = fairlib.GroupedDataset(inputs, (signs > 0).long(), groups, group_names=["many", "few"])
        >>> dense = torch.nn.Linear(2, 2, bias=False)
        >>> dense.weight.data = torch.tensor([[-4.0, -3.0], [4.0, 3.0]])
        >>> report = fairlib.audit(dense, fairlib.prune(dense, "magnitude", sparsity=0.5), test)
        >>> report.fairness(tau=0.1)["verdict"].to_dict()
        {'performance': 'unfair', 'degradation': 'unfair'}
        >>> report.violations.loc["drop", ["estimate", "pairs"]].tolist()
        [0.5, 0.5]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report.to_json(Path(folder, "audit.json")).name
        'audit.json'
    """

    table: pd.DataFrame
    violations: pd.DataFrame
    provenance: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    train: Report | None = None

    def fairness(self, tau: float = 0.05, *, pairs: str = "max") -> pd.DataFrame:
        r"""Decide whether the groups are treated alike, up to a tolerance, by the definitions of [B].

        - *Performance* fairness (Definition 1): the accuracies :math:`A_a` after compression differ by at most
          :math:`\tau`.
        - *Degradation* fairness (Definition 3): the drops :math:`R_a = A_a^{before} - A_a` (Definition 2, the column
          ``drop`` of the table) do.

        The definitions are about two groups. With more, either the largest difference decides or the mean over all
        pairs. Intervals of small groups are too narrow: nothing is decided if a group has fewer than 30 samples.

        Args:
            tau: Tolerance :math:`\tau`, at least 0.
            pairs: ``"max"`` for the largest difference, ``"mean"`` for the mean over all pairs.

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
        small = np.full(len(rows), sizes.between(1, SMALL - 1).any())
        conditions = [rows["difference"].isna(), small, rows["high"] <= tau, rows["low"] > tau]
        verdicts = ["not computable", "undecided", "fair", "unfair"]
        return rows.assign(verdict=np.select(conditions, verdicts, "undecided"))

    def plot(self) -> Figure:
        """Draw accuracy before and after, and excessive loss, of every group with its size and interval."""
        return plots.audit(self.table)

    def to_json(self, path: str | Path) -> Path:
        """Write everything but the figure as JSON; NaN becomes null."""
        return _write(path, json.dumps(finite(self._as_dict()), indent=1, allow_nan=False) + "\n")

    def to_html(self, path: str | Path) -> Path:
        """Write one self-contained HTML file: tables, figure and provenance, without references to other files."""
        return _write(path, page(self._body()))

    def _as_dict(self) -> dict[str, Any]:
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

    - ``drop`` is accuracy before minus accuracy after, ``relative_drop`` is the drop divided by accuracy before ([D]),
      undefined where that is 0;
    - ``excessive_loss`` is :math:`R(a) = J(\bar\theta; D_a) - J(\hat\theta; D_a)` in nats ([T] Eq. 2);
    - the fairness violation is :math:`\xi(D) = \max_{a, a'} |R(a) - R(a')|` ([T] Eq. 3), and likewise the largest
      differences of accuracies and of drops. A maximum over noisy groups is biased upward, so each is compared with
      its permutation null: mean and 95th percentile under permuted group labels, and the p-value.

    Args:
        before: Dense model, any classifier that gives logits; it is not changed.
        after: Compressed model.
        test: Data on which accuracy and loss are measured.
        train: Training set, whose objective the theory is about; if given, ``report.train`` is the report on it.
        diagnostics: Names of :data:`fairlib.diagnostics.DIAGNOSTICS`, computed for the model before compression.
        level: Coverage of the intervals, which resample the samples within each group, paired between models:
            percentiles for the groups' estimates; for the largest differences the estimate plus and minus the quantile
            of the range of the resampled errors, which covers at least as often as it says.
        resamples: Number of bootstrap draws, and of permutations.
        seed: Seed of the bootstrap and of the permutations.

    Raises:
        ValueError: If outputs do not match the classes of the data, a diagnostic is unknown, or a group is called
            ``all``.
        FloatingPointError: If outputs are NaN or infinite.

    Warns:
        UserWarning: If the dense model does no better than always answering the most frequent class.

    Example:
        Each of two groups has a feature of its own. Pruning half of the weights keeps those that the many use: none of
        them loses anything, and the few are left guessing.

        >>> import torch, fairlib
        >>> signs = torch.tensor([1.0, -1.0]).repeat(50)
        >>> groups = torch.tensor([0] * 60 + [1] * 40)
        >>> inputs = torch.nn.functional.one_hot(groups) * signs[:, None]
        >>> test = fairlib.GroupedDataset(inputs, (signs > 0).long(), groups, group_names=["many", "few"])
        >>> dense = torch.nn.Linear(2, 2, bias=False)
        >>> dense.weight.data = torch.tensor([[-4.0, -3.0], [4.0, 3.0]])
        >>> small = fairlib.prune(dense, "magnitude", sparsity=0.5)
        >>> report = fairlib.audit(dense, small, test)
        >>> report.table[["size", "accuracy_before", "accuracy_after", "drop"]]
               size  accuracy_before  accuracy_after  drop
        group
        many     60              1.0             1.0   0.0
        few      40              1.0             0.5   0.5
        all     100              1.0             0.8   0.2
        >>> bool(report.violations.loc["drop", "p_value"] < 0.01)  # Not by chance.
        True
    """
    if "all" in test.group_names:
        raise ValueError("no group of test may be called 'all': that is the name of the row for all samples")
    for name in diagnostics:
        lookup("diagnostic", name, DIAGNOSTICS)
    frames = [_samples(model, test, role) for model, role in ((before, "before"), (after, "after"))]
    samples = pd.concat(frames, axis=1)
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
    violations = _violations(samples.to_numpy(), groups, draws, level, resamples, seed)
    settings: dict[str, Any] = {"diagnostics": diagnostics, "level": level, "resamples": resamples, "seed": seed}
    on_train = audit(before, after, train, **settings) if train is not None else None
    return Report(table, violations, _provenance(before, after, test, level, resamples), notes, on_train)


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
    """Warnings about groups whose intervals are too narrow or missing."""
    said = {0: "no sample here", 1: "one sample here, hence no interval"}
    few = "{} samples here: bootstrap intervals of so few are too narrow"
    small = [(name, size) for name, size in data.group_sizes.items() if size < SMALL]
    return [f"group {name} has {said.get(size, few.format(size))}" for name, size in small]


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
            warnings.simplefilter("ignore", RuntimeWarning)  # An empty group is NaN in every draw, as are its bounds.
            low, high = (np.nanquantile(derive(with_all(draws)), q, axis=0) for q in ((1 - level) / 2, (1 + level) / 2))
        low[:-1][sizes == 1] = high[:-1][sizes == 1] = np.nan
        columns[f"{name}_low"], columns[f"{name}_high"] = low, high
    return pd.DataFrame(columns, index=pd.Index([*data.group_names, "all"], name="group"))


def _violations(
    samples: np.ndarray, groups: np.ndarray, draws: np.ndarray, level: float, resamples: int, seed: int
) -> pd.DataFrame:
    present = np.unique(groups)
    columns = ["estimate", "low", "high", "null_mean", "null_upper", "p_value", "pairs", "pairs_low", "pairs_high"]
    if len(present) < 2:
        return pd.DataFrame(np.nan, index=pd.Index(_VIOLATIONS, name="violation"), columns=columns)
    rows = {}
    means = statistics.group_means(samples, groups, draws.shape[1])[present]
    unknown = math.nan if (np.bincount(groups) == 1).any() else 0.0  # One sample has no error that could be resampled.
    for name in _VIOLATIONS:
        derive = _DERIVED[name]
        estimate, pairs = np.ptp(derive(means)), _mean_over_pairs(derive(means))
        # |gap of the estimates - true gap| is at most the range of the estimates' errors, of which these are draws.
        # Percentiles of resampled gaps would be biased upward and always miss a true gap of 0.
        # The error of the mean over pairs is at most the mean over pairs of the errors' differences.
        errors = derive(draws[:, present]) - derive(means)
        reach = np.quantile(np.ptp(errors, axis=1), level) + unknown
        pairs_reach = np.quantile(_mean_over_pairs(errors), level) + unknown
        null = statistics.permutation_test(derive(samples), groups, draws.shape[1], permutations=resamples, seed=seed)
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
) -> dict[str, Any]:
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
    kept = gates.read(model).values()
    return f"{sum(int(gate.sum()) for gate in kept):,} of {sum(gate.numel() for gate in kept):,}" if kept else "all"
