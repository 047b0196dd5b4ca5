"""One papermill run, done safely, and what makes it out of date.

A finished run is a folder with ``notebook.ipynb`` (executed), ``records.parquet`` (if the notebook
called :func:`record`) and ``run.json``, with their checksums and one of itself. Work happens in a
temporary folder beside it, which is renamed when everything is on the disk: the run is there
completely or not at all. A lock makes a second process that is asked for the same run wait for the
first.

The Snakefile and the console command start with this file, so nothing is imported at its top that
takes time.
"""

from __future__ import annotations

import ast
import difflib
import glob
import hashlib
import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from fairlib import environment

if TYPE_CHECKING:
    import pandas as pd
    from filelock import FileLock

Scalar = bool | int | float | str
Given = Mapping[str, Any]
"""Values by name, of parameters or of the description of a run."""

NOTEBOOK, RECORDS, RUN = "notebook.ipynb", "records.parquet", "run.json"
COMMIT = "WHOPAYS_COMMIT"
"""Environment variable with the commit of a project that is no checkout."""

OWN_TABLES = "its recorded tables"
"""Name of the contents that are tables which the notebook itself recorded."""

PATHS = {
    "results/benchmarks/two_paths_claims.csv": {
        "verdict_alone": "one training at a time",
        "verdict_at_once": "several at once",
    },
    "results/benchmarks/stacks_claims.csv": {
        "verdict_ten": "ten trainings in a stack",
        "verdict_five": "five in a stack (and better scales of rounded weights)",
    },
}
"""Tables of claims judged by the same trainings in two ways, and the ways' names by column."""

WORKSHOP = Path(__file__).resolve().parent
NOT_ON_PAGES = ("__main__", "cli", "grids", "ledger", "plan", "recording", "verify")
"""Modules of whopays that no page computes with: an edit of them leaves every run as it is."""

# Temporary name, within the folder of a new run, of the run that it replaces.
_REPLACED = "replaced"
_TYPES: dict[str, tuple[type, str]] = {
    "bool": (bool, "true or false"),
    "int": (int, "an int"),
    "float": (float, "a finite number"),
    "str": (str, "a text"),
}


class ParameterError(ValueError):
    """Raised for an invalid notebook, grid or parameter."""


class RunError(RuntimeError):
    """Raised if a run cannot begin, or has failed."""


def record(table: pd.DataFrame) -> pd.DataFrame:
    """Save a tidy table with the run that executes this notebook; outside a run do nothing.

    Args:
        table: One row per observation. Its index is not kept.

    Returns:
        The same table.

    Raises:
        TypeError: If ``table`` is not a DataFrame, or has a column that Parquet cannot hold.
        ValueError: If ``table`` is empty, its columns are not unique texts, its index has a
            name (and would be lost), or the run has recorded a table before.

    Example:
        In a notebook that ``whopays run`` executes this writes ``records.parquet``; anywhere else
        it does nothing.

        >>> import pandas, whopays
        >>> table = pandas.DataFrame({"seed": [0, 1], "accuracy": [0.75, 0.5]})
        >>> whopays.record(table) is table
        True
        >>> whopays.record(table.set_index("seed"))
        Traceback (most recent call last):
            ...
        ValueError: index ['seed'] of table would be lost; record table.reset_index()
    """
    import pandas as pd
    import pyarrow

    if not isinstance(table, pd.DataFrame):
        raise TypeError(f"table must be a pandas DataFrame, got {type(table).__name__}")
    if table.empty or {*map(type, table)} != {str}:
        raise ValueError("table must have rows, and texts for columns")
    if any(name is not None for name in table.index.names):
        raise ValueError(
            f"index {list(table.index.names)} of table would be lost; record table.reset_index()"
        )
    if environment.RUN_VARIABLE not in os.environ:
        return table
    path = Path(os.environ[environment.RUN_VARIABLE], RECORDS)
    if path.exists():
        raise ValueError("table must be the only one of a run; record several by pandas.concat")
    try:
        with environment.written(path) as new:
            table.to_parquet(new, index=False)
    except pyarrow.ArrowException as error:
        raise TypeError(f"table cannot be written as Parquet: {error}") from error
    return table


class Parameter(NamedTuple):
    """The type of a notebook's parameter, by name, and its default."""

    type: str
    default: Scalar


