from __future__ import annotations

import os

import pytest

from fairlib.studies import by_seed


def test_results_are_in_the_order_of_the_seeds():
    assert by_seed(lambda seed: seed**2, [3, 1, 2], workers=2) == [9, 1, 4]


def test_one_worker_stays_in_the_process():
    assert set(by_seed(lambda seed: os.getpid(), [0, 1], workers=1)) == {os.getpid()}


@pytest.mark.parametrize("seeds", [[], [0, 0]])
def test_seeds_are_there_and_each_once(seeds):
    with pytest.raises(ValueError, match="seeds must hold at least one seed, and each once"):
        by_seed(lambda seed: seed, seeds)
