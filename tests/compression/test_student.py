from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fairlib
from fairlib.compression import DISTILLATION, distil
from fairlib.training.distillation import Distillation, UntrainedTeacherError

TRAIN = {"epochs": 3, "batch_size": 16, "lr": 0.02}


def same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.fixture
def teacher(cnn, images) -> nn.Module:
    return fairlib.fit(cnn, images, epochs=6, batch_size=12)


@pytest.fixture
def student() -> nn.Module:
    """A student without a normalization of its own."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize("settings", [{}, {"temperature": 2.5, "weight": 3.0, "hard": 0.5}])
def test_a_loop_written_by_hand_gives_the_same_weights_to_the_last_bit(
    teacher, student, images, settings
):
    trained = distil(teacher, student, data=images, train=TRAIN, seed=11, distillation=settings)
    temperature, weight, hard = (
        settings.get(name, x) for name, x in (("temperature", 4), ("weight", 1), ("hard", 1))
    )

    by_hand, pixels = copy.deepcopy(student), images.inputs.float() / 255
    optimizer = torch.optim.SGD(by_hand.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3 * 8)
    torch.manual_seed(11)
    for _ in range(3):
        for index in torch.randperm(120).split(16):
            z = by_hand(pixels[index])
            with torch.no_grad():
                t = teacher(pixels[index])
            log_p, log_q = (t / temperature).log_softmax(1), (z / temperature).log_softmax(1)
            divergence = (log_p.exp() * (log_p - log_q)).sum(1)
            cross_entropy = -z.log_softmax(1).gather(1, images.targets[index, None]).squeeze(1)
            loss = (hard * cross_entropy + weight * temperature**2 * divergence).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
    assert same(trained, by_hand) and not trained.training


def alone(teacher: nn.Module, width: float, data, **train) -> nn.Module:
    """The student of a study that is trained without its teacher."""
    return DISTILLATION.function(teacher, "alone", width=width, data=data, train=train, seed=4)


def test_logits_is_fit_with_the_teacher_and_alone_without(teacher, images):
    student = fairlib.build("cnn", num_classes=3, in_channels=1, image_size=8, width=0.5, seed=4)
    untaught = fairlib.fit(student, images, seed=4, **TRAIN)
    assert same(alone(teacher, 0.5, images, **TRAIN), untaught)
    taught = fairlib.fit(student, images, seed=4, objective=Distillation(teacher, images), **TRAIN)
    for given in (0.5, student):
        assert same(distil(teacher, given, data=images, train=TRAIN, seed=4), taught)
    assert not same(untaught, taught)
    other = distil(teacher, 0.5, data=images, train={"epochs": 0}, seed=5)
    assert not torch.equal(other.features[0].weight, student.features[0].weight)


def test_a_student_learns_and_its_price_is_that_of_its_own_training(teacher, images):
    small = distil(teacher, 0.5, data=images, train={"epochs": 8, "batch_size": 12})
    assert fairlib.history(small)["accuracy"].iloc[-1] > 0.9
    assert fairlib.gradient_evaluations(small) == 8 * 120
    assert parameters(small) < 0.5 * parameters(teacher)


def test_nothing_that_was_given_is_changed(teacher, student, images):
    before, state = copy.deepcopy((teacher, student)), torch.random.get_rng_state()
    one, two = (distil(teacher, student, data=images, train=TRAIN) for _ in range(2))
    assert same(one, two) and not same(one, student)
    assert same(teacher, before[0]) and same(student, before[1])
    assert torch.equal(state, torch.random.get_rng_state())


def test_the_width_multiplies_that_of_the_teacher(images):
    wide = fairlib.build("cnn", num_classes=3, in_channels=1, image_size=8, width=2, hidden=(16, 8))
    small = alone(wide, 0.25, images, epochs=0)
    assert [small.features[0].out_channels, small.classifier[0].out_features] == [4, 8]
    again = alone(small, 0.5, images, epochs=0)
    assert [again.features[0].out_channels, again.classifier[0].out_features] == [2, 4]


def test_a_student_as_large_as_its_teacher_is_refused(teacher, images):
    count = f"{parameters(teacher):,}"
    with pytest.raises(
        ValueError, match=f"smaller than its teacher: it has {count} parameters of {count}"
    ):
        distil(teacher, 1.0, data=images)
    with pytest.raises(ValueError, match=f"it has 165,100 parameters of {count}"):
        distil(
            teacher,
            nn.Sequential(nn.Flatten(), nn.Linear(64, 1000), nn.Linear(1000, 100)),
            data=images,
        )


def test_a_width_needs_a_model_that_fairlib_built(teacher, student, images):
    with pytest.raises(
        ValueError,
        match=r"was not made by fairlib\.build, or has lost .*; give a module as student",
    ):
        distil(student, 0.5, data=images)
    narrow = fairlib.compact(
        fairlib.prune(teacher, "filter-norm", sparsity=0.5, data=images), images
    )
    with pytest.raises(ValueError, match="has lost layers or channels since"):
        distil(narrow, 0.5, data=images)


def test_an_untrained_teacher_is_refused_but_not_needed_alone(student, images):
    fresh = fairlib.build("cnn", num_classes=3, in_channels=1, image_size=8)
    for parameter in fresh.parameters():
        parameter.data.zero_()
    with pytest.raises(UntrainedTeacherError, match="the teacher performs at chance"):
        distil(fresh, student, data=images)
    alone(fresh, 0.5, images, epochs=0)


def test_a_constraint_holds_in_the_training(teacher, images):
    train = TRAIN | {"constraint": fairlib.EqualLoss(step=0.5)}
    held = distil(teacher, 0.5, data=images, train=train), alone(teacher, 0.5, images, **train)
    for student in held:
        assert "multiplier[few]" in fairlib.history(student)
    free = distil(teacher, 0.5, data=images, train={"epochs": 1})
    assert "multiplier[few]" not in fairlib.history(free)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"method": "alone"}, ValueError, "unknown distillation method 'alone'; known: logits"),
        (
            {"distillation": {"heat": 4}},
            TypeError,
            "unknown setting 'heat' for distillation=; known: temperature, we",
        ),
        ({"distillation": {"temperature": 0}}, ValueError, "temperature must lie in"),
        (
            {"distillation": 4},
            TypeError,
            "distillation= must be a mapping from names to values, got 4",
        ),
        ({"train": {"objective": None}}, TypeError, "unknown setting 'objective' for train="),
        ({"train": {"epochs": -1}}, ValueError, "epochs of train= must lie in"),
        ({"student": 0}, ValueError, r"student must lie in \(0, 1\]"),
        ({"student": "half"}, TypeError, "student must be a number, got 'half'"),
        ({"seed": "a"}, TypeError, "seed must be an integer"),
        ({"train": {"constraint": "equal"}}, TypeError, "constraint of train= must be an object"),
    ],
)
def test_what_is_not_understood_is_refused_before_anything_is_trained(
    teacher, images, settings, error, message
):
    with pytest.raises(error, match=message):
        distil(teacher, **{"student": 0.5, "data": images} | settings)


def test_a_pruned_teacher_teaches_a_dense_student(teacher, images):
    sparse = fairlib.prune(teacher, "magnitude", sparsity=0.3)
    small = distil(sparse, 0.5, data=images, train={"epochs": 1})
    assert fairlib.sparsity(small) == 0


@pytest.mark.parametrize(
    ("name", "settings", "error", "message"),
    [
        ("hints", {}, ValueError, "unknown distillation method 'hints'; known: logits, alone"),
        ("logits", {"heat": 4}, TypeError, "'heat' for .* method 'logits'; known: distillation"),
        ("alone", {"distillation": {}}, TypeError, "for distillation method 'alone'; known: none"),
        ("alone", {"train": {"epochs": -1}}, ValueError, "epochs of train= must lie in"),
    ],
)
def test_a_study_refuses_unknown_settings_beforehand(name, settings, error, message):
    with pytest.raises(error, match=message):
        DISTILLATION.check(name, **settings)


def test_a_study_asks_for_a_width(teacher, images):
    small = alone(teacher, 0.5, images, epochs=1, device="cpu")
    assert DISTILLATION.methods["logits"].trains and DISTILLATION.methods["logits"].constrained
    assert 0 < DISTILLATION.kept(small, teacher) < 0.5
