from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fairlib
from fairlib.diagnostics import exemplars, group_exemplars


class Fixed(nn.Module):
    """Predicts the classes that it is told, whatever it sees."""

    def __init__(self, classes):
        super().__init__()
        self.logits = torch.eye(3)[torch.tensor(classes)]

    def forward(self, inputs):
        return self.logits


DATA = fairlib.GroupedDataset(
    np.zeros((5, 2)), [0, 1, 2, 0, 1], [0, 0, 0, 1, 1], group_names=["many", "few", "none"]
)


def test_modes_by_hand():
    dense = [Fixed(c) for c in ([0, 1, 2, 0, 1], [0, 1, 2, 0, 1], [2, 2, 0, 1, 0])]
    compressed = [Fixed(c) for c in ([0, 1, 2, 1, 1], [0, 0, 2, 1, 2], [1, 0, 1, 0, 2])]
    # Modes: dense 0 1 2 0 1; compressed 0 0 2 1 2.
    assert exemplars(dense, compressed, DATA).tolist() == [False, True, False, True, True]
    table = group_exemplars(dense, compressed, DATA)
    assert table["size"].tolist() == [3, 2, 0]
    assert table.loc["many", ["exemplars", "share"]].tolist() == pytest.approx([1, 1 / 3])
    assert table.loc["few", ["exemplars", "share"]].tolist() == [2, 1]
    assert pd.isna(table.loc["none", "share"])


def test_one_population_against_itself_has_none_and_a_tie_goes_to_the_first_class():
    dense = [Fixed([2, 1, 2, 0, 1]), Fixed([1, 1, 0, 0, 2])]
    assert not exemplars(dense, dense[::-1], DATA).any()
    assert exemplars(dense, [Fixed([1, 1, 0, 0, 1])], DATA).sum() == 0


def test_bad_input(cnn, images):
    with pytest.raises(ValueError, match="compressed must hold at least one network"):
        exemplars([cnn], [], images)
