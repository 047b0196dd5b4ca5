"""What it costs to score ResNet-18 by SNIP, FPGM and FairGRAPE, against three epochs of training on
the same images.

``python benchmarks/scoring.py``; goal: no longer than the three epochs (2,000 images of 32 pixels,
five groups, torchvision's stem), pruning included."""

from __future__ import annotations

from functools import partial

import interleaved
import numpy as np

import fairlib

SETTINGS = {
    "snip": {},
    "fpgm": {},
    "fairgrape": {},
    "fairgrape as published": {"as_published": True},
}


def main() -> None:
    rng = np.random.default_rng(0)
    groups = rng.choice(5, size=2000, p=[0.42, 0.19, 0.17, 0.15, 0.07])
    data = fairlib.GroupedDataset(
        rng.integers(0, 256, (2000, 3, 32, 32), dtype=np.uint8), groups, groups
    )
    model = fairlib.build("resnet18", num_classes=5, in_channels=3, image_size=32, stem="imagenet")
    model = fairlib.fit(model, data, epochs=0)
    versions = {"3 epochs of training": partial(fairlib.fit, model, data, epochs=3, batch_size=64)}
    for name, settings in SETTINGS.items():
        versions[name] = partial(
            fairlib.prune, model, name.split()[0], sparsity=0.9, data=data, **settings
        )
    interleaved.report(
        "scoring", interleaved.compare(versions, dict.fromkeys(SETTINGS, 1.0), rounds=3)
    )


if __name__ == "__main__":
    main()
