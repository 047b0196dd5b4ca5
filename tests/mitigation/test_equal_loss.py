from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import fairlib
from fairlib.groups import group_means
from fairlib.training import Batch


def _plain(inputs, logits, targets):
    return cross_entropy(logits, targets, reduction="none")


def _data() -> fairlib.GroupedDataset:
    """Group 1, a sixth of the samples, has the opposite labels."""
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(60, 3))
    groups = (np.arange(60) % 6 == 0).astype(int)
    return fairlib.GroupedDataset(inputs, ((inputs[:, 0] > 0) ^ (groups == 1)).astype(int), groups)


def _batch(model: nn.Module, data: fairlib.GroupedDataset) -> Batch:
    logits = model(data.inputs)
    return Batch(data.inputs, data.targets, data.groups, logits, _plain(None, logits, data.targets))


def test_dual_update_is_step_times_the_full_set_violation():
    """Acceptance test 6 of the methods' specification."""
    data, model = _data(), nn.Linear(3, 2).double()
    run = fairlib.EqualLoss(step=0.3).start(model, data, _plain)
    reported = run.end_epoch()
    losses = _plain(None, model(data.inputs), data.targets).detach().numpy()
    for code, name in enumerate(data.group_names):
        violation = abs(losses[data.groups.numpy() == code].mean() - losses.mean())
        assert reported[f"violation[{name}]"] == pytest.approx(violation, rel=1e-6)
        assert reported[f"multiplier[{name}]"] == pytest.approx(0.3 * violation, rel=1e-6)
    assert run.end_epoch()["multiplier[1]"] == pytest.approx(2 * reported["multiplier[1]"], rel=1e-6)


def test_penalty_is_live_and_zero_at_first():
    data, model = _data(), nn.Linear(3, 2).double()
    run = fairlib.EqualLoss(step=1.0).start(model, data, _plain)
    plain = torch.autograd.grad(_batch(model, data).losses.mean(), model.weight)[0]
    first = torch.autograd.grad(run.loss(_batch(model, data)), model.weight)[0]
    assert torch.equal(plain, first)
    run.end_epoch()
    later = torch.autograd.grad(run.loss(_batch(model, data)), model.weight)[0]
    means = [_batch(model, data.group(g)).losses.mean() for g in (0, 1)]
    total = _batch(model, data).losses.mean()
    by_hand = total + sum(m.detach() * (x - total).abs() for m, x in zip(run.multipliers.double(), means, strict=True))
    expected = torch.autograd.grad(by_hand, model.weight)[0]
    torch.testing.assert_close(later, expected)
    assert not torch.allclose(plain, later)


def test_a_group_absent_from_a_batch_adds_nothing():
    data, model = _data(), nn.Linear(3, 2).double()
    run = fairlib.EqualLoss(step=1.0).start(model, data, _plain)
    run.end_epoch()
    alone = _batch(model, data.group(0))
    assert run.loss(alone).item() == pytest.approx(alone.losses.mean().item())
    assert torch.isfinite(torch.autograd.grad(run.loss(alone), model.weight)[0]).all()


def test_fit_narrows_the_gap_and_reports_it():
    data = _data()
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    gaps = []
    for constraint in (None, fairlib.EqualLoss(step=0.1)):
        trained = fairlib.fit(model, data, epochs=30, lr=0.1, batch_size=20, constraint=constraint)
        means, _ = group_means(_batch(trained, data).losses, data.groups, 2)
        gaps.append(float((means[0] - means[1]).abs().detach()))
    assert gaps[1] < 0.3 * gaps[0]
    curves = fairlib.history(trained)
    assert {"objective", "violation[0]", "multiplier[1]"} <= set(curves)
    assert curves["multiplier[1]"].is_monotonic_increasing


def test_bad_input():
    with pytest.raises(ValueError, match=r"step must lie in \(0, inf\), got 0"):
        fairlib.EqualLoss(step=0)
    data = _data()
    one = fairlib.GroupedDataset(data.inputs, data.targets, np.zeros(60, dtype=int))
    with pytest.raises(ValueError, match="at least two groups"):
        fairlib.fit(nn.Linear(3, 2), one, constraint=fairlib.EqualLoss(step=0.1))
