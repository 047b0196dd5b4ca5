from __future__ import annotations

import pytest
import torch
from torch import nn

import fairlib


@pytest.mark.parametrize(
    ("size", "poolings"), [(1, 0), (8, 3), (16, 4), (28, 4), (32, 5), (64, 5), (96, 5)]
)
def test_vgg_pools_only_while_there_is_something_to_pool(size, poolings):
    with torch.device("meta"):
        model = fairlib.build("vgg19", num_classes=2, image_size=size).eval()
        maps = model.features(torch.rand(1, 3, size, size))
    assert sum(isinstance(module, nn.MaxPool2d) for module in model.modules()) == poolings
    assert maps.shape[2] == max(1, size // 32)


def test_vgg_heads():
    with torch.device("meta"):
        small, large = (fairlib.build("vgg19", num_classes=6, image_size=size) for size in (64, 65))
    assert small.classifier.weight.shape == (6, 512)
    assert [m.out_features for m in large.classifier if isinstance(m, nn.Linear)] == [4096, 4096, 6]
