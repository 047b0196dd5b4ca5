"""The audit: what compressing a model did to each group, with intervals, tests and everything
needed to trust it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fairlib import environment, statistics
from fairlib._validation import check_number, lookup
from fairlib.auditing import measures
from fairlib.auditing import report as pages
from fairlib.auditing.measures import WHEN
from fairlib.auditing.models import held, predictions
from fairlib.auditing.predictions import Predictions, Samples, given, samples_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fairlib.data import GroupedDataset

JUDGED = 10
"""Samples from which on a group is ranked; smaller ones are listed."""

_BY_PAIRS = {"max": ["estimate", "low", "high"], "mean": ["pairs", "pairs_low", "pairs_high"]}


@dataclass(frozen=True)
class Report:
    """The findings of :func:`audit`.

    Attributes: table: Indexed by group, last row ``all`` (every sample): ``size``;
        ``accuracy_before accuracy_after drop
            relative_drop loss_before loss_after excessive_loss``, each with ``_low`` and ``_high``
            beside it; then the diagnostics of the model before compression, ``gradient_norm
            gradient_noise_floor gradient_debiased_square``.
        contrasts: Every group against all others together, indexed by group: ``difference`` of the
            drops with ``_low`` and ``_high``, its ``p_value``, ``p_holm`` (corrected for the number
            of groups), ``detectable`` (the difference that would have been missed half the time);
            then its accuracy as a share of the reference group's, ``ratio_before`` and
            ``ratio_after``.
        violations: Max-min over groups, indexed by ``excessive_loss`` (Eq. 3 of [T]),
            ``accuracy_before``, ``accuracy_after`` and ``drop``: ``estimate low high null_mean
            p_value``, then the mean over all pairs of groups, ``pairs pairs_low pairs_high``. NaN
            without two groups that are judged.
        rates: Indexed by group and class: ``positives`` (samples of the class), ``selection_rate``
            (predicted to be of it), ``false_negative_rate`` and ``false_positive_rate``, each
            ``_before`` and ``_after`` with bounds.
        flips: Indexed by group: ``changed`` predictions as a share with ``_low`` and ``_high``, and
            how many became wrong (``lost``), right (``gained``), or wrong in another way
            (``other``).
        calibration: Indexed by group: expected calibration error ``before`` and ``after``, and of
            each the mean and the 95th percentile for a perfectly calibrated model, ``_null_mean``
            and ``_null_upper``.
        too_small: Groups with samples, but fewer than 10: in the tables, but not compared.
        cost: Of torch modules what each costs to run, indexed by ``before`` and ``after``: the
            columns of :func:`fairlib.cost`. Empty for others.
        provenance: Models, data, how they were fed, intervals, hardware and versions.
        notes: Warnings, and the reasons for what is NaN.
        train: The report on the training set, if one was given.
        attributes: By name of an attribute the report on its groups, where the groups cross
            several.

    Example:
        >>> import tempfile, fairlib
        >>> from pathlib import Path
        >>> targets, groups = [1, 0] * 50, ["many"] * 60 + ["few"] * 40
        >>> report = fairlib.audit(targets, targets[:80] + [1] * 20, targets=targets, groups=groups)
        >>> report.fairness(tau=0.1)["verdict"].to_dict()
        {'performance': 'unfair', 'degradation': 'unfair'}
        >>> report.violations.loc["drop", ["estimate", "pairs"]].tolist()
        [0.25, 0.25]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report.to_json(Path(folder, "audit.json")).name
        'audit.json'
    """

    table: pd.DataFrame
    contrasts: pd.DataFrame
    violations: pd.DataFrame
    rates: pd.DataFrame
    flips: pd.DataFrame
    calibration: pd.DataFrame
    too_small: tuple[str, ...]
    provenance: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    train: Report | None = None
    attributes: dict[str, Report] = field(default_factory=dict)
    cost: pd.DataFrame = field(default_factory=pd.DataFrame)

    @property
    def sentence(self) -> str:
        """Say whom compression cost most, how sure that is, and what could not have been seen."""
        return pages.sentence(self)

    def fairness(self, tau: float = 0.05, *, pairs: str = "max") -> pd.DataFrame:
        r"""Decide whether the groups are treated alike, up to a tolerance, by the definitions of
        [B].

        - *Performance* fairness (Definition 1): the accuracies :math:`A_a` after compression differ
          by at most :math:`\tau`.
        - *Degradation* fairness (Definition 3): the drops :math:`R_a = A_a^{before} - A_a`
          (Definition 2, the column ``drop`` of the table) do.

        The definitions are about two groups. With more, either the largest difference decides or
        the mean over all pairs. Nothing is called fair while a group is too small to be judged.

        Args:
            tau: Tolerance :math:`\tau`, at least 0.
            pairs: ``"max"`` for the largest difference, ``"mean"`` for the mean over all pairs.

        Returns: Indexed by ``performance`` and ``degradation``: ``difference low high`` and
            ``verdict``: ``"fair"`` if the whole interval is at most :math:`\tau`, ``"unfair"`` if
            it lies above, ``"not computable"`` without two groups that are judged, else
            ``"undecided"``.

        Raises:
            ValueError: If ``tau`` is negative or ``pairs`` is unknown.
        """
        check_number("tau", tau, 0)
        columns = lookup("choice of pairs", pairs, _BY_PAIRS)
        rows = self.violations.loc[["accuracy_after", "drop"], columns].set_axis(
            ["difference", "low", "high"], axis=1
        )
        rows.index = pd.Index(["performance", "degradation"], name="fairness")
        conditions = [
            rows["difference"].isna(),
            rows["low"] > tau,
            (rows["high"] <= tau) & (not self.too_small),
        ]
        return rows.assign(
            verdict=np.select(conditions, ["not computable", "unfair", "fair"], "undecided")
        )

    def plot(self) -> Figure:
        """Draw accuracy before and after, and excessive loss, of every group with its size and
        interval."""
        from fairlib.auditing import figure

        return figure.draw(self.table)

    def to_json(self, path: str | Path) -> Path:
        """Write everything but the figure as JSON; NaN becomes null."""
        return _write(path, pages.as_json(self))

    def to_html(self, path: str | Path) -> Path:
        """Write one self-contained HTML file, without scripts and without references to other
        files."""
        return _write(path, pages.html(self))

    def to_markdown(self, path: str | Path) -> Path:
        """Write the sentence, the table of groups and the caveats in Markdown, for a pull
        request."""
        return _write(path, pages.markdown(self))

    def to_model_card(self, path: str | Path) -> Path:
        """Write a model card: the results as ``model-index`` metadata, which model hubs read, above
        the Markdown."""
        return _write(path, pages.model_card(self))

    def _repr_html_(self) -> str:
        return pages.fragment(self)


def _write(path: str | Path, text: str) -> Path:
    with environment.written(path) as new:
        new.write_text(text, encoding="utf-8")
    return Path(path)


def audit(
    before: Any,
    after: Any,
    test: GroupedDataset | None = None,
    *,
    targets: Any = None,
    groups: Any = None,
    train: GroupedDataset | None = None,
    diagnostics: Sequence[str] = ("gradient",),
    scores: str = "auto",
    reference: str = "",
    latency: bool = False,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Report:
    r"""Compare a model with its compressed version, group by group.

    For group :math:`a` with samples :math:`D_a`, dense parameters :math:`\hat\theta` and compressed
    ones :math:`\bar\theta`:

    - ``drop`` is accuracy before minus accuracy after, ``relative_drop`` is the drop divided by
      accuracy before ([D]), undefined where that is 0;
    - ``excessive_loss`` is :math:`R(a) = J(\bar\theta; D_a) - J(\hat\theta; D_a)` in nats ([T] Eq.
      2);
    - the fairness violation is :math:`\xi(D) = \max_{a, a'} |R(a) - R(a')|` ([T] Eq. 3), and
      likewise the largest differences of accuracies and of drops.

    Intervals are over samples: scores for accuracies and rates (Wilson) and for drops (Tango),
    Student's corrected for skewness for losses; see :mod:`fairlib.statistics` for these and for the
    tests. How often they are right is measured: ``benchmarks/audit_coverage.py``.

    Args: before: Dense model, which is not changed: a torch module, the path of an ONNX file, an
        estimator of
            scikit-learn, a function from a batch of inputs to scores; or what a model said, logits
            or probabilities ``(N, C)`` or labels ``(N,)``, as an array, a tensor or a data frame.
        after: Compressed model, likewise.
        test: Samples on which accuracy and loss are measured. What models said needs only
            ``targets`` and ``groups``.
        targets: Classes ``(N,)``, texts or codes, in the place of ``test``.
        groups: Groups ``(N,)``, or a data frame of several attributes, which are crossed and
            reported one by one, too.
        train: Training set, whose objective the theory is about; if given, ``report.train`` is the
            report on it.
        diagnostics: Names of :data:`fairlib.diagnostics.DIAGNOSTICS`, computed for a module before
            compression.
        scores: What the models give: ``"logits"``, ``"probabilities"``, ``"labels"``, or ``"auto"``
            to tell by values.
        reference: Group whose accuracy the others' are divided by; by default the largest one.
        latency: Whether the cost of torch modules has their latency, which takes seconds for the
            export of each.
        level: Coverage of the intervals.
        resamples: Number of permutations of a test, 20 or more; of losses fewer where there are
            more than 200,000.
        seed: Seed of the permutations, and of a model that draws.

    Raises: ValueError: If an argument is out of range, outputs do not match the classes of the
        data, the kind of scores is
            ambiguous, a diagnostic is unknown, or a group is called ``all``.
        TypeError: If an argument is of another type.
        FloatingPointError: If outputs are NaN or infinite.

    Warns: UserWarning: If the dense model does no better than always answering the most frequent
        class.

    Example: Each of two groups has a feature of its own. Pruning half of the weights keeps those
        that the many use: none of them loses anything, and the few are left guessing.

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
        >>> bool(report.contrasts.loc["few", "p_holm"] < 0.01)  # Not by chance.
        True
    """
    check_number("level", level, 0, 1, low_open=True)
    check_number("resamples", resamples, 20, whole=True)
    check_number("seed", seed, 0, whole=True)
    if isinstance(diagnostics, str) or not isinstance(diagnostics, Sequence):
        raise TypeError(f"diagnostics must be a list of names, got {diagnostics!r}")
    settings: dict[str, Any] = {"level": level, "resamples": resamples, "seed": seed}
    if test is None:
        samples, said = given(before, after, targets, groups, scores)
        about: dict[str, Any] = {}
    else:
        _check_data("test", test, {"targets": targets, "groups": groups})
        samples = samples_of(test)
        roles = {"before": before, "after": after}
        said = [
            predictions(model, test, role, scores=scores, seed=seed)
            for role, model in roles.items()
        ]
        about = _of_modules(before, after, test)
    if "all" in samples.group_names or any(
        "all" in names for _, names in samples.attributes.values()
    ):
        raise ValueError(
            "no group may be called 'all': that is the name of the row for all samples"
        )
    report = compare(samples, *said, reference=reference, **settings)
    report.provenance.update(about)
    if test is not None:
        table = _diagnosed(report, before, said[0], test, diagnostics, seed)
        report = replace(report, table=table, cost=_cost(report, before, after, test, latency))
    if train is not None:
        _check_data("train", train, {})
        more = {**settings, "diagnostics": diagnostics, "scores": scores, "reference": reference}
        report = replace(report, train=audit(before, after, train, **more))
    return report


def compare(
    samples: Samples,
    before: Predictions,
    after: Predictions,
    *,
    reference: str = "",
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Report:
    """Compare what two models said of the same samples: :func:`audit` without models.

    Args:
        samples: Whom the models were asked about.
        before: What the dense model said.
        after: What the compressed one said.
        reference, level, resamples, seed: Arguments of :func:`audit`.
    """
    groups, k = samples.groups, len(samples.group_names)
    sizes = np.bincount(groups, minlength=k)
    first, second = (said.labels == samples.targets for said in (before, after))
    quantities = {
        "accuracy_before": statistics.share(first, groups, k),
        "accuracy_after": statistics.share(second, groups, k),
        "drop": statistics.drop(first, second, groups, k),
        "loss_before": statistics.numbers(before.loss, groups, k),
        "loss_after": statistics.numbers(after.loss, groups, k),
        "excessive_loss": statistics.numbers(after.loss - before.loss, groups, k),
    }
    settings: dict[str, Any] = {"level": level, "resamples": resamples, "seed": seed}
    table = measures.table(quantities, samples.group_names, level)
    reference = reference or samples.group_names[int(sizes.argmax())]
    judged = np.flatnonzero(sizes >= JUDGED)
    too_small = tuple(
        name for name, size in zip(samples.group_names, sizes, strict=True) if 0 < size < JUDGED
    )
    names = [samples.group_names[code] for code in judged]
    excess = (after.loss - before.loss)[np.isin(groups, judged)]
    compared = {name: quantity.of(judged) for name, quantity in quantities.items()}
    contrasts = measures.contrasts(compared["drop"], names, **settings).join(
        measures.ratios(table, reference)
    )
    parts = {
        name: compare(
            replace(samples, groups=codes, group_names=values, attributes={}),
            before,
            after,
            **settings,
        )
        for name, (codes, values) in samples.attributes.items()
    }
    return Report(
        table,
        contrasts,
        measures.violations(compared, excess, **settings),
        measures.rates(samples, before.labels, after.labels, level),
        measures.flips(samples, before.labels, after.labels, level),
        measures.calibration(samples, before, after, first, second, seed),
        too_small,
        {
            "before": dict(before.about),
            "after": dict(after.about),
            "scores": {"before": before.kind, "after": after.kind},
            "samples": len(groups),
            "classes": ", ".join(samples.target_names),
            "reference": reference,
            "level": level,
            "intervals": f"{100 * level:g}%, over samples: Wilson (shares), Tango (drops), Student and Hall (losses)",
            "tests": f"studentized, {resamples} permutations (of many groups more), and intervals; Holm over groups",
            **environment.versions(),
        },
        [
            *dict.fromkeys([*before.notes, *after.notes]),
            *_notes(samples, sizes, table, before, first),
        ],
        attributes=parts,
    )


def _check_data(name: str, data: Any, others: Mapping[str, Any]) -> None:
    from fairlib.data import GroupedDataset

    if not isinstance(data, GroupedDataset):
        raise TypeError(
            f"{name} must be a GroupedDataset (of splits, give splits.{name}), got {type(data).__name__}"
        )
    for other, values in others.items():
        if values is not None:
            raise TypeError(
                f"{other} stand in {name} already: give either {name} or targets= and groups="
            )


def _notes(
    samples: Samples, sizes: np.ndarray, table: pd.DataFrame, before: Predictions, right: np.ndarray
) -> list[str]:
    """What not to trust, and why."""
    notes = []
    few = [
        f"{name} ({size})"
        for name, size in zip(samples.group_names, sizes, strict=True)
        if 0 < size < JUDGED
    ]
    if few:
        notes.append(f"too small to be judged, with fewer than {JUDGED} samples: {', '.join(few)}")
    empty = [name for name, size in zip(samples.group_names, sizes, strict=True) if not size]
    if empty:
        notes.append(f"no sample here: {', '.join(empty)}")
    chance = float(np.bincount(samples.targets).max() / len(samples.targets))
    if table.loc["all", "accuracy_before_low"] <= chance:
        accuracy = table.loc["all", "accuracy_before"]
        notes.append(
            f"the model before compression cannot be told from chance: accuracy {accuracy:.3f}, the most frequent "
            f"class has {chance:.3f}; was it fed the inputs it was trained on, and are the classes "
            f"({', '.join(samples.target_names[:10])}) in the order of its outputs?"
        )
        warnings.warn(notes[-1], stacklevel=4)
    if (table["accuracy_before"] == 0).any():
        notes.append("relative_drop is undefined where accuracy before compression is 0")
    return notes


def _diagnosed(
    report: Report,
    before: Any,
    said: Predictions,
    test: GroupedDataset,
    diagnostics: Sequence[str],
    seed: int,
) -> pd.DataFrame:
    """The report's table with the columns of the diagnostics; the reasons for NaN go into its
    notes."""
    from fairlib.diagnostics import DIAGNOSTICS, diagnose

    table = report.table
    for name in diagnostics:
        wanted = lookup("diagnostic", name, DIAGNOSTICS)
        if "parameters" in said.about and said.kind == "logits":
            with held(before, "before", seed, report.notes):
                columns, reason = diagnose(name, before, test)
        else:
            given = (
                "no torch module"
                if "parameters" not in said.about
                else f"its scores are {said.kind}"
            )
            columns = pd.DataFrame(
                columns=[f"{name}_{column}" for column in wanted.columns if column != name]
            )
            reason = f"{name}: could not be computed for the model before compression ({given})"
        table = table.join(columns.astype(float))
        report.notes.extend([reason] if reason else [])
    return table


def _cost(
    report: Report, before: Any, after: Any, test: GroupedDataset, latency: bool
) -> pd.DataFrame:
    """What torch modules cost to run; the reason for an empty table goes into the report's
    notes."""
    from torch import nn

    from fairlib.network.cost import cost

    if not (isinstance(before, nn.Module) and isinstance(after, nn.Module)):
        return pd.DataFrame()
    with held(before, "before", 0, report.notes), held(after, "after", 0, report.notes):
        try:
            table = cost({"before": before, "after": after}, test, latency=latency)
        except (RuntimeError, ValueError) as error:
            report.notes.append(f"what the models cost to run could not be computed: {error}")
            return pd.DataFrame()
    for number, why in table.attrs["reasons"].items():
        report.notes.append(f"the {number} cannot be computed: {why}")
    return table


def _of_modules(before: Any, after: Any, data: GroupedDataset) -> dict[str, Any]:
    """What provenance says of torch modules and of how they were fed."""
    import torch

    from fairlib.network import masks
    from fairlib.network.evaluation import placement

    scale = (
        "uint8 divided by 255"
        if data.inputs.dtype == torch.uint8
        else f"{data.inputs.dtype} as they are"
    )
    outside = f"; then mean {data.normalize[0]}, std {data.normalize[1]}" if data.normalize else ""
    pair = zip(WHEN, (before, after), strict=True)
    modules = {when: model for when, model in pair if isinstance(model, torch.nn.Module)}
    about: dict[str, Any] = {"input": f"{tuple(data.inputs.shape[1:])}, {scale}{outside}"}
    if not modules:
        return about

    def zeros(model: torch.nn.Module) -> Any:
        try:
            return masks.sparsity(model)
        except ValueError as error:
            return f"unknown: {error}"

    about["sparsity"] = {when: zeros(model) for when, model in modules.items()}
    return about | environment.describe(str(placement(next(iter(modules.values())))[0]))
