"""Where torchvision has the architecture, its weights load into ours and give its outputs."""

from __future__ import annotations

import pytest
import torch
import torchvision
from torch import nn

import fairlib
from fairlib.models import Normalize

PEERS = {
    "resnet18": (torchvision.models.resnet18, 11_689_512),
    "resnet34": (torchvision.models.resnet34, 21_797_672),
    "resnet50": (torchvision.models.resnet50, 25_557_032),
    "vgg19": (torchvision.models.vgg19_bn, 143_678_248),
    "mobilenetv2": (torchvision.models.mobilenet_v2, 3_504_872),
}


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def _agree(name: str, peer: nn.Module, size: int, classes: int, **settings) -> None:
    few, one = torch.rand(4, 3, 64, 64), torch.rand(1, 3, size, size)
    _make_trained(peer, few)
    with torch.device("meta"):
        ours = fairlib.build(name, num_classes=classes, image_size=size, **settings)
    ours.normalize = Normalize(3)
    missing, unexpected = ours.load_state_dict(peer.state_dict(), strict=False, assign=True)
    assert (
        set(missing) == {"normalize.mean", "normalize.std", "normalize.fitted"} and not unexpected
    )
    peer.eval(), ours.eval()
    with torch.no_grad():
        expected = peer(few)
        assert float(expected.std(0).mean()) > 0.01 * float(
            expected.abs().mean()
        )  # Else any inputs would agree.
        torch.testing.assert_close(ours(few), expected, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(ours(one), peer(one), rtol=1e-3, atol=1e-5)


def _make_trained(model: nn.Module, images: torch.Tensor) -> None:
    """Give every batch normalization weights of its own and the statistics of the images."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
            module.momentum = 1.0
    with torch.no_grad():
        model.train()(images)


@pytest.mark.slow
@pytest.mark.parametrize("name", PEERS)
def test_outputs_and_parameters_at_224_pixels_and_1000_classes(name):
    constructor, parameters = PEERS[name]
    # VGG's own initialization takes seconds.
    peer = constructor(weights=None, **({"init_weights": False} if name == "vgg19" else {}))
    assert sum(p.numel() for p in peer.parameters()) == parameters
    _agree(name, peer, 224, 1000)


def test_imagenet_stem_on_small_images():
    _agree("resnet18", torchvision.models.resnet18(num_classes=5), 32, 5, stem="imagenet")


@pytest.mark.parametrize("width", [0.1, 0.35, 0.5, 1.4])
def test_mobilenets_width_is_torchvisions(width):
    _agree(
        "mobilenetv2",
        torchvision.models.mobilenet_v2(num_classes=5, width_mult=width),
        96,
        5,
        width=width,
    )
