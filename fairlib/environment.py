"""What surrounds a run: hardware and versions, a digest of the code, the project's folder, files
written as a whole.

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
"""Name of the variable that holds, in the kernel of a run, the folder of the run."""

TALLY = "tally-{}.json"
"""Name of the files there in which :func:`tally` counts, one for each call, since processes may
call it at once."""

PACKAGES = ("torch", "torchvision", "numpy", "scipy", "pandas", "scikit-learn", "matplotlib")
LIBRARY = Path(__file__).resolve().parent


def describe(device: str = "auto") -> dict[str, Any]:
    """Describe the hardware and package versions of a run.

    Args:
        device: Name of the device that computes, or ``"auto"`` (:func:`resolve_device`).

    Returns: ``automatic`` (:func:`automatic`), ``device`` (of a CUDA device its product name),
        ``cpu``, ``cpu_capability`` (the vector instructions that PyTorch uses, for example
        ``"AVX2"`` or ``"AVX512"``, which round differently), ``cores``, ``threads``, ``platform``
        and ``versions``.
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
        "versions": _versions(PACKAGES),
    }


def versions() -> dict[str, Any]:
    """Tell today's date, the platform, and the versions of Python, fairlib and what it computes
    with but for torch."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "platform": platform.platform(),
        "versions": _versions(("numpy", "scipy", "pandas")),
    }


def _versions(packages: Iterable[str]) -> dict[str, str]:
    own = {"python": platform.python_version(), "fairlib": __version__}
    return own | {name: metadata.version(name) for name in packages}


def resolve_device(device: str | torch.device) -> str:
    """Give back the name of a device; ``"auto"`` is ``"cuda"`` where there is a CUDA device, else
    ``"cpu"``."""
    if device != "auto":
        return str(device)
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def automatic() -> bool:
    """Whether trainings take by themselves what makes them faster and rounds differently; not with
    ``FAIRLIB_AUTO=0``.

    That is the choice of ``"auto"`` in ``study(at_once=)`` and ``fit(channels_last=)``. Edition 0.1
    had neither."""
    return os.environ.get("FAIRLIB_AUTO") != "0"


def tally(counts: Mapping[str, int]) -> None:
    """Add to the counts in the provenance of the run that executes this notebook; outside a run do
    nothing."""
    if RUN_VARIABLE in os.environ:
        with written(Path(os.environ[RUN_VARIABLE], TALLY.format(os.urandom(8).hex()))) as new:
            new.write_text(json.dumps(dict(counts)))


def workers(device: str | torch.device = "auto") -> int:
    """Give back how many processes should train at the same time: one per core on the CPU, one on
    any other device.

    Args:
        device: Name of the device that trains, or ``"auto"`` (:func:`resolve_device`).
    """
    from joblib import cpu_count

    return cpu_count() if resolve_device(device).startswith("cpu") else 1


def clock(device: str = "auto") -> float:
    """Timestamp in seconds (CPU: process time; CUDA: synchronized wall clock). Subtract two.

    Args:
        device: Name of the device that computes, or ``"auto"`` (:func:`resolve_device`).
    """
    device = resolve_device(device)
    if not device.startswith("cuda"):
        return time.process_time()
    import torch

    torch.cuda.synchronize(device)
    return time.perf_counter()


def source_digest(package: Path | None = None, *, without: Collection[str] = ()) -> str:
    """Digest the meaning of a package's code: edits of docstrings, comments or formatting do not
    change it.

    A Python file counts by its name and its syntax tree without the statements that are only a
    text; a stub, which only type checkers read, and the records that a wheel carries, not at all;
    any other file by its name and its bytes.

    Args: package: Folder of the package; by default fairlib's. without: Modules and packages to
        leave out, as paths from the package's folder without a suffix.
    """
    total, package = hashlib.sha256(), LIBRARY if package is None else package
    for path in sorted(package.rglob("*")):
        name = path.relative_to(package)
        left_out = any(map(name.with_suffix("").is_relative_to, ("records", *without)))
        if (
            path.is_file()
            and path.suffix != ".pyi"
            and "__pycache__" not in name.parts
            and not left_out
        ):
            content = path.read_bytes()
            meaning = (
                _meaning(content, path)
                if path.suffix == ".py"
                else hashlib.sha256(content).hexdigest()
            )
            total.update(f"{name.as_posix()} {meaning}\n".encode())
    return total.hexdigest()


@functools.cache
def _meaning(content: bytes, path: Path) -> str:
    return hashlib.sha256(_plain(ast.parse(content, path)).encode()).hexdigest()


def _plain(node: object) -> str:
    """A syntax tree as a text, without its empty fields and the empty ends of formats, since new
    Pythons add such."""
    if isinstance(node, list):
        return f"[{','.join([_plain(item) for item in node if not _is_text(item)])}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, ast.JoinedStr):
        node = ast.JoinedStr([part for part in node.values if getattr(part, "value", None) != ""])
    fields = [
        f"{name}={_plain(value)}"
        for name, value in ast.iter_fields(node)
        if value is not None and value != []
    ]
    return f"{type(node).__name__}({','.join(fields)})"


def _is_text(node: object) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


@contextmanager
def written(path: str | Path) -> Iterator[Path]:
    """Write a file as a whole or not at all: the block writes to a new path, which replaces
    ``path`` unless it fails.

    Each call has a new path, so that threads and processes may write the same file at the same
    time; the last one wins.

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
    info = Path("/proc/cpuinfo")
    names = re.findall(
        r"^model name\s*: (.*)$", info.read_text() if info.exists() else "", re.MULTILINE
    )
    return names[0] if names else platform.processor() or platform.machine()
