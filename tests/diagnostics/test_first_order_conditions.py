"""What the optimality of the whole implies for the gradients of the groups: Proposition 1 of [T],
and its limits.

Acceptance tests 1 and 2. At a stationary point of the mean loss over all samples the gradients of
the groups, weighted by their shares, sum to zero. With two groups their norms are then as the
inverse of their sizes; with more, no order follows. Groups of one distribution have unequal norms
by their sizes alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from smooth import random_data, smooth_model
from torch import nn
from torch.nn.functional import cross_entropy

import fairlib
from fairlib.diagnostics import group_gradients
from fairlib.diagnostics.objective import MeanLoss
from fairlib.statistics import t_interval

# `Bias` has a parameter of no layer with a rule.
pytestmark = pytest.mark.filterwarnings("ignore::fairlib.diagnostics.SlowWarning")


class Bias(nn.Module):
    """Predicts the same for everybody. At the optimum that is how often the classes occur, in
    closed form."""

    def __init__(self, classes: int = 2):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(classes, dtype=torch.float64))

    def forward(self, inputs):
        return self.bias.expand(len(inputs), -1)


def _counted(sizes, positives) -> fairlib.GroupedDataset:
    """Groups of some sizes with so many positives each."""
    targets = np.concatenate(
        [np.arange(n) < k for n, k in zip(sizes, positives, strict=True)]
    ).astype(int)
    groups = np.repeat(np.arange(len(sizes)), sizes)
    return fairlib.GroupedDataset(
        np.zeros((sum(sizes), 1)), targets, groups, target_names=["no", "yes"]
    )


def _minimized(model: nn.Module, data: fairlib.GroupedDataset, decay: float = 0.0) -> nn.Module:
    """The model at a stationary point of its mean loss over all samples, the gradient below
    1e-8."""
    inputs, targets = data.batch(slice(None), dtype=torch.float64), data.targets
    optimizer = torch.optim.LBFGS(
        model.parameters(),
        max_iter=2000,
        tolerance_grad=1e-10,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )

    def objective():
        optimizer.zero_grad()
        squares = sum(weight.square().sum() for weight in model.parameters())
        loss = cross_entropy(model(inputs), targets) + decay / 2 * squares
        loss.backward()
        return loss

    optimizer.step(objective)
    objective()
    assert max(float(weight.grad.norm()) for weight in model.parameters()) < 1e-8
    return model


def _vectors(model: nn.Module, data: fairlib.GroupedDataset) -> tuple[torch.Tensor, torch.Tensor]:
    """The groups' gradients ``(groups, P)`` and their shares ``(groups,)``."""
    members = [(data.groups == code).nonzero().flatten() for code in range(data.num_groups)]
    gradients = torch.stack([MeanLoss(model, data, index).gradient() for index in members])
    return gradients, torch.tensor(
        [len(index) / len(data) for index in members], dtype=torch.float64
    )


@pytest.mark.parametrize("sizes", [(30, 30), (40, 20), (55, 5)])
@pytest.mark.parametrize("seed", range(3))
def test_two_groups_have_norms_as_the_inverse_of_their_sizes(sizes, seed):
    """Softmax regressions at the optimum: ||g_a|| / ||g_b|| = |D_b| / |D_a|, an equality, so a test
    of the code."""
    data = random_data(seed, sizes=sizes)
    norms = group_gradients(_minimized(nn.Linear(3, 3).double(), data), data)["norm"]
    assert norms.min() > 1e-3
    assert norms.iloc[0] / norms.iloc[1] == pytest.approx(sizes[1] / sizes[0], rel=1e-5)


def test_two_groups_of_a_network():
    """Stationarity is all that it takes, convexity is not needed."""
    data = random_data(1, inputs=2, classes=2, sizes=(60, 20))
    model = _minimized(smooth_model(1, inputs=2, hidden=2, classes=2, scale=0.5), data)
    norms = group_gradients(model, data)["norm"]
    assert norms.min() > 1e-3
    assert norms.iloc[0] / norms.iloc[1] == pytest.approx(20 / 60, rel=1e-5)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(1, 40), st.floats(0, 1)), min_size=2, max_size=5))
def test_what_holds_for_any_number_of_groups(groups):
    """The weighted sum is zero; so no group's weighted norm exceeds the sum of the others', and a
    group of half of the samples or more has no larger norm than the largest among the others."""
    sizes, positives = [n for n, _ in groups], [round(n * share) for n, share in groups]
    assume(0 < sum(positives) < sum(sizes))
    data, model = _counted(sizes, positives), Bias()
    rate = sum(positives) / sum(sizes)
    model.bias.data = torch.tensor([1 - rate, rate], dtype=torch.float64).log()
    gradients, shares = _vectors(model, data)
    assert float((shares[:, None] * gradients).sum(0).norm()) < 1e-8
    norms = gradients.norm(dim=1)
    for a in range(len(groups)):
        others = [b for b in range(len(groups)) if b != a]
        assert shares[a] * norms[a] <= (shares * norms)[others].sum() + 1e-12
        assert shares[a] < 0.5 or norms[a] <= norms[others].max() + 1e-12


