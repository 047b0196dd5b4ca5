"""The page on scale pairs the smallest with the largest table of a claim, and counts what becomes
of its verdict."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scale

from whopays import claims
from whopays.verdict import Criterion

SUPPORTED, UNDECIDED, FLOOR = ("supported", "undecided", "undecided (floor)")


@pytest.mark.parametrize(
    ("small", "large", "expected"),
    [
        (SUPPORTED, "reversed", "differently"),
        (SUPPORTED, SUPPORTED, "alike"),
        ("no effect", "no effect", "alike"),
        ("reversed", UNDECIDED, "small"),
        (FLOOR, SUPPORTED, "large"),
        (SUPPORTED, FLOOR, "floor"),
        (UNDECIDED, UNDECIDED, "neither"),
    ],
)
def test_how_two_verdicts_compare(small: str, large: str, expected: str):
    assert scale.change(small, large) == expected and expected in scale.CHANGES


def row(
    claim: str, evidence: str, verdict: str, estimate: float, **other: object
) -> dict[str, object]:
    known = {
        "claim": claim,
        "reading": "printed",
        "evidence": evidence,
        "verdict": verdict,
        "estimate": estimate,
    }
    known |= {
        "low": estimate - 0.01,
        "high": estimate + 0.01,
        "seeds": 10,
        "data": "digits",
        "decides": True,
    }
    return known | {"needed": np.nan, "worst_cell": np.nan, "worst_estimate": np.nan} | other


LEDGER = pd.DataFrame(
    [
        row("T-fig-1", "real-data run", "reversed", 0.06, data="utkface"),
        row("T-fig-1", "embedded study", SUPPORTED, -0.06, decides=False),
        row(
            "T-fig-1",
            "run at scale",
            UNDECIDED,
            0.03,
            data="utkface",
            worst_cell="level 0.5",
            worst_estimate=0.01,
        ),
        row("T-fig-1", "default run", SUPPORTED, 9.0),
        row("T-fig-2", "embedded study", SUPPORTED, 0.5),
        row("T-fig-2", "real-data run", SUPPORTED, 0.5, seeds=0),
        row("T-fig-3", "real-data run", SUPPORTED, 0.5, data="utkface"),
        row("T-fig-3", "run at scale", SUPPORTED, 0.5, data="utkface"),
        row("T-fig-4a", "embedded study", SUPPORTED, 0.5),
        row("T-fig-4a", "real-data run", SUPPORTED, 0.5, reading="repaired"),
    ]
)


def test_the_smallest_table_stands_beside_the_largest():
    (found,) = scale.pairs(LEDGER).itertuples()
    (claim,) = (
        one
        for one in claims.read_claims(claims.project() / "book" / "claims.yml")
        if one.id == "T-fig-1"
    )
    assert claim.direction == "greater"
    assert (found.claim, found.change, found.direction) == ("T-fig-1", "small", "greater")
    text = scale.lists(scale.pairs(LEDGER))
    assert (
        "| *supported*<br>digits, elsewhere |" in text
        and "| *undecided*<br>faces (UTKFace) |" in text
    )
    for ends, estimate in ((found.small, -0.06), (found.large, 0.03)):
        numbers = np.array([estimate, estimate - 0.01, estimate + 0.01])
        assert ends == pytest.approx((numbers - claim.threshold) / claim.margin)


def test_an_effect_is_positive_on_the_side_that_is_claimed():
    less = Criterion("less", 1.0, 0.5)
    found = less.in_margins(np.array([0.0, -1.0, 1.0]))
    assert found.tolist() == [2.0, 4.0, 0.0]


def test_what_is_left_is_what_no_table_of_real_images_decides():
    real = {"evidence": "real-data run", "paper": "T", "kind": "trend", "decides": True}
    rows = [
        row("T-a", verdict=SUPPORTED, estimate=1.0, **real),
        row("T-b", verdict=FLOOR, estimate=1.0, **real),
        row("T-b", verdict=SUPPORTED, estimate=1.0, **real | {"evidence": "embedded study"}),
        row("T-c", verdict=UNDECIDED, estimate=1.0, **real),
        row("T-l", verdict=UNDECIDED, estimate=1.0, **real),
        row("T-c", verdict=FLOOR, estimate=1.0, **real | {"evidence": "run at scale"}),
        row("T-d", verdict="reversed", estimate=1.0, **real | {"decides": False}),
        row("T-e", verdict="not testable here", estimate=1.0, **real),
        row("T-f", verdict=FLOOR, estimate=1.0, **real | {"kind": "bound"}),
        row("H-g", verdict=FLOOR, estimate=1.0, **real | {"paper": "H"}),
        row("T-h", verdict=FLOOR, estimate=1.0, **real),
        row("T-h", verdict="no effect", estimate=1.0, **real | {"evidence": "run at scale"}),
    ]
    said = scale.remaining(pd.DataFrame(rows)).splitlines()
    assert said[0].startswith("Of 6 trends and numbers") and said[0].endswith(
        "real images decide 2."
    )
    left = [line.rpartition(": ")[2] for line in said[2:]]
    assert left == ["1. [T-b](#T-b)", "2. [T-c](#T-c), [T-l](#T-l)", "1. [T-d](#T-d)"]


def test_the_page_has_every_pair_and_its_counts(tmp_path):
    LEDGER.assign(paper="T", kind="trend").to_csv(tmp_path / "ledger.csv", index=False)
    scale.main(str(tmp_path), str(tmp_path / "ledger.csv"))
    text = (tmp_path / "scale.md").read_text(encoding="utf-8")
    assert text.startswith("**Scale changes what can be decided more often than what is found.**")
    assert "Of 1 claims" in text and "small data alone 1;" in text and "1 name data" in text
    assert text.count("\n| [T-fig-1](#T-fig-1) | small data only | *supported*<br>") == 1
    assert "not by both: 1" in (tmp_path / "scale.svg").read_text(encoding="utf-8")


def test_words_that_the_counts_do_not_bear_stop_the_build():
    with pytest.raises(ValueError, match="turn round"):
        scale.lists(pd.DataFrame({"change": ["differently"]}))
