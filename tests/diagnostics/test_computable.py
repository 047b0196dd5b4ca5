from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

import fairlib
from fairlib import diagnostics
from fairlib.diagnostics import (
    NotComputable,
    boundary_distance,
    diagnose,
    group_eigenvalues,
    group_gradients,
    hessian_bound,
    taylor_terms,
)
from fairlib.diagnostics.computable import NotFinite, check_graph, differentiating, finite


class _Linear(nn.Module):
    """A linear classifier of 64 pixels whose logits a function is applied to."""

    def __init__(self, function=lambda logits: logits, classes=3):
        super().__init__()
        self.layer, self.function = nn.Linear(64, classes), function

    def forward(self, inputs):
        return self.function(self.layer(inputs.flatten(1)))


class _Once(Function):
    @staticmethod
    def forward(ctx, inputs):
        ctx.save_for_backward(inputs)
        return inputs.tanh()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        (inputs,) = ctx.saved_tensors
        return gradient * (1 - inputs.tanh() ** 2)


class _Never(Function):
    @staticmethod
    def forward(ctx, inputs):
        return inputs.tanh()


@torch.library.custom_op("fairlib_tests::tanh", mutates_args=())
def _registered(inputs: torch.Tensor) -> torch.Tensor:
    return inputs.tanh()


class _Attention(nn.Module):
    """The rows of an image attend to each other, by the fast kernel that has no second
    derivative."""

    def __init__(self):
        super().__init__()
        self.project, self.head = nn.Linear(8, 24), nn.Linear(64, 3)

    def forward(self, inputs):
        query, key, value = self.project(inputs).chunk(3, dim=-1)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            found = scaled_dot_product_attention(query, key, value)
        return self.head(found.flatten(1))


def _quantized() -> nn.Module:
    layer = nn.Linear(72, 3)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # Torch deprecates it; networks of this kind will be around for years.
        layer.qconfig = torch.ao.quantization.default_dynamic_qconfig
        small = torch.ao.nn.quantized.dynamic.Linear.from_float(layer)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), small)


def _exponential_in_place(logits):
    powers = logits.exp()
    return powers.add_(1)


UNDIFFERENTIABLE = {
    "detached": (lambda: _Linear(torch.detach), "outputs are detached"),
    "without gradients": (
        lambda: _Linear(torch.no_grad()(lambda logits: logits.clone())),
        "outputs are detached",
    ),
    "inference": (lambda: _Linear(torch.inference_mode()(torch.clone)), "outputs are detached"),
    "labels": (
        lambda: _Linear(lambda logits: (logits == logits.amax(1, True)).float()),
        "whole numbers",
    ),
    "numpy": (
        lambda: _Linear(lambda logits: torch.from_numpy(logits.numpy())),
        r"Can't call numpy\(\)",
    ),
    "quantized": (_quantized, "an operation without a derivative"),
    "custom": (lambda: _Linear(_registered), "no autograd formula"),
    "no backward": (lambda: _Linear(_Never.apply), "must implement either the backward"),
    "in place": (lambda: _Linear(_exponential_in_place), "modified by an inplace operation"),
}
BY_PARAMETERS = {
    "scripted": (
        lambda: torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(64, 3))),
        "Jitted modules",
    ),
    "frozen": (lambda: _Linear().requires_grad_(False), "no parameter that requires a gradient"),
    "without parameters": (
        lambda: nn.Sequential(nn.Flatten(), nn.AvgPool1d(21)),
        "no parameter that requires",
    ),
    "by the batch": (
        lambda: nn.Sequential(
            nn.Flatten(), nn.BatchNorm1d(64, track_running_stats=False), nn.Linear(64, 3)
        ),
        "normalizes by its batch also in eval mode",
    ),
}
ONCE = {
    "once": (lambda: _Linear(_Once.apply), "can be differentiated only once"),
    "attention": (_Attention, "derivative for .*attention.* is not implemented"),
}


# "constant" looks at the data alone.
OF_MODELS = [name for name in diagnostics.DIAGNOSTICS if name != "constant"]


@pytest.fixture(autouse=True)
def _same_weights():
    torch.manual_seed(0)


def _data(dtype=np.float32, classes=3) -> fairlib.GroupedDataset:
    generator = np.random.default_rng(0)
    return fairlib.GroupedDataset(
        generator.normal(size=(30, 1, 8, 8)).astype(dtype),
        np.arange(30) % classes,
        np.repeat([0, 1], [20, 10]),
    )


def _cases(*tables):
    return pytest.mark.parametrize(
        ("build", "reason"),
        [pytest.param(*case, id=name) for table in tables for name, case in table.items()],
    )


@_cases(UNDIFFERENTIABLE, BY_PARAMETERS)
def test_a_model_that_cannot_be_differentiated_has_no_gradient_and_a_reason(build, reason):
    model = build()
    for name, function in {"gradient": group_gradients, "curvature": group_eigenvalues}.items():
        with pytest.raises(NotComputable, match=reason):
            function(model, _data())
        table, said = diagnose(name, model, _data())
        assert table.shape[0] == 2 and table.isna().all().all()
        assert said.startswith(f"{name}: could not be computed for this model (")
    assert diagnose("boundary", model, _data())[1] is None  # Which needs no gradient.


@_cases(UNDIFFERENTIABLE)
def test_a_distance_between_inputs_needs_a_model_that_can_be_differentiated(build, reason):
    with pytest.raises(NotComputable, match=reason):
        boundary_distance(build(), _data(), measure="linearized")


