"""Copy the notebooks to `_build/lab` for JupyterLab; running them changes no file of the project.

`python book/tools/lab.py` copies what is missing, and copies again what has changed since. A copy
that you changed stays.
"""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]
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


def renew(root: Path, lab: Path) -> list[str]:
    """Copy what is missing or has changed; return the changed copies that are now outdated."""
    kept = []
    for name, source in sources(root).items():
        # A copy that equals the original it was made from is unchanged by the reader, and may be
        # replaced.
        copy, original = lab / name, lab / ".originals" / name
        before = original.read_bytes() if original.is_file() else None
        if not copy.is_file() or copy.read_bytes() == before:
            for path in (copy, original):
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, path)
        elif source.read_bytes() != before:
            kept.append(name)
    return kept


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
