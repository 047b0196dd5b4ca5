"""The penalty's gradient against dense Hessians, differentiated through ``eigvalsh``."""

import copy
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

import fairlib
from fairlib.diagnostics.objective import MeanLoss
from fairlib.diagnostics.vectors import parts_unit
from fairlib.mitigation.eigenvalue_gradient import FrozenDifferences
from fairlib.network.evaluation import evaluation_mode
from fairlib.training import Batch, LoopSettings, Training, carry_out, loop

GENERATOR = np.random.default_rng(0)
INPUTS = GENERATOR.normal(size=(36, 4))
GROUPS = GENERATOR.permutation([0] * 18 + [1] * 12 + [2] * 6)
DATA = fairlib.GroupedDataset(INPUTS, (INPUTS[:, 0] * INPUTS[:, 1] > 0).astype(int), GROUPS)


def dot(a, b):
    return sum((x * y).sum() for x, y in zip(a, b, strict=True))


def exact(net, inputs, slope, bend, v):
    """What ``FrozenDifferences.combine`` computes, by differentiating the gradient again."""
    leaves = [weight.detach().requires_grad_() for weight in net.parameters()]
    state = dict(zip(dict(net.named_parameters()), leaves, strict=True))
    loss = cross_entropy(functional_call(net, state, (inputs,)), DATA.targets[: len(inputs)])
    graph = torch.autograd.grad(loss, leaves, create_graph=True)

    def differentiate(value):
        return torch.autograd.grad(
            value, leaves, create_graph=True, retain_graph=True, materialize_grads=True
        )

    total = slope * dot(graph, parts_unit([part.detach() for part in graph]))
    if v is None:
        return differentiate(total), None
    image = differentiate(dot(graph, v))
    return differentiate(total + bend * dot(image, v)), image


@cache
def network(activation, dtype=torch.float64):
    """Trained a little; ``fit`` and the constraint leave it as it is."""
    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Linear(4, 5), activation(), nn.Linear(5, 4), activation(), nn.Linear(4, 2)
    ).to(dtype)
    return fairlib.fit(net, DATA, epochs=5, lr=0.1, batch_size=12)


def batch_of(net, data=DATA, index=slice(None)):
    inputs = data.batch(index, dtype=next(net.parameters()).dtype)
    logits = net(inputs)
    targets = data.targets[index]
    return Batch(
        inputs,
        targets,
        data.groups[index],
        logits,
        cross_entropy(logits, targets, reduction="none"),
    )


def dense(net, settings, multipliers):
    """The gradient of the penalty, by dense Hessians; and the numbers ``(2, k)``."""
    net = copy.deepcopy(net).double()
    names = [name for name, _ in net.named_parameters()]
    shapes = [weight.shape for weight in net.parameters()]
    theta = torch.cat([weight.detach().flatten() for weight in net.parameters()]).requires_grad_()

    def loss(theta, chosen):
        parts = theta.split([shape.numel() for shape in shapes])
        weights = {
            name: part.view(shape) for name, part, shape in zip(names, parts, shapes, strict=True)
        }
        return cross_entropy(
            functional_call(net, weights, (DATA.inputs[chosen].double(),)), DATA.targets[chosen]
        )

    numbers = []
    everything = [slice(None)] if settings.population == "all" else []
    for chosen in [DATA.groups == code for code in range(3)] + everything:
        (gradient,) = torch.autograd.grad(loss(theta, chosen), theta, create_graph=True)
        rows = [
            torch.autograd.grad(entry, theta, create_graph=True, retain_graph=True)[0]
            for entry in gradient
        ]
        numbers.append(torch.stack([gradient.norm(), torch.linalg.eigvalsh(torch.stack(rows))[-1]]))
    numbers = torch.stack(numbers, dim=1)
    if settings.population == "all":
        gaps = numbers[:, :3] - numbers[:, 3:]
    else:
        gaps = torch.stack([settings.gaps(row, torch.bincount(DATA.groups)) for row in numbers])
    penalty = (multipliers.double() * settings.violations(gaps)).sum()
    return torch.autograd.grad(penalty, theta)[0], numbers.detach(), penalty.item()


