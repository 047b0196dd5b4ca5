"""How an audit is shown: a sentence, one self-contained HTML page, Markdown, a model card, plain
data.

No number of the audit is computed here. What others named (groups, classes, files) is shown as it
is, with control characters and marks of the direction of writing as visible escapes, and can break
neither a page nor a table."""

import html as markup
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

Report: TypeAlias = Any
"""A :class:`fairlib.Report`, which imports this module."""

Columns = Mapping[str, tuple[str, float, str]]
"""By column of a table its heading, the factor and the format of its numbers (``"p"``: a
p-value)."""

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
    "One model, one test set, groups as they are labelled: another training run or other samples can give other "
    "numbers. A difference that cannot be told from chance is no proof of fairness."
)
_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff\ud800-\udfff]"
)
_TABLES = ("contrasts", "violations", "rates", "flips", "calibration", "cost")
_NAMED = 5  # Groups of a list that a sentence names.


def sentence(report: Report) -> str:
    """Say whom compression cost most, whether that is beyond chance, and what would have been
    missed, as plain text.

    Points are of accuracy, with their interval in brackets. Beyond chance is a corrected p-value of
    at most 1 minus the level of the intervals. A second sentence names groups that are too small to
    be judged."""
    return _said(report, _visible)


def as_json(report: Report) -> str:
    """Write everything but the figure as JSON: tables as lists of rows, null for what is not
    finite."""
    text = json.dumps(
        _data(report), default=lambda one: one.item() if isinstance(one, np.generic) else str(one)
    )
    return (
        json.dumps(json.loads(text, parse_constant=lambda _: None), indent=1, allow_nan=False)
        + "\n"
    )


def html(report: Report) -> str:
    """Write one HTML page that refers to no other file and runs no script.

    Raises:
        ImportError: If Jinja2 is missing.
    """
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ImportError as error:
        raise ImportError("a report in HTML needs Jinja2: pip install 'who-pays[audit]'") from error

    def seen(value: Any) -> Any:
        return value if hasattr(value, "__html__") else _visible(value)

    pages = Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=seen,
    )
    pages.globals |= {
        "grid": _grid,
        "figure": _figure,
        "about": _about,
        "level": _level,
        "GROUPS": _GROUPS,
    }
    pages.globals |= {"told": lambda part: Markup(_said(part, _strong)), "CONTRASTS": _CONTRASTS}
    template = Path(__file__).with_name("report.html.jinja").read_text(encoding="utf-8")
    return pages.from_string(template).render(report=report) + "\n"


