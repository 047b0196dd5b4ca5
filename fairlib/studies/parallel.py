"""Calling a function for every seed, in several processes if that is faster."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event
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

    On the CPU every call uses one thread, so that results do not depend on the number of processes.
    Unless ``workers`` is given the first seed is computed in this process and timed, and the others
    begin beside it if it takes longer than starting processes does.

    Args: function: Function of one seed. It and its results must be picklable by cloudpickle, which
        handles functions
            defined in a notebook.
        seeds: Seeds, at least one and without duplicates.
        device: ``"auto"`` (CUDA if available) or a torch device; only on the CPU are several
            processes used.
        workers: Number of processes; by default one for each core if that saves more time than
            starting them takes.
        progress: Whether to show a progress bar.

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
    """Return seeds as a tuple.

    Raises:
        ValueError: If there is no seed, or a duplicate one.
        TypeError: If they are a single one.
    """
    seeds = check_many("seeds", seeds)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must hold at least one seed, and each once; got {list(seeds)}")
    return seeds


def check_workers(workers: int | None) -> None:
    """Refuse a number of processes that is no whole number of at least 1; None is one for each
    core."""
    if workers is not None:
        check_number("workers", workers, 1, whole=True)


def in_processes(
    function: Callable[[T], Any],
    items: Sequence[T],
    *,
    device: str,
    workers: int | None,
    progress: bool,
) -> list[Any]:
    """Call a function for every item as :func:`by_seed` does for every seed."""
    check_workers(workers)
    alike = partial(_on_one_thread, function, environment.automatic())
    results = _in_order(alike, items, workers or environment.workers(device), bool(workers))
    found = []
    with tqdm(
        total=sum(map(_seeds, items)), desc="seeds", leave=False, disable=not progress
    ) as bar:
        for item, result in zip(items, results, strict=True):
            found.append(result)
            bar.update(_seeds(item))
    return found


def _seeds(item: object) -> int:
    """The number of seeds of an item, which is one or a stack of several."""
    return len(item) if isinstance(item, list) else 1


def _in_order(
    function: Callable[[T], Any], items: Sequence[T], most: int, wanted: bool
) -> Iterator[Any]:
    from joblib import Parallel, delayed
    from joblib.parallel import get_active_backend

    def pool(items: Sequence[T]) -> Any:
        jobs = (delayed(function)(item) for item in items)
        return Parallel(n_jobs=most, return_as="generator")(
            jobs
        )  # Of one size, so that a page has one pool.

    if (
        most == 1 or len(items) == 1 or get_active_backend()[0].nesting_level
    ):  # That is, in a worker.
        yield from map(function, items)
        return
    if wanted:
        yield from pool(items)
        return
    start, rest, done = time.perf_counter(), items[1:], Event()
    with ThreadPoolExecutor(1) as beside:
        early = beside.submit(lambda: None if done.wait(_STARTUP) else pool(rest))
        try:
            first = function(items[0])
        except BaseException:
            beside.submit(
                lambda: (begun := early.result()) and begun.close()
            )  # In the thread that it is from.
            raise
        finally:
            done.set()
    saving = (time.perf_counter() - start) * len(rest) * (1 - 1 / min(most, len(rest)))
    yield first
    yield from early.result() or (map(function, rest) if saving < _STARTUP else pool(rest))


def _on_one_thread(function: Callable[[T], Any], automatic: bool, item: T) -> Any:
    if (
        environment.automatic() != automatic
    ):  # A worker has the environment that there was when it was started.
        os.environ["FAIRLIB_AUTO"] = str(int(automatic))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return function(item)
    finally:
        torch.set_num_threads(before)
