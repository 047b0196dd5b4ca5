from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from dense import dense_hessian
from smooth import only
from torch import nn

import fairlib
from fairlib.diagnostics import (
    ConvergenceWarning,
    curvature,
    group_eigenvalues,
    objective,
    sweep_eigenvalues,
)

NETS = {
    "tanh": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 3)),
    "relu": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)
    ),
    "convolution": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(36, 8), nn.ReLU6(), nn.Linear(8, 3),
    ),
}  # fmt: skip


def net(name: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return NETS[name]()


def extremes(model, data) -> np.ndarray:
    values = [
        torch.linalg.eigvalsh(dense_hessian(model.eval(), data, code))
        for code in range(data.num_groups)
    ]
    return np.array([[v[-1].item(), v[0].item()] for v in values])


@pytest.mark.parametrize("trained", [False, True], ids=["untrained", "trained"])
@pytest.mark.parametrize("name", NETS)
def test_agrees_with_dense_matrices(name, trained, images):
    model = net(name, seed=int(trained))
    model = fairlib.fit(model, images, epochs=15, lr=0.02, batch_size=30) if trained else model
    expected = extremes(model, images)
    scale = np.abs(expected).max(axis=1, keepdims=True)
    for products in curvature.PRODUCTS:
        # In float64, so that no sample is on another piece of a kink than in the dense computation.
        table = group_eigenvalues(model, images, products=products, dtype=torch.float64)
        errors = np.abs(table[["largest", "smallest"]].to_numpy() - expected) / scale
        assert errors[:, 0].max() < 1e-3 and errors[:, 1].max() < 3e-3
        assert (table["residual"] < 0.1).all() and (table["hvps"] >= 2).all()


def test_the_largest_is_right_where_the_smallest_is_larger_in_magnitude(images):
    """Power iteration gives the wrong one here: a well-trained network on labels that are all
    wrong."""
    wrong = fairlib.GroupedDataset(images.inputs, (images.targets + 1) % 3, images.groups)
    model = fairlib.fit(net("tanh", 0), images, epochs=30, lr=0.05, batch_size=30)
    expected = extremes(model, wrong)
    assert (expected[:, 1] < -3 * expected[:, 0]).all()
    table = group_eigenvalues(model, wrong, tol=1e-5)
    np.testing.assert_allclose(table[["largest", "smallest"]], expected, rtol=1e-3)


def test_agrees_with_curvlinops(images):
    from scipy.sparse.linalg import eigsh

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)
        curvlinops = pytest.importorskip("curvlinops")
    model = (
        fairlib.build("cnn", num_classes=3, in_channels=1, image_size=8, width=0.25, seed=0)
        .double()
        .eval()
    )
    table = group_eigenvalues(model, images, tol=1e-6)
    for code, name in enumerate(images.group_names):
        members = (images.groups == code).nonzero().flatten()
        batch = (images.batch(members, dtype=torch.float64), images.targets[members])
        hessian = curvlinops.HessianLinearOperator(
            model,
            nn.CrossEntropyLoss(),
            list(model.parameters()),
            [batch],
            check_deterministic=False,
        )
        linear = hessian.to_scipy()
        for column, which in (("largest", "LA"), ("smallest", "SA")):
            (expected,) = eigsh(linear, k=1, which=which, return_eigenvectors=False)
            assert table.loc[name, column] == pytest.approx(
                expected, abs=1e-5 * abs(table.loc[name, "largest"])
            )


def test_float64_and_an_exact_process_reach_any_tolerance(images):
    model = net("convolution", 0)
    table = group_eigenvalues(model, images, dtype=torch.float64, products="exact", tol=1e-12)
    np.testing.assert_allclose(table[["largest", "smallest"]], extremes(model, images), rtol=1e-8)
    assert (table["residual"] < 1e-5).all()


def test_pruned_weights_do_not_count(images):
    model = fairlib.prune(net("relu", 1), "magnitude", sparsity=0.7)
    table = group_eigenvalues(model, images, tol=1e-6, products="exact", dtype=torch.float64)
    kept = torch.cat(
        [
            fairlib.network.masks.read_masks(model).get(n, torch.ones_like(p) > 0).flatten()
            for n, p in model.named_parameters()
        ]
    )
    for code, (_, row) in enumerate(table.iterrows()):
        values = torch.linalg.eigvalsh(dense_hessian(model, images, code)[kept][:, kept])
        assert row["largest"] == pytest.approx(values[-1].item(), rel=1e-5)
        assert row["smallest"] == pytest.approx(min(values[0].item(), 0), rel=1e-4)


