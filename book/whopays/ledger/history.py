"""Changes of registered claims, read from the history of the claims file."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import yaml

from whopays.claims import REGISTERED, parse
from whopays.ledger.text import escape, folded
from whopays.runs import git


class History(NamedTuple):
    """Changes of registered claims, and how much is known of them.

    ``known`` is ``"complete"``, ``"shallow"`` (a clone without all commits) or ``"none"`` (no git
    checkout).
    """

    changes: pd.DataFrame
    known: str


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


def _versions(path: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yield commit, date, subject and text of each version of the file, the oldest first."""
    log = git(
        path.parent, "log", "--first-parent", "--reverse", "--format=%h %cs %s", "--", path.name
    )
    if log is None:
        return
    for line in log.splitlines():
        commit, date, *subject = line.split(" ", 2)
        if (text := git(path.parent, "show", f"{commit}:./{path.name}")) is not None:
            yield commit, date, "".join(subject), text
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
    if history.known == "none":
        return ["Not known: this page was built outside a git checkout."]
    lines = []
    if history.known == "shallow":
        lines += ["Not fully known: this page was built from a shallow clone.", ""]
    if history.changes.empty:
        return [
            *lines,
            "No statistic, direction, threshold or margin was changed after it was first written.",
        ]
    commits = [
        rows for _, rows in history.changes.groupby(["commit", "date", "subject"], sort=False)
    ][::-1]
    count = f"{history.changes['id'].nunique()} claims in {len(commits)} versions of the file"
    lines += [
        "Statistic, direction, threshold or margin, after they were first written; the commit has "
        "the reason.",
        "",
    ]
    return lines + folded(
        f"Changes of {count}", [line for commit in commits for line in _commit(commit, known)]
    )


def _commit(rows: pd.DataFrame, known: set[str]) -> list[str]:
    commit, date, subject = rows[["commit", "date", "subject"]].iloc[0]
    head = escape(" ".join(filter(None, [commit, date])) + (f": {subject}" if subject else ""))
    lines = [f"**{head}**", ""]
    for claim, own in rows.groupby("id", sort=False):
        link = f"[{claim}](#{claim})" if claim in known else claim
        fields = [
            f"{row.field}: {_value(row.before)} - now: {_value(row.after)}"
            for row in own.itertuples()
        ]
        removed = (own["after"] == "removed").all()
        lines.append(f"- {link}: " + ("removed" if removed else "; ".join(fields)))
    return [*lines, ""]


def _value(value: Any) -> str:
    return escape(_plain(value))


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_plain(item)}" for name, item in value.items())
    return "none" if value is None else str(value)
