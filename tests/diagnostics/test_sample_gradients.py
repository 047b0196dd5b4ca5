from __future__ import annotations

import copy
import re
import warnings
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from smooth import only
from torch import nn
from torch.nn.functional import cross_entropy
from zoo import of_the_zoo, zoo_model

import fairlib
from fairlib.diagnostics import SlowWarning, layer_gradients, sample_gradients
from fairlib.diagnostics.sample_gradients import sample_gradient_norms


def _looped(model: nn.Module, data: fairlib.GroupedDataset, names=None) -> np.ndarray:
    """One backward pass a sample, the slow and certain way; through masked weights it is masked by
    itself."""
    model = copy.deepcopy(model).eval()
    parameters = [
        weight for name, weight in model.named_parameters() if names is None or name in names
    ]
    norms = []
    for i in range(len(data)):
        loss = cross_entropy(
            model(data.batch([i], dtype=parameters[0].dtype)), data.targets[i : i + 1]
        )
        gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
        norms.append(sum(gradient.double().square().sum().item() for gradient in gradients) ** 0.5)
    return np.array(norms)


def _data(shape, count=8, seed=0) -> fairlib.GroupedDataset:
    inputs = np.random.default_rng(seed).normal(size=(count, *shape))
    return fairlib.GroupedDataset(inputs, np.arange(count) % 3, np.arange(count) % 2)


@pytest.fixture
def ways(monkeypatch):
    """The number of samples that were differentiated one by one: one, for the comparison, or all."""
    taken, function = [], sample_gradients._by_autograd
    monkeypatch.setattr(
        sample_gradients, "_by_autograd", lambda loss, i: taken.append(i) or function(loss, i)
    )
    return taken


@pytest.mark.parametrize("sparsity", [0, 0.8])
@of_the_zoo()
def test_agrees_with_a_loop_for_every_model_of_the_zoo(name, sparsity, ways):
    model, batch = zoo_model(name)
    data = _data(batch.shape[1:])
    model = (
        fairlib.prune(model.double(), "random", sparsity=sparsity) if sparsity else model.double()
    )
    # The token of classes belongs to no layer: no rule gives its gradient of each sample.
    alone = pytest.warns(SlowWarning, match="no rule is known for transformer.class_token")
    with alone if name == "vit-tiny" else nullcontext():
        norms = sample_gradient_norms(model, data)
    # rtol: p - 1 of a sample that is fitted to 1e-12 has few digits in the loop, all of them here.
    np.testing.assert_allclose(norms, _looped(model, data), rtol=1e-4, atol=1e-12)
    assert len(ways) == (len(data) if name == "vit-tiny" else 1)


CASES = {
    "padding, stride, dilation": nn.Sequential(
        nn.Conv2d(2, 4, (3, 2), stride=(1, 2), padding=1, dilation=(2, 1)),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(3),
    ),
    "groups, reflected": nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1, padding_mode="reflect", groups=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.LazyLinear(3),
    ),
    "same": nn.Sequential(
        nn.Conv2d(2, 3, (3, 5), padding="same"), nn.GELU(), nn.Flatten(), nn.LazyLinear(3)
    ),
    "one dimension": nn.Sequential(
        nn.Flatten(2), nn.Conv1d(2, 3, 5), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3)
    ),
    "three dimensions": nn.Sequential(
        nn.Unflatten(1, (1, 2)),
        nn.Conv3d(1, 3, 2),
        nn.BatchNorm3d(3),
        nn.Flatten(),
        nn.LazyLinear(3),
    ),
    "in place": nn.Sequential(
        nn.Conv2d(2, 3, 3),
        nn.ReLU(inplace=True),
        nn.BatchNorm2d(3),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.LazyLinear(3),
    ),
    "normalizations": nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.GroupNorm(2, 4),
        nn.LayerNorm([4, 4]),
        nn.Flatten(),
        nn.LazyLinear(3),
        nn.BatchNorm1d(3),
    ),
    "positions": nn.Sequential(
        nn.Flatten(2), nn.Linear(36, 4), nn.LayerNorm(4), nn.Flatten(), nn.LazyLinear(3)
    ),
    "rows and columns": nn.Sequential(
        nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2), nn.Flatten(), nn.LazyLinear(3)
    ),
}