def parameters(notebook: str | Path) -> dict[str, Parameter]:
    """Read the parameters of a notebook from its first cell tagged ``parameters``.

    The cell is parsed here since ``papermill.inspect_notebook`` goes line by line and silently
    leaves out some parameters, for example a text with an equals sign in it.

    Raises:
        ParameterError: If a statement is not ``name: type = literal``, or the file is not a
            notebook.
    """
    tagged = [cell for cell in _cells(notebook) if "parameters" in cell["metadata"].get("tags", [])]
    try:
        statements = ast.parse(tagged[0]["source"]).body if tagged else []
    except SyntaxError as error:
        raise ParameterError(
            f"{notebook}: the cell tagged 'parameters' is not Python: {error}"
        ) from None
    return dict(_parameter(notebook, statement) for statement in statements)


def _parameter(notebook: str | Path, statement: ast.stmt) -> tuple[str, Parameter]:
    match statement:
        # Negative numbers are no constants in Python's syntax but a minus before one.
        case ast.AnnAssign(
            ast.Name(name), ast.Name(kind), ast.Constant() | ast.UnaryOp(ast.USub()) as value
        ) if kind in _TYPES:
            default = _checked(notebook, name, ast.literal_eval(value), kind)
            return name, Parameter(kind, default)
    wanted = f"write 'name: type = literal' with a type of {', '.join(_TYPES)}"
    raise ParameterError(f"{notebook}: '{ast.unparse(statement)}' is not a parameter; {wanted}")


