"""Against finite differences of the exact solution, and against differentiating through the lower
level's steps."""

from __future__ import annotations

import pytest
import torch

from fairlib.pruning.hypergradient import hessian_free

GAMMA = 0.3


def quadratic(seed: int, n: int = 7):
    """A level U(w) = w'Qw / 2 - q'w."""
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(n, n, generator=generator, dtype=torch.float64)
    return root @ root.T / n, torch.randn(n, generator=generator, dtype=torch.float64)


def solution(Q, q, m):
    return torch.linalg.solve(m[:, None] * Q * m + GAMMA * torch.eye(len(m), dtype=m.dtype), m * q)


@pytest.fixture
def problem():
    (Q1, q1), (Q2, q2) = quadratic(1), quadratic(2)
    m = torch.rand(7, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    m[2] = 0  # A pruned weight: its theta is zero, and so is what its mask would change.
    return Q1, q1, Q2, q2, m


@pytest.fixture
def straight(problem):
    """A lower level without curvature: there the form without a Hessian leaves nothing out."""
    Q1, *rest = problem
    return 0 * Q1, *rest


def value(problem, m):
    Q1, q1, Q2, q2, _ = problem
    w = m * solution(Q1, q1, m)
    return w @ Q2 @ w / 2 - q2 @ w


def exact(problem):
    """Central differences of the upper objective at the exact lower solution."""
    m, steps = problem[-1], 1e-6 * torch.eye(7, dtype=torch.float64)
    return torch.stack([value(problem, m + e) - value(problem, m - e) for e in steps]) / 2e-6


def parts(problem):
    Q1, q1, Q2, q2, m = problem
    theta = solution(Q1, q1, m)
    w = m * theta
    return theta, Q1 @ w - q1, Q2 @ w - q2


def free(problem):
    theta, lower, upper = parts(problem)
    return hessian_free([theta], [problem[-1] * lower], [upper], GAMMA)[0]


def test_without_curvature_it_is_the_gradient_of_the_solved_problem(straight):
    assert torch.allclose(free(straight), exact(straight), atol=1e-7)


def test_without_curvature_it_is_what_unrolling_the_lower_level_gives(straight):
    _, q1, Q2, q2, m = straight
    m = m.clone().requires_grad_()
    theta = torch.zeros(7, dtype=torch.float64)
    for _ in range(2000):
        theta = theta - 0.2 * (-m * q1 + GAMMA * theta)
    w = m * theta
    expected = torch.autograd.grad(w @ Q2 @ w / 2 - q2 @ w, m)[0]
    assert torch.allclose(free(straight), expected, atol=1e-8)


def test_with_curvature_the_whole_gradient_is_the_formula_of_the_module(problem):
    """It leaves the Hessian out, and points downhill all the same."""
    Q1, *_, m = problem
    theta, lower, upper = parts(problem)
    v = torch.linalg.solve(m[:, None] * Q1 * m + GAMMA * torch.eye(7, dtype=m.dtype), m * upper)
    whole = theta * upper - lower * v - theta * (Q1 @ (m * v))
    assert torch.allclose(whole, exact(problem), atol=1e-7)
    assert not torch.allclose(whole, free(problem), atol=1e-2)
    assert torch.cosine_similarity(whole, free(problem), dim=0) > 0.5


def test_at_a_minimum_it_is_twice_what_ignores_that_the_weights_follow(problem):
    """There the mask times the lower gradient is minus gamma theta."""
    theta, _, upper = parts(problem)
    assert torch.allclose(free(problem), 2 * theta * upper)