@pytest.mark.filterwarnings("ignore:sparsity is a share of what can be pruned")
@pytest.mark.parametrize("sparsity", [0, 0.5])
@pytest.mark.parametrize("case", CASES)
def test_layers_in_one_pass(case, sparsity, ways):
    torch.manual_seed(0)
    data = _data((2, 6, 6))
    model = copy.deepcopy(CASES[case]).double()
    for _ in range(3):
        model(data.batch(slice(None), dtype=torch.float64))  # Shapes and statistics.
    model = fairlib.prune(model, "random", sparsity=sparsity) if sparsity else model
    np.testing.assert_allclose(sample_gradient_norms(model, data), _looped(model, data), rtol=1e-9)
    assert len(ways) == 1


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.second.weight = self.first.weight

    def forward(self, inputs):
        return self.out(torch.tanh(self.second(torch.tanh(self.first(inputs)))))


class Twice(Tied):
    def forward(self, inputs):
        return self.out(torch.tanh(self.first(torch.tanh(self.first(inputs)))))


class Outside(Tied):
    """Uses a weight without calling its layer."""

    def __init__(self):
        super().__init__()
        self.second = None

    def forward(self, inputs):
        return self.out(torch.tanh(self.first(inputs)) @ self.first.weight)


class Scaled(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, inputs):
        return super().forward(inputs) * self.scale


class Branching(nn.Module):
    """Its layer has one more parameter, and a branch looks at a value."""

    def __init__(self):
        super().__init__()
        self.linear = Scaled()

    def forward(self, inputs):
        return self.linear(inputs if float(inputs.detach().mean()) > 0 else -inputs)


class Turned(nn.Module):
    """Its layer takes the batch for its second axis."""

    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(1, 2), nn.Linear(8, 3)

    def forward(self, inputs):
        hidden = self.inner(inputs.T[..., None])
        return self.out(hidden.transpose(0, 1).flatten(1))


REASONS = {
    Tied: "first.weight belongs to several modules",
    Outside: "autograd gives another gradient",
    Scaled: "no rule is known for weight of Scaled",
    Branching: "no rule is known for linear.weight of Scaled",
    Turned: "inner is called twice, or not with a batch|autograd gives another gradient",
}


@pytest.mark.parametrize("kind", REASONS)
@pytest.mark.parametrize("count", [4, 10])
def test_a_slower_way_is_taken_for_a_reason_that_is_shown(kind, count, ways):
    torch.manual_seed(0)
    model, data = kind().double(), _data((4,), count)
    with pytest.warns(SlowWarning) as caught:
        found = sample_gradient_norms(model, data)
    np.testing.assert_allclose(found, _looped(model, data), rtol=1e-9)
    assert len(ways) >= len(data)
    (shown,) = [str(warning.message) for warning in caught]
    assert re.search(f"one sample after another, which takes longer: ({REASONS[kind]})", shown)


@pytest.mark.parametrize(
    ("kind", "reason"), [(Twice, "first is called twice"), (Outside, REASONS[Outside])]
)
def test_falls_back_with_masks(kind, reason, ways):
    torch.manual_seed(0)
    model = kind().double()
    model.second = None
    model, data = fairlib.prune(model, "random", sparsity=0.5), _data((4,))
    with pytest.warns(SlowWarning, match=reason):
        found = sample_gradient_norms(model, data)
    np.testing.assert_allclose(found, _looped(model, data), rtol=1e-9)
    assert len(ways) >= len(data)


@pytest.mark.parametrize(("hook", "reason"), [(True, "0 has hooks"), (False, "no rule is known")])
def test_hooks_of_others_and_parametrizations_fall_back(hook, reason, ways):
    torch.manual_seed(0)
    data, layer = _data((4,)), nn.Linear(4, 3)
    model = nn.Sequential(layer if hook else nn.utils.parametrizations.weight_norm(layer)).double()
    if hook:
        layer.register_forward_hook(lambda layer, inputs, output: output * layer.weight.sum())
    with pytest.warns(SlowWarning, match=reason):
        found = sample_gradient_norms(model, data)
    np.testing.assert_allclose(found, _looped(model, data), rtol=1e-9)
    assert len(ways) >= len(data)