def markdown(report: Report) -> str:
    """Write the sentence, a table of groups, the notes and a caveat, short enough for a pull
    request."""
    shown = ["size", "accuracy_before", "accuracy_after", "drop"]
    columns = {name: _GROUPS[name] for name in shown} | {
        "p_holm": ("p, drop against all others", 1.0, "p")
    }
    table = _grid(
        report.table[[*shown, "drop_low", "drop_high"]].join(report.contrasts["p_holm"]), columns
    )
    rows = [["group", *table], ["---", *["---:"] * len(table.columns)]]
    rows += [[_literal(name), *cells] for name, *cells in table.itertuples(name=None)]
    parts = [
        "## Who pays? Audit of a compressed model",
        _said(report, lambda name: f"**{_literal(name)}**"),
        "\n".join(f"| {' | '.join(row)} |" for row in rows),
        "\n".join(f"- {_literal(note)}" for note in report.notes),
        f"*{_CAVEAT}*",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def model_card(report: Report) -> str:
    """Write the accuracy of every group as ``model-index``, the metadata that model hubs read,
    above the Markdown."""
    import yaml

    known = report.table[report.table["size"] > 0].rename({"all": "all samples"})
    metrics = [
        {
            "type": "accuracy",
            "name": f"accuracy of {_visible(name)} {role} compression",
            "value": round(value, 4),
        }
        for role in ("before", "after")
        for name, value in known[f"accuracy_{role}"].to_dict().items()
    ]
    model, data = (report.provenance.get(name, {}) for name in ("after", "data"))
    result = {
        "task": {"type": "other", "name": "Classification"},
        "dataset": {"type": "test-set", "name": _visible(data.get("file", "test set"))},
        "metrics": metrics,
    }
    index = [{"name": _visible(model.get("model", "compressed model")), "results": [result]}]
    front = yaml.safe_dump(
        {"model-index": index}, sort_keys=False, allow_unicode=True, width=math.inf
    )
    return f"---\n{front}---\n\n{markdown(report)}"


def fragment(report: Report) -> str:
    """Write the sentence, the notes and the two main tables as HTML, for the output of a
    notebook."""
    notes = "".join(f"<li>{_escaped(note)}</li>" for note in report.notes)
    parts = [f"<p>{_said(report, _strong)}</p>", f"<ul>{notes}</ul>" if notes else ""]
    parts += [
        _grid(frame, columns)
        .rename(_visible)
        .rename_axis(index=None, columns="group")
        .to_html(border=0)
        for frame, columns in ((report.table, _GROUPS), (report.contrasts, _CONTRASTS))
    ]
    return "\n".join(filter(None, parts)) + "\n"


def _said(report: Report, name: Callable[[str], str]) -> str:
    """The sentence, with the names of groups written by a function; nothing else in it needs an
    escape."""
    known = report.contrasts.dropna(subset=["difference"])
    said = _compared(report, known, name) if len(known) else _alone(report, name)
    if few := report.too_small:
        said += f". {len(few)} group{' is' if len(few) == 1 else 's are'} too small to be judged: {_listed(few, name)}"
    return f"On these samples compression {said}."


def _alone(report: Report, name: Callable[[str], str]) -> str:
    """What to say where no two groups are compared."""
    who, row, why = "all", report.table.loc["all"], "no group can be judged"
    for judged in report.contrasts.index:
        who, row, why = (
            name(judged),
            report.table.loc[judged],
            "there is no other group to compare it with",
        )
    return f"{'cost' if row['drop'] > 0 else 'gave'} {who} ({row['size']:,.0f} samples) {_cost(row)}; {why}"


def _compared(report: Report, known: pd.DataFrame, name: Callable[[str], str]) -> str:
    """What to say where groups are compared."""
    drops, judged = (
        report.table["drop"][known.index],
        " that can be judged" if report.too_small else "",
    )
    if np.ptp(drops) < 1e-9:
        least = known["detectable"].idxmax()
        alike = (
            f"every group{judged} by {_points(-drops[least])[0]} points"
            if drops[least]
            else f"no group{judged}"
        )
        return f"changed the accuracy of {alike}; for {name(least)}, {_missed(known['detectable'][least])}"
    worst, two, beyond = drops.idxmax(), len(known) == 2, _beyond(report)
    row, found = report.table.loc[worst], known.loc[worst]
    who, gap = f"{name(worst)} ({row['size']:,.0f} samples)", _points(found["difference"])[0]
    others = name(known.index.drop(worst)[0]) if two else "all others together"
    lost = f"cost {who} most: {_cost(row)}, {gap} more"
    gained = f"cost no group{judged} accuracy: {who} gained least, {_cost(row)}, {gap} less"
    verdict = "is beyond chance" if worst in beyond else "cannot be told from chance"
    p = f"p {_p(found['p_holm'])}{'' if two else f', corrected for {len(known)} groups'}"
    said = f"{lost if row['drop'] > 0 else gained} than {others}, which {verdict} ({p}); {_missed(found['detectable'])}"
    if further := [other for other in beyond if other != worst]:
        too = "too, " if worst in beyond else ""
        said += (
            f"; {_listed(further, name)} fared worse than all others together, {too}beyond chance"
        )
    return said


def _beyond(report: Report) -> list[str]:
    """The groups that fared worse than all others together, beyond chance."""
    contrasts = report.contrasts
    return [
        *contrasts.index[
            (contrasts["difference"] > 0) & (contrasts["p_holm"] <= 1 - _level(report))
        ]
    ]


def _level(report: Report) -> float:
    return report.provenance.get("level", 0.95)


def _listed(names: Sequence[str], name: Callable[[str], str]) -> str:
    rest = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(name, names[:_NAMED])) + rest


