"""An epoch of BiFP against a plain training epoch of the same model; and the gradients of a whole
run.

``python benchmarks/bilevel.py [small_cnn|resnet10|gradients ...]``: two groups, grey synthetic
faces, batch 64. An epoch of BiFP steps through the same samples as the plain one, and for each
batch takes a step of the mask on a batch of other samples that is as large. Goal: three plain
epochs, for weights and for filters. ``gradients`` counts, without a clock: BiFP of twenty epochs,
of which fifteen learn the mask, beside the iterative lottery (a fifth of the weights each round,
trained for as many epochs as the dense network each time) at 90 % of zeros. Goal: at most 1.5 of
the lottery's."""

from __future__ import annotations

import sys
from collections.abc import Callable

import interleaved
import pandas as pd
from torch import nn

import fairlib

NETWORKS = {"small_cnn": ("cnn", 16, 640, 3, 11), "resnet10": ("resnet10", 32, 256, 1, 3)}
"""Architecture, height and width in pixels, samples, epochs of a run, rounds. Of up to three epochs
all learn the mask."""

GOALS = {"BiFP, weights": 3.0, "BiFP, filters": 3.0}


def one_network(name: str) -> None:
    architecture, image_size, samples, epochs, rounds = NETWORKS[name]
    faces = fairlib.load(
        "synthetic-faces",
        target="expression",
        shares=(0.8, 0.2),
        size=2000,
        image_size=image_size,
        seed=0,
    )
    data, val = faces.train.subset(range(samples)), faces.test.subset(range(256))
    start = fairlib.build(architecture, num_classes=2, in_channels=1, image_size=image_size, seed=0)
    model = fairlib.fit(start, data, epochs=1, lr=0.02, seed=0)
    train = {"epochs": epochs, "lr": 0.02, "batch_size": 64}

    def bifp(**settings: object) -> Callable[[], nn.Module]:
        arguments = {"data": data, "val": val, "train": train} | settings
        return lambda: fairlib.prune(model, "bifp", sparsity=0.9, **arguments)

    versions = {
        "plain": lambda: fairlib.fit(model, data, **train),
        "BiFP, weights": bifp(),
        "BiFP, filters": bifp(granularity="filter"),
    }
    interleaved.report(f"bilevel_{name}", interleaved.compare(versions, GOALS, rounds=rounds))


def gradients() -> None:
    digits = fairlib.load("digits", seed=0)
    train = {"epochs": 20, "lr": 0.05, "seed": 0}
    start = fairlib.build("cnn", num_classes=10, in_channels=1, image_size=8, seed=0)
    dense = fairlib.fit(start, digits.train, keep=0, **train)
    taken = {
        method: fairlib.gradient_evaluations(
            fairlib.prune(dense, method, sparsity=0.9, data=digits.train, train=train)
        )
        - fairlib.gradient_evaluations(dense)
        for method in ("lottery", "bifp")
    }
    table = pd.DataFrame({"gradients": taken}).rename_axis("method")
    table["ratio"] = table["gradients"] / table.loc["lottery", "gradients"]
    print(table.to_string())
    table.to_csv(interleaved.RESULTS / "bilevel_gradients.csv", float_format="%.5g")


if __name__ == "__main__":
    for name in sys.argv[1:] or (*NETWORKS, "gradients"):
        gradients() if name == "gradients" else one_network(name)
