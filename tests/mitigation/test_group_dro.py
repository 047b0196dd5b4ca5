import numpy as np
import pytest
import torch
from constrained import batch_of, linear, losses_by_group, opposed, plain
from scipy.optimize import minimize

import fairlib
from fairlib.training import Batch

DATA = opposed()


def test_weights_and_loss_by_hand():
    model, q = linear(), np.full(3, 1 / 3)
    run = fairlib.GroupDRO(step=0.5).start(model, DATA, plain)
    for index in (np.arange(60), np.arange(20), np.flatnonzero(DATA.groups.numpy() < 2)):
        losses = np.nan_to_num(losses_by_group(model, DATA, index))
        q = q * np.exp(0.5 * losses)
        q /= q.sum()
        assert run.loss(batch_of(model, DATA, index)).item() == pytest.approx(q @ losses, rel=1e-5)
    reported = run.end_epoch()
    assert [reported[f"weight[{name}]"] for name in DATA.group_names] == pytest.approx(q, rel=1e-5)


def test_the_gradient_is_that_of_the_weighted_losses():
    model = linear()
    run = fairlib.GroupDRO(step=1.0).start(model, DATA, plain)
    found = torch.autograd.grad(run.loss(batch_of(model, DATA)), model.weight)[0]
    losses = batch_of(model, DATA).losses
    by_hand = sum(q * losses[DATA.groups == code].mean() for code, q in enumerate(run.logs.exp()))
    torch.testing.assert_close(found, torch.autograd.grad(by_hand, model.weight)[0])


def test_a_weight_that_has_all_but_vanished_rises_again():
    model = linear()
    run = fairlib.GroupDRO(step=1.0).start(model, DATA, plain)
    batch = batch_of(model, DATA)
    for worst in [1] * 2000 + [0] * 2100:
        losses = torch.where(DATA.groups == worst, 1.0, 0.0)
        run.loss(Batch(batch.inputs, batch.targets, batch.groups, batch.logits, losses))
    assert run.end_epoch()["weight[0]"] > 0.99


def test_it_nears_the_least_worst_loss():
    """Against SLSQP on the epigraph: the least t with every group's loss at most t."""
    trained = fairlib.fit(
        linear(),
        DATA,
        epochs=600,
        lr=0.05,
        batch_size=60,
        momentum=0,
        weight_decay=0,
        constraint=fairlib.GroupDRO(step=0.05),
    )

    def losses(x):
        model = linear()
        with torch.no_grad():
            model.weight.copy_(torch.tensor(x[:6]).view(2, 3))
            model.bias.copy_(torch.tensor(x[6:8]))
        return losses_by_group(model, DATA)

    constraint = {"type": "ineq", "fun": lambda x: x[8] - losses(x)}
    best = minimize(
        lambda x: x[8],
        np.append(np.zeros(8), 1.0),
        constraints=constraint,
        options={"maxiter": 500},
    ).fun
    plainly = fairlib.fit(
        linear(), DATA, epochs=600, lr=0.05, batch_size=60, momentum=0, weight_decay=0
    )
    assert (
        best - 1e-3
        < losses_by_group(trained, DATA).max()
        < best + 0.03
        < losses_by_group(plainly, DATA).max()
    )


def test_errors():
    with pytest.raises(ValueError, match="step must lie"):
        fairlib.GroupDRO(step=0)
    one = fairlib.GroupedDataset(DATA.inputs, DATA.targets, np.zeros(60, dtype=int))
    with pytest.raises(ValueError, match="group DRO needs at least two groups"):
        fairlib.fit(linear(), one, constraint=fairlib.GroupDRO())
