"""Running the code cells of a notebook in a forked process that has already imported what notebooks
import.

To start a kernel and import takes longer than most notebooks do with smoke parameters. Here one
process imports all that once, and a fork of it runs each notebook in a kernel's shell, without the
kernel: with magics, the value of a cell's last line, and the drawing of figures at the end of a
cell."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import re
import warnings
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

# Of fairlib the modules that import the others. An import must not start a thread of Python, which
# a fork would lose.
IMPORTED = [
    "fairlib.studies",
    "fairlib.auditing.files",
    "fairlib.auditing.report",
    "whopays.claims",
    "whopays.prose",
    "fairlib.linearization",
    "whopays.plots",
    "fairlib.pruning",
    "ipykernel.zmqshell",
    "matplotlib.backends.backend_agg",
    "matplotlib.pyplot",
    "pandas",
    "pyarrow.parquet",
    "scipy.stats",
    "sklearn.datasets",
    "torch.func",
    "torchvision",
]
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(IMPORTED)

HARMLESS = [
    # With smoke parameters it learns little.
    "the model before compression cannot be told from chance",
    # Of torch, where pandas copies a tensor.
    "__array__ implementation doesn't accept a copy keyword",
]

Output = dict[str, str]  # A text by its kind: a MIME type, stdout or stderr.


class CellError(AssertionError):
    """Raised where a cell fails, with its number among the code cells and its traceback."""


def run(sources: list[str], folder: Path) -> list[list[Output]]:
    """Run the code cells of a notebook one after another, in a folder; what each of them gave out.

    A warning is an error, as in all tests.

    Raises:
        CellError: If a cell fails, or a figure that it leaves cannot be drawn.
    """
    with ProcessPoolExecutor(1, mp_context=FORKS) as pool:
        return pool.submit(_run, sources, folder, dict(os.environ)).result()


def _run(sources: list[str], folder: Path, environment: dict[str, str]) -> list[list[Output]]:
    import matplotlib
    import pandas as pd
    import torch

    # The environment of the process that forks is that of the first test.
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    pd.set_option("display.max_columns", 20)  # What pandas takes where it is imported in a kernel.
    matplotlib.use("agg")
    torch.set_num_threads(1)
    shell, outputs, failures = _shell()
    given = []
    for number, source in enumerate(sources):
        outputs.clear()
        stdout, stderr = io.StringIO(), io.StringIO()
        with (
            contextlib.redirect_stdout(stdout),
            contextlib.redirect_stderr(stderr),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("error")
            for message in HARMLESS:
                warnings.filterwarnings("ignore", message)
            result = shell.run_cell(source, store_history=True)
            if result.success:
                try:
                    outputs += _draw_figures()
                except Exception:
                    shell.showtraceback()
        if failures or not result.success:
            raise CellError(
                "\n".join([f"cell {number} failed:", source, *failures, stderr.getvalue()])
            )
        streams = {"stdout": stdout.getvalue(), "stderr": stderr.getvalue()}
        given.append([*outputs, *({name: text} for name, text in streams.items() if text)])
    return given


def _draw_figures() -> list[Output]:
    """Draw what a cell leaves open, and close it: once, where the PNG and the SVG of a page take
    four times as long."""
    import matplotlib.pyplot as plt

    drawn = [plt.figure(number) for number in plt.get_fignums()]
    for figure in drawn:
        figure.canvas.draw()
    plt.close("all")
    return [{"text/plain": repr(figure)} for figure in drawn]


def _shell() -> tuple[Any, list[Output], list[str]]:
    """A fresh shell, with the lists that it fills: what is given out, and tracebacks."""
    from ipykernel.zmqshell import ZMQInteractiveShell
    from IPython.core.displayhook import DisplayHook
    from IPython.core.displaypub import DisplayPublisher
    from traitlets import Type
    from traitlets.config import Config

    outputs: list[Output] = []
    failures: list[str] = []

    class Publisher(DisplayPublisher):
        def publish(self, data, *arguments, **settings):
            outputs.append(data)

    class Hook(DisplayHook):
        def write_output_prompt(self):
            """Write nothing."""

        def write_format_data(self, format_dict, md_dict=None):
            outputs.append(format_dict)

        def finish_displayhook(self):
            """Write nothing."""

    class Shell(ZMQInteractiveShell):
        display_pub_class = Type(Publisher)
        displayhook_class = Type(Hook)

        def _showtraceback(self, etype, evalue, stb):
            failures.append("\n".join(stb))

    shell = Shell.instance(config=Config(HistoryManager={"enabled": False}), colors="nocolor")
    return shell, outputs, failures


def as_stored(outputs: list[dict]) -> list[Output]:
    """What a notebook stores of a cell's outputs, in the form that :func:`run` gives."""
    found = [output.get("data") or {output["name"]: output["text"]} for output in outputs]
    return [{kind: "".join(text) for kind, text in output.items()} for output in found]


def by_kind(outputs: list[Output]) -> dict[str, list[str]]:
    """The texts of outputs by their kind, without pictures; the pieces of a stream are one text.

    Of a line that is written over by means of a carriage return only the end counts.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for output in outputs:
        for kind, text in output.items():
            if not kind.startswith("image/"):
                found[kind].append(text)
    for stream in found.keys() & {"stdout", "stderr"}:
        found[stream] = [re.sub(r"^.*\r(?=[^\n])", "", "".join(found[stream]), flags=re.MULTILINE)]
    return dict(found)
