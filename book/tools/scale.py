"""Write what the page *What scale changes* shows: ``python book/tools/scale.py FOLDER LEDGER``.

LEDGER is the table of ``whopays ledger --csv``. Written into FOLDER are ``scale.md``, every claim
with an embedded study and a table of real images, with what both say; ``scale.svg``, its effect in
both; and ``remaining.md``, what no table of real images has decided.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import values
from matplotlib.figure import Figure

from whopays import claims, plots
from whopays.ledger.text import estimate_text, folded
from whopays.prose import escape
from whopays.runs import project
from whopays.verdict import DECIDED, Criterion, side

SIZES = claims.EVIDENCE[1:]
"""Kinds of recorded evidence, the smallest first."""

ENDS = ("small", "large")

CHANGES = {
    "differently": "Decided by both, differently",
    "small": "Decided by the embedded study only",
    "large": "Decided by real images only",
    "floor": "A group of the real images has next to nothing to lose",
    "alike": "Decided by both, alike",
    "neither": "Decided by neither",
}
"""Kinds of change from the embedded study to real images, in the order of the page."""

FOLDED = ("alike", "neither")
OPEN = {
    "floor": "A group had next to nothing to lose in any table of real images",
    "undecided": "The tables of real images leave them undecided",
    "none": "No table of real images tests them yet",
}
"""Why no table of real images decides a claim."""

MANY = 200  # Seeds above which a number says only that the effect is small beside its spread.
CLIP = 30  # Margins at which the axes of the figure end.
NOWHERE = np.full(3, np.nan)  # Drawn nowhere, also where no claim is in a group.


def change(small: str, large: str) -> str:
    """Compare the verdicts of the embedded study and of real images: a key of `CHANGES`."""
    if large == "undecided (floor)":
        return "floor"
    decides = small in DECIDED, large in DECIDED
    if all(decides):
        return "alike" if side(small) == side(large) else "differently"
    return {(True, False): "small", (False, True): "large"}.get(decides, "neither")


def pairs(ledger: pd.DataFrame) -> pd.DataFrame:
    """List the claims as printed that both an embedded study and real images give numbers for.

    Args:
        ledger: Table of ``whopays ledger --csv``.

    Returns:
        A row for each claim: ``claim change direction elsewhere text``, and ``small`` and ``large``
        for the embedded study and the largest kind of real images, each an array of estimate and
        interval, in units of the margin from the threshold on and positive on the side that is
        claimed. ``elsewhere`` is whether the claim names data that the embedded study lacks,
        ``text`` what both say, as MyST.
    """
    known = claims.registered()
    recorded = ledger[
        (ledger["reading"] == "printed") & ledger["evidence"].isin(SIZES) & (ledger["seeds"] > 0)
    ]
    rows = []
    for name, found in recorded.groupby("claim", sort=False):
        # The smallest kind of evidence first, the largest last: the embedded study and real images.
        found = found.sort_values("evidence", key=lambda kinds: kinds.map(SIZES.index))
        small, large = found.iloc[0], found.iloc[-1]
        # A claim with tables of one kind only has nothing to compare.
        if small["evidence"] == SIZES[0] != large["evidence"]:
            criterion = known[name].criterion
            row = {"claim": name, "change": change(small["verdict"], large["verdict"])}
            row |= {"direction": criterion.direction, "elsewhere": not small["decides"]}
            for end, side in zip(ENDS, (small, large), strict=True):
                numbers = side[["estimate", "low", "high"]].to_numpy(float)
                row[end] = criterion.in_margins(numbers)
            row["text"] = (
                f"[{name}](#{name}), claimed {_claimed(criterion)}: {_said(small)}; {_said(large)}"
            )
            rows.append(row)
    return pd.DataFrame(rows)


def _claimed(criterion: Criterion) -> str:
    if criterion.direction == "equal":
        return f"{criterion.threshold:g} ± {criterion.margin:g}"
    return f"{'more' if criterion.direction == 'greater' else 'less'} than {criterion.threshold:g}"


def _said(row: pd.Series) -> str:
    """Write data, verdict and numbers of a table, with the worst cell if there are several."""
    worst = "" if pd.isna(row["worst_cell"]) else f", in the worst cell {row['worst_estimate']:.3f}"
    data = f"{row['data']}{'' if row['decides'] else ' (elsewhere)'}"
    return f"{escape(data)} *{row['verdict']}*, {escape(estimate_text(row))}{worst}"


def figure(found: pd.DataFrame) -> Figure:
    """Draw each claim with a direction and no group at the floor: real images over embedded.

    Args:
        found: Table of :func:`pairs`.
    """
    shown = found[(found["direction"] != "equal") & (found["change"] != "floor")]
    drawn, (axis,) = plots.new_figure(1, width=5.6, height=6.0)
    for band in (axis.axhspan, axis.axvspan):
        band(-1, 1, color="#999999", alpha=0.2, linewidth=0)
    axis.plot([-CLIP, CLIP], [-CLIP, CLIP], color="#555555", linewidth=0.8)
    looks = {
        "alike": (plots.PALETTE[0], "decided alike"),
        "differently": (plots.PALETTE[1], "decided differently"),
    }
    groups = shown["change"].where(shown["change"].isin(looks), "other")
    for name, (color, label) in ({"other": ("#777777", "not by both")} | looks).items():
        own = shown[groups == name]
        means, spans = [], []
        for end in ENDS:
            mean, *interval = np.clip(np.stack([*own[end], NOWHERE]).T, -CLIP, CLIP)
            means.append(mean)
            spans.append(abs(np.sort(interval, axis=0) - mean))
        look = {"color": color, "markersize": 5, "alpha": 0.6, "mew": 0, "elinewidth": 0.7}
        text = f"{label}: {len(own)}"
        axis.errorbar(*means, spans[1], spans[0], fmt="o", label=text, **look)
    ticks = [-CLIP, -10, -3, -1, 0, 1, 3, 10, CLIP]
    axis.set(
        xscale="symlog",
        yscale="symlog",
        xlim=(-1.2 * CLIP, 1.2 * CLIP),
        ylim=(-1.2 * CLIP, 1.2 * CLIP),
    )
    for one in (axis.xaxis, axis.yaxis):
        one.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
        one.set_ticks([], minor=True)
    axis.set(
        xlabel="effect in the embedded study, in margins",
        ylabel="effect on real images, in margins",
    )
    drawn.legend(
        loc="outside upper left", frameon=False, ncols=3, handletextpad=0.2, columnspacing=1.0
    )
    return drawn


def lists(found: pd.DataFrame) -> str:
    """Write all pairs (:func:`pairs`) as MyST: counts, then a list for each kind of change."""
    counts = found["change"].value_counts()
    lines = [
        f"Claims with both: {len(found)}. Of these, {found['elsewhere'].sum()} name data that the "
        "embedded study does not have (*elsewhere*), so that by the rules of the ledger only the "
        "real images count.",
        "",
        *(f"- {title}: {counts[name]}" for name, title in CHANGES.items() if name in counts),
        "",
    ]
    for name, title in CHANGES.items():
        rows = [f"- {text}" for text in found.loc[found["change"] == name, "text"]]
        lines += (
            [*(folded(title, rows) if name in FOLDED else [f"**{title}**", "", *rows]), ""]
            if rows
            else []
        )
    return "\n".join(lines)


def price(rows: pd.DataFrame, root: Path) -> str:
    """Say how many seeds would decide a claim, and how long the runs of its table took for as many.

    Args:
        rows: Its rows of the ledger. That which needs the fewest seeds counts.
        root: Folder that the paths of the tables start from.

    Returns:
        The text in brackets: without hours where the runs of the table differ in their number of
        seeds, and no number above `MANY`. Empty if no number of seeds is known.
    """
    known = rows.dropna(subset="needed").sort_values("needed")
    if known.empty:
        return ""
    row = known.iloc[0]
    if row["needed"] > MANY:
        return f" (over {MANY} seeds)"
    recorded = json.loads((root / row["table"]).with_suffix(".json").read_text(encoding="utf-8"))
    # Every seed of a table takes the same time, if all of its runs had the same number of them.
    hours = recorded["seconds"] / 3600 * row["needed"] / row["seeds"]
    alike = not isinstance(recorded["parameters"]["seeds"], list)
    where = "" if recorded["device"] == "cpu" else " on a GPU"
    return f" ({row['needed']:.0f} seeds" + f", {hours:.1f} h{where}" * alike + ")"


def remaining(ledger: pd.DataFrame, root: Path) -> str:
    """Write as MyST which claims of the papers no table of real images has decided, and why.

    Args:
        ledger: Table of ``whopays ledger --csv``.
        root: Folder that the paths of its tables start from.
    """
    own = ledger[
        (ledger["reading"] == "printed")
        & (ledger["paper"] != "H")
        & ledger["kind"].isin(["trend", "number"])
    ]
    own = own[own["verdict"] != "not testable here"]
    real = own[own["evidence"].isin(SIZES[1:]) & own["decides"]]
    found = real.groupby("claim")["verdict"].agg(set)
    why: dict[str, list[str]] = {reason: [] for reason in OPEN}
    for claim in own["claim"].unique():
        verdicts = found.get(claim, set())
        if not verdicts & {*DECIDED}:
            reason = "none" if not verdicts else "undecided" if "undecided" in verdicts else "floor"
            open_ = real[(real["claim"] == claim) & (real["verdict"] == "undecided")]
            why[reason].append(f"[{claim}](#{claim}){price(open_, root)}")
    left = sum(map(len, why.values()))
    total = own["claim"].nunique()
    lines = [
        f"Of {total} trends and numbers of the papers that can be tested here, real images decide "
        f"{total - left}.",
        "",
    ]
    lines += [
        f"- {OPEN[reason]}: {len(names)}. {', '.join(names)}"
        for reason, names in why.items()
        if names
    ]
    return "\n".join([*lines, ""])


def main(folder: str, ledger: str) -> None:
    matplotlib.use("agg")
    table = pd.read_csv(ledger)
    found = pairs(table)
    for name, text in {"scale": lists(found), "remaining": remaining(table, project())}.items():
        Path(folder, f"{name}.md").write_text(text, encoding="utf-8")
    values.save_svg(figure(found), Path(folder, "scale.svg"))


if __name__ == "__main__":
    main(*sys.argv[1:])
