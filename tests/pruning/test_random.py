from __future__ import annotations

import torch

import fairlib
from fairlib.network import masks


def _kept(model, **settings):
    return masks.read_masks(fairlib.prune(model, "random", **settings))


def test_every_layer_loses_the_same_share(cnn):
    for mask in _kept(cnn, sparsity=0.75).values():
        assert int((~mask).sum()) == min(round(0.75 * mask.numel()), mask.numel() - 1)


def test_follows_the_seed_alone_and_is_nested(cnn):
    torch.manual_seed(5)
    half, most = _kept(cnn, sparsity=0.5, seed=2), _kept(cnn, sparsity=0.9, seed=2)
    torch.manual_seed(6)
    again, other = _kept(cnn, sparsity=0.5, seed=2), _kept(cnn, sparsity=0.5, seed=3)
    assert all(torch.equal(half[name], again[name]) for name in half)
    assert not all(torch.equal(half[name], other[name]) for name in half)
    assert all(bool((half[name] | ~most[name]).all()) for name in half)


def test_has_nothing_to_do_with_the_weights(cnn):
    """Of a layer of 4,096 weights the mean magnitude of the kept half is that of all, within five
    standard errors."""
    weight = cnn.classifier[0].weight.detach().abs()
    kept = _kept(cnn, sparsity=0.5)["classifier.0.weight"]
    error = weight.std() / kept.sum().sqrt()
    assert abs(weight[kept].mean() - weight.mean()) < 5 * error