def resolve_parameters(notebook: str | Path, given: Given) -> dict[str, Scalar]:
    """Complete the parameters of a notebook: given values, checked, and defaults.

    An int is taken for a float. A text is converted to the type of its parameter: the command line
    gives only texts, and YAML reads ``1e-3`` as one.

    Raises:
        ParameterError: If a name is unknown or a value has another type.
    """
    known = parameters(notebook)
    values = {name: parameter.default for name, parameter in known.items()}
    for name, value in given.items():
        if name not in known:
            close = difflib.get_close_matches(str(name), known, n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise ParameterError(
                f"{notebook}: unknown parameter {name!r}{hint}; known: {', '.join(known) or 'none'}"
            )
        kind = known[name].type
        if isinstance(value, str):
            value = _read(value, kind)
        values[name] = _checked(notebook, name, value, kind)
    return values


def _read(text: str, kind: str) -> object:
    """Convert a text to a type; return the text itself if that is not possible."""
    if kind == "bool":
        return {"true": True, "false": False}.get(text.lower(), text)
    try:
        return _TYPES[kind][0](text)
    except ValueError:
        return text


def _checked(notebook: str | Path, name: str, value: Any, kind: str) -> Scalar:
    wanted: Any
    wanted, description = _TYPES[kind]
    if wanted is float and type(value) is int:
        value = float(value)
    # The type has to be the very one: isinstance would take True for an int.
    if type(value) is not wanted or (isinstance(value, float) and not math.isfinite(value)):
        raise ParameterError(f"{notebook}: parameter {name!r} must be {description}, got {value!r}")
    return value


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read a YAML file that maps names to values: a parameter file or a grid.

    Raises:
        ParameterError: If the file is something else.
    """
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ParameterError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise ParameterError(f"{path} must map names to values, got {type(content).__name__}")
    return content


def _cells(notebook: str | Path) -> list[dict[str, Any]]:
    try:
        cells = json.loads(Path(notebook).read_text(encoding="utf-8"))["cells"]
    except (ValueError, KeyError, TypeError):
        raise ParameterError(f"{notebook} is not a Jupyter notebook") from None
    return [cell | {"source": "".join(cell["source"])} for cell in cells]


def project() -> Path:
    """Find the project's folder: above the working directory, else the folder of fairlib.

    Where fairlib was installed from a wheel (in Colab) the project is the folder of what the wheel
    carries of it, the claims and the recorded tables; without any of these it is the working
    directory.
    """
    beside = environment.LIBRARY.parent
    folders = [Path.cwd(), *Path.cwd().parents, beside, beside / "whopays" / "records"]
    for folder in folders:
        if (folder / "book" / "claims.yml").exists():
            return folder
    return folders[0]


def project_root(path: str | Path) -> Path:
    """Find the nearest folder above a file with ``pyproject.toml`` or ``_toc.yml``.

    Without one it is the file's folder.
    """
    parents = Path(path).resolve().parents
    return next(
        (p for p in parents if (p / "pyproject.toml").is_file() or (p / "_toc.yml").is_file()),
        parents[0],
    )


def contents(notebook: str | Path, given: Given) -> dict[str, str]:
    """Digest everything whose change makes a run out of date, by name.

    These are the notebook's file; the values of its parameters; the files in ``results/`` and
    ``book/`` that its code names, whatever their suffix, also by the beginning of a path; the
    claims and `PATHS` if it asks for verdicts; the choice of faster paths
    (:func:`fairlib.environment.automatic`); ``requirements.lock``; and the meaning of the code of
    fairlib and whopays (:func:`fairlib.environment.source_digest`). Of fairlib the audit counts
    only if the page uses it, of whopays the modules `NOT_ON_PAGES` never do. Tables in ``results/``
    that the notebook itself recorded, by their provenance, have a digest of their own
    (`OWN_TABLES`).
    """
    notebook, root = Path(notebook), project_root(notebook)
    code = "\n".join(cell["source"] for cell in _cells(notebook) if cell["cell_type"] == "code")
    named = re.findall(r"\b(?:results|book)/[\w./-]*", code)
    if re.search(r"\b(claims|prose)\.verdict|\bpages\.evidence", code):
        named += ["book/claims.yml", *PATHS]
    # A name without its suffix is also the beginning of the provenance beside a table, and of all
    # tables that an f-string such as results/part/{name}.csv may name.
    beginnings = tuple(str(PurePosixPath(name).with_suffix("")) for name in named)
    files, own = set[Path](), set[Path]()
    recorder = f'"notebook": "{notebook.resolve().relative_to(root).as_posix()}"'
    for path in [*root.glob("results/**/*"), *root.glob("book/**/*")]:
        if path.relative_to(root).as_posix().startswith(beginnings):
            provenance = path.with_suffix(".json")
            recorded = provenance.is_file() and recorder in provenance.read_text(encoding="utf-8")
            (own if recorded else files).add(path)
    return {
        "notebook": digest_files([notebook], notebook.parent),
        "parameters": digest_values(resolve_parameters(notebook, given)),
        "files it names": digest_files(files, root),
        OWN_TABLES: digest_files(own, root),
        "automatic": str(environment.automatic()),
        "requirements.lock": digest_files([root / "requirements.lock"], root),
        "fairlib": environment.source_digest(without=() if "audit" in code else _audit()),
        "whopays": environment.source_digest(WORKSHOP, without=NOT_ON_PAGES),
    }


def _audit() -> list[str]:
    """List the modules of fairlib that only pages with an audit compute with."""
    # The style of figures is with the audit, but whopays.plots draws the figures of all pages in
    # it.
    rooms = environment.LIBRARY.glob("auditing/*")
    return ["cli", *(f"auditing/{path.stem}" for path in rooms if path.stem != "figure")]


def digest_files(paths: Iterable[Path], root: Path) -> str:
    """Digest files: their names from ``root`` and their bytes, not their times."""
    total = hashlib.sha256()
    for path in sorted({path for path in paths if path.is_file()}):
        data = path.read_bytes()
        total.update(f"{path.relative_to(root).as_posix()} {len(data)}\n".encode() + data)
    return total.hexdigest()


def digest_values(values: Given) -> str:
    """Digest values by name, whatever their order."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def run_notebook(
    notebook: str | Path,
    out: str | Path,
    given: Given | None = None,
    *,
    force: bool = False,
) -> bool:
    """Execute a notebook by papermill, in the root of its project, into the folder ``out``.

    A finished run of the same contents is left alone. A failed run leaves nothing at ``out``, and
    its notebook in the folder ``failed`` beside it. While another process executes a run into
    ``out``, wait until it ends.

    Args:
        notebook: Path of the notebook.
        out: Folder of the run.
        given: Values of parameters; the others keep their defaults.
        force: Replace a finished run of other contents.

    Returns:
        True if the notebook was executed.

    Raises:
        ParameterError: If a parameter is unknown or ill-typed.
        RunError: If ``out`` holds other files or, without ``force``, a finished run of other
            contents; if papermill is missing; or if the notebook fails.
        OSError: If a file cannot be read or written.
    """
    notebook, out, given = Path(notebook), Path(out).resolve(), given or {}
    values, failed = (
        resolve_parameters(notebook, given),
        out.parent / "failed" / f"{out.name}.ipynb",
    )
    with workspace(out) as folder:
        wanted, finished = contents(notebook, given), read_run(out)
        if finished and not (changed := changed_contents(finished, wanted)):
            return False
        if finished and not force:
            raise RunError(
                f"{out} is finished with other contents ({', '.join(changed)}); --force replaces it"
            )
        _refuse_other_files(out)
        folder.mkdir()
        started = datetime.now(UTC)
        _execute(notebook, folder, {name: values[name] for name in given}, failed)
        description = _describe(notebook, values, started)
        description |= {"contents": wanted, "trainings": _take_tallies(folder)}
        finish(folder, description)
        _place(folder, out)
    # An earlier failure of the same run is history now.
    failed.unlink(missing_ok=True)
    return True


