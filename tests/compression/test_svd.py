from __future__ import annotations

import copy
import itertools
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d

import fairlib
from fairlib.compression import FACTORIZATION, factorize
from fairlib.linearization import count
from fairlib.network import masks, quantizers
from fairlib.network.factors import Factorized
from fairlib.network.memory import memory_of

split = partial(factorize, method="svd", last="split")


def weights(model: nn.Module) -> int:
    return sum(weight.numel() for weight in masks.prunable(model).values())


def ranks(model: nn.Module) -> dict[str, int]:
    return {
        name: len(module[0].weight)
        for name, module in model.named_modules()
        if isinstance(module, Factorized)
    }


def product(pair: Factorized) -> np.ndarray:
    first, second = (layer.weight.detach().double().flatten(1).numpy() for layer in pair)
    return second @ first


def truncated(matrix: np.ndarray, rank: int) -> np.ndarray:
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    return left[:, :rank] * values[:rank] @ right[:rank]


def double(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for layer in layers:
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    return nn.Sequential(*layers).double()


def spectra(model: nn.Module) -> dict[str, np.ndarray]:
    found = masks.prunable(model).items()
    return {
        name: np.linalg.svd(weight.detach().double().flatten(1).numpy(), compute_uv=False)
        for name, weight in found
    }


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"stride": 2, "padding": 1},
        {"padding": (2, 0), "dilation": (2, 1), "bias": False},
        {"padding": "same"},
        {"stride": (1, 3)},
    ],
)
def test_a_convolution_becomes_that_of_the_nearest_kernel_of_its_rank(settings):
    model = double(nn.Conv2d(3, 8, (3, 5), **settings))
    small = split(model, kept=0.45)
    kernel = model[0].weight.detach().numpy()
    assert ranks(small) == {"0": 3}  # Of 360 weights 162 may stay, and a rank has 8 + 45.
    nearest = torch.from_numpy(truncated(kernel.reshape(8, -1), 3).reshape(kernel.shape))
    inputs = torch.rand(2, 3, 11, 12, dtype=torch.float64)
    geometry = {name: value for name, value in settings.items() if name != "bias"}
    torch.testing.assert_close(small(inputs), conv2d(inputs, nearest, model[0].bias, **geometry))


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv3d])
def test_convolutions_of_other_dimensions(kind):
    model = double(kind(4, 6, 3, padding=1))
    small = split(model, kept=0.8)
    inputs = torch.rand(2, 4, *[5] * (model[0].weight.ndim - 2), dtype=torch.float64)
    nearest = copy.deepcopy(model)
    matrix = truncated(model[0].weight.detach().flatten(1).numpy(), ranks(small)["0"])
    nearest[0].weight.data = torch.from_numpy(matrix).view_as(model[0].weight)
    torch.testing.assert_close(small(inputs), nearest(inputs))


@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_becomes_the_nearest_of_its_rank(bias):
    model = double(nn.Linear(20, 12, bias=bias))
    small = split(model, kept=0.3)
    assert ranks(small) == {"0": 2}
    np.testing.assert_allclose(
        product(small[0]), truncated(model[0].weight.detach().numpy(), 2), atol=1e-12
    )
    inputs = torch.rand(5, 20, dtype=torch.float64)
    expected = inputs @ torch.from_numpy(product(small[0])).T + (model[0].bias if bias else 0)
    torch.testing.assert_close(small(inputs), expected)
    values = np.linalg.svd(model[0].weight.detach().numpy(), compute_uv=False)[:2]
    for factor, axis in (
        (small[0][0].weight, 1),
        (small[0][1].weight, 0),
    ):  # Evenly between the two.
        np.testing.assert_allclose(factor.detach().square().sum(axis).numpy(), values, rtol=1e-12)


@pytest.mark.parametrize("by", ["share", "energy"])
def test_the_squared_error_is_the_sum_of_the_squared_singular_values_that_are_dropped(cnn, by):
    model = cnn.double()
    small = split(model, kept=0.5, by=by)
    found = ranks(small)
    assert len(found) >= 3
    for name, rank in found.items():
        weight = model.get_submodule(name).weight.detach().flatten(1).numpy()
        error = ((weight - product(small.get_submodule(name))) ** 2).sum()
        assert error == pytest.approx(
            (np.linalg.svd(weight, compute_uv=False)[rank:] ** 2).sum(), rel=1e-9
        )


