from __future__ import annotations

import torch

from fairlib.groups import group_means


def test_group_means_of_an_absent_group_are_zero():
    means, counts = group_means(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, 2]), 3)
    assert means.tolist() == [2.0, 0.0, 5.0] and counts.tolist() == [2, 0, 1]


def test_the_gradient_of_a_mean_is_shared_by_its_group():
    values = torch.tensor([1.0, 3.0, 5.0], requires_grad=True)
    means, _ = group_means(values, torch.tensor([0, 0, 2]), 3)
    (gradient,) = torch.autograd.grad(means @ torch.tensor([1.0, 7.0, 2.0]), values)
    assert gradient.tolist() == [0.5, 0.5, 2.0]
