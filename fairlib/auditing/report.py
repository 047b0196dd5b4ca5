"""How an audit is shown: one self-contained HTML page, plain tables, plain data.

No number is computed here, and no page of the book is made here: an edit executes no notebook.
"""

import html
import io
import math
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fairlib import plots

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #222;
  background: #fff }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #ddd }
th:first-child { text-align: left }
img { max-width: 100% }
.note { border-left: 4px solid #b45309; padding-left: .7rem }
"""


def page(content: str) -> str:
    """Wrap the fragment of :func:`body` into an HTML page that refers to no other file."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Audit of a compressed model</title>'
        f"<style>{_STYLE}</style></head><body>\n<h1>Who pays? Audit of a compressed model</h1>\n"
        f"{content}\n</body></html>\n"
    )


def body(
    notes: Sequence[str], table: pd.DataFrame, violations: pd.DataFrame, provenance: Mapping[str, Any], train: str = ""
) -> str:
    """Write a whole report as an HTML fragment, with its figure; every name in it is escaped.

    Args:
        notes: Notes of the :class:`fairlib.Report`.
        table: Table of the report.
        violations: Fairness violations of the report.
        provenance: Provenance of the report.
        train: Fragment about the training set.
    """
    parts = [*_notes(notes), _figure(table), "<h2>Groups</h2>", _rows(table), "<h2>Fairness violations</h2>"]
    parts += ["<p>Largest difference between two groups, beside what permuted group labels give; mean over pairs.</p>"]
    parts += [_rows(violations), "<h2>What was audited</h2>", "<dl>"]
    parts += [f"<dt>{html.escape(key)}</dt><dd>{html.escape(str(value))}</dd>" for key, value in provenance.items()]
    parts.append("</dl>")
    if train:
        parts += ["<hr><p>The same on the training set:</p>", train]
    return "\n".join(parts)


def tables(notes: Sequence[str], table: pd.DataFrame, violations: pd.DataFrame) -> str:
    """Write notes and tables as an HTML fragment, for the output of a notebook."""
    return "\n".join([*_notes(notes), _rows(table), _rows(violations)])


def _notes(notes: Sequence[str]) -> list[str]:
    return [f'<p class="note">{html.escape(note)}</p>' for note in notes]


def _figure(table: pd.DataFrame) -> str:
    import matplotlib.pyplot as plt

    figure, picture = plots.audit(table), io.BytesIO()
    figure.savefig(picture, format="png", dpi=150)
    plt.close(figure)
    alt = "; ".join(
        f"{group}: accuracy {row.accuracy_before:.3f} before, {row.accuracy_after:.3f} after"
        for group, row in table.iterrows()
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
    """Convert a structure to plain JSON types, with null for numbers that are not finite."""
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
