"""What surrounds a run: hardware and versions, what the code means, the project's folder, files written as a whole.

The console command and the Snakefile start with this file, so nothing is imported at its top that takes time.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import os
import platform
import re
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from fairlib._version import __version__

if TYPE_CHECKING:
    import torch

PACKAGES = ("torch", "torchvision", "numpy", "scipy", "pandas", "scikit-learn", "matplotlib")
LIBRARY = Path(__file__).resolve().parent


def describe(device: str = "auto") -> dict[str, object]:
    """Device, processor, cores, threads, platform and the versions of what computes.

    Args:
        device: As of :func:`fairlib.fit`; a CUDA device is named by its product name.
    """
    import torch

    device = resolve(device)
    return {
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else device,
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "platform": platform.platform(),
        "versions": {"python": platform.python_version(), "fairlib": __version__}
        | {name: metadata.version(name) for name in PACKAGES},
    }


def resolve(device: str | torch.device) -> str:
    """The name of a device; that of ``"auto"`` is CUDA where there is one, and else the processor."""
    if device != "auto":
        return str(device)
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def workers(device: str | torch.device = "auto") -> int:
    """Processes that train side by side with profit: as many as there are cores, and one on any other device.

    Args:
        device: As of :func:`fairlib.fit`.
    """
    from joblib import cpu_count

    return cpu_count() if resolve(device).startswith("cpu") else 1


def clock(device: str = "auto") -> float:
    """Seconds for a difference: of this process on the processor; of the wall, all work done, on a CUDA device.

    Args:
        device: As of :func:`fairlib.fit`.
    """
    device = resolve(device)
    if not device.startswith("cuda"):
        return time.process_time()
    import torch

    torch.cuda.synchronize(device)
    return time.perf_counter()


def project() -> Path:
    """The project's folder, if the working directory lies in it; else (in Colab) the working directory itself."""
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / "book" / "claims.yml").exists()), here)


def source_digest(without: Collection[str] = ()) -> str:
    """Digest of what the code of fairlib means: an edit of a docstring, a comment or the formatting leaves it as it is.

    What counts of a Python file is its name and its syntax tree without the statements that are only a text; of any
    other file, its name and its bytes.

    Args:
        without: Modules and packages to leave out, as paths from the library's folder without a suffix.
    """
    total = hashlib.sha256()
    for path in sorted(LIBRARY.rglob("*")):
        name = path.relative_to(LIBRARY)
        left_out = any(map(name.with_suffix("").is_relative_to, without))
        if path.is_file() and "__pycache__" not in name.parts and not left_out:
            content = path.read_bytes()
            meaning = _meaning(content, path) if path.suffix == ".py" else hashlib.sha256(content).hexdigest()
            total.update(f"{name.as_posix()} {meaning}\n".encode())
    return total.hexdigest()


@functools.cache
def _meaning(content: bytes, path: Path) -> str:
    return hashlib.sha256(_plain(ast.parse(content, path)).encode()).hexdigest()


def _plain(node: object) -> str:
    """A syntax tree as a text. Fields that are empty are left out, since new versions of Python add such."""
    if isinstance(node, list):
        return f"[{','.join([_plain(item) for item in node if not _is_text(item)])}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = [f"{name}={_plain(value)}" for name, value in ast.iter_fields(node) if value is not None and value != []]
    return f"{type(node).__name__}({','.join(fields)})"


def _is_text(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@contextmanager
def written(path: str | Path) -> Iterator[Path]:
    """A new path beside ``path`` to write to; it takes the place of ``path`` as a whole, or not at all after an error.

    Each call has a path of its own, so that threads and processes may write the same file at once; the last one wins.
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


def _cpu() -> str:
    try:
        names = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
