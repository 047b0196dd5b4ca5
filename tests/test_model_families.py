"""A dozen of the networks that people bring, by all functions of the benchmark."""

from __future__ import annotations

import os
import time

import model_families
import pytest
from networks import NETWORKS, Network
from torch import nn

DOZEN = [
    "concatenation with itself",
    "a convolution called twice",
    "channel shuffle",
    "GroupNorm",
    "normalizes its batch in place",
    "PReLU",
    "one ReLU in a ModuleDict",
    "a dictionary",
    "weight_norm",
    "bfloat16",
    "LSTM of series",
    "ViT of torchvision",
]
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.slow
@pytest.mark.parametrize("name", DOZEN)
def test_each_function_is_right_or_says_why_not(name):
    for function in model_families.FUNCTIONS:
        verdict, reason = model_families.judge(NETWORKS[name], function)
        assert verdict in ("right", "refused"), f"{function}: {verdict}, {reason}"


class Restless(nn.Flatten):
    """A network that never gives the same answer twice, or fails, or does not end."""

    how = "changes"
    calls = 0

    def forward(self, inputs):
        if self.how == "sleeps":
            time.sleep(60)
        if self.how == "dies":
            os._exit(3)
        if self.how == "fails":
            raise KeyError("hidden")
        self.calls += 1
        return super().forward(inputs)[:, :4] * self.calls


@pytest.mark.parametrize(
    ("how", "verdict"),
    [
        ("changes", ("wrong", "logits differ by")),
        ("fails", ("obscure", "KeyError: 'hidden'")),
        ("sleeps", ("stopped", "no end after 2 seconds")),
        ("dies", ("stopped", "the process ended with 3")),
    ],
)
def test_a_cell_has_a_verdict_however_it_ends(how, verdict):
    def build():
        restless = Restless()
        restless.how = how
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), restless)

    network = Network("none", "torch", build, warm=False)
    found, reason = model_families.cell(network, "quantize weights", 2.0)
    assert (found, reason[: len(verdict[1])]) == verdict
