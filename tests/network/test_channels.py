from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import Tensor, nn
from zoo import RECTIFIED, lively, of_the_zoo, zoo_model

import fairlib
from fairlib.network import channels, masks


def _sets(model: nn.Module, inputs: Tensor) -> dict[frozenset[str], channels.Coupled]:
    return {
        frozenset(coupled.producers): coupled
        for coupled in channels.coupled_channels(model, inputs)
    }


def _norms(filters: Tensor) -> Tensor:
    return filters.norm(dim=1)


def _removed(keep: dict[str, Tensor], name: str) -> set[int]:
    """The rows of a weight that a mask has emptied."""
    return set((~keep[name].flatten(1).any(1)).nonzero().flatten().tolist())


class Residual(nn.Module):
    """``fc(relu(a(x)) + b(x))``, and whatever is put between."""

    def __init__(self, between: nn.Module | None = None):
        super().__init__()
        self.a, self.relu, self.b = nn.Linear(4, 6), nn.ReLU(), nn.Linear(4, 6)
        self.between = between or nn.Identity()
        self.fc = nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.fc(self.between(self.relu(self.a(inputs)) + self.b(inputs)))


def test_a_chain_and_its_flattening(cnn, images):
    sets = _sets(cnn, channels.example_inputs(cnn, images))
    assert {name for names in sets for name in names} == {
        "features.0.weight",
        "features.3.weight",
        "classifier.0.weight",
        "classifier.2.weight",
    }
    assert all(len(names) == 1 for names in sets)
    second = sets[frozenset(["features.3.weight"])]
    assert second.size == 16 and set(second.readers) == {"classifier.0.weight"}
    channel, column = second.readers["classifier.0.weight"]
    assert torch.equal(channel, column // 4) and column.tolist() == list(range(64))


def test_an_operation_that_changes_the_number_of_channels_is_refused():
    layers = (
        nn.Conv2d(1, 8, 3),
        nn.PixelShuffle(2),
        nn.Conv2d(2, 4, 3),
        nn.Flatten(),
        nn.Linear(400, 3),
    )
    with pytest.raises(
        ValueError, match=r"that meet 2\.weight cannot be removed: it has 2, and 8.*pixel_shuffle"
    ):
        fairlib.prune(nn.Sequential(*layers), "fpgm", sparsity=0.5, data=torch.zeros(1, 1, 8, 8))


def test_a_residual_sum_ties_channels():
    model, inputs = zoo_model("tiny-resnet")
    sets = _sets(model, inputs)
    tied = sets[frozenset(["layer2.0.downsample.0.weight", "layer2.0.conv2.weight"])]
    assert set(tied.readers) == {"layer3.0.downsample.0.weight", "layer3.0.conv1.weight"}
    stem = sets[frozenset(["conv1.weight", "layer1.0.conv2.weight"])]
    assert set(stem.readers) == {
        "layer1.0.conv1.weight",
        "layer2.0.conv1.weight",
        "layer2.0.downsample.0.weight",
    }
    assert "fc.weight" not in {name for names in sets for name in names}


def test_a_depthwise_convolution_hands_its_channels_through():
    net = nn.Sequential(
        nn.Conv2d(2, 4, 1),
        nn.Conv2d(4, 4, 3, groups=4),
        nn.Conv2d(4, 5, 1),
        nn.Flatten(),
        nn.Linear(20, 2),
    )
    sets = _sets(net, torch.rand(1, 2, 4, 4))
    assert set(sets) == {frozenset(["0.weight", "1.weight"]), frozenset(["2.weight"])}
    assert set(sets[frozenset(["0.weight", "1.weight"])].readers) == {"2.weight"}


def test_concatenated_channels_are_read_side_by_side():
    class Concatenation(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.fc = nn.Linear(4, 2), nn.Linear(4, 3), nn.Linear(5, 2)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.fc(torch.cat([self.a(inputs), self.b(inputs)], dim=1))

    sets = _sets(Concatenation(), torch.rand(1, 4))
    assert sets[frozenset(["a.weight"])].readers["fc.weight"][1].tolist() == [0, 1]
    assert sets[frozenset(["b.weight"])].readers["fc.weight"][1].tolist() == [2, 3, 4]


def test_what_is_tied_to_inputs_or_outputs_is_left_out():
    class ToBoth(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c, self.d = (nn.Linear(4, 4) for _ in range(4))

        def forward(self, inputs: Tensor) -> Tensor:
            hidden = self.b(inputs + self.a(inputs))
            return self.d(hidden) + self.c(hidden)

    assert set(_sets(ToBoth(), torch.rand(1, 4))) == {frozenset(["b.weight"])}
    assert not channels.coupled_channels(nn.Linear(4, 2), torch.rand(1, 4))


@of_the_zoo(RECTIFIED)
def test_a_removed_channel_has_no_effect_whatever_its_layers_put_out(name):
    model, inputs = zoo_model(name)
    sets = channels.coupled_channels(model, inputs)
    generator = torch.Generator().manual_seed(0)
    removed = [torch.rand(coupled.size, generator=generator) < 0.5 for coupled in sets]
    masked = masks.with_masks(model, channels.masks_for(sets, removed, model))

    def disturb(rows: Tensor):
        def hook(layer: nn.Module, inputs: object, outputs: Tensor) -> Tensor:
            outputs[:, rows] += 1
            return outputs

        return hook

    with torch.no_grad():
        assert not torch.allclose(masked(inputs), model(inputs))
        expected, disturbed = masked(inputs), copy.deepcopy(masked)
        for coupled, gone in zip(sets, removed, strict=True):
            for weight, (channel, row) in coupled.producers.items():
                layer = disturbed.get_submodule(weight.removesuffix(".weight"))
                layer.register_forward_hook(disturb(row[gone[channel]]))
        torch.testing.assert_close(disturbed(inputs), expected)
    made = {weight for coupled in sets for weight in coupled.producers}
    assert set(masks.prunable(model)) - made == {list(masks.prunable(model))[-1]}


def test_the_model_is_left_as_it_is(images):
    model = fairlib.build("tiny-resnet", num_classes=3, in_channels=1, image_size=8).train()
    model.layer1.eval()
    model.fc.bias.requires_grad_(False)
    model(images.batch([0, 1])).sum().backward()
    before, state = copy.deepcopy(model), torch.random.get_rng_state()
    gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    with torch.no_grad():
        channels.select_channels(model, images, _norms, 0.5)
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.state_dict().values(), before.state_dict().values(), strict=True)
    )
    for parameter, then, gradient in zip(
        model.parameters(), before.parameters(), gradients, strict=True
    ):
        assert parameter.requires_grad == then.requires_grad
        assert parameter.grad is gradient is None or torch.equal(parameter.grad, gradient)
    assert [m.training for m in model.modules()] == [m.training for m in before.modules()]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert torch.equal(state, torch.random.get_rng_state())


def test_the_smallest_rate_by_hand():
    # A hidden channel has 4 weights that make it and 2 that read it, of 24.
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    net[0].weight.data = torch.tensor([3.0, 1, 4, 2])[:, None].expand(4, 4).clone()
    for sparsity, gone in [
        (0, set()),
        (0.03, {1}),
        (0.25, {1}),
        (0.26, {1}),
        (0.3, {1, 3}),
        (0.5, {1, 3}),
        (0.75, {0, 1, 3}),
    ]:
        keep = channels.select_channels(net, torch.rand(1, 4), _norms, sparsity)
        assert _removed(keep, "0.weight") == gone
        assert [bool(column.any()) for column in keep["2.weight"].T] == [
            i not in gone for i in range(4)
        ]
    with pytest.raises(
        ValueError,
        match=r"sparsity 0\.8 is out of reach.* 18 of 24 weights are zero, a sparsity of 0\.75",
    ):
        channels.select_channels(net, torch.rand(1, 4), _norms, 0.8)


@pytest.mark.parametrize("name", ["cnn", "tiny-resnet", "mobilenetv2"])
def test_one_rate_for_all_layers_the_smallest_that_reaches_the_sparsity(name):
    model, inputs = zoo_model(name)
    sets = channels.coupled_channels(model, inputs)
    total = sum(weight.numel() for weight in masks.prunable(model).values())

    def zeros(rate: float) -> float:
        removed = [torch.arange(s.size) < min(int(rate * s.size + 1e-9), s.size - 1) for s in sets]
        return (
            sum(int((~mask).sum()) for mask in channels.masks_for(sets, removed, model).values())
            / total
        )

    rates = sorted({count / coupled.size for coupled in sets for count in range(coupled.size)})
    for sparsity in (0.2, 0.6, 0.9):
        keep = channels.select_channels(model, inputs, _norms, sparsity)
        gone = [len(_removed(keep, next(iter(coupled.producers)))) for coupled in sets]
        rate = max(count / coupled.size for count, coupled in zip(gone, sets, strict=True))
        assert gone == [min(int(rate * coupled.size + 1e-9), coupled.size - 1) for coupled in sets]
        assert fairlib.sparsity(masks.with_masks(model, keep)) == pytest.approx(zeros(rate))
        assert zeros(rate) >= sparsity - 0.5 / total > zeros(rates[rates.index(rate) - 1])


def test_masks_are_nested_and_what_is_masked_goes_first(cnn, images):
    levels = [
        channels.select_channels(cnn, images, _norms, sparsity) for sparsity in (0.3, 0.6, 0.9)
    ]
    for wide, narrow in itertools.pairwise(levels):
        assert all(bool((wide[name] | ~narrow[name]).all()) for name in wide)
    model = masks.with_masks(cnn, levels[0])
    again = channels.select_channels(model, images, lambda filters: -_norms(filters), 0.6)
    assert all(bool((levels[0][name] | ~again[name]).all()) for name in again)
    assert all(
        torch.equal(levels[0][name], mask)
        for name, mask in channels.select_channels(model, images, _norms, 0.3).items()
    )


def test_zeros_of_other_masks_count_and_stay(cnn, images):
    sparse = fairlib.prune(cnn, "magnitude", sparsity=0.5)
    pruned = masks.with_masks(sparse, channels.select_channels(sparse, images, _norms, 0.7))
    assert 0.7 <= fairlib.sparsity(pruned) < 0.75
    before = masks.read_masks(sparse)
    assert not any(
        bool((mask & ~before[name]).any()) for name, mask in masks.read_masks(pruned).items()
    )
    fewer = channels.select_channels(cnn, images, _norms, 0.7)
    assert _removed(masks.read_masks(pruned), "classifier.0.weight") < _removed(
        fewer, "classifier.0.weight"
    )


@pytest.mark.parametrize("between", [nn.LayerNorm(6), nn.GroupNorm(2, 6), nn.Softmax(dim=1)])
def test_operations_that_mix_channels_are_refused(between):
    assert len(channels.coupled_channels(Residual(), torch.rand(1, 4))) == 1
    with pytest.raises(
        ValueError,
        match=r"(a|b)\.weight cannot be removed: they reach the outputs of Residual not only",
    ):
        channels.coupled_channels(Residual(between), torch.rand(1, 4))


def test_mixing_is_seen_behind_layers_that_start_at_zero():
    model = Residual(nn.LayerNorm(6))
    nn.init.zeros_(model.fc.weight)
    with pytest.raises(ValueError, match="an operation in between mixes channels"):
        channels.coupled_channels(model, torch.rand(1, 4))


def test_bad_input(cnn, images):
    def net(middle: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 4, 1), middle, nn.Flatten(), nn.LazyLinear(2))

    for middle in (
        nn.Conv2d(4, 4, 1, groups=2),
        nn.Conv2d(4, 8, 1, groups=4),
        nn.ConvTranspose2d(4, 4, 1),
    ):
        with pytest.raises(
            ValueError, match=r"1 is Conv.*only ordinary and depthwise convolutions"
        ):
            channels.coupled_channels(net(middle)[:3], torch.rand(1, 1, 2, 2))
    unflattened = nn.Sequential(
        nn.Linear(4, 8),
        nn.Unflatten(1, (2, 2, 2)),
        nn.Conv2d(2, 3, 2),
        nn.Flatten(),
        nn.Linear(3, 2),
    )
    with pytest.raises(
        ValueError, match=r"6 of the 8 channels of 0\.weight are read by no weight of their own"
    ):
        channels.coupled_channels(unflattened, torch.rand(1, 4))
    with pytest.raises(
        ValueError, match=r"CNN cannot be traced with inputs \(1, 3, 8, 8\).*expected input"
    ):
        channels.coupled_channels(cnn, torch.rand(1, 3, 8, 8))
    with pytest.raises(ValueError, match="data is needed"):
        channels.select_channels(cnn, None, _norms, 0.5)
    with pytest.raises(TypeError, match=r"GroupedDataset or a tensor of inputs, got \[1\]"):
        channels.select_channels(cnn, [1], _norms, 0.5)
    with pytest.raises(ValueError, match=r"classifier\.2\.weight hold NaN"):
        channels.select_channels(cnn, images, lambda filters: filters.sum(1) * torch.nan, 0.5)


