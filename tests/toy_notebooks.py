"""Notebooks to try runs and grids on."""

from __future__ import annotations

import json
from pathlib import Path

PARAMETERS = """\
seeds: int = 2  # number of seeds
lr: float = 0.5  # learning rate
data: str = "a=b"  # a text with an equals sign
quick: bool = True  # whether to hurry
"""
RECORD = "import pandas as pd\nfrom fairlib import record\nrecord(pd.DataFrame({'seed': range(seeds), 'lr': lr}));"


def write_notebook(path: Path, *code: str, parameters: str = PARAMETERS) -> Path:
    """A notebook with a cell of parameters and cells of code."""
    cells = [
        {"cell_type": "code", "id": f"c{i}", "metadata": {}, "source": source, "outputs": [], "execution_count": None}
        for i, source in enumerate([parameters, *code])
    ]  # fmt: skip
    cells[0]["metadata"] = {"tags": ["parameters"]}
    kernel = {"name": "elsewhere", "display_name": "A kernel of another machine", "language": "python"}
    content = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path
