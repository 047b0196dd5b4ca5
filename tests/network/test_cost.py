from __future__ import annotations

import math
import threading

import numpy as np
import pytest
import torch
from test_export import Branching
from torch import Tensor, nn

import fairlib
from fairlib.network import gates, masks
from fairlib.network.channels import example_inputs
from fairlib.network.cost import cost, stored_bytes


class Noisy(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + torch.rand_like(inputs)


COUNTS = ["parameters", "bytes", "macs", "relus"]


def test_cost_by_hand(images):
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2)
    ).train()
    table = cost({"net": net, "same": net}, images, batch_size=3, repeats=2)
    parameters = 4 * 9 + 2 * 4 * 36 + 2
    assert [*table.loc["net", COUNTS]] == [
        parameters,
        4 * parameters,
        36 * 4 * 9 + 2 * 4 * 36,
        4 * 36,
    ]
    assert (table["latency_low"] <= table["latency"]).all() and (
        table["latency"] <= table["latency_high"]
    ).all()
    assert (table["latency_low"] > 0).all() and list(table.index) == ["net", "same"]
    assert (
        table.loc["net", "ratio"] == 1
        and table.attrs == {"batch_size": 3, "threads": 1, "reasons": {}}
        and net.training
    )
    alone = cost(net, images, latency=False)
    assert (
        [*alone.index] == ["model"]
        and [*alone.columns] == COUNTS
        and {*map(str, alone.dtypes)} == {"int64"}
    )


def test_what_cannot_be_computed_is_nan():
    net = nn.Sequential(nn.Linear(3, 4), Branching())
    with pytest.warns(UserWarning, match="latency of 'odd' is NaN: Sequential cannot be exported"):
        table = cost({"plain": nn.Linear(3, 4), "odd": net}, torch.rand(2, 3), repeats=1)
    reasons = table.attrs["reasons"]
    assert reasons["relus of 'plain'"] == "ValueError: Linear has no ReLU to gate"
    assert reasons["latency of 'odd'"].startswith("Sequential cannot be exported")
    assert table["relus"].isna().all() and [*table["latency"].isna()] == [
        *table["ratio"].isna()
    ] == [False, True]


def _layer(outputs: int = 10, inputs: int = 33) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def _quantized(layer: nn.Module, bits: int) -> nn.Module:
    layer.register_buffer("weight_bits", torch.tensor(bits, dtype=torch.uint8))
    layer.register_buffer("weight_scale", torch.ones(len(layer.weight), 1))
    layer.register_buffer("weight_residual", layer.weight.detach().clone())
    return layer


def _foreign(layer: nn.Module) -> nn.Module:
    layer.register_buffer("weight_mask", torch.ones_like(layer.weight))
    return layer


def _masked(layer: nn.Module, kept: int) -> nn.Module:
    keep = (torch.arange(layer.weight.numel()) < kept).reshape(layer.weight.shape)
    return masks.with_masks(layer, {"weight": keep})


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (_layer(), 330 * 4),
        (_layer().double(), 330 * 8),
        (_quantized(_layer(), 3), math.ceil(330 * 3 / 8) + 10 * 4),
        (_quantized(_layer(3, 3), 1), 2 + 3 * 4),
        (_masked(_layer(), 50), 42 + 50 * 4),
        (_masked(_layer(), 0), 42),
        (_masked(_layer(), 325), 330 * 4),  # The bitmap costs more than it saves.
        (_masked(_quantized(_layer(), 5), 51), 42 + math.ceil(51 * 5 / 8) + 10 * 4),
        (_masked(_quantized(_layer(), 1), 5), 42 + 40),  # One bit a weight, as the bitmap alone.
        (_foreign(_layer()), 330 * 4 * 2),
        (nn.BatchNorm1d(6), 4 * 6 * 4),  # Without num_batches_tracked.
    ],
)
def test_bytes_by_hand(layer, expected):
    assert stored_bytes(nn.Sequential(layer)) == expected


def test_tied_tensors_count_once():
    first, second = _layer(4, 4), _layer(4, 4)
    second.weight = first.weight
    assert stored_bytes(nn.Sequential(first, second)) == 4 * 16


def test_a_gate_takes_a_bit_for_each_relu_unless_they_are_alike():
    net = nn.Sequential(nn.Linear(3, 10), nn.ReLU(), nn.Linear(10, 2))
    gated = gates.gate(net, torch.rand(1, 3))
    dense = stored_bytes(net)

    def kept(keep: Tensor) -> tuple[int, float]:
        linear = gates.with_gates(gated, {"1": keep})
        return stored_bytes(linear) - dense, cost(linear, torch.rand(1, 3), latency=False)[
            "relus"
        ].item()

    assert kept(torch.ones(10, dtype=torch.bool)) == (0, 10)
    assert kept(torch.zeros(10, dtype=torch.bool)) == (0, 0)
    assert kept(torch.arange(10) < 3) == (2, 3)


@pytest.mark.slow
def test_int8_costs_what_its_network_does_but_bytes_and_relus(cnn, images):
    dense = fairlib.fit(cnn, images, epochs=1)
    table = cost(
        {"dense": dense, "int8": fairlib.quantize(dense, "int8-static", data=images)},
        images,
        repeats=2,
    )
    assert table["parameters"].nunique() == table["macs"].nunique() == 1
    assert table.loc["int8", "bytes"] < 0.4 * table.loc["dense", "bytes"]
    assert math.isnan(table.loc["int8", "relus"]) and table["latency"].notna().all()


def test_bad_input(cnn, images):
    with pytest.raises(ValueError, match="repeats must lie in"):
        cost({"cnn": cnn}, images, repeats=0)
    with pytest.raises(ValueError, match="data is needed"):
        cost(cnn, None)
    with pytest.raises(TypeError, match=r"model 'cnn' must be a torch\.nn\.Module"):
        cost({"cnn": 3}, images)
    with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module"):
        stored_bytes(3)


def test_attention_counts_as_many_products_as_by_hand():
    width, tokens = 8, 5
    layer = nn.TransformerEncoderLayer(width, 2, 16, batch_first=True)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(width * tokens, 3))
    products = tokens * width * 3 * width + 2 * tokens * tokens * width + tokens * width * width
    products += 2 * tokens * width * 16 + width * tokens * 3
    assert (
        cost(model, torch.zeros(1, tokens, width), latency=False).loc["model", "macs"] == products
    )


def test_a_model_that_cannot_be_copied_has_its_bytes(images):
    pixels = example_inputs(nn.Flatten(), images)[0].numel()
    model = nn.Sequential(nn.Flatten(), nn.Linear(pixels, 3))
    model.lock = threading.Lock()
    table = cost(model, images, latency=False)
    row = table.loc["model"]
    assert "cannot pickle" in table.attrs["reasons"]["relus of 'model'"]
    assert row["bytes"] == 4 * row["parameters"] and np.isnan(row["relus"])
    noisy = nn.Sequential(nn.Flatten(), Noisy(), nn.Linear(pixels, 3))
    state = torch.random.get_rng_state()
    cost(noisy, images, latency=False)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_fault_is_no_reason_for_nan(cnn, images, monkeypatch):
    monkeypatch.setattr(gates, "count", lambda model: model.nowhere)
    with pytest.raises(AttributeError, match="nowhere"):
        cost(cnn, images, latency=False)
