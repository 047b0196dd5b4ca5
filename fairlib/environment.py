"""Surroundings of a computation: device, hardware, versions, digests, files written safely.

The console command and the Snakefile start with this file, so nothing is imported at its top that
takes time."""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import os
import platform
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlib import _namesake  # noqa: F401  It warns.
from fairlib._version import __version__

if TYPE_CHECKING:
    import torch

RUN_VARIABLE = "FAIRLIB_RUN"
"""Environment variable of a run's kernel that holds the folder of the run."""

TALLY = "tally-{}.json"
"""Name of the files in that folder in which :func:`tally` counts.

There is one for each call, since several processes may count at once."""

PACKAGES = ("torch", "torchvision", "numpy", "scipy", "pandas", "scikit-learn", "matplotlib")
LIBRARY = Path(__file__).resolve().parent


def describe(device: str = "auto") -> dict[str, Any]:
    """Describe the hardware and package versions of a run.

    Args:
        device: Name of the device that computes, or ``"auto"`` (:func:`resolve_device`).

    Returns:
        ``automatic`` (:func:`automatic`), ``device`` (of a CUDA device its product name), ``cpu``,
        ``cpu_capability`` (the vector instructions that PyTorch uses, for example ``"AVX2"`` or
        ``"AVX512"``, which round differently), ``cores``, ``threads``, ``platform`` and
        ``versions``.
    """
    import torch

    device = resolve_device(device)
    return {
        "automatic": automatic(),
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else device,
        "cpu": cpu(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "platform": platform.platform(),
        "versions": versions(PACKAGES),
    }


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Look up the versions of Python, fairlib and the named packages."""
    found = {"python": platform.python_version(), "fairlib": __version__}
    for name in packages:
        found[name] = metadata.version(name)
    return found


def resolve_device(device: str | torch.device) -> str:
    """Return the name of a device; ``"auto"`` is ``"cuda"`` if there is one, else ``"cpu"``."""
    if device != "auto":
        return str(device)
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def automatic() -> bool:
    """Return True if ``"auto"`` may choose faster paths of training that round differently.

    It chooses for ``RunSettings(at_once="auto")`` and for the memory format of
    :func:`fairlib.fit`. ``FAIRLIB_AUTO=0`` switches both off."""
    return os.environ.get("FAIRLIB_AUTO") != "0"


def tally(counts: Mapping[str, int]) -> None:
    """Add to the counts in the provenance of the run that executes this notebook, if any."""
    if RUN_VARIABLE in os.environ:
        with written(Path(os.environ[RUN_VARIABLE], TALLY.format(os.urandom(8).hex()))) as new:
            new.write_text(json.dumps(dict(counts)))


def workers(device: str | torch.device = "auto") -> int:
    """Count the processes that should train at once: one a core on the CPU, else one.

    Args:
        device: Name of the device that trains, or ``"auto"`` (:func:`resolve_device`).
    """
    from joblib import cpu_count

    return cpu_count() if resolve_device(device).startswith("cpu") else 1


def clock(device: str = "auto") -> float:
    """Read a clock in seconds, for differences: process time on the CPU, wall clock on CUDA.

    Kernels run behind the calls that launch them: read a number from the GPU first.

    Args:
        device: Name of the device that computes, or ``"auto"`` (:func:`resolve_device`).
    """
    on_cpu = not resolve_device(device).startswith("cuda")
    return time.process_time() if on_cpu else time.perf_counter()


def source_digest(package: Path | None = None, *, without: Collection[str] = ()) -> str:
    """Digest the code of a package, apart from docstrings, comments and formatting.

    A Python file counts by its name and its syntax tree without the statements that are only a
    text; any other file by its name and its bytes. Stubs, which only type checkers read, and the
    records that a wheel carries do not count.

    Args:
        package: Folder of the package; by default fairlib's.
        without: Modules and packages to leave out, as paths from the package's folder without a
            suffix.
    """
    package = LIBRARY if package is None else package
    total = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        name = path.relative_to(package)
        if not path.is_file() or path.suffix == ".pyi" or "__pycache__" in name.parts:
            continue
        if any(map(name.with_suffix("").is_relative_to, ("records", *without))):
            continue
        digest = _meaning(path.read_bytes(), path) if path.suffix == ".py" else sha256(path)
        total.update(f"{name.as_posix()} {digest}\n".encode())
    return total.hexdigest()


def sha256(*paths: str | Path) -> str:
    """Digest the bytes of one file, or of several as if they were one."""
    total = hashlib.sha256()
    for path in paths:
        total.update(Path(path).read_bytes())
    return total.hexdigest()


@functools.cache
def _meaning(content: bytes, path: Path) -> str:
    return hashlib.sha256(syntax_text(ast.parse(content, path)).encode()).hexdigest()


def syntax_text(node: object) -> str:
    """Write a syntax tree as a text that is the same in every version of Python.

    It leaves out docstrings. ``ast.dump`` would not do: newer versions add empty fields to nodes
    and empty texts to formats, and all recorded digests would change with Python.
    """
    if isinstance(node, list):
        return f"[{','.join([syntax_text(item) for item in node if not _is_docstring(item)])}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, ast.JoinedStr):
        node = ast.JoinedStr([part for part in node.values if getattr(part, "value", None) != ""])
    fields = [
        f"{name}={syntax_text(value)}"
        for name, value in ast.iter_fields(node)
        if value is not None and value != []
    ]
    return f"{type(node).__name__}({','.join(fields)})"


def _is_docstring(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str)


@contextmanager
def written(path: str | Path) -> Iterator[Path]:
    """Write a file completely or not at all.

    The block writes to a new path, which replaces ``path`` unless the block fails. Each call has a
    new path, so that threads and processes may write the same file at the same time; the last one
    wins.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from fairlib.environment import written
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "table.csv")
        ...     with written(path) as new:
        ...         _ = new.write_text("seed,accuracy")
        ...     path.exists(), new.exists()
        (True, False)
    """
    new = Path(f"{path}.{os.urandom(8).hex()}.tmp")
    try:
        yield new
        # After a power cut a file that was renamed before its content reached the disk is empty
        # under its final name, and would pass for a finished one.
        sync(new)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cpu() -> str:
    """Name the model of this machine's CPU."""
    # On Linux the platform module names only the architecture.
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    model = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return model[1] if model else platform.processor() or platform.machine()
