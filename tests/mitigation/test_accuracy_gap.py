import numpy as np
import pytest
import torch
from constrained import batch_of, linear, opposed, plain

import fairlib
from fairlib.studies import RunSettings

DATA, SIZES = opposed(), np.array([40, 15, 5])


def by_hand(model, batches, reference, settings):
    """Multipliers by lists and loops."""
    lists, multipliers = [[], [], []], np.zeros(3)
    for index in batches:
        batch = batch_of(model, DATA, index)
        right = (batch.logits.argmax(1) == batch.targets).numpy()
        for code in range(3):
            lists[code] += right[batch.groups.numpy() == code].tolist()
        known = np.array([bool(entries) for entries in lists])
        drops = np.array(
            [
                r - np.mean(entries[-settings.memory :] or [0])
                for r, entries in zip(reference, lists, strict=True)
            ]
        )
        shares = SIZES * known / (SIZES * known).sum()
        psi = np.where(known, drops - shares @ drops, 0)
        after = np.maximum(multipliers + settings.step * (psi - settings.tolerance), 0)
        if settings.restart:
            after *= psi > settings.tolerance
        here = np.isin(np.arange(3), batch.groups.numpy())
        multipliers = np.where(here, after, multipliers)
    return multipliers, psi


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("memory", [3, 100])
def test_multipliers_follow_the_remembered_accuracies(memory, restart):
    model = linear()
    reference = (0.9, 0.7, 0.4)
    settings = fairlib.AccuracyGap(step=0.5, memory=memory, restart=restart, reference=reference)
    run = settings.start(model, DATA, plain)
    order = np.random.default_rng(1).permutation(60)
    batches = [order[start : start + 7] for start in range(0, 60, 7)]
    for index in batches:
        run.loss(batch_of(model, DATA, index))
    multipliers, psi = by_hand(model, batches, reference, settings)
    reported = run.end_epoch()
    for code, name in enumerate(DATA.group_names):
        assert reported[f"multiplier[{name}]"] == pytest.approx(multipliers[code], abs=1e-6)
        assert reported[f"violation[{name}]"] == pytest.approx(psi[code] - 0.01, abs=1e-6)


def test_the_loss_stands_for_the_accuracy_in_the_gradient():
    model = linear()
    run = fairlib.AccuracyGap().start(model, DATA, plain)
    run.multipliers = torch.tensor([0.1, 0.2, 0.7])
    found = torch.autograd.grad(run.loss(batch_of(model, DATA)), model.weight)[0]
    losses = batch_of(model, DATA).losses
    gaps = [losses[DATA.groups == code].mean() - losses.mean() for code in range(3)]
    expected = torch.autograd.grad(
        losses.mean() + 0.1 * gaps[0] + 0.2 * gaps[1] + 0.7 * gaps[2], model.weight
    )[0]
    torch.testing.assert_close(found, expected)


def test_the_reference_of_a_model():
    model = linear()
    right = (model(DATA.inputs).argmax(1) == DATA.targets).double().numpy()
    expected = [right[DATA.groups.numpy() == code].mean() for code in range(3)]
    assert fairlib.AccuracyGap().relative_to(model, DATA).reference == pytest.approx(expected)


def test_fit_narrows_the_gap():
    gaps = []
    for constraint in (None, fairlib.AccuracyGap(step=0.05, memory=20)):
        trained = fairlib.fit(
            linear(), DATA, epochs=60, lr=0.1, batch_size=20, constraint=constraint
        )
        right = (trained(DATA.inputs).argmax(1) == DATA.targets).double().numpy()
        gaps.append(right.mean() - right[DATA.groups.numpy() == 2].mean())
    assert gaps[1] < gaps[0] - 0.3


@pytest.mark.slow
def test_a_study_takes_the_dense_model_for_the_reference(monkeypatch):
    seen = []
    original = fairlib.AccuracyGap.relative_to

    def spy(self, model, data):
        seen.append(original(self, model, data))
        return seen[-1]

    monkeypatch.setattr(fairlib.AccuracyGap, "relative_to", spy)
    table = fairlib.study(
        "digits", "cnn", "prune:magnitude", [0.9], mitigation="accuracy-gap", when=["after", "before"], seeds=[0],
        train={"epochs": 10}, finetune={"epochs": 1}, run=RunSettings(cache=None),
    )  # fmt: skip
    dense = table[
        (table["stage"] == "dense") & (table["split"] == "train") & (table["when"] == "after")
    ]
    assert len(seen) == 1  # For the control and the pruned one after, none before.
    for constraint in seen:
        assert constraint.reference == pytest.approx(dense["accuracy"].tolist())


def test_errors():
    for settings, message in (
        ({"step": 0}, "step must lie"),
        ({"memory": 0}, "memory must"),
        ({"tolerance": -1}, "tolerance must"),
        ({"reference": (0.5, 1.5)}, r"reference must hold accuracies in \[0, 1\]"),
    ):
        with pytest.raises(ValueError, match=message):
            fairlib.AccuracyGap(**settings)
    with pytest.raises(ValueError, match="2 reference accuracies for 3 groups"):
        fairlib.fit(linear(), DATA, constraint=fairlib.AccuracyGap(reference=(0.5, 0.5)))
    one = fairlib.GroupedDataset(DATA.inputs, DATA.targets, np.zeros(60, dtype=int))
    with pytest.raises(ValueError, match="an accuracy gap needs at least two groups"):
        fairlib.fit(linear(), one, constraint=fairlib.AccuracyGap())
