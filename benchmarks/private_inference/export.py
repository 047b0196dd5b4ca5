"""Train small networks, linearize them, and write what two parties need to run them: one ``.npz``
per network.

In the library's environment, with a folder to write to::

    python benchmarks/private_inference/export.py FOLDER

Two residual networks of one design (``tiny-resnet``), on grey images of 8 and of 32 pixels, at
several budgets: the share of ReLUs that is kept, at random places, the rest being the identity.
Random, since what is measured depends on how many ReLUs are kept, and hardly on which.
``measure.py`` runs the files; it needs nothing of the library.

Each file holds ``images`` (N, C, H, W), normalized as the network normalizes them (the client's
work, in the clear), ``logits`` (N, K), what the network makes of them in the clear, the weights and
biases of every layer by name, the batch normalizations folded into the convolutions, the masks as
``keep.NAME`` (C, H, W), True where a ReLU is kept, and ``network``, ``data``, ``image_size``,
``budget`` and ``accuracy`` (of the linearized network in the clear, on the whole test set)."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.utils import fuse_conv_bn_eval

import fairlib
from fairlib.network import gates

NETWORK = "tiny-resnet"
BUDGETS = {"digits": (1, 0.5, 0.2, 0.1, 0.05, 0.02, 0), "synthetic-faces": (1, 0.5, 0.2, 0.05, 0)}
SIZES = {"digits": 8, "synthetic-faces": 32}
EPOCHS = {"digits": 40, "synthetic-faces": 10}
IMAGES = 80


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the networks go")
    parser.add_argument("--data", nargs="+", default=list(BUDGETS), choices=list(BUDGETS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for data in arguments.data:
        splits = fairlib.load(data, seed=0, image_size=SIZES[data])
        classes, channels = int(splits.train.targets.max()) + 1, splits.train.inputs.shape[1]
        model = fairlib.build(
            NETWORK, num_classes=classes, in_channels=channels, image_size=SIZES[data], seed=0
        )
        dense = fairlib.fit(model, splits.train, epochs=EPOCHS[data], seed=0)
        for budget in BUDGETS[data]:
            linearized = fairlib.linearize(
                dense, "random", budget=budget, data=splits.train, seed=0
            )
            exported = export(linearized, splits.test)
            path = arguments.folder / f"{data}-{budget:g}.npz"
            about = {"network": NETWORK, "data": data, "image_size": SIZES[data], "budget": budget}
            np.savez_compressed(path, **about, **exported)
            kept = sum(
                int(value.sum()) for name, value in exported.items() if name.startswith("keep.")
            )
            print(f"{path}: {kept} ReLUs, accuracy {exported['accuracy']:.3f}")


def export(model: nn.Module, test: fairlib.GroupedDataset) -> dict[str, np.ndarray]:
    """Weights, masks, images and logits of a gated network: what goes into the file."""
    chosen = torch.arange(IMAGES) * len(test) // IMAGES
    with torch.no_grad():
        logits = model(test.batch(torch.arange(len(test))))
        images = model.normalize(test.batch(chosen))
    layers = {**folded(model), "fc": model.fc}
    weights = {
        f"{name}.{kind}": getattr(layer, kind)
        for name, layer in layers.items()
        for kind in ("weight", "bias")
    }
    masks = {f"keep.{name}": keep for name, keep in gates.read_gates(model).items()}
    tensors = {"images": images, "logits": logits[chosen], **weights, **masks}
    accuracy = (logits.argmax(1) == test.targets).double().mean()
    return {
        name: tensor.detach().numpy() for name, tensor in {**tensors, "accuracy": accuracy}.items()
    }


def folded(model: nn.Module) -> dict[str, nn.Conv2d]:
    """The convolutions of a residual network by name, each with the batch normalization after
    it."""
    modules = dict(model.named_modules())
    found = {}
    for name, module in modules.items():
        if isinstance(module, nn.Conv2d):
            norm = f"{name[:-1]}1" if name.endswith("downsample.0") else name.replace("conv", "bn")
            found[name] = fuse_conv_bn_eval(module, modules[norm])
    return found


if __name__ == "__main__":
    main()
