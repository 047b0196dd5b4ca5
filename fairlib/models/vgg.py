"""VGG-19 (Simonyan and Zisserman 2015) with batch normalization, and torchvision's module names."""

from torch import Tensor, nn

from fairlib.models.normalization import Normalize
from fairlib.models.parts import initialize_convolutions, is_small, scaled

_STAGES = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))  # Channels and convolutions.


class VGG19(nn.Module):
    """Sixteen 3x3 convolutions in five stages, each stage ended by a 2x2 max-pooling, and a head.

    Args:
        num_classes: Number of logits.
        in_channels: Channels of the images.
        image_size: Height and width in pixels. Up to 64 the head is the mean over positions and one
            linear layer (20 M parameters); above, it is ImageNet's: positions averaged to 7x7, then
            linear layers of 4096 and 4096 with dropout 0.5 (143.7 M parameters at 1000 classes). A
            pooling that would meet a single position is left out, so that images below 32 pixels
            are accepted.
        width: Multiplies the channels and the widths of the hidden linear layers (rounded, at least
            1).
    """

    def __init__(self, num_classes: int, in_channels: int, image_size: int, *, width: float = 1.0):
        super().__init__()
        self.normalize = Normalize(in_channels)
        layers: list[nn.Module] = []
        channels = in_channels
        for stage, (wide, depth) in enumerate(_STAGES):
            out = scaled(wide, width)
            for _ in range(depth):
                # The bias is superfluous before a normalization; torchvision's weights have it.
                layers.append(nn.Conv2d(channels, out, 3, padding=1))
                layers += [nn.BatchNorm2d(out), nn.ReLU()]
                channels = out
            # Earlier stages have halved the image `stage` times. An identity in the place of a
            # pooling that has nothing to pool keeps torchvision's numbering of the layers.
            layers.append(nn.MaxPool2d(2) if image_size >> stage > 1 else nn.Identity())
        self.features = nn.Sequential(*layers)
        if is_small(image_size):
            self.avgpool = nn.AdaptiveAvgPool2d(1)
            self.classifier: nn.Module = nn.Linear(channels, num_classes)
        else:
            self.avgpool = nn.AdaptiveAvgPool2d(7)
            hidden = scaled(4096, width)
            self.classifier = nn.Sequential(
                nn.Linear(channels * 7 * 7, hidden),
                nn.ReLU(),
                nn.Dropout(0.5),
                nn.Linear(hidden, hidden),
                nn.ReLU(),
                nn.Dropout(0.5),
                nn.Linear(hidden, num_classes),
            )
        initialize_convolutions(self)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map images ``(N, C, H, W)`` to logits ``(N, num_classes)``."""
        return self.classifier(self.avgpool(self.features(self.normalize(inputs))).flatten(1))
