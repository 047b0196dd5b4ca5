from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy

import fairlib
from fairlib.diagnostics import NotComputable
from fairlib.network import masks
from fairlib.network.memory import gradient_evaluations
from fairlib.pruning.fairprune import saliency


class _Attention(nn.Module):
    """Attention, layer normalization and a smooth activation, over the rows of a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 3, activation="gelu", batch_first=True)
        self.out = nn.Linear(4, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.out(self.layer(inputs[:, 0]).mean(1))


def _pictures(groups: int = 3) -> fairlib.GroupedDataset:
    torch.manual_seed(0)
    codes = torch.arange(18) % 6 % groups
    return fairlib.GroupedDataset(
        torch.randn(18, 1, 4, 4, dtype=torch.float64), torch.arange(18) % 3, codes
    )


def _piecewise_linear() -> nn.Module:
    torch.manual_seed(1)
    layers = [nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3))
    model.double()(torch.randn(64, 1, 4, 4).double() * 3 + 1)  # Statistics that are no identity.
    return model.eval()


def _hessian_diagonal(model: nn.Module, data: fairlib.GroupedDataset, group: int, name: str):
    """Differentiate the group's mean loss twice, one weight after another."""
    weight, index = dict(model.named_parameters())[name], (data.groups == group).nonzero().flatten()
    with sdpa_kernel(SDPBackend.MATH):  # Fused attention has no second derivative.
        logits = model(data.batch(index, dtype=torch.float64))
    loss = cross_entropy(logits, data.targets[index])
    (slope,) = torch.autograd.grad(loss, weight, create_graph=True)
    rows = [torch.autograd.grad(each, weight, retain_graph=True)[0] for each in slope.flatten()]
    return torch.stack([row.flatten() for row in rows]).diagonal().view_as(weight)


def _gauss_newton_diagonal(model: nn.Module, data: fairlib.GroupedDataset, group: int, name: str):
    """Compute J^T (diag(p) - p p^T) J with the Jacobian of all logits, and average over samples."""
    weight, total = dict(model.named_parameters())[name], 0.0
    index = (data.groups == group).nonzero()
    for i in index:
        logits = model(data.batch(i, dtype=torch.float64))[0]
        jacobian = torch.stack(
            [torch.autograd.grad(z, weight, retain_graph=True)[0].flatten() for z in logits]
        )
        p = logits.softmax(0).detach()
        total += (jacobian.T @ (p.diag() - torch.outer(p, p)) @ jacobian).diagonal()
    return total.view_as(weight) / len(index)


def test_saliency_is_exact_in_a_piecewise_linear_network():
    model, data = _piecewise_linear(), _pictures()
    found = saliency(model, data)
    assert list(found) == ["0.weight", "5.weight", "7.weight"]
    for name, values in found.items():
        weight = dict(model.named_parameters())[name].detach()
        for group in range(3):
            expected = weight**2 * _hessian_diagonal(model, data, group, name) / 2
            torch.testing.assert_close(values[group], expected, rtol=1e-9, atol=1e-15)


def test_saliency_of_attention_is_that_of_the_gauss_newton_matrix():
    torch.manual_seed(2)
    model, data = _Attention().double().eval(), _pictures()
    differs = False
    for name, values in saliency(model, data).items():
        weight = dict(model.named_parameters())[name].detach()
        expected = weight**2 * _gauss_newton_diagonal(model, data, 1, name) / 2
        torch.testing.assert_close(values[1], expected, rtol=1e-9, atol=1e-15)
        hessian = weight**2 * _hessian_diagonal(model, data, 1, name) / 2
        differs |= not torch.allclose(hessian, expected, rtol=1e-2)
    assert differs  # What is left out is not nothing here, so that the test can tell the two apart.


@pytest.mark.parametrize(("groups", "half"), [(2, 1), (3, 1), (5, 2)])
def test_the_weights_of_highest_score_stay(groups, half):
    model, data, beta = _piecewise_linear(), _pictures(groups), 0.4
    parts = [data.subset((data.groups == group).nonzero().flatten()) for group in range(groups)]
    with torch.no_grad():
        logits = [model(part.inputs) for part in parts]
    # Accuracies, then losses: with few samples groups are often equally accurate.
    worst_off = sorted(
        range(groups),
        key=lambda group: (
            (logits[group].argmax(1) == parts[group].targets).double().mean().item(),
            -cross_entropy(logits[group], parts[group].targets).item(),
        ),
    )
    score = []
    for name, weight in masks.prunable(model).items():
        own = [_hessian_diagonal(model, data, group, name) for group in worst_off]
        spared, others = torch.stack(own[:half]).mean(0), torch.stack(own[half:]).mean(0)
        score.append((weight.detach() ** 2 * (spared - beta * others) / 2).flatten())
    flat = torch.cat(score)
    pruned = fairlib.prune(model, "fairprune", sparsity=0.5, data=data, beta=beta)
    kept = torch.cat([mask.flatten() for mask in masks.read_masks(pruned).values()])
    assert set(flat.argsort()[: round(0.5 * len(flat))].tolist()) == set(
        (~kept).nonzero().flatten().tolist()
    )


