"""Cost of five small trainings at once (``fairlib.fit_many``), beside one after the other and two
peers.

``python benchmarks/together.py``; goals: 1/1.4 and 1/1.5 of one ``fairlib.fit`` after the other on
images of 32 pixels, 1/3.5 on images of 8, and for a study of five seeds on the digits 1/2 of one
seed after the other. The peers are the loop that most people write, with a ``DataLoader`` that
collates batch by batch, and an ensemble by ``torch.func.vmap``. Also what torch's ``channels_last``
and bfloat16 make of a step of ResNet-18 on images of 32 pixels; goal: 1/1.8 of float32."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from functools import partial
from unittest import mock

import interleaved
import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import fairlib
from fairlib.studies import RunSettings
from fairlib.training.loop import AT_ONCE

MEMBERS, BATCH = AT_ONCE, 32
STUDY = dict(
    data="digits", model="cnn", method="prune:magnitude", levels=[0.5, 0.9], seeds=range(MEMBERS)
)
STUDY |= dict(train={"epochs": 20})


def images(size: int, steps: int) -> fairlib.GroupedDataset:
    """Noise, on which a step costs what it costs on pictures."""
    generator = torch.Generator().manual_seed(0)
    channels = 1 if size == 8 else 3
    inputs = torch.randint(
        0, 256, (steps * BATCH, channels, size, size), generator=generator, dtype=torch.uint8
    )
    targets = torch.randint(0, 10, (len(inputs),), generator=generator)
    targets[:10] = torch.arange(10)
    return fairlib.GroupedDataset(inputs, targets, targets)


def optimizers(
    parameters: list[nn.Parameter], steps: int
) -> tuple[torch.optim.SGD, torch.optim.lr_scheduler.LRScheduler]:
    optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=5e-4)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)


def by_hand(models: list[nn.Module], data: fairlib.GroupedDataset) -> None:
    """Train one model after the other by a plain loop over a ``DataLoader``."""
    for model in models:
        model = copy.deepcopy(model).train()
        loader = DataLoader(data, BATCH, shuffle=True)
        optimizer, scheduler = optimizers(list(model.parameters()), len(loader))
        for inputs, targets, _ in loader:
            optimizer.zero_grad()
            cross_entropy(model(inputs / 255), targets).backward()
            optimizer.step()
            scheduler.step()


def by_vmap(models: list[nn.Module], data: fairlib.GroupedDataset) -> None:
    """Train an ensemble whose forward and backward passes are vectorized by ``torch.func.vmap``."""
    state, buffers = stack_module_state(models)
    state = {name: nn.Parameter(value.detach().clone()) for name, value in state.items()}
    base = copy.deepcopy(models[0]).train()

    def loss(own: dict, kept: dict, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return cross_entropy(functional_call(base, (own, kept), (inputs,)), targets)

    gradients = vmap(grad(loss))
    orders = torch.stack([torch.randperm(len(data)) for _ in models])
    optimizer, scheduler = optimizers(list(state.values()), len(data) // BATCH)
    for index in orders.split(BATCH, dim=1):
        inputs = data.batch(index.flatten()).unflatten(0, index.shape)
        for name, value in gradients(state, buffers, inputs, data.targets[index]).items():
            state[name].grad = value
        optimizer.step()
        scheduler.step()


def plain(*arguments: object, **settings: object) -> nn.Module:
    """Train by ``fairlib.fit`` without the channels-last format that it takes from 16 pixels on."""
    with mock.patch.dict(os.environ, FAIRLIB_AUTO="0"):
        return fairlib.fit(*arguments, **settings)


def trainings(name: str, size: int, steps: int) -> dict[str, Callable[[], object]]:
    """Ways to train the networks for an epoch of so many steps."""
    data = images(size, steps)
    models = [fairlib.build(name, like=data, seed=seed) for seed in range(MEMBERS)]
    settings = dict(epochs=1, batch_size=BATCH, lr=1e-3)
    ways = {
        "fairlib.fit": lambda: [plain(model, data, **settings) for model in models],
        "channels last": lambda: [fairlib.fit(model, data, **settings) for model in models],
        "fairlib.fit_many": lambda: fairlib.fit_many(
            models, data, seeds=range(MEMBERS), **settings
        ),
        "a loop over a DataLoader": lambda: by_hand(models, data),
    }
    has_statistics = any(isinstance(module, nn.BatchNorm2d) for module in models[0].modules())
    return ways if has_statistics else ways | {"torch.func.vmap": lambda: by_vmap(models, data)}


def formats() -> dict[str, Callable[[], object]]:
    """Formats in which to train the papers' network for a few steps."""
    data = images(32, 4)
    model = fairlib.build("resnet18", like=data)
    settings = dict(epochs=1, batch_size=BATCH, lr=1e-3)
    return {
        f"{precision}{', channels last' * last}": partial(
            fairlib.fit if last else plain, model, data, precision=precision, **settings
        )
        for precision, last in (("float32", False), ("float32", True), ("bfloat16", True))
    }


def main() -> None:
    interleaved.report(
        "formats_resnet18",
        interleaved.compare(formats(), {"bfloat16, channels last": 1 / 1.8}, rounds=5),
    )
    for name, size, steps, goal, rounds in (
        ("cnn", 8, 40, 1 / 3.5, 15),
        ("cnn", 32, 12, 1 / 1.4, 9),
        ("tiny-resnet", 32, 8, 1 / 1.5, 9),
    ):
        table = interleaved.compare(
            trainings(name, size, steps), {"fairlib.fit_many": goal}, rounds
        )
        interleaved.report(f"together_{name.replace('-', '_')}_{size}", table)
    studies = {
        name: partial(
            fairlib.study, **STUDY, run=RunSettings(cache=None, workers=1, at_once=at_once)
        )
        for name, at_once in (("one seed after the other", False), ("five at once", True))
    }
    interleaved.report(
        "together_study", interleaved.compare(studies, {"five at once": 1 / 2}, rounds=5)
    )


if __name__ == "__main__":
    main()
