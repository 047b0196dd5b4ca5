from __future__ import annotations

import pytest
import torch
from torchvision.models import resnet18 as torchvision_resnet18

import fairlib
from fairlib.models import MODELS, Normalize


def _count(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 32)])
def test_every_model_gives_logits(name, channels, size):
    model = fairlib.build(name, num_classes=4, in_channels=channels, image_size=size).eval()
    assert model(torch.rand(2, channels, size, size)).shape == (2, 4)


def test_parameter_counts():
    # By hand: 8*9+8, 16*72+16, 64*64+64, 32*64+32, 10*32+10.
    assert _count(fairlib.build("cnn", num_classes=10, in_channels=1, image_size=8)) == 80 + 1168 + 4160 + 2080 + 330
    assert _count(fairlib.build("resnet18", num_classes=5, image_size=224)) == _count(
        torchvision_resnet18(num_classes=5)
    )


def test_resnet18_is_torchvisions_on_large_images():
    peer = torchvision_resnet18(num_classes=5).eval()
    ours = fairlib.build("resnet18", num_classes=5, image_size=96).eval()
    missing, unexpected = ours.load_state_dict(peer.state_dict(), strict=False)
    assert set(missing) == {"normalize.mean", "normalize.std", "normalize.fitted"} and not unexpected
    images = torch.rand(2, 3, 96, 96)
    torch.testing.assert_close(ours(images), peer(images))


def test_seed_decides_the_weights_and_nothing_else_notices():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, same, other = (fairlib.build("cnn", num_classes=2, seed=seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["features.0.weight"], other["features.0.weight"])


def test_normalize_is_the_identity_until_filled():
    layer, images = Normalize(2), torch.rand(3, 2, 4, 4)
    assert torch.equal(layer(images), images)
    layer.fill(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.0]))
    assert bool(layer.fitted)
    torch.testing.assert_close(layer(images)[:, 0], (images[:, 0] - 1) / 0.5)
    torch.testing.assert_close(layer(images)[:, 1], images[:, 1] - 2)


def test_bad_names_and_settings():
    with pytest.raises(ValueError, match="unknown model 'resnet'; known: cnn, tiny-resnet, resnet18"):
        fairlib.build("resnet", num_classes=2)
    with pytest.raises(TypeError, match="unknown setting 'width' for model 'cnn'; known: channels, hidden"):
        fairlib.build("cnn", num_classes=2, width=3)
    with pytest.raises(ValueError, match="num_classes must be at least 2, got 1"):
        fairlib.build("cnn", num_classes=1)
    with pytest.raises(ValueError, match="image_size must be at least 4"):
        fairlib.build("cnn", num_classes=2, image_size=2)
    with pytest.raises(TypeError, match=r"seed must be an integer, got 1\.5"):
        fairlib.build("cnn", num_classes=2, seed=1.5)