def test_the_weighted_sum_of_three_groups_of_a_regression():
    data = random_data(4, sizes=(30, 20, 10))
    gradients, shares = _vectors(_minimized(nn.Linear(3, 3).double(), data), data)
    assert float((shares[:, None] * gradients).sum(0).norm()) < 1e-8
    assert gradients.norm(dim=1).min() > 1e-3


def test_three_groups_counterexample():
    """Proposition 1 as printed: the smaller group has the larger norm. Here the largest has a
    larger one than the middle one. The optimum predicts the pooled rate .29, and g_a = .29 - (rate
    of a) in the logit."""
    data = _counted((50, 30, 20), (5, 6, 18))
    model = _minimized(Bias(), data)
    norms = (
        group_gradients(model, data)["norm"] / 2**0.5
    )  # Both outputs have the logit's derivative, up to the sign.
    assert norms.tolist() == pytest.approx([0.19, 0.09, 0.61], abs=1e-7)
    assert norms.iloc[0] > norms.iloc[1]


def test_weight_decay_counterexample():
    """Two groups and weight decay: the weighted gradients sum to -decay * theta, and the larger
    group may have the larger norm."""
    data, decay = _counted((60, 40), (59, 36)), 0.5
    model = _minimized(Bias(), data, decay)
    gradients, shares = _vectors(model, data)
    expected = -decay * model.bias.detach()
    assert torch.allclose((shares[:, None] * gradients).sum(0), expected, atol=1e-8)
    norms = gradients.norm(dim=1)
    assert norms[0] > norms[1] + 0.05


def test_groups_of_one_distribution_are_not_told_apart():
    """Acceptance test 2: at the optimum of the population the true gradients of all groups are
    zero.

    Over repetitions the interval of the debiased square contains zero for every group. That of the
    mean of the norms of mini-batch gradients, as published, does not, and the smaller the group the
    larger it is."""
    generator = np.random.default_rng(5)
    weights, sizes, n = np.array([[0.0, 0.0], [1.0, -0.5], [-1.0, 0.7]]), (200, 60, 20), 280
    model = nn.Linear(2, 3).double()
    model.weight.data, model.bias.data = torch.tensor(weights), torch.zeros(3, dtype=torch.float64)
    debiased, naive = [], []
    for _ in range(25):
        inputs = generator.normal(size=(n, 2))
        noise = generator.gumbel(size=(n, 3))  # Labels drawn from this very model.
        targets = (inputs @ weights.T + noise).argmax(1)
        data = fairlib.GroupedDataset(
            inputs, targets, np.repeat([0, 1, 2], sizes), target_names=["0", "1", "2"]
        )
        debiased.append(group_gradients(model, data)["debiased_square"])
        batches = [data.subset(part) for part in np.split(generator.permutation(n), 4)]
        naive.append(
            np.nanmean([group_gradients(model, batch)["norm"] for batch in batches], axis=0)
        )
    debiased, naive = np.array(debiased), np.array(naive)
    for group in range(3):
        interval = t_interval(debiased[:, group], level=0.99)
        assert interval.low < 0 < interval.high
        assert t_interval(naive[:, group], level=0.99).low > 0.05
    for one, other in [(0, 1), (1, 2)]:
        assert t_interval(naive[:, other] - naive[:, one], level=0.99).low > 0.05


@pytest.mark.slow
def test_at_the_optimum_of_the_sample_the_debiased_square_is_below_zero():
    """A fit to the same samples pulls the groups' gradients below their noise, by tr Sigma / |D| in
    expectation.

    The gradient of a group is the pooled rate minus its own, of variance rate (1 - rate) (1 / |D_a|
    - 1 / |D|)."""
    generator, rate, n = np.random.default_rng(6), 0.3, 200
    debiased = []
    for _ in range(40):
        targets = (generator.random(n) < rate).astype(int)
        data, model = (
            fairlib.GroupedDataset(np.zeros((n, 1)), targets, np.repeat([0, 1], [170, 30])),
            Bias(),
        )
        model.bias.data = torch.tensor([1 - targets.mean(), targets.mean()]).double().log()
        debiased.append(group_gradients(model, data)["debiased_square"])
    for group in range(2):
        interval = t_interval(np.array(debiased)[:, group], level=0.99)
        assert interval.low < -2 * rate * (1 - rate) / n < interval.high
    assert t_interval(np.array(debiased)[:, 0], level=0.99).high < 0
