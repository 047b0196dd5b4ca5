from __future__ import annotations

import copy

import pytest
import torch
from dense import dense_hessian
from torch import nn
from torch.nn.functional import cross_entropy

import fairlib
from fairlib.diagnostics import objective
from fairlib.diagnostics.objective import MeanLoss


def members(data: fairlib.GroupedDataset, group: int) -> torch.Tensor:
    return (data.groups == group).nonzero().flatten()


def test_value_gradient_and_product_agree_with_plain_autograd_and_a_dense_hessian(cnn, images):
    cnn = cnn.double().eval()
    index = members(images, 1)
    loss = MeanLoss(cnn, images, index)
    plain = cross_entropy(cnn(images.batch(index, dtype=torch.float64)), images.targets[index])
    assert loss.value() == pytest.approx(plain.item(), rel=1e-12)
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(plain, list(cnn.parameters()))])
    torch.testing.assert_close(loss.gradient(), gradient)
    vector = torch.randn(
        len(gradient), dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    small = fairlib.build(
        "mlp", num_classes=3, in_channels=1, image_size=8, width=0.1, seed=0
    ).eval()
    loss = MeanLoss(small, images, index, dtype=torch.float64)
    vector = vector[: len(loss.theta)]
    torch.testing.assert_close(loss.product(vector), dense_hessian(small, images, 1) @ vector)


def test_chunks_do_not_change_the_result(cnn, images, monkeypatch):
    cnn = cnn.double()
    whole = MeanLoss(cnn, images)
    vector = torch.ones_like(whole.theta)
    monkeypatch.setattr(objective, "BUDGET", 7 * 2**10)
    parts = MeanLoss(cnn, images)
    assert len(parts.chunks) > 1 and len(whole.chunks) == 1
    assert parts.value() == pytest.approx(whole.value(), rel=1e-12)
    torch.testing.assert_close(parts.gradient(), whole.gradient())
    torch.testing.assert_close(parts.product(vector), whole.product(vector))


def test_pruned_weights_are_no_variables(cnn, images):
    pruned = fairlib.prune(cnn, "magnitude", sparsity=0.8).double()
    loss = MeanLoss(pruned, images)
    everywhere = torch.ones_like(loss.theta)
    zero = loss.kept == 0
    assert zero.any()
    assert not loss.gradient()[zero].any() and not loss.product(everywhere)[zero].any()
    torch.testing.assert_close(loss.product(everywhere), loss.product(loss.project(everywhere)))


def test_tied_parameters_count_once(images):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.out = (
                nn.Linear(64, 64),
                nn.Linear(64, 64),
                nn.Linear(64, 3),
            )
            self.second.weight = self.first.weight

        def forward(self, inputs):
            return self.out(torch.tanh(self.second(torch.tanh(self.first(inputs.flatten(1))))))

    torch.manual_seed(0)
    model = Tied().double()
    loss = MeanLoss(model, images)
    assert len(loss.theta) == 64 * 64 + 2 * 64 + 3 * 64 + 3
    plain = cross_entropy(model(images.batch(range(120), dtype=torch.float64)), images.targets)
    gradients = torch.autograd.grad(plain, list(model.parameters()))
    torch.testing.assert_close(loss.gradient(), torch.cat([g.flatten() for g in gradients]))


def test_a_module_with_two_names_is_not_damaged(images):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.out = nn.Linear(64, 64), nn.Linear(64, 3)
            self.two = self.one

        def forward(self, inputs):
            return self.out(torch.tanh(self.two(torch.tanh(self.one(inputs.flatten(1))))))

    model = Twice().double()
    plain = cross_entropy(model(images.batch(range(120), dtype=torch.float64)), images.targets)
    gradients = torch.autograd.grad(plain, list(model.parameters()))
    loss = MeanLoss(model, images)
    torch.testing.assert_close(loss.gradient(), torch.cat([g.flatten() for g in gradients]))
    assert all(isinstance(weight, nn.Parameter) for weight in model.one._parameters.values())
    assert len(list(model.parameters())) == 4


def test_the_model_is_left_as_it_was(images):
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 3)).train()
    state = copy.deepcopy(model.state_dict())
    loss = MeanLoss(model, images)
    loss.product(loss.gradient())
    assert model.training and model[1].training
    assert all(
        parameter.grad is None and parameter.requires_grad for parameter in model.parameters()
    )
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_a_linear_function_has_no_second_derivative(images):
    class Flat(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs.flatten(1)).detach() + 0 * self.bias

    loss = MeanLoss(Flat(64, 3), images)
    assert not loss.gradient().any() and not loss.product(torch.ones_like(loss.theta)).any()


def test_a_frozen_backbone_counts_for_the_size_of_a_pass(cnn, images, monkeypatch):
    monkeypatch.setattr(objective, "BUDGET", 7 * 2**10)
    last = list(dict(cnn.named_parameters()))[-2:]
    assert (
        len(MeanLoss(cnn, images, parameters=last).chunks) == len(MeanLoss(cnn, images).chunks) > 1
    )


def test_masked_weights_are_zero_whatever_value_they_hold(cnn, images):
    pruned = fairlib.prune(cnn, "magnitude", sparsity=0.8)
    clean = MeanLoss(pruned, images).value()
    for name, mask in fairlib.network.masks.read_masks(pruned).items():
        dict(pruned.named_parameters())[name].data[~mask] = 1
    assert MeanLoss(pruned, images).value() == clean


def test_bad_input(cnn, images):
    batchwise = nn.Sequential(
        nn.Flatten(), nn.BatchNorm1d(64, track_running_stats=False), nn.Linear(64, 3)
    )
    with pytest.raises(ValueError, match="1 normalizes by its batch also in eval mode"):
        MeanLoss(batchwise, images)
    with pytest.raises(ValueError, match="has no parameter that requires a gradient"):
        MeanLoss(copy.deepcopy(cnn).requires_grad_(False), images)
    with pytest.raises(ValueError, match="at least one sample"):
        MeanLoss(cnn, images, torch.tensor([], dtype=torch.long))
    next(iter(cnn.parameters())).data.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match=r"the loss of \d+ samples is nan"):
        MeanLoss(cnn, images).gradient()


def test_drawn_labels_leave_no_gradient_on_average(cnn, images):
    loss = MeanLoss(cnn.double(), images)
    draws = torch.stack(
        [loss.sampled_gradient(torch.Generator().manual_seed(seed)) for seed in range(200)]
    )
    mean, spread = draws.mean(0).norm(), draws.norm(dim=1).mean()
    assert mean < 0.2 * spread
