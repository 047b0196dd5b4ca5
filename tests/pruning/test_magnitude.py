from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune as torch_prune

import fairlib
from fairlib.network import masks


def _weights(model: nn.Module) -> np.ndarray:
    return torch.cat([w.detach().flatten() for w in masks.prunable(model).values()]).numpy()


@pytest.mark.parametrize("sparsity", [0.0, 0.001, 0.3, 0.5, 0.9, 0.995])
def test_exactly_the_asked_count_and_the_smallest(cnn, sparsity):
    pruned = fairlib.prune(cnn, "magnitude", sparsity=sparsity)
    dense, sparse = np.abs(_weights(cnn)), _weights(pruned)
    count = round(sparsity * len(dense))
    assert (sparse == 0).sum() == count
    largest = [np.abs(weight.detach().numpy()).max() for weight in masks.prunable(cnn).values()]
    order = np.argsort(
        np.where(np.isin(dense, largest), np.inf, dense)
    )  # The largest of a layer stays.
    assert set(np.flatnonzero(sparse == 0)) == set(order[:count])
    assert fairlib.sparsity(pruned) == pytest.approx(count / len(dense), abs=1e-12)
    assert not pruned.training


def test_agrees_with_torch_where_there_are_no_ties(cnn):
    pruned = fairlib.prune(cnn, "magnitude", sparsity=0.8)
    peer = fairlib.build("cnn", num_classes=3, in_channels=1, image_size=8, seed=0)
    layers = [m for m in peer.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    torch_prune.global_unstructured(
        [(m, "weight") for m in layers], torch_prune.L1Unstructured, amount=0.8
    )
    assert np.array_equal(
        _weights(pruned), torch.cat([m.weight.detach().flatten() for m in layers]).numpy()
    )


def test_ties_go_by_position_and_masks_are_nested():
    model = nn.Linear(10, 1)
    nn.init.constant_(model.weight, 0.5)
    zeros = [
        set(np.flatnonzero(_weights(fairlib.prune(model, "magnitude", sparsity=s)) == 0))
        for s in (0.1, 0.3, 0.7)
    ]
    assert zeros == [{0}, {0, 1, 2}, {0, 1, 2, 3, 4, 5, 6}]


def test_masks_are_nested_also_when_applied_one_after_another(cnn):
    levels = [0.2, 0.5, 0.9]
    direct = [masks.read_masks(fairlib.prune(cnn, "magnitude", sparsity=s)) for s in levels]
    step_by_step = cnn
    for level, mask in zip(levels, direct, strict=True):
        step_by_step = fairlib.prune(step_by_step, "magnitude", sparsity=level)
        assert all(
            torch.equal(mask[name], kept) for name, kept in masks.read_masks(step_by_step).items()
        )
    for wider, narrower in itertools.pairwise(direct):
        assert all(bool((wider[name] | ~narrower[name]).all()) for name in wider)


def test_layer_scope_prunes_the_same_share_of_each_layer(cnn):
    pruned = fairlib.prune(cnn, "magnitude", sparsity=0.75, scope="layer")
    for mask in masks.read_masks(pruned).values():
        assert int((~mask).sum()) == round(0.75 * mask.numel())


def test_pruned_weights_hold_through_fit(cnn, images):
    pruned = fairlib.prune(cnn, "magnitude", sparsity=0.9)
    before = masks.read_masks(pruned)
    trained = fairlib.fit(pruned, images, epochs=2, lr=0.1, weight_decay=0.01)
    assert all(torch.equal(mask, masks.read_masks(trained)[name]) for name, mask in before.items())
    assert fairlib.sparsity(trained) == fairlib.sparsity(pruned)
    assert not np.array_equal(_weights(pruned), _weights(trained))


def test_no_layer_is_emptied():
    model = nn.Sequential(nn.Linear(6, 50), nn.Linear(50, 2))
    with torch.no_grad():
        model[1].weight.mul_(1e-6)
    pruned = fairlib.prune(model, "magnitude", sparsity=0.95)
    kept = [int(mask.sum()) for mask in masks.read_masks(pruned).values()]
    assert kept == [19, 1]
    assert int(model[1].weight.abs().argmax()) == int(
        masks.read_masks(pruned)["1.weight"].flatten().nonzero()
    )


def test_a_layer_that_a_mask_has_emptied_stays_empty():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    half = masks.with_masks(model, {"0.weight": torch.zeros(4, 4, dtype=torch.bool)})
    kept = masks.read_masks(fairlib.prune(half, "magnitude", sparsity=0.75))
    assert [int(mask.sum()) for mask in kept.values()] == [0, 8]


def test_the_last_weight_of_a_set_is_never_pruned():
    assert (_weights(fairlib.prune(nn.Linear(10, 2), "magnitude", sparsity=0.98)) != 0).sum() == 1
    pruned = fairlib.prune(
        nn.Sequential(nn.Linear(9, 1), nn.Linear(1, 3)), "magnitude", sparsity=0.99, scope="layer"
    )
    assert [int(mask.sum()) for mask in masks.read_masks(pruned).values()] == [1, 1]


def test_bad_input(cnn):
    with pytest.raises(ValueError, match="unknown pruning method 'magnitud'; known: magnitude"):
        fairlib.prune(cnn, "magnitud", sparsity=0.5)
    for sparsity in (1.0, -0.1, float("nan")):
        with pytest.raises(ValueError, match=r"sparsity must lie in \[0, 1\)"):
            fairlib.prune(cnn, "magnitude", sparsity=sparsity)
    with pytest.raises(TypeError, match=r"sparsity must be a number, got '0\.5'"):
        fairlib.prune(cnn, "magnitude", sparsity="0.5")
    with pytest.raises(
        TypeError, match="unknown setting 'scop' for pruning method 'magnitude'; known: scope"
    ):
        fairlib.prune(cnn, "magnitude", sparsity=0.5, scop="layer")
    with pytest.raises(ValueError, match="'global', 'layer' or 'output', got 'block'"):
        fairlib.prune(cnn, "magnitude", sparsity=0.5, scope="block")
    sparse = fairlib.prune(cnn, "magnitude", sparsity=0.9)
    with pytest.raises(ValueError, match="pruned already"):
        fairlib.prune(sparse, "magnitude", sparsity=0.5)
    with torch.no_grad():
        cnn.classifier[0].weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"classifier\.0\.weight hold NaN"):
        fairlib.prune(cnn, "magnitude", sparsity=0.5)