@pytest.mark.parametrize("way", ["_in_one_pass", "_by_autograd"])
@pytest.mark.parametrize("error", [RuntimeError, torch.OutOfMemoryError])
def test_an_error_is_no_reason_for_a_slower_way(way, error, monkeypatch):
    def broken(*_):
        raise error("a bug")

    monkeypatch.setattr(sample_gradients, way, broken)
    with pytest.raises(error, match="a bug"), warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowWarning)
        sample_gradient_norms(Scaled(), _data((4,)))


def test_a_layer_that_is_not_used_has_no_gradient():
    torch.manual_seed(0)

    class Auxiliary(Tied):
        def forward(self, inputs):
            with torch.no_grad():
                hidden = self.first(inputs)
            return self.out(hidden)

    model, data = Auxiliary().double(), _data((4,))
    found = sample_gradient_norms(
        only(model, ["out.weight", "out.bias", "second.bias", "first.bias"]), data
    )
    np.testing.assert_allclose(found, _looped(model, data, ["out.weight", "out.bias"]), rtol=1e-9)
    np.testing.assert_array_equal(sample_gradient_norms(only(model, ["first.bias"]), data), 0)


def test_chunks_and_blocks_do_not_show(cnn, images, monkeypatch):
    whole = sample_gradient_norms(cnn, images)
    monkeypatch.setattr(sample_gradients, "SAVED", 20_000)
    monkeypatch.setattr(layer_gradients, "UNFOLDED", 10_000)
    np.testing.assert_allclose(sample_gradient_norms(cnn, images), whole, rtol=1e-5)


def test_choice_of_parameters(cnn, images):
    names = [name for name, _ in cnn.named_parameters()]
    squares = [sample_gradient_norms(only(cnn, [name]), images) ** 2 for name in names]
    np.testing.assert_allclose(np.sqrt(sum(squares)), sample_gradient_norms(cnn, images), rtol=1e-5)
    frozen = copy.deepcopy(cnn)
    frozen.features.requires_grad_(False)
    last = sum(squares[names.index("classifier.0.weight") :])
    np.testing.assert_allclose(sample_gradient_norms(frozen, images) ** 2, last, rtol=1e-5)
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        sample_gradient_norms(frozen.requires_grad_(False), images)


def test_a_group_gradient_is_no_longer_than_its_samples_are_on_average(cnn, images):
    norms = sample_gradient_norms(cnn, images)
    groups = fairlib.diagnostics.group_gradients(cnn, images)["norm"]
    for code, group in enumerate(images.group_names):
        assert groups[group] <= norms[images.groups.numpy() == code].mean()


def test_a_fitted_sample_keeps_its_digits_in_float32():
    """Autograd rounds p - 1 to a multiple of 6e-8; here p is 1 - 4e-9, and in the second sample 1 -
    4e-44."""
    model = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0], [0.0]]))
    data = fairlib.GroupedDataset([[19.3], [100.0]], [0, 0], [0, 0], target_names=["a", "b"])
    expected = [2**0.5 * x / (1 + np.exp(x)) for x in (19.3, 100.0)]
    np.testing.assert_allclose(sample_gradient_norms(model, data), expected, rtol=1e-5)


def test_not_finite(cnn, images):
    with torch.no_grad():
        cnn.classifier[0].bias[0] = torch.nan
    with pytest.raises(
        FloatingPointError, match="the model's outputs are NaN or infinite on 120 of 120 samples"
    ):
        sample_gradient_norms(cnn, images)


def test_outputs_must_match_the_classes(images):
    model = fairlib.build("cnn", num_classes=2, in_channels=1, image_size=8)
    with pytest.raises(ValueError, match="one for each class of the data"):
        sample_gradient_norms(model, images)