def test_counts_by_hand():
    """Two layers of 100 and 40 weights, whose ranks have 20 and 14 each: at most 4 and 2 are
    fewer."""
    model = double(nn.Linear(10, 10), nn.Linear(10, 4))
    # The first layer has its next ranks from shares of 0.4, 0.6 and 0.8 on, the second from 0.7 on.
    expected = {
        34: (1, 1),
        53: (1, 1),
        54: (2, 1),
        74: (3, 1),
        87: (3, 1),
        88: (3, 2),
        107: (3, 2),
        108: (4, 2),
        139: (4, 2),
    }
    for limit, (first, second) in expected.items():
        small = split(model, kept=limit / 140)
        assert ranks(small) == {"0": first, "1": second}
        assert weights(small) == 20 * first + 14 * second <= limit
    assert ranks(split(model, kept=1)) == {}


@pytest.mark.parametrize("kept", [0.12, 0.2, 0.35, 0.5, 0.8, 0.97])
def test_one_share_of_the_weights_for_all_layers_as_large_as_fits(cnn, kept):
    shapes = {name: (len(w), w[0].numel()) for name, w in masks.prunable(cnn).items()}
    limit = kept * weights(cnn)

    def total(share: float) -> int:
        left = 0
        for rows, columns in shapes.values():
            rank = max(1, int(share * rows * columns / (rows + columns) + 1e-9))
            left += min(rank * (rows + columns), rows * columns) if share < 1 else rows * columns
        return left

    shares = {rank * (o + i) / (o * i) for o, i in shapes.values() for rank in range(1, o)}
    assert weights(split(cnn, kept=kept)) == max(
        left for share in shares if share < 1 and (left := total(share)) <= limit
    )


@pytest.mark.parametrize("kept", [0.12, 0.2, 0.35, 0.5, 0.8, 0.97])
def test_one_share_of_the_energy_for_all_layers_as_large_as_fits(cnn, kept):
    values, limit = spectra(cnn), kept * weights(cnn)
    shapes = {name: (len(w), w[0].numel()) for name, w in masks.prunable(cnn).items()}
    shares = {name: np.cumsum(s**2) / (s**2).sum() for name, s in values.items()}

    def chosen(share: float) -> dict[str, int]:
        return {name: 1 + int((energy < share - 1e-12).sum()) for name, energy in shares.items()}

    def total(share: float) -> int:
        return sum(
            min(rank * sum(shapes[name]), np.prod(shapes[name]))
            for name, rank in chosen(share).items()
        )

    best = max(share for each in shares.values() for share in each if total(share) <= limit)
    small = split(cnn, kept=kept, by="energy")
    assert weights(small) == total(best) <= limit
    assert ranks(small) == {
        name.removesuffix(".weight"): r
        for name, r in chosen(best).items()
        if r * sum(shapes[name]) < np.prod(shapes[name])
    }


@pytest.mark.parametrize("by", ["share", "energy"])
def test_more_is_left_of_every_layer_if_more_may_be_kept(cnn, by):
    levels = np.linspace(0.12, 0.99, 20)
    found = [ranks(split(cnn, kept=float(kept), by=by)) for kept in levels]
    for smaller, larger in itertools.pairwise(found):
        assert (
            all(larger.get(name, 99) >= rank for name, rank in smaller.items())
            and larger.keys() <= smaller.keys()
        )
    sizes = [weights(split(cnn, kept=float(kept), by=by)) / weights(cnn) for kept in levels]
    assert all(size <= kept < size + 0.15 for size, kept in zip(sizes, levels, strict=True))
    assert found[0] != found[-1]


def test_energy_goes_where_the_weights_are_of_low_rank():
    model = double(nn.Linear(30, 30), nn.Linear(30, 30))
    model[0].weight.data = torch.outer(*torch.rand(2, 30, dtype=torch.float64))
    by_energy, by_share = (ranks(split(model, kept=0.5, by=by)) for by in ("energy", "share"))
    assert by_energy == {"0": 1, "1": 14} and by_share == {"0": 7, "1": 7}
    model[0].weight.data.zero_()
    assert ranks(split(model, kept=0.5, by="energy")) == {"0": 1, "1": 14}


