"""The memory that an audit of ResNet-50 on 5,000 images of 64 x 64 pixels takes at its peak.

``python benchmarks/audit_memory.py [gradient|curvature|boundary ...]``; the goal is 8 GB for the
whole process, Python and torch, model, its pruned copy and images included. By default the
diagnostics of a default audit; with torchvision's stem, so that it takes minutes on a CPU, and then
on a tenth of the images with the stem for small images, whose activations take sixteen times the
memory. Each audit runs in a process of its own."""

from __future__ import annotations

import resource
import subprocess
import sys

import interleaved
import numpy as np
import pandas as pd
import torch

import fairlib
from fairlib import environment

GOAL = 8.0
IMAGES = {"imagenet": 5000, "small": 500}


def audited(stem: str, diagnostics: list[str]) -> float:
    """The peak resident memory of this process, in GB, after the audit."""
    rng = np.random.default_rng(0)
    count = IMAGES[stem]
    groups = np.arange(count) % 5
    images = rng.integers(0, 256, (count, 3, 64, 64), dtype=np.uint8)
    data = fairlib.GroupedDataset(images, groups, groups)
    before = fairlib.build("resnet50", num_classes=5, in_channels=3, image_size=64, stem=stem)
    fairlib.audit(
        before, fairlib.prune(before, "magnitude", sparsity=0.9), data, diagnostics=diagnostics
    )
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def main(diagnostics: list[str]) -> None:
    rows = {}
    for stem, count in IMAGES.items():
        command = [sys.executable, __file__, stem, *diagnostics]
        peak = float(
            subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]
        )
        rows[stem] = {
            "images": count,
            "diagnostics": " ".join(diagnostics),
            "peak_gb": peak,
            "goal": GOAL,
        }
        print(f"ResNet-50, {stem} stem, {count} images: {peak:.2f} GB, goal {GOAL:g}")
    where = environment.describe("cpu")
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("stem")
    table["hardware"] = (
        f"{where['cpu']}, {torch.get_num_threads()} thread, torch {where['versions']['torch']}"
    )
    name = "_".join(["audit_memory", *diagnostics])
    table.to_csv(interleaved.RESULTS / f"{name}.csv", float_format="%.4g")


if __name__ == "__main__":
    names = sys.argv[1:]
    if names and names[0] in IMAGES:
        print(audited(names[0], names[1:]))
    else:
        main(names or ["gradient"])
