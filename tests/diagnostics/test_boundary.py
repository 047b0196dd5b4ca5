from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import nn

import fairlib
from fairlib.diagnostics import boundary
from fairlib.diagnostics.boundary import MEASURES, boundary_distance, sample_boundary_distance


def _linear(weight, bias) -> nn.Linear:
    weight, bias = (
        torch.tensor(weight, dtype=torch.float64),
        torch.tensor(bias, dtype=torch.float64),
    )
    model = nn.Linear(weight.shape[1], weight.shape[0]).double()
    with torch.no_grad():
        model.weight.copy_(weight)
        model.bias.copy_(bias)
    return model


def _logits(probabilities) -> tuple[nn.Module, fairlib.GroupedDataset]:
    """A model that gives these probabilities, one row a sample."""
    inputs = np.log(np.asarray(probabilities, dtype=float))
    zeros, names = [0] * len(inputs), [str(i) for i in range(inputs.shape[1])]
    return nn.Identity(), fairlib.GroupedDataset(inputs, zeros, zeros, target_names=names)


@pytest.fixture
def plane():
    """z_1 - z_0 = 3 x_1 - 4 x_2 + 1, whose boundary is |3 x_1 - 4 x_2 + 1| / 5 away, and 60
    points."""
    model = _linear([[-1.0, 2.0], [2.0, -2.0]], [0.0, 1.0])
    inputs = np.random.default_rng(0).normal(size=(60, 2))
    data = fairlib.GroupedDataset(
        inputs, np.arange(60) % 2, np.arange(60) // 50, group_names=["many", "few", "none"]
    )
    return model, data, (3 * inputs[:, 0] - 4 * inputs[:, 1] + 1) / 5


@pytest.mark.parametrize("measure", ["linearized", "deepfool"])
def test_two_classes_and_a_linear_model(plane, measure):
    model, data, distance = plane
    np.testing.assert_allclose(
        sample_boundary_distance(model, data, measure=measure), abs(distance), rtol=1e-12
    )


@pytest.mark.parametrize("measure", ["linearized", "deepfool"])
def test_three_classes_and_a_linear_model(measure):
    weight, bias = np.array([[1.0, 0, 2], [0, 2, 1], [-1, 1, 0]]), np.array([0.1, 0, -0.2])
    generator = np.random.default_rng(1)
    inputs, targets = generator.normal(size=(40, 3)), np.arange(40) % 3
    data = fairlib.GroupedDataset(inputs, targets, [0] * 40)
    logits = inputs @ weight.T + bias

    def nearest(i, c):
        return min(
            (logits[i, c] - logits[i, j]) / np.linalg.norm(weight[c] - weight[j])
            for j in range(3)
            if j != c
        )

    model = _linear(weight, bias)
    expected = [nearest(i, c) for i, c in enumerate(logits.argmax(1))]
    np.testing.assert_allclose(
        sample_boundary_distance(model, data, measure=measure), expected, rtol=1e-12
    )


def test_deepfool_on_a_circle():
    """z_1 - z_0 = |x|^2 - 1: the distance is | |x| - 1 |, and one linearization misses it."""

    class Circle(nn.Module):
        def forward(self, inputs):
            return torch.stack([torch.zeros(len(inputs)).to(inputs), inputs.square().sum(1) - 1], 1)

    inputs = np.array([[3.0, 0], [0, 0.5], [0.6, 0.9]])
    data = fairlib.GroupedDataset(inputs, [1, 1, 1], [0, 0, 0], target_names=["in", "out"])
    model = Circle().double()
    model.register_parameter("unused", nn.Parameter(torch.zeros((), dtype=torch.float64)))
    radius = np.linalg.norm(inputs, axis=1)
    first = (radius**2 - 1) / (2 * radius)
    linearized = sample_boundary_distance(model, data, measure="linearized")
    np.testing.assert_allclose(linearized, abs(first), rtol=1e-12)
    # Newton's steps from outside stay outside and converge; the first one from inside goes too far,
    # and ends it.
    fine = sample_boundary_distance(model, data, measure="deepfool", overshoot=1e-9)
    np.testing.assert_allclose(fine, [2, 0.75, radius[2] - 1], rtol=1e-6)
    usual = sample_boundary_distance(model, data, measure="deepfool")
    np.testing.assert_allclose(usual, [2, 0.75, radius[2] - 1], rtol=0.03)
    once = sample_boundary_distance(model, data, measure="deepfool", steps=1)
    np.testing.assert_allclose(once[:2], [np.inf, 0.75])


@pytest.mark.parametrize("sigma", [0.5, 1.0])
def test_certified_radius_of_a_linear_model_tends_to_the_distance(plane, sigma):
    model, data, distance = plane
    near = np.flatnonzero(abs(distance) < 1.5 * sigma)[:15]
    data, distance = data.subset(near), distance[near]
    settings = {"sigma": sigma, "draws": 20_000, "selection": 20_000}
    found = sample_boundary_distance(model, data, measure="certified-radius", **settings)
    assert (found <= abs(distance) + 1e-12).mean() >= 0.9  # Each bound fails with probability .001.
    np.testing.assert_allclose(found, abs(distance), atol=0.06 * sigma)


