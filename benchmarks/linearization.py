"""What gates cost: evaluating a network with binary gates, and an epoch of SNL's mask phase.

``python benchmarks/linearization.py``; goals: with binary gates at most 1.1 of the plain network's
evaluation; an epoch of the mask phase at most 1.3 of an epoch of distillation of the same network.
For comparison, an epoch in which the teacher records its graph, as it does in SNL's released code.
ResNet-18 and the small residual network, 32 pixels, batches of 64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import interleaved
import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div

import fairlib
from fairlib.linearization import MASK_PHASE
from fairlib.linearization.snl import Lasso
from fairlib.network import gates
from fairlib.training import LoopSettings, Objective, Training, carry_out
from fairlib.training.distillation import Distillation


@dataclass
class WithGraph:
    """The divergence from a teacher whose forward pass records gradients."""

    teacher: nn.Module

    def __call__(self, inputs: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
        wanted = (self.teacher(inputs) / 4).softmax(1)
        divergence = kl_div((logits / 4).log_softmax(1), wanted, reduction="none").sum(1)
        return cross_entropy(logits, targets, reduction="none") + 16 * divergence


def images(count: int) -> fairlib.GroupedDataset:
    """Noise whose brightness tells the class: only the time matters, but a teacher must know
    something."""
    draw = np.random.default_rng(0)
    targets = np.arange(count) % 4
    inputs = draw.integers(0, 100, (count, 3, 32, 32)) + 50 * targets[:, None, None, None]
    return fairlib.GroupedDataset(inputs.astype(np.uint8), targets, targets)


def evaluation(model: nn.Module, data: fairlib.GroupedDataset, rounds: int) -> pd.DataFrame:
    """A forward pass with half of the ReLUs linear, at random places, beside one with all."""
    gated = gates.gate(model)
    relus = gates.count(gated).attrs["total"] // 2
    half = gates.with_gates(gated, gates.keep_relus(gated, gates.drawn(gated, "pixel", 0), relus))
    batch = data.batch(slice(64))
    with torch.no_grad():
        versions = {"relu": partial(model, batch), "gates": partial(half, batch)}
        return interleaved.compare(versions, {"gates": 1.1}, rounds=rounds)


def mask_phase(model: nn.Module, data: fairlib.GroupedDataset, rounds: int) -> pd.DataFrame:
    """An epoch of two batches."""
    soft = gates.gate(model)
    gates.relax(soft)
    settings = {"epochs": 1, "batch_size": 64, "lr": 1e-3}
    distilled = partial(fairlib.fit, model, data, objective=Distillation(model, data), **settings)
    mask = MASK_PHASE | settings | {"constraint": Lasso(1e-5, 1.1, 5)}

    def by_adam(
        network: nn.Module, arguments: dict, objective: Objective
    ) -> Callable[[], nn.Module]:
        adam = LoopSettings(optimizer="adam")
        return partial(
            carry_out, Training(network, data, {**arguments, "objective": objective}, adam)
        )

    versions = {
        "distillation": distilled,
        "distillation, Adam": by_adam(model, settings, Distillation(model, data)),
        "mask phase": by_adam(soft, mask, Distillation(model, data)),
        "mask phase, teacher's graph": by_adam(soft, mask, WithGraph(model)),
    }
    return interleaved.compare(versions, {"mask phase": 1.3}, rounds=rounds)


def main() -> None:
    data = images(128)
    for name, rounds in (("tiny-resnet", 51), ("resnet18", 9)):
        start = fairlib.build(name, num_classes=4, in_channels=3, image_size=32)
        model = fairlib.fit(start, data, epochs=6, lr=0.01, batch_size=32)
        label = name.replace("-", "_")
        interleaved.report(f"gates_{label}", evaluation(model, data, 2 * rounds))
        interleaved.report(f"mask_phase_{label}", mask_phase(model, data, rounds))


if __name__ == "__main__":
    main()
