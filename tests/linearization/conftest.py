"""A small residual network and its teacher's losses, which the linearizers share."""

from __future__ import annotations

import pytest
from torch import nn

import fairlib
from fairlib.linearization import gate
from fairlib.training.distillation import Distillation


@pytest.fixture
def dense(images) -> nn.Module:
    """1,792 ReLUs in three stages of 1,024, 512 and 256, and 512 in the stem."""
    model = fairlib.build("tiny-resnet", num_classes=3, in_channels=1, image_size=8, seed=0)
    return fairlib.fit(model, images, epochs=4, lr=0.05, seed=0)


@pytest.fixture
def gated(dense) -> nn.Module:
    return gate(dense)


@pytest.fixture
def objective(dense, images) -> Distillation:
    return Distillation(dense, images)
