"""Runs: done safely, once, and completely or not at all."""

from __future__ import annotations

import ast
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pytest
import torch
from edits import HARMFUL, HARMLESS, edit_files, other_body
from toy_notebooks import RECORD, write_notebook

from fairlib import environment
from whopays import runs
from whopays.runs import ParameterError, RunError


@pytest.fixture
def project(tmp_path, monkeypatch):
    """An empty project; what a run is out of date by is its own, fairlib included."""
    (tmp_path / "_toc.yml").touch()
    library = tmp_path / "library"
    library.mkdir()
    (library / "module.py").write_text("ONE = 1\n")
    monkeypatch.setattr(environment, "LIBRARY", library)
    return tmp_path


@pytest.fixture
def notebook(project):
    return write_notebook(project / "notebooks" / "part" / "toy.ipynb", "print(seeds)")


@pytest.fixture
def executed(monkeypatch):
    """Instead of executing notebooks, list the parameters they are given; what a run leaves is
    `content`."""

    class Executed(list):
        content = "{}"

        def __call__(self, notebook, folder, given, failed):
            self.append(dict(given))
            (folder / runs.NOTEBOOK).write_text(self.content)

    calls = Executed()
    monkeypatch.setattr(runs, "_execute", calls)
    return calls


class TestParameters:
    def test_types_and_defaults_are_read_from_the_cell(self, notebook):
        assert runs.parameters(notebook) == {
            "seeds": ("int", 2), "lr": ("float", 0.5), "data": ("str", "a=b"), "quick": ("bool", True)
        }  # fmt: skip

    @pytest.mark.parametrize(
        "line",
        [
            "x = 1",
            "x: int | None = None",
            "x: int = len('ab')",
            "x: int",
            "x: list = [1]",
            "import os",
        ],
    )
    def test_anything_but_an_annotated_literal_is_refused(self, project, line):
        path = write_notebook(project / "toy.ipynb", parameters=f"seed: int = 0\n{line}")
        with pytest.raises(ParameterError, match=r"toy\.ipynb: '.*' is not a parameter"):
            runs.parameters(path)

    def test_a_default_of_another_type_is_refused(self, project):
        path = write_notebook(project / "toy.ipynb", parameters="seed: int = 0.5")
        with pytest.raises(ParameterError, match=r"'seed' must be an int, got 0\.5"):
            runs.parameters(path)

    def test_a_misspelt_name_is_refused_with_the_known_ones(self, notebook):
        message = (
            r"unknown parameter 'seed' \(did you mean 'seeds'\?\); known: seeds, lr, data, quick"
        )
        with pytest.raises(ParameterError, match=message):
            runs.resolve_parameters(notebook, {"seed": 3})

    @pytest.mark.parametrize(
        ("name", "value", "expected"),
        [
            ("seeds", "5", 5), ("lr", "1e-3", 0.001), ("lr", 1, 1.0), ("data", "5", "5"), ("quick", "False", False),
            ("quick", "true", True), ("data", "none", "none"),
        ],
    )  # fmt: skip
    def test_texts_are_read_as_the_type_of_the_parameter(self, notebook, name, value, expected):
        found = runs.resolve_parameters(notebook, {name: value})[name]
        assert found == expected and type(found) is type(expected)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("seeds", "five"), ("seeds", 2.0), ("seeds", "2.5"), ("seeds", True), ("seeds", None), ("seeds", [1]),
            ("lr", "fast"), ("lr", float("nan")), ("lr", "inf"), ("lr", True), ("data", 5), ("data", False),
            ("quick", 1), ("quick", "no"),
        ],
    )  # fmt: skip
    def test_ill_typed_values_are_refused(self, notebook, name, value):
        with pytest.raises(ParameterError, match=f"parameter '{name}' must be .*, got"):
            runs.resolve_parameters(notebook, {name: value})

    def test_a_file_that_is_no_notebook_is_refused(self, project):
        (project / "toy.ipynb").write_text("# a notebook?")
        with pytest.raises(ParameterError, match="is not a Jupyter notebook"):
            runs.parameters(project / "toy.ipynb")

    @pytest.mark.parametrize("text", ["- 1\n- 2\n", "a: [1\n", ""])
    def test_a_parameter_file_maps_names_to_values(self, tmp_path, text):
        (tmp_path / "file.yml").write_text(text)
        with pytest.raises(ParameterError, match=r"file\.yml"):
            runs.read_yaml(tmp_path / "file.yml")


