from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from zoo import of_the_zoo, zoo_model

import fairlib
from fairlib.compression.weights import scale, weights
from fairlib.network import masks, quantizers


@pytest.fixture
def cnn():
    return fairlib.build("cnn", num_classes=3, in_channels=1, image_size=8, seed=0)


def _error(row: np.ndarray, step: float, bits: int) -> float:
    top = 2 ** (bits - 1) - 1
    return float(((row - step * np.clip(np.round(row / step), -top, top)) ** 2).sum())


def _least(row: np.ndarray, bits: int) -> float:
    """The least error, from every assignment of values that a scale can give: it changes where |w|
    / s = j - 1/2."""
    top = 2 ** (bits - 1) - 1
    edges = sorted({abs(w) / (j - 0.5) for w in row for j in range(1, top + 1)})
    inside = [(a + b) / 2 for a, b in itertools.pairwise(edges)] + [edges[-1] * 1.01]
    best = []
    for step in inside:
        values = np.clip(np.round(row / step), -top, top)
        best.append(_error(row, float(row @ values / max(values @ values, 1e-12)) or step, bits))
    return min(best)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_the_scale_has_nearly_the_least_squared_error(bits):
    rows = np.random.default_rng(0).normal(size=(6, 40)) ** np.array([[1], [1], [1], [3], [3], [3]])
    found = scale(torch.from_numpy(rows), bits).flatten().tolist()
    for row, step in zip(rows, found, strict=True):
        assert _error(row, step, bits) <= 1.01 * _least(row, bits)


def test_the_best_scale_may_leave_the_outer_level_unused():
    """The best scale of these weights is larger than a third of the largest of them."""
    row = [0.8, -0.7, -1.5, 1.5]
    assert scale(torch.tensor([row], dtype=torch.float64), 3).item() == pytest.approx(0.75)
    assert _least(np.array(row), 3) == pytest.approx(0.005)


def test_one_bit_is_the_sign_times_the_mean_size():
    layer = nn.Linear(4, 2)
    layer.weight.data = torch.tensor([[1.0, -2.0, 3.0, -2.0], [0.5, 0.5, -0.5, -2.5]])
    assert weights(layer, bits=1).weight.tolist() == [
        [2.0, -2.0, 2.0, -2.0],
        [1.0, 1.0, -1.0, -1.0],
    ]


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 6, 8])
@of_the_zoo()
def test_every_channel_of_the_zoo_has_at_most_as_many_values(name, bits):
    model, images = zoo_model(name)
    quantized = fairlib.quantize(model, "weights", bits=bits)
    for weight in masks.prunable(quantized).values():
        for channel in weight.detach():
            assert len(channel.unique()) <= max(2, 2**bits - 1)
    assert quantized(images).isfinite().all()
    assert set(quantizers.read_bits(quantized).values()) == {bits}


def test_sixteen_bits_change_next_to_nothing(cnn):
    quantized = fairlib.quantize(cnn, "weights", bits=16)
    for before, after in zip(cnn.parameters(), quantized.parameters(), strict=True):
        assert torch.allclose(before, after, atol=2e-5)


@pytest.mark.parametrize("bits", [2, 3, 4, 6, 8])
def test_onnxruntime_and_torch_round_to_the_same_values_at_the_same_scales(bits):
    from onnx import TensorProto
    from onnxruntime.quantization.quant_utils import quantize_nparray

    torch.manual_seed(0)
    layer = nn.Linear(500, 6)
    nn.init.normal_(layer.weight)
    rows, top = layer.weight.detach(), 2 ** (bits - 1) - 1
    ours = weights(layer, bits=bits).weight.detach()
    steps = scale(rows, bits)
    assert (rows / steps > top + 0.5).any(), "something is cut off"
    for row, step, found in zip(rows.numpy(), steps.numpy(), ours, strict=True):
        theirs = quantize_nparray(TensorProto.INT8, row, step, np.int8(0), low=-top, high=top)
        assert torch.equal(found, torch.from_numpy(theirs.astype(np.float32) * step))
    zero = torch.zeros(6, dtype=torch.int32)
    torch.testing.assert_close(
        ours, torch.fake_quantize_per_channel_affine(rows, steps.flatten(), zero, 0, -top, top)
    )


