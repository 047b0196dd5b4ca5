from __future__ import annotations

import torch

from fairlib.models import Normalize


def test_normalize_is_the_identity_until_filled():
    layer, images = Normalize(2), torch.rand(3, 2, 4, 4)
    assert torch.equal(layer(images), images)
    layer.fill(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.0]))
    assert bool(layer.fitted)
    torch.testing.assert_close(layer(images)[:, 0], (images[:, 0] - 1) / 0.5)
    torch.testing.assert_close(layer(images)[:, 1], images[:, 1] - 2)