def _take_tallies(folder: Path) -> dict[str, int]:
    """Add up the trainings that the processes of a run counted, and remove their files."""
    trainings = {"at once": 0, "alone": 0}
    for tally in folder.glob(environment.TALLY.format("*")):
        for way, count in json.loads(tally.read_text(encoding="utf-8")).items():
            trainings[way] += count
        tally.unlink()
    return trainings


def changed_contents(finished: Given, wanted: Mapping[str, str]) -> list[str]:
    """Name the :func:`contents` that have changed since a run was finished."""
    return [name for name in wanted if wanted[name] != finished["contents"].get(name)]


def _describe(notebook: Path, values: Mapping[str, Scalar], started: datetime) -> dict[str, object]:
    root = project_root(notebook)
    commit = os.environ.get(COMMIT) or git(root, "rev-parse", "HEAD")
    # Tables that an earlier sweep has just gathered do not make the checkout dirty: what a page
    # reads of them is among its contents.
    status = git(root, "status", "--porcelain", "--", ".", ":!results")
    return {
        "notebook": notebook.resolve().relative_to(root).as_posix(),
        "parameters": values,
        "started": started.isoformat(timespec="seconds"),
        "seconds": round((datetime.now(UTC) - started).total_seconds(), 1),
        **environment.describe(str(values.get("device", "auto"))),
        "commit": commit and commit.strip(),
        "dirty": None if commit is None else bool(status),
    }


def finish(folder: Path, description: Given) -> None:
    """Write the ``run.json`` of a run: its description and checksums."""
    files = {
        name: _checksum(folder / name) for name in (NOTEBOOK, RECORDS) if (folder / name).exists()
    }
    description = {**description, "files": files}
    description |= {"checksum": digest_values(description)}
    (folder / RUN).write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")


def read_run(out: str | Path) -> dict | None:
    """Read the ``run.json`` of a finished run; None if there is none.

    A run that lacks a file, or has a file that it did not write, is not finished either; standard
    error says which.
    """
    try:
        run = json.loads(Path(out, RUN).read_bytes())
        whole = run.pop("checksum") == digest_values(run)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError, LookupError, AttributeError):
        # Whatever a damaged file holds, it is no dictionary with a checksum.
        whole = False
    files = run["files"] if whole else {RUN: ""}
    wrong = [name for name, checksum in files.items() if _checksum(Path(out, name)) != checksum]
    if not wrong:
        return run
    print(
        f"whopays: {out}: {wrong[0]} is not what the run wrote; it has to be executed again",
        file=sys.stderr,
    )
    return None


