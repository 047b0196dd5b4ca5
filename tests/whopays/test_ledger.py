"""The ledger: a page of all claims, a table, a section for each page, and the history of the claims
file."""

from __future__ import annotations

import json
import math
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml
from claim_samples import ENTRY, claim, spread, untested, write

import fairlib
from whopays import claims, effects, ledger, verdict
from whopays.claims import Claim
from whopays.ledger import text

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "book" / "claims.yml"


@pytest.fixture(autouse=True)
def statistics(monkeypatch):
    def column(table, *, column, where=None):
        return effects.select(table, **where or {}).set_index("seed")[column]

    monkeypatch.setitem(claims.STATISTICS, "column", column)


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def commit(path: Path, *entries: dict, subject: str = "claims") -> str:
    path.write_text("".join(ENTRY.format(**entry) for entry in entries))
    git(path.parent, "add", path.name)
    git(path.parent, "commit", "-q", "-m", subject)
    return git(path.parent, "rev-parse", "--short", "HEAD")


# The history


def test_every_change_after_registration_is_listed_with_its_commit(tmp_path):
    git(tmp_path, "init", "-q")
    folder = tmp_path / "book"
    folder.mkdir()
    path = folder / "claims.yml"
    empty = {"id": "T-a", "statistic": "null", "direction": "less", "threshold": 0}
    other = {
        "id": "T-b",
        "statistic": "{name: column, column: b}",
        "direction": "less",
        "threshold": 0,
    }
    first = empty | {"statistic": "{name: column, column: a}", "direction": "greater"}
    commit(path, empty)
    commit(path, first, other)  # registration is no change
    moved = commit(
        path,
        first | {"threshold": 0.1},
        other,
        subject="A threshold  that a pilot run showed to be low",
    )
    path.write_text("nonsense: [")
    git(folder, "commit", "-q", "-a", "-m", "a broken file")
    gone = commit(path, first | {"threshold": 0.1})
    path.write_text(ENTRY.format(**first | {"threshold": 0.1, "direction": "less"}))
    history = ledger.claim_changes(path)
    assert history.known == "complete"
    assert history.changes["subject"].tolist()[:2] == [
        "A threshold  that a pilot run showed to be low",
        "claims",
    ]
    found = history.changes.drop(columns=["date", "subject"]).to_numpy().tolist()
    assert found[0] == ["T-a", "threshold", 0, 0.1, moved]
    assert [row[:2] + row[3:] for row in found[1:-1]] == [
        ["T-b", field, "removed", gone] for field in claims.REGISTERED
    ]
    assert found[-1] == ["T-a", "direction", "greater", "less", "not committed"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", history.changes["date"].iloc[0])


def test_history_knows_what_it_does_not_know(tmp_path):
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    origin.mkdir()
    entry = {
        "id": "T-a",
        "statistic": "{name: column, column: a}",
        "direction": "less",
        "threshold": 0,
    }
    (origin / "claims.yml").write_text(ENTRY.format(**entry))
    none = ledger.claim_changes(origin / "claims.yml")
    assert none.known == "none"
    git(origin, "init", "-q")
    commit(origin / "claims.yml", entry)
    commit(origin / "claims.yml", entry | {"threshold": 1})
    git(tmp_path, "clone", "-q", "--depth", "1", origin.as_uri(), str(clone))
    shallow = ledger.claim_changes(clone / "claims.yml")
    assert (shallow.known, len(shallow.changes)) == ("shallow", 0)
    assert "shallow clone" in page([untested()], tmp_path, shallow)
    assert "outside a git checkout" in page([untested()], Path(), none)


def test_a_claim_that_came_after_its_table_is_marked(tmp_path):
    """A table is recorded between T-a and T-b; T-c had a statistic before, lost it, and got
    another one. A branch whose table does not know of T-b does not come after it."""
    git(tmp_path, "init", "-q", "-b", "main")
    folder = tmp_path / "book"
    folder.mkdir()
    path, asked = folder / "claims.yml", "{name: column, column: value}"
    none = dict.fromkeys(("direction", "threshold"), "null")
    first, second, third = (
        {"id": name, "statistic": asked, "direction": "greater", "threshold": 0}
        for name in ("T-a", "T-b", "T-c")
    )
    registered = commit(path, first, third)
    write(tmp_path / "values.csv", value=spread(0.1, 0.05))
    git(tmp_path, "switch", "-q", "-c", "branch")
    commit(path, first, third | none | {"statistic": "null"})
    git(tmp_path, "add", "values.csv")
    git(tmp_path, "commit", "-q", "-m", "recorded")
    recorded = git(tmp_path, "rev-parse", "--short", "HEAD")
    git(tmp_path, "switch", "-q", "main")
    git(tmp_path, "merge", "-q", "--no-ff", "branch")
    again = commit(path, first, second, third)
    asked_of = [claim(id=name) for name in ("T-a", "T-b", "T-c")]
    written = ledger.first_written(path, asked_of, tmp_path)
    assert {name: found.late for (name, _), found in written.items()} == {
        "T-a": False, "T-b": True, "T-c": True,
    }  # fmt: skip
    commits = {name: found.registered.split()[0] for (name, _), found in written.items()}
    assert commits == {"T-a": registered, "T-b": again, "T-c": again}
    assert {found.recorded.split()[0] for found in written.values()} == {recorded}
    text = page(asked_of, tmp_path, NO_HISTORY._replace(written=written))
    assert 'data-written="registered before its table"' in block(text, "T-a")
    assert 'data-written="registered after its table"' in block(text, "T-b")
    assert f"registered before its table ({registered} 2" in block(text, "T-a")
    assert "2 claims were first written when a table of theirs was there already: 2 of 3" in text
    assert "\n- [T-b](#T-b), values.csv: registered after its table" in text
    ledger.write(path, tmp_path, csv=tmp_path / "ledger.csv")
    table = pd.read_csv(tmp_path / "ledger.csv").set_index("claim")
    assert table["late"].tolist() == [False, True, True]
    assert table.loc["T-a", "registered"].startswith(registered)
    outside = ledger.first_written(path, asked_of, tmp_path.parent)
    assert outside == {} and "outside a complete git checkout" in page(asked_of, tmp_path)


@pytest.mark.slow
def test_claims_are_registered_before_the_tables_that_decide_them():
    """Since the rule is tested. Older claims, and new ones on older tables, are listed by the
    ledger."""
    written = ledger.first_written(FILE, claims.read_claims(FILE), ROOT)
    if not written:
        pytest.skip("needs the whole history")
    rule = "7e25083"
    known = {entry["id"] for entry in claims.parse(git(ROOT, "show", f"{rule}:book/claims.yml"))}
    tables = set(git(ROOT, "ls-tree", "-r", "--name-only", rule, "results").splitlines())
    assert {name for name, _ in written} & known and {name for _, name in written} & tables
    late = [pair for pair, found in written.items() if found.late]
    assert [(name, table) for name, table in late if {name} - known and {table} - tables] == []


# The page


NO_HISTORY = ledger.History(
    pd.DataFrame(columns=["id", "field", "before", "after", "commit", "date", "subject"]),
    "complete",
)


def page(entries: list[Claim], root: Path, history: ledger.History = NO_HISTORY) -> str:
    return ledger.page(entries, claims.evaluate_claims(entries, root), history)


def block(text: str, name: str) -> str:
    """The row of a claim."""
    return text[text.index(f'<div class="claim" id="{name}"') :].partition("</div>")[0]


def counts(text: str, name: str) -> list[str]:
    """Cells of a row of the table of counts."""
    return re.search(rf"^\| {re.escape(name)} \| (.*) \|$", text, re.MULTILINE)[1].split(" | ")


def test_markup_in_a_text_is_escaped_and_mathematics_is_not():
    text = "a|b <script> *c* _d_ `e` [f](g) {h}\n  $|x_1| \\le \\|y\\|$ costs 5$"
    assert ledger.escape(text) == (
        r"a\|b \<script\> \*c\* \_d\_ \`e\` \[f\](g) \{h\} $|x_1| \le \|y\|$ costs 5\$"
    )
    assert [ledger.escape(start) for start in ("- a", "1. a", "(a)= b", "-0.1", "$x$ - y")] == [
        r"\- a", r"1\. a", r"\(a)= b", "-0.1", "$x$ - y",
    ]  # fmt: skip


def test_a_row_shows_estimate_interval_seeds_and_links(tmp_path):
    write(tmp_path / "values.csv", value=spread(0.1, 0.05), data="digits")
    text = page([claim(id="T-fig-1", notebook="notebooks/pruning/matthew-effect.ipynb")], tmp_path)
    row = block(text, "T-fig-1")
    assert 'data-paper="T" data-page="matthew-effect"' in row
    assert (
        '\n(T-fig-1)=\n<a class="claim-id" href="#T-fig-1">T-fig-1</a> &middot; *a source* &middot; trend'
        in row
    )
    assert "[](../notebooks/pruning/matthew-effect.ipynb)\n\na statement\n" in row
    assert (
        '<li data-verdict="supported" data-evidence="default run" data-data="digits" '
        'data-groups="no groups" data-written=""><b class="supported">' in row
    )
    assert (
        "supported</b> 0.100 [0.062, 0.138], 10 seeds, p = 0.002; default run, digits; corrected "
        "for one data set 0.100 [0.029, 0.171], with 0.25 test samples for each training sample assumed"
        "</li>" in row
    )
    assert counts(text, "supported") == ["1 (1)", "1 (1)"]
    assert "| [](../notebooks/pruning/matthew-effect.ipynb) | 1 (1) | 1 supported |" in text
    assert "1 tests of experiments, of 10 seeds or more. Every verdict survives" in text
    stands = ["by their intervals", "with the corrected interval", "after Holm's correction"]
    for rule in (*stands, "with twice the margin", "under all three"):
        assert counts(text, rule) == ["0", "0", "1", "1"]


def test_definitions_are_counted_apart(tmp_path):
    write(tmp_path / "values.csv", value=[0.0] * 10)
    exact = claim(id="T-eq-1", direction="equal", kind="definition")
    text = page([exact, replace(exact, id="T-eq-2", kind="identity")], tmp_path)
    assert counts(text, "supported") == counts(text, "decided") == ["1 (1)", "1 (1)"]
    assert counts(text, "definition") == ["1 (1)", "1 (1)"]
    assert "| no page | 2 (1) | 1 supported, 1 definition |" in text
    assert "supported, equality: 1" in text  # In the figure, too.


def test_the_ledger_counts_a_claim_once_in_each_verdict(tmp_path):
    write(tmp_path / "values.csv", value=spread(0.0, 0.1))
    tables = {
        "default run": "values.csv",
        "embedded study": "values.csv",
        "real-data run": "none.csv",
    }
    text = page(
        [
            claim(id="D-a", tables=tables),
            untested(id="D-b"),
            untested(id="B-c", not_testable="why"),
        ],
        tmp_path,
    )
    assert "| [B] | [D] | all |" in text and "[T]" not in text
    assert counts(text, "claims") == ["1", "2 (1)", "3 (1)"]
    assert counts(text, "undecided") == ["0", "2 (1)", "2 (1)"]
    assert counts(text, "not testable here") == ["1", "0", "1"]
    assert counts(text, "decided") == ["0", "0", "0"]
    assert (
        "the interval reaches across a bound; if the mean stays where it is, it takes about" in text
    )
    assert '"><b class="not-testable-here">not testable here</b></li>\n</ul>\n\nwhy\n' in block(
        text, "B-c"
    )


def test_tables_of_other_data_stand_elsewhere_and_do_not_count(tmp_path):
    write(tmp_path / "digits.csv", value=spread(0.1, 0.05), data="digits")
    write(tmp_path / "faces.csv", value=spread(-0.1, 0.05), data="utkface")
    tables = {"default run": "digits.csv", "real-data run": "faces.csv"}
    entries = [
        claim(id="T-a", data="utkface", tables=tables),
        claim(id="T-b", data="celeba", tables=tables),
    ]
    text = page(entries, tmp_path)
    first, second, third = re.findall(r"<li (.*?)</li>", block(text, "T-b"))
    assert first.startswith('data-verdict="undecided" data-evidence="" data-data=""')
    assert first.endswith("no table of the data that it names")
    assert all('data-verdict=""' in item and "<i>elsewhere</i>" in item for item in (second, third))
    decides, other = re.findall(r"<li (.*?)</li>", block(text, "T-a"))
    assert 'data-verdict="reversed" data-evidence="real-data run" data-data="utkface"' in decides
    assert "<i>elsewhere</i>" in other and "default run, digits" in other
    assert (counts(text, "supported"), counts(text, "reversed")) == (["0", "0"], ["1 (1)", "1 (1)"])
    assert counts(text, "decided by a real-data run") == ["1 (1)", "1 (1)"]
    assert "does not carry (utkface) stand 1 of 2 claims, by 1 distinct tests" in text


def test_a_repaired_statement_has_its_verdicts_beside_those_of_the_printed_one(tmp_path):
    write(tmp_path / "values.csv", value=spread(0.1, 0.05), other=spread(-0.1, 0.05))
    repair = {
        "statement": "a repaired statement",
        "statistic": {"name": "column", "column": "other"},
    }
    text = page([claim(id="T-a", direction="less", repaired=repair)], tmp_path)
    row = block(text, "T-a")
    printed, repaired = row.partition("*As repaired:* a repaired statement")[::2]
    assert "*As printed:* a statement" in printed and 'data-verdict="reversed"' in printed
    assert 'data-verdict="supported"' in repaired
    assert counts(text, "claims") == ["1 (1)", "1 (1)"]
    assert counts(text, "supported") == ["0", "0"] and counts(text, "as repaired, supported") == [
        "1 (1)",
        "1 (1)",
    ]


def test_the_worst_cell_stands_beside_the_mean(tmp_path):
    rows = [pd.DataFrame({"seed": range(10), "level": level, "value": spread(value, 0.02)})
            for level, value in ((0.5, 0.2), (0.9, -0.1))]  # fmt: skip
    pd.concat(rows).to_csv(tmp_path / "values.csv", index=False)
    statistic = {"name": "column", "column": "value", "each": {"level": [0.5, 0.9]}}
    text = page([claim(id="T-a", statistic=statistic)], tmp_path)
    assert "reversed</b> 0.050 [" in block(text, "T-a")
    assert "the worst is level 0.9: -0.100; in 1 of 2 cells" in block(text, "T-a")
    assert text.count("<circle") == 1


def test_a_group_at_the_floor_is_named_and_its_tables_are_counted(tmp_path):
    rows = pd.DataFrame(
        {
            "seed": range(10),
            "stage": "control",
            "split": "test",
            "group": "few",
            "size": 60,
            "value": spread(0.1, 0.05),
        }
    )
    for name, accuracy in (("low", 0.04), ("middle", 0.08), ("high", 0.3)):
        rows.assign(accuracy=accuracy).to_csv(tmp_path / f"{name}.csv", index=False)
    asked = [
        claim(id=f"T-{name}", floor={}, tables={"default run": f"{name}.csv"})
        for name in ("low", "middle", "high")
    ]
    other = claim(id="T-other", floor={"classes": False}, tables={"default run": "high.csv"})
    text = page([*asked, other], tmp_path)
    assert "does not say what a constant answer achieves" in block(text, "T-other")
    assert '"><b class="undecided-floor">undecided (floor)</b> 0.100' in block(text, "T-low")
    assert "nothing to lose: few" in block(text, "T-middle") and "nothing to lose" not in block(
        text, "T-high"
    )
    assert "3 of their 3 tables do not meet it" in text
    reason = "nothing to lose: few"
    assert f"\n- `low.csv`, 1 claim: {reason}\n- `middle.csv`, 1 claim: {reason}\n" in text


def test_the_figure_has_each_interval_in_units_of_its_margin(tmp_path):
    write(tmp_path / "values.csv", value=spread(0.06, 0.03))
    write(tmp_path / "far.csv", value=spread(-9.0, 0.03))
    entries = [
        claim(id="T-a"),
        claim(id="T-b", direction="less"),
        claim(id="T-c", tables={"default run": "far.csv"}),
    ]
    text = page([*entries, untested(id="D-a")], tmp_path)
    figure = text[text.index('<div class="ledger-figure">') :].partition("</div>")[0]
    assert figure.count("<svg") == 1 and "\n\n" not in figure
    found = {
        name: path for name, path in re.findall(r'<a href="#([^"]+)".*?<path d="([^"]*)"', figure)
    }
    # 340 wide with 12 to each side for 8 margins: 19.75 a margin. The interval of T-a is 2 +- .754
    # margins.
    start, end = map(float, re.fullmatch(r"M([\d.]+) [\d.]+H([\d.]+)", found["T-a"]).groups())
    assert (start, end) == pytest.approx(
        (170 + 19.75 * (2 - 0.754), 170 + 19.75 * (2 + 0.754)), abs=0.1
    )
    start, end = map(float, re.fullmatch(r"M([\d.]+) [\d.]+H([\d.]+)", found["T-b"]).groups())
    assert (start, end) == pytest.approx(
        (170 - 19.75 * (2 + 0.754), 170 - 19.75 * (2 - 0.754)), abs=0.1
    )
    assert re.fullmatch(r"M13 [\d.]+l-4 2l4 2", found["T-c"])
    assert "1 supported, 0 supported, negligible, 0 no effect, 0 undecided" in figure
    assert "0 reversed, negligible, 2 reversed" in figure


def test_one_test_under_several_names_is_counted_once_and_listed(tmp_path):
    write(tmp_path / "values.csv", value=spread(0.1, 0.05))
    text = page(
        [claim(id="T-a"), claim(id="T-b", statement="another statement"), claim(id="D-c")], tmp_path
    )
    assert counts(text, "supported") == ["2 (1)", "1 (1)", "3 (1)"]
    assert (
        "1 tests stand behind several rows\n- [T-a](#T-a), [T-b](#T-b), [D-c](#D-c): supported 0.100"
        in text
    )
    assert "No two rows with different statements" in page(
        [claim(id="T-a"), claim(id="D-c")], tmp_path
    )


def test_the_ledger_lists_changes_by_commit_and_verdicts_that_do_not_survive(tmp_path):
    changed = pd.DataFrame([
        ("H-x", "statistic", {"name": "column", "column": "a_b"}, None, "abc1234", "2026-01-01", "Why *it* changed"),
        ("H-x", "threshold", 0, 0.1, "abc1234", "2026-01-01", "Why *it* changed"),
        ("H-gone", "margin", 0.03, "removed", "not committed", "", ""),
    ], columns=NO_HISTORY.changes.columns, dtype=object)  # fmt: skip
    write(tmp_path / "values.csv", value=spread(0.1, 0.05))
    results = claims.evaluate_claims([claim()], tmp_path).assign(survives=False)
    text = ledger.page([claim()], results, ledger.History(changed, "complete"))
    row = (
        r"- [H-x](#H-x): statistic: name: column, column: a\_b - now: none; threshold: 0 - now: 0.1"
    )
    assert (
        f"**not committed**\n\n- H-gone: removed\n\n**abc1234 2026-01-01: Why \\*it\\* changed**\n\n{row}\n"
        in text
    )
    assert "{dropdown} Changes of 2 claims in 2 versions of the file" in text
    assert "do not survive:\n\n- [H-x](#H-x), default run: supported, p = 0.002" in text
    assert "default run; does not survive the false-discovery rate" in block(text, "H-x")


def test_theory_and_experiments_are_two_families(tmp_path):
    write(tmp_path / "values.csv", value=spread(0.1, 0.05))
    text = page(
        [claim(id="T-a", notebook="notebooks/theory/a.ipynb", margin=0.02), claim(id="T-b")],
        tmp_path,
    )
    assert "for each family apart: 1 tests of experiments and 1 tests of theory" in text


def test_a_ledger_is_the_same_twice(tmp_path):
    entries = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    (tmp_path / "claims.yml").write_text(yaml.safe_dump(entries[::20]))
    for name in ("a.md", "b.md"):
        ledger.write(tmp_path / "claims.yml", tmp_path, tmp_path / name)
    assert (tmp_path / "a.md").read_bytes() == (tmp_path / "b.md").read_bytes()


@pytest.mark.slow
def test_the_books_ledger_has_one_target_for_each_claim(tmp_path):
    ledger.write(FILE, tmp_path, tmp_path / "a.md")
    text = (tmp_path / "a.md").read_text(encoding="utf-8")
    ids = [entry.id for entry in claims.read_claims(FILE)]
    assert sorted(
        re.findall(r'^<div class="claim" id="(\S+)"', text, flags=re.MULTILINE)
    ) == sorted(ids)
    assert sorted(re.findall(r"^\((\S+)\)=$", text, flags=re.MULTILINE)) == sorted([*ids, "ledger"])
    assert "nan" not in re.findall(r"\w+", text)
    prose = re.sub(r"^- \[.*: statistic.*$", "", text, flags=re.MULTILINE)
    assert all(line.count("$") % 2 == 0 for line in prose.splitlines())


# As a table


def test_the_table_has_a_row_for_each_claim_reading_and_table(tmp_path):
    write(tmp_path / "values.csv", value=spread(0.1, 0.05))
    (tmp_path / "claims.yml").write_text(
        ENTRY.format(
            id="T-a", statistic="{name: column, column: value}", direction="greater", threshold=0
        )
        + ENTRY.format(
            id="T-b", statistic="{name: column, column: value}", direction="less", threshold=0
        ).replace("values.csv", "none.csv")
    )
    ledger.write(tmp_path / "claims.yml", tmp_path, csv=tmp_path / "l.csv")
    table = pd.read_csv(tmp_path / "l.csv")
    assert " ".join(table) == (
        "claim paper kind reading evidence table decides verdict estimate low high in_points seeds needed"
        " worst_cell worst_estimate data groups registered recorded late overlap resplit_low"
        " resplit_high resplit doubled holm"
    )
    assert table["verdict"].tolist() == ["supported", "undecided"] and table[
        "decides"
    ].tolist() == [True, False]
    assert table["estimate"].round(3).tolist()[0] == 0.1 and pd.isna(table["estimate"][1])
    first = table.iloc[0]
    assert first["seeds"] == 10 and first[["worst_cell", "worst_estimate"]].isna().all()
    assert pd.isna(first["needed"])  # It is decided.
    write(tmp_path / "values.csv", value=[0.1])
    ledger.write(tmp_path / "claims.yml", tmp_path, csv=tmp_path / "l.csv")
    single = pd.read_csv(tmp_path / "l.csv").iloc[0]  # The interval of one seed has no ends.
    assert single["estimate"] == pytest.approx(0.1) and single[["low", "high"]].isna().all()
    write(tmp_path / "values.csv", value=spread(0.05, 0.1))
    ledger.write(tmp_path / "claims.yml", tmp_path, csv=tmp_path / "l.csv")
    assert pd.read_csv(tmp_path / "l.csv")["needed"][0] > 10


# At the end of a page


def test_each_copy_of_a_notebook_gets_its_own_rows_once(tmp_path):
    write(tmp_path / "values.csv", value=spread(0.1, 0.05))
    entry = ENTRY.format(
        id="T-a", statistic="{name: column, column: value}", direction="greater", threshold=0
    )
    entry = entry.replace("notebook: null", "notebook: notebooks/part/page.ipynb")
    (tmp_path / "claims.yml").write_text(
        entry + entry.replace("T-a", "T-b").replace("page.ipynb", "none.ipynb")
    )
    path = tmp_path / "copy" / "notebooks" / "part" / "page.ipynb"
    path.parent.mkdir(parents=True)
    cells = [{"cell_type": "markdown", "id": name, "metadata": {}, "source": [source]}
             for name, source in (("a", "# A page"), ("b", "## Where this comes from\n"))]  # fmt: skip
    path.write_text(
        json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    )
    for _ in range(2):
        ledger.write(tmp_path / "claims.yml", tmp_path, notebooks=tmp_path / "copy")
    first, own, last = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert (first, last) == (cells[0], cells[1])
    assert own["source"].startswith("## The claims of this page\n")
    assert own["source"].endswith(
        "- a statement **Supported**: 0.100 [0.062, 0.138] (default run)."
        " <small>[T-a](#T-a)</small>"
    )
    assert [file.name for file in path.parent.iterdir()] == ["page.ipynb"]


# What the page on how to read it says


def test_the_numbers_on_how_to_read_it_are_those_of_the_program():
    text = " ".join((ROOT / "book" / "reading-the-ledger.md").read_text(encoding="utf-8").split())
    assert f"this is less than {effects.FLOOR}, also" in text and f"Why {effects.FLOOR}?" in text
    assert (
        f"fewer than {verdict.MIN_SEEDS} seeds" in text
        and "if at most 5 % of those" in text
        and claims.RATE == 0.05
    )
    margins = pd.Series(
        [entry.margin for entry in claims.read_claims(FILE) if entry.family == "experiments"]
    ).dropna()
    assert f"within {margins.mode()[0]} of zero" in text
    error = (0.1 * 0.9 / 60) ** 0.5
    assert f"{error:.3f}" in text and f"about {0.1 / error:.1f} times the standard error" in text
    assert all(f"`{name}`" in text for name in ledger.LEDGER_COLUMNS)
    assert all(f"| {name} |" in text for name in verdict.VERDICTS)


def test_a_run_at_scale_says_its_networks(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "project", lambda: tmp_path)
    text.networks.cache_clear()
    given = {"model": ["mlp", "resnet18:stem=imagenet"], "image_size": 64}
    (tmp_path / "table-all.json").write_text(json.dumps({"parameters": given}))
    mlp = sum(
        p.numel()
        for p in fairlib.build("mlp", in_channels=3, image_size=64, num_classes=5).parameters()
    )
    assert text.networks("table-all.csv") == (
        f"multilayer perceptron of {float(f'{mlp:.2g}'):,.0f} weights and ResNet-18 of 11,000,000 "
        "weights at 64 pixels"
    )
    assert text.networks("missing.csv") == ""
    row = SimpleNamespace(
        evidence="run at scale",
        data="utkface/race",
        table="table-all.csv",
        seeds=10,
        p_value=0.5,
        estimate=0.1,
        low=0.0,
        high=0.2,
        worst_cell="",
        reason="",
        verdict="undecided",
        needed=math.nan,
        survives=True,
        groups="group is the answer",
        overlap=0.0,
        earlier="",
        equivalence=False,
        in_points=True,
    )
    for row.evidence in ("run at scale", "paper-scale run"):
        assert "11,000,000 weights at 64 pixels" in text.details(row)
    row.evidence = "real-data run"
    assert "weights" not in text.details(row)
    text.networks.cache_clear()
