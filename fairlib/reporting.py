"""How an audit is shown: one self-contained HTML page, plain tables, plain data."""

from __future__ import annotations

import html
import io
import math
from base64 import b64encode
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from fairlib.auditing import Report

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #222;
  background: #fff }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #ddd }
th:first-child { text-align: left }
img { max-width: 100% }
.note { border-left: 4px solid #b45309; padding-left: .7rem }
"""


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
