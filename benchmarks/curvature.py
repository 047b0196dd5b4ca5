"""The largest Hessian eigenvalue of every group, against PyHessian run once for each group with its
defaults.

``python benchmarks/curvature.py [small_cnn|small_cnn_untrained|resnet18|resnet18_untrained|sweep
...]``, after ``pip install --no-deps -r benchmarks/requirements.txt``; grey synthetic faces of 32
pixels, five groups, five classes, networks that were trained for three epochs or not at all. Goals:
a third of PyHessian's CPU time on the small network (two convolutions, three linear layers, 121
thousand parameters, 300 samples a group), half on ResNet-18 with torchvision's stem (128 samples a
group), at a relative error of at most 1e-3; over a sweep of eight pruning ratios half of eight cold
runs. Errors are against Lanczos with products in float64, run until the estimated error is 1e-14.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial

import interleaved
import numpy as np
import pandas as pd
import torch
from pyhessian import hessian
from torch import nn
from torch.nn.functional import cross_entropy

import fairlib
from fairlib.diagnostics import ConvergenceWarning, group_eigenvalues, sweep_eigenvalues

RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
SMALL = {"channels": (16, 32), "hidden": (56, 16)}
NETWORKS = {  # Architecture, its settings, epochs of training, samples of a group, rounds.
    "small_cnn": ("cnn", SMALL, 3, 300, 5),
    "small_cnn_untrained": ("cnn", SMALL, 0, 300, 5),
    "resnet18": ("resnet18", {"stem": "imagenet"}, 3, 128, 3),
    "resnet18_untrained": ("resnet18", {"stem": "imagenet"}, 0, 128, 3),
}
GOALS = {
    "small_cnn": 1 / 3,
    "small_cnn_untrained": 1 / 3,
    "resnet18": 1 / 2,
    "resnet18_untrained": 1 / 2,
}
ACCURATE = (
    1e-4  # A tolerance of PyHessian at which its errors are below 1e-3 too; its default is 1e-3.
)


def prepared(name: str) -> tuple[nn.Module, fairlib.GroupedDataset]:
    """A network of NETWORKS, trained, and equally many training samples of each group."""
    architecture, settings, epochs, size, _ = NETWORKS[name]
    faces = fairlib.load("synthetic-faces", size=4000, image_size=32, seed=0).train
    start = fairlib.build(
        architecture,
        num_classes=faces.num_classes,
        in_channels=1,
        image_size=32,
        seed=0,
        **settings,
    )
    model = fairlib.fit(start, faces, epochs=epochs, lr=0.02, seed=0)
    chosen = [
        np.flatnonzero(faces.groups.numpy() == code)[:size] for code in range(faces.num_groups)
    ]
    return model, faces.subset(np.concatenate(chosen))


def by_pyhessian(model: nn.Module, data: fairlib.GroupedDataset, tol: float = 1e-3) -> list[float]:
    found = []
    for code in range(data.num_groups):
        members = (data.groups == code).nonzero().flatten()
        model.zero_grad()  # Its constructor adds to the gradients that it finds.
        batch = (data.batch(members, dtype=torch.float32), data.targets[members])
        found.append(
            hessian(model, cross_entropy, data=batch, cuda=False).eigenvalues(tol=tol)[0][0]
        )
    return found


def converged(model: nn.Module, data: fairlib.GroupedDataset) -> np.ndarray:
    settings = {"ends": "largest", "products": "exact", "dtype": torch.float64, "tol": 1e-14}
    return group_eigenvalues(model, data, **settings)["largest"].to_numpy()


def cold(model: nn.Module, data: fairlib.GroupedDataset, **settings: object) -> pd.DataFrame:
    return group_eigenvalues(model, data, ends="largest", **settings)


def one_network(name: str) -> None:
    model, data = prepared(name)
    truth = converged(model, data)
    versions: dict[str, Callable[[], object]] = {
        "pyhessian": partial(by_pyhessian, model, data),
        "fairlib": partial(cold, model, data),
        "fairlib, exact products": partial(cold, model, data, products="exact"),
    }
    if name.startswith("small"):  # Elsewhere it takes hours.
        versions["pyhessian, more exact"] = partial(by_pyhessian, model, data, tol=ACCURATE)
    torch.manual_seed(0)
    table = interleaved.compare(versions, {"fairlib": GOALS[name]}, rounds=NETWORKS[name][-1])
    found = {version: np.asarray(_values(run())) for version, run in versions.items()}
    table["error"] = {
        version: np.abs(values / truth - 1).max() for version, values in found.items()
    }
    interleaved.report(f"curvature_{name}", table)
    print(table["error"].map("largest relative error {:.1e}".format).to_string())


def sweep() -> None:
    dense, data = prepared("small_cnn")
    models = {ratio: fairlib.prune(dense, "magnitude", sparsity=ratio) for ratio in RATIOS}
    truth = np.concatenate([converged(model, data) for model in models.values()])
    versions: dict[str, Callable[[], pd.DataFrame]] = {
        "cold": lambda: pd.concat([cold(model, data) for model in models.values()]),
        "sweep": lambda: sweep_eigenvalues(models, data),
    }
    table = interleaved.compare(versions, {"sweep": 0.5}, rounds=NETWORKS["small_cnn"][-1])
    for version, run in versions.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ConvergenceWarning)
            values = run()
        table.loc[version, "error"] = np.abs(values["largest"].to_numpy() / truth - 1).max()
        table.loc[version, ["products", "flags"]] = values["hvps"].mean(), len(caught)
    interleaved.report("curvature_sweep", table)
    print(table[["error", "products", "flags"]].to_string())


def _values(found: object) -> object:
    return found["largest"] if isinstance(found, pd.DataFrame) else found


if __name__ == "__main__":
    warnings.filterwarnings(
        "ignore", "Using backward", UserWarning
    )  # PyHessian keeps graphs in .grad.
    for name in sys.argv[1:] or [*NETWORKS, "sweep"]:
        sweep() if name == "sweep" else one_network(name)
