"""Write what the page *What scale changes* shows: ``python book/tools/scale.py FOLDER LEDGER``.

LEDGER is the table of ``fairlib ledger --csv``. Written into FOLDER are ``scale.md``, every claim for which a small and
a large table were recorded, with what both say; ``scale.svg``, its effect in both; and ``remaining.md``, what no table
of real images has decided.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from fairlib import plots
from fairlib.environment import project
from fairlib.evidence import claims
from fairlib.evidence.ledger.text import escape, folded, numbers

SIZES = claims.EVIDENCE[1:]
"""Kinds of recorded evidence, the smallest first."""

CHANGES = {
    "turned": "Supported by the one, reversed by the other",
    "lost": "An effect in the small table, none that is certain in the large one",
    "found": "An effect in the large table, none that is certain in the small one",
    "floor": "In the large table a group has nothing to lose",
    "kept": "The same verdict by both",
    "open": "No certain effect in either",
}
"""What becomes of a verdict, in the order of the page."""

OPEN = {
    "floor": "A group had nothing to lose in any table of real images",
    "undecided": "The tables of real images leave them undecided",
    "none": "No table of real images tests them yet",
}
"""Why no table of real images decides a claim."""

FOLDED = ("kept", "open")
EFFECTS = ("supported", "reversed")
CLIP = 30  # Margins at which the axes of the figure end.


def change(small: str, large: str) -> str:
    """What becomes of a verdict from the small table to the large one: a key of `CHANGES`."""
    if large == "undecided (floor)":
        return "floor"
    if small == large and "undecided" not in large:
        return "kept"
    if small in EFFECTS and large in EFFECTS:
        return "turned"
    return "lost" if small in EFFECTS else "found" if large in EFFECTS else "open"


def pairs(ledger: pd.DataFrame) -> pd.DataFrame:
    """Claims as printed that tables of two sizes give numbers for, in the order of the ledger.

    Args:
        ledger: Table of ``fairlib ledger --csv``.

    Returns:
        A row for each claim: ``claim change equality small large small_effect large_effect``. ``small`` and ``large``
        are what the smallest and the largest of its tables say, as MyST. The effects are the means beyond the threshold
        in units of the margin, positive on the side that is claimed; of an equality, the distance from the threshold.
    """
    known = {claim.id: claim for claim in claims.load(project() / "book" / "claims.yml")}
    recorded = ledger[(ledger["reading"] == "printed") & ledger["evidence"].isin(SIZES) & (ledger["seeds"] > 0)]
    rows = []
    for name, found in recorded.groupby("claim", sort=False):
        found = found.sort_values("evidence", key=lambda kinds: kinds.map(SIZES.index))
        if len(found) > 1:
            ends = dict(zip(("small", "large"), (found.iloc[0], found.iloc[-1]), strict=True))
            row = {"claim": name, "change": change(*(end["verdict"] for end in ends.values()))}
            row["equality"] = known[name].criterion.direction == "equal"
            for size, end in ends.items():
                row[size] = f"*{end['verdict']}* on {escape(end['data'])}, {escape(numbers(end))}"
                row[f"{size}_effect"] = _effect(known[name], end["estimate"])
            rows.append(row)
    return pd.DataFrame(rows)


def _effect(claim: claims.Claim, estimate: float) -> float:
    criterion = claim.criterion
    beyond = (estimate - criterion.threshold) / criterion.margin
    return {"less": -beyond, "equal": abs(beyond)}.get(criterion.direction, beyond)


def figure(found: pd.DataFrame) -> Figure:
    """Draw the effect of every claim that has a direction, in the large table over the small one (:func:`pairs`)."""
    shown = found[~found["equality"]]
    drawn, (axis,) = plots.new_figure(1, width=5.6, height=6.0)
    for band in (axis.axhspan, axis.axvspan):
        band(-1, 1, color="#999999", alpha=0.2, linewidth=0)
    axis.plot([-CLIP, CLIP], [-CLIP, CLIP], color="#555555", linewidth=0.8)
    looks = {"kept": (plots.PALETTE[0], "same verdict"), "turned": (plots.PALETTE[1], "turned around")}
    groups = shown["change"].where(shown["change"].isin(looks), "other")
    for name, (color, label) in ({"other": ("#777777", "all others")} | looks).items():
        own = shown.loc[groups == name, ["small_effect", "large_effect"]].clip(-CLIP, CLIP)
        axis.plot(*own.to_numpy().T, "o", color=color, label=f"{label}: {len(own)}", markersize=5, alpha=0.8, mew=0)
    ticks = [-CLIP, -10, -3, -1, 0, 1, 3, 10, CLIP]
    axis.set(xscale="symlog", yscale="symlog", xlim=(-1.2 * CLIP, 1.2 * CLIP), ylim=(-1.2 * CLIP, 1.2 * CLIP))
    for one in (axis.xaxis, axis.yaxis):
        one.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
        one.set_ticks([], minor=True)
    axis.set(xlabel="effect in the small table, in margins", ylabel="effect in the large table, in margins")
    drawn.legend(loc="outside upper left", frameon=False, ncols=3, handletextpad=0.2, columnspacing=1.0)
    return drawn


def lists(found: pd.DataFrame) -> str:
    """Write all pairs (:func:`pairs`) as MyST: a sentence with the counts, then a list for each change."""
    counts = found["change"].value_counts().reindex(list(CHANGES), fill_value=0)
    lines = [
        f"Of {len(found)} claims that have a small and a large table, both tables give the same verdict on "
        f"{counts['kept']}; on {counts['turned']} they contradict each other; {counts['lost']} lose their effect in "
        f"the large table, and {counts['found']} show one only there; for {counts['floor']} a group of the large "
        "table has nothing to lose.",
        "",
    ]
    for name, title in CHANGES.items():
        own = found[found["change"] == name]
        rows = [f"- [{row.claim}](#{row.claim}): {row.small}; {row.large}" for row in own.itertuples()]
        title = f"{title}: {len(own)}"
        lines += [*(folded(title, rows) if name in FOLDED else [f"**{title}**", "", *rows]), ""] if rows else []
    return "\n".join(lines)


def remaining(ledger: pd.DataFrame) -> str:
    """Write as MyST which trends and numbers of the papers no table of real images has decided, and why.

    Args:
        ledger: Table of ``fairlib ledger --csv``.
    """
    own = ledger[(ledger["reading"] == "printed") & (ledger["paper"] != "H") & ledger["kind"].isin(["trend", "number"])]
    own = own[own["verdict"] != "not testable here"]
    real = own[own["evidence"].isin(SIZES[1:]) & own["decides"]]
    found = real.groupby("claim")["verdict"].agg(set)
    why: dict[str, list[str]] = {reason: [] for reason in OPEN}
    for claim in own["claim"].unique():
        verdicts = found.get(claim, set())
        if not verdicts & {*EFFECTS, "no effect"}:
            reason = "none" if not verdicts else "undecided" if "undecided" in verdicts else "floor"
            why[reason].append(f"[{claim}](#{claim})")
    left = sum(map(len, why.values()))
    total = own["claim"].nunique()
    lines = [
        f"Of {total} trends and numbers of the papers that can be tested here, real images decide {total - left}.",
        "",
    ]
    lines += [f"- {OPEN[reason]}: {len(names)}. {', '.join(names)}" for reason, names in why.items() if names]
    return "\n".join([*lines, ""])


def main(folder: str, ledger: str) -> None:
    matplotlib.use("agg")
    table = pd.read_csv(ledger)
    found = pairs(table)
    for name, text in {"scale": lists(found), "remaining": remaining(table)}.items():
        Path(folder, f"{name}.md").write_text(text, encoding="utf-8")
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "book"}):  # Texts as texts, the same each time.
        figure(found).savefig(Path(folder, "scale.svg"), metadata={"Date": None})


if __name__ == "__main__":
    main(*sys.argv[1:])