class TestRecord:
    def test_outside_a_run_nothing_is_written(self, tmp_path, monkeypatch):
        monkeypatch.delenv("FAIRLIB_RUN", raising=False)
        monkeypatch.chdir(tmp_path)
        table = pd.DataFrame({"a": [1]})
        assert runs.record(table) is table
        assert not list(tmp_path.iterdir())

    def test_in_a_run_the_rows_of_one_table_are_kept(self, tmp_path, monkeypatch):
        monkeypatch.setenv("FAIRLIB_RUN", str(tmp_path))
        runs.record(pd.DataFrame({"a": [2, 3], "b": ["y", "z"]}, index=[7, 8]))
        expected = pd.DataFrame({"a": [2, 3], "b": ["y", "z"]})
        pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "records.parquet"), expected)
        with pytest.raises(ValueError, match="table must be the only one of a run"):
            runs.record(pd.DataFrame({"a": [1], "b": ["x"]}))
        pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "records.parquet"), expected)

    @pytest.mark.parametrize(
        ("table", "error"),
        [
            ([1, 2], TypeError),
            (pd.DataFrame({"a": []}), ValueError),
            (pd.DataFrame([[1, 2]], columns=["a", "a"]), ValueError),
            (pd.DataFrame([[1, 2]]), ValueError),
            (pd.DataFrame({"a": [1]}, index=pd.Index([3], name="seed")), ValueError),
            (pd.DataFrame({"a": [object()]}), TypeError),
            (pd.DataFrame({"a": [1, "x"]}), TypeError),
        ],
    )
    def test_what_is_no_tidy_table_is_refused_and_leaves_nothing(
        self, tmp_path, monkeypatch, table, error
    ):
        monkeypatch.setenv("FAIRLIB_RUN", str(tmp_path))
        with pytest.raises(error, match="table"):
            runs.record(table)
        assert not list(tmp_path.iterdir())


class TestContents:
    def changed(self, notebook, change, given=None) -> set[str]:
        before = runs.contents(notebook, {})
        change()
        after = runs.contents(notebook, given or {})
        return {name for name in before if before[name] != after[name]}

    def test_every_content_counts_by_itself(self, notebook, project):
        assert self.changed(notebook, lambda: None, {"seeds": 3}) == {"parameters"}
        assert self.changed(notebook, lambda: None, {"seeds": "2"}) == set()
        module = project / "library" / "module.py"
        assert self.changed(notebook, lambda: module.write_text("ONE = 2\n")) == {"fairlib"}
        assert self.changed(notebook, lambda: module.rename(module.with_name("other.py"))) == {
            "fairlib"
        }
        lock = project / "requirements.lock"
        assert self.changed(notebook, lambda: lock.write_text("torch==1\n")) == {
            "requirements.lock"
        }
        assert self.changed(notebook, lambda: write_notebook(notebook, "print(lr)")) == {"notebook"}

    def test_times_do_not_count(self, notebook, project):
        files = [path for path in project.rglob("*") if path.is_file()]
        assert not self.changed(notebook, lambda: [os.utime(path, (0, 0)) for path in files])

    def test_tables_that_the_code_names_count_and_no_others(self, project):
        folder = project / "results" / "part"
        folder.mkdir(parents=True)
        (folder / "other.csv").write_text("a\n1\n")
        path = write_notebook(project / "toy.ipynb", "Path('results/part/toy-study.csv')")
        for name in ("toy-study.csv", "toy-study.json"):
            assert self.changed(path, lambda name=name: (folder / name).write_text("x")) == {
                "files it names"
            }
        assert not self.changed(path, lambda: (folder / "other.csv").write_text("a\n2\n"))
        path = write_notebook(
            project / "toy.ipynb", "for name in names: read(f'results/part/{name}.csv')"
        )
        assert self.changed(path, lambda: (folder / "other.csv").write_text("a\n3\n")) == {
            "files it names"
        }

    def test_tables_that_the_notebook_itself_recorded_stand_apart(self, project):
        path = write_notebook(
            project / "notebooks" / "toy.ipynb",
            "read('results/toy.csv'), read('results/other.csv')",
        )
        (project / "results").mkdir()
        for name, by in (("toy", "notebooks/toy.ipynb"), ("other", "notebooks/other.ipynb")):
            (project / "results" / f"{name}.json").write_text(
                json.dumps({"runs": 3, "notebook": by}, indent=1)
            )
        for name, expected in (("toy", "its recorded tables"), ("other", "files it names")):
            table = project / "results" / f"{name}.csv"
            assert self.changed(path, lambda table=table: table.write_text("a\n1\n")) == {expected}

    def test_the_claims_count_where_a_page_asks_for_verdicts(self, project):
        claims = project / "book" / "claims.yml"
        claims.parent.mkdir()
        claims.write_text("[]")
        asking = write_notebook(
            project / "toy.ipynb", "claims.verdicts(study, 'notebooks/part/toy.ipynb')"
        )
        assert self.changed(asking, lambda: claims.write_text("[] # one")) == {"files it names"}
        other = write_notebook(project / "other.ipynb", "print('no verdicts')")
        assert not self.changed(other, lambda: claims.write_text("[] # two"))