@pytest.mark.parametrize("worse", [0, 1])
def test_the_group_worst_off_is_spared(worse):
    """Two pixels, each read in one group alone: the pixel of the group that errs more stays."""
    groups = torch.tensor([0, 0, 1, 1])
    inputs = torch.eye(2)[groups] * torch.tensor([[1.0], [-1.0], [1.0], [-1.0]])
    targets = torch.tensor([0, 1, 0, 1])
    targets[groups == worse] = 1 - targets[groups == worse]
    model = nn.Linear(2, 2, bias=False)
    model.weight.data = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
    data = fairlib.GroupedDataset(inputs, targets, groups)
    pruned = fairlib.prune(model, "fairprune", sparsity=0.5, data=data)
    assert pruned.weight[:, worse].all() and not pruned.weight[:, 1 - worse].any()


def test_scoring_is_drawn_by_the_seed_counted_and_leaves_the_model_alone(cnn, images):
    cnn = fairlib.fit(cnn, images, epochs=2)
    cnn.zero_grad()
    before = copy.deepcopy(cnn.state_dict())

    def prune(**settings):
        return fairlib.prune(cnn, "fairprune", sparsity=0.7, data=images, **settings)

    def kept(**settings):
        return masks.read_masks(prune(**settings))["classifier.0.weight"]

    assert torch.equal(kept(samples=5, seed=1), kept(samples=5, seed=1))
    assert not torch.equal(kept(samples=5, seed=1), kept(samples=5, seed=2))
    assert torch.equal(kept(seed=1), kept(seed=2))  # All of the samples, whatever their order.
    assert not torch.equal(kept(beta=0.0), kept(beta=1.0))
    spent = gradient_evaluations(prune(samples=20)) - gradient_evaluations(cnn)
    assert spent == (20 + 20 + 10) * 3
    assert all(torch.equal(value, before[name]) for name, value in cnn.state_dict().items())
    assert all(parameter.grad is None for parameter in cnn.parameters())


def test_half_precision_scores_do_not_vanish(cnn, images):
    trained = fairlib.fit(cnn, images, epochs=3)
    scores = saliency(trained.half(), images)
    assert all(score.dtype == torch.float32 and score.any() for score in scores.values())


def test_goes_on_from_a_pruned_model_in_rounds_without_training(cnn, images):
    cnn = fairlib.fit(cnn, images, epochs=2)
    half = fairlib.prune(cnn, "fairprune", sparsity=0.5, data=images)
    rounds = ("iterative", {"rate": 0.3})
    settings = {"schedule": rounds, "train": {"epochs": 0}}
    most = fairlib.prune(half, "fairprune", sparsity=0.7, data=images, **settings)
    assert fairlib.sparsity(most) == pytest.approx(0.7, abs=1e-3)
    for name, mask in masks.read_masks(most).items():
        assert bool((masks.read_masks(half)[name] | ~mask).all())
        weight = dict(cnn.named_parameters())[name]
        assert torch.equal(dict(most.named_parameters())[name], weight * mask)
    with pytest.raises(ValueError, match="are pruned already"):
        fairlib.prune(most, "fairprune", sparsity=0.5, data=images)


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.GRU(8, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.out(self.cell(inputs[:, 0])[0][:, -1])


def test_bad_input(cnn, images):
    def prune(model=cnn, data=images, **settings):
        fairlib.prune(model, "fairprune", **{"sparsity": 0.5, "data": data, **settings})

    with pytest.raises(ValueError, match="group 'few' has no sample in the data"):
        prune(data=images.subset(range(110)))
    alone = fairlib.GroupedDataset(images.inputs, images.targets, images.groups * 0)
    with pytest.raises(ValueError, match="two groups or more"):
        prune(data=alone)
    with pytest.raises(ValueError, match="needs data="):
        prune(data=None)
    with pytest.raises(ValueError, match="sparsity must lie"):
        prune(sparsity=1.0)
    with pytest.raises(ValueError, match="beta must"):
        prune(beta=-0.1)
    with pytest.raises(ValueError, match="samples must"):
        prune(samples=0)
    with pytest.raises(NotComputable, match="cannot be differentiated a sample at a time"):
        prune(model=_Recurrent())
    batchwise = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, track_running_stats=False))
    with pytest.raises(NotComputable, match="normalizes by its batch"):
        prune(model=batchwise.append(nn.Linear(64, 3)))
    with torch.no_grad():
        cnn.features[0].weight[0] = torch.nan
    with pytest.raises(FloatingPointError, match="NaN or infinite"):
        prune()
