"""Edits of Python source: those that change nothing, and those that change what it computes."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path


def find(library: Path, name: str) -> Path:
    """The file of a module or the folder of a package."""
    (path,) = library.glob(f"{name}*")
    return path


def edit_files(path: Path, edit: Callable[[str], str]) -> int:
    """Edit a file, or every Python file in a folder; the number of those that are another text
    now."""
    files = list(path.rglob("*.py")) if path.is_dir() else [path]
    before = [file.read_text(encoding="utf-8") for file in files]
    after = [edit(text) for text in before]
    for file, text in zip(files, after, strict=True):
        file.write_text(text, encoding="utf-8")
    return sum(map(str.__ne__, before, after))


def other_docstrings(source: str) -> str:
    return re.sub(r'"""(?=\w)', '"""Edited: ', source)


def other_comments(source: str) -> str:
    return re.sub(r"^( *)# .*$", r"\1# Edited.", source, flags=re.MULTILINE) + "# The end.\n"


def other_format(source: str) -> str:
    """The same code without comments, blank lines, quotes and line breaks of its own."""
    return ast.unparse(ast.parse(source)) + "\n"


HARMLESS = (other_docstrings, other_comments, other_format)


def other_number(source: str) -> str:
    tree = ast.parse(source)
    _increase(node for node in ast.walk(tree) if not isinstance(node, ast.arguments))
    return ast.unparse(tree)


def other_default(source: str) -> str:
    tree = ast.parse(source)
    arguments = [node for node in ast.walk(tree) if isinstance(node, ast.arguments)]
    _increase(default for one in arguments for default in (*one.defaults, *one.kw_defaults))
    return ast.unparse(tree)


def other_body(source: str) -> str:
    """The last statement of the first function is gone; a file without one stays as it is."""
    tree = ast.parse(source)
    functions = (
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and len(node.body) > 1
    )
    if (function := next(functions, None)) is None:
        return source
    function.body.pop()
    return ast.unparse(tree)


def _increase(nodes) -> None:
    next(
        node
        for node in nodes
        if isinstance(node, ast.Constant) and type(node.value) in (int, float)
    ).value += 1


HARMFUL = (other_number, other_default, other_body)
