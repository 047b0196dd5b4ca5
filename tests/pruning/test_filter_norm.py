from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import prune as torch_prune
from zoo import zoo_model

import fairlib
from fairlib.network import masks
from fairlib.pruning.filter_norm import filter_norm


def _emptied(model: nn.Module, name: str) -> list[int]:
    return (~masks.read_masks(model)[name].flatten(1).any(1)).nonzero().flatten().tolist()


def test_agrees_with_torch_in_a_chain_of_layers(cnn, images):
    pruned = filter_norm(cnn, sparsity=0.6, data=images)
    for index in (0, 3):
        layer = fairlib.build("cnn", num_classes=3, in_channels=1, image_size=8, seed=0).features[
            index
        ]
        gone = _emptied(pruned, f"features.{index}.weight")
        torch_prune.ln_structured(layer, "weight", amount=len(gone), n=2, dim=0)
        assert gone and gone == (layer.weight.flatten(1) == 0).all(1).nonzero().flatten().tolist()


def test_tied_channels_are_scored_by_all_their_filters():
    model, inputs = zoo_model("tiny-resnet")
    pruned = filter_norm(model, sparsity=0.5, data=inputs)
    names = ("layer2.0.downsample.0.weight", "layer2.0.conv2.weight")
    squares = sum(model.get_parameter(name).detach().flatten(1).square().sum(1) for name in names)
    for name in names:
        gone = _emptied(pruned, name)
        assert gone and gone == sorted(squares.argsort()[: len(gone)].tolist())


def test_biases_and_batchnorm_of_removed_channels_have_no_effect_and_masks_hold_through_fit(images):
    model = fairlib.build("tiny-resnet", num_classes=3, in_channels=1, image_size=8, seed=0)
    pruned = filter_norm(model, sparsity=0.7, data=images)
    assert not pruned.training and 0.7 <= fairlib.sparsity(pruned) < 0.75
    trained = fairlib.fit(pruned, images, epochs=1, weight_decay=0.01)
    assert fairlib.sparsity(trained) == fairlib.sparsity(pruned)
    gone = _emptied(trained, "conv1.weight")
    expected = trained(images.batch([0, 50]))
    trained.bn1.bias.data[gone] += 1
    assert gone and torch.equal(trained(images.batch([0, 50])), expected)


def test_bad_input(cnn, images):
    with pytest.raises(ValueError, match="data is needed"):
        filter_norm(cnn, sparsity=0.5, data=None)
    with pytest.raises(ValueError, match=r"sparsity 0\.999 is out of reach"):
        filter_norm(cnn, sparsity=0.999, data=images)
    cnn.features[0].weight.data[0] = torch.nan
    with pytest.raises(ValueError, match=r"features\.0\.weight hold NaN"):
        filter_norm(cnn, sparsity=0.5, data=images)