@pytest.fixture
def workshop(tmp_path, monkeypatch) -> Path:
    """A copy of the code of whopays, for tests to edit."""
    copy = shutil.copytree(
        runs.WORKSHOP, tmp_path / "whopays", ignore=shutil.ignore_patterns("__pycache__")
    )
    monkeypatch.setattr(runs, "WORKSHOP", copy)
    return copy


class TestCode:
    """Which edits of fairlib and whopays make the runs of notebooks out of date."""

    @pytest.fixture
    def changes(self, tmp_path, library, workshop):
        """The contents of a notebook's run that an edit changes: of a file, or of all in a folder
        of one of the packages."""

        def changes(name, edit, code="print(seeds)") -> set[str]:
            notebook = write_notebook(tmp_path / "toy.ipynb", code)
            before = runs.contents(notebook, {})
            package, _, module = name.partition("/")
            folder = {"fairlib": library, "whopays": workshop}[package]
            path = folder / module
            assert edit_files(path if path.exists() else path.with_suffix(".py"), edit)
            after = runs.contents(notebook, {})
            return {name for name in before if before[name] != after[name]}

        return changes

    @pytest.mark.slow
    @pytest.mark.parametrize("edit", HARMLESS)
    @pytest.mark.parametrize("package", ["fairlib", "whopays"])
    def test_docstrings_comments_and_formatting_do_not_count(self, changes, package, edit):
        assert not changes(package, edit)

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["cli", "grids", "ledger", "plan", "verify"])
    def test_grids_ledger_and_verification_do_not_count(self, changes, name):
        assert not changes(f"whopays/{name}", other_body, "fairlib.audit(before, after, test)")

    @pytest.mark.parametrize("name", ["fairlib/auditing/report", "fairlib/cli"])
    def test_the_audit_and_the_command_line_count_where_a_page_uses_them(self, changes, name):
        assert not changes(name, other_body)
        assert changes(name, other_body, "!fairlib audit predictions.csv") == {"fairlib"}

    @pytest.mark.slow
    @pytest.mark.parametrize("edit", HARMFUL)
    @pytest.mark.parametrize(
        "name",
        [
            "fairlib/statistics/samples",
            "fairlib/training/together",
            "whopays/plots",
            "whopays/effects",
        ],
    )
    def test_a_number_a_default_and_a_statement_count(self, changes, name, edit):
        assert changes(name, edit) == {name.partition("/")[0]}

    def test_a_release_the_claims_and_the_names_and_bytes_of_files_count(self, changes, library):
        assert changes("fairlib/_version", lambda text: text.replace('= "', '= "9'))
        assert changes("whopays/claims", other_body)
        table = library / "data" / "table.csv"
        table.write_text("1\n")
        assert changes("fairlib/data/table.csv", lambda text: "1\n\n")
        before = environment.source_digest()
        table.rename(table.with_name("other.csv"))
        assert environment.source_digest() != before

    def test_a_file_is_parsed_once(self, library, workshop, monkeypatch):
        first = environment.source_digest()
        whole = environment.source_digest(workshop)
        monkeypatch.setattr(ast, "parse", None)
        assert environment.source_digest() == first
        assert whole != environment.source_digest(workshop, without=runs.NOT_ON_PAGES)

    def test_no_page_shows_what_does_not_count(self):
        for path in Path(__file__).parents[2].glob("notebooks/*/*.ipynb"):
            cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
            code = "\n".join(
                "".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"
            )
            assert not re.search(r"import .*\b(grids|ledger)$", code, re.MULTILINE), path
            assert "audit" in code or not re.search(r"import .*\bcli$", code, re.MULTILINE), path

    def test_an_edit_of_a_comment_leaves_a_run_finished(self, notebook, executed, project):
        module = project / "library" / "module.py"
        runs.run_notebook(notebook, project / "out")
        module.write_text('"""One."""\n\nONE = (1)  # not two\n')
        assert not runs.run_notebook(notebook, project / "out")
        module.write_text('"""One."""\n\nONE = (2)  # not two\n')
        with pytest.raises(RunError, match=r"finished with other contents \(fairlib\)"):
            runs.run_notebook(notebook, project / "out")


