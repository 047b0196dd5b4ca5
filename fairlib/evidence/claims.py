"""Claims and their verdicts: what the papers say, a statistic for each, and what the recorded tables say about it.

A claim is an entry of ``book/claims.yml``. Its statistic turns a study table into one value per seed;
`verdict` compares these values with the claim's threshold. Nothing is typed: the ledger
(:mod:`fairlib.evidence.ledger`) follows from the claims, the tables and the history of the claims file.

Verdicts, with the 95 % t interval of the mean over seeds, in this order of precedence:

| direction | supported | reversed | no effect |
|---|---|---|---|
| greater, less | interval beyond the threshold | beyond it on the other side | within threshold +- margin |
| equal | interval within threshold +- margin | wholly outside it | |

All other cases, and all with fewer than `MIN_SEEDS` seeds, are *undecided*.
"""

import inspect
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import yaml

from fairlib import environment
from fairlib._validation import lookup
from fairlib.effects import STATISTICS, MissingRowsError
from fairlib.statistics import Interval, benjamini_hochberg, seeds_needed, sign_flip_test, t_interval

MIN_SEEDS = 10
RATE = 0.05
PAPERS = {
    "T": "Tran et al., Pruning has a disparate impact on model accuracy",
    "B": "Dai et al., Integrating fairness and model pruning through bi-level optimization",
    "D": "Das et al., Disparate impact on group accuracy of linearization for private inference",
    "H": "This book",
}
KINDS = ("definition", "identity", "bound", "trend", "number", "method")
DIRECTIONS = ("greater", "less", "equal")
EVIDENCE = ("default run", "embedded study", "real-data run")
REGISTERED = ("statistic", "direction", "threshold", "margin")
DECIDED = ("supported", "reversed", "no effect")
VERDICTS = (*DECIDED, "undecided", "not testable here", "not tested yet")


class Criterion(NamedTuple):
    """Direction, threshold and margin of equivalence of a claim."""

    direction: str
    threshold: float
    margin: float

    @property
    def ends(self) -> tuple[float, float]:
        """Lower and upper end of the margin of equivalence."""
        return self.threshold - self.margin, self.threshold + self.margin


