from __future__ import annotations

import numpy as np
import pytest
import torch

from fairlib.diagnostics.vectors import inner, moved, norm, parts_norm, parts_unit, unit


def test_inner_products_of_millions_of_float32_are_summed_in_float64():
    vector = torch.rand(4_000_000, generator=torch.Generator().manual_seed(0)) / 1000
    exact = float((vector.double() ** 2).sum())
    assert inner(vector, vector) == pytest.approx(exact, rel=1e-7)
    assert norm(vector) == pytest.approx(np.sqrt(exact), rel=1e-7)


def test_vectors_in_parts_are_flat_ones_taken_apart():
    generator = torch.Generator().manual_seed(0)
    a, b = (
        [torch.randn(shape, generator=generator).double() for shape in [(3, 2), (4,), ()]]
        for _ in range(2)
    )
    one, other = (torch.cat([part.flatten() for part in vector]) for vector in (a, b))
    assert inner(one, other) == pytest.approx(float(one @ other))
    assert float(parts_norm(a)) == pytest.approx(norm(one)) == pytest.approx(float(one.norm()))
    torch.testing.assert_close(torch.cat([part.flatten() for part in parts_unit(a)]), unit(one))
    torch.testing.assert_close(
        torch.cat([part.flatten() for part in moved(a, -0.5, b)]), one - other / 2
    )


def test_zero_has_no_direction_and_stays():
    zero = torch.zeros(3)
    assert not unit(zero).any() and not any(part.any() for part in parts_unit([zero, zero]))
