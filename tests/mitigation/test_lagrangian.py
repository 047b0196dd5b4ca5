import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from fairlib.mitigation.lagrangian import Lagrangian


@pytest.mark.parametrize(
    ("population", "means"),
    [("all", [1.8] * 3), ("groups", [3, 3, 3]), ("others", [12 / 4, 12 / 7, 12 / 9])],
)
def test_gaps_by_hand(population, means):
    gaps = Lagrangian(population=population).gaps(
        torch.tensor([1.0, 2.0, 6.0]), torch.tensor([6, 3, 1])
    )
    assert gaps.tolist() == pytest.approx(np.array([1, 2, 6]) - means)


@pytest.mark.parametrize("population", ["all", "groups", "others"])
def test_an_absent_group_has_no_gap_and_no_gradient(population):
    values = torch.tensor([1.0, 2.0, 0.0], requires_grad=True)
    settings = Lagrangian(population=population)
    found = settings.gaps(values, torch.tensor([6, 3, 0]))
    found.square().sum().backward()
    assert found[2] == 0 and values.grad[2] == 0
    torch.testing.assert_close(found[:2], settings.gaps(values[:2], torch.tensor([6, 3])))
    alone = settings.gaps(torch.tensor([3.0, 0.0]), torch.tensor([2, 0]))
    assert alone.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("settings", "multipliers", "expected"),
    [
        ({"violation": "absolute"}, [0.5, 0.5, 0.5], [0.9, 0.7, 0.5]),
        ({"violation": "absolute", "tolerance": 0.1}, [0.5, 0.5, 0.5], [0.7, 0.5, 0.5]),
        ({"violation": "absolute", "cap": 0.6}, [0.5, 0.5, 0.5], [0.6, 0.6, 0.5]),
        (
            {"violation": "absolute", "tolerance": 0.1, "restart": True},
            [0.5, 0.5, 0.5],
            [0.7, 0.0, 0.0],
        ),
        ({"violation": "signed"}, [0.5, 0.5, 0.5], [0.9, 0.3, 0.5]),
        ({"violation": "signed", "cap": 0.4}, [0.0, 0.0, 0.0], [0.4, -0.2, 0.0]),
        ({"violation": "one-sided"}, [0.5, 0.1, 0.5], [0.9, 0.0, 0.5]),
        ({"violation": "one-sided", "tolerance": 0.1}, [0.5, 0.5, 0.5], [0.7, 0.1, 0.3]),
        ({"violation": "one-sided", "restart": True}, [0.5, 0.5, 0.5], [0.9, 0.0, 0.0]),
    ],
)
def test_dual_steps_by_hand(settings, multipliers, expected):
    dual = Lagrangian(step=2, **settings)
    after = dual.dual_step(
        torch.tensor(multipliers), dual.violations(torch.tensor([0.2, -0.1, 0.0]))
    )
    assert after.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("violation", ["absolute", "signed", "one-sided"])
def test_weights_are_the_derivative_of_the_penalty(violation):
    settings = Lagrangian(violation=violation, tolerance=0.0 if violation == "signed" else 0.15)
    found, multipliers = (
        torch.tensor([0.2, -0.3, 0.1], requires_grad=True),
        torch.tensor([1.0, 2.0, 3.0]),
    )
    (multipliers * settings.violations(found)).sum().backward()
    torch.testing.assert_close(settings.weights(multipliers, found.detach()), found.grad)


@pytest.mark.parametrize("violation", ["signed", "one-sided"])
def test_dual_ascent_reaches_the_solution_of_a_constrained_problem(violation):
    """Two squares; the first value may not exceed, or must equal, the second. Against SLSQP."""
    settings = Lagrangian(step=0.1, violation=violation)
    theta, multipliers = (
        torch.tensor([2.0, -1.0], dtype=torch.float64),
        torch.zeros(1, dtype=torch.float64),
    )
    target, direction = (
        torch.tensor([3.0, 0.5], dtype=torch.float64),
        torch.tensor([1.0, -1.0], dtype=torch.float64),
    )
    for _ in range(2000):
        gap = (theta @ direction)[None]
        theta = theta - 0.1 * ((theta - target) + settings.weights(multipliers, gap) * direction)
        multipliers = settings.dual_step(multipliers, settings.violations(gap))
    kind = {"signed": "eq", "one-sided": "ineq"}[violation]
    expected = minimize(
        lambda x: ((x - target.numpy()) ** 2).sum() / 2,
        [0, 0],
        constraints={"type": kind, "fun": lambda x: x[1] - x[0]},
    )
    np.testing.assert_allclose(theta, expected.x, atol=1e-6)
    assert multipliers.item() == pytest.approx(1.25)


@pytest.mark.slow
def test_noise_lets_absolute_multipliers_rise_and_signed_ones_wander():
    """The mean of |noise| is sd * sqrt(2 / pi), and no gap is there."""
    noise = torch.randn(20_000, generator=torch.Generator().manual_seed(0)) * 0.1
    risen = {}
    for violation in ("absolute", "signed"):
        settings, multipliers = Lagrangian(step=1e-3, violation=violation), torch.zeros(1)
        for gap in noise:
            multipliers = settings.dual_step(multipliers, settings.violations(gap[None]))
        risen[violation] = multipliers.item()
    assert risen["absolute"] == pytest.approx(1e-3 * 20_000 * 0.1 * (2 / np.pi) ** 0.5, rel=0.02)
    assert abs(risen["signed"]) < 4 * 1e-3 * 0.1 * 20_000**0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"step": 0}, "step must lie in"),
        (
            {"violation": "squared"},
            "unknown violation 'squared'; known: absolute, signed, one-sided",
        ),
        ({"tolerance": -1}, "tolerance must lie in"),
        ({"violation": "signed", "tolerance": 0.1}, "a signed violation has no tolerance"),
        ({"violation": "signed", "restart": True}, "a signed violation has no restart"),
        ({"population": "some"}, "unknown population 'some'"),
        ({"cap": 0}, r"cap must lie in \(0, inf\], got 0"),
    ],
)
def test_errors(settings, message):
    with pytest.raises(ValueError, match=message):
        Lagrangian(**settings)
