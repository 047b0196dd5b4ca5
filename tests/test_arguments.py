"""Wrong arguments of the public functions: each is refused with the name of the argument."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import fairlib
from fairlib.studies import RunSettings

NAN, INF = float("nan"), float("inf")
SPLITS = fairlib.load("digits", seed=0)
MODEL = fairlib.build("mlp", like=SPLITS)
DATA = fairlib.GroupedDataset(
    SPLITS.train.inputs[:20], SPLITS.train.targets[:20], SPLITS.train.groups[:20]
)


def _untrained(splits: fairlib.Splits, seed: int) -> nn.Module:
    raise AssertionError("a model was built before the argument was refused")


STUDY = {
    "data": SPLITS,
    "model": _untrained,
    "method": "prune:magnitude",
    "levels": [0.5],
    "seeds": [0],
    "run": RunSettings(cache=None),
}
CALLS = {
    "build": lambda **bad: fairlib.build(
        **{"name": "mlp", "num_classes": 3, "image_size": 4} | bad
    ),
    "fit": lambda **bad: fairlib.fit(**{"model": MODEL, "data": DATA, "epochs": 1} | bad),
    "prune": lambda **bad: fairlib.prune(
        **{"model": MODEL, "method": "magnitude", "sparsity": 0.5} | bad
    ),
    "linearize": lambda **bad: fairlib.linearize(
        **{"model": MODEL, "method": "random", "budget": 0.5, "data": DATA, "finetune": 0} | bad
    ),
    "quantize": lambda **bad: fairlib.quantize(
        **{"model": MODEL, "method": "weights", "bits": 4} | bad
    ),
    "factorize": lambda **bad: fairlib.factorize(
        **{"model": MODEL, "method": "svd", "kept": 0.5} | bad
    ),
    "distil": lambda **bad: fairlib.distil(**{"model": MODEL, "student": 0.5, "data": DATA} | bad),
    "cost": lambda **bad: fairlib.cost(**{"models": MODEL, "data": DATA, "latency": False} | bad),
    "study": lambda **bad: fairlib.study(**STUDY | bad),
    "RunSettings": RunSettings,
    "restore": lambda **bad: fairlib.restore(
        **{"module": MODEL, "state_dict": MODEL.state_dict()} | bad
    ),
    "compact": lambda **bad: fairlib.compact(**{"model": MODEL, "data": DATA} | bad),
    "sparsity": fairlib.sparsity,
    "EqualLoss": fairlib.EqualLoss,
    "GroupDRO": fairlib.GroupDRO,
}


NO_MODELS = [None, "mlp", MODEL.state_dict(), type(MODEL), lambda inputs: inputs, DATA]
NO_DATA = [SPLITS, DATA.inputs, (DATA.inputs, DATA.targets), "digits", 3]
NO_SEEDS = [1.5, "0", None, True, 2**70]
CONSTRAINTS = ["equal-loss", fairlib.EqualLoss, 3]
BAD = {
    "build": {
        "name": ["nope", None, 3],
        "like": [DATA.inputs, "digits"],
        "num_classes": [0, 1, 2.5, "10", NAN, True],
        "in_channels": [0, 1.5, "1"],
        "image_size": [0, -8, 2.5, "8"],
        "seed": NO_SEEDS,
        "bogus": [1],
    },
    "fit": {
        "model": [*NO_MODELS, nn.Identity()],
        "data": [*NO_DATA, None],
        "val": NO_DATA,
        "epochs": [-1, 1.5, NAN, "1", None, True],
        "lr": [0, -1, NAN, INF, "0.1", None],
        "batch_size": [0, 1.5, "32", None],
        "momentum": [-1, 1.5, NAN],
        "weight_decay": [-1, NAN, "a"],
        "device": ["cudaa", "cuda:77", "", 3, None],
        "constraint": CONSTRAINTS,
        "objective": [3, "cross-entropy"],
        "augment": ["x", 3],
        "keep": [-1, 1.5, "a", 10**9],
        "seed": NO_SEEDS,
        "bogus": [1],
    },
    "prune": {
        "model": [*NO_MODELS, nn.ReLU()],
        "data": ["x", 3, SPLITS],
        "val": NO_DATA,
        "method": ["nope", None, 3],
        "sparsity": [-0.1, 1, 90, NAN, "0.5", None, True, [0.5]],
        "schedule": ["nope", 3, ("gradual",)],
        "train": ["x", {"epochs": -1}, {"epoch": 1}],
        "seed": NO_SEEDS,
        "bogus": [1],
    },
    "linearize": {
        "model": NO_MODELS,
        "data": [*NO_DATA, None],
        "val": NO_DATA,
        "method": ["nope", None],
        "budget": [-0.1, 1.1, NAN, "0.5", True, [0.5]],
        "finetune": [-1, "x", {"epochs": -1}, {"lr": "a"}, {"epoch": 1}],
        "constraint": CONSTRAINTS,
        "seed": NO_SEEDS,
        "bogus": [1],
    },
    "quantize": {
        "model": [*NO_MODELS, nn.ReLU()],
        "method": ["nope", None, 3],
        "bits": [0, 17, 2.5, "4", None, NAN, True],
        "data": NO_DATA,
        "seed": NO_SEEDS,
        "bogus": [1],
    },
    "factorize": {
        "model": [*NO_MODELS, nn.ReLU()],
        "method": ["nope", None, 3],
        "kept": [0, 1.5, "0.5", None, NAN, True, 0.001],
        "by": ["nope", 3],
        "bogus": [1],
    },
    "distil": {
        "model": NO_MODELS,
        "student": [0, 1.5, "0.5", None, NAN, True, MODEL],
        "data": [*NO_DATA, None],
        "method": ["nope", None, 3],
        "train": ["x", {"epochs": -1}, {"epoch": 1}],
        "seed": NO_SEEDS,
        "bogus": [1],
    },
    "cost": {
        "models": [None, "mlp", 3, {"dense": 3}],
        "data": [None, "x", 3],
        "batch_size": [0, 1.5],
        "repeats": [0, 1.5],
    },
    "study": {
        "data": ["nope", None, 3, ("digits",), DATA, lambda seed: 3],
        "model": [None, MODEL, ("mlp",), 3],
        "method": [
            "magnitude",
            "prune:nope",
            None,
            ["prune:nope"],
            [],
            ["quantize:weights", "prune:magnitude"],
            ("prune:magnitude", {"bogus": 1}),
            fairlib.prune,
        ],
        "levels": [0.5, [1], [-0.1], [NAN], ["a"], None, [True]],
        "mitigation": ["nope", 3, ("equal-loss", {"bogus": 1}), fairlib.EqualLoss(step=0.1)],
        "when": ["nope", ["never", "never"], 3, [], None, "before"],
        "seeds": [[], [0, 0], 3, None, "01"],
        "train": [{"epoch": 1}, "x", {"epochs": -1}],
        "finetune": [{"bogus": 1}, {"epochs": -1}, "x", {"augment": "nope"}],
        "diagnostics": [("nope",), "gradient", 3],
        "device": ["cudaa", "cuda:77"],
        "run": [3, {"cache": None}],
    },
    "RunSettings": {"cache": [3], "workers": [0, -1, "x", 1.5], "divergence": ["ignore", None]},
    "restore": {
        "module": NO_MODELS,
        "state_dict": [None, {}, {"0.weight": torch.zeros(3)}, "model.pt"],
    },
    "compact": {"model": NO_MODELS, "data": [None, "x", 3]},
    "sparsity": {"model": [*NO_MODELS, nn.ReLU()]},
    "EqualLoss": {"step": [0, -1, NAN, "x", None], "bogus": [1]},
    "GroupDRO": {"step": [-1, NAN, "x", None], "bogus": [1]},
}
OTHER_WORDS = {
    "name": "model",
    "model": "model|no prunable weight",
    "mitigation": "mitigation|EqualLoss",
    "when": "when|time of mitigation",
    "method": "method|kind of compression|cannot follow",
    "models": "model",
    "kept": "kept|rank below one",
    "diagnostics": "diagnostic",
}


@pytest.mark.parametrize(
    ("function", "name"), [(function, name) for function in BAD for name in BAD[function]]
)
def test_a_wrong_argument_is_refused_with_its_name(function, name):
    for value in BAD[function][name]:
        try:
            CALLS[function](**{name: value})
        except (TypeError, ValueError) as error:
            assert re.search(OTHER_WORDS.get(name, name), str(error), re.IGNORECASE), repr(value)
        else:
            pytest.fail(f"{name}={value!r} was accepted")


def test_the_message_helps_with_natural_mistakes():
    for call, hint in (
        (
            lambda: fairlib.fit(MODEL, SPLITS),
            r"data must be a GroupedDataset, got Splits; give a part, such as \.train",
        ),
        (
            lambda: fairlib.fit(MODEL, DATA, constraint="equal-loss"),
            r"such as fairlib\.EqualLoss\(step=0\.02\)",
        ),
        (
            lambda: CALLS["study"](mitigation=fairlib.EqualLoss(step=0.1)),
            r"a name or \(name, settings\), got EqualLoss",
        ),
        (
            lambda: CALLS["study"](model=MODEL),
            "model must be a name, or a function from splits and a seed to a module",
        ),
        (
            lambda: CALLS["study"](levels=0.5),
            r"levels must hold several values, as a list does, got 0\.5",
        ),
        (lambda: CALLS["study"](finetune={"epochs": -1}), "epochs of finetune= must lie in"),
    ):
        with pytest.raises((TypeError, ValueError), match=hint):
            call()
