from __future__ import annotations

import pytest
import torch

import fairlib
from fairlib.linearization import count
from fairlib.linearization.snl import Lasso, snl
from fairlib.network import gates
from fairlib.training import Batch

QUICK = {"epochs": 60, "lr": 0.02, "batch_size": 40}


@pytest.fixture
def learn(gated, images, objective):
    def run(relus, model=gated, train=QUICK, **settings):
        settings = {"penalty": 1e-2} | settings
        return snl(model, relus=relus, data=images, objective=objective, train=train, **settings)

    return run


def test_the_loss_has_the_lasso_and_its_gradient_reaches_the_gates(gated, images, objective):
    gates.relax(gated)
    for one in gates.gates(gated).values():
        one.alpha.data.uniform_(-1, 1, generator=torch.Generator().manual_seed(0))
    run = Lasso(penalty=0.3, growth=1.1, patience=5).start(gated, images, objective)
    losses = torch.rand(10, requires_grad=True)
    loss = run.loss(Batch(None, None, None, None, losses))
    norm = sum(one.alpha.abs().sum().item() for one in gates.gates(gated).values())
    assert loss.item() == pytest.approx(losses.mean().item() + 0.3 * norm, rel=1e-5)
    loss.backward()
    for one in gates.gates(gated).values():
        assert torch.allclose(one.alpha.grad, 0.3 * one.alpha.sign())


@pytest.mark.slow
def test_the_penalty_grows_when_no_relu_was_lost_and_the_phase_ends_with_the_budget(learn):
    linear = learn(700, train=QUICK | {"lr": 0.005}, penalty=1e-3)
    history = fairlib.history(linear)
    assert (history["relus"].iloc[:-1] > 700).all() and history["relus"].iloc[-1] <= 700
    assert count(linear).attrs["total"] == history["relus"].iloc[-1]
    penalty, lowest = 1e-3, 2304
    for epoch, row in history.iterrows():
        assert row["penalty"] == pytest.approx(penalty)
        if row["relus"] < lowest:
            lowest = row["relus"]
        elif epoch >= 5:
            penalty *= 1.1
    assert penalty > 1e-3


def test_gates_become_binary_buffers_and_stay_through_a_training(learn, images):
    linear = learn(500)
    assert count(linear).attrs["total"] <= 500
    assert not any("alpha" in name for name, _ in linear.named_parameters())
    assert {name for name in linear.state_dict() if name.endswith("keep")} == {
        f"{n}.keep" for n in gates.gates(linear)
    }
    tuned = fairlib.fit(linear, images, epochs=3, weight_decay=0.1)
    assert all(
        torch.equal(mask, gates.read_gates(linear)[name])
        for name, mask in gates.read_gates(tuned).items()
    )


@pytest.mark.slow
def test_a_smaller_budget_goes_the_same_way_further(learn):
    slow = QUICK | {"lr": 0.005}
    large, small = (fairlib.history(learn(relus, train=slow)) for relus in (1800, 300))
    assert len(large) < len(small)
    assert large["relus"].tolist() == small["relus"].iloc[: len(large)].tolist()
    assert large["loss"].tolist() == small["loss"].iloc[: len(large)].tolist()


def test_an_exact_budget_keeps_the_largest_alphas(learn):
    linear, loose = learn(500, exact=True), learn(500)
    assert count(linear).attrs["total"] == 500 >= count(loose).attrs["total"]
    assert all(
        not (mask & ~gates.read_gates(linear)[name]).any()
        for name, mask in gates.read_gates(loose).items()
    )


def test_a_linearized_model_goes_on_from_the_relus_that_it_has(learn):
    first = learn(800)
    second = learn(300, model=first)
    assert count(second).attrs["total"] <= 300
    assert all(
        not (mask & ~gates.read_gates(first)[name]).any()
        for name, mask in gates.read_gates(second).items()
    )


def test_a_budget_that_is_not_reached_is_an_error_unless_it_is_exact(learn):
    with pytest.raises(
        RuntimeError, match="2304 ReLUs left after 1 epochs, more than the 100 asked for"
    ):
        learn(100, train=QUICK | {"epochs": 1})
    assert count(learn(100, train=QUICK | {"epochs": 1}, exact=True)).attrs["total"] == 100


@pytest.mark.parametrize(
    ("name", "value"),
    [("penalty", 0), ("growth", 1), ("patience", -1)],
)
def test_settings_out_of_range(learn, name, value):
    with pytest.raises(ValueError, match=f"{name} must lie in"):
        learn(100, **{name: value})