def _checksum(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _refuse_other_files(out: Path) -> None:
    """Raise unless ``out`` is free or holds a run: replacing it would delete the user's files."""
    if not out.exists():
        return
    if not out.is_dir():
        raise RunError(f"out must be a folder, {out} is a file")
    others = {path.name for path in out.iterdir()} - {NOTEBOOK, RECORDS, RUN, _REPLACED}
    if others:
        raise RunError(
            f"out must be a folder for this run alone, {out} holds other files ({min(others)}, ...)"
        )


@contextmanager
def workspace(out: Path) -> Iterator[Path]:
    """Keep other processes from running into ``out``; yield a path beside it for a folder.

    The folder is removed in the end, and those of dead processes in the beginning. On file systems
    without locks no process waits, and at worst the work is done twice.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    host, path = socket.gethostname(), out.with_name(f".{out.name}.lock")
    folder = out.with_name(f"{out.name}.tmp-{os.getpid()}@{host}")
    lock = _locked(path, out)
    try:
        if lock:
            path.write_text(f"process {os.getpid()} on {host}", encoding="utf-8")
            # The kernel frees the locks of dead processes but not their folders. Only this host's
            # are removed: whether a process of another host is alive cannot be seen from here.
            for left in out.parent.glob(f"{glob.escape(out.name)}.tmp-*@{host}"):
                shutil.rmtree(left, ignore_errors=True)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock:
            # Before it is unlocked: afterwards the file may be another process's. Those that wait
            # for a removed file notice it, and lock a new one.
            path.unlink(missing_ok=True)
            lock.release()


def _locked(path: Path, out: Path) -> FileLock | None:
    """Lock a file, and wait while another process holds it; None where there are no locks."""
    from filelock import FileLock, Timeout

    # A soft lock, a marker file, would outlive a killed process and be waited for without end.
    lock = FileLock(path, fallback_to_soft=False)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        owner = path.read_text(encoding="utf-8") if path.exists() else ""
        print(
            f"whopays: {out} is running in {owner or 'another process'}; waiting until that ends",
            file=sys.stderr,
            flush=True,
        )
        lock.acquire()
    except (OSError, NotImplementedError):
        path.unlink(missing_ok=True)
        return None
    return lock


def _execute(notebook: Path, folder: Path, given: Mapping[str, Scalar], failed: Path) -> None:
    try:
        # jsonschema builds the grammar of web addresses in this module when it is imported, which
        # takes two seconds of CPU for every run. Python takes a module whose entry is None for one
        # that is not installed; papermill only checks notebooks, which have no addresses.
        sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
        import papermill
        from traitlets.config import Config

    except ImportError as error:
        raise RunError("a run needs papermill: pip install 'who-pays[book]'") from error
    executed = folder / NOTEBOOK
    # Papermill would take braces in a path for the names of parameters.
    source, target = (
        str(path).replace("{", "{{").replace("}", "}}") for path in (notebook, executed)
    )
    settings: dict[str, Any] = {
        "parameters": dict(given),
        "kernel_name": "python3",
        "cwd": str(project_root(notebook)),
        "progress_bar": sys.stderr.isatty(),
        # Written once: to write it before and after each cell takes a second of CPU for a page.
        "request_save_on_cell_execute": False,
        "stderr_file": sys.stderr,
    }
    with tempfile.TemporaryDirectory() as profile:
        # Start the kernel of this environment, without the startup files of the user's IPython; CI
        # has a folder of its own, in which warnings become errors.
        kernel = {
            environment.RUN_VARIABLE: str(folder),
            "JUPYTER_PREFER_ENV_PATH": "1",
            "IPYTHONDIR": os.environ.get("WHOPAYS_IPYTHON", profile),
            "JUPYTER_RUNTIME_DIR": profile,
        }
        # With TCP, two kernels that start at the same time may be given the same port, and one run
        # fails. Sockets need a path of at most about 100 characters, hence the bound.
        if os.name == "posix" and len(profile) < 50:
            settings["config"] = Config(
                KernelManager={"transport": "ipc", "ip": f"{profile}/kernel"}
            )
        try:
            with patch.dict(os.environ, kernel):
                papermill.execute_notebook(source, target, **settings)
        except Exception as error:
            if seen := executed.exists():
                failed.parent.mkdir(exist_ok=True)
                shutil.copyfile(executed, failed)
            name = getattr(error, "ename", type(error).__name__)
            text = getattr(error, "evalue", str(error))
            raise RunError(
                f"{notebook} failed: {name}: {' '.join(text.split())}{f' (see {failed})' * seen}"
            ) from error
    _tidy(executed)


def _tidy(executed: Path) -> None:
    """Remove progress bars and temporary paths from an executed notebook."""
    notebook = json.loads(executed.read_text(encoding="utf-8"))
    for name in ("input_path", "output_path"):
        notebook["metadata"]["papermill"].pop(name)
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                # A progress bar overwrites itself by carriage returns; its last state has a bar.
                seen = re.sub(r"[^\n]*\r", "", "".join(output["text"]))
                output["text"] = re.sub(r"^.*\d+%\|.*\|.*$", "", seen, flags=re.MULTILINE).strip()
        if "outputs" in cell:
            cell["outputs"] = [output for output in cell["outputs"] if output.get("text") != ""]
    executed.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def git(folder: Path, *arguments: str) -> str | None:
    """Return the output of git in a folder; None without git, the checkout or the object."""
    try:
        return subprocess.run(
            ["git", *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


def _place(folder: Path, out: Path) -> None:
    """Rename the folder to ``out``, in the place of an older run."""
    # A rename may reach the disk before the content does; after a power cut the run would be there
    # under its final name with empty files.
    for path in (*folder.iterdir(), folder):
        environment.sync(path)
    if out.exists():
        out.rename(folder / _REPLACED)
    folder.rename(out)
    shutil.rmtree(out / _REPLACED, ignore_errors=True)
