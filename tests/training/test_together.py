"""Several trainings at once: each is the training that it would be alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from zoo import different, far

import fairlib
from fairlib.linearization import gate
from fairlib.training import Training, fit_all
from fairlib.training.distillation import Distillation
from fairlib.training.loop import AT_ONCE, LoopSettings
from fairlib.training.together import why_alone

MITIGATIONS = [
    fairlib.EqualLoss(step=0.1),
    fairlib.EqualLoss(step=0.1, dual="batch"),
    fairlib.EqualLoss(step=0.1, as_published=True),
    fairlib.GroupDRO(step=0.1),
    fairlib.Reweight(),
    fairlib.EqualAccuracy(),
    fairlib.AccuracyGap(step=0.1),
]


@pytest.fixture(scope="module")
def digits() -> fairlib.GroupedDataset:
    return fairlib.load("digits").train.subset(
        torch.randperm(450, generator=torch.Generator().manual_seed(0))[:130]
    )


@pytest.mark.parametrize("augment", ["none", "crop+flip"])
@pytest.mark.parametrize("name", ["cnn", "tiny-resnet", "mlp"])
def test_after_an_epoch_each_is_the_training_alone(name, augment, digits):
    models = different([fairlib.build(name, like=digits, seed=seed).double() for seed in range(3)])
    datas = [digits, digits.subset(range(129, -1, -1)), digits]
    settings = dict(epochs=1, augment=augment, batch_size=43, keep=[0, 2])
    together = fairlib.fit_many(
        models, datas, seeds=[5, 6, 7], val=[None, digits, None], **settings
    )
    for i, trained in enumerate(together):
        alone = fairlib.fit(
            models[i], datas[i], seed=5 + i, val=digits if i == 1 else None, **settings
        )
        assert far(trained, alone) < 1e-9 and not trained.training
        np.testing.assert_allclose(fairlib.history(trained), fairlib.history(alone), rtol=1e-5)
        assert list(fairlib.history(trained)) == list(fairlib.history(alone))
        assert fairlib.gradient_evaluations(trained) == fairlib.gradient_evaluations(alone)
        kept = fairlib.weights_at(alone, 2)
        assert all(
            (kept[key] - value).abs().max() < 1e-6
            for key, value in fairlib.weights_at(trained, 2).items()
        )
        assert fairlib.sparsity(trained) == pytest.approx(fairlib.sparsity(models[i]))


@pytest.mark.parametrize("constraint", MITIGATIONS, ids=repr)
def test_a_constraint_has_its_state_by_member(constraint, digits):
    models = [fairlib.build("cnn", like=digits, seed=seed) for seed in range(3)]
    if isinstance(constraint, fairlib.AccuracyGap):
        constraint = constraint.relative_to(models[0], digits)
    constraints = [constraint, None, constraint]
    together = fairlib.fit_many(
        models, digits, seeds=range(3), constraint=constraints, epochs=2, lr=0.01
    )
    for seed, trained in enumerate(together):
        alone = fairlib.fit(
            models[seed], digits, seed=seed, constraint=constraints[seed], epochs=2, lr=0.01
        )
        assert far(trained, alone) < 1e-5
        np.testing.assert_allclose(
            fairlib.history(trained), fairlib.history(alone), rtol=1e-3, atol=1e-6
        )


def test_students_follow_each_its_own_teacher_with_its_own_gates(digits):
    dense = fairlib.fit_many(
        [fairlib.build("cnn", like=digits, seed=s) for s in range(2)],
        digits,
        seeds=[0, 1],
        epochs=30,
    )
    objectives = [Distillation(teacher, digits) for teacher in dense]
    students = [
        fairlib.linearize(gate(teacher), "random", budget=0.3, data=digits, seed=s)
        for s, teacher in enumerate(dense)
    ]
    together = fairlib.fit_many(students, digits, seeds=[0, 1], objective=objectives, epochs=1)
    for seed, trained in enumerate(together):
        alone = fairlib.fit(students[seed], digits, seed=seed, objective=objectives[seed], epochs=1)
        assert far(trained, alone) < 1e-6
        assert far(objectives[seed].teacher, dense[seed]) == 0


def test_neither_company_nor_order_shows_in_a_bit(digits):
    models = [fairlib.build("cnn", like=digits, seed=seed) for seed in range(AT_ONCE)]
    everyone = fairlib.fit_many(models, digits, seeds=range(AT_ONCE), epochs=2)
    trainings = [
        Training(models[seed], digits, {"seed": seed, "epochs": 2}, place=seed) for seed in (4, 2)
    ]
    some = fit_all(trainings)
    assert far(some[0], everyone[4]) == 0 == far(some[1], everyone[2])


def test_one_that_diverges_leaves_the_others_alone(digits):
    models = [fairlib.build("cnn", like=digits, seed=seed) for seed in range(3)]
    models[1].classifier[4].weight.data.fill_(1e30)
    settings = dict(seeds=range(3), epochs=2)
    found = fairlib.fit_many(models, digits, **settings, divergence="skip")
    assert found[1] is None
    healthy = [models[0], fairlib.build("cnn", like=digits, seed=1), models[2]]
    expected = fairlib.fit_many(healthy, digits, **settings)
    assert far(found[0], expected[0]) == 0 == far(found[2], expected[2])
    with pytest.raises(
        fairlib.DivergenceError, match="network 1: training diverged at epoch 1 of 2"
    ):
        fairlib.fit_many(models, digits, **settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"models": lambda m: [m[0], fairlib.build("mlp", like=fairlib.load("digits"))]},
            "not of one architecture",
        ),
        (
            {"models": lambda m: [nn.Sequential(each, nn.Dropout()) for each in m]},
            "a Dropout is computed one",
        ),
        ({"datas": lambda d: [d, d.subset(range(100))]}, "not of one size"),
        (
            {"constraint": lambda _: fairlib.EqualCurvature(step=0.1)},
            "looks at the network at every step",
        ),
        ({"constraint": lambda _: _Mine(step=0.1)}, "_Mine looks at the network"),
        (
            {
                "objective": lambda _: (
                    lambda i, z, y: nn.functional.cross_entropy(z, y, reduction="none")
                )
            },
            "of your own",
        ),
    ],
)
def test_what_cannot_be_trained_at_once_is_trained_all_the_same(change, reason, digits):
    arguments = {
        "models": [fairlib.build("cnn", like=digits, seed=s) for s in range(2)],
        "datas": [digits, digits],
    }
    start = {"models": arguments["models"], "datas": digits}
    arguments |= {name: make(start.get(name)) for name, make in change.items()}
    models, datas = arguments.pop("models"), arguments.pop("datas")
    with pytest.warns(UserWarning, match=f"not trained all at once, since .*{reason}"):
        found = fairlib.fit_many(models, datas, seeds=[0, 1], epochs=1, **arguments)
    for seed, trained in enumerate(found):
        assert (
            far(trained, fairlib.fit(models[seed], datas[seed], seed=seed, epochs=1, **arguments))
            < 1e-6
        )


class _Mine(fairlib.EqualLoss):
    """A subclass of a constraint by batch that has not said that it is one."""


def linear(seed: int, *layers: nn.Module) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), *layers, nn.Linear(8, 10))


def hooked(seed: int) -> nn.Module:
    model = linear(seed)
    model[1].register_forward_hook(lambda module, inputs, outputs: outputs * seed)
    return model


def replaced(seed: int) -> nn.Module:
    model = linear(seed)
    model[2].forward = torch.tanh
    return model


def scaled(seed: int) -> nn.Module:
    model = linear(seed)
    model.register_parameter("scale", nn.Parameter(torch.tensor(1.0)))
    return model


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (hooked, "hooks, or a forward of its own"),
        (replaced, "hooks, or a forward of its own"),
        (scaled, "a single number"),
        (
            lambda s: nn.Sequential(
                nn.AvgPool2d(2, 2, 1, count_include_pad=s > 0), *linear(0)[:1], nn.Linear(25, 10)
            ),
            "not of one",
        ),
        (
            lambda s: nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Flatten(), nn.Linear(32, 10)),
            "is not the same in a stack",
        ),
    ],
    ids=["hooks", "forward", "scalar", "unseen settings", "last axis"],
)
def test_models_that_a_stack_would_not_compute_are_refused(build, reason, digits):
    models = [build(seed) for seed in range(2)]
    with pytest.warns(UserWarning, match=reason):
        found = fairlib.fit_many(models, digits, seeds=[0, 1], epochs=1)
    for seed, trained in enumerate(found):
        assert far(trained, fairlib.fit(models[seed], digits, seed=seed, epochs=1)) < 1e-6


def test_masks_on_different_layers_all_hold(digits):
    halves = {
        name: torch.rand(shape) < 0.5
        for name, shape in (("1.weight", (8, 64)), ("3.weight", (10, 8)))
    }
    masked = [
        fairlib.network.masks.with_masks(linear(1 + i), {name: half})
        for i, (name, half) in enumerate(halves.items())
    ]
    models = [linear(0), *masked]
    found = fairlib.fit_many(models, digits, seeds=range(3), epochs=1)
    for seed, trained in enumerate(found):
        assert far(trained, fairlib.fit(models[seed], digits, seed=seed, epochs=1)) < 1e-6
    for trained, (name, half) in zip(found[1:], halves.items(), strict=True):
        assert not trained.get_parameter(name)[~half].any()


def test_vectors_are_stacked_too():
    data = fairlib.GroupedDataset(torch.randn(40, 6), targets=[0, 1] * 20, groups=[0, 0, 1, 1] * 10)
    models = [fairlib.build("mlp", like=data, seed=seed) for seed in range(2)]
    found = fairlib.fit_many(models, data, seeds=[0, 1], epochs=1)
    assert far(found[1], fairlib.fit(models[1], data, seed=1, epochs=1)) < 1e-6


def test_a_constraint_may_differentiate_by_the_logits(digits):
    class Watching(fairlib.mitigation.reweight.Reweight):
        by_batch = True

        def start(self, model, data, objective):
            run = super().start(model, data, objective)
            own = run.loss

            def loss(batch):
                (slope,) = torch.autograd.grad(batch.losses.sum(), batch.logits, create_graph=True)
                return own(batch) + slope.square().mean()

            run.loss = loss
            return run

    models = [fairlib.build("cnn", like=digits, seed=seed) for seed in range(2)]
    found = fairlib.fit_many(models, digits, seeds=[0, 1], epochs=1, constraint=Watching())
    assert (
        far(found[1], fairlib.fit(models[1], digits, seed=1, epochs=1, constraint=Watching()))
        < 1e-6
    )


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"seeds": [0]}, ValueError, "seeds must be one for each of the 2 models, got 1"),
        ({"seeds": 3}, TypeError, "seeds must hold several values"),
        ({"val": [None]}, ValueError, "val must be one for each"),
        ({"epoch": 1}, TypeError, "epoch"),
        ({"divergence": "ignore"}, ValueError, "answer to divergence"),
        ({"lr": -1}, ValueError, "lr"),
        ({"models": []}, ValueError, "at least one module"),
        ({"models": [1, 2]}, TypeError, "model must be a torch.nn.Module"),
        ({"datas": torch.zeros(3)}, TypeError, "data must be a GroupedDataset"),
    ],
)
def test_bad_input(change, error, message, digits):
    models = [fairlib.build("cnn", like=digits, seed=seed) for seed in range(2)]
    with pytest.raises(error, match=message):
        fairlib.fit_many(
            **({"models": models, "datas": digits, "seeds": [0, 1], "epochs": 1} | change)
        )


def test_the_cache_knows_the_place_and_each_member(digits, tmp_path):
    models = [fairlib.build("cnn", like=digits, seed=seed) for seed in range(3)]
    alone = [
        Training(model, digits, {"seed": seed, "epochs": 1}) for seed, model in enumerate(models)
    ]
    trainings = [replace(training, place=place) for place, training in enumerate(alone)]
    first = fit_all(trainings[:2], tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    second = fit_all(trainings, tmp_path)
    assert len(list(tmp_path.iterdir())) == 3
    assert far(first[1], second[1]) == 0 and fairlib.history(first[1]).equals(
        fairlib.history(second[1])
    )
    fit_all(alone, tmp_path)
    assert len(list(tmp_path.iterdir())) == 6
    assert not any(map(why_alone, alone))
    stopped = replace(alone[0], loop=LoopSettings(stop=lambda row: False))
    assert "a stop belongs to one network" in why_alone(stopped)
