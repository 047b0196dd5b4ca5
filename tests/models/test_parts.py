import pytest
import torch
from torch import nn

from fairlib.models.parts import initialize_convolutions, is_small, residual_stem, scaled


def test_channels_are_scaled_and_never_gone():
    assert [scaled(64, width) for width in (1, 0.5, 0.01, 1.25)] == [64, 32, 1, 80]
    for width, error in (
        (0, ValueError),
        (-1, ValueError),
        (float("inf"), ValueError),
        ("1", TypeError),
    ):
        with pytest.raises(error, match="width must"):
            scaled(64, width)


def test_the_stem_follows_the_image_unless_it_is_named():
    assert is_small(64) and not is_small(65)
    assert is_small(224, "small") and not is_small(32, "imagenet")
    with pytest.raises(ValueError, match="unknown stem 'tiny'; known: auto, small, imagenet"):
        is_small(32, "tiny")


@pytest.mark.parametrize(("small", "size"), [(True, 32), (False, 8)])
def test_a_stem_for_small_images_keeps_their_size_and_the_other_takes_a_quarter(small, size):
    convolution, pool = residual_stem(3, 16, small)
    assert pool(convolution(torch.zeros(1, 3, 32, 32))).shape == (1, 16, size, size)


def test_convolutions_start_with_the_variance_of_he_and_without_bias():
    """Standard deviation sqrt(2 / fan-out), the fan-out being output channels times the area of the
    kernel."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(16, 64, 3), nn.Linear(4, 4))
    before = model[1].weight.clone()
    initialize_convolutions(model)
    assert model[0].weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.05)
    assert not model[0].bias.any() and torch.equal(model[1].weight, before)