@pytest.mark.parametrize("by", ["share", "energy"])
def test_a_last_layer_that_stays_whole_takes_its_weights_from_the_others(cnn, by):
    """Hence the others are those of the network without it, in the weights that it leaves them."""
    last = cnn.classifier[4].weight
    small = factorize(cnn, "svd", kept=0.3, by=by)
    assert torch.equal(small.classifier[4].weight, last)
    body, total = nn.Sequential(cnn.features, cnn.classifier[:4]), weights(cnn)
    alone = split(body, kept=(0.3 * total - last.numel()) / (total - last.numel()), by=by)
    assert list(ranks(small).values()) == list(ranks(alone).values())
    assert weights(small) == weights(alone) + last.numel() <= 0.3 * total


def test_all_weights_kept_is_a_copy(cnn):
    small = split(cnn.train(), kept=1)
    assert cnn.training and not small.training and not ranks(small)
    assert all(
        torch.equal(value, cnn.state_dict()[name]) for name, value in small.state_dict().items()
    )
    assert memory_of(small).recipe is not None


def test_a_rank_below_one_is_refused_and_the_least_is_named():
    model = double(nn.Linear(10, 10), nn.Linear(10, 4))
    with pytest.raises(ValueError, match=r"kept=0\.2 is too small: .* leaves 0\.2429"):
        split(model, kept=0.2)
    assert weights(split(model, kept=0.2429)) == 34
    with pytest.raises(ValueError, match=r"leaves 1 of the weights$"):
        split(double(nn.Linear(10, 1)), kept=0.9)


def test_a_network_whose_only_layer_is_the_last_has_nothing_to_factorize():
    model = double(nn.Linear(10, 10))
    with pytest.raises(
        ValueError,
        match=r"in every layer but the last leaves 1 of the weights; last='split' includes it",
    ):
        factorize(model, "svd", kept=0.9)
    assert not ranks(factorize(model, "svd", kept=1)) and ranks(split(model, kept=0.9)) == {"0": 4}


def test_the_model_and_the_generators_are_left_alone(cnn):
    before, state = copy.deepcopy(cnn.state_dict()), torch.random.get_rng_state()
    one, two = (split(cnn, kept=0.4) for _ in range(2))
    assert all(
        torch.equal(value, before[name]) for name, value in cnn.state_dict().items()
    ) and not ranks(cnn)
    assert torch.equal(state, torch.random.get_rng_state()) and not one.training
    assert all(
        torch.equal(value, two.state_dict()[name]) for name, value in one.state_dict().items()
    )


def test_pruned_quantized_and_factorized_models_are_refused(cnn):
    sparse = fairlib.prune(cnn, "magnitude", sparsity=0.5)
    with pytest.raises(
        ValueError,
        match=r"features\.0\.weight is pruned, .*: factorize the dense model first, then",
    ):
        split(sparse, kept=0.5)
    scales = {"features.0.weight": torch.ones(8, 1, 1, 1)}
    with pytest.raises(ValueError, match=r"features\.0\.weight is pruned, quantized or"):
        split(quantizers.with_quantizers(cnn, scales, 4), kept=0.5)
    with pytest.raises(
        ValueError, match=r"features\.0 is pruned, quantized or factorized already, and"
    ):
        split(factorize(cnn, "svd", kept=0.5), kept=0.5)


def test_bad_input(cnn):
    for kept in (0, 1.1, float("nan")):
        with pytest.raises(ValueError, match=r"kept must lie in \(0, 1\]"):
            factorize(cnn, "svd", kept=kept)
    with pytest.raises(TypeError, match="kept must be a number, got '1'"):
        factorize(cnn, "svd", kept="1")
    with pytest.raises(ValueError, match="unknown factorization method 'qr'; known: svd"):
        factorize(cnn, "qr", kept=0.5)
    with pytest.raises(
        TypeError, match="unknown setting 'rank' for factorization method 'svd'; known: by, last"
    ):
        FACTORIZATION.check("svd", rank=3)
    with pytest.raises(ValueError, match="unknown value of by 'layer'; known: share, energy"):
        factorize(cnn, "svd", kept=0.5, by="layer")
    with pytest.raises(ValueError, match="unknown value of last 'rank one'; known: split, whole"):
        factorize(cnn, "svd", kept=0.5, last="rank one")
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module"):
        factorize(cnn.state_dict(), "svd", kept=0.5)
    with pytest.raises(ValueError, match="a Linear and nothing else; put it into a Sequential"):
        factorize(nn.Linear(10, 10), "svd", kept=0.5)
    for value in (torch.nan, torch.inf):
        cnn.classifier[0].weight.data[0, 0] = value
        with pytest.raises(
            ValueError, match=r"classifier\.0\.weight holds NaN or infinite weights"
        ):
            factorize(cnn, "svd", kept=0.5)


