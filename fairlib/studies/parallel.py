"""A function called for every seed, in as many processes as pay."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from tqdm import tqdm

from fairlib import environment

_STARTUP = 8.0  # Seconds until a worker process has imported torch on two cores.


def by_seed(
    function: Callable[[int], Any],
    seeds: Iterable[int],
    *,
    device: str = "auto",
    workers: int | None = None,
    progress: bool = False,
) -> list[Any]:
    """Call a function for every seed, here or in processes, whichever is faster.

    On the CPU every call uses one thread, so that results do not depend on the number of processes. The first seed is
    computed here and timed.

    Args:
        function: What is called with each seed; it and its results must be picklable (cloudpickle serves functions of a
            notebook).
        seeds: At least one, each once.
        device: As in :func:`fairlib.fit`; only on the CPU do processes run side by side.
        workers: Number of processes; by default as many as there are cores, as soon as that saves more time than it
            costs.
        progress: Show a bar.

    Returns:
        The results in the order of the seeds.

    Raises:
        ValueError: If there is no seed, or one is named twice.
    """
    seeds = list(seeds)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must name at least one seed, and each once; got {seeds}")
    results = _in_order(partial(_on_one_thread, function), seeds, workers or environment.workers(device), bool(workers))
    return list(tqdm(results, total=len(seeds), desc="seeds", leave=False) if progress else results)


def _in_order(function: Callable[[int], Any], seeds: Sequence[int], most: int, wanted: bool) -> Iterator[Any]:
    from joblib import Parallel, delayed

    start = time.perf_counter()
    yield function(seeds[0])
    duration, rest = time.perf_counter() - start, seeds[1:]
    processes = min(most, len(rest))
    saving = duration * len(rest) * (1 - 1 / max(1, processes))
    if processes < 2 or (not wanted and saving < _STARTUP):
        yield from map(function, rest)
        return
    yield from Parallel(n_jobs=processes, return_as="generator")(delayed(function)(seed) for seed in rest)


def _on_one_thread(function: Callable[[int], Any], seed: int) -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return function(seed)
    finally:
        torch.set_num_threads(before)
