"""Randomness that stays where it is used: torch's generators, seeded for a while and then put
back."""

from collections.abc import Iterator
from contextlib import contextmanager
from operator import index

import numpy as np
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
    # Before the fork, whose states would else be saved for nothing.
    number = _whole(seed)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(number)
        yield


def generator(seed: int) -> torch.Generator:
    """Return a generator of torch on the CPU that was seeded, of any integer of 64 bits.

    Raises:
        TypeError: If ``seed`` is not an integer.
    """
    return torch.Generator().manual_seed(_whole(seed))


def _whole(seed: int) -> int:
    """Return the seed that torch gets: Python's integer, of 32 bits."""
    # torch.manual_seed accepts True and 1.5 and rounds them: two different seeds would be the same.
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise TypeError(f"seed must be an integer, got {seed!r}")
    number = index(seed)
    if 0 <= number < 2**32:
        return number
    # The CPU's generator takes 32 bits, and 1 and 1 + 2**32 would be one seed: larger ones, and
    # negative ones, are mixed down by all of their bits.
    return int(np.random.SeedSequence(number % 2**64).generate_state(1)[0])
