"""The ways to install this agree: pyproject.toml, requirements.lock and environment.yml; and the
Makefile's door."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import joblib
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from fairlib import environment

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
CONDA_NAMES = {"pytorch": "torch"}
NOT_OURS = {"python", "pip"}  # In environment.yml without being a requirement of the project.


def asked_for() -> dict[str, Requirement]:
    """The requirements of the library and its extras, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [
        line
        for name in ("audit", "book", "compact", "test")
        for line in project["optional-dependencies"][name]
    ]
    return by_name([*project["dependencies"], *extras])


def by_name(lines: list[str]) -> dict[str, Requirement]:
    requirements = [Requirement(line) for line in lines]
    return {canonicalize_name(CONDA_NAMES.get(r.name, r.name)): r for r in requirements}


def locked(python: str) -> dict[str, Requirement]:
    """The lock's pins that apply to a version of Python on Linux."""
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    place = {
        "python_version": python,
        "python_full_version": f"{python}.1",
        "sys_platform": "linux",
    }
    place |= {
        "platform_machine": "x86_64",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    return {
        canonicalize_name(pin.name): pin
        for pin in pins
        if pin.marker is None or pin.marker.evaluate(place)
    }


def conda() -> dict[str, Requirement]:
    content = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    pip = [
        line
        for part in content
        if isinstance(part, dict)
        for line in part["pip"]
        if not line.startswith("-")
    ]
    return by_name([line for line in content if isinstance(line, str)] + pip)


@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_pins_every_requirement_to_a_version_it_allows(python):
    pins = locked(python)
    for name, requirement in asked_for().items():
        assert name in pins, (
            f"{name} is not in requirements.lock; its second line says how to renew it"
        )
        (pin,) = pins[name].specifier
        assert pin.operator == "=="
        assert requirement.specifier.contains(pin.version, prereleases=True), (
            f"{requirement} is pinned to {pin.version}"
        )


def test_the_lock_names_no_host_or_path():
    assert not re.search(
        r"://|@|^-|\.whl", (ROOT / "requirements.lock").read_text(encoding="utf-8"), re.MULTILINE
    )


def test_conda_is_asked_for_the_same_versions():
    ranges = {name: requirement.specifier for name, requirement in asked_for().items()}
    found = {
        name: requirement.specifier for name, requirement in conda().items() if name not in NOT_OURS
    }
    assert found == ranges


def test_conda_and_make_take_the_same_pythons():
    pythons = conda()["python"].specifier
    assert [python for python in [*PYTHONS, "3.10", "3.14"] if pythons.contains(python)] == list(
        PYTHONS
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert all(SpecifierSet(project["requires-python"]).contains(python) for python in PYTHONS)
    assert "(3, 11) <= sys.version_info[:2] <= (3, 13)" in (ROOT / "Makefile").read_text(
        encoding="utf-8"
    )


def test_every_conda_requirement_has_a_reason():
    lines = (
        (ROOT / "environment.yml")
        .read_text(encoding="utf-8")
        .split("dependencies:\n")[1]
        .splitlines()
    )
    without = [
        line
        for line in lines
        if line.lstrip().startswith("- ") and "#" not in line and "pip:" not in line
    ]
    assert not without


def test_the_public_names_need_none_of_the_heavy_or_the_book_packages():
    heavy = [
        "torchvision",
        "sklearn",
        "matplotlib",
        "torch_pruning",
        "onnx",
        "papermill",
        "snakemake",
        "IPython",
        "nbformat",
    ]
    code = "import sys, fairlib.cli; from fairlib import *; "
    code += f"print([name for name in {heavy} if name in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
        == "[]\n"
    )


@pytest.fixture
def door(tmp_path):
    """The Makefile in a folder where nothing is set up, with what it needs to decide that."""
    (tmp_path / "book" / "tools").mkdir(parents=True)
    for name in ("Makefile", "requirements.lock", "pyproject.toml", "book/tools/lock.py"):
        shutil.copy(ROOT / name, tmp_path / name)

    def make(*words: str) -> subprocess.CompletedProcess:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("MAKE")
        }
        command = ["make", "-C", str(tmp_path), *words]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)

    return make


def test_help_names_every_command(door):
    for words in ([], ["help"]):
        text = door(*words).stdout
        names = (
            "env",
            "book",
            "book QUICK=1",
            "notebooks",
            "lab",
            "test",
            "lint",
            "sweep",
            "verify",
            "clean",
        )
        assert all(f"make {name}" in text for name in names)
        assert "minutes on two" in " ".join(text.split())


def test_without_a_suitable_python_make_says_what_would_be(door, tmp_path):
    old = tmp_path / "old-python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = door("env", f"PYTHON={old}")
    assert done.returncode != 0
    assert (
        "No Python of 3.11 to 3.13 with venv" in done.stderr
        and "apt install python3-venv" in done.stderr
    )
    assert not (tmp_path / ".venv").exists()


