"""What holds for every model of the registry, and the registry itself."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from zoo import of_the_zoo

import fairlib
from fairlib.models import MODELS, Normalize, width_for
from fairlib.network.masks import prunable
from fairlib.network.memory import memory_of

RESNETS = ["tiny-resnet", "resnet10", "resnet18", "resnet34", "resnet50"]
NAMES = ["mlp", "cnn", *RESNETS, "vgg19", "mobilenetv2", "wrn-22-8", "vit-tiny"]


def _count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _weights(name: str, width: float, **settings) -> int:
    with torch.device("meta"):
        model = fairlib.build(name, width=width, **settings)
    return sum(weight.numel() for weight in prunable(model).values())


class _Rectifications(TorchDispatchMode):
    """Counts what rectifies, by a module or not."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += any(word in str(function) for word in ("relu", "hardtanh", "clamp"))
        return function(*args, **(kwargs or {}))


def test_registry_holds_the_zoo_in_order():
    assert list(MODELS) == NAMES


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("channels", "size"), [(1, 8), (3, 16), (1, 28), (3, 32), (2, 64), (3, 96)]
)
def test_every_model_gives_logits_at_every_size(name, channels, size):
    model = fairlib.build(name, num_classes=4, in_channels=channels, image_size=size, width=0.05)
    assert model(torch.rand(2, channels, size, size)).shape == (2, 4)
    assert [m.mean.numel() for m in model.modules() if isinstance(m, Normalize)] == [channels]


@of_the_zoo()
def test_trains_is_copied_and_is_pruned(name, images):
    width = 1.0 if name in ("mlp", "cnn", "tiny-resnet") else 0.1
    model = fairlib.build(name, num_classes=3, in_channels=1, image_size=8, width=width)
    trained = fairlib.fit(model, images, epochs=2, batch_size=24, lr=0.01)
    assert np.isfinite(fairlib.history(trained)["loss"]).all()
    before = model.state_dict()
    assert all(
        not torch.equal(p, before[name])
        for name, p in trained.state_dict().items()
        if name.endswith("weight")
    )
    inputs = images.batch(torch.arange(8))
    assert torch.equal(copy.deepcopy(trained)(inputs), trained(inputs))
    pruned = fairlib.prune(trained, "magnitude", sparsity=0.5)
    assert fairlib.sparsity(pruned) == pytest.approx(0.5, abs=1e-2)
    assert not torch.equal(pruned(inputs), trained(inputs))


def test_a_model_like_data_has_their_classes_channels_and_size(images):
    by_hand = fairlib.build(
        "cnn", num_classes=images.num_classes, in_channels=1, image_size=8, seed=3, width=0.5
    )
    for settings in ({}, {"in_channels": 1}):
        like = fairlib.build("cnn", like=images, seed=3, width=0.5, **settings)
        assert memory_of(like).recipe == memory_of(by_hand).recipe
        assert all(
            torch.equal(one, other)
            for one, other in zip(like.parameters(), by_hand.parameters(), strict=True)
        )
    splits = fairlib.load("digits")
    assert fairlib.build("mlp", like=splits)(splits.test.batch([0])).shape == (1, 10)
    vectors = fairlib.GroupedDataset(np.eye(4), [0, 1, 0, 1], [0, 0, 1, 1])
    assert memory_of(fairlib.build("mlp", like=vectors)).recipe["in_channels"] == 4
    assert width_for("cnn", 500, like=splits) == width_for(
        "cnn", 500, num_classes=10, in_channels=1, image_size=8
    )


def test_a_model_that_contradicts_the_data_is_refused(images):
    with pytest.raises(
        ValueError, match="image_size is 16, but 8 of the data given as like=: leave out one"
    ):
        fairlib.build("cnn", like=images, image_size=16)
    with pytest.raises(TypeError, match="needs num_classes=, or data to read it off: like="):
        fairlib.build("cnn", in_channels=1)


@pytest.mark.parametrize("name", MODELS)
def test_seed_decides_the_weights_and_nothing_else_notices(name):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, same, other = (
        fairlib.build(name, num_classes=2, width=0.1, seed=seed).state_dict() for seed in (0, 0, 1)
    )
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize(
    ("name", "seed", "total", "absolute"),
    [
        ("cnn", 0, 1.436024679318507, 1255.668172859394),
        ("cnn", 3, -6.89447258308428, 1257.1154979325693),
        ("tiny-resnet", 0, 155.59409306319276, 1746.0240354532357),
        ("tiny-resnet", 3, 171.37233928729142, 1746.5580796260026),
        ("resnet18", 0, 4779.688249339294, 224463.97811496095),
        ("resnet18", 3, 4777.773955928083, 224438.2049079571),
    ],
)
def test_initial_weights_are_those_of_the_recorded_results(name, seed, total, absolute):
    model = fairlib.build(name, num_classes=4, in_channels=3, image_size=32, seed=seed)
    weights = [p.detach().double() for p in model.parameters()]
    assert float(sum(w.sum() for w in weights)) == pytest.approx(total, abs=1e-3)
    assert float(sum(w.abs().sum() for w in weights)) == pytest.approx(absolute, rel=1e-8)


