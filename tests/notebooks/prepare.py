"""Copy every experiment's notebook with its smoke parameters: ``python tests/notebooks/prepare.py
OUT``.

papermill fills in the parameters and executes nothing; ``pytest --nbval-lax OUT`` then runs the
copies, a kernel each. OUT also gets an IPython folder (for the variable IPYTHONDIR) whose startup
file makes warnings errors."""

import shutil
import sys
from pathlib import Path

import papermill

from whopays import runs

ROOT = Path(__file__).parents[2]


def prepare(out: Path) -> None:
    """Write OUT/part/name.ipynb for every notebook outside the theory.

    Raises:
        ParameterError: If a smoke parameter does not exist or has another type. papermill itself
            would run the default.
    """
    for notebook in sorted(ROOT.glob("notebooks/*/*.ipynb")):
        part = notebook.parent.name
        if part == "theory":
            continue
        smoke = ROOT / "params" / "smoke" / part / f"{notebook.stem}.yml"
        # A lab has no parameters.
        given = {} if part == "labs" else runs.read_yaml(smoke)
        values = runs.resolve_parameters(notebook, given)
        copy = out / part / notebook.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        papermill.execute_notebook(
            notebook, copy, values, prepare_only=True, kernel_name="python3", progress_bar=False
        )
    shutil.copytree(Path(__file__).parent / "profile_default", out / "ipython" / "profile_default")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    shutil.rmtree(target, ignore_errors=True)
    prepare(target)
