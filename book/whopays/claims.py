"""Claims of the papers, a statistic for each, and verdicts from the recorded tables.

A claim is an entry of ``book/claims.yml``. Its statistic turns a study table into one value per
seed, or per seed and cell; :mod:`whopays.verdict` compares these with the claim's threshold.
Nothing is typed: the ledger (:mod:`whopays.ledger`) follows from the claims, the tables and the
history of the claims file.

Three rules keep a verdict from saying more than its table. A claim that names a data set is decided
by tables of that data set; others are shown *elsewhere*. A table in which a group has nothing to
lose (:func:`whopays.effects.at_floor`) decides no claim about who loses. A statement that is false
as printed and was repaired has a verdict for each reading.
"""

import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
import yaml

from fairlib._validation import check_number, lookup
from whopays import conditions
from whopays.effects import (
    OF_ACCURACIES,
    STATISTICS,
    MissingRowsError,
    NothingToLoseError,
    at_floor,
    by_chance,
    cells,
)
from whopays.runs import Given, project
from whopays.seeds import benjamini_hochberg, holm
from whopays.verdict import DECIDED, MIN_SEEDS, Criterion, Verdict, judge, t_test

RATE = 0.05
SHARES = ("accuracy", "drop", "smallest", "rate_true_positive", "rate_false_positive")

PAPERS = {
    "T": "Tran et al., Pruning has a disparate impact on model accuracy",
    "B": "Dai et al., Integrating fairness and model pruning through bi-level optimization",
    "D": "Das et al., Disparate impact on group accuracy of linearization for private inference",
    "H": "This book",
}
KINDS = ("definition", "identity", "bound", "trend", "number", "method")
DIRECTIONS = ("greater", "less", "equal")
EVIDENCE = ("default run", "embedded study", "real-data run", "run at scale", "paper-scale run")
REGISTERED = ("statistic", "direction", "threshold", "margin")
EXACT = ("definition", "identity", "bound", "method")
"""Kinds of claims whose equalities a single exception refutes."""

