from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fairlib
from fairlib.data import GroupedDataset
from fairlib.linearization import count, gate
from fairlib.linearization.polynomial import polynomial
from fairlib.linearization.random import random_gates
from fairlib.network import gates
from fairlib.network.cost import cost
from fairlib.network.export import run_onnx, to_onnx

BY_CHANNEL = {"features.1": 8, "features.4": 16, "classifier.1": 64, "classifier.3": 32}


@pytest.fixture
def cnn(images) -> nn.Module:
    """864 ReLUs: 8 channels of 64, 16 of 16, then 64 and 32 units."""
    model = fairlib.build("cnn", num_classes=3, in_channels=1, image_size=8, seed=0)
    return fairlib.fit(model, images, epochs=15, lr=0.05, seed=0)


@pytest.fixture
def curved(cnn, images) -> nn.Module:
    return polynomial(gate(cnn), relus=300, data=images, seed=4)


def inputs_of(model, name, data):
    seen = []
    with model.get_submodule(name).register_forward_pre_hook(
        lambda _, given: seen.append(given[0])
    ):
        model(data.batch(slice(None)))
    return seen[0].detach().double().numpy()


def test_each_channel_has_the_least_squares_fit_to_the_inputs_that_earlier_quadratics_give(
    curved, images
):
    """By numpy, from a matrix with a row for each image and place without a ReLU."""
    for name, channels in BY_CHANNEL.items():
        x, one = inputs_of(curved, name, images), curved.get_submodule(name)
        for channel in range(channels):
            lost = one.keep[channel].numpy() == 0
            values = x[:, channel][:, lost].ravel() if x.ndim == 4 else x[:, channel]
            if lost.any() and len(np.unique(values)) > 5:
                expected = np.polyfit(values, np.maximum(values, 0), 2)
                found = one.coefficients[channel].detach().flatten()
                assert np.allclose(found, expected, rtol=1e-3, atol=1e-4)


def normal(size=20_000, mean=0.0, deviation=1.0) -> GroupedDataset:
    places = (torch.arange(size, dtype=torch.float64) + 0.5) / size
    values = torch.distributions.Normal(mean, deviation).icdf(places).float()
    return GroupedDataset(values[:, None], [0] * size, [0] * size, target_names=["one"])


def fit_to(data) -> list[float]:
    model = gate(nn.Sequential(nn.Flatten(), nn.ReLU()), data)
    return polynomial(model, relus=0, data=data)[1].coefficients.flatten().tolist()


def test_the_fit_to_a_standard_normal_is_that_of_its_hermite_expansion_and_of_delphi():
    """E ReLU(x) (x^2 - 1) / 2 = 1 / (2 sqrt(2 pi)); Delphi's code has 0.1997, 0.5002, 0.1992."""
    half = 1 / (2 * math.sqrt(2 * math.pi))
    assert fit_to(normal()) == pytest.approx([half, 0.5, half], abs=1e-3)
    assert [half, 0.5, half] == pytest.approx([0.1997, 0.5002, 0.1992], abs=4e-4)
    wide = [half / 1e4, 0.5, half * 1e4]
    assert fit_to(normal(deviation=1e4)) == pytest.approx(wide, rel=1e-2)
    assert fit_to(normal(mean=50)) == pytest.approx([0, 1, 0], abs=1e-3)


@pytest.mark.parametrize("value", [-2.0, 0.0, 3.0])
def test_a_channel_of_one_value_has_finite_coefficients_that_fit_it(value):
    data = GroupedDataset(torch.full((50, 1), value), [0] * 50, [0] * 50, target_names=["one"])
    square, slope, offset = fit_to(data)
    assert (square * value + slope) * value + offset == pytest.approx(max(value, 0), abs=1e-5)
    assert max(map(abs, (square, slope, offset))) <= 1


def test_places_are_those_of_random_gates_and_counted_exactly(cnn, curved, images):
    drawn = gates.read_gates(random_gates(gate(cnn), relus=300, seed=4))
    assert all(torch.equal(drawn[name], mask) for name, mask in gates.read_gates(curved).items())
    assert count(curved).attrs["total"] == int(cost(curved, images, latency=False)["relus"].iloc[0])
    assert count(curved).attrs["total"] == 300
    more = cost({"dense": cnn, "curved": curved}, images, latency=False)["parameters"]
    assert more["curved"] - more["dense"] == 3 * sum(BY_CHANNEL.values())
    layers = polynomial(gate(cnn), relus=400, data=images, granularity="layer")
    whole = [len(mask.unique()) for mask in gates.read_gates(layers).values()]
    assert whole == [1, 1, 1, 1]


