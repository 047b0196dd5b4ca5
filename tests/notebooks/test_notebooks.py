"""The install cell of every notebook; nbval runs the notebooks themselves (``make test``)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from prepare import prepare

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "notebooks" / "pruning" / "matthew-effect.ipynb"
# The same cell in all notebooks, which a rule of the house checks.
INSTALL = "".join(json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"][1]["source"])


def test_every_experiment_is_prepared_with_its_smoke_parameters(tmp_path):
    prepare(tmp_path)
    experiments = {
        path.relative_to(ROOT / "notebooks")
        for path in ROOT.glob("notebooks/*/*.ipynb")
        if path.parent.name != "theory"
    }
    assert {path.relative_to(tmp_path) for path in tmp_path.glob("*/*.ipynb")} == experiments
    copy = json.loads((tmp_path / "pruning" / "matthew-effect.ipynb").read_text(encoding="utf-8"))
    injected = next(
        cell for cell in copy["cells"] if "injected-parameters" in cell["metadata"].get("tags", [])
    )
    assert "seeds = 2" in "".join(injected["source"])
    assert not any(cell.get("outputs") for cell in copy["cells"])


def run_install_cell(monkeypatch, installed: bool, address: str = "") -> list[str]:
    """Execute the install cell with or without whopays; return what pip is asked for."""
    wheels: list[str] = []
    if not installed:
        monkeypatch.setitem(sys.modules, "whopays", None)  # Importing it raises.
    cell = INSTALL.replace("%pip install -q {wheel}", "wheels.append(wheel)")
    exec(cell.replace('default=""', f'default="{address}"'), {"wheels": wheels})
    return wheels


def test_the_install_cell_looks_for_the_package_and_takes_the_wheel_beside_it_first(
    monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    address = "https://example.org/who_pays-1-py3-none-any.whl"
    assert run_install_cell(monkeypatch, True) == []
    assert run_install_cell(monkeypatch, False, address) == [address]
    (tmp_path / "who_pays-0.1-py3-none-any.whl").touch()
    assert run_install_cell(monkeypatch, False, address) == ["who_pays-0.1-py3-none-any.whl"]


def test_the_install_cell_says_what_to_do_where_there_is_no_wheel(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError, match=r"put its wheel \(who_pays-.*\) beside this"):
        run_install_cell(monkeypatch, False)
