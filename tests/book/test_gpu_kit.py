"""A kit for a GPU machine: packed from what is committed, and run outside the repository."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import gpu_kit
import numpy as np
import pandas as pd
import pytest
from built import ROOT
from PIL import Image
from toy_notebooks import write_notebook

PARAMETERS = """\
data: str = "utkface"  # data set
root: str = "data"  # folder that holds the data set's folder
seed: int = 0  # seed of weights and data
device: str = "auto"  # auto, cpu or cuda
"""
STUDY = """\
import fairlib
from fairlib.studies import RunSettings
from whopays import record
settings = {"target": "gender", "group": "race", "image_size": 8, "root": root}
table = fairlib.study(
    data=(data, settings), model="cnn", method="prune:magnitude", levels=[0.5], seeds=[seed],
    train={"epochs": 1}, finetune={"epochs": 1}, device=device, progress=False, run=RunSettings(workers=1),
)
record(table.assign(library=fairlib.__file__))
"""
PREPARATION = [
    ["init", "--quiet"],
    ["add", "--all"],
    ["-c", "user.name=n", "-c", "user.email=n@n", "commit", "--quiet", "--message=all"],
]


def noise(folder: Path, number: int = 160) -> None:
    """Pictures of noise, named as UTKFace's are."""
    folder.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (number, 12, 12, 3), dtype=np.uint8)
    for i, image in enumerate(pixels):
        Image.fromarray(image).save(folder / f"30_{i % 2}_{i // 2 % 5}_2017{i:04}.jpg.chip.jpg")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A committed project of three grids with the real library, and data beside it."""
    root = tmp_path / "project"
    for name in ("fairlib", "book/whopays"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("requirements.lock", "pyproject.toml", "_toc.yml"):
        shutil.copy(ROOT / name, root)
    (root / ".gitignore").write_text("/_build/\n")
    write_notebook(root / "notebooks" / "part" / "toy.ipynb", STUDY, parameters=PARAMETERS)
    (root / "params").mkdir()
    for name, settings in {"faces": "utkface", "stars": "celeba", "digits": "digits"}.items():
        (root / "params" / f"{name}.yml").write_text(
            f"table: results/part/{name}.csv\nruns:\n  - notebook: notebooks/part/toy.ipynb\n"
            f"    parameters: {{data: {settings}}}\n    grid: {{seed: [0, 1]}}\n"
        )
    (root / "params" / "list.txt").write_text(
        "params/faces.yml\nparams/stars.yml\nparams/digits.yml\n"
    )
    for words in PREPARATION:
        subprocess.run(["git", *words], cwd=root, check=True)
    noise(tmp_path / "data" / "UTKFace")
    # This machine has the packages, and needs no network.
    monkeypatch.setattr(gpu_kit, "wheels", lambda *ignored: None)
    monkeypatch.chdir(root)
    return root


def pack(root: Path, *grids: str) -> int:
    words = [*grids, "--data", str(root.parent / "data")]
    return gpu_kit.main(words, root)


def names(archive: Path) -> list[str]:
    with tarfile.open(archive) as file:
        return file.getnames()


def record(kit: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the script of a kit, with no variables but these and no repository around."""
    return subprocess.run(
        ["bash", str(kit / "record"), *words],
        cwd=kit.parent,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(kit.parent),
            "PYTHON": sys.executable,
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=280,
    )


