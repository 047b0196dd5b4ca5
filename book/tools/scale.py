"""Write what the page *What scale changes* shows: ``python book/tools/scale.py FOLDER LEDGER``.

LEDGER is the table of ``whopays ledger --csv``. Written into FOLDER are ``scale.md``, what scale
changes and every claim with an embedded study and a table of real images, with what both say;
``scale.svg``, its effect in both; and ``remaining.md``, what no table of real images has decided.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import values
from matplotlib.figure import Figure

from whopays import claims, plots
from whopays.ledger.text import rendered
from whopays.verdict import DECIDED, side

SIZES = claims.EVIDENCE[1:]
"""Kinds of recorded evidence, the smallest first."""

ENDS = ("small", "large")

CHANGES = {
    "differently": "both, differently",
    "small": "small data only",
    "large": "real images only",
    "floor": "nothing to lose on real images",
    "alike": "both, alike",
    "neither": "neither yet",
}
"""Which of the embedded study and real images decide a claim, in the order of the page."""

OPEN = {
    "floor": "A group had next to nothing to lose in any table of real images",
    "undecided": "The tables of real images leave them undecided",
    "none": "No table of real images tests them yet",
}
"""Why no table of real images decides a claim."""

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
        A row for each claim: ``claim change direction elsewhere rows``, and ``small`` and
        ``large`` for the embedded study and the largest kind of real images, each an array of
        estimate and interval, in units of the margin from the threshold on and positive on the side
        that is claimed. ``elsewhere`` is whether the claim names data that the embedded study
        lacks, ``rows`` are the rows of both tables in the ledger.
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
            row["direction"] = criterion.direction
            row["elsewhere"] = not small["decides"]
            for end, side in zip(ENDS, (small, large), strict=True):
                numbers = side[["estimate", "low", "high"]].to_numpy(float)
                row[end] = criterion.in_margins(numbers)
            row["rows"] = [small, large]
            rows.append(row)
    return pd.DataFrame(rows)


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
        xlabel="effect in the embedded study, in margins",
        ylabel="effect on real images, in margins",
    )
    for one in (axis.xaxis, axis.yaxis):
        one.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
        one.set_ticks([], minor=True)
    drawn.legend(
        loc="outside upper left", frameon=False, ncols=3, handletextpad=0.2, columnspacing=1.0
    )
    return drawn


def lists(found: pd.DataFrame) -> str:
    """Write all pairs (:func:`pairs`) as MyST: what scale changes, and a table that sorts.

    Raises:
        ValueError: If scale turns more claims round than it opens or closes.
    """
    count = found["change"].value_counts().reindex(CHANGES, fill_value=0)
    if count["differently"] >= count[["small", "large", "floor"]].sum():
        raise ValueError(f"the words say that few claims turn round, the counts {count.to_dict()}")
    order = found["change"].map([*CHANGES].index).sort_values(kind="stable").index
    return rendered(
        "scale",
        count=count,
        elsewhere=found["elsewhere"].sum(),
        pairs=found.loc[order].to_dict("records"),
        changes=CHANGES,
    )


def remaining(ledger: pd.DataFrame) -> str:
    """Write as MyST which claims of the papers no table of real images has decided, and why.

    Args:
        ledger: Table of ``whopays ledger --csv``.
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
            why[reason].append(f"[{claim}](#{claim})")
    return rendered("remaining", total=own["claim"].nunique(), why=why, reasons=OPEN)


def main(folder: str, ledger: str) -> None:
    matplotlib.use("agg")
    table = pd.read_csv(ledger)
    found = pairs(table)
    for name, text in {"scale": lists(found), "remaining": remaining(table)}.items():
        Path(folder, f"{name}.md").write_text(text, encoding="utf-8")
    values.save_svg(figure(found), Path(folder, "scale.svg"))


if __name__ == "__main__":
    main(*sys.argv[1:])
