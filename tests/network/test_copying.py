from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

import fairlib
from fairlib.network.compaction import compact
from fairlib.network.copying import copied
from fairlib.network.export import to_onnx


class Keeps(nn.Module):
    """Keeps its last features, normalizes its inputs in place and makes a table when needed."""

    def __init__(self):
        super().__init__()
        self.n, self.f = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), nn.Linear(8, 3)
        self.kept, self.table = {}, None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.n(inputs.sub_(0.5).div_(0.25))
        if self.table is None:
            self.table = torch.hann_window(hidden.shape[-1], periodic=False).to(hidden)
        features = (hidden * self.table).mean((2, 3))
        self.kept["last"] = [features, (features, "of the last batch")]
        return self.f(features)


@pytest.fixture
def faces() -> fairlib.GroupedDataset:
    torch.manual_seed(0)
    return fairlib.GroupedDataset(
        torch.rand(60, 3, 8, 8), torch.arange(60) % 3, (torch.arange(60) % 5 == 0).long()
    )


def test_a_copy_has_what_the_model_has_kept(faces):
    model = Keeps()
    answers = model(faces.inputs.clone())
    twin = copied(model)
    first, (second, _) = twin.kept["last"]
    assert first is second and first.is_leaf and torch.equal(first, model.kept["last"][0])
    assert torch.equal(twin(faces.inputs.clone()), answers) and model.kept["last"][0].grad_fn


DOORS = {
    "prune": lambda m, d: fairlib.prune(m, "magnitude", sparsity=0.5),
    "filters": lambda m, d: fairlib.prune(m, "filter-norm", sparsity=0.5, data=d),
    "compact": lambda m, d: compact(fairlib.prune(m, "fpgm", sparsity=0.5, data=d), d),
    "snip": lambda m, d: fairlib.prune(m, "snip", sparsity=0.5, data=d),
    "fit": lambda m, d: fairlib.fit(m, d, epochs=1),
    "quantize": lambda m, d: fairlib.quantize(m, "weights", bits=4),
    "factorize": lambda m, d: fairlib.factorize(m, "svd", kept=0.9),
    "gate": lambda m, d: fairlib.linearization.gate(m, d),
    "linearize": lambda m, d: fairlib.linearize(m, "random", budget=0.5, data=d, finetune=0),
    "gradients": lambda m, d: fairlib.diagnostics.group_gradients(m, d),
    "onnx": lambda m, d: to_onnx(m, d),
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_takes_a_model_that_keeps_and_changes_things(door, faces):
    model = Keeps().eval()
    model(faces.inputs.clone())
    before = copy.deepcopy(list(model.parameters()))
    made = DOORS[door](model, faces)
    assert made is not None and made is not model
    assert all(map(torch.equal, model.parameters(), before))


def test_an_audit_leaves_a_model_that_can_be_trained(faces):
    model = Keeps()
    with warnings.catch_warnings(action="ignore"):  # It is no better than chance.
        report = fairlib.audit(model, model, faces, resamples=20)
    assert report.table["gradient_norm"].iloc[:2].notna().all()
    assert not any(t.is_inference() for t in (model.table, model.kept["last"][0]))
    model(faces.inputs.clone()).sum().backward()
    assert model.n[0].weight.grad.any()


def test_lazy_layers_are_named():
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2))
    for door in ("fit", "quantize", "factorize"):
        data = fairlib.GroupedDataset(torch.rand(6, 5), torch.arange(6) % 2, torch.arange(6) % 2)
        with pytest.raises(ValueError, match=r"0 of the model is a lazy LazyLinear"):
            DOORS[door](model, data)
    with pytest.raises(ValueError, match=r"0 of the model is a lazy LazyLinear"):
        fairlib.prune(model, "magnitude", sparsity=0.5)
