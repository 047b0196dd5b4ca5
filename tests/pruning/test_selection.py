from __future__ import annotations

import pytest
import torch
from torch import nn

from fairlib.network import masks
from fairlib.pruning.selection import keep_highest, keep_highest_within, shrinking


def test_what_a_mask_holds_at_zero_goes_before_any_other_whatever_its_score():
    """Eight weights, of which a mask has taken those of the two highest scores."""
    model = nn.Linear(8, 1)
    before = torch.tensor([[True] * 6 + [False] * 2])
    scores = {"weight": torch.arange(8.0).reshape(1, 8)}
    kept = keep_highest(masks.with_masks(model, {"weight": before}), scores, 0.5)["weight"]
    assert kept.tolist() == [[False, False, True, True, True, True, False, False]]


def test_the_best_of_every_tensor_stays_and_the_count_is_exact():
    model = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 4))
    scores = {
        "0.weight": torch.arange(8.0).reshape(2, 4),
        "1.weight": 100 + torch.arange(8.0).reshape(4, 2),
    }
    kept = keep_highest(model, scores, 0.5)
    assert kept["0.weight"].flatten().nonzero().flatten().tolist() == [7]
    assert int(kept["1.weight"].sum()) == 7 and not kept["1.weight"][0, 0]
    by_layer = keep_highest_within(model, scores, 0.5, "layer")
    assert [int(mask.sum()) for mask in by_layer.values()] == [4, 4]


def test_bad_scores_are_refused():
    model = nn.Linear(3, 1)
    with pytest.raises(ValueError, match="the scores of weight hold NaN"):
        keep_highest(model, {"weight": torch.tensor([[1.0, torch.nan, 0.0]])}, 0.5)
    with pytest.raises(ValueError, match="all scores of weight are zero"):
        keep_highest(model, {"weight": torch.zeros(1, 3)}, 0.5)
    with pytest.raises(ValueError, match="'global', 'layer' or 'output', got 'row'"):
        keep_highest_within(model, {"weight": torch.ones(1, 3)}, 0.5, "row")


def test_rounds_prune_a_share_of_what_is_left():
    assert shrinking(0.9, 0.5) == pytest.approx([0.5, 0.75, 0.875, 0.9])
    assert shrinking(0.75, 0.5) == pytest.approx([0.5, 0.75])
    assert [len(shrinking(1 - 0.8**n, 0.2)) for n in (1, 2, 3, 7, 10, 20)] == [1, 2, 3, 7, 10, 20]
    assert [len(shrinking(level, 0.2)) for level in (0.488, 0.790285, 0.892626)] == [3, 7, 10]
    assert shrinking(0.8, 0.5, start=0.3) == pytest.approx([0.65, 0.8])
    assert shrinking(0.0, 0.2) == [0.0]
    with pytest.raises(ValueError, match=r"rate must lie in \(0, 1\)"):
        shrinking(0.5, 1.0)
