"""What a number was computed with: hardware and versions."""

from __future__ import annotations

import os
import platform
import re
import time
from importlib import metadata
from pathlib import Path

import torch

from fairlib._version import __version__

PACKAGES = ("torch", "torchvision", "numpy", "scipy", "pandas", "scikit-learn", "matplotlib")


def describe(device: str = "auto") -> dict[str, object]:
    """Device, processor, cores, threads, platform and the versions of what computes.

    Args:
        device: As of :func:`fairlib.fit`; a CUDA device is named by its product name.
    """
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
    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else str(device)


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
    torch.cuda.synchronize(device)
    return time.perf_counter()


def project() -> Path:
    """The project's folder, if the working directory lies in it; else (in Colab) the working directory itself."""
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / "book" / "claims.yml").exists()), here)


def _cpu() -> str:
    try:
        names = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
