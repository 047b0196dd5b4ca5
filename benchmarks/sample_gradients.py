"""What the norm of every sample's gradient costs, against one plain gradient of the same samples.

``python benchmarks/sample_gradients.py``, after ``pip install --no-deps -r
benchmarks/requirements.txt``; 256 images of 32 pixels, the small network (two convolutions, three
linear layers, 121 thousand parameters) and ResNet-18 with torchvision's stem. The plain gradient is
taken in chunks of 64, so are the peers' of the small network; ResNet-18's are in chunks of 16,
since they hold 11 million numbers for each sample. The library chooses by itself. Goal: 2.2 plain
gradients. All norms are compared with the library's first."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from functools import partial

import interleaved
import numpy as np
import torch
from backpack import backpack, extend
from backpack.extensions import BatchL2Grad
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

import fairlib
from fairlib.diagnostics.sample_gradients import sample_gradient_norms

CHUNK = 64
NETWORKS = {  # Architecture, its settings, chunk of the peers, rounds.
    "small_cnn": ("cnn", {"channels": (16, 32), "hidden": (56, 16)}, 64, 21),
    "resnet18": ("resnet18", {"stem": "imagenet"}, 16, 5),
}


def plain(model: nn.Module, data: fairlib.GroupedDataset) -> list[Tensor]:
    """One gradient of all samples; what the others are compared with."""
    parameters = list(model.parameters())
    total = [torch.zeros_like(weight) for weight in parameters]
    for inputs, targets in _batches(data, CHUNK):
        loss = cross_entropy(model(inputs), targets, reduction="sum")
        for sum_, gradient in zip(total, torch.autograd.grad(loss, parameters), strict=True):
            sum_ += gradient
    return total


def by_vmap(model: nn.Module, data: fairlib.GroupedDataset, chunk: int) -> Tensor:
    theta = {name: weight.detach() for name, weight in model.named_parameters()}
    buffers = dict(model.named_buffers())

    def loss(theta: dict[str, Tensor], inputs: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(
            functional_call(model, (theta, buffers), (inputs[None],)), target[None]
        )

    gradients = torch.vmap(torch.func.grad(loss), (None, 0, 0))
    squares = [
        sum(gradient.flatten(1).square().sum(1) for gradient in gradients(theta, *batch).values())
        for batch in _batches(data, chunk)
    ]
    return torch.cat(squares).sqrt()


def by_backpack(model: nn.Module, data: fairlib.GroupedDataset, chunk: int) -> Tensor:
    """``model`` is extended, and its loss too."""
    criterion = extend(nn.CrossEntropyLoss(reduction="sum"))
    squares = []
    for inputs, targets in _batches(data, chunk):
        model.zero_grad()
        with backpack(BatchL2Grad()):
            criterion(model(inputs), targets).backward()
        squares.append(sum(weight.batch_l2 for weight in model.parameters()))
    return torch.cat(squares).sqrt()


def by_loop(model: nn.Module, data: fairlib.GroupedDataset) -> Tensor:
    parameters = list(model.parameters())
    norms = []
    for i in range(len(data)):
        loss = cross_entropy(model(data.batch([i])), data.targets[i : i + 1])
        norms.append(sum(g.square().sum() for g in torch.autograd.grad(loss, parameters)).sqrt())
    return torch.stack(norms)


def _batches(data: fairlib.GroupedDataset, chunk: int) -> Iterator[tuple[Tensor, Tensor]]:
    for index in torch.arange(len(data)).split(chunk):
        yield data.batch(index), data.targets[index]


def _versions(
    model: nn.Module, data: fairlib.GroupedDataset, chunk: int
) -> dict[str, Callable[[], object]]:
    bare = copy.deepcopy(model)
    bare.normalize = (
        nn.Identity()
    )  # It is the identity before the first fit, and BackPACK does not know it.
    extended = extend(bare, use_converter=True).eval()
    versions = {
        "plain gradient": partial(plain, model, data),
        "fairlib": partial(sample_gradient_norms, model, data),
        "vmap(grad)": partial(by_vmap, model, data, chunk),
        "backpack": partial(by_backpack, extended, data, chunk),
        "loop": partial(by_loop, model, data),
    }
    norms = sample_gradient_norms(model, data)
    for name in list(versions)[2:]:
        np.testing.assert_allclose(versions[name]().detach(), norms, rtol=1e-3, err_msg=name)
    return versions


def main() -> None:
    # BackPACK's hooks on a layer whose input needs no gradient, and a mean that only its
    # second-order quantities mind.
    for message in ("Full backward hook is firing", "Encountered node that may break second-order"):
        warnings.filterwarnings("ignore", message, UserWarning)
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 5, 256)
    data = fairlib.GroupedDataset(
        rng.integers(0, 256, (256, 3, 32, 32), dtype=np.uint8), targets, targets
    )
    for name, (architecture, settings, chunk, rounds) in NETWORKS.items():
        model = fairlib.build(
            architecture, num_classes=5, in_channels=3, image_size=32, **settings
        ).eval()
        table = interleaved.compare(_versions(model, data, chunk), {"fairlib": 2.2}, rounds=rounds)
        interleaved.report(f"sample_gradients_{name}", table)


if __name__ == "__main__":
    main()
