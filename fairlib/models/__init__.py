"""Architectures, built by name. Every model carries its own normalization and gives logits."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn

from fairlib._validation import check_number, check_settings, lookup
from fairlib.models.cnn import CNN
from fairlib.models.mlp import MLP
from fairlib.models.mobilenet import MobileNetV2
from fairlib.models.normalization import Normalize
from fairlib.models.resnet import ResNet, resnet10, resnet18, resnet34, resnet50, tiny_resnet
from fairlib.models.vgg import VGG19
from fairlib.models.wide_resnet import WideResNet
from fairlib.network.memory import remember
from fairlib.randomness import seeded

if TYPE_CHECKING:
    from fairlib.data import GroupedDataset, Splits

__all__ = ["CNN", "MLP", "MODELS", "VGG19", "MobileNetV2", "Normalize", "ResNet", "WideResNet", "build", "width_for"]

MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": MLP,
    "cnn": CNN,
    "tiny-resnet": tiny_resnet,
    "resnet10": resnet10,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "resnet50": resnet50,
    "vgg19": VGG19,
    "mobilenetv2": MobileNetV2,
    "wrn-22-8": WideResNet,
}

_WIDTHS = range(1, 1_000_000)  # In steps of 1e-4: finer than what changes a channel of any model here.


def build(
    name: str,
    *,
    like: GroupedDataset | Splits | None = None,
    num_classes: int | None = None,
    in_channels: int | None = None,
    image_size: int | None = None,
    seed: int = 0,
    **settings,
) -> nn.Module:
    """Build a freshly initialized model of the registry :data:`fairlib.models.MODELS`.

    Args:
        name: ``"mlp"`` (three linear layers), ``"cnn"`` (two convolutions, three linear layers), ``"tiny-resnet"``
            (three stages of 8, 16 and 32 channels, one block each), or one of the papers' networks, which at 10
            classes have, in millions of parameters: ``"resnet10"`` 4.9, ``"resnet18"`` 11.2, ``"resnet34"`` 21.3,
            ``"resnet50"`` 23.5, ``"vgg19"`` 20.0 (139.6 above 64 pixels), ``"mobilenetv2"`` 2.2, ``"wrn-22-8"`` 17.2.
        like: Data that the next three are read off.
        num_classes: Number of logits, at least 2.
        in_channels: Channels of the images; 3 unless ``like`` is given.
        image_size: Height and width of the images, in pixels; 32 unless ``like`` is given. Above 64 the papers'
            networks and ``"tiny-resnet"`` take their ImageNet form.
        seed: Seed of the initial weights. The global generators are left as they were found.
        **settings: The model's own. Every model has ``width``, a factor on its channels.

    Returns:
        A module that maps ``(N, in_channels, image_size, image_size)`` to logits ``(N, num_classes)``.

    Raises:
        ValueError: If the name is unknown, a size is too small, or one is not that of ``like``.
        TypeError: If a setting is unknown, or there is neither ``like`` nor ``num_classes``.
    """
    constructor = lookup("model", name, MODELS)
    check_settings(f"model {name!r}", constructor, settings)
    num_classes, in_channels, image_size = _shape(like, num_classes, in_channels, image_size)
    if num_classes < 2:
        raise ValueError(f"num_classes must be at least 2, got {num_classes}")
    check_number("in_channels", in_channels, 1, whole=True)
    check_number("image_size", image_size, 1, whole=True)
    with seeded(seed):
        model = constructor(num_classes, in_channels, image_size, **settings)
    sizes = {"num_classes": num_classes, "in_channels": in_channels, "image_size": image_size}
    shape = (in_channels, image_size, image_size)
    return remember(model, price=0, recipe={"name": name, **sizes, **settings}, input_shape=shape)


def _shape(
    like: GroupedDataset | Splits | None, num_classes: int | None, in_channels: int | None, image_size: int | None
) -> tuple[int, int, int]:
    """Classes, channels and size of the images: as given, else those of ``like``, else 3 channels and 32 pixels."""
    if like is None:
        if num_classes is None:
            raise TypeError("a model needs num_classes=, or data to read it off: like=")
        return num_classes, 3 if in_channels is None else in_channels, 32 if image_size is None else image_size
    data = getattr(like, "train", like)
    _, channels, size, *_ = (*data.inputs.shape, 1)  # Vectors are images of a single position.
    for name, value, known in (
        ("num_classes", num_classes, data.num_classes),
        ("in_channels", in_channels, channels),
        ("image_size", image_size, size),
    ):
        if value not in (None, known):
            raise ValueError(f"{name} is {value}, but {known} of the data given as like=: leave out one of the two")
    return data.num_classes, channels, size


def width_for(
    name: str,
    weights: int,
    *,
    like: GroupedDataset | Splits | None = None,
    num_classes: int | None = None,
    in_channels: int | None = None,
    image_size: int | None = None,
    **settings,
) -> float:
    """The ``width`` at which a model has as nearly as possible a given number of prunable weights.

    Prunable are the weights of convolutions and linear layers, without biases and normalization. So a dense model is
    found that is as large as what a pruned one kept: ``build(name, width=width_for(name, weights, ...), ...)``.

    Args:
        name: As for :func:`fairlib.build`.
        weights: The wanted number.
        like: As for :func:`fairlib.build`.
        num_classes: As for :func:`fairlib.build`.
        in_channels: As for :func:`fairlib.build`.
        image_size: As for :func:`fairlib.build`.
        **settings: The model's other settings.

    Returns:
        A multiple of 1e-4 below 100. Of two equally near numbers of weights it gives the smaller model.

    Raises:
        ValueError: If no such width has so few or so many weights; the message names the limits. Otherwise as
            :func:`fairlib.build`.
        TypeError: As :func:`fairlib.build`.
    """
    check_number("weights", weights, 1, whole=True)
    shape = dict(like=like, num_classes=num_classes, in_channels=in_channels, image_size=image_size)

    def count(step: int) -> int:
        with torch.device("meta"):
            model = build(name, **shape, **settings, width=step / 10_000)
        layers = (nn.Conv2d, nn.Linear)
        return sum(layer.weight.numel() for layer in model.modules() if isinstance(layer, layers))

    low, high = count(_WIDTHS[0]), count(_WIDTHS[-1])
    if not low <= weights <= high:
        raise ValueError(
            f"weights must lie between {low} and {high}, which the model {name!r} has at its smallest and largest "
            f"width, got {weights}"
        )
    above = _WIDTHS[bisect_left(_WIDTHS, weights, key=count)]
    return min(max(above - 1, _WIDTHS[0]), above, key=lambda step: abs(count(step) - weights)) / 10_000
