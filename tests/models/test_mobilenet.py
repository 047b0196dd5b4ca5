from __future__ import annotations

import pytest
import torch

import fairlib


@pytest.mark.parametrize(("size", "positions"), [(8, 1), (32, 4), (64, 8), (224, 7)])
def test_mobilenets_small_form_halves_three_times(size, positions):
    with torch.device("meta"):
        model = fairlib.build("mobilenetv2", num_classes=2, image_size=size).eval()
        assert model.features(torch.rand(1, 3, size, size)).shape == (1, 1280, positions, positions)
    strided = [
        int(name.split(".")[1])
        for name, m in model.named_modules()
        if getattr(m, "stride", 1) == (2, 2)
    ]
    assert strided == (
        [4, 7, 14] if size <= 64 else [0, 2, 4, 7, 14]
    )  # First blocks of 32, 64 and 160 channels.