def test_what_is_installed_depends_on_content_and_not_on_times(door, tmp_path):
    def stamp() -> str:
        return re.search(r"touch (\.venv/\.installed-\w{16})", door("--dry-run", "env").stdout)[1]

    before = stamp()
    os.utime(tmp_path / "requirements.lock", (0, 0))
    assert stamp() == before
    (tmp_path / ".venv").mkdir()
    (tmp_path / before).touch()
    assert "Nothing to be done" in door("env").stdout
    with (tmp_path / "requirements.lock").open("a") as file:
        file.write("# changed\n")
    assert stamp() != before


@pytest.fixture
def installed(door, tmp_path):
    """The Makefile takes the environment to be there."""
    (tmp_path / ".venv").mkdir()
    (tmp_path / re.search(r"touch (\.venv/\S+)", door("--dry-run", "env").stdout)[1]).touch()


def test_a_sweep_without_a_grid_or_a_check_without_a_table_says_how(door, installed):
    done = door("sweep")
    assert done.returncode != 0 and "GRID=params/study/pruning/matthew-effect.yml" in done.stderr
    assert "there is no grid nowhere.yml" in door("sweep", "GRID=nowhere.yml").stderr
    assert "TABLE=results/pruning/matthew-effect-study.csv" in door("verify").stderr
    words = ("verify", "TABLE=a.csv", "SEEDS=2", "AVX2=1")
    assert 'whopays verify "a.csv" --seeds 2 --avx2' in door("--dry-run", *words).stdout


def test_a_quick_book_is_built_apart_and_flags_for_snakemake_show_its_own_output(door, installed):
    full, quick = door("--dry-run", "book").stdout, door("--dry-run", "book", "QUICK=1").stdout
    assert "progress.py _build snakemake book" in full and "quick=1" not in full
    assert "progress.py _build/quick" in quick and "snakemake book --config quick=1" in quick
    assert "progress.py" not in door("--dry-run", "book", "SNAKEMAKE=--dry-run").stdout


def test_what_is_built_is_removed_but_not_sweeps_locks_and_what_the_user_runs(door, tmp_path):
    names = "sweeps/run.json", "lab/notebooks/mine.ipynb", ".book.lock"
    kept = [tmp_path / "_build" / name for name in names]
    gone = [tmp_path / "_build" / name / "index.html" for name in ("html", "quick/html", "logs")]
    for path in (*kept, *gone):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert door("clean").returncode == 0
    assert sorted(path for path in (tmp_path / "_build").rglob("*") if path.is_file()) == sorted(
        kept
    )


class TestLock:
    """One build of a kind at a time, without the command `flock`."""

    @pytest.fixture
    def holder(self, door, tmp_path):
        """A shell that holds the lock of the book for as long as its child lives, which inherits
        it."""
        (tmp_path / "_build").mkdir()
        words = "exec 9> _build/.book.lock; python3 book/tools/lock.py 9 || exit; "
        words += "echo held; exec sleep 300"
        with subprocess.Popen(
            ["bash", "-c", words], cwd=tmp_path, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout.readline() == "held\n"
            yield process
            process.kill()

    def test_a_second_build_says_that_another_is_at_work(self, door, installed, holder):
        done = door("book")
        assert done.returncode != 0 and "Error 75" in done.stderr
        assert "another 'make book' is at work in this folder; wait until it is done" in done.stderr

    def test_a_lock_ends_with_its_holder_however_that_ends(self, tmp_path, door, installed, holder):
        waits = "exec 9> _build/.book.lock; python3 book/tools/lock.py 9"
        with subprocess.Popen(["bash", "-c", waits], cwd=tmp_path) as waiting:
            time.sleep(0.5)
            assert waiting.poll() is None
            holder.kill()
            assert waiting.wait(timeout=30) == 0

    def test_another_kind_of_build_is_not_kept_waiting(self, tmp_path, holder):
        words = "exec 9> _build/.sweep.lock; python3 book/tools/lock.py 9 0"
        assert subprocess.run(["bash", "-c", words], cwd=tmp_path, timeout=30).returncode == 0

    @pytest.mark.parametrize("number", ["ENOLCK", "ENOSYS", "EOPNOTSUPP"])
    def test_where_there_are_no_locks_a_build_says_so_and_goes_on(self, number, tmp_path):
        """Lustre and NFS may refuse them."""
        code = "import errno, fcntl, runpy, sys\n"
        code += "def flock(file, how): raise OSError(errno.NUMBER, 'refused')\n"
        code += "fcntl.flock = flock\nsys.argv = ['lock.py', '0', '0']\n"
        code += f"runpy.run_path({str(ROOT / 'book' / 'tools' / 'lock.py')!r}, run_name='__main__')"
        run = [sys.executable, "-c", code.replace("NUMBER", number)]
        done = subprocess.run(run, capture_output=True, text=True)
        assert done.returncode == 0
        assert done.stderr == "no file locks here: start one build at a time\n"
        done = subprocess.run([*run[:2], run[2].replace(number, "EBADF")], capture_output=True)
        assert done.returncode == 1  # A wrong descriptor is a fault of the Makefile.


def test_the_meaning_of_a_format_is_the_same_in_every_python():
    """From 3.12 on a format within a format ends in an empty text."""
    plain, ended = (ast.parse('f"{x:{width}}"', mode="eval").body for _ in range(2))
    plain.values[0].format_spec.values = plain.values[0].format_spec.values[:1]
    ended.values[0].format_spec.values = [*plain.values[0].format_spec.values, ast.Constant("")]
    assert environment.syntax_text(plain) == environment.syntax_text(ended)


def test_a_stub_is_part_of_no_digest(library):
    before = environment.source_digest()
    stub = library / "__init__.pyi"
    stub.write_text(stub.read_text(encoding="utf-8") + "more: int\n", encoding="utf-8")
    assert environment.source_digest() == before


def test_recorded_tables_are_no_part_of_the_code(library):
    before = environment.source_digest()
    (library / "records").mkdir()
    (library / "records" / "table.csv").write_text("seed\n0\n")
    assert environment.source_digest() == before


def test_the_wheel_carries_every_package_and_the_records():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "setuptools"
    ]
    found = {"whopays.records"}
    for place, name in ((ROOT, "fairlib"), (ROOT / "book", "whopays")):
        for path in place.glob(f"{name}/**/__init__.py"):
            found.add(path.parent.relative_to(place).as_posix().replace("/", "."))
    assert set(settings["packages"]) == found
    carried = {
        path
        for pattern in settings["package-data"]["whopays.records"]
        for path in ROOT.glob(pattern)
    }
    assert carried == {
        ROOT / "book" / "claims.yml",
        *(path for path in ROOT.glob("results/**/*") if path.is_file()),
    }


