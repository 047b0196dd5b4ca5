"""Residual networks for small images (He et al. 2016), each ReLU a module of its own so that it can be gated."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn

from fairlib.models.normalization import Normalize


class BasicBlock(nn.Module):
    """``relu(bn(conv(relu(bn(conv(x))))) + shortcut(x))``, both convolutions 3x3.

    Module names are torchvision's, except that the two ReLUs are two modules.
    """

    def __init__(self, in_channels: int, channels: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or in_channels != channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_channels, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )
        self.relu2 = nn.ReLU()

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.relu1(self.bn1(self.conv1(inputs)))
        return self.relu2(self.bn2(self.conv2(hidden)) + self.downsample(inputs))


class ResNet(nn.Module):
    """A residual network of basic blocks.

    Args:
        num_classes: Number of logits.
        in_channels: Channels of the images.
        image_size: Height and width in pixels. Up to 64 the stem is a 3x3 convolution of stride 1, the usual one for
            small images; above, it is ImageNet's: 7x7 of stride 2 and a 3x3 max-pooling of stride 2.
        widths: Channels of each stage; every stage but the first halves the resolution.
        blocks: Number of basic blocks of each stage.
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        image_size: int,
        *,
        widths: Sequence[int],
        blocks: Sequence[int],
    ):
        super().__init__()
        if len(widths) != len(blocks):
            raise ValueError(f"widths and blocks must be equally long, got {len(widths)} and {len(blocks)}")
        self.normalize = Normalize(in_channels)
        small = image_size <= 64
        self.conv1 = nn.Conv2d(
            in_channels,
            widths[0],
            3 if small else 7,
            1 if small else 2,
            padding=1 if small else 3,
            bias=False,
        )
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.relu = nn.ReLU()
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, 2, padding=1)
        channels = widths[0]
        for stage, (width, depth) in enumerate(zip(widths, blocks, strict=True), start=1):
            strides = [1 if stage == 1 else 2] + [1] * (depth - 1)
            layers = [BasicBlock(channels if i == 0 else width, width, stride) for i, stride in enumerate(strides)]
            self.add_module(f"layer{stage}", nn.Sequential(*layers))
            channels = width
        self.stages = len(widths)
        self.fc = nn.Linear(channels, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, inputs: Tensor) -> Tensor:
        """Images ``(N, C, H, W)`` to logits ``(N, num_classes)``."""
        hidden = self.maxpool(self.relu(self.bn1(self.conv1(self.normalize(inputs)))))
        for stage in range(1, self.stages + 1):
            hidden = getattr(self, f"layer{stage}")(hidden)
        return self.fc(hidden.mean(dim=(2, 3)))


tiny_resnet = partial(ResNet, widths=(8, 16, 32), blocks=(1, 1, 1))
resnet18 = partial(ResNet, widths=(64, 128, 256, 512), blocks=(2, 2, 2, 2))
