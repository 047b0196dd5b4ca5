"""What the README and the book's pages show runs: Python, and the commands that need no network and
no environment.

A page's blocks run in its order, in a folder with the project's notebooks, parameters and tables,
with one seed and one epoch in place of more."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from itertools import pairwise
from pathlib import Path

import pytest
from size import measure

from fairlib import data, mitigation, pruning
from whopays import claims, cli

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NOT_RUN = {  # Commands by their first words, with the reason.
    "make book": "executes all notebooks",
    "make test": "runs this",
    "make check": "runs this",
    "make sweep": "trains for minutes to hours",
    "make verify": "installs an environment; how-to/check-a-number.md runs `whopays verify`",
    "source .venv/bin/activate": "the environment of these tests is active",
    "make lab": "opens a browser",
    "pytest --nbval": "make test runs it",
    ".venv/bin/pip install": "needs a network",
}
PAGES = [ROOT / "README.md", *sorted((ROOT / "book").rglob("*.md"))]
SHOWN = {
    page.relative_to(ROOT).as_posix(): BLOCK.findall(page.read_text("utf-8")) for page in PAGES
}


def shortened(code: str) -> str:
    return re.sub(r"range\(\d+\)", "range(1)", re.sub(r"(epochs\W{1,3})\d+", r"\g<1>1", code))


def commands(block: str) -> list[list[str]]:
    """The words of each command of a block, without those that are not run."""
    found = [shlex.split(line, comments=True) for line in block.replace("\\\n", " ").splitlines()]
    return [words for words in found if words and not " ".join(words).startswith(tuple(NOT_RUN))]


def hastened(words: list[str]) -> list[str]:
    """A command with the smoke parameters of its notebook and one seed, if it runs a notebook."""
    if words[:1] != ["papermill"] and words[:2] != ["whopays", "run"]:
        return words
    words = ["1" if before == "seeds" else word for before, word in pairwise(["", *words])]
    if words[0] == "papermill":
        return words
    smoke = words[2].replace("notebooks/", "params/smoke/").replace(".ipynb", ".yml")
    seeds = [] if "seeds" in words else ["-p", "seeds", "1"]
    return [*words[:3], "-f", smoke, *words[3:], *seeds]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder that looks like the project to what runs in it."""
    for name in ("notebooks", "params"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("results", "book", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def run_command(words: list[str], folder: Path) -> None:
    """Run a command as a reader would, with the library and the Python of these tests."""
    modules = {"fairlib": "fairlib.cli", "whopays": "whopays", "papermill": "papermill"}
    assert words[0] in modules, (
        f"{shlex.join(words)}: run it here, or name it in NOT_RUN with the reason"
    )
    paths = {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'book'}",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    command = [sys.executable, "-m", modules[words[0]], *hastened(words)[1:]]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | paths, capture_output=True, text=True
    )
    # A table does not agree to the last digit on every CPU: 1 is an answer, too.
    assert done.returncode in ((0, 1) if words[1] == "verify" else (0,)), done.stdout + done.stderr
    assert words[1] != "verify" or "rows matched" in done.stdout, done.stdout + done.stderr


def test_an_experiment_of_five_arms_has_at_most_15_statements():
    (first, *_) = [code for language, code in SHOWN["book/contributing.md"] if language == "python"]
    assert first.count("Arm(") == 5
    assert measure(first).statements <= 15


def test_the_claim_that_the_guide_shows_gets_a_verdict(tmp_path: Path):
    (entry,) = re.findall(
        r"^```yaml\n(.*?)^```$",
        (ROOT / "book" / "contributing.md").read_text("utf-8"),
        re.DOTALL | re.MULTILINE,
    )
    (tmp_path / "claims.yml").write_text(entry, encoding="utf-8")
    (row,) = claims.evaluate_claims(claims.read_claims(tmp_path / "claims.yml"), ROOT).itertuples()
    assert row.seeds >= 10 and row.verdict != "undecided"


def test_what_is_not_run_is_shown():
    shown = "\n".join(["", *(code for blocks in SHOWN.values() for _, code in blocks)])
    assert not [start for start in NOT_RUN if f"\n{start}" not in shown]


def test_files_that_commands_name_exist():
    named = re.findall(
        r"\b(?:params|results|notebooks)/[\w/.-]+", "".join(c for b in SHOWN.values() for _, c in b)
    )
    assert named and not [path for path in named if not (ROOT / path).exists()]


RUNS = re.compile(r"^(papermill|whopays (run|verify)) ", re.MULTILINE)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if RUNS.search(page_code) else ())
        for page, blocks in SHOWN.items()
        if (page_code := "".join(code for _, code in blocks))
    ],
)
def test_code_on_a_page_runs(page: str, project: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(project)
    monkeypatch.setenv("FAIRLIB_CACHE", str(project))
    registries = ((pruning, "PRUNERS"), (mitigation, "MITIGATIONS"), (data, "DATASETS"))
    for package, registry in registries:  # A page adds to these.
        monkeypatch.setattr(package, registry, dict(getattr(package, registry)))
    names: dict[str, object] = {}
    for number, (language, block) in enumerate(SHOWN[page], start=1):
        if language == "bash":
            for words in commands(block):
                if words[:2] == ["whopays", "ledger"]:  # Each build writes it, from every claim.
                    cli._parser().parse_args(words[1:])
                else:
                    run_command(words, project)
            continue
        with warnings.catch_warnings():
            # Of an epoch a network learns little.
            warnings.filterwarnings(
                "ignore", message=".*cannot be told from chance", category=UserWarning
            )
            exec(compile(shortened(block), f"{page}, block {number}", "exec"), names)
