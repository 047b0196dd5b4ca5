"""Measure how much code there is, by statements and expressions of the syntax tree: no formatting
can change it.

Docstrings and comments count nothing; of an f-string the expressions inside it count. ``python
tools/size.py`` prints a line for each package and for the notebooks, with comments for every
hundred statements. Standard library only."""

import ast
import io
import json
import re
import tokenize
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]

NEW = {
    "what people bring": {"fairlib": 2_500, "tests": 8_800},
    "steps replayed on a GPU": {"fairlib": 2_000, "tests": 2_920},
    "networks beside a verdict": {"whopays": 160, "tests": 110},
    "a list of grids in minutes of a GPU": {"whopays": 2_450, "tests": 2_490},
    "the arithmetic of a grid": {"whopays": 980, "tests": 540},
    "figures of pages, out of the notebooks": {"whopays": 3_975, "tests": 420},
    "rates of errors, and who pays by question": {"whopays": 345, "notebooks": 52, "tests": 750},
    "the rules mended": {"whopays": 1_740, "tests": 2_400},
    "whose numbers the front page has": {"whopays": 390},
    "labs": {"whopays": 1_960, "notebooks": 1_770, "tests": 600},
    "pages that a reader can look at": {"tests": 280},
    "methods since the four papers": {"fairlib": 1_869, "notebooks": 442, "tests": 5_140},
}
"""Sizes that new behaviour may have, by package; everything else comes in by taking other code
out."""

CAPS = {"fairlib": 61_000, "whopays": 32_000, "notebooks": 54_000, "tests": 145_000}
"""Most statements and expressions, by package, without what is new. ``whopays`` has the book's
tools and extensions beside it."""

for _sizes in NEW.values():
    for _package, _size in _sizes.items():
        CAPS[_package] += _size

OVER = {"fairlib": 71_966, "whopays": 46_248}
"""Sizes of packages that are over their cap: lowered with every removal, raised by no more than an
entry of ``NEW``, and deleted at the cap."""

COMMENTS = 6.0
"""Fewest comments per hundred statements in fairlib."""

_PLACES = {
    "fairlib": ("fairlib/**/*.py",),
    "whopays": ("book/whopays/**/*.py", "book/tools/*.py", "book/extensions/*.py"),
    "tests": ("tests/**/*.py",),
}
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Size(NamedTuple):
    """The statements of some code, its statements and expressions together, and its comments."""

    statements: int
    total: int
    comments: int


def measure(source: str) -> Size:
    """Count the statements, expressions and comments of a Python source."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    nodes = list(ast.walk(tree))
    statements = sum(isinstance(node, ast.stmt) for node in nodes)
    expressions = sum(isinstance(node, ast.expr) for node in nodes)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = sum(token.type == tokenize.COMMENT for token in tokens)
    return Size(statements, statements + expressions, comments)


def cells(notebook: Path) -> list[str]:
    """Return the code cells of a notebook as Python; a line for IPython counts as one statement."""
    content = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in content if cell["cell_type"] == "code"]
    return [re.sub(r"(?m)^(\s*)[%!].*$", r"\1pass", source) for source in sources]


def sizes() -> dict[str, Size]:
    """Measure every package and the notebooks of the project."""
    sources = {
        name: [
            path.read_text(encoding="utf-8") for pattern in patterns for path in ROOT.glob(pattern)
        ]
        for name, patterns in _PLACES.items()
    }
    sources["notebooks"] = [
        source for path in ROOT.glob("notebooks/*/*.ipynb") for source in cells(path)
    ]
    return {
        name: Size(*map(sum, zip(*map(measure, found), strict=True)))
        for name, found in sources.items()
    }


if __name__ == "__main__":
    for name, size in sizes().items():
        density = 100 * size.comments / size.statements
        sizes_of = f"{size.total:8,} of {CAPS[name]:8,}"
        print(f"{name:10} {sizes_of}   {density:.1f} comments per 100 statements")
