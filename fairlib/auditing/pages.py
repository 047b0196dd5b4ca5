"""Pages of an audit: one self-contained HTML page, Markdown, a model card, plain data.

No number of the audit is computed here. Names that others gave (groups, classes, files) are shown
as they are, with control characters and marks of the direction of writing as visible escapes, and
can break neither a page nor a table."""

from __future__ import annotations

import html as markup
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fairlib.auditing.findings import Findings
from fairlib.auditing.predictions import ROLES
from fairlib.auditing.sentence import p_value_text, sentence, visible

Columns = Mapping[str, tuple[str, float, str]]
"""Heading, factor and format of the numbers of each column of a table (``"p"``: a p-value)."""

_GROUPS: Columns = {
    "size": ("samples", 1, ",.0f"),
    "accuracy_before": ("accuracy before, %", 100, "z.1f"),
    "accuracy_after": ("accuracy after, %", 100, "z.1f"),
    "drop": ("drop, points", 100, "z.1f"),
    "relative_drop": ("drop, % of accuracy before", 100, "z.1f"),
    "loss_before": ("loss before, nats", 1, "z.3f"),
    "loss_after": ("loss after, nats", 1, "z.3f"),
    "excessive_loss": ("rise of the loss, nats", 1, "z.3f"),
}
_CONTRASTS: Columns = {
    "difference": ("drop minus that of all others together, points", 100, "z.1f"),
    "p_value": ("p", 1, "p"),
    "p_holm": ("p, corrected for the number of groups", 1, "p"),
    "detectable": ("difference that is missed half the time, points", 100, "z.1f"),
    "ratio_before": ("accuracy before, divided by the reference group's", 1, "z.2f"),
    "ratio_after": ("accuracy after, divided by the reference group's", 1, "z.2f"),
}
_CAVEAT = (
    "One model, one test set, groups as they are labelled: another training run or other samples "
    "can give other numbers. A difference that cannot be told from chance is no proof of fairness."
)
_TABLES = ("contrasts", "violations", "rates", "flips", "calibration", "cost")


def as_json(report: Findings) -> str:
    """Write everything but the figure as JSON: tables as lists of rows, NaN as null."""
    text = json.dumps(
        _data(report), default=lambda one: one.item() if isinstance(one, np.generic) else str(one)
    )
    # JSON has no NaN: Python writes the word all the same, and other readers refuse the file.
    finite = json.loads(text, parse_constant=lambda _: None)
    return json.dumps(finite, indent=1, allow_nan=False) + "\n"


def html(report: Findings) -> str:
    """Write one HTML page that refers to no other file and runs no script.

    Raises:
        ImportError: If Jinja2 is missing.
    """
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ImportError as error:
        raise ImportError("a report in HTML needs Jinja2: pip install 'who-pays[audit]'") from error

    # Every value passes here before it is escaped: a name with a right-to-left mark would turn
    # the text around it, and escaping for HTML leaves it alone.
    def shown(value: Any) -> Any:
        return value if hasattr(value, "__html__") else visible(value)

    pages = Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=shown,
    )
    pages.globals.update(
        grid=_grid,
        figure=_figure,
        about=_about,
        told=lambda part: Markup(sentence(part, _strong)),
        GROUPS=_GROUPS,
        CONTRASTS=_CONTRASTS,
    )
    template = Path(__file__).with_name("report.html.jinja").read_text(encoding="utf-8")
    return pages.from_string(template).render(report=report) + "\n"


