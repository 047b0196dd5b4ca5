"""Write the papers figure by figure: ``python book/tools/papers.py FOLDER LEDGER``.

LEDGER is the table of ``whopays ledger --csv``. Written into FOLDER is a file for each paper, such
as ``paper-T.md``: of each figure and table the setting as printed, the claims with what each
recorded table says, our pictures, and the grid that would run it as printed; then statements,
theorems and definitions.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from pathlib import Path

import pandas as pd

from whopays import claims
from whopays.claims import hours_of_grid
from whopays.ledger.text import networks, rendered
from whopays.runs import project

KINDS = {"fig": "Figure", "tab": "Table"}
ELSEWHERE = {
    "verbal": "Statements in the text",
    "": "Theorems, equations and definitions",
}
"""Sections of claims about neither a figure nor a table, by what their ids begin with."""

Item = tuple[str, int]
"""Kind and number of a figure or table, as ``("Figure", 4)``."""


def items(text: str, paper: str) -> set[Item]:
    """Find the figures and tables of a paper in a text, as in "Figures 4a, 5 and 7 to 9 of [T]"."""
    found = set()
    for kind, listed in re.findall(rf"(Figure|Table)s? ([\w, ]+?) of \[{paper}\]", text):
        listed = re.sub(r"(\d+)[a-h]?\b", r"\1", listed)
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", listed):
            found |= {(kind, number) for number in range(int(first), int(last or first) + 1)}
    return found


def grids(paper: str) -> dict[Item, list[tuple[str, str, bool, str]]]:
    """List the grids of a paper's settings by what they cover: path, the words at its head,
    whether its table is recorded, and the hours that it takes, where they are known."""
    found = defaultdict(list)
    for path in sorted(project().glob("params/paper/*/*.yml")):
        head = "".join(re.findall(r"(?m)^#(.*)\n", path.read_text(encoding="utf-8")))
        table = project() / "results" / path.parent.name / f"{path.stem}.csv"
        own = (
            path.relative_to(project()).as_posix(),
            head.strip(),
            table.is_file(),
            hours_of_grid(table),
        )
        for item in items(head, paper):
            found[item].append(own)
    return found


def pictures(paper: str) -> dict[Item, list[str]]:
    """List the figures, with links, whose caption names a figure or table of a paper."""
    found = defaultdict(list)
    for path in sorted(project().glob("notebooks/*/*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        title = "".join(cells[0]["source"]).splitlines()[0].removeprefix("# ")
        for cell in cells:
            figure = cell["metadata"].get("mystnb", {}).get("figure", {})
            for item in items(figure.get("caption", ""), paper):
                found[item].append(f"{{numref}}`{figure['name']}` ({title})")
    return found


def page(paper: str, rows: pd.DataFrame) -> str:
    """Write all of a paper in its order, each claim with what each table says of it.

    Args:
        paper: Letter of the paper.
        rows: Table of ``whopays ledger --csv``; those of other data come last.
    """
    by_item, others = defaultdict(list), defaultdict(list)
    for claim in claims.registered().values():
        if claim.paper != paper:
            continue
        if found := re.match(r"\w-(fig|tab)-(\d+)", claim.id):
            by_item[KINDS[found[1]], int(found[2])].append(claim)
        else:
            others["verbal" * claim.id.startswith(f"{paper}-verbal")].append(claim)
    shown = rows[rows["seeds"] > 0].sort_values("decides", ascending=False, kind="stable")
    return rendered(
        "paper",
        by_item=by_item,
        settings=(settings := grids(paper)),
        items=sorted({*by_item, *settings}),
        pictures=pictures(paper),
        others={title: others[kind] for kind, title in ELSEWHERE.items()},
        rows={claim: list(own.itertuples()) for claim, own in shown.groupby("claim")},
        networks=networks,
    )


def main(folder: str, ledger: str) -> None:
    rows = pd.read_csv(ledger).fillna({"data": ""})
    for paper in claims.PAPERS:
        if paper != "H":
            Path(folder, f"paper-{paper}.md").write_text(page(paper, rows), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
