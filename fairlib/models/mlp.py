"""Linear layers with ReLUs between: a network that ignores where in the image a pixel is."""

from collections.abc import Sequence

from torch import Tensor, nn

from fairlib.models.normalization import Normalize
from fairlib.models.parts import linear_layers, scaled


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
        widths = [scaled(size, width) for size in hidden]
        sizes = [in_channels * image_size**2, *widths, num_classes]
        self.classifier = nn.Sequential(nn.Flatten(), *linear_layers(sizes))

    def forward(self, inputs: Tensor) -> Tensor:
        """Map images ``(N, C, H, W)`` or ``(N, C * H * W)`` to logits ``(N, num_classes)``."""
        # Flat inputs get their channels back: normalization has one mean for each of them.
        images = inputs.unflatten(1, (-1, *self.shape[1:])) if inputs.ndim == 2 else inputs
        return self.classifier(self.normalize(images))