def test_certified_radius_is_capped_abstains_and_depends_on_the_seed_alone(plane, monkeypatch):
    model, data, _ = plane
    far = fairlib.GroupedDataset([[100.0, 0], [-1 / 3, 0]], [0, 1], [0, 0])
    radii = sample_boundary_distance(model, far, measure="certified-radius", draws=1000)
    assert radii[0] == pytest.approx(0.25 * norm.ppf(0.001 ** (1 / 1000)))
    assert radii[1] == 0  # On the boundary.
    settings = {"measure": "certified-radius", "draws": 300, "seed": 3}
    state = torch.random.get_rng_state()
    first = sample_boundary_distance(model, data, **settings)
    assert torch.equal(state, torch.random.get_rng_state())
    np.testing.assert_array_equal(sample_boundary_distance(model, data, **settings), first)
    assert (sample_boundary_distance(model, data, **settings | {"seed": 4}) != first).any()
    monkeypatch.setattr(boundary, "PASS_SAMPLES", 300)
    whole = sample_boundary_distance(model, data, **settings)
    np.testing.assert_array_equal(
        whole[:5], sample_boundary_distance(model, data.subset(range(5)), **settings)
    )


def test_measures_disagree_about_what_is_near():
    """methods.md section 7: the margins differ tenfold where p(1 - p) of the largest probability
    hardly does."""
    model, data = _logits([[0.5, 0.49, 0.01], [0.4, 0.3, 0.3]])
    np.testing.assert_allclose(sample_boundary_distance(model, data), [0.01, 0.10], atol=1e-7)
    p = np.array([0.5, 0.4])
    np.testing.assert_allclose(p * (1 - p), [0.25, 0.24])
    closeness = sample_boundary_distance(model, data, measure="closeness")
    covariance = [np.diag(q) - np.outer(q, q) for q in ([0.5, 0.49, 0.01], [0.4, 0.3, 0.3])]
    np.testing.assert_allclose(
        closeness, [np.linalg.eigvalsh(c)[-1] / 2 for c in covariance], rtol=1e-5
    )


def test_the_order_of_two_samples_depends_on_the_measure():
    """The output of a steep network is confident where its input is near the boundary."""

    class Bent(nn.Module):
        def forward(self, inputs):
            return torch.cat(
                [torch.zeros_like(inputs), torch.where(inputs < 0, 0.5, 5.0) * inputs], 1
            )

    data = fairlib.GroupedDataset([[-1.0], [0.5]], [0, 1], [0, 0])
    margin, linearized = (
        sample_boundary_distance(Bent(), data, measure=m)
        for m in ("probability-margin", "linearized")
    )
    np.testing.assert_allclose(linearized, [1.0, 0.5], rtol=1e-6)
    assert margin[0] < margin[1] and linearized[0] > linearized[1]


def test_a_confident_error_is_far_from_the_boundary_and_close_to_nothing():
    model, data = _logits([[0.01, 0.99], [0.99, 0.01], [0.5, 0.5]])
    np.testing.assert_allclose(sample_boundary_distance(model, data), [0.98, 0.98, 0], atol=1e-7)
    closeness = sample_boundary_distance(model, data, measure="closeness")
    np.testing.assert_allclose(
        closeness, [0.0099, 0.0099, 0.25], rtol=1e-5
    )  # p(1 - p) for two classes.


def test_closeness_is_at_most_a_quarter_and_a_third_class_may_vanish():
    generator = np.random.default_rng(0)
    model, data = _logits(generator.dirichlet([1, 1, 1, 1], 200))
    values = sample_boundary_distance(model, data, measure="closeness")
    assert values.min() > 0 and values.max() <= 0.25
    model, data = _logits([[0.7, 0.3 - 1e-12, 1e-12]])
    np.testing.assert_allclose(
        sample_boundary_distance(model, data, measure="closeness"), 0.21, rtol=1e-5
    )


def test_table_by_group(plane):
    model, data, distance = plane
    table = boundary_distance(model, data, measure="linearized")
    assert list(table) == ["mean", "low", "high"] and list(table.index) == ["many", "few", "none"]
    for group, part in (("many", slice(50)), ("few", slice(50, 60))):
        expected = fairlib.statistics.t_interval(abs(distance)[part])
        np.testing.assert_allclose(table.loc[group], expected, rtol=1e-12)
    assert table.loc["none"].isna().all()
    one = boundary_distance(model, data.subset(range(51)), measure="linearized").loc["few"]
    assert np.isfinite(one["mean"]) and one[["low", "high"]].isna().all()


