from __future__ import annotations

import numpy as np
import pytest
import torch
from constrained import batch_of, linear, losses_by_group, opposed, plain
from torch import nn

import fairlib
from fairlib.training.distillation import Distillation

DATA, SIZES = opposed(), np.array([40, 15, 5])
REFERENCES = {
    "all": lambda means: np.full(3, SIZES @ means / 60),
    "groups": lambda means: np.full(3, means.mean()),
    "others": lambda means: (SIZES @ means - SIZES * means) / (60 - SIZES),
}
VIOLATIONS = {
    "absolute": np.abs,
    "signed": lambda gaps: gaps,
    "one-sided": lambda gaps: gaps,
}


@pytest.mark.parametrize("population", REFERENCES)
@pytest.mark.parametrize("violation", VIOLATIONS)
def test_dual_update_is_step_times_the_full_set_violation(population, violation):
    """Acceptance test 6 of the methods' specification."""
    model = linear()
    run = fairlib.EqualLoss(step=0.3, violation=violation, population=population).start(
        model, DATA, plain
    )
    reported = run.end_epoch()
    means = losses_by_group(model, DATA)
    expected = VIOLATIONS[violation](means - REFERENCES[population](means))
    floor = 0 if violation == "one-sided" else -np.inf
    for value, name in zip(expected, DATA.group_names, strict=True):
        assert reported[f"violation[{name}]"] == pytest.approx(value, rel=1e-6)
        assert reported[f"multiplier[{name}]"] == pytest.approx(max(0.3 * value, floor), rel=1e-6)
    again = run.end_epoch()["multiplier[2]"]
    assert again == pytest.approx(max(2 * 0.3 * expected[2], floor), rel=1e-6)


@pytest.mark.parametrize("population", REFERENCES)
@pytest.mark.parametrize("violation", VIOLATIONS)
def test_penalty_is_live_and_zero_at_first(population, violation):
    model = linear()
    run = fairlib.EqualLoss(step=1.0, violation=violation, population=population).start(
        model, DATA, plain
    )
    ordinary = torch.autograd.grad(batch_of(model, DATA).losses.mean(), model.weight)[0]
    first = torch.autograd.grad(run.loss(batch_of(model, DATA)), model.weight)[0]
    assert torch.equal(ordinary, first)
    run.end_epoch()
    assert run.multipliers.any()
    later = torch.autograd.grad(run.loss(batch_of(model, DATA)), model.weight)[0]
    losses = batch_of(model, DATA).losses
    means = torch.stack([losses[DATA.groups == code].mean() for code in range(3)])
    sizes = torch.tensor(SIZES)
    reference = {
        "all": losses.mean(),
        "groups": means.mean(),
        "others": (losses.sum() - sizes * means) / (60 - sizes),
    }[population]
    gaps = means - reference
    by_hand = (
        losses.mean()
        + (run.multipliers.double() * (gaps.abs() if violation == "absolute" else gaps)).sum()
    )
    torch.testing.assert_close(later, torch.autograd.grad(by_hand, model.weight)[0])
    assert not torch.allclose(ordinary, later)


def test_an_absolute_violation_is_pushed_the_way_of_the_batch():
    """In these batches the gaps are on the other side than in the training set, which the
    multipliers follow."""
    model = linear()
    flipped = fairlib.GroupedDataset(DATA.inputs, 1 - DATA.targets, DATA.groups)
    run = fairlib.EqualLoss(step=1.0).start(model, DATA, plain)
    run.end_epoch()
    ordinary = torch.autograd.grad(batch_of(model, flipped).losses.mean(), model.weight)[0]
    found = torch.autograd.grad(run.loss(batch_of(model, flipped)), model.weight)[0] - ordinary
    losses = batch_of(model, flipped).losses
    gaps = torch.stack([losses[DATA.groups == code].mean() for code in range(3)]) - losses.mean()
    full = losses_by_group(model, DATA)
    assert (np.sign(gaps.detach().numpy()) == -np.sign(full - full @ SIZES / 60)).all()
    expected = torch.autograd.grad((run.multipliers.double() * gaps.abs()).sum(), model.weight)[0]
    torch.testing.assert_close(found, expected)