Values: TypeAlias = pd.Series | pd.DataFrame
NO_VALUES, NO_RECORDS = pd.Series(dtype=float), pd.DataFrame()


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
    statistic: Given | None
    direction: str | None
    threshold: float | None
    margin: float | None
    notebook: str | None
    tables: Mapping[str, str]
    data: str | None = None
    floor: Given | None = None
    repaired: Given | None = None
    not_testable: str | None = None

    def __post_init__(self) -> None:
        try:
            self._check()
        except (TypeError, ValueError) as error:
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
        if self.direction is None or self.threshold is None or self.margin is None:
            raise ValueError(f"claim {self.id!r} has no statistic")
        holds = self.direction == "equal" and self.kind in EXACT
        return Criterion(self.direction, self.threshold, self.margin, holds)

    @property
    def readings(self) -> dict[str, "Claim"]:
        """Readings of the claim: as printed and, if it was repaired, as repaired."""
        if self.repaired is None:
            return {"printed": self}
        changed = {"not_testable": None, "repaired": None, **self.repaired}
        return {"printed": self, "repaired": replace(self, **changed)}

    @property
    def family(self) -> str:
        """Family of tests for false discoveries: ``"theory"`` or ``"experiments"``."""
        return "theory" if "/theory/" in (self.notebook or "") else "experiments"

    def values(self, table: pd.DataFrame) -> pd.Series | pd.DataFrame:
        """Compute the statistic: one value per seed, or a table of seeds and cells.

        Raises:
            ValueError: If the table does not give the statistic, or lacks a cell.
        """
        statistic = dict(self.statistic or {})
        function = cells if "each" in statistic else STATISTICS[statistic.pop("name")]
        return function(table, **statistic)

    def at_floor(self, table: pd.DataFrame, groups: str = "") -> list[Any] | None:
        """List the groups with too little to lose; None if the table cannot tell.

        See :func:`whopays.effects.at_floor`.

        Args:
            table: Table of :func:`fairlib.study`.
            groups: Text of ``whopays.conditions.group_and_answer``; where it is empty, the
                field ``floor`` says whether the groups are the classes.

        Raises:
            ValueError: If the table lacks a column, a value or the control.
        """
        where = {"classes": True, **(self.floor or {})}
        column = where.pop("column", "accuracy")
        classes = where.pop("classes") and groups != conditions.NOT_ANSWER
        # Where the groups are the classes, a constant answer is wrong about all groups but one.
        if not classes and "constant" not in table:
            return None
        # A margin of a relative drop, or of a loss, does not say how much accuracy is too little.
        return at_floor(
            table,
            where=where,
            classes=classes,
            column=column,
            least=self.criterion.margin if self.of_accuracies else 0.0,
            overall=bool(self._names & conditions.OVERALL),
        )

    @property
    def of_accuracies(self) -> bool:
        """True if the statistic, and the margin, are shares of right answers in groups."""
        given = self.statistic or {}
        accuracy = given.get("column", "accuracy") == "accuracy" and not given.get("relative")
        return accuracy and bool(self._names & OF_ACCURACIES)

    @property
    def in_points(self) -> bool:
        """True if the statistic is a difference of shares, which is shown in percentage points."""
        given = self.statistic or {}
        share = given.get("column", "accuracy") in SHARES and not given.get("relative")
        return share and bool(self._names & (OF_ACCURACIES | conditions.OVERALL | {"column_mean"}))

    @property
    def _names(self) -> set[Any]:
        given = self.statistic or {}
        return {given.get("name"), given.get("of")}

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the statistic, beside the table."""
        given = self.statistic or {}
        return {name: value for name, value in given.items() if name not in ("name", "each")}

    def _check(self) -> None:
        if not re.fullmatch(r"[A-Z]-[A-Za-z0-9.-]+", self.id):
            raise ValueError(
                "an id is the letter of its paper, a hyphen, then letters, digits, dots and hyphens"
            )
        lookup("paper", self.paper, PAPERS)
        lookup("kind", self.kind, dict.fromkeys(KINDS))
        for name in ("source", "statement"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name).strip():
                raise ValueError(f"{name} must be a text")
        for evidence in self.tables:
            lookup("kind of evidence", evidence, dict.fromkeys(EVIDENCE))
        if self.data is not None:
            # Importing torch with the data sets would slow every command of the command line.
            from fairlib.data import DATASETS

            lookup("data set", str(self.data).partition("/")[0], DATASETS)
        if self.repaired is not None:
            self._check_repair()
        if self.statistic is not None:
            self._check_statistic(self.statistic)
            return
        fields_of_tests = (*REGISTERED, "tables", "floor")
        given = [name for name in fields_of_tests if getattr(self, name) not in (None, {})]
        if given:
            raise ValueError(f"without a statistic there can be no {', '.join(given)}")

    def _check_statistic(self, statistic: Given) -> None:
        if self.not_testable:
            raise ValueError("a claim has either a statistic or the reason not_testable, not both")
        function = lookup("statistic", str(statistic.get("name")), STATISTICS)
        signature = inspect.signature(function)
        in_cells = {*statistic.get("each", ())} & {*signature.parameters}
        # The table comes first; what varies from cell to cell may be an argument, too.
        signature.bind(None, **self.arguments | dict.fromkeys(in_cells))
        lookup("direction", str(self.direction), dict.fromkeys(DIRECTIONS))
        check_number("threshold", self.threshold, -math.inf, low_open=True)
        check_number("margin", self.margin, 0, low_open=True)
        if not self.tables:
            raise ValueError("a claim with a statistic needs the tables that test it, got none")

    def _check_repair(self) -> None:
        if not {"statement", "statistic"} <= set(self.repaired or ()):
            raise ValueError(f"repaired must have a statement and a statistic, got {self.repaired}")
        # Making the reading checks its fields.
        self.readings["repaired"]


def read_claims(path: str | Path) -> list[Claim]:
    """Read and check the claims file.

    Raises:
        ValueError: If an entry lacks a field or has an unknown one, an id is a duplicate, or a
            field has an invalid value; the message names the claim.
        FileNotFoundError: If there is no such file.
    """
    entries = parse(Path(path).read_text(encoding="utf-8"))
    claims: dict[str, Claim] = {}
    for entry in entries:
        if entry["id"] in claims:
            raise ValueError(f"claim {entry['id']!r}: duplicate id")
        try:
            claims[entry["id"]] = Claim(**entry)
        except TypeError as error:  # A field is missing or unknown.
            raise ValueError(f"claim {entry['id']!r}: {error}") from None
    return list(claims.values())


@functools.cache
def registered() -> dict[str, Claim]:
    """Read the project's claims, by id."""
    known = read_claims(project() / "book" / "claims.yml")
    return {claim.id: claim for claim in known}