class TestRun:
    def test_the_folder_says_what_was_run(self, notebook, executed, project):
        assert runs.run_notebook(notebook, project / "out", {"seeds": "3"})
        assert executed == [{"seeds": 3}]
        description = json.loads((project / "out" / "run.json").read_text())
        assert description["notebook"] == "notebooks/part/toy.ipynb"
        assert description["parameters"] == {"seeds": 3, "lr": 0.5, "data": "a=b", "quick": True}
        assert (
            description["contents"]
            == runs.contents(notebook, {"seeds": 3})
            != runs.contents(notebook, {})
        )
        assert description["files"] == {"notebook.ipynb": hashlib.sha256(b"{}").hexdigest()}
        assert description["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
        assert description["cpu_capability"] == torch.backends.cpu.get_cpu_capability()
        assert {
            "seconds",
            "started",
            "device",
            "cpu",
            "cores",
            "threads",
            "platform",
            "commit",
            "dirty",
        } < set(description)
        assert sorted(path.name for path in project.iterdir()) == [
            "_toc.yml",
            "library",
            "notebooks",
            "out",
        ]

    def test_a_checkout_is_dirty_by_what_is_no_recorded_table(self, notebook, executed, project):
        (project / ".gitignore").write_text("*out*")
        for command in ("init -q", "add .", "-c user.name=n -c user.email=e commit -qm first"):
            subprocess.run(["git", *command.split()], cwd=project, check=True)
        (project / "results").mkdir()
        (project / "results" / "other.csv").touch()
        runs.run_notebook(notebook, project / "out")
        (project / "other.py").touch()
        runs.run_notebook(notebook, project / "out-2")
        assert [runs.read_run(project / name)["dirty"] for name in ("out", "out-2")] == [
            False,
            True,
        ]

    def test_a_finished_run_is_skipped(self, notebook, executed, project):
        assert runs.run_notebook(notebook, project / "out")
        assert not runs.run_notebook(notebook, project / "out", {"seeds": 2})
        assert not runs.run_notebook(notebook, project / "out", force=True)
        assert len(executed) == 1

    def test_a_finished_run_of_other_contents_is_replaced_only_by_force(
        self, notebook, executed, project
    ):
        runs.run_notebook(notebook, project / "out")
        executed.content = '{"second": 1}'
        with pytest.raises(
            RunError, match=r"finished with other contents \(parameters\); --force replaces it"
        ):
            runs.run_notebook(notebook, project / "out", {"seeds": 3})
        assert (project / "out" / "notebook.ipynb").read_text() == "{}"
        assert runs.run_notebook(notebook, project / "out", {"seeds": 3}, force=True)
        assert (project / "out" / "notebook.ipynb").read_text() == '{"second": 1}'
        assert runs.read_run(project / "out")["parameters"]["seeds"] == 3
        assert sorted(path.name for path in (project / "out").iterdir()) == [
            "notebook.ipynb",
            "run.json",
        ]

    def test_a_run_that_lacks_a_file_is_not_finished(self, notebook, executed, project):
        runs.run_notebook(notebook, project / "out")
        (project / "out" / "notebook.ipynb").unlink()
        assert runs.run_notebook(notebook, project / "out")
        assert len(executed) == 2

    @pytest.mark.parametrize(
        "damage",
        [
            lambda text: text[:100],
            lambda text: "",
            lambda text: "{}",
            lambda text: "[1]",
            lambda text: "5",
            lambda text: '{"files": ["notebook.ipynb"], "contents": {}}',
            lambda text: text.replace('"seeds": 2', '"seeds": 3'),
        ],
    )
    def test_a_run_whose_description_is_damaged_is_named_and_executed_again(
        self, notebook, executed, project, capsys, damage
    ):
        runs.run_notebook(notebook, project / "out")
        path = project / "out" / "run.json"
        path.write_text(damage(path.read_text()))
        assert runs.run_notebook(notebook, project / "out")
        message = f"whopays: {project / 'out'}: run.json is not what the run wrote; it has to be executed again\n"
        assert capsys.readouterr().err == message
        assert not runs.run_notebook(notebook, project / "out") and len(executed) == 2

    def test_a_run_with_a_flipped_bit_or_the_file_of_another_run_is_not_finished(
        self, notebook, executed, project, capsys
    ):
        executed.content = '{"seeds": 2}'
        runs.run_notebook(notebook, project / "out")
        path = project / "out" / "notebook.ipynb"
        content = path.read_bytes()
        flipped = (content[:3] + bytes([content[3] ^ 1 << bit]) + content[4:] for bit in range(8))
        for other in (*flipped, b'{"seeds": 5}'):
            path.write_bytes(other)
            assert runs.read_run(project / "out") is None
            assert "out: notebook.ipynb is not what the run wrote" in capsys.readouterr().err
        path.write_bytes(content)
        assert runs.read_run(project / "out")

    def test_a_folder_with_other_files_is_left_alone(self, notebook, executed, project):
        (project / "out").mkdir()
        (project / "out" / "thesis.tex").write_text("years of work")
        with pytest.raises(RunError, match=r"holds other files \(thesis\.tex"):
            runs.run_notebook(notebook, project / "out", force=True)
        assert (project / "out" / "thesis.tex").read_text() == "years of work"
        with pytest.raises(RunError, match="is a file"):
            runs.run_notebook(notebook, notebook)
        assert not executed

    def test_what_cannot_be_written_leaves_nothing(self, notebook, executed, project, monkeypatch):
        def full(*arguments):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(environment, "sync", full)
        with pytest.raises(OSError, match="No space left"):
            runs.run_notebook(notebook, project / "out")
        assert not list(project.glob("out*"))


class TestLock:
    """Two processes that are asked for the same run."""

    def test_the_second_waits_and_then_finds_the_run_finished(
        self, notebook, project, monkeypatch, capsys
    ):
        begun, end = threading.Event(), threading.Event()

        def execute(path, folder, given, failed):
            begun.set()
            assert end.wait(60)
            (folder / runs.NOTEBOOK).write_text("{}")

        monkeypatch.setattr(runs, "_execute", execute)
        said = []
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(runs.run_notebook, notebook, project / "out")
            assert begun.wait(60)
            second = pool.submit(runs.run_notebook, notebook, project / "out")
            wait_for(lambda: said.append(capsys.readouterr().err) or "waiting" in "".join(said))
            end.set()
        assert first.result() and not second.result()
        message = rf"whopays: .*/out is running in process {os.getpid()} on \S+; waiting until that ends\n"
        assert re.fullmatch(message, "".join(said))
        assert sorted(path.name for path in project.iterdir()) == [
            "_toc.yml",
            "library",
            "notebooks",
            "out",
        ]

    def test_of_many_one_is_at_work_at_a_time(self, project):
        """Also where a lock file is removed while others wait for it."""
        inside, most = [], []

        def work(_):
            with runs.workspace(project / "out"):
                inside.append(threading.get_ident())
                most.append(len(inside))
                time.sleep(0.001)
                inside.remove(threading.get_ident())

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(80)))
        assert most == [1] * 80 and not list(project.glob(".out*"))

    def test_a_process_that_dies_frees_the_lock(self, notebook, executed, project):
        code = f"""
from pathlib import Path
import time
from whopays import runs
with runs.workspace(Path({str(project / "out")!r})) as folder:
    folder.mkdir()
    print("working", flush=True)
    time.sleep(60)
"""
        with subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout.readline() == "working\n"
            waiting = threading.Thread(target=runs.run_notebook, args=(notebook, project / "out"))
            waiting.start()
            waiting.join(0.3)
            assert waiting.is_alive() and not executed
            process.kill()
        waiting.join(30)
        assert len(executed) == 1
        assert sorted(path.name for path in project.iterdir()) == [
            "_toc.yml",
            "library",
            "notebooks",
            "out",
        ]

    def test_where_there_are_no_locks_a_run_goes_on_without(
        self, notebook, executed, project, monkeypatch
    ):
        def refuse(*arguments):
            raise OSError(95, "Operation not supported")

        working = project / f"out.tmp-1@{socket.gethostname()}"
        working.mkdir()
        monkeypatch.setattr(fcntl, "flock", refuse)
        assert runs.run_notebook(notebook, project / "out")
        assert not runs.run_notebook(notebook, project / "out")
        assert working.exists() and not list(project.glob(".out*"))


