from __future__ import annotations

import torch

from fairlib.network import masks
from fairlib.pruning.masked_product import join_weights, split_weights


def test_split_weights_compute_the_products_and_are_joined_to_masked_weights(cnn, images):
    """As the same masks in the ordinary form do."""
    inputs = images.batch(slice(0, 5), dtype=torch.float32)
    keep = {name: weight > weight.median() for name, weight in masks.prunable(cnn).items()}
    expected = masks.with_masks(cnn, keep).eval()
    model, prefixes = split_weights(cnn.eval())
    assert torch.equal(model(inputs), cnn(inputs)) and len(prefixes) == len(keep)
    for prefix, mask in zip(prefixes, keep.values(), strict=True):
        model.get_buffer(f"{prefix}0.mask").copy_(mask)
        assert model.get_parameter(f"{prefix}original").numel() == mask.numel()
    assert torch.equal(model(inputs), expected(inputs))
    small = join_weights(model, prefixes, keep)
    assert list(small.state_dict()) == list(expected.state_dict())
    assert all(
        torch.equal(tensor, expected.state_dict()[name])
        for name, tensor in small.state_dict().items()
    )
