from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from zoo import RECTIFIED, lively, of_the_zoo, zoo_model

import fairlib
from fairlib.linearization import count, gate
from fairlib.network import masks
from fairlib.network.compaction import compact
from fairlib.pruning.filter_norm import filter_norm
from fairlib.pruning.fpgm import fpgm


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


@torch.no_grad()
def _same_outputs(small: nn.Module, model: nn.Module, inputs: Tensor) -> bool:
    expected = model.eval()(inputs)
    return torch.allclose(
        small(inputs), expected, rtol=0, atol=1e-5 * max(1.0, float(expected.abs().max()))
    )


@of_the_zoo(RECTIFIED)
def test_every_model_of_the_zoo_gives_the_same_outputs_with_fewer_weights(name):
    model, inputs = zoo_model(name)
    pruned = filter_norm(model, sparsity=0.7, data=inputs)
    small = compact(pruned, inputs)
    assert _same_outputs(small, pruned, inputs) and not small.training
    weights = sum(weight.numel() for weight in masks.prunable(small).values())
    assert weights == sum(int(mask.sum()) for mask in masks.read_masks(pruned).values()) + sum(
        weight.numel()
        for name, weight in masks.prunable(pruned).items()
        if name not in masks.read_masks(pruned)
    )
    assert all(bool(mask.all()) for mask in masks.read_masks(small).values())
    assert _count(small) < 0.4 * _count(model) and _count(model) == _count(pruned)


def test_the_shapes_that_are_left_by_hand():
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, 5),
        nn.Linear(5, 2),
    )
    keep = torch.ones(5, 16, dtype=torch.bool)
    keep[:, 4:12] = False  # Channels 1 and 2 of the convolution, whose images are 2 x 2.
    pruned = masks.with_masks(lively(net), {"4.weight": keep})
    small = compact(pruned, torch.rand(3, 1, 4, 4))
    assert _shapes(small) == {
        "0.weight": (2, 1, 3, 3),
        "0.bias": (2,),
        "1.weight": (2,),
        "1.bias": (2,),
        "4.weight": (5, 8),
        "4.bias": (5,),
        "5.weight": (2, 5),
        "5.bias": (2,),
    }
    assert torch.equal(small[0].weight, net[0].weight[[0, 3]]) and torch.equal(
        small[1].running_var, net[1].running_var[[0, 3]]
    )
    assert _same_outputs(small, pruned, torch.rand(7, 1, 4, 4))


def test_what_removed_channels_alone_have_read_goes_too_and_one_channel_stays():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    middle = torch.ones(4, 4, dtype=torch.bool)
    middle[:3, 0] = (
        False  # Only the last channel of the second layer reads the first of the first layer.
    )
    last = torch.tensor([[True, True, True, False]] * 2)
    small = compact(masks.with_masks(net, {"2.weight": middle, "4.weight": last}), torch.rand(1, 3))
    assert [tuple(small[i].weight.shape) for i in (0, 2, 4)] == [(3, 3), (3, 3), (2, 3)]
    nothing = masks.with_masks(net, {"4.weight": torch.zeros(2, 4, dtype=torch.bool)})
    small = compact(nothing, torch.rand(1, 3))
    assert [tuple(small[i].weight.shape) for i in (0, 2, 4)] == [(4, 3), (1, 4), (2, 1)]
    assert _same_outputs(small, nothing, torch.rand(5, 3))


def test_remaining_masks_hold_and_training_goes_on_as_in_the_masked_model(images):
    model = fairlib.build("tiny-resnet", num_classes=3, in_channels=1, image_size=8, seed=0)
    sparse = fairlib.prune(fairlib.fit(model, images, epochs=1, keep=0), "magnitude", sparsity=0.3)
    pruned = filter_norm(sparse, sparsity=0.7, data=images)
    small = compact(pruned, images)
    assert 0.1 < fairlib.sparsity(small) < 0.5
    inputs = images.batch(slice(None))
    settings = {"epochs": 2, "lr": 0.02, "weight_decay": 0.01, "seed": 1, "device": "cpu"}
    wide, narrow = (fairlib.fit(net.double(), images, **settings) for net in (pruned, small))
    assert fairlib.sparsity(narrow) == fairlib.sparsity(small)
    with torch.no_grad():
        torch.testing.assert_close(
            narrow(inputs.double()), wide(inputs.double()), rtol=1e-6, atol=1e-8
        )
        assert not torch.allclose(narrow(inputs.double()), pruned(inputs.double()), atol=1e-3)


def test_the_argument_is_left_as_it_is_and_what_training_left_is_kept(cnn, images):
    trained = fairlib.fit(cnn, images, epochs=1, keep=0)
    trained.classifier[4].bias.requires_grad_(False)
    pruned = fpgm(trained, sparsity=0.6, data=images).train()
    before, state = copy.deepcopy(pruned.state_dict()), torch.random.get_rng_state()
    small = compact(pruned, images)
    assert all(torch.equal(value, before[name]) for name, value in pruned.state_dict().items())
    assert pruned.training and torch.equal(state, torch.random.get_rng_state())
    assert [p.requires_grad for p in small.parameters()] == [
        p.requires_grad for p in pruned.parameters()
    ]
    assert fairlib.history(small).equals(fairlib.history(trained))
    with pytest.raises(ValueError, match="were not kept"):
        fairlib.weights_at(small, 0)
    twin = copy.deepcopy(small)
    twin.load_state_dict(small.state_dict())
    assert _same_outputs(twin, pruned, images.batch([0, 1]))


def test_where_nothing_can_be_removed_the_result_is_a_copy(cnn, images):
    sparse = fairlib.prune(cnn, "magnitude", sparsity=0.3)
    small = compact(sparse, images)
    assert small is not sparse and _shapes(small) == _shapes(sparse)
    assert all(
        torch.equal(value, small.state_dict()[name]) for name, value in sparse.state_dict().items()
    )
    same = compact(fairlib.fit(sparse, images, epochs=1, keep=0), images)
    assert torch.equal(fairlib.weights_at(same, 0)["features.0.weight"], sparse.features[0].weight)


class Gated(nn.Module):
    """A buffer of the channels' shape, which removal does not know of; or one that it silently
    misreads."""

    def __init__(self, gate: Tensor):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 2)
        self.register_buffer("gate", gate)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        return self.last(hidden * self.gate[: hidden.shape[1]])


def test_bad_input(cnn, images):
    with pytest.raises(ValueError, match="data is needed"):
        compact(cnn, None)
    keep = {"last.weight": torch.tensor([[False, True, True, True, True, True]] * 2)}
    with pytest.raises(ValueError, match="Gated gives other outputs without its unread channels"):
        compact(masks.with_masks(Gated(torch.arange(6.0)), keep), torch.rand(1, 4))
    fixed = nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (6,)), nn.Linear(6, 2))
    keep = {"2.weight": keep["last.weight"]}
    with pytest.raises(ValueError, match="Sequential does not run without its unread channels"):
        compact(masks.with_masks(fixed, keep), torch.rand(1, 4))


def test_a_linearized_model_is_compacted_before_it_is_linearized(cnn, images):
    narrow = fairlib.prune(cnn, "filter-norm", sparsity=0.5, data=images)
    with pytest.raises(ValueError, match="compact first, linearize then"):
        fairlib.compact(gate(narrow), images)
    small = fairlib.compact(narrow, images)
    assert count(small).attrs["total"] < count(narrow).attrs["total"]
