from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from dense import dense_hessian
from hypothesis import given, settings
from hypothesis import strategies as st
from smooth import only, random_data, smooth_model
from torch import nn

import fairlib
from fairlib.diagnostics.hessian_bound import hessian_bound

COLUMNS = ["closeness", "spectral", "signed", "printed", "residual"]


class Curve(nn.Module):
    """Two classes whose logit, the difference of their outputs, is a function of one parameter t
    and the input."""

    def __init__(self, logit, t=0.0):
        super().__init__()
        self.t, self.logit = nn.Parameter(torch.tensor([t], dtype=torch.float64)), logit

    def forward(self, inputs):
        logit = self.logit(self.t, inputs[:, :1])
        return torch.cat([-logit / 2, logit / 2], dim=1)


def _positives(n=1):
    return fairlib.GroupedDataset(
        np.ones((n, 1)), [1] * n, [0] * n, group_names=["all"], target_names=["no", "yes"]
    )


def _largest(model, data, group):
    return float(torch.linalg.eigvalsh(dense_hessian(model, data, group))[-1])


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    classes=st.integers(2, 4),
    hidden=st.integers(1, 5),
    scale=st.sampled_from([0.3, 1.0, 3.0]),
    wrong=st.sampled_from([0.0, -2.0, -6.0]),
)
def test_the_corrected_bounds_hold_and_the_signed_one_is_tighter(
    seed, classes, hidden, scale, wrong
):
    """Acceptance test 4; ``wrong`` moves the outputs away from one class, which then is confidently
    misclassified."""
    model = smooth_model(seed, inputs=2, hidden=hidden, classes=classes, scale=scale)
    model[2].bias.data[-1] += wrong
    data = random_data(seed, inputs=2, classes=classes, sizes=(4, 2))
    table = hessian_bound(model, data)
    for group, row in enumerate(table.itertuples()):
        rounding = 1e-10 * (1 + row.spectral)
        assert _largest(model, data, group) <= row.signed + rounding
        assert row.signed <= row.spectral + rounding
        assert row.closeness >= 0 and row.residual <= rounding


def test_two_classes_as_a_logit():
    """The general form, from all logits, is the form of [T] in the one logit of two classes."""
    model, data = smooth_model(3, classes=2), random_data(3, classes=2)
    logit = nn.Sequential(*model[:2], nn.Linear(6, 1).double())
    logit[2].weight.data = model[2].weight.data[1:] - model[2].weight.data[:1]
    logit[2].bias.data = model[2].bias.data[1:] - model[2].bias.data[:1]

    class Doubled(
        nn.Module
    ):  # Logits -z/2 and z/2: another parametrization of the last layer, hence other numbers.
        def __init__(self):
            super().__init__()
            self.logit = logit

        def forward(self, inputs):
            z = self.logit(inputs)
            return torch.cat([-z / 2, z / 2], dim=1)

    table = hessian_bound(Doubled(), data)
    rows = [_by_hand(logit, x, y) for x, y in zip(data.inputs, data.targets, strict=True)]
    expected = np.array([np.mean(rows[a:b], axis=0) for a, b in [(0, 12), (12, 17), (17, 20)]])
    np.testing.assert_allclose(
        table[["closeness", "spectral", "signed", "printed"]], expected, rtol=1e-9
    )


def _by_hand(logit, x, y):
    """Closeness, spectral, signed and printed bound of one sample from the gradient and the Hessian
    of the logit."""
    shapes = [weight.shape for weight in logit.parameters()]
    theta = torch.cat([weight.detach().flatten() for weight in logit.parameters()])
    names = [name for name, _ in logit.named_parameters()]

    def z(theta):
        parts = theta.split([shape.numel() for shape in shapes])
        weights = {
            name: part.view(shape) for name, part, shape in zip(names, parts, shapes, strict=True)
        }
        return torch.func.functional_call(logit, weights, (x,))[0]

    p = float(torch.sigmoid(z(theta)))
    closeness = p * (1 - p) * float(torch.autograd.functional.jacobian(z, theta).square().sum())
    ends = torch.linalg.eigvalsh(torch.autograd.functional.hessian(z, theta))[[0, -1]]
    error = abs(p - int(y))
    signed = error * float(-ends[0] if y == 1 else ends[1])
    return (
        closeness,
        closeness + error * float(ends.abs().max()),
        closeness + signed,
        closeness + error * float(ends[1]),
    )