class TestPacking:
    def test_each_data_set_has_its_kit_with_what_is_committed_and_read(self, project, capsys):
        (project.parent / "data" / "UTKFace" / "all.zip").write_bytes(b"not read")
        Path("fairlib", "new.py").write_text("not committed")
        assert pack(project, "params/list.txt") == 1
        kits = project / "_build" / "gpu-kit"
        assert sorted(path.name for path in kits.iterdir()) == ["no-data", "utkface"]
        said = capsys.readouterr()
        assert "no kit celeba for params/stars.yml: found no file" in said.err
        assert "changes that are not committed are not in the kit" in said.err
        assert "utkface: 0." in said.out and said.out.rstrip().endswith("1 grid")
        packed = names(kits / "utkface" / "data.tar.gz")
        assert len(packed) == 160 and packed[0].startswith("data/UTKFace/30_0_0_2017")
        files = names(kits / "utkface" / "project.tar.gz")
        assert "fairlib/__init__.py" in files and "fairlib/new.py" not in files
        assert names(kits / "no-data" / "data.tar.gz") == []
        assert (kits / "no-data" / "grids.txt").read_text() == "params/digits.yml\n"

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("params/none.yml", "No such file or directory: 'params/none.yml'"),
            ("params/new.yml", "params/new.yml is not committed"),
            ("pyproject.toml", "No such file or directory"),
        ],
    )
    def test_what_is_no_committed_grid_is_refused_before_anything_is_made(
        self, project, capsys, name, message
    ):
        shutil.copy("params/faces.yml", "params/new.yml")
        assert pack(project, "params/digits.yml", name) == 2
        error = capsys.readouterr().err
        assert error.startswith("gpu-kit: ") and message in error and error.count("\n") == 1
        assert not (project / "_build" / "gpu-kit").exists()

    def test_every_requirement_is_packed_or_asked_of_the_machine(self, tmp_path, monkeypatch):
        asked = []
        monkeypatch.setattr(gpu_kit.subprocess, "run", lambda words, check: asked.append(words))
        for name in ("debugpy-1-py3-none-any.whl", "ipykernel-1-py3-none-any.whl"):
            (tmp_path / name).touch()
        gpu_kit.wheels(ROOT, "3.12", tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["ipykernel-1-py3-none-any.whl"]
        assert all(words[words.index("--python-version") + 1] == "3.12" for words in asked)
        wanted = [words[words.index("--constraint") + 2 :] for words in asked]
        # torch-pruning alone: with what it requires, all of torch would come along.
        assert wanted[0] == ["--no-deps", "torch-pruning"]
        assert {"papermill", "ipykernel", "pyyaml", "safetensors", "lazy-loader"} <= set(wanted[1])
        assert not set(wanted[1]) & {*gpu_kit.LARGE, "torch-pruning"}


class TestScript:
    """The script alone, with a program in place of the project that says how it was called."""

    @pytest.fixture
    def kit(self, tmp_path):
        kit = tmp_path / "there" / "kit"
        (kit / "wheels").mkdir(parents=True)
        shutil.copy(ROOT / "book" / "tools" / "gpu_kit.sh", kit / "record")
        (kit / "needs").write_text(f"{sys.version_info[0]}.{sys.version_info[1]} json")
        (kit / "made").write_text("c0ffee\nnow\n")
        (kit / "grids.txt").write_text("params/toy.yml\n")
        self.project(kit, "first")
        # A package that is missing here, and another version of one that is not.
        self.wheel(kit, "kit_probe", "1.0")
        self.wheel(kit, "papermill", "0.1")
        return kit

    def project(self, kit: Path, text: str) -> None:
        program = kit / "whopays" / "__main__.py"
        program.parent.mkdir(exist_ok=True)
        program.write_text(
            "import json, os, sys\nfrom importlib.metadata import version\nimport kit_probe\n"
            "found = {name: version(name) for name in ('kit_probe', 'papermill')}\n"
            "names = ('FAIRLIB_CACHE', 'WHOPAYS_COMMIT')\n"
            "list = open('params/gpu-list.txt').read()\n"
            f"print(json.dumps([{text!r}, sys.argv[1:], found, [os.environ[n] for n in names], list]))\n"
        )
        with tarfile.open(kit / "project.tar.gz", "w:gz") as archive:
            archive.add(program, "whopays/__main__.py")
        shutil.rmtree(program.parent)

    def wheel(self, kit: Path, name: str, version: str) -> None:
        information = f"{name}-{version}.dist-info"
        with zipfile.ZipFile(kit / "wheels" / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}/__init__.py", "")
            wheel.writestr(
                f"{information}/METADATA",
                f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            )
            wheel.writestr(
                f"{information}/WHEEL",
                "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            )
            wheel.writestr(f"{information}/RECORD", "")

    def test_it_installs_what_is_missing_and_nothing_else(self, kit):
        done = record(kit, "--minutes", "2")
        assert done.returncode == 0, done.stderr
        text, words, found, variables, listed = json.loads(done.stdout)
        spent = words[words.index("--spent") + 1]
        assert words == [
            "record",
            "-o",
            f"{kit}/out",
            "--minutes",
            "13",
            "--spent",
            spent,
            "--minutes",
            "2",
        ]
        assert text == "first" and found["kit_probe"] == "1.0" and found["papermill"] != "0.1"
        assert not list((kit / "work" / "site").glob("papermill*"))
        assert variables == [f"{kit}/work/cache", "c0ffee"] and listed == "params/toy.yml\n"

    def test_a_new_kit_replaces_the_project_and_not_its_finished_runs(self, kit):
        record(kit)
        runs, old = kit / "work" / "project" / "_build", kit / "work" / "project" / "old.py"
        runs.mkdir()
        old.touch()
        self.project(kit, "second")
        assert json.loads(record(kit).stdout)[0] == "first" and old.exists()
        (kit / "made").write_text("decaf\nlater\n")
        done = record(kit, OUT="elsewhere", FAIRLIB_CACHE="/cache")
        text, words, _, variables, _ = json.loads(done.stdout)
        assert text == "second" and variables == ["/cache", "decaf"]
        assert words[2] == f"{kit.parent}/elsewhere"
        assert runs.exists() and not old.exists()

    @pytest.mark.parametrize(
        ("needs", "message"),
        [
            ("2.7 json", "the kit has packages for Python 2.7, and this is 3."),
            ("3.12 json no_such_package", "lacks no_such_package, too large for the kit"),
        ],
    )
    def test_a_machine_that_lacks_something_is_told_so_in_one_line(self, kit, needs, message):
        (kit / "needs").write_text(needs)
        done = record(kit)
        assert done.returncode == 1 and done.stdout == ""
        assert message in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_kit_records_its_grids_outside_the_repository(project, tmp_path):
    assert pack(project, "params/faces.yml") == 0
    kit = tmp_path / "elsewhere" / "kit"
    shutil.copytree(project / "_build" / "gpu-kit" / "utkface", kit)
    refused = record(kit, CUDA_VISIBLE_DEVICES="")
    assert refused.returncode == 1 and "sees no GPU here; --device cpu" in refused.stderr
    words = ["--minutes", "4", "--device", "cpu"]
    done = record(kit, *words, "--at-once", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 minutes on the CPU, 2 runs at a time" in done.stdout
    # The next call finds everything done.
    again = record(kit, *words)
    assert "params/faces.yml: finished, 2 of 2 runs done, 0 failed, 0.0 s" in again.stdout
    assert sorted(path.name for path in (kit / "out").iterdir()) == [
        "log.txt", "recorded-0.tar.gz", "summary.json"
    ]  # fmt: skip
    with tarfile.open(kit / "out" / "recorded-0.tar.gz") as archive:
        archive.extractall(project, filter="data")
    table = pd.read_csv("results/part/faces.csv")
    assert sorted(table["seed"].unique()) == [0, 1]
    assert set(table["library"]) == {str(kit / "work/project/fairlib/__init__.py")}
    provenance = json.loads(Path("results/part/faces.json").read_text())
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    assert (provenance["commit"], provenance["dirty"]) == (head, False)
    # At home the runs are finished ones, which the next kit takes along.
    assert pack(project, "params/faces.yml") == 0
    runs = names(project / "_build" / "gpu-kit" / "utkface" / "runs.tar.gz")
    assert [Path(name).name for name in runs] == [
        "notebook.ipynb",
        "records.parquet",
        "run.json",
    ] * 2
