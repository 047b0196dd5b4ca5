from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from edits import HARMFUL, HARMLESS, edit_files, find
from torch import nn

import fairlib
from fairlib import environment
from fairlib.linearization import gate
from fairlib.training import Training, cache, fit_all, loop, together
from fairlib.training.distillation import Distillation


def cached_fit(model, data, *, folder, **settings):
    (trained,) = fit_all([Training(model, data, settings)], folder)
    return trained


@pytest.fixture
def counted(monkeypatch):
    """How often a model was really trained."""
    calls, train = [], together.train

    def noted(trainings, **settings):
        calls.extend(trainings)
        return train(trainings, **settings)

    monkeypatch.setattr(together, "train", noted)
    return calls


def _same(one: nn.Module, other: nn.Module) -> bool:
    return one.state_dict().keys() == other.state_dict().keys() and all(
        torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items()
    )


def test_the_second_time_nothing_is_trained_and_everything_is_there(cnn, images, tmp_path, counted):
    pruned = fairlib.prune(cnn, "magnitude", sparsity=0.5)
    settings = dict(folder=tmp_path, epochs=2, keep=[0, 3], val=images)
    first = cached_fit(pruned, images, **settings)
    second = cached_fit(pruned, images, **settings)
    assert len(counted) == 1 and _same(first, second) and not second.training
    assert fairlib.history(first).equals(fairlib.history(second))
    kept = fairlib.weights_at(second, 3)
    assert all(
        torch.equal(value, kept[name]) for name, value in fairlib.weights_at(first, 3).items()
    )
    assert fairlib.sparsity(second) == fairlib.sparsity(pruned)


def test_everything_that_shapes_the_result_is_in_the_key(
    cnn, images, tmp_path, counted, monkeypatch
):
    base = dict(folder=tmp_path, epochs=1)
    cached_fit(cnn, images, **base)
    cached_fit(
        fairlib.build("cnn", num_classes=3, in_channels=1, image_size=8, seed=1), images, **base
    )
    cached_fit(fairlib.prune(cnn, "magnitude", sparsity=0.5), images, **base)
    cached_fit(cnn, images.subset(range(119)), **base)
    cached_fit(cnn, images, **base, seed=1)
    cached_fit(cnn, images, **base, constraint=fairlib.EqualLoss(step=0.1))
    cached_fit(cnn, images, **base, constraint=fairlib.EqualLoss(step=0.2))
    cached_fit(cnn, images, **base, val=images)
    frozen = fairlib.build("cnn", num_classes=3, in_channels=1, image_size=8, seed=0)
    frozen.features.requires_grad_(False)
    cached_fit(frozen, images, **base)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
    cached_fit(cnn, images, **base)
    monkeypatch.setattr(cache, "_source_digest", lambda: "other code")
    cached_fit(cnn, images, **base)
    threads = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads + 1)
    cached_fit(cnn, images, **base)
    assert len(counted) == 12 == len(list(tmp_path.glob("*.trained")))


@pytest.fixture
def changes(library, monkeypatch):
    """Whether an edit of a file, or of every file in a folder, changes what the entries are keyed
    by."""
    monkeypatch.setattr(cache, "_source_digest", cache._source_digest.__wrapped__)

    def changes(name, edit) -> bool:
        before = cache._source_digest()
        assert edit_files(library / name, edit)
        return cache._source_digest() != before

    return changes


@pytest.mark.slow
@pytest.mark.parametrize("edit", HARMLESS)
def test_docstrings_comments_and_formatting_void_no_entry(
    cnn, images, tmp_path, counted, changes, edit
):
    cached_fit(cnn, images, folder=tmp_path / "cache", epochs=1)
    assert not changes("", edit)
    cached_fit(cnn, images, folder=tmp_path / "cache", epochs=1)
    assert len(counted) == 1


@pytest.mark.parametrize("name", cache._LEFT_OUT)
def test_code_that_no_training_runs_voids_no_entry(library, changes, name):
    assert not changes(find(library, name), lambda text: text + "\nONE = 1\n")