def test_what_was_saved_is_restored(cnn, images):
    fresh = fairlib.build("cnn", num_classes=3, in_channels=1, image_size=8, seed=5)
    small = fairlib.fit(split(cnn, kept=0.4), images, epochs=1)
    for model in (
        small,
        fairlib.prune(small, "magnitude", sparsity=0.5),
        fairlib.linearize(small, "random", data=images, budget=0.5, finetune=0),
    ):
        restored = fairlib.restore(fresh, model.state_dict())
        assert not ranks(fresh) and not restored.training and ranks(restored) == ranks(small)
        assert all(
            torch.equal(value, model.state_dict()[name])
            for name, value in restored.state_dict().items()
        )
        inputs = images.batch(slice(9))
        assert torch.equal(restored(inputs), model(inputs))
    with pytest.raises(ValueError, match="state_dict does not fit this CNN"):
        fairlib.restore(
            fairlib.build("cnn", num_classes=4, in_channels=1, image_size=8), small.state_dict()
        )


def test_factors_are_finetuned_pruned_linearized_and_compacted(cnn, images):
    dense = fairlib.fit(cnn, images, epochs=6, batch_size=12)
    small = split(dense, kept=0.4)
    assert fairlib.history(small).equals(fairlib.history(dense)) and memory_of(small).recipe is None
    assert fairlib.gradient_evaluations(small) == 6 * 120
    tuned = fairlib.fit(small, images, epochs=3, batch_size=12, lr=0.01)
    assert len(fairlib.history(tuned)) == 3 and fairlib.gradient_evaluations(tuned) == 9 * 120
    assert ranks(tuned) == ranks(small) and fairlib.history(tuned)["accuracy"].iloc[-1] > 0.9
    assert not torch.equal(tuned.features[0][0].weight, small.features[0][0].weight)
    sparse = fairlib.fit(fairlib.prune(tuned, "magnitude", sparsity=0.5), images, epochs=1)
    assert fairlib.sparsity(sparse) == pytest.approx(0.5, abs=1e-3)
    assert "classifier.0.1.weight" in masks.read_masks(sparse)
    linear = fairlib.linearize(tuned, "random", data=images, budget=0.3, finetune={"epochs": 1})
    assert count(linear).attrs["total"] == round(0.3 * count(dense).attrs["total"])
    narrow = fairlib.compact(fairlib.prune(tuned, "filter-norm", sparsity=0.3, data=images), images)
    assert weights(narrow) < weights(tuned)


def test_a_linearized_network_keeps_its_gates(cnn, images):
    linear = fairlib.linearize(cnn, "random", data=images, budget=0.4, finetune=0)
    small = split(linear, kept=0.5)
    assert count(small).equals(count(linear)) and ranks(small)


def test_grouped_convolutions_stay_and_count(images):
    model = fairlib.build("mobilenetv2", num_classes=3, in_channels=1, image_size=16)
    small = split(model, kept=0.5)
    grouped = {
        name for name, m in model.named_modules() if isinstance(m, nn.Conv2d) and m.groups > 1
    }
    assert grouped and not grouped & ranks(small).keys()
    for name in grouped:
        assert torch.equal(small.get_submodule(name).weight, model.get_submodule(name).weight)
    assert 0.48 < weights(small) / weights(model) <= 0.5
    assert small(torch.rand(2, 1, 16, 16)).shape == (2, 3)


class _Scaled(nn.Linear):
    def forward(self, inputs):
        return 2 * super().forward(inputs)


def test_layers_that_may_compute_something_else_stay_as_they_are():
    model = double(
        nn.Conv2d(4, 8, 3, padding=1, padding_mode="circular"),
        nn.Flatten(),
        _Scaled(32, 32),
        nn.Linear(32, 32),
    )
    model[3].register_forward_hook(print)
    with pytest.raises(ValueError, match=r"leaves 1 of the weights$"):
        split(model, kept=0.9)
    model[3]._forward_hooks.clear()
    # Of 2336 weights 2102 may stay: less the 1312 of the first two layers, they hold 12 ranks of
    # 64.
    assert ranks(split(model, kept=0.9)) == {"3": 12}


