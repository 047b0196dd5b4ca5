"""Against finite differences of the exact solution, and against differentiating through the lower level's steps."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from fairlib.pruning.hypergradient import conjugate_gradients, direct, hessian_free, implicit

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


def value(problem, m):
    Q1, q1, Q2, q2, _ = problem
    w = m * solution(Q1, q1, m)
    return w @ Q2 @ w / 2 - q2 @ w


def parts(problem):
    Q1, q1, Q2, q2, m = problem
    theta = solution(Q1, q1, m)
    w = m * theta
    return theta, Q1 @ w - q1, Q2 @ w - q2


def test_the_whole_gradient_is_that_of_the_solved_problem(problem):
    """Central differences of the upper objective at the exact lower solution."""
    Q1, *_, m = problem
    theta, lower, upper = parts(problem)
    found, products = implicit(
        [theta], [m], [lower], [upper], GAMMA, product=lambda x: [Q1 @ x[0]], iterations=20, tol=1e-12
    )
    steps = 1e-6 * torch.eye(7, dtype=torch.float64)
    expected = torch.stack([value(problem, m + e) - value(problem, m - e) for e in steps]) / 2e-6
    assert torch.allclose(found[0], expected, atol=1e-7)
    assert 2 <= products <= 9  # Seven dimensions, one of them masked, and the last product.


def test_it_is_what_unrolling_the_lower_level_gives(problem):
    Q1, q1, Q2, q2, m = problem
    m = m.clone().requires_grad_()
    theta = torch.zeros(7, dtype=torch.float64)
    for _ in range(2000):
        theta = theta - 0.2 * (m * (Q1 @ (m * theta) - q1) + GAMMA * theta)
    w = m * theta
    expected = torch.autograd.grad(w @ Q2 @ w / 2 - q2 @ w, m)[0]
    theta, lower, upper = parts(problem)
    found, _ = implicit(
        [theta], [m.detach()], [lower], [upper], GAMMA, product=lambda x: [Q1 @ x[0]], iterations=20, tol=1e-12
    )
    assert torch.allclose(found[0], expected, atol=1e-8)


def test_it_is_what_unrolling_gives_on_a_network():
    """A tanh network of 3-4-2 with decay, its lower level solved by gradient descent."""
    generator = torch.Generator().manual_seed(0)
    data = [torch.randn(30, 3, generator=generator, dtype=torch.float64) for _ in range(2)]
    labels = [(x[:, 0] + x[:, 1] ** 2 > 0.5).long() for x in data]
    shapes, gamma = [(4, 3), (2, 4)], 0.05
    m = [torch.rand(shape, generator=generator, dtype=torch.float64) + 0.2 for shape in shapes]
    start = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]

    def objective(w, level):
        return cross_entropy(torch.tanh(data[level] @ w[0].T) @ w[1].T, labels[level])

    def regularized(m, theta):
        products = [a * b for a, b in zip(m, theta, strict=True)]
        return objective(products, 0) + gamma / 2 * sum(part.square().sum() for part in theta)

    def descend(m, theta, steps):
        for _ in range(steps):
            gradient = torch.autograd.grad(regularized(m, theta), theta, create_graph=True)
            theta = [a - 0.5 * b for a, b in zip(theta, gradient, strict=True)]
        return theta

    near = [part.clone().requires_grad_() for part in start]
    solver = torch.optim.LBFGS(near, lr=1, max_iter=500, tolerance_grad=1e-12, tolerance_change=0)

    def closure():
        solver.zero_grad()
        total = regularized(m, near)
        total.backward()
        return total

    solver.step(closure)
    masks = [part.clone().requires_grad_() for part in m]
    unrolled = descend(masks, near, 1000)
    upper_value = objective([a * b for a, b in zip(masks, unrolled, strict=True)], 1)
    expected = torch.autograd.grad(upper_value, masks)

    theta = [part.detach() for part in unrolled]
    w = [(a * b).requires_grad_() for a, b in zip(m, theta, strict=True)]
    lower = torch.autograd.grad(objective(w, 0), w, create_graph=True)
    upper = torch.autograd.grad(objective(w, 1), w)

    def product(x):
        return torch.autograd.grad(lower, w, grad_outputs=x, retain_graph=True)

    stationary = [a * g + gamma * t for a, g, t in zip(m, lower, theta, strict=True)]
    assert max(part.abs().max() for part in stationary) < 1e-8
    found, _ = implicit(
        theta, m, [part.detach() for part in lower], upper, gamma, product=product, iterations=200, tol=1e-12
    )
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


def test_without_curvature_the_whole_gradient_is_the_hessian_free_one(problem):
    *_, m = problem
    theta, lower, upper = parts(problem)
    whole, _ = implicit([theta], [m], [lower], [upper], GAMMA, product=lambda x: [0 * x[0]])
    free = hessian_free([theta], [m * lower], [upper], GAMMA)
    assert torch.allclose(whole[0], free[0])


def test_at_a_minimum_the_hessian_free_gradient_is_twice_the_direct_one(problem):
    """There the mask times the lower gradient is minus gamma theta."""
    *_, m = problem
    theta, lower, upper = parts(problem)
    free, plain = hessian_free([theta], [m * lower], [upper], GAMMA), direct([theta], [upper])
    assert torch.allclose(free[0], 2 * plain[0])
    assert not torch.allclose(free[0], plain[0])


def test_conjugate_gradients_stop_at_a_direction_of_negative_curvature():
    """diag(1, -4) and (1, 1): the first curvature, -3, is not positive. diag(4, -1): the second one is not."""
    right = [torch.tensor([1.0, 1.0])]

    def solve(diagonal):
        matrix = torch.tensor(diagonal)
        return conjugate_gradients(lambda x: [matrix * x[0]], right, start_scale=0.5, iterations=5, tol=0)

    assert solve([1.0, -4.0])[0].tolist() == [0.5, 0.5]
    assert solve([4.0, -1.0])[0].tolist() == pytest.approx([2 / 3, 2 / 3])  # 2 / 3 of the right side.
    assert solve([4.0, 1.0])[0].tolist() == pytest.approx([0.25, 1.0])
