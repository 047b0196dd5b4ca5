"""The ledger: the page that shows every claim, its verdicts, and every change after its registration."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import pandas as pd
import yaml

from fairlib.evidence.claims import PAPERS, RATE, REGISTERED, Claim, evaluate, load, parse
from fairlib.evidence.runs import git
from fairlib.evidence.verdict import MIN_SEEDS, VERDICTS

_INTRODUCTION = (
    "This page is computed from the claims file and the recorded tables; nothing on it is typed. Each claim's "
    "statistic gives one value per seed, and a verdict compares the 95 % t interval of their mean with the claim's "
    "threshold: *supported*, the interval lies beyond the threshold; *reversed*, beyond it on the other side; *no "
    f"effect*, within the margin of equivalence; *undecided*, none of these, or fewer than {MIN_SEEDS} seeds. A "
    "claim of equality is *supported* within the margin and *reversed* wholly outside it. P-values are those of "
    "sign-flip tests against the threshold or, where equality is asserted, against the ends of the margin. The "
    "kinds of evidence: *default run*, made by the build of this book; *embedded study*, recorded, on data that the "
    "book carries; *real-data run*, recorded, at the papers' scale only where that is said."
)


class History(NamedTuple):
    """Changes of registered claims, ``id field before after commit date``, and how much of the history is known.

    ``known`` is ``"complete"``, ``"shallow"`` (a clone without all commits) or ``"none"`` (no git checkout).
    """

    changes: pd.DataFrame
    known: str


def changes(path: str | Path) -> History:
    """List every change of statistic, direction, threshold or margin of a claim after it first had a statistic.

    Follows the first parents of the commits in which the claims file changed, then the file as it is now (commit ``"not
    committed"``). Removing a claim is a change, too.
    """
    path = Path(path)
    rows: list[tuple[Any, ...]] = []
    registered: dict[str, dict[str, Any]] = {}
    for commit, date, text in _versions(path):
        now = _registered(text)
        if now is None:
            continue
        for name, before in registered.items():
            after = now.get(name, dict.fromkeys(REGISTERED, "removed"))
            changed = [field for field in REGISTERED if before[field] != after[field]]
            rows += [(name, field, before[field], after[field], commit, date) for field in changed]
            registered[name] = after
        registered |= {name: entry for name, entry in now.items() if entry["statistic"] is not None}
    columns = ["id", "field", "before", "after", "commit", "date"]
    shallow = git(path.parent, "rev-parse", "--is-shallow-repository")
    known = {None: "none", "true\n": "shallow"}.get(shallow, "complete")
    return History(pd.DataFrame(rows, columns=columns, dtype=object), known)


def _versions(path: Path) -> Iterator[tuple[str, str, str]]:
    """Commit, date and text of each version of the file, the oldest first."""
    log = git(path.parent, "log", "--first-parent", "--reverse", "--format=%h %cs", "--", path.name)
    if log is None:
        return
    for line in log.splitlines():
        commit, date = line.split()
        if (text := git(path.parent, "show", f"{commit}:./{path.name}")) is not None:
            yield commit, date, text
    yield "not committed", "", path.read_text(encoding="utf-8")


def _registered(text: str) -> dict[str, dict[str, Any]] | None:
    """The registered fields of each claim in one version of the file; None where the file is not a list of claims."""
    try:
        return {entry["id"]: {field: entry.get(field) for field in REGISTERED} for entry in parse(text)}
    except (yaml.YAMLError, TypeError, KeyError, AttributeError):
        return None


def write(claims_path: str | Path, root: str | Path, out: str | Path) -> None:
    """Write the ledger page from the claims file, the tables under ``root`` and the history of the file."""
    claims = load(claims_path)
    text = page(claims, evaluate(claims, root), changes(claims_path))
    Path(out).write_text(text, encoding="utf-8", newline="\n")


def page(claims: Sequence[Claim], results: pd.DataFrame, history: History) -> str:
    """Write the text of the ledger: counts, a table for each paper, changes of registered claims, doubtful verdicts.

    Args:
        claims: Claims of the claims file (:func:`fairlib.evidence.claims.load`).
        results: Verdicts of these claims (:func:`fairlib.evidence.claims.evaluate`).
        history: Changes of the claims file (:func:`changes`).

    Returns:
        MyST markdown for a page in the folder ``book``; other pages link to a claim by ``[T-fig-1](#T-fig-1)``.
    """
    parts = ["(ledger)=", "# The ledger of claims", "", _INTRODUCTION, "", *_summary(claims, results), ""]
    for paper, title in PAPERS.items():
        if own := [claim for claim in claims if claim.paper == paper]:
            parts += [f"## [{paper}] {title}", "", *_claims_table(own, results), ""]
    parts += ["## Changes of registered claims", "", *_changes_section(history), ""]
    parts += ["## Verdicts that do not survive the false-discovery rate", "", *_discoveries(results), ""]
    return "\n".join(parts)


def _summary(claims: Sequence[Claim], results: pd.DataFrame) -> list[str]:
    papers = {claim.id: claim.paper for claim in claims}
    present = [paper for paper in PAPERS if paper in papers.values()]
    found = results.assign(paper=results["claim"].map(papers))
    counts = found.drop_duplicates(["claim", "verdict"]).groupby(["paper", "verdict"]).size()
    lines = _pipe_row(["Paper", "Claims", *VERDICTS]) + _pipe_row(["---"] * (len(VERDICTS) + 2))
    for paper in present:
        total = sum(own == paper for own in papers.values())
        lines += _pipe_row([f"[{paper}]", total, *(counts.get((paper, name), 0) for name in VERDICTS)])
    return [*lines, "", "A claim with several kinds of evidence counts once in each verdict that it got."]


def _pipe_row(cells: Iterable[Any]) -> list[str]:
    return ["| " + " | ".join(str(cell) for cell in cells) + " |"]


def _list_table(rows: Iterable[Iterable[str]], *options: str) -> list[str]:
    """A table of MyST, whose first row is its header."""
    lines = ["```{list-table}", ":header-rows: 1", *options, ""]
    for first, *others in rows:
        lines += [f"* - {first}", *(f"  - {cell}" for cell in others)]
    return [*lines, "```"]


def _claims_table(claims: Sequence[Claim], results: pd.DataFrame) -> list[str]:
    rows = [["Claim", "Statement", "Verdict"]]
    for claim in claims:
        verdicts = [_evidence_line(row) for row in results[results["claim"] == claim.id].itertuples()]
        if claim.notebook:
            verdicts.append(f"[{escape(PurePosixPath(claim.notebook).stem)}](../{claim.notebook})")
        statement = f"{escape(claim.statement)} *({escape(claim.source)})*"
        rows.append([f"({claim.id})=\n    {claim.id}", statement, "\n\n    ".join(verdicts)])
    return _list_table(rows, ":widths: 13 57 30")


def _evidence_line(row: Any) -> str:
    text = f"{row.evidence}: **{row.verdict}**" if row.evidence else row.verdict
    if row.seeds:
        text += f", {row.estimate:.3f} [{row.low:.3f}, {row.high:.3f}], {row.seeds} seeds, {_p_text(row)}"
    if row.reason:
        text += f" ({escape(row.reason)})"
    if row.verdict == "undecided" and row.seeds > 1:
        seeds = "over 100,000" if pd.isna(row.needed) else f"about {row.needed}"
        text += f"; if the mean stays where it is, it takes {seeds} seeds"
    if not row.survives:
        text += "; does not survive the false-discovery rate"
    return text


def _p_text(row: Any) -> str:
    name = "p of equivalence" if row.equivalence else "p"
    return f"{name} < 0.001" if row.p_value < 0.001 else f"{name} = {row.p_value:.3f}"


def _changes_section(history: History) -> list[str]:
    if history.known == "none":
        return ["Not known: this page was built outside a git checkout."]
    lines = []
    if history.known == "shallow":
        lines += ["Not fully known: this page was built from a shallow clone.", ""]
    if history.changes.empty:
        return [*lines, "No statistic, direction, threshold or margin was changed after it was first written."]
    rows = [["Claim", "Field", "Before", "After", "Commit"]]
    for row in history.changes.itertuples():
        name = row.id if row.after == "removed" else f"[{row.id}](#{row.id})"
        values = [escape(_plain(value)) for value in (row.before, row.after)]
        rows.append([name, row.field, *values, f"{row.commit} {row.date}".rstrip()])
    return [*lines, *_list_table(rows)]


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_plain(item)}" for name, item in value.items())
    return "none" if value is None else str(value)


def _discoveries(results: pd.DataFrame) -> list[str]:
    tested = results.loc[results["seeds"] >= MIN_SEEDS, "test"].nunique()
    lost = results[~results["survives"]]
    head = f"Benjamini and Hochberg at a rate of {RATE:.0%} over {tested} tests of {MIN_SEEDS} seeds or more"
    if lost.empty:
        return [f"{head}: every verdict survives." if tested else f"{head}: none yet."]
    return [f"{head}. These do not survive:", ""] + [
        f"- [{row.claim}](#{row.claim}), {row.evidence}: {row.verdict}, {_p_text(row)}" for row in lost.itertuples()
    ]


def escape(text: str) -> str:
    """Escape a text for a MyST table cell: one line, $mathematics$ untouched, all other markup escaped."""
    parts = re.split(r"(\$[^$]+\$)", " ".join(text.split()))
    parts[::2] = [re.sub(r"([\\`*_<>\[\]{}|#~^$&@])", r"\\\1", part) for part in parts[::2]]
    return re.sub(r"^(\d*)([-+.)](?=\s|$)|\()", r"\1\\\2", "".join(parts))
