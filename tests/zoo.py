"""Small models of the zoo whose every layer matters."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import nn

import fairlib

SIZES = {name: 16 if name == "mobilenetv2" else 8 for name in fairlib.models.MODELS}
RECTIFIED = [name for name in SIZES if name != "vit-tiny"]
"""Models with ReLUs, and channels that can be removed."""
NARROW = {"resnet10", "resnet18", "resnet34", "resnet50", "vgg19", "mobilenetv2", "wrn-22-8"}


def of_the_zoo(names: Iterable[str] = tuple(SIZES)) -> pytest.MarkDecorator:
    """Parametrize a test by the ``name`` of a model; all but three small ones are slow."""
    slow = set(SIZES) - {"mlp", "cnn", "tiny-resnet"}
    marks = {name: pytest.mark.slow if name in slow else () for name in names}
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=mark) for name, mark in marks.items()]
    )


def lively(model: nn.Module) -> nn.Module:
    """The model in eval mode with biases and statistics of normalization as a training might leave
    them."""
    generator = torch.Generator().manual_seed(3)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            layer.weight.data.uniform_(0.5, 1.5, generator=generator)
            layer.bias.data.normal_(0, 0.5, generator=generator)
            layer.running_mean.normal_(0, 0.2, generator=generator)
            layer.running_var.uniform_(0.5, 1.5, generator=generator)
    return model.eval()


def zoo_model(name: str) -> tuple[nn.Module, torch.Tensor]:
    """A model of the registry, narrow where it is large, and a batch of two images for it."""
    size = SIZES[name]
    settings = {"width": 0.125} if name in NARROW else {}
    model = lively(
        fairlib.build(name, num_classes=3, in_channels=2, image_size=size, seed=1, **settings)
    )
    return model, torch.rand(2, 2, size, size, generator=torch.Generator().manual_seed(2))


def far(one: nn.Module, other: nn.Module) -> float:
    """Largest difference of two models' tensors."""
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return max(float((a.double() - b.double()).abs().max()) for a, b in pairs)


def different(models: list[nn.Module]) -> list[nn.Module]:
    """Copies with other weights each, and other masks: none, half, nine tenths."""
    for seed, model in enumerate(models):
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    return [
        models[0],
        *(
            fairlib.prune(model, "magnitude", sparsity=s)
            for model, s in zip(models[1:], (0.5, 0.9), strict=True)
        ),
    ]
