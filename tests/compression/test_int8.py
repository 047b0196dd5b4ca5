from __future__ import annotations

import copy
import pickle

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d
from zoo import lively, of_the_zoo, zoo_model

import fairlib
from fairlib.compression.int8 import calibration_set, int8
from fairlib.network import gates
from fairlib.network.cost import stored_bytes
from fairlib.network.export import Int8, export_onnx


class Functional(nn.Module):
    """A ReLU that is a function."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(inputs)))


@pytest.fixture(scope="module")
def digits() -> fairlib.data.Splits:
    return fairlib.load("digits")


@pytest.fixture(scope="module")
def dense(digits) -> nn.Module:
    return fairlib.fit(
        fairlib.build("cnn", like=digits), digits.train, epochs=20, batch_size=16, seed=0
    )


@pytest.fixture(scope="module")
def small(dense, digits) -> Int8:
    return int8(dense, data=digits.train)


def _data(inputs: Tensor) -> fairlib.GroupedDataset:
    codes = torch.arange(len(inputs)) % 2
    return fairlib.GroupedDataset(inputs, codes, codes)


def _tensors(model: Int8) -> dict[str, np.ndarray]:
    return {
        one.name: onnx.numpy_helper.to_array(one)
        for one in onnx.load_from_string(model.content).graph.initializer
    }


def _rounded(values: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(values / scale) + zero.astype(np.int64), 0, 255).astype(np.int64)


def _linear(values: np.ndarray, name: str, at: str, tensors: dict[str, np.ndarray]) -> np.ndarray:
    """A linear layer in integers: inputs rounded by the scale called ``at``, weights as they are
    stored."""
    scale, zero = tensors[f"{at}_scale"], tensors[f"{at}_zero_point"].astype(np.int64)
    weight = tensors[f"{name}.weight_quantized"].astype(np.int64)
    sums = (_rounded(values, scale, zero) - zero) @ weight.T + tensors[f"{name}.bias_quantized"]
    return sums * (scale * tensors[f"{name}.weight_scale"])


def test_a_linear_layer_is_integer_arithmetic():
    model, inputs = nn.Linear(6, 4), torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
    net = nn.Sequential(model)
    quantized = int8(net, data=_data(inputs))
    tensors, far = _tensors(quantized), 2 * inputs  # What lies outside the range is cut off.
    expected = _linear(far.numpy(), "0", "inputs", tensors)
    np.testing.assert_allclose(quantized(far).numpy(), expected, rtol=0, atol=1e-5)
    stored = tensors["0.weight_quantized"]
    assert stored.dtype == np.int8 and (abs(stored).max(1) == 64).all()
    np.testing.assert_allclose(
        stored * tensors["0.weight_scale"][:, None], model.weight.detach().numpy(), atol=0.01
    )


def test_a_convolution_a_relu_and_a_linear_layer_are_integer_arithmetic():
    generator = torch.Generator().manual_seed(1)
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4))
    inputs = torch.rand(40, 2, 4, 4, generator=generator)
    quantized = int8(net, data=_data(inputs))
    tensors = _tensors(quantized)
    scale, zero = tensors["inputs_scale"], tensors["inputs_zero_point"].astype(np.int64)
    pixels = torch.from_numpy(_rounded(inputs.numpy(), scale, zero) - zero)
    weight = torch.from_numpy(tensors["0.weight_quantized"].astype(np.int64))
    sums = conv2d(
        pixels, weight, torch.from_numpy(tensors["0.bias_quantized"].astype(np.int64))
    ).numpy()
    hidden = sums * (scale * tensors["0.weight_scale"])[:, None, None]
    expected = _linear(np.maximum(hidden, 0).reshape(40, 12), "3", "relu", tensors)
    found = quantized(inputs).numpy()
    largest = abs(tensors["3.weight_quantized"] * tensors["3.weight_scale"][:, None]).max()
    assert (
        abs(found - expected).max() <= tensors["relu_scale"] * largest
    )  # One step of one hidden unit.
    assert np.mean(abs(found - expected) < 1e-5) > 0.9


def test_sums_of_large_products_do_not_overflow():
    model = nn.Sequential(nn.Linear(64, 2, bias=False))
    model[0].weight.data = torch.tensor([[1.0], [-1.0]]).expand(2, 64).clone()
    quantized = int8(model, data=_data(torch.ones(4, 64)))
    torch.testing.assert_close(quantized(torch.ones(3, 64)), torch.tensor([[64.0, -64.0]] * 3))


@of_the_zoo()
def test_every_model_of_the_zoo_is_quantized_for_any_batch(name):
    model, inputs = zoo_model(name)
    many = torch.rand(32, *inputs.shape[1:], generator=torch.Generator().manual_seed(0))
    quantized = int8(model, data=_data(many))
    with torch.no_grad():
        expected = model(many)
    found = quantized(many)
    assert found.dtype == torch.float32 and found.shape == expected.shape
    assert (found - expected).abs().max() < 0.3 * expected.abs().max()
    for count in (1, 7):
        torch.testing.assert_close(quantized(many[:count]), found[:count])
    assert stored_bytes(quantized) < 0.5 * stored_bytes(model)


@pytest.mark.slow
def test_the_accuracy_on_digits_stays(dense, digits, capfd, caplog):
    quantized = int8(dense, data=digits.train, stratified=True)
    for part in (digits.train, digits.test):
        accuracies = [
            fairlib.diagnostics.predict(net, part).correct.mean() for net in (dense, quantized)
        ]
        assert abs(accuracies[0] - accuracies[1]) < 0.02 and accuracies[0] > 0.85
    assert stored_bytes(quantized) < 0.4 * stored_bytes(dense)
    assert capfd.readouterr() == ("", "") and {record.name for record in caplog.records} <= {
        "torch.__trace"
    }


@pytest.mark.slow
def test_calibration_is_drawn_by_seed(dense, images, digits):
    with pytest.warns(UserWarning, match="no sample of"):
        first, again, other = (
            int8(dense, data=digits.train, samples=4, seed=seed) for seed in (0, 0, 1)
        )
    assert first.content == again.content != other.content
    assert (
        len(calibration_set(images, 1000, False, 0).unique())
        == len(calibration_set(images, 1000, True, 0).unique())
        == len(images)
    )
    assert not torch.equal(
        calibration_set(images, 20, False, 0), calibration_set(images, 20, False, 1)
    )


@pytest.mark.parametrize(
    ("samples", "sizes"),
    [(9, [3, 3, 3]), (30, [10, 10, 10]), (60, [25, 25, 10]), (90, [50, 30, 10])],
)
def test_a_stratified_draw_is_as_equal_as_the_groups_allow(images, samples, sizes):
    assert images.groups[calibration_set(images, samples, True, 3)].bincount().tolist() == sizes
    assert images.groups[
        calibration_set(images, 10, True, 3)
    ].bincount().sort().values.tolist() == [3, 3, 4]


def test_a_group_without_a_calibration_sample_is_named(cnn, images):
    rare = images.subset(images.groups != 2)
    with pytest.warns(UserWarning, match="no sample of few: ranges are those of other groups"):
        int8(cnn, data=rare)


def test_a_copy_a_pickle_and_an_audit_say_the_same(small, dense, digits, tmp_path):
    inputs = digits.test.batch(range(20))
    expected = small(inputs)
    for twin in (copy.deepcopy(small), pickle.loads(pickle.dumps(small))):
        assert torch.equal(twin(inputs), expected) and twin.stored_bytes == small.stored_bytes
    report = fairlib.audit(dense, small, digits.test)
    assert (report.table["drop"].abs() < 0.1).all()
    assert fairlib.history(small).equals(fairlib.history(dense)) and not small.training
    export_onnx(small, tmp_path / "int8.onnx", digits.test)
    again = fairlib.audit(small, str(tmp_path / "int8.onnx"), digits.test)
    assert (again.table["drop"] == 0).all()


def test_it_is_passed_on_but_not_trained(small, digits):
    inputs = digits.test.batch(range(20))
    assert torch.equal(fairlib.fit(small, digits.train, epochs=0)(inputs), small(inputs))
    with pytest.raises(ValueError, match="int8 is not trainable: use quantize"):
        fairlib.fit(small, digits.train, epochs=1)
    assert sum(parameter.numel() for parameter in small.parameters()) == 0


def test_masked_zeros_stay_zeros_and_bytes_are_those_of_the_initializers(dense, digits):
    pruned = fairlib.prune(dense, "magnitude", sparsity=0.8)
    quantized = int8(pruned, data=digits.train)
    tensors = _tensors(quantized)
    assert quantized.stored_bytes == sum(
        tensor.size * tensor.itemsize for tensor in tensors.values()
    )
    for name, weight in fairlib.network.masks.prunable(pruned).items():
        assert (tensors[f"{name}_quantized"][(weight == 0).numpy()] == 0).all()


def test_gates_hold(dense, digits):
    linear = fairlib.linearize(dense, "random", data=digits.train, budget=0.3, finetune=0)
    assert gates.gates(linear)
    one, other = (
        fairlib.diagnostics.predict(net, digits.test).logits
        for net in (linear, int8(linear, data=digits.train))
    )
    assert np.sqrt(np.mean((one - other) ** 2)) < 0.1 * one.std()


@pytest.mark.slow
def test_foreign_models():
    from torchvision.models import mobilenet_v3_small

    with torch.random.fork_rng():
        torch.manual_seed(0)
        plain = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double()
        nets = [
            (Functional(), (6,)),
            (plain, (6,)),
            (lively(mobilenet_v3_small(num_classes=3)), (3, 32, 32)),
        ]
    for net, shape in nets:
        inputs = torch.rand(32, *shape, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            expected = net.eval()(inputs.to(next(net.parameters()).dtype)).float()
        assert (
            int8(net, data=_data(inputs))(inputs) - expected
        ).abs().max() < 0.2 * expected.abs().max()


def test_bad_input(cnn, images, small):
    with pytest.raises(ValueError, match="bits of int8 must be 8, got 4"):
        fairlib.quantize(cnn, "int8-static", bits=4, data=images)
    with pytest.raises(ValueError, match="the model is in int8 already"):
        fairlib.quantize(small, "int8-static", data=images)
    with pytest.raises(TypeError, match=r"unknown setting 'calibration' .*; known: samples, strat"):
        fairlib.quantize(cnn, "int8-static", data=images, calibration="mean")
    with pytest.raises(TypeError, match="data must be a GroupedDataset"):
        fairlib.quantize(cnn, "int8-static", data=images.inputs)
    with pytest.raises(ValueError, match="needs data=, the training set"):
        fairlib.quantize(cnn, "int8-static")
    with pytest.raises(ValueError, match="samples must lie in"):
        fairlib.quantize(cnn, "int8-static", data=images, samples=0)
    cnn.features[0].weight.data[0, 0, 0, 0] = torch.inf
    with pytest.raises(ValueError, match=r"features\.0\.weight holds NaN or infinite numbers"):
        fairlib.quantize(cnn, "int8-static", data=images)
