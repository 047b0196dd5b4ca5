"""What several architectures share: scaled channel counts, stems, and the initialization of convolutions."""

from torch import nn

from fairlib._validation import check_number, lookup


def scaled(channels: int, width: float) -> int:
    """``channels`` times ``width``, rounded, and at least 1.

    Raises:
        TypeError: If ``width`` is no number.
        ValueError: If ``width`` is not positive and finite.
    """
    check_number("width", width, 0, low_open=True)
    return max(1, round(channels * width))


def is_small(stem: str, image_size: int) -> bool:
    """Whether a network takes its form for small images: ``stem`` is ``"small"``, or ``"auto"`` for at most 64 pixels.

    Raises:
        ValueError: If ``stem`` is not ``"auto"``, ``"small"`` or ``"imagenet"``.
    """
    return lookup("stem", stem, {"auto": image_size <= 64, "small": True, "imagenet": False})


def residual_stem(in_channels: int, channels: int, small: bool) -> tuple[nn.Conv2d, nn.Module]:
    """The first convolution of a residual network and the pooling that follows, the identity for small images."""
    if small:
        return nn.Conv2d(in_channels, channels, 3, padding=1, bias=False), nn.Identity()
    return nn.Conv2d(in_channels, channels, 7, 2, padding=3, bias=False), nn.MaxPool2d(3, 2, padding=1)


def initialize_convolutions(model: nn.Module) -> None:
    """He et al.'s normal initialization by fan-out of every convolution's weight, in place; biases become zero."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
