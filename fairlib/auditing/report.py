"""What an audit found, and how it is shown: one self-contained HTML page, plain tables, plain data."""

from __future__ import annotations

import html
import io
import json
import math
import os
from base64 import b64encode
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fairlib import plots
from fairlib._validation import check_number, lookup

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #222;
  background: #fff }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #ddd }
th:first-child { text-align: left }
img { max-width: 100% }
.note { border-left: 4px solid #b45309; padding-left: .7rem }
"""


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
        return _write(path, page(self))

    def _as_dict(self) -> dict[str, object]:
        return {
            "provenance": self.provenance,
            "notes": self.notes,
            "groups": self.table.reset_index().to_dict("records"),
            "violations": self.violations.reset_index().to_dict("records"),
            "train": self.train._as_dict() if self.train else None,
        }

    def _repr_html_(self) -> str:
        return tables(self)


def page(report: Report) -> str:
    """A whole HTML page that refers to nothing outside; every name in it is escaped."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Audit of a compressed model</title>'
        f"<style>{_STYLE}</style></head><body>\n<h1>Who pays? Audit of a compressed model</h1>\n"
        f"{_body(report)}\n</body></html>\n"
    )


def tables(report: Report) -> str:
    """Notes and tables as an HTML fragment, for a notebook's output."""
    return "\n".join([*_notes(report), _rows(report.table), _rows(report.violations)])


def _notes(report: Report) -> list[str]:
    return [f'<p class="note">{html.escape(note)}</p>' for note in report.notes]


def _body(report: Report) -> str:
    parts = [*_notes(report), _figure(report), "<h2>Groups</h2>", _rows(report.table), "<h2>Fairness violations</h2>"]
    parts += ["<p>Largest difference between two groups, beside what permuted group labels give; mean over pairs.</p>"]
    parts += [_rows(report.violations), "<h2>What was audited</h2>", "<dl>"]
    parts += [
        f"<dt>{html.escape(key)}</dt><dd>{html.escape(str(value))}</dd>" for key, value in report.provenance.items()
    ]
    parts.append("</dl>")
    if report.train:
        parts += ["<hr><p>The same on the training set:</p>", _body(report.train)]
    return "\n".join(parts)


def _figure(report: Report) -> str:
    import matplotlib.pyplot as plt

    figure, picture = report.plot(), io.BytesIO()
    figure.savefig(picture, format="png", dpi=150)
    plt.close(figure)
    alt = "; ".join(
        f"{group}: accuracy {row.accuracy_before:.3f} before, {row.accuracy_after:.3f} after"
        for group, row in report.table.iterrows()
    )
    source = b64encode(picture.getvalue()).decode()
    return f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{source}">'


def _rows(table: pd.DataFrame) -> str:
    """An HTML table with each estimate and its bounds in one cell; every name is escaped."""
    plain = [name for name in table if not name.endswith(("_low", "_high")) and name not in ("low", "high")]

    def cell(row: pd.Series, name: str) -> str:
        value = row[name]
        if not np.isfinite(value):
            return "not computed"
        text = f"{value:.0f}" if name == "size" else f"{value:.4g}"
        low, high = ("low", "high") if name == "estimate" else (f"{name}_low", f"{name}_high")
        return f"{text} [{row[low]:.3g}, {row[high]:.3g}]" if low in row else text

    header = "".join(f"<th>{html.escape(name.replace('_', ' '))}</th>" for name in [table.index.name or "", *plain])
    body = "".join(
        f"<tr><th>{html.escape(str(label))}</th>{''.join(f'<td>{cell(row, name)}</td>' for name in plain)}</tr>"
        for label, row in table.iterrows()
    )
    return f"<table><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table>"


def finite(value: object) -> object:
    """The same structure with plain JSON types and null for what is not finite."""
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write(path: str | Path, text: str) -> Path:
    """Write a file as a whole or not at all."""
    path = Path(path)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new.write_text(text, encoding="utf-8")
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
    return path
