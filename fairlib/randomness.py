"""Randomness that stays where it is used: torch's generators, seeded for a while and then put
back."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's global generators (CPU and CUDA) within a block, and restore their states
    afterwards.

    Code inside the block, dropout and initializers included, depends on ``seed`` alone; code
    outside is not affected.

    Raises:
        TypeError: If ``seed`` is not an integer.

    Example:
        >>> import torch
        >>> from fairlib.randomness import seeded
        >>> with seeded(0):
        ...     one = torch.rand(3)
        >>> with seeded(0):
        ...     torch.equal(one, torch.rand(3))
        True
    """
    # torch.manual_seed accepts True and 1.5 and rounds them: two different seeds would be the same.
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise TypeError(f"seed must be an integer, got {seed!r}")
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(int(seed))
        yield
