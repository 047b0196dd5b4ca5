"""The small transformer goes through every method that neither removes channels nor gates ReLUs."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import fairlib
from fairlib.diagnostics import group_eigenvalues, group_gradients

pytestmark = pytest.mark.filterwarnings("ignore:gradients are taken one sample after another")


@pytest.fixture(scope="module")
def digits():
    splits = fairlib.load("digits", seed=0)
    return splits.train.subset(range(400)), splits.test


@pytest.fixture(scope="module")
def trained(digits):
    fresh = fairlib.build("vit-tiny", like=digits[0])
    return fairlib.fit(fresh, digits[0], epochs=4, lr=0.02)


def test_it_is_torchvisions_on_patches_of_four_pixels(trained, digits):
    assert sum(p.numel() for p in trained.parameters()) == 77_530
    transformer = trained.transformer
    assert transformer.conv_proj.stride == (4, 4) and len(transformer.encoder.layers) == 4
    assert all(layer.num_heads == 2 for layer in transformer.encoder.layers)
    assert all(not m.p for m in trained.modules() if isinstance(m, nn.Dropout))
    assert trained.normalize.fitted and fairlib.history(trained)["accuracy"].iloc[-1] > 0.7
    inputs = digits[1].batch(range(5))
    assert torch.equal(trained(inputs), transformer(trained.normalize(inputs)))


@pytest.mark.parametrize("size", [6, 30, 33])
def test_images_are_cut_into_patches(size):
    with pytest.raises(ValueError, match=f"multiple of 4 for the model 'vit-tiny', got {size}"):
        fairlib.build("vit-tiny", num_classes=2, image_size=size)


@pytest.mark.parametrize("method", ["magnitude", "random", "snip"])
def test_its_pruned_weights_stay_zero(method, trained, digits):
    pruned = fairlib.prune(trained, method, sparsity=0.8, data=digits[0])
    tuned = fairlib.fit(pruned, digits[0], epochs=1, lr=0.01)
    for module in (pruned, tuned):
        assert fairlib.sparsity(module) == pytest.approx(0.8, abs=0.01)
        zeros = sum(int((p == 0).sum()) for p in module.parameters() if p.ndim > 1)
        weights = sum(m.numel() for m in fairlib.network.masks.prunable(module).values())
        assert zeros == pytest.approx(0.8 * weights, rel=0.01)


def test_its_weights_are_rounded(trained):
    rounded = fairlib.quantize(trained, "weights", bits=3)
    for weight in (rounded.transformer.heads[0].weight, rounded.transformer.conv_proj.weight):
        assert max(len(row.unique()) for row in weight.flatten(1)) <= 7


def test_it_is_factorized_and_teaches(trained, digits):
    train, test = digits
    inputs = test.batch(range(20))
    for kept in (1.0, 0.7):
        small = fairlib.factorize(trained, "svd", kept=kept)
        assert small(inputs).isfinite().all()
    student = fairlib.distil(trained, 0.5, data=train, train={"epochs": 1})
    count = sum(p.numel() for p in student.parameters())
    assert type(student) is type(trained) and 15_000 < count < 25_000
    with pytest.raises(ValueError, match="at chance"):
        fairlib.distil(fairlib.build("vit-tiny", like=train, seed=3), 0.5, data=train)


@pytest.mark.slow
def test_it_is_audited_and_costs(trained, digits):
    test = digits[1]
    pruned = fairlib.prune(trained, "magnitude", sparsity=0.9)
    table = fairlib.audit(trained, pruned, test).table
    with torch.no_grad():
        correct = trained(test.batch(range(len(test)))).argmax(1) == test.targets
    assert table.loc["all", "accuracy_before"] == pytest.approx(float(correct.float().mean()))
    assert table.loc["all", "drop"] > 0
    cost = fairlib.cost(trained, test)
    assert cost["parameters"].iloc[0] == 77_530 and cost["macs"].iloc[0] > 300_000


@pytest.mark.slow
def test_its_group_gradients_are_those_of_plain_torch(trained, digits):
    test = digits[1]
    norms = group_gradients(trained, test)["norm"]
    for group in (2, 7):
        rows = torch.nonzero(test.groups == group).flatten()
        loss = cross_entropy(trained(test.batch(rows)), test.targets[rows])
        parts = torch.autograd.grad(loss, list(trained.parameters()))
        assert norms[str(group)] == pytest.approx(
            float(torch.cat([part.flatten() for part in parts]).norm()), rel=2e-3
        )


def test_its_curvature_is_that_of_plain_torch(trained, digits):
    few = digits[1].subset([*range(12), *torch.nonzero(digits[1].groups == 1).flatten()[:12]])
    found = group_eigenvalues(trained, few)
    rows = torch.nonzero(few.groups == 1).flatten()
    assert len(rows) == 12
    inputs, targets = few.batch(rows), few.targets[rows]
    parameters = list(trained.parameters())
    # Power iteration, by the kernel of attention that has a second derivative.
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        loss = cross_entropy(trained(inputs), targets)
        slopes = torch.autograd.grad(loss, parameters, create_graph=True)
        vector = [torch.ones_like(p) for p in parameters]
        for _ in range(60):
            size = torch.sqrt(sum(part.square().sum() for part in vector))
            vector = [part / size for part in vector]
            image = torch.autograd.grad(slopes, parameters, vector, retain_graph=True)
            value = float(sum((a * b).sum() for a, b in zip(vector, image, strict=True)))
            vector = list(image)
    ends = found.loc["1", ["largest", "smallest"]]
    assert ends["smallest"] < 0 < ends["largest"]
    assert ends.abs().max() == pytest.approx(abs(value), rel=0.02)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model, data: fairlib.compact(model, data), "ViT cannot be removed.*attention"),
        (
            lambda model, data: fairlib.prune(model, "filter-norm", sparsity=0.5, data=data),
            "ViT cannot be removed.*attention",
        ),
        (
            lambda model, data: fairlib.linearize(model, "random", budget=0.5, data=data),
            r"mlp\.1 \(GELU\)",
        ),
    ],
)
def test_what_needs_channels_or_relus_says_why_not(call, message, trained, digits):
    with pytest.raises(ValueError, match=message):
        call(trained, digits[0])
