"""How much faster ResNet-18 runs in 8-bit integers, and factorized to half of its parameters, under
onnxruntime.

``python benchmarks/int8.py``; goals: 0.6 and 0.7 of the time of the dense network in float32, at
batch 64 and 32 pixels."""

from __future__ import annotations

import interleaved
import torch

import fairlib
from fairlib.network.export import run_onnx, to_onnx


def main() -> None:
    model = fairlib.build("resnet18", num_classes=5, in_channels=3, image_size=32).eval()
    inputs = torch.rand(64, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    data = fairlib.GroupedDataset(inputs, [0] * 64, [0] * 64)
    versions = {
        "float32": model,
        "int8": fairlib.quantize(model, "int8-static", data=data),
        "half, factorized": fairlib.factorize(model, "svd", kept=0.5, last="split"),
    }
    goals = {"int8": 0.6, "half, factorized": 0.7}
    sessions = {name: run_onnx(to_onnx(net, data)) for name, net in versions.items()}
    passes = {name: lambda run=run: run(inputs) for name, run in sessions.items()}
    interleaved.report("int8", interleaved.compare(passes, goals, rounds=21))


if __name__ == "__main__":
    main()