def test_dual_of_batches_is_the_mean_over_those_that_had_the_group():
    model = linear()
    run = fairlib.EqualLoss(step=1.0, dual="batch").start(model, DATA, plain)
    batches = [torch.arange(start, start + 6) for start in range(0, 60, 6)]
    violations = []
    for index in batches:
        run.loss(batch_of(model, DATA, index))
        means = losses_by_group(model, DATA, index)
        violations.append(
            np.abs(means - batch_of(model, DATA, index).losses.detach().numpy().mean())
        )
    assert np.isnan(violations).any()  # Some batch lacks some group.
    np.testing.assert_allclose(
        list(run.end_epoch().values())[3:], np.nanmean(violations, axis=0), rtol=1e-5
    )
    assert not any(list(run.end_epoch().values())[:3])  # Nothing was met since.


@pytest.mark.parametrize("settings", [{}, {"dual": "batch"}])
def test_a_group_absent_from_a_batch_adds_nothing(settings):
    model = linear()
    run = fairlib.EqualLoss(step=1.0, **settings).start(model, DATA, plain)
    run.multipliers += 1.0
    alone = batch_of(model, DATA, (DATA.groups == 0).nonzero().flatten())
    assert run.loss(alone).item() == pytest.approx(alone.losses.mean().item())
    assert torch.isfinite(torch.autograd.grad(run.loss(alone), model.weight)[0]).all()
    assert np.isfinite(list(run.end_epoch().values())).all()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"violation": "one-sided", "population": "others"},
        {"violation": "signed", "population": "groups"},
        {"dual": "batch"},
    ],
)
def test_fit_narrows_the_gap_and_reports_it(settings):
    gaps = []
    for constraint in (None, fairlib.EqualLoss(**({"step": 0.1} | settings))):
        trained = fairlib.fit(
            linear(), DATA, epochs=40, lr=0.1, batch_size=20, constraint=constraint
        )
        gaps.append(np.ptp(losses_by_group(trained, DATA)))
    assert gaps[1] < 0.5 * gaps[0]
    curves = fairlib.history(trained)
    assert {"objective", "violation[0]", "multiplier[1]"} <= set(curves)
    if "violation" not in settings:
        assert curves["multiplier[1]"].is_monotonic_increasing


def test_the_training_set_is_measured_anew_after_each_epoch():
    model = linear()
    run = fairlib.EqualLoss(step=1.0).start(model, DATA, plain)
    run.end_epoch()
    with torch.no_grad():
        model.weight.neg_()
        model.bias.neg_()
    after = losses_by_group(model, DATA)
    expected = np.abs(after - after @ SIZES / 60)
    assert list(run.end_epoch().values())[:3] == pytest.approx(expected.tolist(), rel=1e-6)


def test_the_training_set_is_seen_in_eval_mode_and_by_the_objective_of_the_training():
    net = nn.Sequential(
        nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.9), nn.Linear(8, 2)
    ).double()
    net.train()

    def doubled(inputs, logits, targets):
        return 2 * plain(inputs, logits, targets)

    run = fairlib.EqualLoss(step=1.0).start(net, DATA, doubled)
    found = list(run.end_epoch().values())[:3]
    assert net.training and net[1].num_batches_tracked == 0
    means = 2 * losses_by_group(net.eval(), DATA)
    assert found == pytest.approx(np.abs(means - SIZES @ means / 60), rel=1e-6)