def _cost(row: pd.Series) -> str:
    """What was lost, or gained, with its interval."""
    drop, low, high = row[["drop", "drop_low", "drop_high"]]
    value, *bounds = _points(*((drop, low, high) if drop > 0 else (-drop, -high, -low)))
    return f"{value} points of accuracy [{', '.join(bounds)}]"


def _points(*values: float) -> list[str]:
    """Shares in points, with a decimal if the first one is below 10."""
    return [f"{100 * value:z.{int(abs(values[0]) < 0.1)}f}" for value in values]


def _missed(detectable: float) -> str:
    if detectable >= 1:
        return "no difference would have been found reliably"
    return f"a difference below {_points(detectable)[0]} points would have been missed more often than not"


def _p(value: float) -> str:
    return "≤ 0.001" if value <= 0.001 else f"= {value:.2g}"


def _grid(frame: pd.DataFrame, columns: Columns) -> pd.DataFrame:
    """A table as texts under its headings, bounds beside their estimate, without columns that are
    all NaN."""
    rows = frame.to_dict("records")
    known = {
        name: how for name, how in columns.items() if name in frame and frame[name].notna().any()
    }
    cells = {how[0]: [_cell(row, name, *how[1:]) for row in rows] for name, how in known.items()}
    return pd.DataFrame(cells, frame.index)


def _cell(row: Mapping[str, float], name: str, factor: float, form: str) -> str:
    values = [factor * row.get(f"{name}{end}", math.nan) for end in ("", "_low", "_high")]
    if not math.isfinite(values[0]):
        return "—"
    texts = [_p(value).removeprefix("= ") if form == "p" else f"{value:{form}}" for value in values]
    return f"{texts[0]} [{texts[1]}, {texts[2]}]" if np.isfinite(values).all() else texts[0]


def _about(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Provenance by heading: a value, or one before and one after."""
    rows: dict[str, Any] = {}
    for name, value in provenance.items():
        if name in ("before", "after"):
            for key, part in value.items():
                rows.setdefault(key, {})[name] = part
        else:
            rows[name] = value
    return rows


def _figure(report: Report) -> dict[str, Any]:
    """The judged groups from the largest drop to the smallest, and the axis: its ends and its
    ticks."""
    judged = report.table.loc[report.contrasts.index].sort_values(
        "drop", ascending=False, kind="stable"
    )
    ends = [0, report.table.loc["all", "drop"]]
    low, high = min(*ends, *judged["drop_low"]), max(*ends, *judged["drop_high"])
    high = max(high, low + 1e-6)
    steps = (factor * 10.0**power for power in range(-7, 1) for factor in (1, 2, 5))
    step = next(step for step in steps if (high - low) / step <= 6)
    ticks = step * np.arange(math.ceil(low / step), math.floor(high / step) + 1)
    return {
        "rows": judged.to_dict("index"),
        "low": low,
        "high": high,
        "ticks": ticks,
        "beyond": _beyond(report),
    }


def _data(report: Report) -> dict[str, Any]:
    tables = {"groups": report.table} | {name: getattr(report, name) for name in _TABLES}
    return {
        "sentence": sentence(report),
        **{name: getattr(report, name) for name in ("provenance", "notes", "too_small")},
        **{name: table.reset_index().to_dict("records") for name, table in tables.items()},
        "train": _data(report.train) if report.train else None,
        "attributes": {name: _data(part) for name, part in report.attributes.items()},
    }


def _visible(value: object) -> str:
    r"""A text with control characters, line breaks and marks of direction as escapes: that of NUL
    is \x00."""
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), str(value))


def _escaped(value: object) -> str:
    return markup.escape(_visible(value))


def _strong(name: str) -> str:
    return f"<strong>{_escaped(name)}</strong>"


def _literal(value: object) -> str:
    """A text as Markdown that shows it, in a table or elsewhere."""
    text = re.sub(r"[\\`*_{}\[\]|~#$]", r"\\\g<0>", markup.escape(_visible(value), quote=False))
    return text.replace(
        "@", "@<!-- -->"
    )  # Else a group could be somebody's name in a pull request.