def test_finetuning_under_a_constraint_keeps_the_values(cnn):
    data = fairlib.load("digits", size=200).train
    dense = fairlib.fit(fairlib.build("cnn", like=data), data, epochs=2)
    quantized = fairlib.quantize(dense, "weights", bits=3)
    tuned = fairlib.fit(quantized, data, epochs=5, lr=0.2, constraint=fairlib.EqualLoss(step=0.05))
    for name, weight in masks.prunable(tuned).items():
        assert all(len(channel.unique()) <= 7 for channel in weight.detach())
        assert not torch.equal(weight, masks.prunable(quantized)[name])
    assert "multiplier[0]" in fairlib.history(tuned)


def test_pruned_weights_stay_zero_and_gates_stay(cnn):
    data = fairlib.load("digits", size=200).train
    dense = fairlib.fit(fairlib.build("cnn", like=data), data, epochs=2)
    sparse = fairlib.prune(
        fairlib.linearize(dense, "random", data=data, budget=0.5, finetune=0),
        "magnitude",
        sparsity=0.8,
    )
    for bits in (1, 4):
        both = fairlib.quantize(sparse, "weights", bits=bits)
        tuned = fairlib.fit(both, data, epochs=2)
        for model in (both, tuned):
            for name, mask in masks.read_masks(sparse).items():
                assert not masks.prunable(model)[name][~mask].any()
            assert (
                fairlib.linearization.count(model).attrs
                == fairlib.linearization.count(sparse).attrs
            )


def test_an_exported_model_has_rounded_weights(cnn, tmp_path):
    quantized = fairlib.quantize(cnn, "weights", bits=2)
    optimizer = torch.optim.SGD(quantized.parameters(), lr=0.5)
    quantized(torch.rand(4, 1, 8, 8)).square().sum().backward()
    optimizer.step()
    fairlib.network.export.export_onnx(quantized, tmp_path / "net.onnx", torch.rand(1, 1, 8, 8))
    assert (tmp_path / "net.onnx").is_file()


@pytest.mark.parametrize("bits", [0, 17, -1])
def test_bits_outside_one_to_sixteen_are_refused(cnn, bits):
    with pytest.raises(ValueError, match=r"bits must lie in \[1, 16\]"):
        fairlib.quantize(cnn, "weights", bits=bits)
    with pytest.raises(ValueError, match=r"levels must lie in \[1, 16\]"):
        fairlib.study("digits", "mlp", "quantize:weights", [bits])


def test_bits_between_two_numbers_are_refused(cnn):
    with pytest.raises(TypeError, match="bits must be an integer"):
        fairlib.quantize(cnn, "weights", bits=2.5)
    with pytest.raises(ValueError, match=r"levels must be whole numbers of bits, got 2.5"):
        fairlib.study("digits", "mlp", "quantize:weights", [2.5])


def test_weights_that_are_nan_are_named(cnn):
    cnn.features[0].weight.data[0, 0, 0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"the scale of features\.0\.weight would be NaN"):
        fairlib.quantize(cnn, "weights", bits=4)


def test_what_is_quantized_is_neither_quantized_again_nor_pruned(cnn):
    quantized = fairlib.quantize(cnn, "weights", bits=4)
    with pytest.raises(ValueError, match="quantized already"):
        fairlib.quantize(quantized, "weights", bits=2)
    with pytest.raises(ValueError, match="prune first, then quantize"):
        fairlib.prune(quantized, "magnitude", sparsity=0.5)


def test_unknown_names_and_settings_are_listed(cnn):
    with pytest.raises(ValueError, match="int8-static"):
        fairlib.quantize(cnn, "int4")
    with pytest.raises(TypeError, match="stratified"):
        fairlib.quantize(cnn, "weights", bits=4, stratified=True)
