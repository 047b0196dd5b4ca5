from __future__ import annotations

import os
import time

import pytest

from fairlib.studies import by_seed, parallel


def test_results_are_in_the_order_of_the_seeds():
    assert by_seed(lambda seed: seed**2, [3, 1, 2], workers=2) == [9, 1, 4]


def test_one_worker_stays_in_the_process():
    assert set(by_seed(lambda seed: os.getpid(), [0, 1], workers=1)) == {os.getpid()}


def test_the_others_begin_beside_a_first_that_takes_long(monkeypatch):
    monkeypatch.setattr(parallel, "_STARTUP", 0.1)
    monkeypatch.setattr(parallel.environment, "workers", lambda device: 2)

    def where(seed):
        if not seed:
            time.sleep(0.3)
        return os.getpid()

    here, other = by_seed(where, [0, 1])
    assert here == os.getpid() != other


def test_a_worker_starts_no_workers():
    outer = by_seed(
        lambda seed: (os.getpid(), by_seed(lambda inner: os.getpid(), [0, 1], workers=2)),
        [0, 1],
        workers=2,
    )
    assert all(inner == [own, own] for own, inner in outer)


@pytest.mark.parametrize("seeds", [[], [0, 0]])
def test_seeds_are_there_and_each_once(seeds):
    with pytest.raises(ValueError, match="seeds must hold at least one seed, and each once"):
        by_seed(lambda seed: seed, seeds)
