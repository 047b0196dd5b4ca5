from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fairlib
from fairlib.training.distillation import Distillation


@pytest.fixture
def teacher(cnn, images) -> nn.Module:
    return fairlib.fit(cnn, images, epochs=25)


def test_the_loss_is_cross_entropy_and_the_divergence_of_torch(teacher, images):
    inputs, targets = images.batch(slice(30)), images.targets[:30]
    logits = torch.randn(30, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    distillation = Distillation(teacher, images, temperature=3.0, weight=0.7, hard=0.2)
    losses = distillation(inputs, logits, targets)
    with torch.no_grad():
        wanted = torch.distributions.Categorical(logits=teacher(inputs) / 3)
    divergence = torch.distributions.kl_divergence(
        wanted, torch.distributions.Categorical(logits=logits / 3)
    )
    expected = 0.2 * F.cross_entropy(logits, targets, reduction="none") + 0.7 * 9 * divergence
    assert torch.allclose(losses, expected, atol=1e-6)
    batchmean = F.kl_div((logits / 3).log_softmax(1), wanted.probs, reduction="batchmean")
    alone = Distillation(teacher, images, temperature=3.0, hard=0.0)
    assert torch.allclose(alone(inputs, logits, targets).mean(), 9 * batchmean, atol=1e-6)


def test_averaging_over_elements_divides_the_divergence_by_the_number_of_classes(teacher, images):
    inputs, targets, logits = images.batch(slice(30)), images.targets[:30], torch.randn(30, 3)
    whole = Distillation(teacher, images, hard=0.0)(inputs, logits, targets)
    published = Distillation(teacher, images, hard=0.0, reduction="elements")(
        inputs, logits, targets
    )
    assert torch.allclose(whole, 3 * published)
    elements = F.kl_div(
        (logits / 4).log_softmax(1), (teacher(inputs) / 4).softmax(1), reduction="none"
    )
    assert torch.allclose(published.mean(), 16 * elements.mean(), atol=1e-6)


def test_the_teacher_is_a_frozen_copy_in_eval_mode(images):
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 3)
    )
    teacher = fairlib.fit(model, images, epochs=25).train()
    teacher.zero_grad(set_to_none=True)
    distillation = Distillation(teacher, images)
    assert teacher.training and not distillation.teacher.training
    logits = torch.zeros(30, 3, requires_grad=True)
    one, two = (
        distillation(images.batch(slice(30)), logits, images.targets[:30]) for _ in range(2)
    )
    assert torch.equal(one, two)
    one.sum().backward()
    assert all(not p.requires_grad and p.grad is None for p in distillation.teacher.parameters())
    assert all(p.requires_grad and p.grad is None for p in teacher.parameters())


def test_a_student_follows_its_teacher_without_labels(teacher, images):
    student = fairlib.build("mlp", num_classes=3, in_channels=1, image_size=8, seed=5)
    trained = fairlib.fit(
        student, images, epochs=30, objective=Distillation(teacher, images, hard=0.0)
    )
    inputs = images.batch(slice(None))
    assert (trained(inputs).argmax(1) == teacher(inputs).argmax(1)).float().mean() > 0.95


@pytest.mark.parametrize("untrained", ["fresh", "constant"])
def test_a_teacher_at_chance_is_refused(cnn, images, untrained):
    if untrained == "constant":
        for parameter in cnn.parameters():
            nn.init.zeros_(parameter)
    with pytest.raises(
        ValueError, match=r"performs at chance: its accuracy.* guessing gives 0\.333"
    ):
        Distillation(cnn.eval(), images)


def test_chance_is_judged_by_class_so_that_a_large_class_does_not_hide_it(images):
    """Always answering a class that 80 of 100 samples have is chance, with an accuracy of 0.8."""
    skewed = images.subset([*range(0, 120, 3)] * 2 + [1, 4, 7, 2, 5, 8])
    constant = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    nn.init.zeros_(constant[1].weight)
    constant[1].bias.data = torch.tensor([5.0, 0.0, 0.0])
    with pytest.raises(ValueError, match="performs at chance"):
        Distillation(constant, skewed)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0}, "temperature must lie in"),
        ({"weight": -1}, "weight must lie in"),
        ({"reduction": "mean"}, "unknown reduction 'mean'; known: batchmean, elements"),
    ],
)
def test_settings_out_of_range(teacher, images, settings, message):
    with pytest.raises(ValueError, match=message):
        Distillation(teacher, images, **settings)
