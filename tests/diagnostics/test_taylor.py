from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from dense import dense_hessian
from hypothesis import given, settings
from hypothesis import strategies as st
from smooth import dense_gradient, random_data, smooth_model
from torch import nn

import fairlib
from fairlib.diagnostics import group_performance
from fairlib.diagnostics.lanczos import Eigenpairs, Ritz
from fairlib.diagnostics.taylor import excessive_loss_bound, taylor_terms
from fairlib.network import masks

BATCH_NORM = "the buffer .* of the compressed model differs"


def _moved(model: nn.Module, step: float, seed: int = 0) -> nn.Module:
    """The model after a step of that length in a random direction."""
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    direction = torch.randn(
        len(flat), generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(flat)
    moved = copy.deepcopy(model)
    nn.utils.vector_to_parameters(flat + step * direction / direction.norm(), moved.parameters())
    return moved


def _step(model: nn.Module, compressed: nn.Module) -> torch.Tensor:
    flat = [nn.utils.parameters_to_vector(m.parameters()).detach() for m in (model, compressed)]
    return flat[1] - flat[0]


def test_agrees_with_whole_matrices():
    model, data = smooth_model(), random_data()
    pruned = fairlib.prune(model, "magnitude", sparsity=0.5)
    table, d = taylor_terms(model, pruned, data), _step(model, pruned)
    assert list(table) == ["first", "second", "taylor", "excessive_loss", "remainder"]
    assert table.index.tolist() == ["group 0", "group 1", "group 2"] and table.index.name == "group"
    excess = group_performance(pruned, data)["loss"] - group_performance(model, data)["loss"]
    for group, row in enumerate(table.itertuples()):
        gradient, hessian = dense_gradient(model, data, group), dense_hessian(model, data, group)
        assert row.first == pytest.approx(float(gradient @ d), rel=1e-10)
        assert row.second == pytest.approx(float(d @ hessian @ d) / 2, rel=1e-10)
        assert row.taylor == pytest.approx(row.first + row.second)
        assert row.excessive_loss == pytest.approx(excess.iloc[group], rel=1e-10)
        assert row.remainder == pytest.approx(row.excessive_loss - row.taylor, abs=1e-14)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), scale=st.sampled_from([0.5, 1.0, 2.0]))
def test_the_remainder_is_of_third_order(seed, scale):
    """Acceptance test 5: ten times the step, a thousand times the remainder, if the network is
    smooth."""
    model, data = smooth_model(seed, scale=scale), random_data(seed, sizes=(10, 5))
    steps = np.array([1e-3, 2e-3, 4e-3, 8e-3])
    remainders = np.array(
        [taylor_terms(model, _moved(model, s, seed), data)["remainder"] for s in steps]
    )
    cubic = remainders / steps[:, None] ** 3
    # The next term, of fourth order, is as small against the cubic one as the step; where that one
    # happens to vanish the remainder is smaller still.
    assert np.abs(np.diff(cubic, axis=0)).max() <= 0.1 * max(1, np.abs(cubic).max())
    slopes = np.diff(np.log(np.abs(remainders)), axis=0) / np.log(2)
    assert slopes[np.abs(cubic[:-1]) > 0.1].min(initial=3) > 2.8
    assert slopes[np.abs(cubic[:-1]) > 0.1].max(initial=3) < 3.2


def test_the_terms_approach_the_excessive_loss_as_fewer_weights_are_pruned():
    model, data = smooth_model(1, hidden=30), random_data(1)
    shares, steps = [], []
    for sparsity in (0.02, 0.1, 0.3):
        pruned = fairlib.prune(model, "magnitude", sparsity=sparsity)
        shares.append((taylor_terms(model, pruned, data)["remainder"].abs()).max())
        steps.append(float(_step(model, pruned).norm()))
    slope = np.polyfit(np.log(steps), np.log(shares), 1)[0]
    assert slope == pytest.approx(3, abs=0.5)


def test_a_kink_breaks_the_order():
    """A ReLU network across its kinks: the remainder is not of third order, and the docstring asks
    for smoothness."""
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 2)).double()
    for weight, value in zip(
        model.parameters(), ([[1.0]], [-1.0], [[0.0], [1.0]], [0.0, 0.0]), strict=True
    ):
        weight.data = torch.tensor(value, dtype=torch.float64)
    data = fairlib.GroupedDataset(np.ones((1, 1)) * (1 - 1e-9), [1], [0], target_names=["0", "1"])
    remainders = []
    for step in (1e-2, 1e-3):
        moved = copy.deepcopy(model)
        moved[0].bias.data += step
        remainders.append(taylor_terms(model, moved, data)["remainder"].iloc[0])
    assert math.log10(remainders[0] / remainders[1]) == pytest.approx(1, abs=0.1)


