from __future__ import annotations

import pytest
import torch
from constrained import batch_of, linear, opposed, plain

import fairlib
from fairlib.diagnostics import group_performance
from fairlib.training.group_losses import margins


def test_the_loss_is_the_mean_loss_and_the_weighted_penalty():
    data, model = opposed(), linear()
    batch = batch_of(model, data)
    run = fairlib.EqualAccuracy(3.0).start(model, data, plain)
    estimates = torch.sigmoid(margins(batch.logits, batch.targets))
    accuracy = [estimates[batch.groups == code].mean().item() for code in range(3)]
    gap = max(accuracy) - min(accuracy)
    assert run.loss(batch).item() == pytest.approx(batch.losses.mean().item() + 3 * gap)
    assert run.end_epoch() == {"penalty": pytest.approx(3 * gap)}


def test_it_narrows_the_gap_between_groups():
    """Labels of the smallest group are turned around, so no linear model is right about all."""
    data = opposed()

    def gap(model):
        accuracy = group_performance(model, data)["accuracy"]
        return accuracy.max() - accuracy.min()

    plain_gap = gap(fairlib.fit(linear(), data, epochs=20, lr=0.5))
    fair_gap = gap(
        fairlib.fit(linear(), data, epochs=20, lr=0.5, constraint=fairlib.EqualAccuracy(5.0))
    )
    assert fair_gap < plain_gap - 0.3


def test_one_group_is_refused():
    data = opposed()
    alone = data.subset((data.groups == 0).nonzero().flatten())
    with pytest.raises(ValueError, match="equal accuracy needs at least two groups"):
        fairlib.fit(linear(), alone, epochs=1, constraint=fairlib.EqualAccuracy())
