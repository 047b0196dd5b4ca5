from __future__ import annotations

import pytest

import fairlib


def test_cnn():
    # By hand: 8*9+8, 16*72+16, 64*64+64, 32*64+32, 10*32+10.
    model = fairlib.build("cnn", num_classes=10, in_channels=1, image_size=8)
    assert sum(p.numel() for p in model.parameters()) == 80 + 1168 + 4160 + 2080 + 330
    with pytest.raises(ValueError, match="image_size must be at least 4"):
        fairlib.build("cnn", num_classes=2, image_size=2)
