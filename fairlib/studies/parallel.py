"""Calling a function for every seed, in several processes if that is faster."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from tqdm import tqdm

from fairlib import environment
from fairlib._validation import check_many, check_number

T = TypeVar("T")

_STARTUP = 8.0  # Seconds that a worker process takes to import torch, on two cores.


def by_seed(
    function: Callable[[int], Any],
    seeds: Iterable[int],
    *,
    device: str = "auto",
    workers: int | None = None,
    progress: bool = False,
) -> list[Any]:
    """Call a function for every seed, in this process or in several, whichever is faster.

    On the CPU every call uses one thread, so that results do not depend on the number of processes. The first seed is
    computed in this process and timed.

    Args:
        function: Function of one seed. It and its results must be picklable by cloudpickle, which handles functions
            defined in a notebook.
        seeds: Seeds, at least one and without duplicates.
        device: ``"auto"`` (CUDA if available) or a torch device; only on the CPU are several processes used.
        workers: Number of processes; by default one for each core if that saves more time than starting them takes.
        progress: Whether to show a progress bar.

    Returns:
        The results in the order of the seeds.

    Raises:
        ValueError: If there is no seed, or a duplicate one, or ``workers`` is less than 1.
        TypeError: If ``seeds`` is a single one.
    """
    return in_processes(function, check_seeds(seeds), device=device, workers=workers, progress=progress)


def check_seeds(seeds: Iterable[int]) -> tuple[int, ...]:
    """Return seeds as a tuple.

    Raises:
        ValueError: If there is no seed, or a duplicate one.
        TypeError: If they are a single one.
    """
    seeds = check_many("seeds", seeds)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must hold at least one seed, and each once; got {list(seeds)}")
    return seeds


def in_processes(
    function: Callable[[T], Any], items: Sequence[T], *, device: str, workers: int | None, progress: bool
) -> list[Any]:
    """Call a function for every item as :func:`by_seed` does for every seed."""
    if workers is not None:
        check_number("workers", workers, 1, whole=True)
    results = _in_order(partial(_on_one_thread, function), items, workers or environment.workers(device), bool(workers))
    return list(tqdm(results, total=len(items), desc="seeds", leave=False, disable=not progress))


def _in_order(function: Callable[[T], Any], items: Sequence[T], most: int, wanted: bool) -> Iterator[Any]:
    from joblib import Parallel, delayed

    start = time.perf_counter()
    yield function(items[0])
    duration, rest = time.perf_counter() - start, items[1:]
    processes = min(most, len(rest))
    saving = duration * len(rest) * (1 - 1 / max(1, processes))
    if processes < 2 or (not wanted and saving < _STARTUP):
        yield from map(function, rest)
        return
    yield from Parallel(n_jobs=processes, return_as="generator")(delayed(function)(item) for item in rest)


def _on_one_thread(function: Callable[[T], Any], item: T) -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return function(item)
    finally:
        torch.set_num_threads(before)