def test_the_printed_bound_fails_where_positives_are_misclassified():
    """[T] Theorem 2 as printed, f read as the logit z = c - k t^2 / 2, at t = 0, y = 1: the truth
    is (1 - p) k."""
    c, k = 0.5, 2.0
    model, data = Curve(lambda t, x: c - k * t**2 / 2 * x), _positives()
    row = hessian_bound(model, data).loc["all"]
    truth = (1 - 1 / (1 + math.exp(-c))) * k
    assert _largest(model, data, 0) == pytest.approx(truth) == pytest.approx(0.755, abs=5e-4)
    assert row["closeness"] == 0
    assert row["printed"] == pytest.approx(-truth)
    assert row["spectral"] == pytest.approx(truth) and row["signed"] == pytest.approx(truth)


def test_the_printed_bound_fails_on_ordinary_networks():
    """Positives that are misclassified more and more confidently; the corrected bounds hold in
    every case."""
    violated = {"printed": 0, "signed": 0, "spectral": 0}
    for seed in range(30):
        model = smooth_model(seed, inputs=2, hidden=3, classes=2)
        model[2].bias.data += torch.tensor([3.0, -3.0])
        data = fairlib.GroupedDataset(
            random_data(seed, inputs=2, sizes=(4,)).inputs,
            [1] * 4,
            [0] * 4,
            target_names=["no", "yes"],
        )
        row, truth = hessian_bound(model, data).loc["0"], _largest(model, data, 0)
        for name in violated:
            violated[name] += truth > row[name] + 1e-9
    assert violated["printed"] >= 3
    assert violated["signed"] == violated["spectral"] == 0


def test_the_probability_in_the_place_of_the_logit_fails_for_logistic_regression():
    """p = 1/2, x = 1: with f = p the printed bound is 1/64, as p'' is zero there; the truth is
    1/4."""
    model, data = Curve(lambda t, x: t * x), _positives()
    row = hessian_bound(model, data).loc["all"]
    p = torch.sigmoid(torch.zeros(1, dtype=torch.float64))
    probability = float(p * (1 - p) * (p * (1 - p)) ** 2)
    assert probability == 1 / 64
    assert _largest(model, data, 0) == pytest.approx(1 / 4)
    assert row[["closeness", "spectral", "signed", "printed"]].tolist() == pytest.approx(
        [1 / 4] * 4
    )


def test_closeness_of_many_classes_is_that_of_the_first_part():
    model, data = smooth_model(5, classes=4), random_data(5, classes=4, sizes=(1,))
    names = [name for name, _ in model.named_parameters()]

    def logits(*weights):
        return torch.func.functional_call(
            model, dict(zip(names, weights, strict=True)), (data.inputs,)
        )[0]

    jacobian = torch.autograd.functional.jacobian(
        logits, tuple(w.detach() for w in model.parameters())
    )
    j = torch.cat([part.flatten(1) for part in jacobian], dim=1)
    p = logits(*model.parameters()).softmax(0).detach()
    expected = torch.linalg.eigvalsh(j.T @ (p.diag() - p[:, None] * p) @ j)[-1]
    row = hessian_bound(model, data).iloc[0]
    assert row["closeness"] == pytest.approx(float(expected), rel=1e-9)
    assert np.isnan(row["printed"])


def test_form_of_the_table(cnn, images):
    table = hessian_bound(only(cnn, ["classifier.4.bias"]), images.subset(range(81)))
    assert list(table) == COLUMNS and table.index.name == "group"
    assert (table.dtypes == np.float64).all()
    assert (
        table.loc["few"].isna().all()
        and np.isfinite(table.loc["some", ["closeness", "spectral"]]).all()
    )


@pytest.mark.parametrize("name", ["cnn", "tiny-resnet"])
def test_a_process_that_converges_agrees_with_one_that_exhausts_the_space(images, name):
    """Of the parameters, some few, so that the space can be exhausted; then with too few products
    for that."""
    model = fairlib.build(name, num_classes=3, in_channels=1, image_size=8).double()
    few = images.subset([0, 1, 2, 90, 91, 115])
    chosen = [name for name, weight in model.named_parameters() if weight.numel() <= 160][:3]
    size = sum(dict(model.named_parameters())[name].numel() for name in chosen)
    exact = hessian_bound(only(model, chosen), few, limit=size)
    found = hessian_bound(only(model, chosen), few, limit=size - 1)
    np.testing.assert_allclose(found["closeness"], exact["closeness"], rtol=1e-12)
    for column in ("spectral", "signed"):
        assert (found[column] >= exact[column] * (1 - 1e-9)).all()
        np.testing.assert_allclose(found[column], exact[column], rtol=3e-4)
    assert (found["residual"] <= 1e-4 * found["spectral"]).all()


