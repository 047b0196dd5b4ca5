from __future__ import annotations

import pytest
import torch
from torch import nn

import fairlib


def _relus(name: str, size: int) -> dict[str, int]:
    """ReLUs for one image by module, as their outputs' sizes."""
    counts: dict[str, int] = {}
    with torch.device("meta"):
        model = fairlib.build(name, num_classes=10, image_size=size)
        for path, module in model.named_modules():
            if isinstance(module, nn.ReLU):
                module.register_forward_hook(
                    lambda _, __, output, path=path: counts.update({path: output.numel()})
                )
        model(torch.rand(1, 3, size, size))
    return counts


@pytest.mark.parametrize(
    ("name", "size", "total"),
    [("resnet18", 32, 491_520), ("resnet34", 32, 901_120), ("resnet18", 64, 1_966_080)],
)
def test_relu_counts_are_snls(name, size, total):
    counts = _relus(name, size)
    assert counts.pop("relu") == 64 * size**2
    assert sum(counts.values()) == total


@pytest.mark.parametrize("name", ["tiny-resnet", "resnet18", "resnet50"])
def test_stems(name):
    small = dict.fromkeys(("auto", "small"), (3, 1, nn.Identity))
    large = dict.fromkeys(("auto", "imagenet"), (7, 2, nn.MaxPool2d))
    for size, forms in (
        (64, small),
        (65, large),
        (224, {"small": small["small"]}),
        (32, {"imagenet": large["auto"]}),
    ):
        for stem, (kernel, stride, pooling) in forms.items():
            with torch.device("meta"):
                model = fairlib.build(name, num_classes=2, image_size=size, stem=stem)
            assert model.conv1.kernel_size == (kernel, kernel) and model.conv1.stride == (
                stride,
                stride,
            )
            assert isinstance(model.maxpool, pooling)
    with pytest.raises(ValueError, match="unknown stem 'cifar'; known: auto, small, imagenet"):
        fairlib.build(name, num_classes=2, stem="cifar")


def test_widths_and_blocks():
    model = fairlib.build(
        "resnet50", num_classes=2, in_channels=1, image_size=8, widths=(2, 3), blocks=(1, 2)
    )
    assert [len(model.layer1), len(model.layer2), model.fc.in_features] == [1, 2, 12]
    with pytest.raises(ValueError, match="widths and blocks must be equally long, got 2 and 4"):
        fairlib.build("resnet18", num_classes=2, widths=(2, 3))
