"""Compare with what users would run instead: an audit with fairlearn's `MetricFrame`, a folder of
images with torchvision's `ImageFolder`, rounded weights with the observers of `torch.ao`.

``python benchmarks/peers.py``, with fairlearn of ``benchmarks/requirements.txt``; one process, one
thread, in turns. The peer comes first: goals are shares of its time."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path

import interleaved
import numpy as np
import pandas as pd
import torch
from fairlearn.metrics import MetricFrame
from PIL import Image
from sklearn.metrics import accuracy_score
from torch import nn
from torch.ao.quantization import FakeQuantize, PerChannelMinMaxObserver
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

import fairlib

ROWS, PICTURES, SIDE = 10_000, 2_000, 64


def audits() -> pd.DataFrame:
    """Accuracies of five groups before and after compression, each with an interval.

    MetricFrame draws its hundred bootstraps of all rows, once for each of the two models; the audit
    pairs the two models' answers and tests every group's change besides.
    """
    generator = np.random.default_rng(0)
    groups = generator.choice([*"ABCDE"], ROWS, p=[0.4, 0.3, 0.15, 0.1, 0.05])
    target = generator.integers(0, 2, ROWS)
    before = np.where(generator.random(ROWS) < 0.9, target, 1 - target)
    after = np.where(generator.random(ROWS) < 0.95, before, 1 - before)

    def frames(draws: int | None) -> None:
        for said in (before, after):
            quantiles = None if draws is None else [0.025, 0.975]
            frame = MetricFrame(
                metrics=accuracy_score,
                y_true=target,
                y_pred=said,
                sensitive_features=groups,
                n_boot=draws,
                ci_quantiles=quantiles,
                random_state=0,
            )
            assert frame.by_group.size == 5

    versions = {
        "MetricFrame, 100 bootstraps": lambda: frames(100),
        "MetricFrame, no interval": lambda: frames(None),
        "fairlib.audit": lambda: fairlib.audit(before, after, targets=target, groups=groups),
    }
    return interleaved.compare(versions, {"fairlib.audit": 0.1}, rounds=3)


def folders(root: Path) -> pd.DataFrame:
    """Two thousand pictures of 64 pixels as tensors: once, and for ten epochs."""
    generator = np.random.default_rng(0)
    names = [f"{number % 2}/{number}.png" for number in range(PICTURES)]
    for name in names:
        path = root / name
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (SIDE, SIDE, 3), np.uint8)).save(path)
    kinds = [name[0] for name in names]
    pd.DataFrame({"file": names, "kind": kinds}).to_csv(root / "people.csv", index=False)
    table = root / "people.csv"

    def image_folder(epochs: int) -> None:
        pictures = datasets.ImageFolder(root, transforms.ToTensor())
        for _ in range(epochs):
            assert sum(len(targets) for _, targets in DataLoader(pictures, 64)) == PICTURES

    def ours(epochs: int) -> None:
        data = fairlib.load(
            "folder", root=root, table=table.name, target="kind", group="kind", fractions=(0, 0, 1)
        ).test
        for _ in range(epochs):
            rows = torch.arange(len(data)).split(64)
            assert sum(len(data.batch(part, dtype=torch.float32)) for part in rows) == PICTURES

    versions = {
        "ImageFolder, one epoch": lambda: image_folder(1),
        "fairlib.load, one epoch": lambda: ours(1),
        "ImageFolder, ten epochs": lambda: image_folder(10),
        "fairlib.load, ten epochs": lambda: ours(10),
    }
    return interleaved.compare(versions, {"fairlib.load, one epoch": 1.0}, rounds=5)


def rounded() -> pd.DataFrame:
    """ResNet-18 in four bits a weight: the grid ends at the largest weight, or at the best end."""
    model = fairlib.build("resnet18", num_classes=5, in_channels=3, image_size=32, seed=0)

    def by_largest() -> nn.Module:
        copied = copy.deepcopy(model)
        for layer in copied.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                observer = PerChannelMinMaxObserver.with_args(
                    ch_axis=0, dtype=torch.qint8, qscheme=torch.per_channel_symmetric
                )
                fake = FakeQuantize(observer, quant_min=-7, quant_max=7, dtype=torch.qint8)
                layer.weight.data = fake(layer.weight.data)
        return copied

    def error(found: nn.Module) -> float:
        pairs = zip(model.parameters(), found.parameters(), strict=True)
        return sum((one - other).square().sum().item() for one, other in pairs)

    versions = {
        "torch.ao, largest weight": by_largest,
        "fairlib.quantize": lambda: fairlib.quantize(model, "weights", bits=4),
    }
    errors = {name: error(version()) for name, version in versions.items()}
    table = interleaved.compare(versions, {}, rounds=11)
    return table.assign(squared_error=pd.Series(errors) / errors["torch.ao, largest weight"])


def main() -> None:
    interleaved.report("peers_audit", audits())
    with tempfile.TemporaryDirectory() as folder:
        interleaved.report("peers_folder", folders(Path(folder)))
    interleaved.report("peers_rounding", rounded())


if __name__ == "__main__":
    main()
