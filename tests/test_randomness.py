from __future__ import annotations

import pytest
import torch

from fairlib.randomness import seeded


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
