"""Architectures, built by name. Every model carries its normalization and returns logits.

>>> from fairlib.models import MODELS
>>> list(MODELS)[:7]
['mlp', 'cnn', 'tiny-resnet', 'resnet10', 'resnet18', 'resnet34', 'resnet50']
>>> list(MODELS)[7:]
['vgg19', 'mobilenetv2', 'wrn-22-8', 'vit-tiny']
"""

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fairlib._validation import (
    check_number,
    check_seed,
    check_settings,
    check_type,
    lookup,
    name_and_settings,
)
from fairlib.data import GroupedDataset, Splits
from fairlib.models.cnn import CNN
from fairlib.models.mlp import MLP
from fairlib.models.mobilenet import MobileNetV2
from fairlib.models.normalization import Normalize
from fairlib.models.resnet import ResNet, resnet10, resnet18, resnet34, resnet50, tiny_resnet
from fairlib.models.vgg import VGG19
from fairlib.models.vit import ViT
from fairlib.models.wide_resnet import WideResNet
from fairlib.network.masks import prunable
from fairlib.network.memory import remember
from fairlib.randomness import seeded

__all__ = [
    "CNN",
    "MLP",
    "MODELS",
    "VGG19",
    "MobileNetV2",
    "Normalize",
    "ResNet",
    "ViT",
    "WideResNet",
    "build",
    "width_for",
]

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
    "vit-tiny": ViT,
}

_WIDTHS = range(1, 1_000_000)
"""Widths in steps of 1e-4: finer than what changes a channel of any model here."""


def build(
    name: str,
    *,
    like: GroupedDataset | Splits | None = None,
    num_classes: int | None = None,
    in_channels: int | None = None,
    image_size: int | None = None,
    seed: int = 0,
    **settings: Any,
) -> nn.Module:
    """Build a model with fresh weights, by its name in the registry :data:`fairlib.models.MODELS`.

    Args:
        name: ``"mlp"`` (three linear layers), ``"cnn"`` (two convolutions, three linear layers),
            ``"tiny-resnet"`` (three stages of 8, 16 and 32 channels, one block each),
            ``"vit-tiny"`` (a transformer on patches of 4 x 4 pixels), or one of the papers'
            networks, which at 10 classes have, in millions of parameters: ``"resnet10"`` 4.9,
            ``"resnet18"`` 11.2, ``"resnet34"`` 21.3, ``"resnet50"`` 23.5, ``"vgg19"`` 20.0 (139.6
            above 64 pixels), ``"mobilenetv2"`` 2.2, ``"wrn-22-8"`` 17.2. Settings may follow the
            name, here and in a study, each after a colon: ``"resnet18:stem=imagenet:width=0.5"``.
        like: Data from which ``num_classes``, ``in_channels`` and ``image_size`` are taken.
        num_classes: Number of logits, at least 2.
        in_channels: Channels of the images; 3 unless ``like`` is given.
        image_size: Height and width of the images, in pixels; 32 unless ``like`` is given. Above 64
            the papers' networks and ``"tiny-resnet"`` take their ImageNet form.
        seed: Seed of the initial weights. The global random generators are left as they were found.
        **settings: Further arguments of the model, such as ``width``, which multiplies the channels
            of any model.

    Returns:
        A module from ``(N, in_channels, image_size, image_size)`` to logits ``(N, num_classes)``.

    Raises:
        ValueError: If the name is unknown, a size is too small, or a size is given that ``like``
            does not have.
        TypeError: If a setting is unknown, ``seed`` is no integer, or neither ``like`` nor
            ``num_classes`` is given.

    Example:
        >>> import torch, fairlib
        >>> model = fairlib.build("resnet10", num_classes=5, image_size=32, width=0.25, seed=0)
        >>> model(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 5])
        >>> digits = fairlib.load("digits")
        >>> like = fairlib.build("cnn", like=digits)  # Ten classes, one channel, 8 by 8 pixels.
        >>> like(digits.test.batch(range(3))).shape
        torch.Size([3, 10])
        >>> again = fairlib.build("cnn", like=digits)
        >>> all(torch.equal(a, b) for a, b in zip(like.parameters(), again.parameters()))
        True
    """
    name, settings = name_and_settings("model", (name, settings))
    constructor = lookup("model", name, MODELS)
    check_settings(f"model {name!r}", constructor, settings)
    given = {"num_classes": num_classes, "in_channels": in_channels, "image_size": image_size}
    sizes = _sizes(like, given)
    for size, value in sizes.items():
        check_number(size, value, 2 if size == "num_classes" else 1, whole=True)
    check_seed("seed", seed)
    with seeded(seed):
        model = constructor(*sizes.values(), **settings)
    shape = (sizes["in_channels"], sizes["image_size"], sizes["image_size"])
    return remember(model, price=0, recipe={"name": name, **sizes, **settings}, input_shape=shape)