def test_no_slope_means_infinitely_far():
    flat = _linear([[0.0, 0], [0, 0], [1, 0]], [1.0, 0.0, -50.0])
    data = fairlib.GroupedDataset(
        [[0.0, 0], [1, 1], [0, 0]], [0, 1, 1], [0, 0, 0], target_names=["a", "b", "c"]
    )
    assert sample_boundary_distance(flat, data, measure="linearized").tolist() == [51, 50, 51]
    constant = _linear([[0.0, 0], [0, 0]], [1.0, 0.0])
    data = fairlib.GroupedDataset([[0.0, 0], [1, 1]], [0, 1], [0, 0])
    for measure in ("linearized", "deepfool"):
        assert sample_boundary_distance(constant, data, measure=measure).tolist() == [
            np.inf,
            np.inf,
        ]
        assert boundary_distance(constant, data, measure=measure).loc["0", "mean"] == np.inf


def test_on_the_boundary_the_distance_is_zero_whatever_lies_beside():
    """Two classes tie: of two in a line, and of three of which the third is far away."""
    pair = _linear([[1.0], [-1.0]], [0.0, 0.0])
    triple = _linear([[1.0, 0], [-1, 0], [0, 1]], [0.0, 0.0, -9.0])
    for model, inputs in ((pair, [[0.0], [0.0]]), (triple, [[0.0, 0], [0, 1]])):
        data = fairlib.GroupedDataset(
            inputs, [0, 1], [0, 0], target_names=["a", "b", "c"][: model.out_features]
        )
        for measure in ("probability-margin", "linearized", "deepfool"):
            assert sample_boundary_distance(model, data, measure=measure).tolist() == [0, 0]
        share = 0.5 * (1 - np.exp([-9.0, -8.0]) / 2) if model is triple else [0.5, 0.5]
        found = sample_boundary_distance(model, data, measure="closeness")
        np.testing.assert_allclose(found, np.array(share) / 2, rtol=1e-3)


@pytest.mark.parametrize("measure", ["linearized", "deepfool"])
def test_gradients_that_are_not_finite_are_refused(measure):
    """The square root has an infinite slope at zero, and its product with zero is NaN; the outputs
    are finite."""

    class Root(nn.Module):
        def forward(self, inputs):
            return torch.stack([(inputs[:, 0] * 0).abs().sqrt(), inputs[:, 1]], dim=1)

    data = fairlib.GroupedDataset([[1.0, 2.0], [1.0, -2.0]], [0, 1], [0, 0])
    with pytest.raises(FloatingPointError, match="NaN or infinite on 2 of 2 samples"):
        sample_boundary_distance(Root(), data, measure=measure)


@pytest.mark.parametrize("measure", MEASURES)
def test_images_in_the_unit_of_the_model_and_in_chunks(measure, cnn, images, monkeypatch):
    """uint8 images and the same as floats in [0, 1] are one data set."""
    settings = {"draws": 20, "selection": 5} if measure == "certified-radius" else {}
    whole = sample_boundary_distance(cnn, images, measure=measure, **settings)
    floats = fairlib.GroupedDataset(images.inputs.double() / 255, images.targets, images.groups)
    np.testing.assert_allclose(
        sample_boundary_distance(cnn, floats, measure=measure, **settings),
        whole,
        rtol=1e-3,
        atol=1e-6,
    )
    monkeypatch.setattr(boundary, "PASS_SAMPLES", 50)
    np.testing.assert_allclose(
        sample_boundary_distance(cnn, images, measure=measure, **settings),
        whole,
        rtol=1e-3,
        atol=1e-6,
    )
    assert whole.shape == (120,) and whole.dtype == np.float64 and np.isfinite(whole).all()


def test_bad_input(cnn, images):
    with pytest.raises(
        ValueError, match="unknown measure 'distance'; known: probability-margin, closeness"
    ):
        boundary_distance(cnn, images, measure="distance")
    with pytest.raises(
        TypeError, match="unknown setting 'sigma' for measure 'deepfool'; known: steps, overshoot"
    ):
        boundary_distance(cnn, images, measure="deepfool", sigma=1.0)
    for name, value in {"sigma": 0, "draws": 0, "selection": 0, "seed": -1}.items():
        with pytest.raises(ValueError, match=f"{name} must lie in"):
            boundary_distance(cnn, images, measure="certified-radius", **{name: value})
    with pytest.raises(ValueError, match="steps must lie in"):
        boundary_distance(cnn, images, measure="deepfool", steps=0)
    with pytest.raises(ValueError, match="one for each class of the data"):
        boundary_distance(fairlib.build("cnn", num_classes=2, in_channels=1, image_size=8), images)
    one = fairlib.GroupedDataset([[1.0], [2.0]], [0, 0], [0, 0], target_names=["only"])
    with pytest.raises(ValueError, match="needs two classes; the data have one, 'only'"):
        boundary_distance(nn.Linear(1, 1), one)
    with torch.no_grad():
        cnn.classifier[0].bias[0] = torch.nan
    with pytest.raises(
        FloatingPointError, match="the model's outputs are NaN or infinite on 120 of 120 samples"
    ):
        boundary_distance(cnn, images)