def test_a_process_that_did_not_converge_shows():
    model, data = smooth_model(1, hidden=20, scale=2.0), random_data(1)
    short = hessian_bound(model, data, limit=2)
    assert (short["residual"] > 0.05 * short["spectral"]).all()
    assert (short["spectral"] < hessian_bound(model, data)["spectral"]).any()  # Why it has to show.


def test_a_linear_model_has_no_second_part():
    model, data = nn.Linear(3, 3).double(), random_data(2)
    for products in (200, 3):
        table = hessian_bound(model, data, limit=products)
        np.testing.assert_allclose(table["spectral"], table["closeness"], rtol=1e-12)
        assert (table["residual"] == 0).all()


def test_a_pruned_model_counts_only_the_weights_it_kept():
    model, data = smooth_model(6, classes=2), random_data(6, classes=2)
    pruned = fairlib.prune(model, "magnitude", sparsity=0.5)
    table = hessian_bound(pruned, data)
    kept = torch.cat([weight.detach().flatten() != 0 for weight in pruned.parameters()])
    for group, row in enumerate(table.itertuples()):
        hessian = dense_hessian(pruned, data, group)[kept][:, kept]
        assert float(torch.linalg.eigvalsh(hessian)[-1]) <= row.signed * (1 + 1e-9)
    lanczos = hessian_bound(pruned, data, limit=int(kept.sum()) - 1)
    np.testing.assert_allclose(lanczos["spectral"], table["spectral"], rtol=1e-3)
    model.load_state_dict(
        {name: pruned.get_parameter(name) for name, _ in model.named_parameters()}
    )
    assert (
        table["closeness"] < hessian_bound(model, data)["closeness"]
    ).all()  # The same weights, all of them free.
    nothing = fairlib.network.masks.with_masks(
        model, {"0.weight": torch.zeros(6, 3, dtype=torch.bool)}
    )
    with pytest.raises(ValueError, match=r"every weight of 0\.weight is pruned"):
        hessian_bound(only(nothing, ["0.weight"]), data)


def test_any_code_between_input_and_logits_will_do():
    """A model that looks at values, for instance."""

    class Branching(nn.Sequential):
        def forward(self, inputs):
            return super().forward(inputs if float(inputs.mean()) > 99 else 1 * inputs)

    plain, data = smooth_model(7), random_data(7)
    for products in (200, 20):
        expected = hessian_bound(plain, data, limit=products)
        found = hessian_bound(Branching(*plain), data, limit=products)
        np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_tied_parameters_count_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(3, 3).double(), nn.Linear(3, 3).double()
            self.two.weight = self.one.weight

        def forward(self, inputs):
            return self.two(torch.tanh(self.one(inputs)))

    torch.manual_seed(0)
    model, data = Tied(), random_data(8)
    table = hessian_bound(model, data)
    for group, row in enumerate(table.itertuples()):
        assert 0 < _largest(model, data, group) <= row.signed <= row.spectral


def test_bad_input():
    model, data = smooth_model(11), random_data(11)
    with pytest.raises(ValueError, match=r"tol must lie in \(0, 1\), got 0"):
        hessian_bound(model, data, tol=0)
    with pytest.raises(ValueError, match=r"logits \(N, 4\)"):
        hessian_bound(model, random_data(11, classes=4))
    root = Curve(lambda t, x: (t * x).abs().sqrt())
    with pytest.raises(
        FloatingPointError, match="gradients of the logits are NaN or infinite on 1 of 1"
    ):
        hessian_bound(root, _positives(2))
    model[2].weight.data[0, 0] = math.inf
    with pytest.raises(FloatingPointError):
        hessian_bound(model, data)


def test_second_derivatives_that_are_not_finite():
    """|t|^(3/2) at zero has a gradient and no second derivative; in a network of some more
    parameters, too."""
    power = Curve(lambda t, x: (t * x).abs() ** 1.5)
    with pytest.raises(
        FloatingPointError, match="second derivatives of the logits are NaN or infinite on 1 of 1"
    ):
        hessian_bound(power, _positives())
    wide = nn.Sequential(nn.Linear(1, 3, bias=False).double(), power)
    with pytest.raises(
        FloatingPointError, match="second derivatives of the logits are NaN or infinite on 1 of 1"
    ):
        hessian_bound(wide, _positives(), limit=2)
