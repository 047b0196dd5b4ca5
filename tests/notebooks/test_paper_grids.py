"""The first run of every grid for a GPU, the papers' and ours, in toy size and on toy files of its
data."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest
import size
import toy_data
from torchvision import datasets

from whopays import grids, runs

ROOT = Path(__file__).parents[2]
LISTED = (ROOT / "params" / "gpu-list.txt").read_text(encoding="utf-8").splitlines()
LISTED = [ROOT / line for line in LISTED if line and line[0] != "#"]
PAPERS = list(dict.fromkeys([*sorted(ROOT.glob("params/paper/*/*.yml")), *LISTED]))
TOY = {
    **{"image_size": 16, "width": 1 / 16, "limit": 0, "seeds": 1, "batch_size": 64},
    **{"train_size": 100, "test_size": 200, "epochs": 1, "two_epochs": 1, "other_epochs": 1},
    **{"finetune_epochs": 1, "mask_epochs": 2, "step_epochs": 1, "sparsities": "0.9"},
    **{"sparsity": 0.5, "shots": "0.5", "measures": "", "lots": 1, "least": 2, "every": 20},
    **{"chosen": "0,2", "times": "1,2", "budgets": "0.5", "stage_budgets": "0.5", "mus": "0.05"},
    **{"rate": 0.7, "own_lengths": "1", "lengths": "0,1", "reference": 1, "weights": "0,1"},
    **{"points": 3, "cells": 3},
}
"""Values of parameters in place of those of a grid."""

TOY_OF = {
    "bilevel": {"epochs": 3},  # BiFP prunes and finetunes within them.
    "linearization": {
        "epochs": 6,
        "batch_size": 16,
        "lr": 0.05,
    },  # A teacher has to be better than chance.
    "group-curvature": {"model": "cnn"},  # Eigenvalues of deep networks take minutes.
    "toy-boundary": {"width": 8},
}
"""The same, by part or notebook."""

DEFINES = (
    ast.Import,
    ast.ImportFrom,
    ast.FunctionDef,
    ast.ClassDef,
    ast.Assign,
    ast.AugAssign,
    ast.AnnAssign,
)


def defines(statement: ast.stmt) -> bool:
    """Tell whether a statement imports, defines, or assigns to names."""
    targets = getattr(statement, "targets", [getattr(statement, "target", None)])
    return isinstance(statement, DEFINES) and not any(
        isinstance(target, ast.Subscript) for target in targets
    )


def code_of_the_run(notebook: Path, values: Mapping[str, object]) -> str:
    """Return the code that depends on the parameters, and of the rest what only imports and
    defines.

    Args:
        notebook: Path of the notebook.
        values: Values of its parameters, which follow the cell of their defaults as papermill would
            put them.
    """
    dependent = set(values)
    chosen = []
    for source in size.cells(notebook)[1:]:  # Without the cell that installs.
        body = ast.parse(source).body
        nodes = [node for statement in body for node in ast.walk(statement)]
        names = [node for node in nodes if isinstance(node, ast.Name)]
        if dependent & {name.id for name in names}:
            dependent |= {name.id for name in names if isinstance(name.ctx, ast.Store)}
            dependent |= {each.name for each in body if isinstance(each, ast.FunctionDef)}
            chosen.append(source)
        else:
            chosen += [ast.unparse(statement) for statement in body if defines(statement)]
        if any(isinstance(statement, ast.AnnAssign) for statement in body):
            chosen += [f"{name} = {value!r}" for name, value in values.items()]
    return "\n".join(chosen)


@pytest.fixture(scope="session")
def toy_root(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("data")
    for write in toy_data.WRITERS.values():
        write(root)
    return root


@pytest.mark.parametrize("grid", PAPERS, ids=lambda path: path.stem)
def test_lists_in_whose_place_the_toy_size_has_others_are_of_numbers_in_range(grid):
    lists = {name for name, value in TOY.items() if isinstance(value, str) and value}
    for point in grids.expand(grid):
        for name in lists & point.parameters.keys():
            numbers = [float(part) for part in str(point.parameters[name]).split(",")]
            assert len(set(numbers)) == len(numbers) and min(numbers) >= 0, name
            assert max(numbers) < 1 or name not in (
                "sparsities",
                "budgets",
                "stage_budgets",
                "mus",
            ), name


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the model before compression cannot be told from chance")
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
@pytest.mark.parametrize("grid", PAPERS, ids=lambda path: path.stem)
def test_the_first_run_of_a_paper_runs_in_toy_size(grid, tmp_path, toy_root, monkeypatch):
    point = grids.expand(grid)[0]
    known = runs.parameters(point.notebook)
    toy = TOY | {"root": str(toy_root)} | ({} if "width" in known else {"model": "cnn"})
    toy |= TOY_OF.get(grid.parent.name, {}) | TOY_OF.get(point.notebook.stem, {})
    given = dict(point.parameters) | {name: value for name, value in toy.items() if name in known}
    for folder in ("results", "book"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    code = code_of_the_run(point.notebook, runs.resolve_parameters(point.notebook, given))
    monkeypatch.chdir(tmp_path)
    for part, (address, file, _) in datasets.SVHN.split_list.items():
        monkeypatch.setitem(datasets.SVHN.split_list, part, [address, file, None])
    exec(code, {"__name__": "page"})