@pytest.mark.parametrize(
    "settings", [{"violation": "one-sided", "tolerance": 0.1}, {"dual": "batch"}, {}]
)
def test_a_group_without_members_has_no_violation(settings):
    data = fairlib.GroupedDataset(
        DATA.inputs, DATA.targets, np.where(DATA.groups == 2, 3, DATA.groups)
    )
    model = linear()
    run = fairlib.EqualLoss(step=1.0, **settings).start(model, data, plain)
    run.loss(batch_of(model, data))
    reported = run.end_epoch()
    assert reported["violation[2]"] == reported["multiplier[2]"] == 0
    assert max(reported[f"multiplier[{name}]"] for name in "013") > 0


def test_a_step_that_is_too_large_is_stopped_with_the_multipliers_in_the_message():
    net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))
    with pytest.raises(
        fairlib.DivergenceError, match=r"multiplier\[2\] .*lower lr .* or the strength of EqualLoss"
    ):
        fairlib.fit(net, DATA, epochs=20, lr=1.0, constraint=fairlib.EqualLoss(step=1e9))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"step": 0}, r"step must lie in \(0, inf\), got 0"),
        ({"dual": "epoch"}, "unknown estimate 'epoch'; known: full, batch"),
    ],
)
def test_errors(settings, message):
    with pytest.raises(ValueError, match=message):
        fairlib.EqualLoss(**settings)


def test_one_group_is_an_error():
    one = fairlib.GroupedDataset(DATA.inputs, DATA.targets, np.zeros(60, dtype=int))
    with pytest.raises(
        ValueError, match="equal losses needs at least two groups with members, got only: 0"
    ):
        fairlib.fit(nn.Linear(3, 2), one, constraint=fairlib.EqualLoss(step=0.1))


def _published(step: float = 1.0):
    """A run of what the released code of [D] does, its student and its teacher's losses averaged
    over elements."""
    teacher = fairlib.fit(linear(), DATA, epochs=20, lr=0.1)
    objective = Distillation(teacher, DATA)
    run = fairlib.EqualLoss(step=step, as_published=True).start(linear(), DATA, objective)
    return run, Distillation(teacher, DATA, reduction="elements"), objective


def test_the_published_penalty_has_no_gradient_and_its_divergence_is_divided_by_the_classes():
    run, elements, _ = _published()
    model = linear()
    batch = batch_of(model, DATA)
    reference = elements(batch.inputs, batch.logits, batch.targets).mean()
    expected = torch.autograd.grad(reference, model.weight, retain_graph=True)[0]
    for multipliers in (0.0, 50.0):
        run.multipliers.fill_(multipliers)
        loss = run.loss(batch)
        gradient = torch.autograd.grad(loss, model.weight, retain_graph=True)[0]
        assert torch.allclose(gradient, expected, atol=1e-7)
        assert (loss > reference + 1e-3) == bool(multipliers)
    live = fairlib.EqualLoss().start(model, DATA, _published()[2])
    live.multipliers.fill_(50.0)
    gradient = torch.autograd.grad(live.loss(batch), model.weight)[0]
    assert not torch.allclose(gradient, expected, rtol=0.1)


def test_the_published_multipliers_follow_the_sum_over_batches_without_single_samples():
    run, elements, _ = _published(step=0.5)
    model = linear()
    whole = batch_of(model, DATA)
    total = torch.zeros(3)
    for index in (
        torch.arange(0, 30),
        torch.arange(30, 56),
    ):  # The last has a single sample of the third group.
        batch = type(whole)(*(value[index] for value in vars(whole).values()))
        losses = elements(batch.inputs, batch.logits, batch.targets).detach()
        run.loss(batch)
        for code in range(3):
            members = losses[batch.groups == code]
            if len(members) > 1:
                total[code] += (members.mean() - losses.mean()).abs()
    seen = run.end_epoch()
    assert [seen[f"multiplier[{name}]"] for name in DATA.group_names] == pytest.approx(
        (0.5 * total).tolist(), rel=1e-5
    )


def test_the_published_code_has_no_other_settings():
    with pytest.raises(ValueError, match="as_published=True has no violation, dual"):
        fairlib.EqualLoss(violation="signed", dual="batch", as_published=True)
