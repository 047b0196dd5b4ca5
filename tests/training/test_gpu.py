"""Trainings on a CUDA device: ``pytest -m gpu``, where there is one."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from zoo import far

import fairlib
from fairlib.training import Training, fit_all, loop, slots
from fairlib.training.distillation import Distillation

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture(autouse=True)
def _recorded(monkeypatch):
    """Every step is replayed: a capture that fails would fall back and be right all the same."""
    monkeypatch.setattr(slots, "_say", lambda sentence: pytest.fail(sentence))


@pytest.fixture(scope="module")
def faces() -> fairlib.GroupedDataset:
    draws = torch.Generator().manual_seed(0)
    targets = torch.arange(1100) % 5
    base = (40 * targets[:, None, None, None] + 20).expand(-1, 3, 32, 32)
    inputs = base + torch.randint(-20, 21, (1100, 3, 32, 32), generator=draws)
    return fairlib.GroupedDataset(inputs.to(torch.uint8), targets, (targets > 2).long())


def pruned(model: nn.Module, data: fairlib.GroupedDataset) -> nn.Module:
    return fairlib.prune(model, "magnitude", sparsity=0.9, data=data)


def rounded(model: nn.Module, data: fairlib.GroupedDataset) -> nn.Module:
    return fairlib.quantize(model, "weights", bits=2)


CASES = {
    "dense": ("resnet18:stem=imagenet", None, {}),
    "masks": ("resnet18:stem=imagenet", pruned, {}),
    "rounded": ("tiny-resnet", rounded, {}),
    "flip": ("tiny-resnet", None, {"augment": "crop+flip"}),
    "EqualLoss": ("tiny-resnet", pruned, {"constraint": fairlib.EqualLoss(step=0.1)}),
    "GroupDRO": ("cnn", None, {"constraint": fairlib.GroupDRO(step=0.1)}),
    "EqualAccuracy": ("cnn", None, {"constraint": fairlib.EqualAccuracy()}),
    "AccuracyGap": ("cnn", None, {"constraint": fairlib.AccuracyGap(step=0.1)}),
    "dropout": ("mobilenetv2:width=0.5", None, {}),
    "adam": ("cnn", None, {}),
}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", CASES)
def test_replayed_is_called(case, precision, faces):
    name, small, settings = CASES[case]
    model = fairlib.build(name, like=faces, seed=1)
    model = small(model, faces) if small else model
    end = loop.LoopSettings(optimizer="adam" if case == "adam" else "sgd")
    how = dict(epochs=2, lr=0.01, batch_size=128, device="cuda", precision=precision, **settings)
    training = Training(model, faces, how, end)
    (replayed,) = fit_all([training])
    (called,) = loop.train([training])
    # Kernels that add in another order differ in the last bits, which two epochs carry on.
    assert far(replayed, called) < (1e-2 if precision == "float32" else 5e-2)
    assert fairlib.sparsity(replayed) == pytest.approx(fairlib.sparsity(called), abs=1e-3)
    loss = fairlib.history(replayed)["loss"]
    assert loss.iloc[-1] == pytest.approx(fairlib.history(called)["loss"].iloc[-1], rel=0.1)


def test_slots_in_turn_are_one_after_the_other(faces, monkeypatch):
    models = [fairlib.build("tiny-resnet", like=faces, seed=seed) for seed in range(4)]
    teacher = fairlib.fit(models[0], faces, epochs=3)
    objectives = [None, Distillation(teacher, faces), None, None]
    trainings = [
        Training(model, faces, dict(epochs=2, seed=i, objective=objective), place=i)
        for i, (model, objective) in enumerate(zip(models, objectives, strict=True))
    ]
    in_turn = fit_all(trainings)
    monkeypatch.setattr(slots, "SLOTS", 1)
    for one, other in zip(in_turn, fit_all(trainings), strict=True):
        assert far(one, other) < 1e-2


def test_a_study_is_that_of_the_cpu(tmp_path):
    settings = dict(data="digits", model="cnn", method="prune:magnitude", levels=[0.5, 0.9])
    settings |= dict(seeds=range(3), train={"epochs": 5}, finetune={"epochs": 2})
    run = fairlib.studies.RunSettings(cache=None)
    tables = [fairlib.study(**settings, run=run, device=device) for device in ("cpu", "cuda")]
    small, large = (t.groupby(["stage", "level"])["accuracy"].mean() for t in tables)
    assert tables[1].attrs["trainings"]["at once"] == 3 * 4
    assert (small - large).abs().max() < 0.05
