from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import unfold

import fairlib
from fairlib.network import masks


def _network() -> nn.Sequential:
    """A stride, padding, groups and dilation; no input is zero, so that there are no ties."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Conv2d(4, 8, 3, padding=2, dilation=2, groups=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(128, 3),
    )


def _scores(model: nn.Sequential, data: fairlib.GroupedDataset) -> dict[str, torch.Tensor]:
    """|w| times the norm of each column of the patches, which are written out."""
    inputs, scores = data.batch(slice(None), dtype=torch.float32), {}
    with torch.no_grad():
        for place, layer in enumerate(model):
            if isinstance(layer, nn.Conv2d):
                parts = zip(
                    layer.weight.chunk(layer.groups), inputs.chunk(layer.groups, 1), strict=True
                )
                scores[f"{place}.weight"] = torch.cat(
                    [
                        weight.abs().flatten(1)
                        * unfold(part, 3, layer.dilation, layer.padding, layer.stride)
                        .double()
                        .norm(dim=(0, 2))
                        for weight, part in parts
                    ]
                )
            elif isinstance(layer, nn.Linear):
                scores[f"{place}.weight"] = layer.weight.abs() * inputs.double().norm(dim=0)
            inputs = layer(inputs)
    return scores


def test_each_output_keeps_its_highest_products_of_weight_and_input(images):
    model = _network()
    kept = masks.read_masks(fairlib.prune(model, "wanda", sparsity=0.7, data=images))
    scores = _scores(model, images)
    assert kept.keys() == scores.keys()
    for name, score in scores.items():
        count = score.shape[1] - round(0.7 * score.shape[1])
        best = torch.zeros_like(score).scatter(1, score.topk(count).indices, 1).bool()
        assert torch.equal(kept[name].flatten(1), best), name


def test_two_of_four_of_the_same_scores(images):
    model = _network()
    exclude = ["0.weight", "2.weight"]
    settings = {"sparsity": 0.5, "granularity": "2:4", "exclude": exclude}
    kept = masks.read_masks(fairlib.prune(model, "wanda", data=images, **settings))
    blocks = _scores(model, images)["5.weight"].reshape(-1, 4)
    best = torch.zeros_like(blocks).scatter(1, blocks.topk(2).indices, 1).bool()
    assert kept.keys() == {"5.weight"}
    assert torch.equal(kept["5.weight"].reshape(-1, 4), best)


def test_a_change_of_units_changes_nothing(images):
    """Hidden features times c, their readers' weights by c: the network is the same, and so is what
    Wanda keeps of the readers, which magnitude ranks by the unit."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 3))
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 3))
    other.load_state_dict(model.state_dict())
    units = 4.0 ** torch.arange(-8, 8)
    with torch.no_grad():
        other[1].weight.mul_(units[:, None])
        other[1].bias.mul_(units)
        other[3].weight.div_(units)

    def kept(net, method, **settings):
        pruned = fairlib.prune(net, method, sparsity=0.5, data=images, **settings)
        return masks.read_masks(pruned)["3.weight"]

    assert torch.equal(kept(model, "wanda"), kept(other, "wanda"))
    rows = {"scope": "output"}
    assert not torch.equal(kept(model, "magnitude", **rows), kept(other, "magnitude", **rows))


def test_masks_hold_in_training_and_a_second_pruning_is_nested(cnn, images):
    half = fairlib.prune(cnn, "wanda", sparsity=0.5, data=images)
    trained = fairlib.fit(half, images, epochs=1, lr=0.1)
    most = fairlib.prune(trained, "wanda", sparsity=0.75, data=images)
    before, after = masks.read_masks(trained), masks.read_masks(most)
    for name, mask in masks.read_masks(half).items():
        assert torch.equal(mask, before[name])
        assert not (after[name] & ~mask).any()
        each = mask[0].numel()
        zeros = {int(row) for row in (~after[name]).flatten(1).sum(1)}
        assert zeros == {min(round(0.75 * each), each - 1)}
    with pytest.raises(ValueError, match="among 9 weights of features"):
        fairlib.prune(most, "wanda", sparsity=0.5, data=images)


def test_sums_of_half_precision_do_not_overflow(images):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).half()
    bright = fairlib.GroupedDataset(images.inputs.float() + 100, images.targets, images.groups)
    kept = [
        masks.read_masks(fairlib.prune(net, "wanda", sparsity=0.5, data=bright))["1.weight"]
        for net in (model, _float(model))
    ]
    assert torch.equal(*kept)


def _float(model: nn.Sequential) -> nn.Sequential:
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    other.load_state_dict({name: value.float() for name, value in model.state_dict().items()})
    return other


def test_weights_that_no_layer_is_called_for_are_named(images):
    model = fairlib.build("vit-tiny", num_classes=3, in_channels=1, image_size=8, seed=0)
    with pytest.raises(ValueError, match=r"exclude=\['transformer.*in_proj_weight', ") as refused:
        fairlib.prune(model, "wanda", sparsity=0.5, data=images)
    unseen = [name for name in masks.prunable(model) if "self_attention" in name]
    assert all(name in str(refused.value) for name in unseen)
    pruned = fairlib.prune(model, "wanda", sparsity=0.5, data=images, exclude=unseen)
    assert not masks.read_masks(pruned).keys() & set(unseen)


class _ByKeyword(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(input=inputs)


def test_a_layer_that_is_called_by_keyword_shows_its_inputs(images):
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    named = nn.Sequential(nn.Flatten(), _ByKeyword(plain[1]))
    one, other = (
        fairlib.prune(each, "wanda", sparsity=0.5, data=images) for each in (plain, named)
    )
    assert torch.equal(one[1].weight, other[1].layer.weight)
