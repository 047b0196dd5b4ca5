from __future__ import annotations

import torch
from torch import nn

import fairlib


def test_mlp_written_out():
    model = fairlib.build("mlp", num_classes=3, in_channels=2, image_size=4, hidden=(5,))
    model.normalize.fill(torch.tensor([0.1, 0.2]), torch.tensor([0.5, 2.0]))
    images = torch.rand(6, 2, 4, 4)
    first, last = (layer for layer in model.modules() if isinstance(layer, nn.Linear))
    scaled = torch.cat([(images[:, 0] - 0.1) / 0.5, (images[:, 1] - 0.2) / 2], dim=1).flatten(1)
    expected = (scaled @ first.weight.T + first.bias).clamp(min=0) @ last.weight.T + last.bias
    torch.testing.assert_close(model(images), expected)
    assert torch.equal(model(images.flatten(1)), model(images))


def test_mlp_takes_vectors_and_may_be_linear():
    model = fairlib.build("mlp", num_classes=3, in_channels=7, image_size=1, hidden=())
    model.normalize.fill(torch.arange(7.0), torch.full((7,), 2.0))
    vectors, layer = torch.rand(5, 7), model.classifier[-1]
    torch.testing.assert_close(
        model(vectors), (vectors - torch.arange(7.0)) / 2 @ layer.weight.T + layer.bias
    )
