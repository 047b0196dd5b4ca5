"""The rule of every layer against the gradient that ``vmap(grad)`` takes of each sample."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from fairlib.diagnostics.layer_gradients import RULES, _outer

LAYERS = {  # A layer and the shape of one sample.
    "linear": (nn.Linear(5, 4), (5,)),
    "linear, positions": (nn.Linear(5, 4), (3, 7, 5)),
    "conv1d": (nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), (4, 9)),
    "conv2d": (
        nn.Conv2d(4, 6, (3, 2), dilation=(2, 1), padding="same", padding_mode="circular"),
        (4, 7, 6),
    ),
    "conv3d": (nn.Conv3d(2, 3, 2, padding=1), (2, 3, 4, 3)),
    "batchnorm1d": (nn.BatchNorm1d(5), (5,)),
    "batchnorm2d": (nn.BatchNorm2d(3), (3, 4, 4)),
    "batchnorm3d": (nn.BatchNorm3d(3), (3, 2, 3, 2)),
    "layernorm": (nn.LayerNorm(6), (6,)),
    "layernorm, positions": (nn.LayerNorm((4, 6)), (3, 4, 6)),
    "groupnorm": (nn.GroupNorm(2, 4), (4, 3, 3)),
}


def random_layer(case):
    """The layer in float64 and eval mode, with statistics that are not 0 and 1, and a batch of
    5."""
    layer, shape = LAYERS[case]
    generator = torch.Generator().manual_seed(0)
    layer = layer.double().eval()
    for name, tensor in layer.state_dict().items():
        if tensor.is_floating_point():
            tensor.copy_(
                torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
                + (name == "running_var")
            )
    return layer, torch.randn(5, *shape, generator=generator, dtype=torch.float64), generator


def test_every_rule_has_a_case():
    assert {type(layer) for layer, _ in LAYERS.values()} == set(RULES)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("case", LAYERS)
def test_rules_agree_with_vmap(case, masked):
    layer, inputs, generator = random_layer(case)
    outgoing = torch.randn(layer(inputs).shape, generator=generator, dtype=torch.float64)
    weights = {name: weight.detach() for name, weight in layer.named_parameters()}
    mask = (torch.rand(layer.weight.shape, generator=generator) < 0.5) if masked else None

    def pulled(weights, one, direction):
        return (functional_call(layer, weights, (one[None],))[0] * direction).sum()

    expected = vmap(grad(pulled), in_dims=(None, 0, 0))(weights, inputs, outgoing)
    if mask is not None:
        expected["weight"] = expected["weight"] * mask
    found = RULES[type(layer)](layer, inputs, outgoing, mask)
    for kind in ("weight", "bias"):
        torch.testing.assert_close(
            found[kind], expected[kind].flatten(1).square().sum(1), rtol=1e-10, atol=0
        )


@pytest.mark.parametrize("positions", [1, 2, 7, 30])
@pytest.mark.parametrize("masked", [False, True])
def test_every_form_of_the_sum_of_outer_products(positions, masked):
    generator = torch.Generator().manual_seed(0)
    u, delta = (
        torch.randn(5, 2, size, positions, generator=generator, dtype=torch.float64)
        for size in (3, 4)
    )
    mask = torch.rand(2, 4, 3, generator=generator) < 0.5 if masked else None
    gradient = torch.einsum("ngop,ngip->ngoi", delta, u) * (1 if mask is None else mask)
    torch.testing.assert_close(
        _outer(u, delta, mask), gradient.square().sum((1, 2, 3)), rtol=1e-12, atol=0
    )