@dataclass(frozen=True)
class Claim:
    """One entry of the claims file; its header explains the fields.

    Raises:
        ValueError: If a field has an invalid value; the message names the claim.
    """

    id: str
    source: str
    kind: str
    statement: str
    statistic: Mapping[str, Any] | None
    direction: str | None
    threshold: float | None
    margin: float | None
    notebook: str | None
    tables: Mapping[str, str]
    not_testable: str | None = None

    def __post_init__(self) -> None:
        try:
            self._check()
        except ValueError as error:
            raise ValueError(f"claim {self.id!r}: {error}") from None

    @property
    def paper(self) -> str:
        return self.id.partition("-")[0]

    @property
    def criterion(self) -> Criterion:
        """Direction, threshold and margin of a claim with a statistic.

        Raises:
            ValueError: If the claim has no statistic.
        """
        if self.statistic is None or self.direction is None or self.threshold is None or self.margin is None:
            raise ValueError(f"claim {self.id!r} has no statistic")
        return Criterion(self.direction, self.threshold, self.margin)

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the statistic, beside the table."""
        return {name: value for name, value in (self.statistic or {}).items() if name != "name"}

    def _check(self) -> None:
        if not re.fullmatch(r"[A-Z]-[A-Za-z0-9.-]+", self.id):
            raise ValueError("an id is the letter of its paper, a hyphen, then letters, digits, dots and hyphens")
        lookup("paper", self.paper, PAPERS)
        lookup("kind", self.kind, dict.fromkeys(KINDS))
        for name in ("source", "statement"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name).strip():
                raise ValueError(f"{name} must be a text")
        if not isinstance(self.tables, Mapping):
            raise ValueError(f"tables must map kinds of evidence to paths, got {self.tables!r}")
        for evidence in self.tables:
            lookup("kind of evidence", evidence, dict.fromkeys(EVIDENCE))
        if self.statistic is None:
            if given := [name for name in (*REGISTERED, "tables") if getattr(self, name) not in (None, {})]:
                raise ValueError(f"without a statistic there can be no {', '.join(given)}")
            return
        if self.not_testable:
            raise ValueError("a claim has either a statistic or the reason not_testable, not both")
        function = lookup("statistic", str(self.statistic.get("name")), STATISTICS)
        try:
            inspect.signature(function).bind(None, **self.arguments)
        except TypeError as error:
            raise ValueError(f"statistic {self.statistic['name']}: {error}") from None
        lookup("direction", str(self.direction), dict.fromkeys(DIRECTIONS))
        for name, value in (("threshold", self.threshold), ("margin", self.margin)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ValueError(f"{name} must be a finite number, got {value!r}")
        if self.criterion.margin <= 0:
            raise ValueError(f"margin must be a positive number, got {self.margin!r}")
        if not self.tables:
            raise ValueError("a claim with a statistic needs the tables that test it, got none")


def load(path: str | Path) -> list[Claim]:
    """Read and check the claims file.

    Raises:
        ValueError: If the file is not a list of claims, an entry lacks a field or has an unknown one, an id is a
            duplicate, or a field has an invalid value; the message names the claim.
        FileNotFoundError: If there is no such file.
    """
    entries = parse(Path(path).read_text(encoding="utf-8"))
    if not isinstance(entries, list) or not all(isinstance(entry, dict) and "id" in entry for entry in entries):
        raise ValueError(f"{path} must be a list of entries, each with an id")
    known = {field.name for field in fields(Claim)}
    claims: dict[str, Claim] = {}
    for entry in entries:
        missing, extra = sorted(known - set(entry) - {"not_testable"}), sorted(set(entry) - known)
        if missing or extra:
            raise ValueError(f"claim {entry['id']!r}: fields missing: {missing}, unknown: {extra}")
        if entry["id"] in claims:
            raise ValueError(f"claim {entry['id']!r}: duplicate id")
        claims[entry["id"]] = Claim(**entry)
    return list(claims.values())


def parse(text: str) -> Any:
    """Read the text of a claims file as plain data."""
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


class Verdict(NamedTuple):
    """What the values say about the claim.

    Attributes:
        name: One of `VERDICTS`.
        reason: Why the claim is undecided, not testable or not tested, or a reservation; may be empty.
        interval: Mean over seeds and its 95 % t interval; NaN where nothing was computed.
        seeds: Number of values.
        p_value: P-value of the sign-flip test that the verdict rests on: two-sided against the threshold, or the larger
            of the two one-sided ones against the ends of the margin where equivalence is asserted.
        needed: Number of seeds at which an undecided claim has a verdict with 80 % power; None if over 100,000.
        equivalence: Whether the test asserts equality.
    """

    name: str
    reason: str = ""
    interval: Interval = Interval(math.nan, math.nan, math.nan)
    seeds: int = 0
    p_value: float = math.nan
    needed: int | None = None
    equivalence: bool = False


def verdict(values: Iterable[float], claim: Claim) -> Verdict:
    """Compare one value per seed with the claim's threshold, by the table at the top of this module.

    The interval is Student's: over 10 seeds the percentile bootstrap covers 90 % where it says 95 %.

    Args:
        values: One value per seed, ``(n,)``.
        claim: Claim with a statistic.

    Raises:
        ValueError: If the claim has no statistic, or a value is missing or not finite.
    """
    criterion = claim.criterion
    values = np.asarray(list(values), dtype=np.float64)
    interval = t_interval(values)
    name = _compare(interval, criterion)
    equivalence = name == "no effect" or (criterion.direction == "equal" and name != "reversed")
    p_value = _p_value(values, interval.estimate, criterion, equivalence)
    reason, needed = "", None
    if len(values) < MIN_SEEDS:
        name, reason = "undecided", f"{len(values)} seeds; a verdict takes {MIN_SEEDS}"
    if name == "undecided":
        needed = _seeds_until_decided(values, interval.estimate, criterion)
        reason = reason or "the interval reaches across a bound"
    elif name in ("supported", "reversed") and criterion.direction != "equal" and _inside(interval, criterion):
        reason = f"beyond the threshold, yet within the margin of {criterion.margin:g}"
    return Verdict(name, reason, interval, len(values), p_value, needed, equivalence)


def _compare(interval: Interval, criterion: Criterion) -> str:
    above, below = interval.low - criterion.threshold, interval.high - criterion.threshold
    if criterion.direction == "equal":
        if _inside(interval, criterion):
            return "supported"
        return "reversed" if above > criterion.margin or below < -criterion.margin else "undecided"
    if above > 0 or below < 0:
        return "supported" if (above > 0) == (criterion.direction == "greater") else "reversed"
    return "no effect" if _inside(interval, criterion) else "undecided"


def _inside(interval: Interval, criterion: Criterion) -> bool:
    low, high = criterion.ends
    return low <= interval.low and interval.high <= high


def _p_value(values: np.ndarray, mean: float, criterion: Criterion, equivalence: bool) -> float:
    low, high = criterion.ends
    if equivalence:  # Two one-sided tests (Schuirmann 1987).
        return max(sign_flip_test(values, low, alternative="greater"), sign_flip_test(values, high, alternative="less"))
    if criterion.direction == "equal":
        return sign_flip_test(values, low if mean < criterion.threshold else high)
    return sign_flip_test(values, criterion.threshold)


def _seeds_until_decided(values: np.ndarray, mean: float, criterion: Criterion) -> int | None:
    """Seeds until the interval leaves the nearest bound whose crossing decides."""
    bounds = [] if criterion.direction == "equal" else [criterion.threshold]
    if criterion.direction == "equal" or abs(mean - criterion.threshold) < criterion.margin:
        bounds.append(criterion.threshold + math.copysign(criterion.margin, mean - criterion.threshold))
    needed = [n for bound in bounds if (n := seeds_needed(values, bound)) is not None]
    return max(MIN_SEEDS, min(needed)) if needed else None


def evaluate(claims: Sequence[Claim], root: str | Path) -> pd.DataFrame:
    """Compute the verdicts of all claims from the tables they name.

    Args:
        claims: Claims of the claims file (:func:`load`).
        root: Folder that the paths of the tables start from.

    Returns:
        One row per claim and table (one in all for a claim without tables): ``id evidence table verdict reason estimate
        low high seeds p_value equivalence needed test survives``. ``test`` is a number: claims that ask the same of the
        same table are one test. ``survives`` is False where a verdict does not survive a false-discovery rate of 5 %
        (Benjamini and Hochberg) over all tests, else True.
    """
    rows: list[list[Any]] = []
    tests: dict[str, int] = {}
    for claim in claims:
        asked = (claim.statistic, claim.direction, claim.threshold, claim.margin)
        for evidence, table in claim.tables.items() or [("", "")]:
            found = _judge(claim, Path(root, table))
            test = tests.setdefault(f"{table}: {asked}", len(tests))
            rows.append([claim.id, evidence, table, found.name, found.reason, *found.interval, found.seeds])
            rows[-1] += [found.p_value, found.equivalence, found.needed, test]
    columns = ["id", "evidence", "table", "verdict", "reason", "estimate", "low", "high", "seeds"]
    columns += ["p_value", "equivalence", "needed", "test"]
    results = pd.DataFrame(rows, columns=columns).astype({"needed": "Int64"})
    p_values = results[results["seeds"] >= MIN_SEEDS].groupby("test")["p_value"].first()
    rejected = p_values.index[benjamini_hochberg(p_values, RATE)]
    return results.assign(survives=~results["verdict"].isin(DECIDED) | results["test"].isin(rejected))


def on_table(claims: Sequence[Claim], table: pd.DataFrame, notebook: str) -> pd.DataFrame:
    """Compute the verdicts of the claims that a notebook tests, on its own table, whatever its parameters.

    Args:
        claims: Claims of the claims file (:func:`load`).
        table: Table of :func:`fairlib.study`.
        notebook: Path of the notebook, as the claims name it.

    Returns:
        Indexed by id: ``verdict estimate low high seeds``. A claim whose rows the table does not have is *not in this
        run*; one whose rows do not give its statistic is *not computable*, with the reason.
    """
    rows = {}
    for claim in claims:
        if claim.notebook != notebook or claim.statistic is None:
            continue
        try:
            found = verdict(STATISTICS[claim.statistic["name"]](table, **claim.arguments), claim)
        except MissingRowsError:
            rows[claim.id] = ["not in this run", math.nan, math.nan, math.nan, 0]
        except ValueError as error:
            rows[claim.id] = [f"not computable: {error}", math.nan, math.nan, math.nan, 0]
        else:
            rows[claim.id] = [found.name, *found.interval, found.seeds]
    columns = ["verdict", "estimate", "low", "high", "seeds"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("claim")


def verdicts(table: pd.DataFrame, notebook: str) -> pd.DataFrame:
    """Compute the verdicts of the project's claims that a page tests, on its own table.

    Without the project's files (in Colab) there are none, and one sentence says so.

    Args:
        table: Table of :func:`fairlib.study`.
        notebook: Path of the page, as the claims name it: ``"notebooks/pruning/removal.ipynb"``.

    Returns:
        Table of :func:`on_table`.
    """
    path = environment.project() / "book" / "claims.yml"
    if not path.is_file():
        print("The claims are one of the project's files, which are not here: run this page in its repository.")
    return on_table(load(path) if path.is_file() else [], table, notebook)


def _judge(claim: Claim, table: Path) -> Verdict:
    if claim.not_testable:
        return Verdict("not testable here", claim.not_testable)
    if claim.statistic is None:
        return Verdict("not tested yet")
    if not table.is_file():
        return Verdict("not tested yet", "its table has not been recorded")
    records = pd.read_parquet(table) if table.suffix == ".parquet" else pd.read_csv(table)
    try:
        return verdict(STATISTICS[claim.statistic["name"]](records, **claim.arguments), claim)
    except ValueError as error:
        raise ValueError(f"claim {claim.id!r}, {table}: {error}") from None
