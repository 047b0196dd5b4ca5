"""MobileNetV2 (Sandler et al. 2018), of torchvision's blocks."""

from functools import partial

from torch import Tensor, nn

from fairlib._validation import check_number
from fairlib.models.normalization import Normalize
from fairlib.models.parts import initialize_convolutions, is_small

# Expansion, channels, blocks and stride of each stage: the paper's Table 2.
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class MobileNetV2(nn.Module):
    """Seventeen inverted residual blocks between a 3x3 and a 1x1 convolution, then a linear layer.

    Args:
        num_classes: Number of logits.
        in_channels: Channels of the images.
        image_size: Height and width in pixels. Above 64, five convolutions have stride 2: the stem
            and the first blocks of 24, 32, 64 and 160 channels. Up to 64, the stem and the first
            block of 24 channels have stride 1 instead, so that the resolution is halved three
            times rather than five.
        width: Multiplies the channels by the paper's rule: to the nearest multiple of 8 that is at
            least 8 and at least 90 % of the product. The 1280 channels before the linear layer only
            grow.
    """

    def __init__(self, num_classes: int, in_channels: int, image_size: int, *, width: float = 1.0):
        super().__init__()
        # Imported here, since torchvision takes a second, and most users build something else.
        from torchvision.models.mobilenetv2 import InvertedResidual
        from torchvision.ops import Conv2dNormActivation

        check_number("width", width, 0, low_open=True)
        unit = partial(Conv2dNormActivation, activation_layer=nn.ReLU6)
        small = is_small(image_size)
        channels, last = _multiple_of_8(32 * width), _multiple_of_8(1280 * max(1.0, width))
        self.normalize = Normalize(in_channels)
        layers: list[nn.Module] = [unit(in_channels, channels, stride=1 if small else 2)]
        for stage, (expansion, wide, depth, stride) in enumerate(_STAGES):
            out = _multiple_of_8(wide * width)
            # Small images lose no resolution in the stem and the second stage: five halvings would
            # leave a single position of 32 x 32 pixels long before the last stage.
            first = 1 if small and stage == 1 else stride
            for block in range(depth):
                layers.append(InvertedResidual(channels, out, 1 if block else first, expansion))
                channels = out
        self.features = nn.Sequential(*layers, unit(channels, last, 1))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(last, num_classes))
        initialize_convolutions(self)
        for module in self.modules():
            # Inputs that an activation overwrites cannot be measured afterwards.
            if isinstance(module, nn.ReLU6):
                module.inplace = False

    def forward(self, inputs: Tensor) -> Tensor:
        """Map images ``(N, C, H, W)`` to logits ``(N, num_classes)``."""
        return self.classifier(self.features(self.normalize(inputs)).mean(dim=(2, 3)))


def _multiple_of_8(channels: float) -> int:
    """Round a number of channels to a multiple of 8, but not down by more than a tenth."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * channels else rounded + 8
