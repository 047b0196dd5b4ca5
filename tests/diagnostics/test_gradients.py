from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from smooth import only
from torch import nn
from torch.nn.functional import cross_entropy

import fairlib
from fairlib.diagnostics import group_gradients


def _per_sample(model: nn.Module, data: fairlib.GroupedDataset) -> np.ndarray:
    """One backward pass a sample, the slow and certain way."""
    rows = []
    model = copy.deepcopy(model).eval()
    for i in range(len(data)):
        loss = cross_entropy(
            model(data.batch([i], dtype=next(model.parameters()).dtype)), data.targets[i : i + 1]
        )
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        rows.append(torch.cat([g.flatten() for g in gradients]).double().numpy())
    return np.array(rows)


@pytest.mark.parametrize("name", ["cnn", "tiny-resnet"])
def test_agrees_with_one_backward_pass_a_sample(images, name):
    model = fairlib.build(name, num_classes=3, in_channels=1, image_size=8).double().eval()
    table = group_gradients(model, images)
    gradients = _per_sample(model, images)
    for code, group in enumerate(images.group_names):
        g = gradients[images.groups.numpy() == code]
        mean = g.mean(0)
        trace = g.var(0, ddof=1).sum()
        assert table.loc[group, "norm"] == pytest.approx(np.linalg.norm(mean), rel=1e-9)
        assert table.loc[group, "noise_floor"] == pytest.approx(trace / len(g), rel=1e-9)
        assert table.loc[group, "debiased_square"] == pytest.approx(
            mean @ mean - trace / len(g), rel=1e-9
        )


def test_a_pruned_model_counts_only_the_weights_it_kept(cnn, images):
    pruned = fairlib.prune(cnn.double(), "magnitude", sparsity=0.9)
    table = group_gradients(pruned, images)
    gradients = _per_sample(
        pruned, images
    )  # A backward pass through masked weights is masked by itself.
    for code, group in enumerate(images.group_names):
        expected = np.linalg.norm(gradients[images.groups.numpy() == code].mean(0))
        assert table.loc[group, "norm"] == pytest.approx(expected, rel=1e-9)


def test_any_code_between_input_and_logits_will_do(images):
    class Branching(nn.Sequential):
        def forward(self, inputs):
            return super().forward(inputs if float(inputs.mean()) > 9 else -inputs)

    model = Branching(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 3))
    table = group_gradients(model, images)
    assert np.isfinite(table).all().all()


def test_choice_of_parameters(cnn, images):
    whole = group_gradients(cnn, images)["norm"]
    names = [name for name, _ in cnn.named_parameters()]
    parts = [group_gradients(only(cnn, [name]), images)["norm"] for name in names]
    np.testing.assert_allclose(sum(part**2 for part in parts), whole**2, rtol=1e-5)


def test_groups_of_one_and_of_none(cnn, images):
    table = group_gradients(cnn, images.subset(range(81)))
    assert np.isfinite(table.loc["some", "norm"]) and np.isnan(table.loc["some", "noise_floor"])
    assert np.isnan(table.loc["few", "norm"])


def test_nothing_to_differentiate(cnn, images):
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        group_gradients(cnn.requires_grad_(False), images)