def parse(text: str) -> Any:
    """Read the text of a claims file as plain data."""
    # The loader in C reads the file ten times as fast; not every installation has it.
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def evaluate_claims(claims: Sequence[Claim], root: str | Path) -> pd.DataFrame:
    """Compute the verdicts of all claims from the tables they name.

    Args:
        claims: Claims of the claims file (:func:`read_claims`).
        root: Folder that the paths of the tables start from.

    Returns:
        One row per claim, reading and table (one in all for a claim that is not testable): ``claim
        paper kind reading evidence table decides verdict estimate low high seeds worst_cell
        worst_estimate``, then ``reason p_value equivalence needed family data groups test
        earlier survives``, and what becomes of the verdict under stricter rules (`_beside`), with
        ``holm``. ``decides`` is False where the table is of another data set than the claim names;
        ``data`` are the data sets of the table, ``groups`` is the text of
        ``whopays.conditions.group_and_answer``. ``test`` is a number: rows that ask the same
        of the same table are one test, whatever their statements. ``survives`` is False where a
        verdict does not survive a false-discovery rate of 5 % (Benjamini and Hochberg) over the
        tests of its family, else True; ``holm`` where it does not survive Holm's correction of
        Student's p-values over all tests.

    Raises:
        ValueError: If a table does not give a claim's statistic or floor, or lacks a cell; the
            message names both.
    """
    rows: list[dict[str, Any]] = []
    tests: dict[str, int] = {}
    paths = conditions.by_path(Path(root))
    # Many claims name the same table.
    read_table, made = functools.cache(read_records), functools.cache(conditions.earlier_design)
    for claim in claims:
        for reading, read in claim.readings.items():
            for evidence, table in read.tables.items() or [("", "")]:
                found, decides, same, beside = _judge(read, Path(root, table), read_table)
                if (table, claim.id, reading) in paths and found.name in DECIDED:
                    found = _left_open(found, "undecided", paths[table, claim.id, reading])
                judged = found._asdict()
                row = {
                    "claim": claim.id,
                    "paper": claim.paper,
                    "kind": claim.kind,
                    "reading": reading,
                    "evidence": evidence,
                    "table": table,
                    "decides": decides,
                    "verdict": judged.pop("name"),
                    **judged.pop("interval")._asdict(),
                    **judged,
                    "family": read.family,
                    "test": tests.setdefault(f"{table}: {same}", len(tests)),
                    "earlier": made(Path(root), table),
                    **beside,
                }
                rows.append(row)
    results = pd.DataFrame(rows).astype({"needed": "Int64"})
    results["survives"] = ~results["verdict"].isin(DECIDED) | results["p_value"].isna()
    tested = results[(results["seeds"] >= MIN_SEEDS) & results["p_value"].notna()]
    for _, family in tested.groupby("family"):
        # Rows of one test count once: its p-value would else make room for others.
        p_values = family.groupby("test")["p_value"].first()
        rejected = p_values.index[benjamini_hochberg(p_values, RATE)]
        results.loc[family.index[family["test"].isin(rejected)], "survives"] = True
    # The smallest p-value of ten signs is 2 / 1024, which no correction for hundreds of tests
    # could reach.
    p_values = tested.groupby("test")["t_p_value"].first()
    passed = p_values.index[holm(p_values, RATE)]
    results["holm"] = results["p_value"].isna() | results["test"].isin(passed)
    return results


