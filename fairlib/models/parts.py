"""What several architectures share: scaled channel counts, stems, and the initialization of
convolutions."""

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
    """Linear layers from ``sizes[0]`` inputs to ``sizes[-1]`` outputs, with a ReLU after each but
    the last."""
    layers: list[nn.Module] = [
        module for a, b in pairwise(sizes) for module in (nn.Linear(a, b), nn.ReLU())
    ]
    return layers[:-1]


def is_small(stem: str, image_size: int) -> bool:
    """Whether a network takes its form for small images.

    It does if ``stem`` is ``"small"``, or if it is ``"auto"`` and the images have at most 64 x 64
    pixels.

    Raises:
        ValueError: If ``stem`` is not ``"auto"``, ``"small"`` or ``"imagenet"``.
    """
    return lookup("stem", stem, {"auto": image_size <= 64, "small": True, "imagenet": False})


def residual_stem(in_channels: int, channels: int, small: bool) -> tuple[nn.Conv2d, nn.Module]:
    """Build the first convolution of a residual network and the pooling after it: the identity for
    small images."""
    if small:
        return nn.Conv2d(in_channels, channels, 3, padding=1, bias=False), nn.Identity()
    return nn.Conv2d(in_channels, channels, 7, 2, padding=3, bias=False), nn.MaxPool2d(
        3, 2, padding=1
    )


def initialize_convolutions(model: nn.Module) -> None:
    """Initialize all convolutions in place: He et al.'s normal distribution by fan-out for weights,
    zero for biases."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