@pytest.mark.filterwarnings("ignore::fairlib.diagnostics.curvature.ConvergenceWarning")
@settings(max_examples=6, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    sparsity=st.sampled_from([0.1, 0.5, 0.9]),
    scale=st.sampled_from([0.3, 1.0, 3.0]),
)
def test_the_bound_is_above_the_terms_and_its_eigenvalue_above_the_true_one(seed, sparsity, scale):
    model, data = smooth_model(seed, scale=scale), random_data(seed, sizes=(10, 5))
    pruned = fairlib.prune(model, "magnitude", sparsity=sparsity)
    terms = taylor_terms(model, pruned, data)
    table = excessive_loss_bound(model, pruned, data, products="exact", tol=1e-8, limit=200)
    assert list(table) == ["norm", "largest", "step", "bound", "excessive_loss"]
    assert (table["bound"] >= terms["taylor"]).all()
    assert table["excessive_loss"].tolist() == terms["excessive_loss"].tolist()
    np.testing.assert_allclose(
        table["bound"], table["norm"] * table["step"] + table["largest"] * table["step"] ** 2 / 2
    )
    np.testing.assert_allclose(table["step"], float(_step(model, pruned).norm()))
    for group, row in enumerate(table.itertuples()):
        gradient, hessian = dense_gradient(model, data, group), dense_hessian(model, data, group)
        largest = float(torch.linalg.eigvalsh(hessian)[-1])
        assert row.norm == pytest.approx(float(gradient.norm()), rel=1e-9)
        assert largest * (1 - 1e-9) <= row.largest <= largest * 1.01


def test_the_largest_eigenvalue_counts_not_the_largest_magnitude():
    """Confident errors of a wide network: the smallest eigenvalue has the larger magnitude."""
    model, data = (
        smooth_model(3, hidden=20, classes=2, scale=0.7),
        random_data(3, classes=2, sizes=(2,)),
    )
    model[2].bias.data += torch.tensor([6.0, -6.0]) * (1 if int(data.targets[0]) else -1)
    data = data.subset([0])
    eigenvalues = torch.linalg.eigvalsh(dense_hessian(model, data, 0))
    assert -eigenvalues[0] > 0.95 * eigenvalues[-1]
    table = excessive_loss_bound(model, _moved(model, 0.1), data)
    assert table["largest"].iloc[0] == pytest.approx(float(eigenvalues[-1]), rel=0.05)


def test_an_eigenvalue_that_was_missed_does_not_spoil_the_bound(monkeypatch):
    model, data = smooth_model(4), random_data(4)
    missed = Eigenpairs({-1: Ritz(-1.0, torch.zeros(1), 0.0, 1.0)}, 1.0, 3)
    monkeypatch.setattr("fairlib.diagnostics.taylor.extreme_eigenpairs", lambda *_, **__: missed)
    moved = _moved(model, 0.5)
    assert (
        excessive_loss_bound(model, moved, data)["bound"]
        >= taylor_terms(model, moved, data)["taylor"]
    ).all()


def test_the_remainder_may_exceed_the_bound():
    """A confident logistic model, pruned to zero: gradient and Hessian tell nothing, the loss rises
    by log 2."""
    model = nn.Linear(1, 2, bias=False).double()
    model.weight.data = torch.tensor([[0.0], [10.0]], dtype=torch.float64)
    data = fairlib.GroupedDataset(np.ones((4, 1)), [1] * 4, [0] * 4, target_names=["0", "1"])
    pruned = masks.with_masks(model, {"weight": torch.zeros(2, 1, dtype=torch.bool)})
    row = excessive_loss_bound(model, pruned, data, products="exact").iloc[0]
    assert row["excessive_loss"] == pytest.approx(math.log(2), abs=1e-4)
    assert row["bound"] == pytest.approx(0.0055, abs=5e-4)


def test_no_step_costs_nothing():
    model, data = smooth_model(5), random_data(5)
    assert (taylor_terms(model, copy.deepcopy(model), data) == 0).all().all()
    bound = excessive_loss_bound(model, model, data)
    assert (bound[["step", "bound", "excessive_loss"]] == 0).all().all() and (
        bound["largest"] > 0
    ).all()


def test_weights_of_the_other_model_alone_are_read(images):
    """Statistics of BatchNorm that finetuning moved: the excessive loss is that with the dense
    model's, as warned."""
    model = fairlib.build("tiny-resnet", num_classes=3, in_channels=1, image_size=8).double()
    compressed = fairlib.prune(model, "magnitude", sparsity=0.7)
    expected = taylor_terms(model, compressed, images)
    compressed.bn1.running_mean += 1
    compressed.bn1.num_batches_tracked += 5
    with pytest.warns(
        UserWarning, match=r"the buffer bn1\.running_mean of the compressed model differs"
    ):
        found = taylor_terms(model, compressed, images)
    assert found.equals(expected)
    with pytest.warns(UserWarning, match=BATCH_NORM):
        bound = excessive_loss_bound(model, compressed, images, tol=0.1)
    assert bound["excessive_loss"].tolist() == expected["excessive_loss"].tolist()