def test_choice_of_parameters(images):
    model = net("tanh", 0)
    table = group_eigenvalues(only(model, ["3.weight", "3.bias"]), images, ends="largest")
    block = torch.linalg.eigvalsh(dense_hessian(model, images, 0)[-27:, -27:])
    assert table.loc["many", "largest"] == pytest.approx(block[-1].item(), rel=1e-3)
    assert table["smallest"].isna().all()


def test_chunks_and_patterns_found_anew_do_not_change_the_result(images, monkeypatch):
    model = net("convolution", 2)
    whole = group_eigenvalues(model, images)
    for budget in (2**14, 2**15, 2**16):  # Of some chunks the patterns are held, of others not.
        for module in (objective, curvature):
            monkeypatch.setattr(module, "BUDGET", budget)
        np.testing.assert_allclose(
            group_eigenvalues(model, images)["largest"], whole["largest"], rtol=1e-3
        )


def test_what_did_not_converge_is_flagged_with_its_residual(images):
    with pytest.warns(
        ConvergenceWarning, match=r"not as exact as tol=0.0003: many \(residual .* after 6 products"
    ):
        table = group_eigenvalues(net("relu", 0), images, limit=3)
    assert (table["hvps"] <= 6).all() and (table["residual"] > 1e-3).any()


def test_differences_that_mislead_give_way_to_exact_products(images):
    """The absolute value is not among the functions that are held: its kinks spoil the
    differences."""

    class Absolute(nn.Module):
        def forward(self, inputs):
            return (inputs - 0.5).abs() * 20

    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), Absolute(), nn.Linear(12, 3))
    table = group_eigenvalues(model, images)
    expected = extremes(model, images)
    np.testing.assert_allclose(table["largest"], expected[:, 0], rtol=1e-3)


def test_a_single_sample_has_eigenvalues_and_an_empty_group_has_none(images):
    index = [*range(80), 80]
    data = fairlib.GroupedDataset(
        images.inputs[index],
        images.targets[index],
        images.groups[index],
        group_names=["many", "some", "few"],
    )
    table = group_eigenvalues(net("tanh", 0), data)
    assert np.isfinite(table.loc[["many", "some"]]).all(axis=None)
    assert table.loc["few"].isna().all()


def test_a_process_with_little_memory_is_restarted_and_finds_the_same(images, monkeypatch):
    model = fairlib.fit(net("convolution", 0), images, epochs=5, lr=0.02, batch_size=30)
    settings = {"products": "exact", "tol": 1e-6, "limit": 300, "dtype": torch.float64}
    free = group_eigenvalues(model, images, **settings)
    monkeypatch.setattr(curvature, "BASIS", 1)
    tight = group_eigenvalues(model, images, **settings)
    np.testing.assert_allclose(tight["largest"], free["largest"], rtol=1e-5)
    assert (tight["hvps"] > 8).all()


@pytest.mark.filterwarnings(
    "ignore::fairlib.diagnostics.ConvergenceWarning"
)  # Those of the first model.
def test_a_sweep_takes_any_keys_and_its_warning_names_the_model(images):
    models = {("magnitude", 0.5): net("tanh", 0), ("magnitude", 0.9): net("tanh", 1)}
    with pytest.warns(ConvergenceWarning, match=r"many of model \('magnitude', 0.9\) \(residual"):
        swept = sweep_eigenvalues(models, images, tol=1e-9, limit=3)
    assert [key for key, _ in swept.index] == [key for key in models for _ in range(3)]