def flat(vector):
    return torch.cat([part.flatten() for part in vector])


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
@pytest.mark.parametrize("population", ["groups", "others", "all"])
@pytest.mark.parametrize("scale", [1.0, 1e-3])  # With the second the eigenvalues hardly count.
def test_gradient_of_the_penalty(activation, population, scale):
    net = network(activation)
    settings = fairlib.EqualCurvature(population=population)
    run = settings.start(net, DATA, None)
    run.multipliers = torch.tensor(
        [[0.3, 0.1, 0.2], [0.2 * scale, 0.4 * scale, 0.1 * scale]], dtype=torch.float64
    )
    expected, numbers, penalty = dense(net, settings, run.multipliers)
    torch.testing.assert_close(run.full.double(), numbers, rtol=1e-3, atol=0)
    for _ in range(
        30
    ):  # The eigenvectors settle; they began within the tolerance of a Lanczos process.
        value, direction = run._penalty(batch_of(net))
    found = flat(direction)
    assert torch.nn.functional.cosine_similarity(found, expected, dim=0) > 0.9999
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-3 * float(expected.abs().max()))
    assert float(value) == pytest.approx(penalty, rel=1e-3)


def test_float32_keeps_the_direction():
    net = network(nn.ReLU, torch.float32)
    settings = fairlib.EqualCurvature()
    run = settings.start(net, DATA, None)
    run.multipliers = torch.tensor([[0.3, 0.1, 0.2], [0.2, 0.4, 0.1]])
    expected, *_ = dense(net, settings, run.multipliers)
    for _ in range(30):
        _, direction = run._penalty(batch_of(net))
    assert torch.nn.functional.cosine_similarity(flat(direction).double(), expected, dim=0) > 0.999


def test_the_loss_has_the_gradient_of_loss_and_penalty():
    net = network(nn.ReLU)
    run = fairlib.EqualCurvature().start(net, DATA, None)
    plain = torch.autograd.grad(batch_of(net).losses.mean(), list(net.parameters()))
    first = torch.autograd.grad(run.loss(batch_of(net)), list(net.parameters()))
    torch.testing.assert_close(
        flat(first), flat(plain), rtol=0, atol=0
    )  # All multipliers are zero.
    run.end_epoch()
    assert run.multipliers.max() > 0
    again = copy.deepcopy(run)
    again.model = net
    _, direction = again._penalty(batch_of(net))
    total = torch.autograd.grad(run.loss(batch_of(net)), list(net.parameters()))
    torch.testing.assert_close(flat(total), flat(plain) + flat(direction))


class _Noisy(nn.Module):
    def forward(self, inputs):
        return inputs * (1 + 0.1 * torch.rand_like(inputs)) if self.training else inputs


OBJECTIVES = {
    "cross-entropy": 1.0,
    "another": 2.0,
    "same value": lambda losses: losses.detach() + 0 * losses,
}


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("within", [nn.Identity, nn.Dropout, nn.BatchNorm1d, _Noisy])
@pytest.mark.parametrize("population", ["groups", "all"])
def test_the_backward_pass_of_the_loss_is_spared_only_where_it_is_the_sum_of_the_groups(
    objective, within, population
):
    net = nn.Sequential(
        *copy.deepcopy(network(nn.ReLU)), within(*[2] * (within is nn.BatchNorm1d))
    ).double()
    net = fairlib.prune(net, "magnitude", sparsity=0.3).train()
    run = fairlib.EqualCurvature(population=population).start(net, DATA, None)
    run.end_epoch()
    again, change = copy.deepcopy(run), OBJECTIVES[objective]
    again.model = net
    for step in range(2):
        torch.manual_seed(step)
        batch = batch_of(net, index=torch.arange(30))
        losses = change(batch.losses) if callable(change) else change * batch.losses
        batch = Batch(batch.inputs, batch.targets, batch.groups, batch.logits, losses)
        plain = torch.autograd.grad(losses.mean(), list(net.parameters()), retain_graph=True)
        with evaluation_mode(net):
            _, direction = again._penalty(batch)
        loss = run.loss(batch)
        torch.testing.assert_close(
            flat(torch.autograd.grad(loss, list(net.parameters()))), flat(plain) + flat(direction)
        )
        assert float(loss.detach()) >= float(losses.mean().detach())
        assert bool(run.is_sum) == (within is nn.Identity and objective == "cross-entropy")


