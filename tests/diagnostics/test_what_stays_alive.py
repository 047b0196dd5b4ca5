"""Memory after a call: no tensor and no graph outlives it."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

import fairlib
from fairlib.diagnostics import (
    group_eigenvalues,
    group_gradients,
    hessian_bound,
    sample_boundary_distance,
    taylor_terms,
)
from fairlib.network.cost import cost

IMAGES = torch.rand(24, 2, 8, 8, generator=torch.Generator().manual_seed(0))
DATA = fairlib.GroupedDataset(IMAGES, torch.arange(24) % 3, torch.arange(24) % 2)
CALLS = {
    "gradients": lambda model, small: group_gradients(model, DATA),
    "curvature": lambda model, small: group_eigenvalues(model, DATA, limit=3, products="exact"),
    "frozen": lambda model, small: group_eigenvalues(model, DATA, limit=3),
    "taylor": lambda model, small: taylor_terms(model, small, DATA),
    "bound": lambda model, small: hessian_bound(model, DATA.subset([0, 1]), limit=2),
    "distance": lambda model, small: sample_boundary_distance(model, DATA, measure="linearized"),
    "audit": lambda model, small: fairlib.audit(model, small, DATA),
    "cost": lambda model, small: cost({"a": model, "b": small}, DATA, latency=False),
    "constraint": lambda model, small: fairlib.fit(
        model, DATA, epochs=2, constraint=fairlib.EqualCurvature(step=0.1)
    ),
    "linearize": lambda model, small: fairlib.linearize(
        small, "random", budget=0.5, data=DATA, finetune=0
    ),
}


def alive() -> tuple[int, int]:
    """The number of tensors that Python holds, and their bytes."""
    gc.collect()
    kinds = (torch.Tensor, nn.Parameter)
    found = [each for each in gc.get_objects() if type(each) in kinds]
    tensors = [each for each in found if each.layout is torch.strided]
    return len(tensors), sum(each.untyped_storage().nbytes() for each in tensors)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::fairlib.diagnostics.ConvergenceWarning", "ignore:.*chance")
@pytest.mark.parametrize("name", CALLS)
def test_nothing_outlives_a_call(name):
    model = fairlib.build("tiny-resnet", num_classes=3, in_channels=2, image_size=8)
    small = fairlib.prune(model, "magnitude", sparsity=0.5)
    for _ in range(2):  # What is made once for all calls: of torch, of pandas.
        CALLS[name](model, small)
    before = alive()
    for _ in range(3):
        CALLS[name](model, small)
    # Less may be alive, where an earlier test has left something to the collector.
    assert all(now <= then for now, then in zip(alive(), before, strict=True))