def _sizes(like: GroupedDataset | Splits | None, given: dict[str, int | None]) -> dict[str, Any]:
    """Return the sizes that are given, else those of ``like``, else 3 channels and 32 pixels."""
    chosen = {name: value for name, value in given.items() if value is not None}
    if like is None:
        if "num_classes" not in chosen:
            raise TypeError("a model needs num_classes=, or data to read it off: like=")
        return given | {"in_channels": 3, "image_size": 32} | chosen
    data = like.train if isinstance(like, Splits) else like
    check_type("like", data, GroupedDataset, "Splits or a GroupedDataset")
    channels, size = (*data.inputs.shape, 1)[1:3]  # Vectors are images of a single position.
    known = {"num_classes": data.num_classes, "in_channels": channels, "image_size": size}
    for name, value in chosen.items():
        if value != known[name]:
            raise ValueError(
                f"{name} is {value}, but {known[name]} of the data given as like=: leave out one "
                "of them"
            )
    return known


def width_for(name: str, weights: int, **arguments: Any) -> float:
    """Find the ``width`` at which a model has about a given number of prunable weights.

    Prunable are the weights of convolutions and linear layers, not biases and normalization. The
    model ``build(name, width=width_for(name, weights, ...), ...)`` is dense and as large as what a
    pruned model kept.

    Args:
        name: Name of the model in :data:`fairlib.models.MODELS`.
        weights: Wanted number of prunable weights.
        **arguments: Further arguments of :func:`fairlib.build`: ``like``, or ``num_classes``,
            ``in_channels`` and ``image_size``, and settings of the model other than ``width``.

    Returns:
        A multiple of 1e-4 below 100. If two numbers of weights are equally near, the width of the
        smaller model.

    Raises:
        ValueError: If no such width gives so few or so many weights (the message names the limits),
            or :func:`fairlib.build` refuses the name or a size.
        TypeError: If ``weights`` is not an integer, or a setting is unknown.

    Example:
        A dense network with as many weights as a tenth of another:

        >>> import fairlib
        >>> from fairlib.models import width_for
        >>> digits = fairlib.load("digits")
        >>> prunable = fairlib.network.masks.prunable
        >>> count = lambda model: sum(weight.numel() for weight in prunable(model).values())
        >>> wide = fairlib.build("cnn", like=digits)
        >>> width = width_for("cnn", count(wide) // 10, like=digits)
        >>> round(count(fairlib.build("cnn", like=digits, width=width)) / count(wide), 2)
        0.1
    """
    check_number("weights", weights, 1, whole=True)

    def count(step: int) -> int:
        with torch.device("meta"):  # No memory and no time for weights that nobody looks at.
            model = build(name, **arguments, width=step / 10_000)
        return sum(weight.numel() for weight in prunable(model).values())

    low, high = count(_WIDTHS[0]), count(_WIDTHS[-1])
    if not low <= weights <= high:
        raise ValueError(
            f"weights must be between {low} and {high}, the limits of the model {name!r}, got "
            f"{weights}"
        )
    # The number of weights never falls as the width rises, so that a bisection finds the first
    # width with enough of them; the one before it may still be nearer.
    above = _WIDTHS[bisect_left(_WIDTHS, weights, key=count)]
    below = max(above - 1, _WIDTHS[0])
    return min(below, above, key=lambda step: abs(count(step) - weights)) / 10_000
