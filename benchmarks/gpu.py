"""How many steps a second a GPU trains, by slots and beside what people write.

``python benchmarks/gpu.py [SECONDS]`` takes so many seconds for each way (3) and some three minutes
in all; goals: with the stem of ImageNet one slot at least 3 times the steps of one training that
Python launches, and eight slots 5 times at 64 pixels and 8 times at 32; ten of the smallest network
in at most twice the time of one. On a machine without CUDA it measures what a CPU can and leaves
the other cells empty.

The peers are the loop that most people write, with a ``DataLoader``, and that loop under
``torch.compile(mode="reduce-overhead")``, whose compilation does not count here (30 to 90 seconds).
The recording of the steps does, as each training pays it. airbench's table has 25 % of an A100's
peak for a ResNet-18 on CIFAR-10 and 36 % for its own network
(github.com/KellerJordan/cifar10-airbench, read in 2026)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from torch.utils.flop_counter import FlopCounterMode

import fairlib
from fairlib import environment
from fairlib.training import Training
from fairlib.training.loop import train

TABLE = Path(__file__).resolve().parents[1] / "results" / "benchmarks" / "gpu.csv"
CASES = [  # Network, pixels, batch size, steps of an epoch.
    ("resnet18:stem=imagenet", 64, 128, 40),
    ("resnet18:stem=imagenet", 32, 128, 40),
    ("resnet18", 32, 128, 20),
    ("cnn", 8, 32, 40),
]
PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}
"""Arithmetic of dense bfloat16 a second, by a part of the card's name (NVIDIA's data sheets)."""


def noise(pixels: int, count: int) -> fairlib.GroupedDataset:
    """Noise, on which a step costs what it costs on pictures."""
    draws = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, 256, (count, 3, pixels, pixels), generator=draws, dtype=torch.uint8)
    targets = torch.arange(count) % 5
    return fairlib.GroupedDataset(inputs, targets, targets)


def by_hand(
    model: torch.nn.Module, data: fairlib.GroupedDataset, batch: int, device: str, fused: bool
) -> Callable[[], int]:
    """Train for an epoch by a plain loop over a ``DataLoader``; ``fused`` compiles it."""
    model = model.to(device).train()
    forward = torch.compile(model, mode="reduce-overhead") if fused else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)

    def epoch() -> int:
        for inputs, targets, _ in DataLoader(data, batch, shuffle=True):
            optimizer.zero_grad()
            outputs = forward(inputs.to(device) / 255)
            cross_entropy(outputs, targets.to(device)).backward()
            optimizer.step()
        return len(data) // batch

    return epoch


def ways(name: str, pixels: int, batch: int, steps: int, device: str) -> dict:
    """Ways to train; each returns how many steps it took."""
    data = noise(pixels, steps * batch)
    models = [fairlib.build(name, like=data, seed=seed) for seed in range(10)]
    how = dict(lr=0.01, batch_size=batch, augment="flip", device=device)

    def fit(count: int, epochs: int, **more: str) -> int:
        settings = dict(how, epochs=epochs, **more)
        if count == 1:
            fairlib.fit(models[0], data, **settings)
        else:
            fairlib.fit_many(models[:count], data, seeds=range(count), **settings)
        return count * epochs * steps

    def called(**more: str) -> int:
        train([Training(models[0], data, dict(how, epochs=2, **more))])
        return 2 * steps

    found = {
        "launched by Python": called,
        "a loop over a DataLoader": by_hand(models[9], data, batch, device, fused=False),
        "one slot": lambda: fit(1, 10),
        "eight slots": lambda: fit(8, 10),
        "ten in turn": lambda: fit(10, 10),
        "launched by Python, bfloat16": lambda: called(precision="bfloat16"),
        "one slot, bfloat16": lambda: fit(1, 10, precision="bfloat16"),
        "eight slots, bfloat16": lambda: fit(8, 10, precision="bfloat16"),
        "a compiled loop": by_hand(models[8], data, batch, device, fused=True),
    }
    if device == "cpu":
        # A CPU replays nothing: the first two ways alone.
        found = {way: run for i, (way, run) in enumerate(found.items()) if i < 2}
    return found


def rate(run: Callable[[], int], seconds: float, device: str) -> float:
    """Count steps a second; the first run, in which everything is loaded, does not count."""
    run()
    start, steps = time.perf_counter(), 0
    while (passed := time.perf_counter() - start) < seconds:
        steps += run()
        if device != "cpu":
            torch.cuda.synchronize()
    return steps / passed


def arithmetic(name: str, pixels: int, batch: int) -> float:
    """Count the arithmetic of a step: two for a multiply-add, forward and backward."""
    data = noise(pixels, batch)
    model = fairlib.build(name, like=data)
    with FlopCounterMode(display=False) as counter:
        cross_entropy(model(data.batch(range(batch))), data.targets).backward()
    return counter.get_total_flops()


def main(seconds: float = 3.0) -> None:
    device = environment.resolve_device("auto")
    card = environment.describe()["device" if device != "cpu" else "cpu"]
    peak = next((peak for part, peak in PEAKS.items() if part in card), float("nan"))
    rows = []
    for name, pixels, batch, steps in CASES:
        if device == "cpu" and pixels > 8:
            continue
        each = arithmetic(name, pixels, batch)
        for way, run in ways(name, pixels, batch, steps, device).items():
            steps_a_second = rate(run, seconds, device)
            row = {"network": name, "pixels": pixels, "batch": batch, "way": way}
            row |= {"steps_a_second": steps_a_second, "tflops": each * steps_a_second / 1e12}
            row |= {"share_of_peak": each * steps_a_second / peak, "hardware": card}
            rows.append(row)
            print(pd.DataFrame(rows[-1:]).to_string(header=len(rows) == 1, index=False), flush=True)
            pd.DataFrame(rows).to_csv(TABLE, index=False, float_format="%.4g")


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
