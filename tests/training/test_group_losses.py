from __future__ import annotations

import pytest
import torch

from fairlib.training.group_losses import AccuracyDifference, margins, means_and_counts


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


def test_of_certain_answers_the_difference_is_that_of_the_accuracies():
    """And so is the formula of the paper with the sign of the group put back; as printed it is
    their sum minus 1."""
    groups, models = three_models()
    sign, share = (
        torch.tensor(pair, dtype=torch.float64)[groups] for pair in ([1, -1], [0.8, 0.2])
    )
    for (first, second), values in models.items():
        # Of margins this large the sigmoid is 0 or 1.
        logits, targets = logits_of(100 * values)
        corrected = ((sign * values > 0) / share).mean().item() - 1
        assert corrected == pytest.approx(first - second, abs=1e-6)
        ours = AccuracyDifference()(logits, targets, groups, 2).item()
        assert ours == pytest.approx(abs(first - second), abs=1e-6)
        printed = AccuracyDifference(as_published=True)(logits, targets, groups, 2).item()
        assert printed == pytest.approx(((values > 0) / share).mean().item() - 1, abs=1e-6)
        assert printed == pytest.approx(first + second - 1, abs=1e-6)


def test_of_any_answers_it_is_the_corrected_formula():
    groups, _ = three_models()
    values = torch.randn(10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sign, share = (
        torch.tensor(pair, dtype=torch.float64)[groups] for pair in ([1, -1], [0.8, 0.2])
    )
    corrected = (torch.sigmoid(sign * values) / share).mean() - 1
    ours = AccuracyDifference(3.0)(*logits_of(values), groups, 2)
    assert ours.item() == pytest.approx(3 * abs(corrected.item()), abs=1e-12)


def test_of_three_groups_it_is_the_largest_difference():
    """Accuracies 1, 0.5 and 0.2: differences 0.5, 0.8 and 0.3."""
    groups = torch.tensor([0] * 2 + [1] * 2 + [2] * 5)
    values = torch.tensor([1.0, 1.0, 1.0, -1.0, 1.0, -1.0, -1.0, -1.0, -1.0])
    cost = AccuracyDifference()(*logits_of(100 * values), groups, 3)
    assert cost.item() == pytest.approx(0.8)


def test_a_group_that_is_absent_is_not_compared():
    logits, targets = logits_of(torch.tensor([1.0, -1.0, 1.0, 1.0], requires_grad=True))
    term = AccuracyDifference()
    both = term(logits, targets, torch.tensor([0, 0, 2, 2]), 3)
    assert both.item() == pytest.approx(float(torch.sigmoid(torch.tensor(1.0))) - 0.5)
    alone = term(logits, targets, torch.tensor([1, 1, 1, 1]), 3)
    (gradient,) = torch.autograd.grad(alone, logits)
    assert alone.item() == 0 and not gradient.any()


def test_a_negative_weight_is_refused():
    with pytest.raises(ValueError, match="weight must lie in"):
        AccuracyDifference(-1.0)


def test_the_printed_formula_is_about_two_groups():
    logits, targets = logits_of(torch.ones(3))
    with pytest.raises(ValueError, match="about two groups, and these are 3"):
        AccuracyDifference(as_published=True)(logits, targets, torch.tensor([0, 1, 2]), 3)
