"""The audit: effects of compression on each group, with intervals, tests and caveats."""

from __future__ import annotations

import platform
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fairlib import environment
from fairlib._tables import refuse_other_index
from fairlib._validation import check_many
from fairlib.auditing import measures
from fairlib.auditing.adapters.models import read_answers, read_model
from fairlib.auditing.adapters.truth import check_data, ground_truth
from fairlib.auditing.measures import AuditSettings
from fairlib.auditing.modules import with_modules
from fairlib.auditing.predictions import GroundTruth, Predictions
from fairlib.auditing.report import Report

if TYPE_CHECKING:
    from fairlib.data import GroupedDataset

JUDGED = 10
"""Minimum size of a ranked group; smaller ones are only listed."""


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
    **settings: Any,
) -> Report:
    r"""Compare a model with its compressed version, group by group.

    For group :math:`a` with samples :math:`D_a`, dense parameters :math:`\hat\theta` and compressed
    ones :math:`\bar\theta`:

    - ``drop`` is accuracy before minus accuracy after, ``relative_drop`` is the drop divided by
      accuracy before ([D]), undefined where that is 0;
    - ``excessive_loss`` is :math:`R(a) = J(\bar\theta; D_a) - J(\hat\theta; D_a)` in nats ([T] Eq.
      2);
    - the fairness violation is :math:`\xi(D) = \max_{a, a'} |R(a) - R(a')|` ([T] Eq. 3), beside
      the largest differences of accuracies and of drops.

    Intervals are over samples: scores for accuracies and rates (Wilson) and for drops (Tango),
    Student's corrected for skewness for losses; see :mod:`fairlib.statistics` for these and for the
    tests. Their coverage is measured: ``benchmarks/audit_coverage.py``.

    Args:
        before: Dense model, which is not changed: a torch module, the path of an ONNX file, an
            estimator of scikit-learn, a function from a batch of inputs to scores; or its scores,
            logits or probabilities ``(N, C)`` or labels ``(N,)``, as an array, a tensor or a data
            frame.
        after: Compressed model, of any of these kinds.
        test: Samples on which accuracy and loss are measured. Scores need only ``targets`` and
            ``groups``.
        targets: Classes ``(N,)``, texts or codes, in the place of ``test``.
        groups: Groups ``(N,)``; or a data frame or a dictionary of several attributes, which are
            crossed and reported one by one, too.
        train: Training set, whose objective the theory is about; if given, ``report.train`` is the
            report on it.
        diagnostics: Names of :data:`fairlib.diagnostics.DIAGNOSTICS`, computed for a module before
            compression.
        scores: Kind of the scores: ``"logits"``, ``"probabilities"``, ``"labels"``, or ``"auto"``
            to tell by values. One number a sample is of one kind in both: zeros and ones beside
            fractions are scores.
        settings: ``reference``, the group whose accuracy the others' are divided by, by default the
            largest one; ``level``, the coverage of the intervals, 0.95; ``resamples``, the number
            of permutations of a test, 1000, and of losses fewer if there are more than 200,000;
            ``seed``, of the permutations and of a model that draws, 0.

    Raises:
        ValueError: If an argument is out of range, arguments have different pandas indexes, outputs
            do not match the classes of the data, the kind of scores is ambiguous, a diagnostic is
            unknown, or a group is called ``all``.
        TypeError: If an argument is of another type.
        FloatingPointError: If outputs are NaN or infinite.

    Warns:
        UserWarning: If the dense model does no better than always answering the most frequent
            class.

    Example:
        Each of two groups has its feature. Pruning half of the weights keeps those that the many
        use: nobody of them loses anything, and the few are left guessing.

        >>> import torch, fairlib
        >>> signs = torch.tensor([1.0, -1.0]).repeat(50)
        >>> groups = torch.tensor([0] * 60 + [1] * 40)
        >>> inputs = torch.nn.functional.one_hot(groups) * signs[:, None]
        >>> names = ["many", "few"]
        >>> test = fairlib.GroupedDataset(inputs, (signs > 0).long(), groups, group_names=names)
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
        >>> bool(report.contrasts.loc["few", "p_holm"] < 0.01)  # Beyond chance.
        True
    """
    chosen = AuditSettings(**settings)
    diagnostics = check_many("diagnostics", diagnostics)
    models = {"before": before, "after": after}
    refuse_other_index(before=before, after=after, targets=targets, groups=groups)
    truth = ground_truth(test, targets, groups, models)
    answers = {
        role: read_model(model, role, truth, test, chosen.seed) for role, model in models.items()
    }
    first, second = read_answers(answers, truth, scores)
    report = compare_predictions(truth, first, second, chosen)
    if test is not None:
        report = with_modules(report, models, test, diagnostics, chosen.seed)
    if train is not None:
        check_data("train", train)
        more = audit(before, after, train, diagnostics=diagnostics, scores=scores, **settings)
        report = replace(report, train=more)
    return report


