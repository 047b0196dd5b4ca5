from __future__ import annotations

import pytest
import torch
from torch import nn

from fairlib.network import masks
from fairlib.pruning.bilevel import MaskSearch, closed, opened


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (dict(gamma=0.0), r"gamma must lie in \(0, inf\), got 0.0"),
        (dict(lr=0.0), r"lr of the mask must lie in \(0, inf\), got 0.0"),
        (dict(momentum=1.0), r"momentum of the mask must lie in \[0, 1\), got 1.0"),
        (dict(search=0.0), r"search must lie in \(0, 1\], got 0.0"),
        (dict(search=1.1), r"search must lie in \(0, 1\], got 1.1"),
    ],
)
def test_a_mask_search_that_makes_no_sense_is_refused(setting, message):
    with pytest.raises(ValueError, match=message):
        MaskSearch(**setting)


def test_the_share_of_epochs_in_which_the_mask_is_learned_is_rounded_up():
    assert [MaskSearch(search=share).rounds(10) for share in (0.01, 0.1, 0.11, 0.7, 1.0)] == [
        1,
        1,
        2,
        7,
        10,
    ]


def test_an_opened_model_computes_the_products_and_is_closed_to_masked_weights(cnn, images):
    """As the same masks in the ordinary form do."""
    inputs = images.batch(slice(0, 5), dtype=torch.float32)
    keep = {name: weight > weight.median() for name, weight in masks.prunable(cnn).items()}
    expected = masks.with_masks(cnn, keep).eval()
    model, products = opened(cnn.eval(), relaxed=False)
    assert torch.equal(model(inputs), cnn(inputs)) and len(products) == len(keep)
    for product, mask in zip(products, keep.values(), strict=True):
        model.get_buffer(product.mask).copy_(mask)
        assert model.get_parameter(product.original).numel() == mask.numel()
    assert torch.equal(model(inputs), expected(inputs))
    small = closed(model, products, keep)
    assert list(small.state_dict()) == list(expected.state_dict())
    assert all(
        torch.equal(tensor, expected.state_dict()[name])
        for name, tensor in small.state_dict().items()
    )


def test_a_frozen_weight_cannot_be_relaxed():
    with pytest.raises(
        ValueError, match=r"0\.weight is frozen, and a relaxed mask would change it"
    ):
        opened(nn.Sequential(nn.Linear(2, 2).requires_grad_(False)), relaxed=True)
