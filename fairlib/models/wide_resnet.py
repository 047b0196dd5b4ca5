"""The wide residual network WRN-22-8 (Zagoruyko and Komodakis 2016), each ReLU a module."""

from torch import Tensor, nn

from fairlib.models.normalization import Normalize
from fairlib.models.parts import (
    convolution,
    initialize_convolutions,
    is_small,
    residual_stem,
    scaled,
)
from fairlib.models.resnet import Block, stack

_CHANNELS = (16, 128, 256, 512)  # The stem's, and eight times 16, 32 and 64.
_BLOCKS = 3  # Two convolutions each in three stages, and four layers elsewhere: 22.


class PreactivationBlock(Block):
    """``conv(relu(bn(conv(a)))) + x`` with ``a = relu(bn(x))``, both convolutions 3x3.

    Where the shape changes, a 1x1 convolution of ``a`` replaces ``x`` in the sum.
    """

    def __init__(self, in_channels: int, channels: int, stride: int):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.relu1 = nn.ReLU()
        self.conv1 = convolution(in_channels, channels, 3, stride)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu2 = nn.ReLU()
        self.conv2 = convolution(channels, channels, 3)
        same = stride == 1 and in_channels == channels
        self.downsample = None if same else convolution(in_channels, channels, 1, stride)

    def forward(self, inputs: Tensor) -> Tensor:
        active = self.relu1(self.bn1(inputs))
        hidden = self.conv2(self.relu2(self.bn2(self.conv1(active))))
        # The identity passes the raw input on, a convolution the activated one: an identity module
        # in its place could not tell them apart.
        return hidden + (inputs if self.downsample is None else self.downsample(active))


class WideResNet(nn.Module):
    """A pre-activation residual network of three stages of 128, 256 and 512 channels.

    No ReLU follows the stem, but one, ``final_relu``, follows the last sum. At 32 x 32
    pixels WRN-22-8 has 1,359,872 ReLUs for each image, not counting the 32,768 of ``final_relu``.

    Args:
        num_classes: Number of logits.
        in_channels: Channels of the images.
        image_size: Height and width in pixels. Up to 64 the stem is a 3x3 convolution of stride 1;
            above, 7x7 of stride 2 and a 3x3 max-pooling of stride 2. The second and third stage
            halve the resolution.
        width: Multiplies all channels, including the stem's 16 (rounded, at least 1).
    """

    def __init__(self, num_classes: int, in_channels: int, image_size: int, *, width: float = 1.0):
        super().__init__()
        first, *widths = (scaled(channels, width) for channels in _CHANNELS)
        self.normalize = Normalize(in_channels)
        self.conv1, self.maxpool = residual_stem(in_channels, first, is_small(image_size))
        self.layer1 = stack(PreactivationBlock, first, widths[0], _BLOCKS, stride=1)
        self.layer2 = stack(PreactivationBlock, widths[0], widths[1], _BLOCKS, stride=2)
        self.layer3 = stack(PreactivationBlock, widths[1], widths[2], _BLOCKS, stride=2)
        # A pre-activation block ends in a sum, so that the last one is still to be activated.
        self.final_bn = nn.BatchNorm2d(widths[2])
        self.final_relu = nn.ReLU()
        self.fc = nn.Linear(widths[2], num_classes)
        initialize_convolutions(self)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map images ``(N, C, H, W)`` to logits ``(N, num_classes)``."""
        hidden = self.layer1(self.maxpool(self.conv1(self.normalize(inputs))))
        hidden = self.final_relu(self.final_bn(self.layer3(self.layer2(hidden))))
        return self.fc(hidden.mean(dim=(2, 3)))
