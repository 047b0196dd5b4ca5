from __future__ import annotations

import pytest
import torch

from fairlib.training.group_losses import SURROGATES, AccuracyDifference, margins, means_and_counts


def test_mean_and_count_of_an_absent_group_are_zero():
    means, counts = means_and_counts(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, 2]), 3)
    assert means.tolist() == [2.0, 0.0, 5.0] and counts.tolist() == [2, 0, 1]


def test_the_gradient_of_a_mean_is_shared_by_its_group():
    values = torch.tensor([1.0, 3.0, 5.0], requires_grad=True)
    means, _ = means_and_counts(values, torch.tensor([0, 0, 2]), 3)
    (gradient,) = torch.autograd.grad(means @ torch.tensor([1.0, 7.0, 2.0]), values)
    assert gradient.tolist() == [0.5, 0.5, 2.0]


def three_models():
    """The margins of a perfect model, one that is better for the first group, and one always wrong;
    8 and 2 people."""
    groups = torch.tensor([0] * 8 + [1] * 2)
    better = torch.tensor([1.0] * 7 + [-1.0] + [1.0, -1.0])
    return groups, {(1.0, 1.0): torch.ones(10), (0.875, 0.5): better, (0.0, 0.0): -torch.ones(10)}


def logits_of(margins):
    """Of two classes, all targets 1."""
    return torch.stack([torch.zeros_like(margins), margins], dim=1), torch.ones(
        len(margins), dtype=torch.long
    )


def test_margins_are_positive_where_the_answer_is_right():
    logits, targets = torch.tensor([[2.0, 5.0, 1.0], [4.0, 0.5, 3.0]]), torch.tensor([1, 2])
    assert margins(logits, targets).tolist() == [3.0, -1.0]


def test_with_the_indicator_the_difference_is_that_of_the_accuracies():
    """And so is the formula of the paper with the sign of the group put back; as printed it is
    their sum minus 1."""
    groups, models = three_models()
    sign, share = (
        torch.tensor(pair, dtype=torch.float64)[groups] for pair in ([1, -1], [0.8, 0.2])
    )
    for (first, second), values in models.items():
        logits, targets = logits_of(values)
        corrected = ((sign * values > 0) / share).mean().item() - 1
        assert corrected == pytest.approx(first - second, abs=1e-6)
        ours = AccuracyDifference(surrogate="indicator")(logits, targets, groups, 2).item()
        assert ours == pytest.approx(abs(first - second), abs=1e-6)
        printed = AccuracyDifference(surrogate="indicator", as_published=True)(
            logits, targets, groups, 2
        ).item()
        assert printed == pytest.approx(((values > 0) / share).mean().item() - 1, abs=1e-6)
        assert printed == pytest.approx(first + second - 1, abs=1e-6)


@pytest.mark.parametrize("surrogate", ["sigmoid", "affine"])
def test_with_a_consistent_surrogate_it_is_the_corrected_formula(surrogate):
    groups, _ = three_models()
    values = torch.randn(10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sign, share = (
        torch.tensor(pair, dtype=torch.float64)[groups] for pair in ([1, -1], [0.8, 0.2])
    )
    corrected = (SURROGATES[surrogate](sign * values / 2) / share).mean() - 1
    ours = AccuracyDifference(3.0, surrogate=surrogate, temperature=2.0)(
        *logits_of(values), groups, 2
    )
    assert ours.item() == pytest.approx(3 * abs(corrected.item()), abs=1e-12)


@pytest.mark.parametrize("surrogate", ["hinge", "logistic"])
def test_the_others_are_convex_upper_bounds_of_the_indicator(surrogate):
    z = torch.linspace(-3, 3, 601, dtype=torch.float64)
    u = SURROGATES[surrogate](z)
    assert bool((u >= (z > 0).double() - 1e-12).all())
    assert bool((u[2:] - 2 * u[1:-1] + u[:-2] >= -1e-12).all())
    assert u[300].item() == pytest.approx(1)  # The smallest of their kind.


def test_the_affine_surrogate_has_the_slope_of_the_sigmoid():
    z = torch.zeros(1, requires_grad=True)
    slopes = [
        torch.autograd.grad(SURROGATES[name](z).sum(), z)[0].item()
        for name in ("affine", "sigmoid")
    ]
    assert slopes == [0.25, 0.25]


def test_penalties_and_pairs_of_three_groups_by_hand():
    """Accuracies 1, 0.5 and 0.2: differences 0.5, 0.8 and 0.3."""
    groups = torch.tensor([0] * 2 + [1] * 2 + [2] * 5)
    logits, targets = logits_of(torch.tensor([1.0, 1.0, 1.0, -1.0, 1.0, -1.0, -1.0, -1.0, -1.0]))

    def cost(**settings):
        return AccuracyDifference(surrogate="indicator", **settings)(
            logits, targets, groups, 3
        ).item()

    assert cost() == pytest.approx(0.8)
    assert cost(pairs="mean") == pytest.approx(1.6 / 3)
    assert cost(penalty="square") == pytest.approx(0.64)
    assert cost(penalty="hinge", tau=0.4, pairs="mean") == pytest.approx((0.1 + 0.4) / 3)


def test_a_group_that_is_absent_is_in_no_pair():
    logits, targets = logits_of(torch.tensor([1.0, -1.0, 1.0, 1.0], requires_grad=True))
    term = AccuracyDifference(pairs="mean")
    both = term(logits, targets, torch.tensor([0, 0, 2, 2]), 3)
    assert both.item() == pytest.approx(float(torch.sigmoid(torch.tensor(1.0))) - 0.5)
    alone = term(logits, targets, torch.tensor([1, 1, 1, 1]), 3)
    (gradient,) = torch.autograd.grad(alone, logits)
    assert alone.item() == 0 and not gradient.any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(weight=-1.0), "weight must lie in"),
        (dict(surrogate="tanh"), "unknown surrogate 'tanh'"),
        (dict(temperature=0.0), "temperature must lie in"),
        (dict(penalty="cube"), "unknown penalty 'cube'"),
        (dict(penalty="hinge", tau=-0.1), "tau must lie in"),
        (dict(tau=0.1), "tau = 0.1 is the tolerance of penalty 'hinge'"),
        (dict(pairs="all"), "unknown choice of pairs 'all'"),
        (dict(as_published=True, penalty="square"), "it has no penalty"),
    ],
)
def test_a_term_that_means_nothing_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        AccuracyDifference(**settings)


def test_the_printed_formula_is_about_two_groups():
    logits, targets = logits_of(torch.ones(3))
    with pytest.raises(ValueError, match="about two groups, and these are 3"):
        AccuracyDifference(as_published=True)(logits, targets, torch.tensor([0, 1, 2]), 3)
