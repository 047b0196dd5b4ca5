"""Residual networks (He et al. 2016), each ReLU a module so that it can be gated."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn

from fairlib.models.normalization import Normalize
from fairlib.models.parts import (
    convolution,
    initialize_convolutions,
    is_small,
    residual_stem,
    scaled,
)


class Block(nn.Module):
    """A block of a residual network, built from its input channels, channels and stride."""

    expansion = 1  # Output channels over channels.


class BasicBlock(Block):
    """``relu(bn(conv(relu(bn(conv(x))))) + shortcut(x))``, both convolutions 3x3.

    Module names are torchvision's, except that the two ReLUs are two modules.
    """

    def __init__(self, in_channels: int, channels: int, stride: int):
        super().__init__()
        self.conv1 = convolution(in_channels, channels, 3, stride)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu1 = nn.ReLU()
        self.conv2 = convolution(channels, channels, 3)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = _shortcut(in_channels, channels, stride)
        self.relu2 = nn.ReLU()

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.relu1(self.bn1(self.conv1(inputs)))
        return self.relu2(self.bn2(self.conv2(hidden)) + self.downsample(inputs))


class Bottleneck(Block):
    """Convolutions of 1x1, 3x3 and 1x1 beside a shortcut; the last has four times the channels.

    The 3x3 convolution has the stride, as in torchvision; in the paper the first one has it. Module
    names are torchvision's, except that the three ReLUs are three modules.
    """

    expansion = 4

    def __init__(self, in_channels: int, channels: int, stride: int):
        super().__init__()
        out_channels = self.expansion * channels
        self.conv1 = convolution(in_channels, channels, 1)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu1 = nn.ReLU()
        self.conv2 = convolution(channels, channels, 3, stride)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu2 = nn.ReLU()
        self.conv3 = convolution(channels, out_channels, 1)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.downsample = _shortcut(in_channels, out_channels, stride)
        self.relu3 = nn.ReLU()

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.relu1(self.bn1(self.conv1(inputs)))
        hidden = self.relu2(self.bn2(self.conv2(hidden)))
        return self.relu3(self.bn3(self.conv3(hidden)) + self.downsample(inputs))


def _shortcut(in_channels: int, channels: int, stride: int) -> nn.Module:
    """Build the identity, or a 1x1 convolution where the shape changes."""
    if stride == 1 and in_channels == channels:
        return nn.Identity()
    return nn.Sequential(convolution(in_channels, channels, 1, stride), nn.BatchNorm2d(channels))


class ResNet(nn.Module):
    """A residual network of basic blocks or bottlenecks, with torchvision's module names.

    Args:
        num_classes: Number of logits.
        in_channels: Channels of the images.
        image_size: Height and width in pixels. Up to 64 the stem is a 3x3 convolution of stride 1,
            the usual one for small images; above, it is ImageNet's: 7x7 of stride 2 and a 3x3
            max-pooling of stride 2.
        widths: Channels of each stage; every stage but the first halves the resolution.
        blocks: Number of blocks of each stage.
        block: Class of the blocks: ``BasicBlock``, or ``Bottleneck``, whose outputs have
            four times the stage's channels.
        width: Multiplies ``widths`` (rounded, at least 1).
        stem: ``"auto"`` chooses by ``image_size``; ``"small"`` and ``"imagenet"`` choose a stem at
            any size.

    Raises:
        ValueError: If ``widths`` and ``blocks`` differ in length, or the stem is unknown.
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        image_size: int,
        *,
        widths: Sequence[int],
        blocks: Sequence[int],
        block: type[Block] = BasicBlock,
        width: float = 1.0,
        stem: str = "auto",
    ):
        super().__init__()
        if len(widths) != len(blocks):
            raise ValueError(
                f"widths and blocks must be equally long, got {len(widths)} and {len(blocks)}"
            )
        widths = [scaled(channels, width) for channels in widths]
        # Modules are created in the order in which torchvision creates them: each draws its initial
        # weights, and another order would give other weights for the same seed.
        self.normalize = Normalize(in_channels)
        self.conv1, self.maxpool = residual_stem(in_channels, widths[0], is_small(image_size, stem))
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.relu = nn.ReLU()
        channels = widths[0]
        for stage, (out, depth) in enumerate(zip(widths, blocks, strict=True), start=1):
            # The stem has reduced the resolution already, so that the first stage keeps it.
            layers = stack(block, channels, out, depth, stride=1 if stage == 1 else 2)
            self.add_module(f"layer{stage}", layers)
            channels = out * block.expansion
        self.stages = len(widths)
        self.fc = nn.Linear(channels, num_classes)
        initialize_convolutions(self)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map images ``(N, C, H, W)`` to logits ``(N, num_classes)``."""
        hidden = self.maxpool(self.relu(self.bn1(self.conv1(self.normalize(inputs)))))
        for stage in range(1, self.stages + 1):
            hidden = getattr(self, f"layer{stage}")(hidden)
        return self.fc(hidden.mean(dim=(2, 3)))


def stack(
    block: type[Block], in_channels: int, channels: int, depth: int, stride: int
) -> nn.Sequential:
    """Build a stage: ``depth`` blocks of ``channels``, the first with the stride."""
    first = block(in_channels, channels, stride)
    # The channels that enter a block are those that leave the one before it: four times as many
    # where blocks are bottlenecks.
    others = (block(channels * block.expansion, channels, 1) for _ in range(depth - 1))
    return nn.Sequential(first, *others)


_IMAGENET = (64, 128, 256, 512)

tiny_resnet = partial(ResNet, widths=(8, 16, 32), blocks=(1, 1, 1))
resnet10 = partial(ResNet, widths=_IMAGENET, blocks=(1, 1, 1, 1))
resnet18 = partial(ResNet, widths=_IMAGENET, blocks=(2, 2, 2, 2))
resnet34 = partial(ResNet, widths=_IMAGENET, blocks=(3, 4, 6, 3))
resnet50 = partial(ResNet, widths=_IMAGENET, blocks=(3, 4, 6, 3), block=Bottleneck)
