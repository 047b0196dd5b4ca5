"""Augmentations of the images of a batch, of one network or of several that are stacked."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Generators = Sequence[torch.Generator | None]
"""Where the members of a stack draw from, one after the other; None is torch's global generator."""


@dataclass(frozen=True)
class Augmentation:
    """Random shifts and mirrorings of images.

    Drawing is apart from applying. Numbers are drawn on the CPU, since the generators of a GPU give
    others for the same seed; sent batch by batch, each batch would wait for the GPU.

    Args:
        crops: Shift each image by up to an eighth of its size, repeating the pixels of the edge.
        flips: Mirror each image left to right with probability one half.
    """

    crops: bool = False
    flips: bool = False

    def draw(self, count: int, shape: Sequence[int], generators: Generators = (None,)) -> Tensor:
        """Draw what is done to a batch.

        Args:
            count: Number of images for each generator.
            shape: Shape of an image ``(C, H, W)``.
            generators: Where to draw from.

        Returns:
            Int64 ``(k * count, 3)`` for k generators: rows to shift by, columns, and 1 where the
            image is mirrored.
        """
        drawn = torch.zeros(len(generators), count, 3, dtype=torch.int64)
        for own, member in zip(generators, drawn, strict=True):
            for axis, side in enumerate(shape[1:] if self.crops else ()):
                reach = max(1, side // 8)
                member[:, axis] = torch.randint(-reach, reach + 1, (count,), generator=own)
            if self.flips:
                member[:, 2] = torch.rand(count, generator=own) < 0.5
        return drawn.flatten(0, 1)

    def apply(self, images: Tensor, drawn: Tensor) -> Tensor:
        """Augment images ``(N, C, H, W)`` by numbers ``(N, 3)`` on their device."""
        if self.crops:
            sides = [
                (torch.arange(side, device=images.device) + shift[:, None]).clamp(0, side - 1)
                for side, shift in zip(images.shape[2:], drawn[:, :2].unbind(1), strict=True)
            ]
            sample = torch.arange(len(images), device=images.device)[:, None, None]
            channels_last = images.permute(0, 2, 3, 1)
            images = channels_last[sample, sides[0][:, :, None], sides[1][:, None, :]].permute(
                0, 3, 1, 2
            )
        if self.flips:
            images = torch.where(drawn[:, 2].bool()[:, None, None, None], images.flip(3), images)
        return images


AUGMENTATIONS = {
    "none": Augmentation(),
    "flip": Augmentation(flips=True),
    "crop": Augmentation(crops=True),
    "crop+flip": Augmentation(crops=True, flips=True),
}
"""Augmentations of images by name."""
