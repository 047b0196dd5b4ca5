"""Wide residual networks (Zagoruyko and Komodakis 2016), each ReLU a module of its own so that it
can be gated."""

from torch import Tensor, nn

from fairlib.models.normalization import Normalize
from fairlib.models.parts import initialize_convolutions, is_small, residual_stem, scaled
from fairlib.models.resnet import Block, stack


class PreactivationBlock(Block):
    """``conv(relu(bn(conv(a)))) + x`` with ``a = relu(bn(x))``, both convolutions 3x3.

    Where the shape changes, a 1x1 convolution of ``a`` replaces ``x`` in the sum.
    """

    def __init__(self, in_channels: int, channels: int, stride: int):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.relu1 = nn.ReLU()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu2 = nn.ReLU()
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        same = stride == 1 and in_channels == channels
        self.downsample = None if same else nn.Conv2d(in_channels, channels, 1, stride, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        active = self.relu1(self.bn1(inputs))
        hidden = self.conv2(self.relu2(self.bn2(self.conv1(active))))
        return hidden + (inputs if self.downsample is None else self.downsample(active))


class WideResNet(nn.Module):
    """A pre-activation residual network of three stages, of 16, 32 and 64 times ``widening``
    channels.

    The stem has no ReLU of its own, but a ReLU, ``final_relu``, follows the last sum. At 32 x 32
    pixels WRN-22-8 has 1,359,872 ReLUs for each image, not counting the 32,768 of ``final_relu``.

    Args: num_classes: Number of logits. in_channels: Channels of the images. image_size: Height and
        width in pixels. Up to 64 the stem is a 3x3 convolution of stride 1; above, 7x7 of
            stride 2 and a 3x3 max-pooling of stride 2. The second and third stage halve the
            resolution.
        depth: Number of layers, 6 n + 4 for n blocks in each stage.
        widening: Multiplies the channels of the three stages, not the stem's 16.
        width: Multiplies all channels, including the stem's (rounded, at least 1).
        stem: ``"auto"`` chooses by ``image_size``; ``"small"`` and ``"imagenet"`` choose a stem at
            any size.

    Raises:
        ValueError: If ``depth`` is not 6 n + 4, or the stem is unknown.
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        image_size: int,
        *,
        depth: int = 22,
        widening: int = 8,
        width: float = 1.0,
        stem: str = "auto",
    ):
        super().__init__()
        blocks, rest = divmod(depth - 4, 6)
        if blocks < 1 or rest:
            raise ValueError(f"depth must be 6 n + 4 (10, 16, 22, ...), got {depth}")
        first, *widths = (
            scaled(channels, width)
            for channels in (16, 16 * widening, 32 * widening, 64 * widening)
        )
        self.normalize = Normalize(in_channels)
        self.conv1, self.maxpool = residual_stem(in_channels, first, is_small(stem, image_size))
        self.layer1 = stack(PreactivationBlock, first, widths[0], blocks, stride=1)
        self.layer2 = stack(PreactivationBlock, widths[0], widths[1], blocks, stride=2)
        self.layer3 = stack(PreactivationBlock, widths[1], widths[2], blocks, stride=2)
        self.final_bn = nn.BatchNorm2d(widths[2])
        self.final_relu = nn.ReLU()
        self.fc = nn.Linear(widths[2], num_classes)
        initialize_convolutions(self)

    def forward(self, inputs: Tensor) -> Tensor:
        """Images ``(N, C, H, W)`` to logits ``(N, num_classes)``."""
        hidden = self.layer1(self.maxpool(self.conv1(self.normalize(inputs))))
        hidden = self.final_relu(self.final_bn(self.layer3(self.layer2(hidden))))
        return self.fc(hidden.mean(dim=(2, 3)))
