"""How many steps a second several processes train together on one device.

``python benchmarks/shared_gpu.py 12``, alone and then under NVIDIA's MPS (``nvidia-cuda-mps-control
-d``): the ratio of the two numbers says what MPS is worth to a sweep that runs as many points at a
time. Each process trains the ResNet-18 of ``matthew-effect-resnet18.yml`` on noise of 32 pixels, in
batches of 128."""

from __future__ import annotations

import subprocess
import sys
import time

import torch

import fairlib

STEPS, BATCH, SECONDS = 40, 128, 4.0


def rate(device: str) -> float:
    """Steps a second of one process; the first training, in which everything is loaded, does not
    count."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(
        0, 256, (STEPS * BATCH, 3, 32, 32), generator=generator, dtype=torch.uint8
    )
    targets = torch.randint(0, 5, (len(inputs),), generator=generator)
    data = fairlib.GroupedDataset(inputs, targets, targets)
    model = fairlib.build("resnet18:stem=imagenet", like=data)
    how = {"epochs": 1, "lr": 0.01, "batch_size": BATCH, "augment": "flip", "device": device}
    fairlib.fit(model, data, **how)
    start, steps = time.perf_counter(), 0
    while (
        time.perf_counter() - start < SECONDS
    ):  # A training ends with a look at its loss, which waits for the GPU.
        fairlib.fit(model, data, **how)
        steps += STEPS
    return steps / (time.perf_counter() - start)


def main(processes: int, device: str = "cuda") -> None:
    command = [sys.executable, __file__, "one", device]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    total = sum(float(process.communicate()[0]) for process in running)
    print(f"{total:.1f} steps a second in {processes} processes on {device}")


if __name__ == "__main__":
    if sys.argv[1] == "one":
        print(rate(sys.argv[2]))
    else:
        main(int(sys.argv[1]), *sys.argv[2:])
