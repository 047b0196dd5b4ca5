"""Architectures, built by name. Every model carries its own normalization and gives logits."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from fairlib._validation import check_settings, lookup
from fairlib.models.cnn import CNN
from fairlib.models.normalization import Normalize
from fairlib.models.resnet import ResNet, resnet18, tiny_resnet
from fairlib.randomness import seeded

__all__ = ["CNN", "MODELS", "Normalize", "ResNet", "build"]

MODELS: dict[str, Callable[..., nn.Module]] = {
    "cnn": CNN,
    "tiny-resnet": tiny_resnet,
    "resnet18": resnet18,
}


def build(
    name: str, *, num_classes: int, in_channels: int = 3, image_size: int = 32, seed: int = 0, **settings
) -> nn.Module:
    """Build a freshly initialized model of the registry :data:`fairlib.models.MODELS`.

    Args:
        name: ``"cnn"`` (two convolutions, three linear layers), ``"tiny-resnet"`` (three stages of 8, 16 and 32
            channels, one block each) or ``"resnet18"`` (11 M parameters).
        num_classes: Number of logits, at least 2.
        in_channels: Channels of the images.
        image_size: Height and width of the images, in pixels.
        seed: Of the initial weights. The global generators are left as they were found.
        **settings: The model's own: ``channels`` and ``hidden`` of ``"cnn"``, ``widths`` and ``blocks`` of the
            residual networks.

    Returns:
        A module that maps ``(N, in_channels, image_size, image_size)`` to logits ``(N, num_classes)``.

    Raises:
        ValueError: If the name is unknown or a size is too small.
        TypeError: If a setting is unknown.
    """
    constructor = lookup("model", name, MODELS)
    check_settings(f"model {name!r}", constructor, settings)
    if num_classes < 2:
        raise ValueError(f"num_classes must be at least 2, got {num_classes}")
    with seeded(seed):
        return constructor(num_classes, in_channels, image_size, **settings)