class TestKernel:
    """Real executions."""

    def test_a_run_records_and_leaves_no_progress_in_the_page(self, project, monkeypatch):
        progress = "import sys\nfrom tqdm import tqdm\nlist(tqdm(range(3)))\nprint('a warning', file=sys.stderr)"
        where = "import os\nprint(os.getcwd())"
        path = write_notebook(project / "notebooks" / "part" / "toy.ipynb", where, progress, RECORD)
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        assert runs.run_notebook(path, project / "runs" / "{seeds}", {"seeds": 3})
        out = project / "runs" / "{seeds}"
        expected = pd.DataFrame({"seed": [0, 1, 2], "lr": [0.5] * 3})
        pd.testing.assert_frame_equal(pd.read_parquet(out / "records.parquet"), expected)
        cells = json.loads((out / "notebook.ipynb").read_text())["cells"]
        outputs = [
            ("".join(output["text"]), output["name"])
            for cell in cells
            for output in cell["outputs"]
        ]
        assert outputs == [(f"{project}\n", "stdout"), ("a warning", "stderr")]
        assert ".tmp-" not in (out / "notebook.ipynb").read_text()
        assert "FAIRLIB_RUN" not in os.environ

    def test_what_the_notebook_counts_stands_in_its_provenance(self, project, monkeypatch):
        count = "from fairlib import environment\nenvironment.tally({'at once': 3, 'alone': 0})"
        path = write_notebook(project / "toy.ipynb", count, count)
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        monkeypatch.setenv("FAIRLIB_AUTO", "0")
        runs.run_notebook(path, project / "out")
        described = runs.read_run(project / "out")
        assert (
            described["trainings"] == {"at once": 6, "alone": 0} and described["automatic"] is False
        )
        assert sorted(file.name for file in (project / "out").iterdir()) == [
            "notebook.ipynb",
            "run.json",
        ]

    def test_a_failed_run_leaves_its_notebook_under_failed(self, project):
        path = write_notebook(
            project / "toy.ipynb",
            "print('so far')",
            "if quick:\n    raise ValueError('too\\nfast')",
        )
        with pytest.raises(
            RunError, match=r"toy\.ipynb failed: ValueError: too fast \(see .*failed/out\.ipynb\)"
        ):
            runs.run_notebook(path, project / "out")
        assert "so far" in (project / "failed" / "out.ipynb").read_text()
        assert not list(project.glob("out*"))
        assert runs.run_notebook(path, project / "out", {"quick": False})
        assert not (project / "failed" / "out.ipynb").exists()

    def test_a_killed_run_leaves_nothing_that_looks_finished(self, project):
        path = write_notebook(
            project / "toy.ipynb",
            "import pathlib, time\npathlib.Path('begun').touch()\ntime.sleep(120 * quick)",
        )
        command = [
            sys.executable,
            "-m",
            "whopays",
            "run",
            str(path),
            "-o",
            str(project / "out"),
        ]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            wait_for(lambda: (project / "begun").exists() or process.poll() is not None)
            process.send_signal(signal.SIGKILL)
        assert (project / "begun").exists()
        assert not (project / "out").exists()
        assert len(list(project.glob("out.tmp-*"))) == 1
        assert runs.run_notebook(path, project / "out", {"quick": False})
        assert (project / "out" / "run.json").exists()
        assert not list(project.glob("out.tmp-*"))

    @pytest.mark.slow
    def test_a_full_disk_is_an_error_and_leaves_nothing(self, project):
        big = "import numpy as np, pandas as pd\nfrom whopays import record\n"
        big += "record(pd.DataFrame({'x': np.random.default_rng(0).random(500_000)}));"
        path = write_notebook(project / "toy.ipynb", big)
        command = (
            f"ulimit -f 1000; exec {sys.executable} -m whopays run {path} -o {project / 'out'}"
        )
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
        assert done.returncode == 1
        assert "File too large" in done.stderr.splitlines()[-1]
        assert not list(project.glob("out*"))


def wait_for(condition, seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.1)


def test_the_project_is_found_from_any_folder_below(tmp_path, monkeypatch):
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "claims.yml").touch()
    below = tmp_path / "notebooks" / "pruning"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    monkeypatch.setattr(environment, "LIBRARY", tmp_path / "site-packages" / "fairlib")
    assert runs.project() == tmp_path
    (tmp_path / "book" / "claims.yml").unlink()
    assert runs.project() == below


def test_outside_the_project_it_is_the_folder_of_fairlib_or_what_the_wheel_carries(
    library, tmp_path, monkeypatch
):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for root in (library.parent / "whopays" / "records", library.parent):
        (root / "book").mkdir(parents=True)
        (root / "book" / "claims.yml").touch()
        assert runs.project() == root
