from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

import fairlib
from fairlib.compression.weights import weights
from fairlib.network import quantizers


@pytest.fixture
def cnn():
    return fairlib.build("cnn", num_classes=3, in_channels=1, image_size=8, seed=0)


@pytest.mark.parametrize("bits", [1, 3])
@pytest.mark.parametrize(
    "settings", [dict(lr=0.1), dict(lr=0.1, momentum=0.9)], ids=["sgd", "momentum"]
)
def test_training_is_the_straight_through_estimator(bits, settings):
    inputs, targets = torch.randn(20, 6), torch.randint(0, 3, (20,))
    layer = nn.Linear(6, 3)
    quantized = weights(layer, bits=bits)
    steps = quantized.weight_scale.clone()
    optimizer = torch.optim.SGD(quantized.parameters(), **settings)
    latent, bias = (
        layer.weight.detach().clone().requires_grad_(),
        layer.bias.detach().clone().requires_grad_(),
    )
    peer = torch.optim.SGD([latent, bias], **settings)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(quantized(inputs), targets).backward()
        optimizer.step()
        peer.zero_grad()
        through = latent + (quantizers.rounded(latent.detach(), steps, bits) - latent).detach()
        nn.functional.cross_entropy(nn.functional.linear(inputs, through, bias), targets).backward()
        peer.step()
    quantizers.round_quantized(quantized)
    wanted = quantizers.rounded(latent.detach(), steps, bits)
    assert torch.allclose(quantized.weight, wanted, atol=1e-4)
    assert not torch.equal(wanted, quantizers.rounded(layer.weight.detach(), steps, bits))
    assert torch.equal(quantized.weight_scale, steps)


def test_looking_at_a_quantized_model_changes_nothing(cnn):
    quantized = fairlib.quantize(cnn, "weights", bits=4)
    before = {name: tensor.clone() for name, tensor in quantized.state_dict().items()}
    for _ in range(3):
        quantized(torch.rand(5, 1, 8, 8))
    assert all(torch.equal(before[name], tensor) for name, tensor in quantized.state_dict().items())


def test_copies_files_and_states_give_the_same_model(cnn):
    images = torch.rand(4, 1, 8, 8)
    quantized = fairlib.quantize(fairlib.prune(cnn, "magnitude", sparsity=0.5), "weights", bits=3)
    file = io.BytesIO()
    torch.save(quantized, file)
    file.seek(0)
    fresh = fairlib.build("cnn", num_classes=3, in_channels=1, image_size=8, seed=5)
    copies = [
        copy.deepcopy(quantized),
        torch.load(file, weights_only=False),
        fairlib.restore(fresh, quantized.state_dict()),
    ]
    for other in copies:
        assert torch.equal(other(images), quantized(images))
        assert quantizers.read_bits(other) == quantizers.read_bits(quantized)
        optimizer = torch.optim.SGD(other.parameters(), lr=1.0)
        other(images).square().sum().backward()
        optimizer.step()
        other(images)
        assert all(len(channel.unique()) <= 7 for channel in other.features[0].weight.detach())


@pytest.mark.parametrize("wrapped", [torch.clone, nn.Parameter])
def test_under_functional_call_the_weights_are_the_callers(cnn, wrapped):
    quantized = fairlib.quantize(cnn, "weights", bits=2)
    before = quantized.features[0].weight.clone()
    own = {
        name: wrapped(torch.ones_like(parameter))
        for name, parameter in quantized.named_parameters()
    }
    torch.func.functional_call(quantized, own, (torch.rand(2, 1, 8, 8),))
    assert torch.equal(quantized.features[0].weight, before)
    assert own["features.0.weight"].eq(1).all()


def test_attention_is_rounded_in_training_too():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    quantized = weights(nn.Sequential(layer, nn.Flatten(), nn.Linear(24, 3)), bits=2)
    optimizer = torch.optim.SGD(quantized.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        quantized(torch.rand(5, 3, 8)).square().sum().backward()
        optimizer.step()
    with torch.no_grad():
        quantized.eval()(torch.rand(5, 3, 8))
    out = quantized[0].self_attn.out_proj.weight.detach()
    assert all(len(row.unique()) <= 3 for row in out)
    before = out.clone()
    quantized.state_dict()
    assert torch.equal(out, before)


def test_a_buffer_of_the_same_name_is_somebody_elses():
    model = nn.Sequential(nn.Linear(3, 2))
    model[0].register_buffer("weight_scale", torch.ones(2))
    assert quantizers.read_bits(model) == {}
    assert fairlib.sparsity(fairlib.prune(model, "magnitude", sparsity=0.5)) == 0.5
    assert quantizers.read_bits(fairlib.restore(model, model.state_dict())) == {}
