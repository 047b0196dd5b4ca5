"""Notebooks to try runs and grids on."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from whopays import grids, runs

PARAMETERS = """\
seeds: int = 2  # number of seeds
lr: float = 0.5  # learning rate
data: str = "a=b"  # a text with an equals sign
quick: bool = True  # whether to hurry
"""
RECORD = "import pandas as pd\nfrom whopays import record\nrecord(pd.DataFrame({'seed': range(seeds), 'lr': lr}));"


def write_notebook(path: Path, *code: str, parameters: str = PARAMETERS) -> Path:
    """A notebook with a cell of parameters and cells of code."""
    cells = [
        {"cell_type": "code", "id": f"c{i}", "metadata": {}, "source": source, "outputs": [], "execution_count": None}
        for i, source in enumerate([parameters, *code])
    ]  # fmt: skip
    cells[0]["metadata"] = {"tags": ["parameters"]}
    kernel = {
        "name": "elsewhere",
        "display_name": "A kernel of another machine",
        "language": "python",
    }
    content = {
        "cells": cells,
        "metadata": {"kernelspec": kernel},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def finish(point: grids.Point, table: pd.DataFrame, **description) -> None:
    """Leave a finished run of the current contents at a point."""
    point.out.mkdir(parents=True, exist_ok=True)
    table.to_parquet(point.out / "records.parquet")
    description = {
        "notebook": point.notebook.as_posix(), "parameters": runs.resolve_parameters(point.notebook, point.parameters),
        "started": "2026-01-01T00:00:00+00:00", "seconds": 1.5, "device": "cpu", "cpu": "c", "cores": 2, "threads": 1,
        "platform": "p", "versions": {"torch": "2"}, "commit": "abc", "dirty": False,
        "contents": runs.contents(point.notebook, point.parameters),
    } | description  # fmt: skip
    runs.finish(point.out, description)
