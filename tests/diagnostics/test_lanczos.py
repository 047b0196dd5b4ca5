from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlib.diagnostics.lanczos import error_estimate, inner, lanczos, norm


def operator(matrix: torch.Tensor):
    return lambda vector: matrix @ vector


def symmetric(size: int, seed: int) -> torch.Tensor:
    matrix = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return matrix + matrix.T


def test_the_largest_is_the_algebraically_largest_not_the_one_of_largest_magnitude():
    pairs, _, products = lanczos(operator(torch.diag(torch.tensor([1.0, -3.0]))), torch.ones(2))
    assert pairs[-1].value == pytest.approx(1.0) and pairs[0].value == pytest.approx(-3.0)
    assert pairs[-1].vector.abs().tolist() == pytest.approx([1, 0], abs=1e-6)
    assert products == 2


@settings(deadline=None, max_examples=50)
@given(size=st.integers(1, 40), seed=st.integers(0, 1000), end=st.sampled_from(["largest", "smallest", "both"]))
def test_agrees_with_a_dense_decomposition(size, seed, end):
    matrix = symmetric(size, seed)
    start = torch.randn(size, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    pairs, _, products = lanczos(operator(matrix), start, ends=end, tol=1e-10, limit=100)
    expected = torch.linalg.eigvalsh(matrix)
    for place, pair in pairs.items():
        assert pair.value == pytest.approx(expected[place].item(), abs=1e-7 * expected.abs().max().item())
        assert norm(matrix @ pair.vector - pair.value * pair.vector) == pytest.approx(pair.residual, abs=1e-6)
    assert products <= size


@settings(deadline=None, max_examples=30)
@given(size=st.integers(20, 60), seed=st.integers(0, 1000), end=st.sampled_from(["largest", "smallest", "both"]))
def test_a_process_that_is_restarted_agrees_too_and_its_residual_is_the_true_one(size, seed, end):
    matrix = symmetric(size, seed)
    start = torch.randn(size, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    pairs, _, _ = lanczos(operator(matrix), start, ends=end, tol=1e-9, limit=2000, room=8)
    expected = torch.linalg.eigvalsh(matrix)
    for place, pair in pairs.items():
        assert pair.value == pytest.approx(expected[place].item(), abs=1e-6 * expected.abs().max().item())
        assert norm(matrix @ pair.vector - pair.value * pair.vector) == pytest.approx(pair.residual, abs=1e-8)


def test_a_restarted_process_holds_no_more_vectors_than_it_has_room_for():
    live: list[weakref.ref] = []

    def product(vector):
        live.append(weakref.ref(vector))
        assert sum(ref() is not None for ref in live) <= 8
        return matrix @ vector

    matrix = symmetric(60, 0)
    _, _, products = lanczos(product, torch.ones(60, dtype=torch.float64), tol=1e-9, limit=500, room=8)
    assert products > 20


def test_the_error_estimate_bounds_the_error_of_an_unfinished_process():
    values = torch.linspace(-1, 1, 200, dtype=torch.float64)
    start = torch.ones(200, dtype=torch.float64)
    for limit in (5, 10, 20, 40):
        pairs, _, products = lanczos(operator(torch.diag(values)), start, tol=1e-14, limit=limit)
        assert products == limit
        for place, pair in pairs.items():
            assert abs(pair.value - values[place].item()) <= pair.residual


def test_it_stops_where_the_space_is_exhausted_or_invariant():
    matrix = torch.diag(torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64))
    pairs, _, products = lanczos(operator(matrix), torch.tensor([0.0, 1.0, 1.0, 0.0], dtype=torch.float64), tol=1e-12)
    assert products == 2 and pairs[-1].value == pytest.approx(3.0)
    zero, _, products = lanczos(operator(torch.zeros(3, 3)), torch.ones(3))
    assert products == 1 and zero[-1].value == 0 and zero[-1].residual == 0


def test_a_small_gap_makes_the_estimate_fall_back_to_the_residual():
    assert error_estimate(0.1, 10.0) == pytest.approx(0.001)
    assert error_estimate(0.1, 0.01) == error_estimate(0.1, 0.0) == 0.1


def test_inner_products_of_millions_of_float32_are_summed_in_float64():
    vector = torch.rand(4_000_000, generator=torch.Generator().manual_seed(0)) / 1000
    exact = float((vector.double() ** 2).sum())
    assert inner(vector, vector) == pytest.approx(exact, rel=1e-7)
    assert norm(vector) == pytest.approx(np.sqrt(exact), rel=1e-7)