def test_a_gate_by_hand():
    one = gates.Gate(nn.ReLU(), (2, 1, 2))
    one.keep[:, :, 1] = 0
    coefficients = torch.tensor([[2.0, 3.0, 5.0], [-1.0, 0.0, 7.0]])[..., None, None]
    one.quadratic = nn.Parameter(math.sqrt(2) * coefficients)
    inputs = torch.tensor([[[[-1.0, -1.0]], [[4.0, 4.0]]]])
    assert one(inputs).flatten().tolist() == pytest.approx([0.0, 4.0, 4.0, -9.0], rel=1e-6)
    optimizer = torch.optim.SGD(one.parameters(), lr=1.0)
    one(inputs).sum().backward()
    before = one.coefficients.detach()
    optimizer.step()
    moved = (one.coefficients.detach() - before).flatten(1)
    # The mean of x^2, x and 1 over two places, of which one has no ReLU.
    assert torch.allclose(moved, -torch.tensor([[1.0, -1.0, 1.0], [16.0, 4.0, 1.0]]) / 2)
    one.double()
    inputs = torch.randn(3, 2, 1, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(one, inputs)
    assert torch.autograd.gradcheck(
        lambda quadratic: torch.func.functional_call(one, {"quadratic": quadratic}, inputs),
        one.quadratic.detach().requires_grad_(),
    )


def test_with_all_relus_nothing_changes(cnn, images):
    every = fairlib.linearize(cnn, "polynomial", budget=1.0, data=images, finetune=0)
    state = gate(cnn).state_dict()
    assert state.keys() == every.state_dict().keys()
    assert all(torch.equal(value, state[name]) for name, value in every.state_dict().items())


def test_lines_of_an_earlier_linearization_start_as_lines(cnn, images):
    straight = random_gates(gate(cnn), relus=300, seed=1)
    curved = polynomial(straight, relus=300, data=images)
    assert count(curved).attrs["total"] == 300
    inputs = images.batch(slice(20))
    assert torch.allclose(curved(inputs), straight(inputs), rtol=1e-3, atol=1e-4)


def test_coefficients_survive_copies_restoring_export_and_a_second_choice(cnn, curved, images):
    inputs = images.batch(slice(3))
    fresh = fairlib.build("cnn", num_classes=3, in_channels=1, image_size=8)
    state = curved.state_dict()
    for other in (
        copy.deepcopy(curved),
        fairlib.restore(fresh, state),
        fairlib.restore(gate(fresh), state),
    ):
        assert torch.equal(other(inputs), curved(inputs))
        assert count(other).attrs["total"] == 300
    small = gate(nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 3)), images)
    small = polynomial(small, relus=2, data=images)
    assert torch.allclose(run_onnx(to_onnx(small, images))(inputs), small(inputs), atol=1e-4)
    with pytest.raises(ValueError, match="quadratic"):
        fairlib.restore(curved, gate(cnn).state_dict())
    fewer = random_gates(curved, relus=100)
    one = fewer.get_submodule("features.1")
    x = torch.from_numpy(inputs_of(fewer, "features.1", images)).float()
    square, slope, offset = one.coefficients.unbind(1)
    expected = torch.where(one.keep == 1, F.relu(x), square * x**2 + slope * x + offset)
    assert torch.allclose(one(x), expected, atol=1e-5)


def test_training_moves_the_coefficients_alone_and_side_by_side_alike(curved, images):
    settings = dict(epochs=2, lr=0.01)
    alone = [fairlib.fit(curved, images, seed=seed, **settings) for seed in (0, 1)]
    together = fairlib.fit_many([curved] * 2, images, seeds=[0, 1], **settings)
    for one, other in zip(alone, together, strict=True):
        for name, value in one.state_dict().items():
            assert torch.allclose(value, other.state_dict()[name], atol=1e-4)
        found = one.get_submodule("features.1").quadratic
        assert not torch.equal(found, curved.get_submodule("features.1").quadratic)
        assert count(one).attrs["total"] == 300


def test_finetuned_quadratics_can_be_audited_and_divergence_is_an_error(cnn, images):
    settings = dict(budget=0.1, data=images)
    tuned = fairlib.linearize(cnn, "polynomial", finetune={"epochs": 2, "lr": 0.01}, **settings)
    report = fairlib.audit(cnn, tuned, images, diagnostics=["gradient", "curvature"], resamples=50)
    assert report.cost["relus"].to_dict() == {"before": 864, "after": 86}
    assert report.table.drop(index="all").notna().all(axis=None)
    with pytest.raises(fairlib.training.DivergenceError, match="training diverged"):
        fairlib.linearize(cnn, "polynomial", finetune={"epochs": 2, "lr": 1e3}, **settings)
    far = GroupedDataset(1e30 * images.batch(slice(5)), images.targets[:5], images.groups[:5])
    with pytest.raises(FloatingPointError, match="NaN or infinite on 5 of 5 samples"):
        fairlib.diagnostics.predict(tuned, far)


def test_inputs_that_are_not_finite_are_refused(cnn, images):
    broken = gate(cnn)
    broken.features[0].weight.data[0] = torch.inf
    with pytest.raises(FloatingPointError, match=r"gate 'features\.1' are NaN or infinite"):
        polynomial(broken, relus=10, data=images)
