"""Every notebook runs with its smoke parameters, and is built as all of them are."""

from __future__ import annotations

import ast
import importlib.metadata
import itertools
import json
import re
from pathlib import Path

import cells
import papermill
import pytest

from whopays import runs

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted(ROOT.glob("notebooks/*/*.ipynb"))
SECTIONS = ["What we saw", "Exercises", "Where this comes from"]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


INSTALL = "".join(json.loads(NOTEBOOKS[0].read_text(encoding="utf-8"))["cells"][1]["source"])

every_notebook = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=name)


def read(notebook: Path) -> dict:
    return json.loads(notebook.read_text(encoding="utf-8"))


def source(cell: dict) -> str:
    return "".join(cell["source"])


def code(notebook: Path) -> list[dict]:
    return [cell for cell in read(notebook)["cells"] if cell["cell_type"] == "code"]


@every_notebook
def test_every_cell_runs(notebook, tmp_path):
    """Theory gives exactly the outputs that are stored; an experiment runs through with its smoke
    parameters."""
    if notebook.parent.name == "theory":
        stored = code(notebook)
        assert not [
            source(cell) for cell in stored if cell["outputs"] and cell["execution_count"] is None
        ]
        given = cells.run([source(cell) for cell in stored], notebook.parent)
        for cell, outputs in zip(stored, given, strict=True):
            if cell["execution_count"] is not None:  # Cells that draw are stored as never run.
                assert cells.by_kind(outputs) == cells.by_kind(cells.as_stored(cell["outputs"])), (
                    source(cell)
                )
        return
    for folder in ("book", "results"):
        if (ROOT / folder).exists():
            (tmp_path / folder).symlink_to(ROOT / folder)
    smoke = ROOT / "params" / "smoke" / notebook.parent.name / f"{notebook.stem}.yml"
    values = runs.resolve_parameters(notebook, runs.read_yaml(smoke))
    copy = tmp_path / notebook.name
    papermill.execute_notebook(notebook, copy, values, prepare_only=True, kernel_name="python3")
    cells.run([source(cell) for cell in code(copy)], tmp_path)


def test_every_file_of_smoke_parameters_belongs_to_a_notebook():
    belong = {f"{notebook.parent.name}/{notebook.stem}" for notebook in NOTEBOOKS}
    files = ROOT.glob("params/smoke/*/*.yml")
    assert {f"{path.parent.name}/{path.stem}" for path in files} <= belong


@every_notebook
def test_parameters_are_annotated_literals_that_papermill_explains(notebook):
    known = runs.parameters(notebook)
    assert known.get("device") == ("str", "auto")
    inspected = papermill.inspect_notebook(notebook)
    assert set(inspected) == set(known)
    assert not [parameter for parameter, entry in inspected.items() if not entry["help"]]


@every_notebook
def test_what_is_derived_from_parameters_stands_below_them(notebook):
    cells = code(notebook)
    tagged = [
        index
        for index, cell in enumerate(cells)
        if "parameters" in cell["metadata"].get("tags", [])
    ]
    assert len(tagged) == 1
    names = set(runs.parameters(notebook))
    for cell in cells[: tagged[0]]:
        tree = ast.parse(re.sub("%pip .*", "pass", source(cell)))
        assert not {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} & names


@every_notebook
def test_the_install_cell_is_the_same_everywhere_and_alone_installs(notebook):
    install = code(notebook)[0]
    assert source(install) == INSTALL
    assert install["metadata"]["tags"] == ["remove-cell"]
    assert not any("pip install" in source(cell) for cell in code(notebook)[1:])


def run_install_cell(monkeypatch, installed: list[str], address: str = "") -> list[str]:
    """Execute the install cell where these distributions are installed; what it gives to pip."""
    given: list[str] = []
    monkeypatch.setattr(
        importlib.metadata, "distributions", lambda name: [d for d in installed if d == name]
    )
    cell = INSTALL.replace("%pip install -q {wheel}", "given.append(wheel)")
    exec(cell.replace('address = ""', f'address = "{address}"'), {"given": given})
    return given


def test_the_install_cell_looks_for_the_distribution_and_takes_the_wheel_beside_it_first(
    monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    address = "https://example.org/who_pays-1-py3-none-any.whl"
    assert run_install_cell(monkeypatch, ["who-pays"]) == []
    assert run_install_cell(monkeypatch, ["fairlib"], address) == [address]
    (tmp_path / "who_pays-0.1-py3-none-any.whl").touch()
    assert run_install_cell(monkeypatch, ["fairlib"], address) == ["who_pays-0.1-py3-none-any.whl"]


def test_the_install_cell_says_what_to_do_where_there_is_no_wheel(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModuleNotFoundError, match=r"put its wheel \(who_pays-.*\) beside this"):
        run_install_cell(monkeypatch, ["fairlib"])


@every_notebook
def test_no_pictures_are_stored(notebook):
    kinds = [
        kind
        for cell in code(notebook)
        for output in cell["outputs"]
        for kind in output.get("data", {})
    ]
    assert not [kind for kind in kinds if kind.startswith(("image/", "application/"))]


DRAWS, ORIGIN = r"\bnew_figure\(|\.plot\(|\bplt\.", r"\bprovenance\(|\.draw\("


@every_notebook
def test_every_figure_has_a_text_for_those_who_do_not_see_it(notebook):
    for cell in code(notebook):
        if draws(cell):
            assert len(cell["metadata"].get("mystnb", {}).get("image", {}).get("alt", "")) > 40, (
                source(cell)
            )


def draws(cell: dict) -> bool:
    """Whether a cell shows a figure: by what it does itself, not in functions that only later cells
    call."""
    body = ast.parse(re.sub("%pip .*", "pass", source(cell))).body
    own = {node.name: ast.unparse(node) for node in body if isinstance(node, ast.FunctionDef)}
    done = "\n".join(ast.unparse(node) for node in body if not isinstance(node, ast.FunctionDef))
    called = [text for name, text in own.items() if re.search(rf"\b{name}\(", done)]
    return bool(re.search(DRAWS, "\n".join([done, *called])) or re.search(ORIGIN, done))


@every_notebook
def test_the_parts_stand_in_their_order(notebook):
    cells = read(notebook)["cells"]
    assert re.match(r"# \S.*\n\n\S", source(cells[0])), (
        "the first cell is the title and the question"
    )
    prose = "\n".join(source(cell) for cell in cells if cell["cell_type"] == "markdown")
    outside_fences = re.sub(r"^(`{3,}).*?^\1$", "", prose, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^(#+) (.+)$", outside_fences, re.MULTILINE)
    assert [depth for depth, _ in headings].count("#") == 1
    steps = itertools.pairwise(headings)
    assert all(len(below) <= len(above) + 1 for (above, _), (below, _) in steps), (
        "a level of headings is skipped"
    )
    assert [title for depth, title in headings if depth == "##"][-3:] == SECTIONS
    assert re.search(r"[Ee]xpected time", prose)
    assert "TODO" not in prose


@every_notebook
def test_the_stored_notebook_belongs_to_no_machine(notebook):
    metadata = read(notebook)["metadata"]
    assert metadata["kernelspec"]["name"] == "python3"
    assert "papermill" not in metadata and "widgets" not in metadata
