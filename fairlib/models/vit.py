"""A small vision transformer (Dosovitskiy et al. 2021), of torchvision's blocks."""

from torch import Tensor, nn

from fairlib.models.normalization import Normalize
from fairlib.models.parts import scaled


class ViT(nn.Module):
    """Torchvision's transformer on patches of 4x4 pixels: four layers of width 48 with two heads.

    The MLP of each layer is twice as wide, with GELU, and there is no dropout. On 8x8 grey images
    and 10 classes the network has 77,530 parameters.

    Args:
        num_classes: Number of logits.
        in_channels: Channels of the images.
        image_size: Height and width of the images, in pixels; a multiple of 4.
        width: Multiplies the 24 features of each head (rounded, at least 1).

    Raises:
        ValueError: If the images cannot be cut into patches.
    """

    def __init__(self, num_classes: int, in_channels: int, image_size: int, *, width: float = 1.0):
        super().__init__()
        # Imported here, since torchvision takes a second, and most users build something else.
        from torchvision.models import VisionTransformer

        if image_size % 4:
            raise ValueError(
                f"image_size must be a multiple of 4 for the model 'vit-tiny', got {image_size}"
            )
        features = 2 * scaled(24, width)
        self.normalize = Normalize(in_channels)
        self.transformer = VisionTransformer(
            image_size, 4, 4, 2, features, 2 * features, num_classes=num_classes
        )
        # Torchvision's takes three channels, and its head starts at zero: no gradient would reach
        # the layers below before the first step, nor a score of a pruning at initialization.
        self.transformer.conv_proj = nn.Conv2d(in_channels, features, 4, 4)
        self.transformer.heads[0].reset_parameters()

    def forward(self, inputs: Tensor) -> Tensor:
        """Map images ``(N, C, H, W)`` to logits ``(N, num_classes)``."""
        return self.transformer(self.normalize(inputs))
