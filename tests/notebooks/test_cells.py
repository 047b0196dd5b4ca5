"""The runner of cells does what a kernel would, and lets no failure pass."""

from __future__ import annotations

import cells
import pytest


def test_cells_share_a_shell_and_give_out_what_a_kernel_would(tmp_path):
    drawing = "import matplotlib.pyplot as plt\nplt.plot([1, 2]);"
    first = "import os\nos.environ['FAIRLIB_CACHE']"
    given = cells.run([first, "print('a'); print('b'); 1 + 1", "2;", drawing, "%pwd"], tmp_path)
    seen = [cells.by_kind(outputs) for outputs in given]
    assert seen[0] == {"text/plain": [repr(str(tmp_path / "cache"))]}
    assert seen[1] == {"text/plain": ["2"], "stdout": ["a\nb\n"]}
    assert seen[2] == {} and seen[4] == {"text/plain": [repr(str(tmp_path))]}
    assert seen[3] == {"text/plain": ["<Figure size 640x480 with 1 Axes>"]}
    assert cells.run(["'os' in globals()"], tmp_path) == [[{"text/plain": "False"}]]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("x = )", "SyntaxError"),
        ("%nonsense", "UsageError"),
        ("raise SystemExit", "SystemExit"),
        ("import warnings\nwarnings.warn('careful')", "careful"),
        ("import matplotlib.pyplot as plt\nplt.title('$x_{$');", "ParseSyntaxException"),
    ],
)
def test_a_cell_that_fails_is_named(tmp_path, source, message):
    with pytest.raises(cells.CellError, match="cell 1 failed") as failure:
        cells.run(["print('fine')", source, "open('reached', 'w')"], tmp_path)
    assert source in str(failure.value) and message in str(failure.value)
    assert not (tmp_path / "reached").exists()


def test_stored_outputs_are_compared_text_by_text_without_pictures():
    stored = [
        {"output_type": "stream", "name": "stdout", "text": ["10 %\r", "20 %\n", "a\n"]},
        {"output_type": "execute_result", "data": {"text/plain": ["1\n", "2"], "image/png": "x"}},
        {"output_type": "stream", "name": "stdout", "text": "b\n"},
    ]
    assert cells.by_kind(cells.as_stored(stored)) == {
        "stdout": ["20 %\na\nb\n"],
        "text/plain": ["1\n2"],
    }
