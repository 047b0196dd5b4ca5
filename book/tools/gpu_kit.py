"""Pack grids for a GPU machine without a network: `python book/tools/gpu_kit.py GRID ...`.

A kit is a folder `_build/gpu-kit/NAME` for each data set that the grids need: the project as it is
committed, the files that fairlib reads of the data set, finished runs of these grids, small
packages as wheels, and the script `record`, which runs the grids there by `whopays record`. Nothing
but the wheels comes from a network.
"""

from __future__ import annotations

import argparse
import itertools
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from fairlib import data
from whopays import grids, plan, recording, runs

ROOT = Path(__file__).parents[2]
LARGE = {
    "torch": "torch",
    "torchvision": "torchvision",
    "numpy": "numpy",
    "scipy": "scipy",
    "pandas": "pandas",
    "pyarrow": "pyarrow",
    "scikit-learn": "sklearn",
    "matplotlib": "matplotlib",
}
"""Requirements that a GPU machine has to have, with the names of their modules."""

RUNNER = ("papermill", "ipykernel", "filelock")
"""Packages that execute a notebook."""

NEEDLESS = ("debugpy", "jedi")
"""Packages, ten of twenty megabytes, that ipykernel and IPython run notebooks without."""

# Wheels name the oldest Linux that they run on; pip takes the names one by one.
PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014", "manylinux1")
NO_DATA = "no-data"
"""Name of the kit of grids that need no files of data."""


def wheels(root: Path, python: str, folder: Path) -> None:
    """Download what fairlib and a run need, without the large packages, for x86-64 Linux."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [re.split("[<>=,]", text)[0] for text in project["dependencies"]]
    small = [name for name in names if name not in LARGE]
    # It needs torch, which would come with it.
    alone = "torch-pruning"
    for wanted in [["--no-deps", alone], [*RUNNER, *(name for name in small if name != alone)]]:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"]
        command += ["--implementation", "cp", "--python-version", python, "--dest", str(folder)]
        command += [word for name in PLATFORMS for word in ("--platform", f"{name}_x86_64")]
        lock = ["--constraint", str(root / "requirements.lock")]
        subprocess.run([*command, *lock, *wanted], check=True)
    for path in (path for name in NEEDLESS for path in folder.glob(f"{name}-*.whl")):
        path.unlink()


def files_read(name: str, root: Path) -> list[Path]:
    """List the files under ``root`` that fairlib opens when it loads all of a data set.

    They are packed as they are, however large: pictures that were scaled down here would reach the
    networks with other pixels.

    Raises:
        FileNotFoundError: If the data are missing; says how to get them.
    """
    opened: set[str] = set()
    # Python tells its audit hooks of each file that it opens. So no list of each data set's files
    # has to be kept here, and data that cannot be read are found now and not on a lent machine.
    sys.addaudithook(lambda event, given: opened.add(str(given[0])) if event == "open" else None)
    source = data.lookup("data set", name, data.DATASETS)
    seed = data.seed_sequence(0)
    found = source(data.Request(str(root), None, (0.7, 0.1, 0.2), seed))
    for start in range(0, len(found.table), 1000):
        found.images(np.arange(start, min(start + 1000, len(found.table))))
    paths = {Path(path) for path in opened if path.startswith(f"{root}/")}
    return sorted(path for path in paths if path.is_file())


def pack(path: Path, files: Iterable[Path], root: Path, folder: str = "") -> None:
    """Pack files, with their names from ``root`` on, into a folder of an archive."""
    with tarfile.open(path, "w:gz", compresslevel=6) as archive:
        for file in files:
            archive.add(file, Path(folder, file.relative_to(root)).as_posix())


def kits(root: Path, names: Iterable[str]) -> dict[str, list[str]]:
    """Sort grids by the data sets that they need: ``utkface``, ``celeba``, ....

    Raises:
        ParameterError: If a file is not a grid, or is not committed.
        OSError: If a file is missing.
    """
    found = defaultdict(list)
    for name in recording.listed(names):
        points = grids.expand(name)
        path = Path(name).resolve().relative_to(root).as_posix()
        if not runs.git(root, "ls-tree", "HEAD", "--", path):
            raise runs.ParameterError(f"{name} is not committed, and a kit holds what is")
        needed = set(itertools.chain.from_iterable(map(plan.data_sets, points)))
        found["+".join(sorted(needed)) or NO_DATA].append(path)
    return found


def make(kit: Path, root: Path, own: list[str], place: Path, packages: Path) -> None:
    """Make the kit of some grids; what a kit of the same name has recorded stays in its folder."""
    # Read before anything is written: without the data there is no kit.
    names = kit.name.split("+")
    read = [path for name in names if name != NO_DATA for path in files_read(name, place)]
    kit.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(kit / "wheels", ignore_errors=True)
    shutil.copytree(packages, kit / "wheels")
    archive = ["git", "archive", "--format=tar.gz", f"--output={kit / 'project.tar.gz'}", "HEAD"]
    subprocess.run(archive, cwd=root, check=True)
    pack(kit / "data.tar.gz", read, place, "data")
    found = [(points, grids.unfit(points)) for points in map(grids.expand, own)]
    done = [point for points, unfit in found for point in points if point.id not in unfit]
    files = [path.resolve() for point in done for path in sorted(point.out.iterdir())]
    pack(kit / "runs.tar.gz", files, root)
    shutil.copyfile(Path(__file__).with_suffix(".sh"), kit / "record")
    (kit / "grids.txt").write_text("\n".join(own) + "\n", encoding="utf-8")
    stamp = f"{runs.git(root, 'rev-parse', 'HEAD')}{datetime.now(UTC).isoformat()}\n"
    (kit / "made").write_text(stamp, encoding="utf-8")


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description="Pack grids for a GPU machine without a network.")
    parser.add_argument("grids", nargs="+", help="grids, or files that list them in order of worth")
    parser.add_argument("--data", type=Path, default=root / "data", help="folder of the data sets")
    parser.add_argument("--python", default="3.12", help="version of the machine's Python")
    given, failed = parser.parse_args(arguments), False
    root = root.resolve()
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = kits(root, given.grids)
            packages = Path(folder)
            wheels(root, given.python, packages)
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            print(f"gpu-kit: {error}", file=sys.stderr)
            return 2
        if runs.git(root, "status", "--porcelain"):
            print("gpu-kit: changes that are not committed are not in the kit", file=sys.stderr)
        for name, own in found.items():
            kit = root / "_build" / "gpu-kit" / name
            try:
                make(kit, root, own, given.data.resolve(), packages)
            except (OSError, ValueError) as error:
                print(f"gpu-kit: no kit {name} for {', '.join(own)}: {error}", file=sys.stderr)
                failed = True
                continue
            (kit / "needs").write_text(f"{given.python} {' '.join(LARGE.values())}\n")
            packed = (*kit.glob("*.tar.gz"), *kit.glob("wheels/*"))
            size = sum(path.stat().st_size for path in packed) / 1e6
            print(f"{kit}: {size:.1f} MB; {len(own)} grid{'s' * (len(own) > 1)}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