def compare_predictions(
    truth: GroundTruth, before: Predictions, after: Predictions, settings: AuditSettings
) -> Report:
    """Compare the predictions of two models for the same samples: :func:`audit` without models.

    Args:
        truth: Targets and groups of the samples.
        before: Predictions of the dense model.
        after: Predictions of the compressed one.
        settings: Settings of the comparison.
    """
    sizes = np.bincount(truth.groups, minlength=len(truth.group_names))
    summed = measures.quantities(truth, before, after)
    table = measures.table(summed, truth.group_names, settings.level)
    reference = settings.reference or truth.group_names[int(sizes.argmax())]
    # In a few samples each drop is possible by chance, so that small groups would be the worst and
    # the best ones of nearly every audit: they are left out of whatever compares groups.
    judged = np.flatnonzero(sizes >= JUDGED)
    names = [truth.group_names[code] for code in judged]
    compared = {name: quantity.of(judged) for name, quantity in summed.items()}
    excess = (after.loss - before.loss)[np.isin(truth.groups, judged)]
    contrasts = measures.contrasts(compared["drop"], names, settings)
    few = table["size"].drop("all")[(sizes > 0) & (sizes < JUDGED)]
    attributes = {}
    for name, (codes, values) in truth.attributes.items():
        # A reference group is one of the crossed ones: an attribute alone has the largest.
        one = replace(truth, groups=codes, group_names=values, attributes={})
        attributes[name] = compare_predictions(one, before, after, replace(settings, reference=""))
    return Report(
        table,
        contrasts.join(measures.ratios(table, reference)),
        measures.violations(compared, excess, settings),
        measures.rates(truth, before.labels, after.labels, settings.level),
        measures.flips(truth, before.labels, after.labels, summed, settings.level),
        measures.calibration(truth, before, after, settings.seed),
        tuple(few.index),
        _provenance(truth, before, after, replace(settings, reference=reference)),
        [*dict.fromkeys([*before.notes, *after.notes]), *_caveats(truth, table, few)],
        attributes=attributes,
    )


def _provenance(
    truth: GroundTruth, before: Predictions, after: Predictions, settings: AuditSettings
) -> dict[str, Any]:
    return {
        "before": dict(before.about),
        "after": dict(after.about),
        "scores": {"before": before.kind, "after": after.kind},
        "samples": len(truth.groups),
        "classes": ", ".join(truth.target_names),
        "reference": settings.reference,
        "level": settings.level,
        "intervals": f"{100 * settings.level:g}%, over samples: Wilson (shares), Tango (drops), "
        "Student and Hall (losses)",
        "tests": f"studentized, {settings.resamples} permutations (of many groups more), and "
        "intervals; Holm over groups",
        "date": time.strftime("%Y-%m-%d"),
        "platform": platform.platform(),
        "versions": environment.versions(("numpy", "scipy", "pandas")),
    }


def _caveats(truth: GroundTruth, table: pd.DataFrame, few: pd.Series) -> list[str]:
    """Say which numbers of the table not to trust, and why."""
    notes = []
    if len(few):
        named = ", ".join(f"{name} ({size})" for name, size in few.items())
        notes.append(f"too small to be judged, with fewer than {JUDGED} samples: {named}")
    if empty := list(table.index[table["size"] == 0]):
        notes.append(f"no sample here: {', '.join(empty)}")
    # A model that was fed other inputs than in its training, or whose classes are in another order,
    # gives an audit of noise that looks like any other.
    chance = float(np.bincount(truth.targets).max() / len(truth.targets))
    everybody = table.loc["all"]
    if everybody["accuracy_before_low"] <= chance:
        notes.append(
            "the model before compression cannot be told from chance: accuracy "
            f"{everybody['accuracy_before']:.3f}, the most frequent class has {chance:.3f}; was it "
            "fed the inputs it was trained on, and are the classes "
            f"({', '.join(truth.target_names[:10])}) in the order of its outputs?"
        )
        warnings.warn(notes[-1], stacklevel=4)
    if (table["accuracy_before"] == 0).any():
        notes.append("relative_drop is undefined where accuracy before compression is 0")
    return notes
