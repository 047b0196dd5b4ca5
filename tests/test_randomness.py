from __future__ import annotations

import numpy as np
import pytest
import torch

import fairlib
from fairlib.randomness import generator, seeded


def test_the_seed_decides_inside_and_nothing_changes_outside():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with seeded(1):
        one = torch.rand(2)
    assert torch.equal(torch.rand(2), expected)
    with seeded(1):
        assert torch.equal(torch.rand(2), one)
    with seeded(2):
        assert not torch.equal(torch.rand(2), one)


def test_the_generators_are_put_back_after_an_error_too():
    state = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), seeded(0):
        torch.rand(1)
        raise ZeroDivisionError
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("seed", [1.5, "1", True, None])
def test_a_seed_is_an_integer(seed):
    with pytest.raises(TypeError, match="seed must be an integer"), seeded(seed):
        pass


@pytest.mark.parametrize("seed", [1.5, True, None])
def test_a_generator_takes_integers_alone(seed):
    with pytest.raises(TypeError, match="seed must be an integer"):
        generator(seed)


def test_seeds_of_numpy_are_those_of_python_everywhere(cnn, images):
    one, other = (
        [
            fairlib.prune(cnn, "random", sparsity=0.5, seed=seed),
            fairlib.linearize(cnn, "random", budget=0.5, data=images, finetune=0, seed=seed),
            *fairlib.fit_many([cnn, cnn], images, seeds=[seed, 1], epochs=1),
        ]
        for seed in (np.int64(3), 3)
    )
    for found, expected in zip(one, other, strict=True):
        for name, value in expected.state_dict().items():
            assert torch.equal(found.state_dict()[name], value)


def test_a_study_takes_a_range_of_numpy():
    settings = dict(
        data="digits",
        model="mlp",
        method="prune:random",
        levels=[0.5],
        train={"epochs": 1},
        finetune={"epochs": 0},
        run=fairlib.studies.RunSettings(cache=None, workers=1, data_seed=0),
    )
    table = fairlib.study(**settings, seeds=np.arange(2))
    assert table.equals(fairlib.study(**settings, seeds=range(2)))
    with pytest.raises(TypeError, match=r"seeds must be an integer, got 0\.5"):
        fairlib.study(**settings, seeds=[0.5])


def test_all_bits_of_a_seed_count_and_small_ones_are_torchs():
    seeds = [1, 1 + 2**32, 1 + 2**33, -1, 2**32 - 1, 2**63 - 1, -(2**63)]
    drawn = {tuple(torch.rand(4, generator=generator(seed)).tolist()) for seed in seeds}
    assert len(drawn) == len(seeds)
    for seed in (0, 7, 2**32 - 1):
        expected = torch.rand(4, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(torch.rand(4, generator=generator(seed)), expected)
        with seeded(seed):
            assert torch.equal(torch.rand(4), expected)
    with seeded(1), pytest.raises(AssertionError):
        one = torch.rand(4)
        with seeded(1 + 2**32):
            assert torch.equal(torch.rand(4), one)
