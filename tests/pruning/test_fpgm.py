from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from zoo import zoo_model

import fairlib
from fairlib.network import masks
from fairlib.pruning.filter_norm import filter_norm
from fairlib.pruning.fpgm import fpgm


def _emptied(model: nn.Module, name: str) -> list[int]:
    return (~masks.read_masks(model)[name].flatten(1).any(1)).nonzero().flatten().tolist()


def _brute_force(filters: list[list[float]]) -> list[float]:
    return [math.fsum(math.dist(one, other) for other in filters) for one in filters]


def _lowest(scores: list[float], count: int) -> list[int]:
    return sorted(np.argsort(scores, kind="stable")[:count].tolist())


def _hidden(rows: torch.Tensor) -> nn.Module:
    """A net whose hidden channels have these filters."""
    net = nn.Sequential(nn.Linear(rows.shape[1], len(rows)), nn.ReLU(), nn.Linear(len(rows), 2))
    net[0].weight.data = rows.clone()
    return net


def test_agrees_with_brute_force(cnn, images):
    pruned = fpgm(cnn, sparsity=0.6, data=images)
    for name in (
        "features.0.weight",
        "features.3.weight",
        "classifier.0.weight",
        "classifier.2.weight",
    ):
        gone = _emptied(pruned, name)
        assert gone and gone == _lowest(
            _brute_force(cnn.get_parameter(name).flatten(1).tolist()), len(gone)
        )


def test_tied_channels_are_concatenated():
    model, inputs = zoo_model("mobilenetv2")
    names = ("features.2.conv.0.0.weight", "features.2.conv.1.0.weight")
    filters = torch.cat(
        [model.get_parameter(name).detach().flatten(1) for name in names], dim=1
    ).tolist()
    pruned = fpgm(model, sparsity=0.5, data=inputs)
    for name in names:
        gone = _emptied(pruned, name)
        assert gone and gone == _lowest(_brute_force(filters), len(gone))


def test_duplicates_go_first_however_large_they_are():
    # Among seven filters four are equal, and so large that the expanded square would lose the
    # distances between them.
    rows = torch.randn(7, 5, generator=torch.Generator().manual_seed(0)) + 1e4
    rows[[1, 3, 4, 6]] = rows[1].clone()
    net, inputs = _hidden(rows), torch.rand(1, 5)
    for sparsity, gone in [
        (1 / 7, [1]),
        (2 / 7, [1, 3]),
        (3 / 7, [1, 3, 4]),
        (4 / 7, [1, 3, 4, 6]),
    ]:
        assert _emptied(fpgm(net, sparsity=sparsity, data=inputs), "0.weight") == gone


def test_the_replaceable_go_and_not_the_small():
    rows = torch.tensor([[0.0], [10.0], [11.0], [12.0], [30.0]])
    net, inputs = _hidden(rows), torch.rand(1, 1)
    assert _emptied(fpgm(net, sparsity=0.2, data=inputs), "0.weight") == [2]
    assert _emptied(filter_norm(net, sparsity=0.2, data=inputs), "0.weight") == [0]


def test_filters_masked_before_count_for_no_distance(images):
    rows = torch.tensor([[0.0], [1.0], [2.0], [6.0], [20.0]])
    net, inputs = _hidden(rows), torch.rand(1, 1)
    once = masks.with_masks(
        net, {"0.weight": torch.tensor([[False], [False], [True], [True], [True]])}
    )
    pruned = fpgm(once, sparsity=0.6, data=inputs)
    assert _emptied(pruned, "0.weight") == [0, 1, 3]  # Of 2, 6 and 20 the middle one.


def test_masked_copy_in_eval_mode(cnn, images):
    pruned = fpgm(cnn.train(), sparsity=0.5, data=images)
    assert cnn.training and not pruned.training and not masks.read_masks(cnn)
    assert 0.5 <= fairlib.sparsity(pruned) < 0.55


def test_bad_input(cnn, images):
    with pytest.raises(ValueError, match="data is needed"):
        fpgm(cnn, sparsity=0.5, data=None)
    cnn.features[3].weight.data[0] = torch.nan
    with pytest.raises(ValueError, match=r"features\.3\.weight hold NaN"):
        fpgm(cnn, sparsity=0.5, data=images)