def test_leaves_both_models_as_they_were(images):
    model = fairlib.build("tiny-resnet", num_classes=3, in_channels=1, image_size=8).train()
    compressed = fairlib.prune(model, "magnitude", sparsity=0.7).train()
    model.fc.weight.grad = torch.ones_like(model.fc.weight)
    before = [
        {name: value.clone() for name, value in m.state_dict().items()} for m in (model, compressed)
    ]
    taylor_terms(model, compressed, images)
    excessive_loss_bound(model, compressed, images, tol=0.1)
    for m, state in zip((model, compressed), before, strict=True):
        assert m.training and m.bn1.training
        assert all(torch.equal(value, m.state_dict()[name]) for name, value in state.items())
    assert bool((model.fc.weight.grad == 1).all()) and model.conv1.weight.grad is None
    assert all(weight.grad is None for weight in compressed.parameters())


def test_from_a_pruned_model_to_a_sparser_one():
    model, data = smooth_model(6), random_data(6)
    half = fairlib.prune(model, "magnitude", sparsity=0.5)
    most = fairlib.prune(half, "magnitude", sparsity=0.8)
    table, d = taylor_terms(half, most, data), _step(half, most)
    for group, row in enumerate(table.itertuples()):
        gradient, hessian = dense_gradient(half, data, group), dense_hessian(half, data, group)
        assert row.first == pytest.approx(float(gradient @ d), rel=1e-9)
        assert row.second == pytest.approx(float(d @ hessian @ d) / 2, rel=1e-9)
    kept = torch.cat([weight.detach().flatten() != 0 for weight in half.parameters()])
    norms = [float(dense_gradient(half, data, group)[kept].norm()) for group in range(3)]
    np.testing.assert_allclose(excessive_loss_bound(half, most, data)["norm"], norms, rtol=1e-9)
    with pytest.raises(ValueError, match="weights that the mask of the model holds at zero"):
        taylor_terms(half, model, data)


def test_frozen_parameters_that_moved_count():
    model, data = smooth_model(8), random_data(8)
    expected = taylor_terms(model, _moved(model, 0.1), data)
    assert taylor_terms(
        copy.deepcopy(model).requires_grad_(False), _moved(model, 0.1), data
    ).equals(expected)


def test_tied_parameters_move_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(3, 3).double(), nn.Linear(3, 3).double()
            self.two.weight = self.one.weight

        def forward(self, inputs):
            return self.two(torch.tanh(self.one(inputs)))

    torch.manual_seed(0)
    model, data = Tied(), random_data(9)
    moved = _moved(model, 1e-3)
    table, d = taylor_terms(model, moved, data), _step(model, moved)
    assert len(d) == 15
    for group, row in enumerate(table.itertuples()):
        gradient, hessian = dense_gradient(model, data, group), dense_hessian(model, data, group)
        assert row.taylor == pytest.approx(float(gradient @ d + d @ hessian @ d / 2), rel=1e-9)
        assert abs(row.remainder) < 1e-8


def test_an_empty_group_is_nan():
    model, data = smooth_model(11), random_data(11).subset(range(13))
    for table in (
        taylor_terms(model, _moved(model, 0.1), data),
        excessive_loss_bound(model, _moved(model, 0.1), data),
    ):
        assert table.index.tolist() == ["group 0", "group 1", "group 2"]
        assert (
            table.notna().all(axis=1).tolist() == [True, True, False]
            and table.loc["group 2"].isna().all()
        )


def test_chunks_do_not_show(monkeypatch):
    model, data = smooth_model(12), random_data(12)
    whole = taylor_terms(model, _moved(model, 0.1), data)
    monkeypatch.setattr("fairlib.diagnostics.objective.BUDGET", 1)
    np.testing.assert_allclose(taylor_terms(model, _moved(model, 0.1), data), whole, rtol=1e-9)


def test_bad_input(cnn):
    model, data = smooth_model(13), random_data(13)
    with pytest.raises(
        ValueError,
        match=r"same parameters; 0\.weight is \(6, 3\) in the model and \(8, 3\) in the comp",
    ):
        taylor_terms(model, smooth_model(13, hidden=8), data)
    with pytest.raises(
        ValueError, match=r"same parameters; 0\.weight is \(6, 3\) in the model and missing in"
    ):
        excessive_loss_bound(model, cnn, data)
    broken = copy.deepcopy(model)
    broken[2].bias.data[0] = math.nan
    with pytest.raises(FloatingPointError):
        taylor_terms(model, broken, data)
    with pytest.raises(FloatingPointError):
        taylor_terms(broken, model, data)
    with pytest.raises(FloatingPointError):
        excessive_loss_bound(model, broken, data)