def markdown(report: Findings) -> str:
    """Write the sentence, a table of groups, the notes and a caveat, for a pull request."""
    names = ["size", "accuracy_before", "accuracy_after", "drop"]
    columns = {name: _GROUPS[name] for name in names}
    columns["p_holm"] = ("p, drop against all others", 1, "p")
    brief = report.table[[*names, "drop_low", "drop_high"]].join(report.contrasts["p_holm"])
    table = _grid(brief, columns)
    rows = [["group", *table], ["---", *["---:"] * len(table.columns)]]
    rows += [[_literal(name), *cells] for name, *cells in table.itertuples(name=None)]
    parts = [
        "## Who pays? Audit of a compressed model",
        sentence(report, lambda name: f"**{_literal(name)}**"),
        "\n".join(f"| {' | '.join(row)} |" for row in rows),
        "\n".join(f"- {_literal(note)}" for note in report.notes),
        f"*{_CAVEAT}*",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def model_card(report: Findings) -> str:
    """Write accuracies as ``model-index``, metadata that model hubs read, above the Markdown."""
    import yaml

    known = report.table[report.table["size"] > 0].rename({"all": "all samples"})
    metrics = []
    for role in ROLES:
        for name, value in known[f"accuracy_{role}"].to_dict().items():
            title = f"accuracy of {visible(name)} {role} compression"
            metrics.append({"type": "accuracy", "name": title, "value": round(value, 4)})
    data = report.provenance.get("data", {}).get("file", "test set")
    model = report.provenance["after"].get("model", "compressed model")
    result = {
        "task": {"type": "other", "name": "Classification"},
        "dataset": {"type": "test-set", "name": visible(data)},
        "metrics": metrics,
    }
    index = {"model-index": [{"name": visible(model), "results": [result]}]}
    front = yaml.safe_dump(index, sort_keys=False, allow_unicode=True, width=math.inf)
    return f"---\n{front}---\n\n{markdown(report)}"


def fragment(report: Findings) -> str:
    """Write the sentence, the notes and the main table as HTML, for the output of a notebook."""
    notes = "".join(f"<li>{markup.escape(visible(note))}</li>" for note in report.notes)
    table = _grid(report.table, _GROUPS).rename(visible).rename_axis(None)
    # Notebooks set what is between two dollar signs as a formula, in names such as $50k-$100k too.
    return (
        f'<div class="tex2jax_ignore mathjax_ignore"><p>{sentence(report, _strong)}</p>\n'
        f"<ul>{notes}</ul>\n{table.to_html(border=0)}</div>\n"
    )


def _grid(frame: pd.DataFrame, columns: Columns) -> pd.DataFrame:
    """Write numbers as texts, bounds beside their estimate, without columns that are all NaN."""
    rows, cells = frame.to_dict("records"), {}
    for name, (heading, factor, form) in columns.items():
        if name in frame and frame[name].notna().any():
            cells[heading] = [_cell(row, name, factor, form) for row in rows]
    return pd.DataFrame(cells, frame.index)


def _cell(row: Mapping[str, float], name: str, factor: float, form: str) -> str:
    values = [factor * row.get(f"{name}{end}", math.nan) for end in ("", "_low", "_high")]
    if not math.isfinite(values[0]):
        return "—"
    if form == "p":
        return p_value_text(values[0]).removeprefix("= ")
    estimate, low, high = (f"{value:{form}}" for value in values)
    return f"{estimate} [{low}, {high}]" if np.isfinite(values).all() else estimate


def _about(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Sort provenance by heading: a value, or one before and one after."""
    rows: dict[str, Any] = {}
    for name, value in provenance.items():
        if name not in ROLES:
            rows[name] = value
            continue
        for key, part in value.items():
            rows.setdefault(key, {})[name] = part
    return rows


def _figure(report: Findings) -> dict[str, Any]:
    """Sort the judged groups by their drop, and choose the ends and ticks of the axis."""
    judged = report.table.loc[report.contrasts.index]
    judged = judged.sort_values("drop", ascending=False, kind="stable")
    ends = [0, report.table.loc["all", "drop"]]
    low, high = min(*ends, *judged["drop_low"]), max(*ends, *judged["drop_high"])
    high = max(high, low + 1e-6)
    # The least step of 1, 2 or 5 by a power of ten that leaves at most seven ticks.
    steps = (factor * 10.0**power for power in range(-7, 1) for factor in (1, 2, 5))
    step = next(step for step in steps if (high - low) / step <= 6)
    ticks = step * np.arange(math.ceil(low / step), math.floor(high / step) + 1)
    return {"rows": judged.to_dict("index"), "low": low, "high": high, "ticks": ticks}


def _data(report: Findings) -> dict[str, Any]:
    tables = {"groups": report.table} | {name: getattr(report, name) for name in _TABLES}
    return {
        "sentence": sentence(report),
        "provenance": report.provenance,
        "notes": report.notes,
        "too_small": report.too_small,
        **{name: table.reset_index().to_dict("records") for name, table in tables.items()},
        "train": _data(report.train) if report.train else None,
        "attributes": {name: _data(part) for name, part in report.attributes.items()},
    }


def _strong(name: str) -> str:
    return f"<strong>{markup.escape(visible(name))}</strong>"


def _literal(value: object) -> str:
    """Write a text as Markdown that shows it, in a table or elsewhere."""
    text = markup.escape(visible(value), quote=False)
    text = re.sub(r"[\\`*_{}\[\]|~#$]", r"\\\g<0>", text)
    # A group called @name would call that person to a pull request; #12, GH-12 and addresses would
    # become links.
    return re.sub(r"(?i)@|#(?=\d)|\bgh-(?=\d)|:(?=//)|\bwww(?=\.)", r"\g<0><!-- -->", text)
