"""Count the lines of code of the library and of the notebooks, and find function bodies that stand
on two pages.

A line of code is neither blank nor a comment nor part of a docstring, nor text that a page shows
(the argument of ``prose.say`` or ``prose.in_short``). ``python tests/code_size.py`` prints the
numbers."""

from __future__ import annotations

import ast
import functools
import io
import json
import re
import tokenize
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Lines at most. With 18,000 in all the book pruned and linearized; quantization, factorization,
# distillation, pipelines and what a network costs to run came with the part "Which way of making it
# smaller?".
LIBRARY, NOTEBOOKS = 12428, 6808
PAGE = {"theory": 300}  # Lines of a page at most, by part; 200 for all others.
FREE = {"linearization/private-inference"}  # It builds a protocol by hand.
LONG = {  # Pages over the cap; they may become shorter, not longer.
    "explanation/group-curvature": 221,  # Four settings, each with recorded columns of its own.
    "theory/excessive-loss": 306,  # With the picture that opens them.
    "theory/fairness-of-a-compressed-model": 307,
}
ALIKE = 3  # Lines from which on a body may not stand twice.

_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
_SHOWN = ("prose.say", "prose.in_short")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(source: str) -> int:
    """The lines of code of a Python source."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _LAYOUT:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            lines -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in _SHOWN:
            lines -= set(range(node.lineno, node.end_lineno + 1))
    return len(lines)


def cells(notebook: Path) -> list[str]:
    """The code cells of a notebook as Python, but the install cell, which is the same in all and on
    no page.

    A line for IPython counts as one of code.
    """
    content = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in content if cell["cell_type"] == "code"][1:]
    return [re.sub(r"^(\s*)%.*$", r"\1pass", source, flags=re.MULTILINE) for source in sources]


def library() -> dict[str, int]:
    """Lines of code by file of the library."""
    paths = sorted(ROOT.glob("fairlib/**/*.py"))
    return {
        path.relative_to(ROOT).as_posix(): code_lines(path.read_text(encoding="utf-8"))
        for path in paths
    }


@functools.cache
def notebooks() -> dict[str, int]:
    """Lines of code by page, ``part/name``."""
    return {page: sum(map(code_lines, cells(path))) for page, path in pages().items()}


def pages() -> dict[str, Path]:
    """The notebooks by page, ``part/name``."""
    return {
        f"{path.parent.name}/{path.stem}": path for path in sorted(ROOT.glob("notebooks/*/*.ipynb"))
    }


def cap(page: str) -> int | None:
    """The most lines of code that a page may have; None for one that keeps what it needs."""
    return None if page in FREE else LONG.get(page) or PAGE.get(page.partition("/")[0], 200)


def stand_twice() -> list[list[str]]:
    """The functions whose bodies are equal on two pages or more, ``page: name``."""
    found = defaultdict(list)
    for page, path in pages().items():
        for source in cells(path):
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.FunctionDef):
                    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
                    tree = "\n".join(map(ast.dump, body))
                    if body and sum(part.end_lineno - part.lineno + 1 for part in body) >= ALIKE:
                        found[tree].append(f"{page}: {node.name}")
    return [
        names for names in found.values() if len({name.partition(":")[0] for name in names}) > 1
    ]


if __name__ == "__main__":
    by_page = notebooks()
    print(f"library    {sum(library().values()):6,} lines of code, at most {LIBRARY:,}")
    print(f"notebooks  {sum(by_page.values()):6,} lines of code, at most {NOTEBOOKS:,}")
    for name, lines in sorted(by_page.items(), key=lambda item: -item[1]):
        most = cap(name)
        print(f"{lines:6} {name}{'' if most is None or lines <= most else f', at most {most}'}")
    for names in stand_twice():
        print(f"one body: {', '.join(names)}")
