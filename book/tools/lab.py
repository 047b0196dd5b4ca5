"""Copy the notebooks to `_build/lab` for JupyterLab; running them changes no file of the project.

`python book/tools/lab.py` copies what is missing, and copies again what has changed since. A copy
that you changed stays. The copies name the literature by author and year, since JupyterLab knows no
bibliography, and fold the code that is folded in the book.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from pybtex.database import parse_file
from pybtex.richtext import Text

ROOT = Path(__file__).parents[2]
HIDDEN = {"hide-input", "hide-cell", "remove-input", "remove-cell"}
TEXTS = {".md", ".svg", ".png"}


def sources(root: Path) -> dict[str, Path]:
    """Find the notebooks and the pages that they lead to, by path from the root.

    The ledger is among them once it is built.
    """
    pages = [
        path
        for path in root.glob("book/**/*")
        if path.suffix in TEXTS and "_static" not in path.parts
    ]
    found = {
        path.relative_to(root).as_posix(): path
        for path in [*root.glob("notebooks/*/*.ipynb"), *pages]
    }
    ledger = root / "_build" / "source" / "book" / "ledger.md"
    return found | ({"book/ledger.md": ledger} if ledger.is_file() else {})


def names(root: Path) -> dict[str, tuple[str, str]]:
    """Read the authors and the year of each entry of the bibliography."""
    found = {}
    for key, entry in parse_file(root / "book" / "references.bib").entries.items():
        people = entry.persons.get("author") or entry.persons.get("editor") or []
        # The bibliography is written in LaTeX: "{\"o}" has to become a letter.
        last = [
            str(Text.from_latex(" ".join([*person.prelast_names, *person.last_names])))
            for person in people
        ]
        authors = f"{last[0]} *et al.*" if len(last) > 2 else " and ".join(last)
        found[key] = (authors or key, entry.fields.get("year", ""))
    return found


def cited(text: str, known: dict[str, tuple[str, str]]) -> str:
    """Replace citations by names: Tran *et al.* (2022), or in parentheses."""

    def written(found: re.Match[str]) -> str:
        entries = [known[key.strip()] for key in found[2].split(",")]
        if found[1] == "t":
            return ", ".join(f"{authors} ({year})" for authors, year in entries)
        return f"({'; '.join(f'{authors}, {year}' for authors, year in entries)})"

    return re.sub(r"\{cite:([tp])\}`([^`]+)`", written, text)


def folded(text: str) -> str:
    """Fold the cells of a notebook that are folded in the book, by the setting of JupyterLab."""
    notebook = json.loads(text)
    for cell in notebook["cells"]:
        if HIDDEN & set(cell["metadata"].get("tags", [])):
            cell["metadata"]["jupyter"] = {"source_hidden": True}
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def renew(root: Path, lab: Path) -> list[str]:
    """Copy what is missing or has changed; return the changed copies that are now outdated."""
    record = lab / ".copies.json"
    before = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    known, kept, after = names(root), [], {}
    for name, source in sources(root).items():
        content, copy = source.read_bytes(), lab / name
        if source.suffix in (".ipynb", ".md"):
            text = cited(content.decode(), known)
            content = (folded(text) if source.suffix == ".ipynb" else text).encode()
        # The record holds what each copy was made from: a copy that equals it is unchanged by the
        # reader, and may be replaced.
        after[name] = digest(content)
        own = digest(copy.read_bytes()) if copy.is_file() else None
        if own in (None, before.get(name)):
            if own != after[name]:
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(content)
        elif after[name] != before.get(name):
            after[name] = before.get(name, "")  # To be said again the next time.
            kept.append(name)
    record.write_text(json.dumps(after, indent=1), encoding="utf-8")
    return kept


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    for name in renew(ROOT, ROOT / "_build" / "lab"):
        print(
            f"_build/lab/{name}: you changed this copy, and {name} has changed since; remove the "
            "copy for a new one"
        )
    print(
        "The notebooks in JupyterLab are copies, which stay as you leave them: "
        "_build/lab/notebooks",
        flush=True,
    )
