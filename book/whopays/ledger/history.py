"""Registration of claims and its later changes, read from the history of the project."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import yaml

from whopays.claims import REGISTERED, Claim, parse
from whopays.ledger.text import rendered
from whopays.runs import git


class Written(NamedTuple):
    """First commit of a claim with a statistic, and that of a table, each with its date.

    ``late`` is True where the claim is in no commit before the table's: whoever wrote it could have
    seen the table.
    """

    registered: str
    recorded: str
    late: bool

    def __str__(self) -> str:
        order = "registered after its table" if self.late else "registered before its table"
        return f"{order} ({self.registered or 'not committed'}; table {self.recorded})"


class History(NamedTuple):
    """Changes of registered claims, when they and their tables were written, and how much is known.

    ``known`` is ``"complete"``, ``"shallow"`` (a clone without all commits) or ``"none"`` (no git
    checkout). ``written`` is by id and path of the table (``first_written``).
    """

    changes: pd.DataFrame
    known: str
    written: Mapping[tuple[str, str], Written] = {}


def claim_changes(path: str | Path) -> History:
    """List the changes of statistic, direction, threshold and margin of all claims.

    A claim counts from the version on in which it first has a statistic.

    Follows the first parents of the commits in which the claims file changed, then the file as it
    is now (commit ``"not committed"``). Removing a claim is a change, too. The commit's subject is
    the reason that was given.
    """
    path = Path(path)
    rows: list[tuple[Any, ...]] = []
    registered: dict[str, dict[str, Any]] = {}
    for *commit, text in _versions(path):
        now = _registered(text)
        if now is None:
            continue
        for name, before in registered.items():
            after = now.get(name, dict.fromkeys(REGISTERED, "removed"))
            changed = [field for field in REGISTERED if before[field] != after[field]]
            rows += [(name, field, before[field], after[field], *commit) for field in changed]
            registered[name] = after
        # A statistic may be written after its claim: only then is the claim registered.
        registered |= {name: entry for name, entry in now.items() if entry["statistic"] is not None}
    columns = ["id", "field", "before", "after", "commit", "date", "subject"]
    # A shallow clone lacks the older versions, and the list of changes would look complete.
    shallow = git(path.parent, "rev-parse", "--is-shallow-repository")
    known = {None: "none", "true\n": "shallow"}.get(shallow, "complete")
    return History(pd.DataFrame(rows, columns=columns, dtype=object), known)


def first_written(
    path: str | Path, claims: Sequence[Claim], root: str | Path
) -> dict[tuple[str, str], Written]:
    """Compare when claims were registered with when their tables were first recorded.

    A claim is registered before a table if the claims file of the commit before the table's has it,
    with a statistic. Dates would not do: those of commits on two branches say nothing about which
    of them was known to the other.

    Args:
        path: Path of the claims file.
        claims: Claims of this file.
        root: Folder that the paths of the tables start from.

    Returns:
        By id of the claim and path of the table; a table that is not committed is left out. Empty
        outside a git checkout and in a shallow clone.
    """
    path, root, form = Path(path), Path(root), "--format=commit %H %h %cs"
    if git(root, "rev-parse", "--is-shallow-repository") != "false\n":
        return {}
    added = git(root, "log", "--reverse", "--diff-filter=A", "--name-only", "--relative", form)
    recorded: dict[str, list[str]] = {}
    for line in (added or "").splitlines():
        if line.startswith("commit "):
            commit = line.split()[1:]
        elif line:
            recorded.setdefault(line, commit)
    registered: dict[str, str] = {}
    versions = git(path.parent, "log", "--reverse", "--topo-order", form, "--", path.name) or ""
    for line in filter(None, versions.splitlines()):
        _, full, short, date = line.split()
        for name, tested in _tested_by(path, full).items():
            # A claim that loses its statistic is registered when it gets another.
            registered[name] = registered.get(name) or f"{short} {date}" if tested else ""
    return {
        (claim.id, table): Written(
            registered.get(claim.id, ""),
            " ".join(recorded[table][1:]),
            not _tested_by(path, f"{recorded[table][0]}^").get(claim.id),
        )
        for claim in claims
        for read in claim.readings.values()
        for table in read.tables.values()
        if table in recorded
    }


@functools.cache
def _tested_by(path: Path, commit: str) -> dict[str, bool]:
    """Say of each id in one commit whether it has a statistic; empty without a valid file."""
    entries = _registered(git(path.parent, "show", f"{commit}:./{path.name}") or "")
    return {name: own["statistic"] is not None for name, own in (entries or {}).items()}


def late_section(written: Mapping[tuple[str, str], Written]) -> list[str]:
    """List the claims that were registered after a table of theirs (``first_written``)."""
    late = [(*pair, found) for pair, found in written.items() if found.late]
    claims = {claim for claim, *_ in late}
    return rendered("late", written=written, late=late, claims=claims).splitlines()


def _versions(path: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yield commit, date, subject and text of each version of the file, the oldest first."""
    log = git(
        path.parent, "log", "--first-parent", "--reverse", "--format=%h %cs %s", "--", path.name
    )
    for line in (log or "").splitlines():
        commit, date, *subject = line.split(" ", 2)
        # A version in which the file is gone is no list of claims.
        yield (
            commit,
            date,
            "".join(subject),
            git(path.parent, "show", f"{commit}:./{path.name}") or "",
        )
    # The file as it is now, so that an edit shows before it is committed.
    yield "not committed", "", "", path.read_text(encoding="utf-8")


@functools.cache  # Old versions stay as they are, and there are many.
def _registered(text: str) -> dict[str, dict[str, Any]] | None:
    """Read the registered fields of each claim in one version of the file; None if invalid."""
    try:
        return {
            entry["id"]: {field: entry.get(field) for field in REGISTERED} for entry in parse(text)
        }
    except (yaml.YAMLError, TypeError, KeyError, AttributeError):
        return None


def section(history: History, known: set[str]) -> list[str]:
    """Write the changes for the page, the newest commit first.

    Args:
        history: Changes of the claims file (:func:`claim_changes`).
        known: Ids of the claims that have a row to link to.
    """
    groups = history.changes.groupby(["commit", "date", "subject"], sort=False)
    commits = [
        (head, [(id, list(own.itertuples())) for id, own in rows.groupby("id", sort=False)])
        for head, rows in groups
    ]
    values = history._asdict() | {"ids": known, "commits": commits[::-1], "plain": _plain}
    return rendered("changes", **values).splitlines()


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_plain(item)}" for name, item in value.items())
    return "none" if value is None else str(value)
