"""Two convolutions and three linear layers: the small network of [T] Table 2."""

from collections.abc import Sequence

from torch import Tensor, nn

from fairlib.models.normalization import Normalize
from fairlib.models.parts import linear_layers, scaled


class CNN(nn.Module):
    """Two blocks of 3x3 convolution, ReLU and 2x2 max-pooling, then three linear layers.

    Args:
        num_classes: Number of logits.
        in_channels: Channels of the images.
        image_size: Height and width of the images, in pixels; at least 4, since each pooling
            halves it.
        channels: Output channels of the two convolutions.
        hidden: Widths of the two hidden linear layers. [T] prints neither ``channels`` nor
            ``hidden``; with the defaults the network has 7,818 parameters on 8x8 grey images and 10
            classes.
        width: Multiplies ``channels`` and ``hidden`` (rounded, at least 1).

    Raises:
        ValueError: If the images are too small.
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        image_size: int,
        *,
        channels: Sequence[int] = (8, 16),
        hidden: Sequence[int] = (64, 32),
        width: float = 1.0,
    ):
        super().__init__()
        if image_size < 4:
            raise ValueError(f"image_size must be at least 4 for the model 'cnn', got {image_size}")
        first, second, wide, narrow = (scaled(size, width) for size in (*channels, *hidden))
        self.normalize = Normalize(in_channels)
        layers: list[nn.Module] = []
        for before, after in ((in_channels, first), (first, second)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        self.features = nn.Sequential(*layers, nn.Flatten())
        # Each pooling rounds half a size down, and two of them together a quarter of it.
        sizes = [second * (image_size // 4) ** 2, wide, narrow, num_classes]
        self.classifier = nn.Sequential(*linear_layers(sizes))

    def forward(self, inputs: Tensor) -> Tensor:
        """Map images ``(N, C, H, W)`` to logits ``(N, num_classes)``."""
        return self.classifier(self.features(self.normalize(inputs)))