def test_a_sweep_gives_what_cold_runs_give_with_fewer_products(images):
    dense = fairlib.fit(net("convolution", 0), images, epochs=10, lr=0.02, batch_size=30)
    models = {
        s: fairlib.prune(dense, "magnitude", sparsity=s) for s in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
    }
    swept = sweep_eigenvalues(
        models, images, least=1
    )  # Else all of them take the eight steps that are the least.
    alone = dict(ends="largest", least=1)
    cold = {s: group_eigenvalues(model, images, **alone) for s, model in models.items()}
    assert swept.index.names == ["model", "group"]
    for sparsity, table in cold.items():
        np.testing.assert_allclose(swept.loc[sparsity, "largest"], table["largest"], rtol=2e-3)
    assert swept["hvps"].sum() < sum(table["hvps"].sum() for table in cold.values())


def test_a_sweep_notices_that_another_eigenvalue_has_overtaken(images):
    """Two blocks of weights that see different samples: an old eigenvector stays one, and is no
    longer the top one."""

    class Blocks(nn.Module):
        def __init__(self, first, second):
            super().__init__()
            self.one, self.two = nn.Parameter(torch.zeros(3, 64)), nn.Parameter(torch.zeros(3, 64))
            self.scales = (first, second)

        def forward(self, inputs):
            flat, bright = inputs.flatten(1), inputs.mean((1, 2, 3))[:, None] > 0.45
            parts = (
                scale * flat @ block.T
                for scale, block in zip(self.scales, (self.one, self.two), strict=True)
            )
            return torch.where(bright, *parts)

    # Bright images are brighter by a factor of about six: the second block overtakes between the
    # second and the third.
    models = {i: Blocks(2 - i / 4, 6 + 1.5 * i) for i in range(5)}
    swept = sweep_eigenvalues(models, images)
    truth = np.concatenate([extremes(model, images)[:, 0] for model in models.values()])
    errors = np.abs(swept["largest"].to_numpy() / truth - 1)
    assert errors.max() < 0.03 and (errors < 1e-3).mean() > 0.8
    assert (swept["residual"][errors > 1e-3] > 1e-3).all()


def test_the_calibrated_settings_are_those_of_the_recorded_results():
    search = curvature.Eigensearch()
    assert (search.tol, search.limit, search.least) == (3e-4, 100, 8)
    assert (curvature.BASIS, objective.BUDGET) == (2**30, 2**29)


def test_zero_is_the_smallest_eigenvalue_of_a_convex_loss_with_more_parameters_than_samples(images):
    torch.manual_seed(0)
    table = group_eigenvalues(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), images)
    assert (
        table["smallest"].abs() < 3e-3 * table["largest"]
    ).all()  # Ten times the tolerance: at the edge of many zeros.


def test_a_loss_without_curvature_has_eigenvalues_of_zero(images):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    model[1].weight.data.zero_()
    model[1].bias.data = torch.tensor([200.0, 0.0, 0.0])
    sure = fairlib.GroupedDataset(
        images.inputs, torch.zeros(120, dtype=torch.long), images.groups, ["a", "b", "c"]
    )
    table = group_eigenvalues(model, sure)
    assert not table[["largest", "smallest"]].to_numpy().any()


def test_activations_in_place_are_seen_where_their_input_is_used_again(images):
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.out = (
                nn.Linear(64, 12),
                nn.Linear(12, 12),
                nn.Linear(12, 3),
            )

        def forward(self, inputs):
            hidden = self.first(inputs.flatten(1) - 0.5)
            torch.relu_(hidden)
            return self.out(hidden + self.second(hidden))

    torch.manual_seed(0)
    model = Residual()
    table = group_eigenvalues(model, images, dtype=torch.float64)
    np.testing.assert_allclose(table["largest"], extremes(model, images)[:, 0], rtol=1e-3)


def test_bad_input(cnn, images):
    with pytest.raises(
        ValueError, match="unknown choice of eigenvalues 'top'; known: largest, smallest, both"
    ):
        group_eigenvalues(cnn, images, ends="top")
    with pytest.raises(ValueError, match="unknown kind of products"):
        group_eigenvalues(cnn, images, products="quick")
    with pytest.raises(ValueError, match="tol must lie in"):
        group_eigenvalues(cnn, images, tol=0)
    with pytest.raises(ValueError, match="at least one model"):
        sweep_eigenvalues({}, images)
    next(iter(cnn.parameters())).data.fill_(float("inf"))
    with pytest.raises(FloatingPointError):
        group_eigenvalues(cnn, images)
