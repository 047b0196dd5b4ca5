"""The Python that the README and the book's pages show runs, here with one seed and one epoch in place of more."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
from code_size import code_lines

from fairlib import mitigation, pruning

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
WITH_PYTHON = [
    path
    for path in (ROOT / "README.md", *sorted((ROOT / "book").glob("*.md")))
    if BLOCK.search(path.read_text("utf-8"))
]


def shortened(code: str) -> str:
    return re.sub(r"range\(\d+\)", "range(1)", re.sub(r"(epochs\W{1,3})\d+", r"\g<1>1", code))


def test_an_experiment_of_five_arms_is_under_25_lines():
    blocks = BLOCK.findall((ROOT / "book" / "contributing.md").read_text("utf-8"))
    assert blocks[0].count("Arm(") == 5
    assert code_lines(blocks[0]) < 25


@pytest.mark.parametrize("path", WITH_PYTHON, ids=lambda path: path.name)
def test_code_on_a_page_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FAIRLIB_CACHE", str(tmp_path))
    for package, registry in ((pruning, "METHODS"), (mitigation, "MITIGATIONS")):  # A page adds to these.
        monkeypatch.setattr(package, registry, dict(getattr(package, registry)))
    names: dict[str, object] = {}
    with warnings.catch_warnings():
        # The page says so.
        warnings.filterwarnings("ignore", message=".*cannot be told from chance", category=UserWarning)
        for number, block in enumerate(BLOCK.findall(path.read_text("utf-8")), start=1):
            exec(compile(shortened(block), f"{path.name}, block {number}", "exec"), names)
