from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from claim_samples import ENTRY, claim, spread, untested, write

from fairlib.evidence import claims, ledger
from fairlib.evidence.claims import Claim

FILE = Path(__file__).resolve().parents[2] / "book" / "claims.yml"


@pytest.fixture(autouse=True)
def column_statistic(monkeypatch):
    monkeypatch.setitem(claims.STATISTICS, "column", lambda table, *, column: table.set_index("seed")[column])


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(path: Path, *entries: dict) -> str:
    path.write_text("".join(ENTRY.format(**entry) for entry in entries))
    git(path.parent, "add", path.name)
    git(path.parent, "commit", "-q", "-m", "claims")
    return git(path.parent, "rev-parse", "--short", "HEAD")


def test_every_change_after_registration_is_listed_with_its_commit(tmp_path):
    git(tmp_path, "init", "-q")
    folder = tmp_path / "book"
    folder.mkdir()
    path = folder / "claims.yml"
    empty = {"id": "T-a", "statistic": "null", "direction": "less", "threshold": 0}
    other = {"id": "T-b", "statistic": "{name: column, column: b}", "direction": "less", "threshold": 0}
    first = empty | {"statistic": "{name: column, column: a}", "direction": "greater"}
    commit(path, empty)
    commit(path, first, other)  # registration is no change
    moved = commit(path, first | {"threshold": 0.1}, other)
    path.write_text("nonsense: [")
    git(folder, "commit", "-q", "-a", "-m", "a broken file")
    gone = commit(path, first | {"threshold": 0.1})
    path.write_text(ENTRY.format(**first | {"threshold": 0.1, "direction": "less"}))
    history = ledger.changes(path)
    assert history.known == "complete"
    found = history.changes.drop(columns="date").to_numpy().tolist()
    assert found[0] == ["T-a", "threshold", 0, 0.1, moved]
    assert [row[:2] + row[3:] for row in found[1:-1]] == [
        ["T-b", field, "removed", gone] for field in claims.REGISTERED
    ]
    assert found[-1] == ["T-a", "direction", "greater", "less", "not committed"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", history.changes["date"].iloc[0])


def test_history_knows_what_it_does_not_know(tmp_path):
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    origin.mkdir()
    entry = {"id": "T-a", "statistic": "{name: column, column: a}", "direction": "less", "threshold": 0}
    (origin / "claims.yml").write_text(ENTRY.format(**entry))
    assert ledger.changes(origin / "claims.yml").known == "none"
    git(origin, "init", "-q")
    commit(origin / "claims.yml", entry)
    commit(origin / "claims.yml", entry | {"threshold": 1})
    git(tmp_path, "clone", "-q", "--depth", "1", origin.as_uri(), str(clone))
    shallow = ledger.changes(clone / "claims.yml")
    assert (shallow.known, len(shallow.changes)) == ("shallow", 0)
    results = claims.evaluate([untested()], tmp_path)
    assert "shallow clone" in ledger.page([untested()], results, shallow)


# The ledger


NO_HISTORY = ledger.History(pd.DataFrame(columns=["id", "field", "before", "after", "commit", "date"]), "complete")


def page(entries: list[Claim], root: Path, history: ledger.History = NO_HISTORY) -> str:
    return ledger.page(entries, claims.evaluate(entries, root), history)


def test_markup_in_a_text_is_escaped_and_mathematics_is_not():
    text = "a|b <script> *c* _d_ `e` [f](g) {h}\n  $|x_1| \\le \\|y\\|$ costs 5$"
    assert ledger.escape(text) == (r"a\|b \<script\> \*c\* \_d\_ \`e\` \[f\](g) \{h\} $|x_1| \le \|y\|$ costs 5\$")
    assert [ledger.escape(start) for start in ("- a", "1. a", "(a)= b", "-0.1", "$x$ - y")] == [
        r"\- a", r"1\. a", r"\(a)= b", "-0.1", "$x$ - y",
    ]  # fmt: skip


def test_the_ledger_shows_estimate_interval_seeds_and_link(tmp_path):
    write(tmp_path / "values.csv", value=spread(0.1, 0.05))
    text = page([claim(id="T-fig-1", notebook="notebooks/pruning/matthew-effect.ipynb")], tmp_path)
    assert "* - (T-fig-1)=\n    T-fig-1\n  - a statement *(a source)*" in text
    assert "  - default run: **supported**, 0.100 [0.062, 0.138], 10 seeds, p = 0.002\n" in text
    assert "[matthew-effect](../notebooks/pruning/matthew-effect.ipynb)" in text
    assert "| [T] | 1 | 1 | 0 | 0 | 0 | 0 | 0 |" in text
    assert "over 1 tests of 10 seeds or more: every verdict survives" in text


def test_the_ledger_counts_a_claim_once_in_each_verdict(tmp_path):
    write(tmp_path / "values.csv", value=spread(0.0, 0.1))
    tables = {"default run": "values.csv", "embedded study": "values.csv", "real-data run": "none.csv"}
    text = page([claim(id="D-a", tables=tables), untested(id="D-b"), untested(id="B-c", not_testable="why")], tmp_path)
    assert "| [D] | 2 | 0 | 0 | 0 | 1 | 0 | 1 |" in text
    assert "| [B] | 1 | 0 | 0 | 0 | 0 | 1 | 0 |" in text
    assert "(the interval reaches across a bound); if the mean stays where it is, it takes about" in text
    assert "\n  - not testable here (why)\n" in text
    assert "[T]" not in text


def test_the_ledger_lists_changes_and_verdicts_that_do_not_survive(tmp_path):
    changed = pd.DataFrame([
        ("H-x", "statistic", {"name": "column", "column": "a_b"}, None, "abc1234", "2026-01-01"),
        ("H-gone", "margin", 0.03, "removed", "not committed", ""),
    ], columns=NO_HISTORY.changes.columns, dtype=object)  # fmt: skip
    write(tmp_path / "values.csv", value=spread(0.1, 0.05))
    results = claims.evaluate([claim()], tmp_path).assign(survives=False)
    text = ledger.page([claim()], results, ledger.History(changed, "complete"))
    row = r"name: column, column: a\_b"
    assert f"* - [H-x](#H-x)\n  - statistic\n  - {row}\n  - none\n  - abc1234 2026-01-01\n" in text
    assert "* - H-gone\n  - margin\n  - 0.03\n  - removed\n  - not committed\n" in text
    assert "do not survive:\n\n- [H-x](#H-x), default run: supported, p = 0.002" in text
    assert "seeds, p = 0.002; does not survive the false-discovery rate" in text


def test_the_books_ledger_has_one_target_for_each_claim_and_is_the_same_twice(tmp_path):
    for name in ("a.md", "b.md"):
        ledger.write(FILE, tmp_path, tmp_path / name)
    text = (tmp_path / "a.md").read_text(encoding="utf-8")
    assert text == (tmp_path / "b.md").read_text(encoding="utf-8")
    ids = [entry.id for entry in claims.load(FILE)]
    assert re.findall(r"^\* - \((\S+)\)=$", text, flags=re.MULTILINE) == ids
    assert text.count("```{list-table}") <= 5
    assert "nan" not in text
    assert all(line.count("$") % 2 == 0 for line in text.splitlines())