def test_example_inputs_have_the_dtype_of_the_model_and_the_shape_of_the_data(images):
    model = lively(fairlib.build("cnn", num_classes=3, in_channels=1, image_size=8)).double()
    assert channels.example_inputs(model, images, count=3).shape == (3, 1, 8, 8)
    assert (
        channels.example_inputs(model, torch.zeros(5, 7, dtype=torch.uint8)).dtype == torch.float64
    )
    assert channels.select_channels(model, images, _norms, 0.5)


def test_a_layer_of_which_an_earlier_mask_has_left_little_is_not_emptied(cnn, images):
    only = torch.zeros(16, 8, 3, 3, dtype=torch.bool)
    only[0, 0] = (
        # The second convolution reads the first channel alone, which shall have the smallest
        # filter.
        True
    )
    with torch.no_grad():
        cnn.features[0].weight[0] = 1e-6
    sparse = masks.with_masks(cnn, {"features.3.weight": only})
    with pytest.raises(ValueError, match=r"would leave nothing of features\.3\.weight"):
        fairlib.prune(sparse, "filter-norm", sparsity=0.6, data=images)


class Attends(nn.Module):
    """Attention as many models write it, after a convolution of patches."""

    def __init__(self, way: str):
        super().__init__()
        self.way, self.patches, self.qkv = way, nn.Conv2d(1, 8, 4, 4), nn.Linear(8, 24)
        self.attention, self.fc = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        x = self.patches(inputs).flatten(2).transpose(1, 2)
        if self.way == "module":
            return self.fc(self.attention(x, x, x, need_weights=False)[0].mean(1))
        q, k, v = self.qkv(x).chunk(3, dim=2)
        if self.way == "fused":
            return self.fc(nn.functional.scaled_dot_product_attention(q, k, v).mean(1))
        return self.fc(((q @ k.mT).softmax(2) @ v).mean(1))


@pytest.mark.parametrize("way", ["module", "fused", "products"])
def test_attention_is_refused_before_its_channels_are_grouped(way, monkeypatch):
    monkeypatch.setattr(channels, "_coupled", None)
    with pytest.raises(ValueError, match=r"Attends .* multiplies activations .*Backward0"):
        fairlib.prune(Attends(way), "filter-norm", sparsity=0.3, data=torch.rand(2, 1, 8, 8))


def test_the_walk_of_torch_pruning_has_a_limit(monkeypatch):
    monkeypatch.setattr(channels, "LIMIT", -1)
    with pytest.raises(ValueError, match=r"were not found in -1 s: Torch-Pruning's walk"):
        channels.coupled_channels(Residual(), torch.rand(1, 4))