@pytest.mark.parametrize("name", NAMES[:-1])
def test_each_relu_is_a_module_of_its_own_used_once(name):
    model = fairlib.build(name, num_classes=3, in_channels=1, image_size=16, width=0.05).eval()
    relus = [module for module in model.modules() if isinstance(module, nn.ReLU | nn.ReLU6)]
    calls = []
    for module in relus:
        module.register_forward_hook(lambda module, _, output: calls.append(module))
    with _Rectifications() as seen, torch.no_grad():
        model(torch.rand(1, 1, 16, 16))
    assert relus and set(calls) == set(relus) and len(calls) == len(relus) == seen.count
    assert not any(module.inplace for module in relus)


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("resnet10", 4.90),
        ("resnet18", 11.17),
        ("resnet34", 21.28),
        ("resnet50", 23.52),
        ("vgg19", 20.04),
        ("mobilenetv2", 2.24),
        ("wrn-22-8", 17.16),
    ],
)
def test_parameter_counts_at_10_classes(name, millions):
    with torch.device("meta"):
        assert _count(fairlib.build(name, num_classes=10)) / 1e6 == pytest.approx(
            millions, abs=0.01
        )


def test_width_multiplies_the_channels():
    half = fairlib.build("resnet18", num_classes=2, width=0.5)
    assert [getattr(half, f"layer{i}")[-1].conv2.out_channels for i in (1, 2, 3, 4)] == [
        32,
        64,
        128,
        256,
    ]
    least = fairlib.build("cnn", num_classes=2, width=0.001)
    assert [weight.shape[0] for weight in prunable(least).values()] == [1, 1, 1, 1, 2]


def test_settings_may_follow_the_name():
    written = fairlib.build("resnet10:stem=imagenet:width=0.25", num_classes=3)
    given = fairlib.build("resnet10", num_classes=3, stem="imagenet", width=0.25)
    assert all(map(torch.equal, written.state_dict().values(), given.state_dict().values()))
    wide = width_for("resnet10", 10_000, num_classes=3, stem="imagenet")
    assert width_for("resnet10:stem=imagenet", 10_000, num_classes=3) == wide


def test_bad_names_and_settings():
    with pytest.raises(ValueError, match=f"unknown model 'resnet'; known: {', '.join(NAMES)}"):
        fairlib.build("resnet", num_classes=2)
    with pytest.raises(
        TypeError, match="unknown setting 'depth' for model 'cnn'; known: channels, hidden, width"
    ):
        fairlib.build("cnn", num_classes=2, depth=3)
    with pytest.raises(ValueError, match=r"num_classes must lie in \[2, inf\), got 1"):
        fairlib.build("cnn", num_classes=1)
    with pytest.raises(ValueError, match=r"in_channels must lie in \[1, inf\), got 0"):
        fairlib.build("cnn", num_classes=2, in_channels=0)
    with pytest.raises(TypeError, match=r"image_size must be an integer, got 8\.5"):
        fairlib.build("mlp", num_classes=2, image_size=8.5)
    with pytest.raises(TypeError, match=r"seed must be an integer, got 1\.5"):
        fairlib.build("cnn", num_classes=2, seed=1.5)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("width", [0, -1.0, float("inf"), float("nan")])
def test_impossible_widths_are_refused(name, width):
    with torch.device("meta"), pytest.raises(ValueError, match=r"width must lie in \(0, inf\)"):
        fairlib.build(name, num_classes=2, width=width)


@pytest.mark.parametrize("weights", [73, 100, 1_000, 6_304, 50_000, 1_000_000])
def test_width_for_is_the_nearest_of_all_widths(weights):
    steps = np.arange(1, 1_000_000)
    wide, narrow = (
        np.maximum(1, np.round(size * (steps / 10_000))).astype(int) for size in (64, 32)
    )
    distances = np.abs(64 * wide + wide * narrow + 8 * narrow - weights)
    width = width_for("mlp", weights, num_classes=8, in_channels=1, image_size=8)
    assert distances[round(width * 10_000) - 1] == distances.min()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "width"),
    [("tiny-resnet", 0.37), ("resnet10", 0.37), ("vgg19", 1.6), ("mobilenetv2", 0.6)],
)
def test_width_for_finds_an_equally_large_model(name, width):
    shape = dict(num_classes=5, in_channels=1, image_size=16)
    weights = _weights(name, width, **shape)
    assert _weights(name, width_for(name, weights, **shape), **shape) == weights


def test_width_for_counts_what_a_pruned_model_kept(cnn):
    kept = sum(
        int(w.count_nonzero())
        for w in prunable(fairlib.prune(cnn, "magnitude", sparsity=0.9)).values()
    )
    shape = dict(num_classes=3, in_channels=1, image_size=8, hidden=(48, 32))
    width = width_for("cnn", kept, **shape)
    assert _weights("cnn", width, **shape) == pytest.approx(kept, rel=0.1)


def test_width_for_names_the_limits():
    shape = dict(num_classes=3, in_channels=1, image_size=8)
    smallest = 64 + 1 + 3  # One hidden neuron in each layer.
    assert _weights("mlp", width_for("mlp", smallest, **shape), **shape) == smallest
    with pytest.raises(
        ValueError, match=rf"weights must be between {smallest} and \d+, .*'mlp'.*, got 67"
    ):
        width_for("mlp", 67, **shape)
    with pytest.raises(ValueError, match=r"got 1000000000000$"):
        width_for("mlp", 10**12, **shape)
    with pytest.raises(ValueError, match="unknown model 'resnet'"):
        width_for("resnet", 1_000, **shape)
    with pytest.raises(TypeError, match=r"weights must be an integer, got 0\.5"):
        width_for("mlp", 0.5, **shape)
