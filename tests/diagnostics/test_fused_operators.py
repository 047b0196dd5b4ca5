"""Attention and recurrence, whose fused operators have no second derivative, against a dense
Hessian."""

from __future__ import annotations

import pytest
import torch
from dense import dense_hessian
from smooth import only
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import fairlib
from fairlib.diagnostics import curvature, group_eigenvalues, hessian_bound, taylor_terms
from fairlib.network.evaluation import open_operators

INPUTS = torch.randn(24, 12, generator=torch.Generator().manual_seed(0))
DATA = fairlib.GroupedDataset(INPUTS, torch.arange(24) % 3, torch.arange(24) % 2)


class Sequence(nn.Module):
    """A layer over three positions of four features, and a head on the mean of what it gives."""

    def __init__(self, layer: nn.Module, width: int = 4):
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, 3)

    def forward(self, inputs):
        positions = inputs.view(-1, 3, 4)
        if isinstance(self.layer, nn.MultiheadAttention):
            found = self.layer(positions, positions, positions, need_weights=False)
        else:
            found = self.layer(positions)
        return self.head((found[0] if isinstance(found, tuple) else found).mean(1))


def _encoder(activation):
    return nn.TransformerEncoderLayer(4, 2, 6, activation=activation, batch_first=True)


LAYERS = {
    "attention": lambda: Sequence(nn.MultiheadAttention(4, 2, batch_first=True)),
    "gelu encoder": lambda: Sequence(nn.TransformerEncoder(_encoder("gelu"), 1)),
    "relu encoder": lambda: Sequence(_encoder("relu")),
    "lstm": lambda: Sequence(nn.LSTM(4, 3, batch_first=True), width=3),
}


def _model(name):
    torch.manual_seed(0)
    return LAYERS[name]().double().eval()


def _hessians(model):
    with sdpa_kernel(SDPBackend.MATH):
        return [dense_hessian(model, DATA, group) for group in range(2)]


@pytest.mark.parametrize("name", LAYERS)
def test_curvature_and_expansion_are_those_of_the_dense_hessian(name):
    model = _model(name)
    hessians = _hessians(model)
    largest = [float(torch.linalg.eigvalsh(hessian)[-1]) for hessian in hessians]
    found = group_eigenvalues(model, DATA, ends="largest", tol=1e-7)["largest"]
    assert found.tolist() == pytest.approx(largest, rel=1e-5)
    small = fairlib.prune(model, "magnitude", sparsity=0.5)
    step = nn.utils.parameters_to_vector(small.parameters())
    step = (step - nn.utils.parameters_to_vector(model.parameters())).detach()
    second = taylor_terms(model, small, DATA)["second"].tolist()
    assert second == pytest.approx([float(step @ h @ step) / 2 for h in hessians], rel=1e-9)
    run = fairlib.EqualCurvature().start(model, DATA, None)
    assert run.full[1].tolist() == pytest.approx(largest, rel=2e-2)


def test_bounds_of_attention_hold():
    model = only(_model("attention"), ["layer.in_proj_bias", "head.weight"])
    signed, moving = hessian_bound(model, DATA)["signed"], []
    for weight in model.parameters():
        moving += [weight.requires_grad] * weight.numel()
    for hessian, bound in zip(_hessians(model), signed, strict=True):
        assert 0 < float(torch.linalg.eigvalsh(hessian[moving][:, moving])[-1]) <= bound


def test_kinks_are_found_again_where_patterns_are_recorded_without_gradients(monkeypatch):
    """Without gradients torch's encoder layer computes its ReLU in one operator with the rest."""
    model = _model("relu encoder")
    whole = group_eigenvalues(model, DATA)
    monkeypatch.setattr(curvature, "BUDGET", 0)
    found = group_eigenvalues(model, DATA)
    torch.testing.assert_close(
        torch.tensor(found.to_numpy()), torch.tensor(whole.to_numpy()), rtol=1e-9, atol=1e-9
    )


def test_training_under_equal_curvature_moves_attention():
    model = _model("attention")
    settings = {"epochs": 2, "batch_size": 12, "lr": 0.1, "seed": 0}
    fair = fairlib.fit(
        model, DATA, constraint=fairlib.EqualCurvature(step=0.5, tolerance=0), **settings
    )
    plain = fairlib.fit(model, DATA, **settings)
    assert not torch.equal(fair.layer.in_proj_weight, plain.layer.in_proj_weight)
    assert fairlib.history(fair).notna().all(axis=None)


def test_settings_of_torch_are_left_as_they_were():
    def settings():
        return torch.backends.mha.get_fastpath_enabled(), torch.backends.cudnn.enabled

    before, model = settings(), _model("lstm")
    with pytest.raises(ZeroDivisionError), open_operators(model):
        assert settings() == (False, False)
        raise ZeroDivisionError
    assert settings() == before
    with open_operators(model.head):
        assert settings() == (False, before[1])


def test_complex_weights_are_refused_by_name():
    class Fourier(nn.Module):
        def __init__(self):
            super().__init__()
            self.filter = nn.Parameter(torch.randn(7, dtype=torch.complex64))
            self.head = nn.Linear(12, 3)

        def forward(self, inputs):
            return self.head(torch.fft.irfft(torch.fft.rfft(inputs) * self.filter, n=12))

    model, constraint = Fourier(), fairlib.EqualCurvature()
    for function in (fairlib.diagnostics.group_gradients, group_eigenvalues):
        with pytest.raises(fairlib.diagnostics.NotComputable, match="filter is complex"):
            function(model, DATA)
    with pytest.raises(ValueError, match="filter is complex"):
        constraint.start(model, DATA, None)
    model.filter.requires_grad_(False)  # Constant, it is like any other function of the inputs.
    norms = fairlib.diagnostics.sample_gradient_norms(model, DATA)
    loss = nn.functional.cross_entropy(model(INPUTS[:1]), DATA.targets[:1])
    gradients = torch.autograd.grad(loss, list(model.head.parameters()))
    expected = sum(float(gradient.square().sum()) for gradient in gradients) ** 0.5
    assert norms[0] == pytest.approx(expected, rel=1e-5)
