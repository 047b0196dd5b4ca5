"""Augmentations of the images of a batch, of one network or of several that are stacked."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Generators = Sequence[torch.Generator | None]
"""Where the members of a stack draw from, one after the other; None is torch's global generator."""


def _crop(images: Tensor, generators: Generators = (None,)) -> Tensor:
    """Shift each image by up to an eighth of its size, repeating the pixels of the edge."""
    # Drawn on the CPU: the generators of a GPU give other numbers for the same seed.
    n, _, height, width = images.shape
    reach, each = (max(1, height // 8), max(1, width // 8)), n // len(generators)
    dy, dx = (
        torch.cat(
            [torch.randint(-r, r + 1, (each, 1), generator=own, device="cpu") for own in generators]
        )
        for r in reach
    )
    rows = (torch.arange(height, device=images.device) + dy.to(images.device)).clamp(0, height - 1)
    columns = (torch.arange(width, device=images.device) + dx.to(images.device)).clamp(0, width - 1)
    sample = torch.arange(n, device=images.device)[:, None, None]
    return images.permute(0, 2, 3, 1)[sample, rows[:, :, None], columns[:, None, :]].permute(
        0, 3, 1, 2
    )


def _flip(images: Tensor, generators: Generators = (None,)) -> Tensor:
    """Mirror each image left to right with probability one half."""
    each = len(images) // len(generators)
    chosen = torch.cat([torch.rand(each, generator=own).lt(0.5) for own in generators]).to(
        images.device
    )
    return torch.where(chosen[:, None, None, None], images.flip(3), images)


AUGMENTATIONS: dict[str, Callable[..., Tensor]] = {
    "none": lambda images, generators=(None,): images,
    "flip": _flip,
    "crop": _crop,
    "crop+flip": lambda images, generators=(None,): _flip(_crop(images, generators), generators),
}
"""Augmentations of images ``(k * B, C, H, W)`` by name, of which each of k generators gives the
draws for B."""