@pytest.mark.slow
def test_code_that_training_runs_imports_nothing_that_is_left_out():
    names = [
        path.relative_to(environment.LIBRARY).with_suffix("")
        for path in environment.LIBRARY.rglob("*.py")
    ]
    counted = sorted(name for name in names if not any(map(name.is_relative_to, cache._LEFT_OUT)))
    imports = "\n".join(f"import {'.'.join(('fairlib', *name.parts))}" for name in counted)
    code = f"import sys\n{imports}\nprint(*(name for name in sys.modules if name.startswith('fairlib.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    imported = [Path(*name.split(".")[1:]) for name in done.stdout.split()]
    assert Path("training/loop") in imported, done.stderr
    assert not [name for name in imported if any(map(name.is_relative_to, cache._LEFT_OUT))]


@pytest.mark.parametrize("edit", HARMFUL)
@pytest.mark.parametrize(
    "name", ["training/together.py", "diagnostics/curvature.py", "models/cnn.py", "data/dataset.py"]
)
def test_a_number_a_default_and_a_statement_of_what_training_runs_void_the_entries(
    changes, name, edit
):
    assert changes(name, edit)


def test_a_release_voids_the_entries(cnn, images, tmp_path, counted, changes):
    cached_fit(cnn, images, folder=tmp_path / "cache", epochs=1)
    assert changes("_version.py", lambda text: text.replace('= "', '= "9'))
    cached_fit(cnn, images, folder=tmp_path / "cache", epochs=1)
    assert len(counted) == 2


@pytest.mark.parametrize(
    "damage", ["truncated", "flipped weight", "flipped history", "empty", "other bytes"]
)
def test_a_corrupt_entry_is_computed_anew(cnn, images, tmp_path, counted, damage):
    first = cached_fit(cnn, images, folder=tmp_path, epochs=1)
    (path,) = tmp_path.glob("*.trained")
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif damage.startswith("flipped"):
        position = -10 if damage == "flipped weight" else content.index(b"loss") + 9
        content[position] ^= 1
        path.write_bytes(content)
    else:
        path.write_bytes(b"" if damage == "empty" else b"not a tensor file")
    again = cached_fit(cnn, images, folder=tmp_path, epochs=1)
    assert len(counted) == 2 and _same(first, again)
    assert fairlib.history(first).equals(fairlib.history(again))
    cached_fit(cnn, images, folder=tmp_path, epochs=1)
    assert len(counted) == 2


def test_an_entry_under_the_name_of_another_is_computed_anew(cnn, images, tmp_path, counted):
    first = cached_fit(cnn, images, folder=tmp_path, epochs=1)
    (path,) = tmp_path.glob("*.trained")
    second = cached_fit(cnn, images, folder=tmp_path, epochs=1, seed=1)
    (other,) = set(tmp_path.glob("*.trained")) - {path}
    other.write_bytes(path.read_bytes())
    again = cached_fit(cnn, images, folder=tmp_path, epochs=1, seed=1)
    assert len(counted) == 3 and _same(again, second) and not _same(again, first)


def test_a_failed_write_costs_neither_the_training_nor_the_folder(
    cnn, images, tmp_path, monkeypatch
):
    def full(path, content):
        with path.open("wb") as file:
            file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.warns(UserWarning, match="not kept in the cache .*No space left"):
        trained = cached_fit(cnn, images, folder=tmp_path, epochs=1)
    assert _same(trained, fairlib.fit(cnn, images, epochs=1))
    assert not list(tmp_path.iterdir())


def test_code_from_elsewhere_and_objectives_are_not_cached(cnn, images, tmp_path, counted):
    @dataclasses.dataclass(frozen=True)
    class Mine(fairlib.EqualLoss):
        pass

    class Halved(nn.ReLU):
        def forward(self, inputs):
            return super().forward(inputs) / 2

    theirs = fairlib.build("cnn", num_classes=3, in_channels=1, image_size=8)
    theirs.features[1] = Halved()
    for _ in range(2):
        cached_fit(theirs, images, folder=tmp_path, epochs=1)
        cached_fit(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), images, folder=tmp_path, epochs=1)
        cached_fit(cnn, images, folder=tmp_path, epochs=1, constraint=Mine())
        cached_fit(
            cnn,
            images,
            folder=tmp_path,
            epochs=1,
            objective=lambda inputs, logits, targets: logits.square().sum(1),
        )
    assert len(counted) == 8 and not list(tmp_path.iterdir())


