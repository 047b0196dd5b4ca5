"""Parts that several architectures share: channel counts, stems, and how convolutions start."""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from fairlib._validation import check_number, lookup


def scaled(channels: int, width: float) -> int:
    """Multiply a number of channels by ``width``: rounded, and at least 1.

    Raises:
        TypeError: If ``width`` is not a number.
        ValueError: If ``width`` is not positive and finite.
    """
    check_number("width", width, 0, low_open=True)
    return max(1, round(channels * width))


def linear_layers(sizes: Sequence[int]) -> list[nn.Module]:
    """Build linear layers from ``sizes[0]`` to ``sizes[-1]`` features, ReLUs between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return layers[:-1]


def convolution(in_channels: int, channels: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """Build a convolution that a batch normalization follows.

    It has no bias, which the normalization would subtract again. The padding of half a kernel
    keeps the image's size at stride 1.
    """
    return nn.Conv2d(in_channels, channels, kernel, stride, padding=kernel // 2, bias=False)


def is_small(image_size: int, stem: str = "auto") -> bool:
    """Tell whether a network takes its form for small images.

    It does if ``stem`` is ``"small"``, or if it is ``"auto"`` and the images have at most 64 x 64
    pixels: ImageNet's stem would leave a quarter of so few, and the stages another eighth of that.

    Raises:
        ValueError: If ``stem`` is not ``"auto"``, ``"small"`` or ``"imagenet"``.
    """
    return lookup("stem", stem, {"auto": image_size <= 64, "small": True, "imagenet": False})


def residual_stem(in_channels: int, channels: int, small: bool) -> tuple[nn.Conv2d, nn.Module]:
    """Build the first convolution of a residual network, and the pooling or identity after it."""
    if small:
        return convolution(in_channels, channels, 3), nn.Identity()
    return convolution(in_channels, channels, 7, 2), nn.MaxPool2d(3, 2, padding=1)


def initialize_convolutions(model: nn.Module) -> None:
    """Draw the weights of all convolutions from He et al.'s normal distribution, biases 0.

    The variance is 2 over the fan-out, as in torchvision, not torch's default: with that one deep
    networks without normalization hardly start to learn.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