def test_the_clock_counts_what_is_computed_and_not_what_is_slept():
    before, wall = environment.clock("cpu"), time.perf_counter()
    time.sleep(0.2)
    assert environment.clock("cpu") - before < 0.1
    while time.perf_counter() - wall < 0.6:
        pass
    assert environment.clock("cpu") > before


def test_a_device_is_chosen_only_where_it_is_left_open_and_one_process_works_on_a_gpu(monkeypatch):
    for available, chosen in ((False, "cpu"), (True, "cuda")):
        monkeypatch.setattr("torch.cuda.is_available", lambda available=available: available)
        assert [environment.resolve_device(device) for device in ("auto", "cpu", "cuda:1")] == [
            chosen,
            "cpu",
            "cuda:1",
        ]
        counts = [environment.workers(device) for device in ("auto", "cpu", "cuda:1")]
        assert counts == [1 if available else joblib.cpu_count(), joblib.cpu_count(), 1]


class TestWritten:
    """Files that are written as a whole."""

    def test_the_file_is_there_at_the_end_and_on_the_disk_before_it_is_named(
        self, tmp_path, monkeypatch
    ):
        path, synced = tmp_path / "table.csv", []
        path.write_text("old")
        sync = os.fsync
        monkeypatch.setattr(os, "fsync", lambda file: (synced.append(path.read_text()), sync(file)))
        with environment.written(path) as new:
            new.write_text("new")
            assert path.read_text() == "old"
        assert (
            path.read_text() == "new" and synced == ["old"] and list(tmp_path.iterdir()) == [path]
        )

    def test_an_error_leaves_what_was_there_and_nothing_else(self, tmp_path):
        path = tmp_path / "table.csv"
        path.write_text("old")
        with pytest.raises(ZeroDivisionError), environment.written(path) as new:
            new.write_text("half")
            raise ZeroDivisionError
        with pytest.raises(FileNotFoundError), environment.written(str(path)):
            pass
        assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]

    def test_a_file_gets_the_permissions_of_an_ordinary_one(self, tmp_path):
        (tmp_path / "ordinary").touch()
        with environment.written(tmp_path / "written") as new:
            new.touch()
        assert (tmp_path / "written").stat().st_mode == (tmp_path / "ordinary").stat().st_mode

    def test_of_many_threads_and_processes_at_once_none_sees_half_a_file(self, tmp_path):
        path = tmp_path / "shared"

        def write(letter):
            for _ in range(20):
                with environment.written(path) as new:
                    new.write_text(letter * 100_000)
                text = path.read_text()
                assert len(text) == 100_000 and len(set(text)) == 1

        child = os.fork()
        try:
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(write, "abcd" if child else "efgh"))
        except BaseException:
            if not child:
                os._exit(1)
            raise
        if not child:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert list(tmp_path.iterdir()) == [path]