def test_dual_update_is_step_times_the_full_set_violation():
    net = network(nn.ReLU)
    settings = fairlib.EqualCurvature(step=0.3, eigenvalue_step=0.1)
    run = settings.start(net, DATA, None)
    reported = run.end_epoch()
    _, numbers, _ = dense(net, settings, run.multipliers)
    violations = (numbers - numbers.mean(1, keepdim=True)).abs()
    torch.testing.assert_close(
        run.multipliers.double(), violations * torch.tensor([[0.3], [0.1]]), rtol=5e-3, atol=1e-5
    )
    for code, name in enumerate(DATA.group_names):
        assert reported[f"norm violation[{name}]"] == pytest.approx(
            float(violations[0, code]), rel=5e-3, abs=1e-5
        )
        assert reported[f"eigenvalue multiplier[{name}]"] == pytest.approx(
            0.1 * float(violations[1, code]), rel=5e-3, abs=1e-5
        )


def test_an_eigenvector_that_another_one_has_overtaken_is_given_up_after_the_epoch():
    net = network(nn.ReLU)
    run = fairlib.EqualCurvature().start(net, DATA, None)
    right = run.full[1, 0].item()
    loss = MeanLoss(net, DATA, (DATA.groups == 0).nonzero().flatten())
    size = len(loss.theta)
    hessian = torch.stack([loss.product(row) for row in torch.eye(size, dtype=torch.float64)])
    second = torch.linalg.eigh(hessian).eigenvectors[:, -2]
    run.vectors[0] = list(loss.split(second).values())
    run.end_epoch()
    assert run.full[1, 0].item() == pytest.approx(right, rel=1e-3)


def test_both_ways_of_the_differences_and_a_mini_batch():
    """A ratio of the two parts below and beyond which they share their passes; against automatic
    differentiation."""
    net, index = network(nn.ReLU), torch.arange(20)
    run = fairlib.EqualCurvature().start(net, DATA, None)
    weights = [weight.detach() for weight in net.parameters()]
    gradient = run._gradient_of(DATA.inputs[index], DATA.targets[index])
    group = FrozenDifferences(gradient, weights, len(index))
    for slope, bend in ((0.3, 0.1), (30.0, 0.1), (0.3, 0.0), (0.0, 0.1)):
        for v in (run.vectors[0], None):
            direction, image = group.combine(slope, bend, v)
            expected, by_hand = exact(net, DATA.inputs[index], slope, bend, v)
            for one, other in ((direction, expected), (image, by_hand))[: 1 if v is None else 2]:
                one, other = flat(one), flat(other).detach()
                tolerance = 1e-4 * float(other.abs().max()) + 1e-12
                torch.testing.assert_close(one, other, rtol=1e-3, atol=tolerance)
        assert image is None


@pytest.mark.parametrize(
    "scale", [1.0, 20.0]
)  # With the second the loss bends over a distance of a hundredth.
def test_the_differences_in_float32_neither_lose_digits_nor_reach_too_far(scale):
    net, inputs = (
        network(nn.ReLU, torch.float32),
        scale * torch.as_tensor(INPUTS, dtype=torch.float32),
    )
    run = fairlib.EqualCurvature().start(net, DATA, None)
    weights = [weight.detach() for weight in net.parameters()]
    gradient = run._gradient_of(inputs, DATA.targets)
    _, image = exact(net, inputs, 0.0, 1.0, run.vectors[0])
    # Nearly the top eigenvector with these inputs.
    vector = parts_unit([part.detach() for part in image])
    found, _ = FrozenDifferences(gradient, weights, 36).combine(0.0, 1.0, vector)
    expected, _ = exact(net, inputs, 0.0, 1.0, vector)
    error = torch.linalg.vector_norm(flat(found) - flat(expected)) / torch.linalg.vector_norm(
        flat(expected)
    )
    assert error < 0.02


def test_eigenvalues_every_third_step_count_threefold():
    net = network(nn.ReLU)
    parts = {}
    for every in (1, 3):
        run = fairlib.EqualCurvature(every=every).start(net, DATA, None)
        run.multipliers = torch.tensor([[0.0, 0.0, 0.0], [0.2, 0.4, 0.1]])
        parts[every] = []
        for _ in range(3):
            plain = flat(torch.autograd.grad(batch_of(net).losses.mean(), list(net.parameters())))
            parts[every].append(
                flat(torch.autograd.grad(run.loss(batch_of(net)), list(net.parameters()))) - plain
            )
    assert max(part.abs().max() for part in parts[3][1:]) < 1e-15 < 1e-6 < parts[3][0].abs().max()
    torch.testing.assert_close(parts[3][0], 3 * parts[1][0], rtol=1e-6, atol=1e-9)