@_cases(ONCE)
def test_what_can_be_differentiated_once_has_gradients_and_no_curvature(build, reason):
    """Of a function that can be differentiated only once autograd would give a Hessian of zeros."""
    model, data = build(), _data()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert (group_gradients(model, data)["norm"] > 0).all()
        for function in (
            group_eigenvalues,
            hessian_bound,
            lambda *args: taylor_terms(args[0], *args),
        ):
            with pytest.raises(NotComputable, match=reason):
                function(model, data)
    table, said = diagnose("curvature", model, data)
    assert table.isna().all().all() and "differentiated" in said


def test_an_audit_goes_on_and_notes_the_reason():
    model = _Linear(torch.detach)
    nn.init.zeros_(model.layer.weight)
    with pytest.warns(UserWarning, match="chance"):
        report = fairlib.audit(
            model, model, _data(), diagnostics=["gradient", "boundary"], resamples=20
        )
    assert (
        report.table["gradient_norm"].isna().all()
        and report.table["boundary_mean"].notna().sum() == 2
    )
    assert any(
        "gradient: could not be computed" in note and "detached" in note for note in report.notes
    )


def test_a_frozen_script_can_be_audited():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).eval()
    nn.init.zeros_(model[1].weight)
    with pytest.warns(FutureWarning, match="freeze"):
        frozen = torch.jit.freeze(torch.jit.script(model))
    with pytest.warns(UserWarning, match="chance"):
        report = fairlib.audit(frozen, frozen, _data(), resamples=20)
    assert any("no parameter that requires a gradient" in note for note in report.notes)


@pytest.mark.parametrize(
    "error", [TypeError, RuntimeError, ZeroDivisionError, ValueError, torch.OutOfMemoryError]
)
def test_a_bug_and_bad_input_are_raised(error, monkeypatch):
    def broken(model, data):
        raise error("a bug")

    monkeypatch.setitem(
        diagnostics.DIAGNOSTICS, "gradient", diagnostics.Diagnostic(broken, ("norm",))
    )
    with pytest.raises(error, match="a bug"):
        diagnose("gradient", _Linear(), _data())
    with pytest.raises(ValueError, match="unknown diagnostic"):
        diagnose("no", _Linear(), _data())


def test_settings_reach_the_diagnostic_and_unknown_ones_are_refused():
    long, _ = diagnose("curvature", _Linear(), _data(), least=8)
    assert list(long) == ["curvature_largest", "curvature_residual"]
    with pytest.raises(
        TypeError, match="unknown setting 'most' for diagnostic 'curvature'; known: least"
    ):
        diagnose("curvature", _Linear(), _data(), most=8)
    with pytest.raises(
        TypeError, match="unknown setting 'least' for diagnostic 'boundary'; known: none"
    ):
        diagnose("boundary", _Linear(), _data(), least=8)


@pytest.mark.parametrize("name", OF_MODELS)
def test_a_model_that_raises_or_fits_other_data_is_no_reason_for_nan(name):
    def broken(logits):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    data = _data(classes=2)  # More are refused by "rate" before it asks the model.
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        diagnose(name, _Linear(broken, 2), data)
    with pytest.raises(ValueError, match="one for each class") as caught:
        diagnose(name, _Linear(lambda logits: logits[:, :1], 2), data)
    assert not isinstance(caught.value, NotComputable)


@pytest.mark.parametrize("name", OF_MODELS)
def test_what_is_not_finite_is_not_computable(name):
    data = _data(classes=2)
    table, said = diagnose(name, _Linear(lambda logits: logits * torch.nan, 2), data)
    assert table.isna().all().all() and "nan" in said.split("(")[-1].lower()
    assert issubclass(NotFinite, FloatingPointError)


def test_samples_that_are_not_finite_are_counted():
    for samples in (torch.ones(3), torch.ones(3, 2), torch.ones(3, 2, 2), torch.ones(0, 2)):
        assert finite("the outputs", samples) is samples
    samples = torch.ones(4, 2)
    samples[1, 0], samples[2] = torch.nan, torch.inf
    with pytest.raises(NotFinite, match="the outputs are NaN or infinite on 2 of 4 samples"):
        finite("the outputs", samples)


def test_one_class_has_no_boundary():
    data = _data()
    single = fairlib.GroupedDataset(data.inputs, data.targets * 0, data.groups)
    assert (
        "needs two classes"
        in diagnose("boundary", _Linear(lambda logits: logits[:, :1]), single)[1]
    )


def test_gradients_are_the_same_where_the_caller_records_none():
    model, data = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Tanh(), nn.Linear(5, 3)), _data()
    functions = (group_gradients, group_eigenvalues)
    expected = [function(model, data) for function in functions]
    with torch.no_grad():
        found = [function(model, data) for function in functions]
        assert not torch.is_grad_enabled()
    assert (expected[0]["norm"] > 0).all() and all(
        map(lambda one, other: one.equals(other), expected, found)
    )


def test_only_what_torch_refuses_to_differentiate_is_translated():
    with pytest.raises(RuntimeError, match="size of tensor"), differentiating():
        torch.zeros(2) + torch.zeros(3)
    with pytest.raises(NotComputable, match="must implement"), differentiating():
        _Never.apply(torch.ones(2, requires_grad=True)).sum().backward()
    with pytest.raises(NotComputable, match="checkpoint is incompatible"), differentiating():
        point = torch.ones(2, requires_grad=True)
        torch.autograd.grad(checkpoint(torch.tanh, point, use_reentrant=True).sum(), point)
    once = _Once.apply(torch.ones(2, requires_grad=True))
    check_graph(once)
    check_graph(once.detach())
    (gradient,) = torch.autograd.grad(once.square().sum(), once, create_graph=True)
    check_graph(gradient)
