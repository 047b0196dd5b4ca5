"""Calling a function for every seed, in several processes if that is faster."""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Event
from typing import Any, TypeVar

import torch
from joblib import Parallel, delayed
from joblib.parallel import get_active_backend
from tqdm import tqdm

from fairlib import environment
from fairlib._validation import check_many, check_number, check_seed

Item = TypeVar("Item")

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

    On the CPU every call uses one thread, so that results do not depend on the number of processes.
    Unless ``workers`` is given the first seed is computed in this process and timed, and the others
    begin beside it if it takes longer than starting processes does.

    Args:
        function: Function of one seed. It and its results must be picklable by cloudpickle, which
            handles functions defined in a notebook.
        seeds: Seeds, at least one and without duplicates.
        device: ``"auto"`` (CUDA if available) or a torch device; only on the CPU are several
            processes used.
        workers: Number of processes; by default one for each core if that saves more time than
            starting them takes.
        progress: Show a progress bar.

    Returns:
        The results in the order of the seeds.

    Raises:
        ValueError: If there is no seed, or a duplicate one, or ``workers`` is less than 1.
        TypeError: If ``seeds`` is a single one.
    """
    return in_processes(
        function, check_seeds(seeds), device=device, workers=workers, progress=progress
    )


def check_seeds(seeds: Iterable[int]) -> tuple[int, ...]:
    """Return seeds as a tuple of Python's integers.

    Raises:
        ValueError: If there is no seed, or a duplicate one.
        TypeError: If they are a single one, or one is not an integer.
    """
    seeds = check_many("seeds", seeds)
    for seed in seeds:
        check_seed("seeds", seed)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must hold at least one seed, and each once; got {list(seeds)}")
    return tuple(map(int, seeds))


def check_workers(workers: int | None) -> None:
    """Refuse a number of processes that is no whole number of at least 1, or None."""
    if workers is not None:
        check_number("workers", workers, 1, whole=True)


def in_processes(
    function: Callable[[Item], Any],
    items: Sequence[Item],
    *,
    device: str,
    workers: int | None,
    progress: bool,
) -> list[Any]:
    """Call a function for every item, a seed or a list of seeds, as :func:`by_seed` does."""
    check_workers(workers)
    alike = partial(_on_one_thread, function, environment.automatic())
    most = workers or environment.workers(device)
    sizes = [len(item) if isinstance(item, list) else 1 for item in items]
    found: list[Any] = []
    with tqdm(total=sum(sizes), desc="seeds", leave=False, disable=not progress) as bar:
        # A worker starts no workers: its siblings already keep the other cores busy.
        if most == 1 or len(items) == 1 or get_active_backend()[0].nesting_level:
            results: Iterable[Any] = (alike(item) for item in items)
        elif workers:
            results = _pool(alike, items, most)
        else:
            first, results = _first_and_rest(alike, items, most)
            found.append(first)
            bar.update(sizes[0])
        for result in results:
            bar.update(sizes[len(found)])
            found.append(result)
    return found


def _pool(function: Callable[[Item], Any], items: Sequence[Item], most: int) -> Any:
    """Start to call a function in worker processes; return the results as they come, in order."""
    # Always the same size, so that loky reuses one pool: starting one takes seconds.
    jobs = (delayed(function)(item) for item in items)
    return Parallel(n_jobs=most, return_as="generator")(jobs)


def _first_and_rest(
    function: Callable[[Item], Any], items: Sequence[Item], most: int
) -> tuple[Any, Iterable[Any]]:
    """Call a function for the first item here, and for the others wherever that is faster.

    Nobody knows beforehand how long a call takes. So a thread waits beside the first one, and
    starts the workers on the rest once the call has taken as long as starting them does.
    """
    start, rest, done = time.perf_counter(), items[1:], Event()
    with ThreadPoolExecutor(1) as beside:
        early = beside.submit(lambda: None if done.wait(_STARTUP) else _pool(function, rest, most))
        try:
            first = function(items[0])
        except BaseException:
            # The thread that created the pool must close it, or its workers go on to compute.
            beside.submit(_close, early)
            raise
        finally:
            done.set()
    begun = early.result()
    if begun is not None:
        return first, begun
    saving = (time.perf_counter() - start) * len(rest) * (1 - 1 / min(most, len(rest)))
    if saving >= _STARTUP:
        return first, _pool(function, rest, most)
    return first, (function(item) for item in rest)


def _close(early: Future[Any]) -> None:
    if early.result() is not None:
        early.result().close()


def _on_one_thread(function: Callable[[Item], Any], automatic: bool, item: Item) -> Any:
    # A reused worker has the environment of the time when it was started.
    if environment.automatic() != automatic:
        os.environ["FAIRLIB_AUTO"] = str(int(automatic))
    # The number of threads changes the order of sums: with one, a worker's result has the same bits
    # as one of this process, however many cores there are.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return function(item)
    finally:
        torch.set_num_threads(before)