def test_norms_alone():
    net = network(nn.ReLU)
    both, norms = (
        fairlib.EqualCurvature(step=0.3, eigenvalue_step=e).start(net, DATA, None) for e in (0.1, 0)
    )
    for run in (both, norms):
        run.end_epoch()
    assert not norms.multipliers[1].any() and torch.equal(norms.multipliers[0], both.multipliers[0])
    both.multipliers[1] = 0
    (_, direction), (_, other) = norms._penalty(batch_of(net)), both._penalty(batch_of(net))
    assert torch.equal(flat(direction), flat(other))


def test_the_eigenvector_follows_the_batches_and_not_a_negative_eigenvalue():
    """Labels turned around: the smallest eigenvalue is larger in size than the largest one."""
    net = fairlib.fit(network(nn.Tanh), DATA, epochs=60, lr=0.2, batch_size=12)
    wrong = fairlib.GroupedDataset(INPUTS, 1 - DATA.targets, GROUPS)
    ends = fairlib.diagnostics.group_eigenvalues(net, wrong)
    assert (-ends["smallest"] > ends["largest"]).any()
    run = fairlib.EqualCurvature().start(net, wrong, None)
    run.multipliers += 0.1
    for _ in range(100):
        run._penalty(batch_of(net, wrong))
    for code, largest in enumerate(ends["largest"]):
        loss = MeanLoss(net, wrong, (wrong.groups == code).nonzero().flatten())
        vector = flat(run.vectors[code])
        assert vector @ loss.product(vector) == pytest.approx(largest, rel=1e-2)


def test_masks_that_grow_while_the_model_trains():
    seen = []

    def sparsify(model, progress):
        keep = torch.ones_like(model[0].weight, dtype=torch.bool)
        keep[: round(3 * progress)] = False
        seen.append(keep)
        return {"0.weight": keep}

    settings = fairlib.EqualCurvature(step=0.05)
    runs = []
    run = type(settings.start(network(nn.ReLU), DATA, None))
    original = run._penalty

    def spy(self, batch):
        value, direction = original(self, batch)
        runs.append((direction[0].clone(), self.model[0].weight_mask.bool()))
        return value, direction

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "_penalty", spy)
        arguments = {"epochs": 4, "batch_size": 36, "constraint": settings}
        carry_out(Training(network(nn.ReLU), DATA, arguments, LoopSettings(sparsify=sparsify)))
    assert len(runs) == 3 and not torch.equal(runs[0][1], runs[-1][1])
    assert all(not direction[~mask].any() and direction[mask].any() for direction, mask in runs)


class Twice(nn.Module):
    """One module under two names, and one weight in two modules."""

    def __init__(self):
        super().__init__()
        self.first = self.same = nn.Linear(4, 4)
        self.other, self.out = nn.Linear(4, 4), nn.Linear(4, 2)
        self.other.weight = self.first.weight

    def forward(self, inputs):
        return self.out(
            torch.relu(self.other(torch.relu(self.same(torch.relu(self.first(inputs))))))
        )


def test_shared_modules_and_weights():
    torch.manual_seed(0)
    tuned = fairlib.fit(
        Twice(), DATA, epochs=3, batch_size=12, constraint=fairlib.EqualCurvature(step=0.1)
    )
    assert tuned.first is tuned.same and tuned.other.weight is tuned.first.weight
    assert isinstance(tuned.first.weight, nn.Parameter)


def test_divergence_is_stopped_with_the_multipliers_in_the_message():
    with pytest.raises(fairlib.DivergenceError, match=r"epoch \d+ of 9 .*norm multiplier\[0\]"):
        fairlib.fit(network(nn.ReLU), DATA, epochs=9, lr=1e6, constraint=fairlib.EqualCurvature())


def test_pruned_weights_stay_zero_and_batch_statistics_alone():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    sparse = fairlib.prune(fairlib.fit(net, DATA, epochs=2), "magnitude", sparsity=0.5)
    mask = sparse[0].weight != 0
    tuned = fairlib.fit(
        sparse, DATA, epochs=3, batch_size=12, constraint=fairlib.EqualCurvature(step=0.05, every=2)
    )
    assert torch.equal(tuned[0].weight != 0, mask)
    assert tuned[1].num_batches_tracked == sparse[1].num_batches_tracked + 9
    curves = fairlib.history(tuned)
    assert curves["norm multiplier[0]"].is_monotonic_increasing and np.isfinite(curves).all(
        axis=None
    )