class _Reader(nn.Module):
    """It reads the weight of a layer that it never calls."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(10, 10)

    def forward(self, inputs):
        return inputs @ self.layer.weight.T + self.layer.bias


def test_a_model_that_reads_the_weights_of_its_layers_reads_the_product():
    attention = nn.MultiheadAttention(8, 2)  # Its layer is no nn.Linear of the plain kind.
    found = ranks(split(nn.Sequential(attention, nn.Linear(8, 8)), kept=0.9))
    assert found and "0.out_proj" not in found
    small = split(nn.Sequential(_Reader(), nn.Linear(10, 10)), kept=0.5)
    factors, inputs = small[0].layer, torch.rand(2, 10)
    torch.testing.assert_close(small(inputs), small[1](factors(inputs)))


def test_a_layer_under_two_names_is_replaced_under_both():
    layer = nn.Linear(10, 10)
    small = split(double(layer, nn.ReLU(), layer), kept=0.5)
    assert small[0] is small[2] and isinstance(small[0], Factorized)


def test_frozen_weights_stay_frozen_and_types_are_kept():
    model = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 10)).to(torch.bfloat16)
    model[0].weight.requires_grad_(False)
    small = split(model, kept=0.5)
    frozen = {name: parameter.requires_grad for name, parameter in small.named_parameters()}
    assert [name for name, trained in frozen.items() if not trained] == ["0.0.weight", "0.1.weight"]
    assert {parameter.dtype for parameter in small.parameters()} == {torch.bfloat16}


def test_a_copy_and_a_pickled_one_compute_the_same(cnn):
    small = split(cnn, kept=0.4)
    inputs = torch.rand(3, 1, 8, 8)
    for other in (copy.deepcopy(small), pickle.loads(pickle.dumps(small))):
        assert torch.equal(other(inputs), small(inputs)) and ranks(other) == ranks(small)


def test_a_study_gives_it_data_and_a_seed_that_it_does_not_need(cnn, images):
    kind = FACTORIZATION
    small = kind.function(cnn, "svd", kept=0.4, data=images, seed=3, by="energy")
    assert ranks(small) == ranks(factorize(cnn, "svd", kept=0.4, by="energy"))
    assert (
        0.3 < kind.kept(small, cnn) < 0.6
        and kind.kept(cnn, cnn) == 1
        and not kind.methods["svd"].trains
    )


@pytest.mark.parametrize(
    "layer",
    [nn.Linear(12, 9), nn.Conv2d(6, 9, 3, stride=2, padding=1), nn.Conv1d(6, 9, 5, dilation=2)],
    ids=lambda layer: type(layer).__name__,
)
def test_factors_offer_what_the_layer_offers(layer):
    model = nn.Sequential(layer, nn.Flatten(), nn.LazyLinear(3)).double()
    inputs = torch.rand(
        4, *([12] if isinstance(layer, nn.Linear) else [6, *[11] * (layer.weight.ndim - 2)])
    )
    model(inputs.double())
    small = fairlib.factorize(model, "svd", kept=0.9)[0]
    assert isinstance(small, Factorized) and small.bias is small[1].bias
    assert small.weight.shape == layer.weight.shape
    for name in (
        "in_features",
        "out_features",
        "in_channels",
        "out_channels",
        "kernel_size",
        "stride",
        "padding",
    ):
        assert getattr(small, name, None) == getattr(layer, name, None)
    with torch.no_grad():
        layer.weight.copy_(small.weight)
    torch.testing.assert_close(layer(inputs.double()), small(inputs.double()))
    small.weight.sum().backward()
    assert all(factor.weight.grad.any() for factor in small)
    with pytest.raises(AttributeError, match="gain"):
        _ = small.gain


def test_layers_of_torch_that_read_the_weights_of_layers_run_on_factors():
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    small = fairlib.factorize(nn.Sequential(layer, nn.Linear(16, 3)), "svd", kept=0.9)
    assert isinstance(small[0].linear1, Factorized)
    inputs = torch.rand(4, 5, 16)
    found = small.train()(inputs).detach()  # By calls; without gradients torch reads the weights.
    with torch.no_grad():
        torch.testing.assert_close(small.eval()(inputs), found, atol=1e-5, rtol=1e-4)
