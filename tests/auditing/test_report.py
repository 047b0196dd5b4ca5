from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd

from fairlib.auditing.report import finite, tables

SHOWN = SimpleNamespace(  # What a report shows in a notebook.
    notes=["<b> & co"],
    table=pd.DataFrame(
        {"size": [12.0, 3.0], "drop": [0.25, np.nan], "drop_low": [0.125, np.nan], "drop_high": [0.5, np.nan]},
        index=pd.Index(["a<b", "c"], name="group"),
    ),
    violations=pd.DataFrame({"estimate": [1.0], "low": [0.5], "high": [2.0]}, index=pd.Index(["drop"], name="what")),
)


def test_an_estimate_stands_with_its_bounds_in_one_cell_and_what_is_missing_is_said():
    shown = tables(SHOWN.notes, SHOWN.table, SHOWN.violations)
    assert "<th>group</th><th>size</th><th>drop</th></tr>" in shown
    assert "<tr><th>a&lt;b</th><td>12</td><td>0.25 [0.125, 0.5]</td></tr>" in shown
    assert "<tr><th>c</th><td>3</td><td>not computed</td></tr>" in shown
    assert "<td>1 [0.5, 2]</td>" in shown
    assert '<p class="note">&lt;b&gt; &amp; co</p>' in shown and "<b>" not in shown


def test_plain_data_have_null_for_what_is_not_finite():
    data = {"a": np.float64("nan"), 1: [np.int64(3), float("inf")], "b": (np.bool_(True), "x", None)}
    assert json.loads(json.dumps(finite(data), allow_nan=False)) == {
        "a": None, "1": [3, None], "b": [True, "x", None],
    }  # fmt: skip
