"""Linear layers with ReLUs between: the network that sees no image in its pixels."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from fairlib.models.normalization import Normalize
from fairlib.models.parts import scaled


class MLP(nn.Module):
    """Linear layers on the flattened image, a ReLU after each but the last.

    Args:
        num_classes: Number of logits.
        in_channels: Channels of the images; with ``image_size=1``, the length of the vectors.
        image_size: Height and width of the images, in pixels.
        hidden: Widths of the hidden layers; ``()`` gives a linear model.
        width: Multiplies the widths of the hidden layers (rounded, at least 1).
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        image_size: int,
        *,
        hidden: Sequence[int] = (64, 32),
        width: float = 1.0,
    ):
        super().__init__()
        self.shape = (in_channels, image_size, image_size)
        self.normalize = Normalize(in_channels)
        sizes = [in_channels * image_size**2, *(scaled(size, width) for size in hidden)]
        layers = [module for a, b in pairwise(sizes) for module in (nn.Linear(a, b), nn.ReLU())]
        self.classifier = nn.Sequential(nn.Flatten(), *layers, nn.Linear(sizes[-1], num_classes))

    def forward(self, inputs: Tensor) -> Tensor:
        """Images ``(N, C, H, W)``, or the same flattened to ``(N, C * H * W)``, to logits ``(N, num_classes)``."""
        images = inputs.unflatten(1, self.shape) if inputs.ndim == 2 else inputs
        return self.classifier(self.normalize(images))