def on_table(claims: Sequence[Claim], table: pd.DataFrame, notebook: str) -> pd.DataFrame:
    """Compute the verdicts of a notebook's claims on its table, whatever its parameters.

    Args:
        claims: Claims of the claims file (:func:`read_claims`).
        table: Table of :func:`fairlib.study`.
        notebook: Path of the notebook, as the claims name it.

    Returns:
        Indexed by id: ``verdict estimate low high seeds decides``; a repaired reading has a row of
        its own. A claim whose rows the table does not have is *not in this run*; one whose rows do
        not give its statistic is *not computable*, with the reason. ``decides`` is False where the
        table is of another data set than the claim names.
    """
    rows = {}
    for claim in claims:
        for reading, read in claim.readings.items():
            if read.notebook != notebook or read.statistic is None:
                continue
            found = Verdict("not in this run")
            try:
                found, _, _ = _tested(read, table)
            except MissingRowsError:
                pass
            except ValueError as error:
                found = Verdict(f"not computable: {error}")
            # Digits cannot decide a claim about faces, however clear their numbers.
            decides = read.data is None or read.data.partition("/")[0] in set(table.get("data", ()))
            name = claim.id if reading == "printed" else f"{claim.id} ({reading})"
            rows[name] = [found.name, *found.interval, found.seeds, decides]
    columns = ["verdict", "estimate", "low", "high", "seeds", "decides"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("claim")


def verdicts(table: pd.DataFrame, notebook: str) -> pd.DataFrame:
    """Compute the verdicts of the project's claims that a page tests, on its own table.

    Args:
        table: Table of :func:`fairlib.study`.
        notebook: Path of the page, as the claims name it: ``"notebooks/pruning/removal.ipynb"``.

    Returns:
        Table of :func:`on_table`.
    """
    return on_table(list(registered().values()), table, notebook)


def read_records(path: str | Path) -> pd.DataFrame:
    """Read a table that a claim names, Parquet or CSV."""
    return pd.read_parquet(path) if Path(path).suffix == ".parquet" else pd.read_csv(path)


def _judge(
    claim: Claim, table: Path, read: Callable[[Path], pd.DataFrame]
) -> tuple[Verdict, bool, str, dict[str, Any]]:
    """Judge a claim by a table that a function reads.

    Returns:
        The verdict, True if the table decides the claim, a text that is equal for the same test,
        and further columns of the row.
    """
    if claim.statistic is None or not table.is_file():
        unknown = Verdict("undecided", "its table has not been recorded")
        if claim.not_testable:
            unknown = Verdict("not testable here", claim.not_testable)
        elif claim.statistic is None:
            unknown = Verdict("undecided", "nothing tests it yet")
        return unknown, False, claim.id, _beside(claim, unknown)
    records, given = read(table), conditions.made_by(table).get("parameters", {})
    groups = conditions.group_and_answer(claim.statistic, records, given)
    try:
        found, values, chance = _tested(claim, records, groups)
    except ValueError as error:
        raise ValueError(f"claim {claim.id!r}, {table}: {error}") from None
    beside = _beside(claim, found, groups, values, chance, records)
    return found, _is_about(claim, records, given), _fingerprint(claim, values), beside


def _beside(
    claim: Claim,
    found: Verdict,
    groups: str = conditions.NO_GROUPS,
    values: Values = NO_VALUES,
    chance: Sequence[Values] = (),
    records: pd.DataFrame = NO_RECORDS,
) -> dict[str, Any]:
    """Say what a table is of, and judge once more by stricter rules.

    Returns:
        ``in_points``, ``data`` and ``groups``; ``overlap`` and ``assumed``
        (``whopays.conditions.share_of_test``); ``resplit``, the verdict by the interval
        ``resplit_low resplit_high`` of seeds that split the same data; ``doubled``, the verdict by
        twice the margin; ``t_p_value``, of Student's test.
    """
    again, doubled, p_value, share = found, found, math.nan, (0.0, False)
    # A statement that one exception refutes has no interval to widen.
    if len(values) >= MIN_SEEDS and not claim.criterion.holds:
        share = conditions.share_of_test(claim.statistic or {}, records)
        again = judge(values, claim.criterion, chance, overlap=share[0])
        wide = claim.criterion._replace(margin=2 * claim.criterion.margin)
        doubled = judge(values, wide, chance)
        p_value = judge(values, claim.criterion, chance, test=t_test).p_value
    return {
        "in_points": claim.in_points,
        "data": ", ".join(sorted(records.get("data", pd.Series()).dropna().unique())),
        "groups": groups,
        "overlap": share[0],
        "assumed": share[1],
        "resplit": again.name,
        "resplit_low": again.interval.low,
        "resplit_high": again.interval.high,
        "doubled": doubled.name,
        "t_p_value": p_value,
    }


def _tested(
    claim: Claim, table: pd.DataFrame, groups: str = ""
) -> tuple[Verdict, Values, Sequence[Values]]:
    """Judge a claim by the rows of a table.

    Returns:
        The verdict, the values that it rests on, and what chance gives in their place.
    """
    try:
        values = claim.values(table)
    except NothingToLoseError as error:
        return Verdict("undecided (floor)", str(error)), NO_VALUES, ()
    found, chance = judge(values, claim.criterion), []
    if found.name in DECIDED:
        # Only a verdict can be overturned by chance, which takes long to compute.
        try:
            chance = by_chance(table, **claim.statistic or {})
            found = judge(values, claim.criterion, chance)
        except MissingRowsError:
            reason = "what chance gives is unknown without group sizes"
            found = _left_open(found, "undecided", reason)
    if claim.floor is None:
        return found, values, chance
    low = claim.at_floor(table, groups=groups)
    if low is None:
        reason = "the table does not say what a constant answer achieves in each group"
        found = _left_open(found, "undecided (floor)", reason)
    elif low:
        reason = f"nothing to lose: {', '.join(map(str, low))}"
        found = _left_open(found, "undecided (floor)", reason)
    return found, values, chance


def _left_open(found: Verdict, name: str, reason: str) -> Verdict:
    """Replace the verdict of a table that cannot decide, however many seeds it has."""
    return found._replace(name=name, reason=reason, needed=None, p_value=math.nan)


def _is_about(claim: Claim, records: pd.DataFrame, given: Given) -> bool:
    """Return True if the table is of the data set, and the attribute, that the claim names."""
    name, _, attribute = (claim.data or "").partition("/")
    if not name or name not in records.get("data", pd.Series()).unique():
        return not name
    # A parameter in which the runs of a table differ is a list.
    return not attribute or attribute in {*pd.Series(given, dtype=object).explode()}


def _fingerprint(claim: Claim, values: pd.Series | pd.DataFrame) -> str:
    """Return a text that is equal for claims resting on the same test: criterion and values.

    Constant values, such as a share of violations that is 0, are equal for different questions:
    there the statistic tells the tests apart.
    """
    numbers = pd.DataFrame(values).to_numpy()
    same = numbers.tolist()
    if len({*numbers.flat}) <= 1:
        same = sorted((claim.statistic or {}).items(), key=str)
    return f"{claim.criterion} {same}"