def test_a_model_in_channels_last_comes_back_as_it_was_trained(images, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "trains_channels_last", lambda model, data: True)
    model = fairlib.build("tiny-resnet", num_classes=3, in_channels=1, image_size=8)
    first, second = (cached_fit(model, images, folder=tmp_path, epochs=1) for _ in range(2))
    assert first.layer1[0].conv1.weight.stride() == second.layer1[0].conv1.weight.stride()
    assert torch.equal(first(images.batch(range(8))), second(images.batch(range(8))))


def test_what_a_teacher_taught_is_kept_by_teacher_and_settings(cnn, images, tmp_path, counted):
    teacher, other = (fairlib.fit(cnn, images, epochs=25, seed=seed) for seed in (0, 1))
    gated = gate(teacher)
    counted.clear()
    for objective in (
        Distillation(teacher, images),
        Distillation(teacher, images),
        Distillation(teacher, images, temperature=2.0),
        Distillation(other, images),
    ):
        tuned = cached_fit(gated, images, folder=tmp_path, epochs=1, objective=objective)
    assert len(counted) == 3
    again = cached_fit(
        gated, images, folder=tmp_path, epochs=1, objective=Distillation(other, images)
    )
    assert len(counted) == 3 and _same(tuned, again)
    foreign = Distillation(nn.Sequential(teacher), images)
    for _ in range(2):
        cached_fit(gated, images, folder=tmp_path, epochs=1, objective=foreign)
    assert len(counted) == 5


def test_what_a_cached_training_took_is_counted(cnn, images, tmp_path, counted):
    first = fairlib.fit(cnn, images, epochs=1)
    counted.clear()
    for _ in range(2):
        assert (
            fairlib.gradient_evaluations(cached_fit(first, images, folder=tmp_path, epochs=2))
            == 360
        )
    assert len(counted) == 1


def test_an_entry_that_may_only_be_read_is_read(cnn, images, tmp_path, counted, monkeypatch):
    cached_fit(cnn, images, folder=tmp_path, epochs=1)

    def refused(path):
        raise PermissionError(path)

    monkeypatch.setattr("pathlib.Path.touch", refused)
    cached_fit(cnn, images, folder=tmp_path, epochs=1)
    assert len(counted) == 1


def test_entries_that_were_not_used_for_longest_are_removed(cnn, images, tmp_path, monkeypatch):
    (tmp_path / "mine.pt").write_bytes(b"0" * 10_000_000)
    cached_fit(cnn, images, folder=tmp_path, epochs=1)
    (first,) = tmp_path.glob("*.trained")
    monkeypatch.setattr(cache, "CAPACITY", int(2.5 * first.stat().st_size))
    cached_fit(cnn, images, folder=tmp_path, epochs=1, seed=1)
    (second,) = set(tmp_path.glob("*.trained")) - {first}
    for age, path in enumerate((second, first)):
        os.utime(path, (age, age))
    cached_fit(cnn, images, folder=tmp_path, epochs=1, seed=1)  # Read, so used.
    cached_fit(cnn, images, folder=tmp_path, epochs=1, seed=2)
    left = set(tmp_path.glob("*.trained"))
    assert second in left and first not in left and len(left) == 2
    assert (tmp_path / "mine.pt").exists()
    monkeypatch.setattr(cache, "CAPACITY", 0)
    trained = cached_fit(cnn, images, folder=tmp_path, epochs=1, seed=3)
    assert _same(trained, fairlib.fit(cnn, images, epochs=1, seed=3))
    assert not list(tmp_path.glob("*.trained"))