@pytest.mark.slow
def test_fit_narrows_norms_and_eigenvalues():
    """Where a group's labels are those of the others turned around, so that its gradient and
    curvature stay large."""
    against = ((INPUTS[:, 0] > 0) ^ (GROUPS == 2)).astype(int)
    data = fairlib.GroupedDataset(INPUTS, against, GROUPS)
    spread = []
    for constraint in (None, fairlib.EqualCurvature(step=0.02, eigenvalue_step=0.005)):
        tuned = fairlib.fit(
            network(nn.ReLU), data, epochs=40, lr=0.1, batch_size=12, constraint=constraint
        )
        norms = fairlib.diagnostics.group_gradients(tuned, data)["norm"]
        values = fairlib.diagnostics.group_eigenvalues(tuned, data)["largest"]
        spread.append((norms.max() / norms.min(), values.max() / values.min()))
    assert min(spread[0]) > 2
    assert max(spread[1]) < 1.7


def test_groups_absent_from_a_batch_and_groups_of_one():
    groups = np.array([0] * 30 + [1] * 5 + [2])
    data = fairlib.GroupedDataset(DATA.inputs, DATA.targets, groups)
    net = network(nn.ReLU)
    run = fairlib.EqualCurvature(step=0.1).start(net, data, None)
    run.end_epoch()
    before = {code: flat(vector) for code, vector in run.vectors.items()}
    loss = run.loss(batch_of(net, data, torch.arange(10)))
    assert (
        torch.isfinite(loss)
        and torch.isfinite(flat(torch.autograd.grad(loss, list(net.parameters())))).all()
    )
    same = [torch.allclose(flat(run.vectors[c]), vector) for c, vector in before.items()]
    assert same == [False, True, True]
    assert torch.isfinite(run.loss(batch_of(net, data)))


@pytest.mark.parametrize("population", ["all", "groups", "others"])
def test_a_group_that_is_absent_from_the_batch_pushes_nobody(population):
    net = network(nn.ReLU)
    run = fairlib.EqualCurvature(population=population).start(net, DATA, None)
    run.multipliers[:, 2] = 1.0
    batch = batch_of(net, index=(DATA.groups < 2).nonzero().flatten())
    value, direction = run._penalty(batch)
    assert value == 0 and not flat(direction).any()
    run.multipliers[:, 1] = 1.0
    value, direction = run._penalty(batch)
    assert value > 0 and flat(direction).any()


def test_errors():
    for settings, message in (
        ({"step": 0}, "step must lie in"),
        ({"every": 0}, "every must"),
        ({"population": "none"}, "unknown population 'none'"),
        ({"eigenvalue_step": -1}, "eigenvalue_step must"),
    ):
        with pytest.raises(ValueError, match=message):
            fairlib.EqualCurvature(**settings)
    one = fairlib.GroupedDataset(DATA.inputs, DATA.targets, np.zeros(36, dtype=int))
    with pytest.raises(ValueError, match="equal curvature needs at least two groups"):
        fairlib.fit(network(nn.ReLU), one, constraint=fairlib.EqualCurvature())


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "last"), [("bfloat16", False), ("float32", True)])
def test_other_precisions_and_memory_formats_follow_the_plain_ones(precision, last, monkeypatch):
    images = fairlib.load("digits", seed=0).train.subset(range(0, 450, 5))
    net = fairlib.build("cnn", num_classes=10, in_channels=1, image_size=8, seed=0)
    constraint = fairlib.EqualCurvature(step=0.01, eigenvalue_step=1e-4)
    settings = dict(epochs=3, lr=0.01, batch_size=30, constraint=constraint)
    plain = fairlib.fit(net, images, **settings)
    monkeypatch.setattr(loop, "trains_channels_last", lambda model, data: last)
    other = fairlib.fit(net, images, **settings, precision=precision)
    one, two = fairlib.history(plain), fairlib.history(other)
    np.testing.assert_allclose(two.iloc[-1], one.iloc[-1], rtol=0.05, atol=0.01)
    moved = two.filter(like="multiplier").iloc[-1]
    assert (moved > 0).any()


def test_frozen_parameters_take_no_part():
    net = copy.deepcopy(network(nn.Tanh))
    net[0].requires_grad_(False)
    fair = fairlib.fit(
        net,
        DATA,
        epochs=3,
        lr=0.05,
        batch_size=12,
        weight_decay=0.0,
        constraint=fairlib.EqualCurvature(step=0.05),
    )
    assert torch.equal(fair[0].weight, net[0].weight)
    assert not torch.equal(fair[2].weight, net[2].weight)
