"""The report of an audit: its findings as a sentence, a figure, pages and data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fairlib import environment
from fairlib.auditing import pages
from fairlib.auditing.figure import draw_groups
from fairlib.auditing.findings import Findings
from fairlib.auditing.sentence import sentence

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Report(Findings):
    """Findings of :func:`audit`, and the forms in which they are shown.

    Attributes:
        table: Indexed by group, last row ``all`` (every sample): ``size``; ``accuracy_before
            accuracy_after drop relative_drop loss_before loss_after excessive_loss``, each with
            ``_low`` and ``_high`` beside it; then the diagnostics of the model before compression,
            ``gradient_norm gradient_noise_floor gradient_debiased_square``.
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
            the numbers of those that became wrong (``lost``), right (``gained``), or wrong in
            another way (``other``).
        calibration: Indexed by group: expected calibration error ``before`` and ``after``, and for
            each the mean and the 95th percentile for a perfectly calibrated model, ``_null_mean``
            and ``_null_upper``.
        too_small: Groups with samples, but fewer than 10: in the tables, but not compared.
        cost: Cost of torch modules, indexed by ``before`` and ``after``: the columns of
            :func:`fairlib.cost` but for the latency. Empty for other models.
        provenance: Models, data, form of the inputs, intervals, hardware and versions.
        notes: Warnings, and the reasons for NaN.
        train: Report on the training set, if one was given.
        attributes: Report on the groups of each attribute, by its name, if the groups cross
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

    @property
    def sentence(self) -> str:
        """Sentence on the group that compression cost most, and how certain that is."""
        return sentence(self)

    def plot(self) -> Figure:
        """Draw accuracy before and after, and excessive loss, of every group with intervals."""
        return draw_groups(self.table)

    def to_json(self, path: str | Path) -> Path:
        """Write everything but the figure as JSON; NaN becomes null."""
        return _write(path, pages.as_json(self))

    def to_html(self, path: str | Path) -> Path:
        """Write one self-contained HTML file, without scripts and references to other files."""
        return _write(path, pages.html(self))

    def to_markdown(self, path: str | Path) -> Path:
        """Write the sentence, a table of groups and the caveats in Markdown."""
        return _write(path, pages.markdown(self))

    def to_model_card(self, path: str | Path) -> Path:
        """Write a model card: the results as ``model-index`` metadata, above the Markdown."""
        return _write(path, pages.model_card(self))

    def _repr_html_(self) -> str:
        return pages.fragment(self)

    def _repr_markdown_(self) -> str:
        return pages.markdown(self)


def _write(path: str | Path, text: str) -> Path:
    # A report that is half written, beside one of yesterday, would be read as today's.
    with environment.written(path) as new:
        new.write_text(text, encoding="utf-8")
    return Path(path)
