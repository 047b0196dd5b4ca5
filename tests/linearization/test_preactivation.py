from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fairlib
from fairlib.linearization import count, gate
from fairlib.linearization.preactivation import changes, preactivation
from fairlib.linearization.random import random
from fairlib.network import gates


def test_the_change_is_the_mean_negative_part_of_what_a_relu_gets(dense, gated, images):
    """Against hooks on the ReLUs of the model without gates, all images at once."""
    seen = {}
    for name, module in dense.named_modules():
        if isinstance(module, nn.ReLU):
            module.register_forward_pre_hook(
                lambda _, inputs, name=name: seen.update({name: inputs[0]})
            )
    with torch.no_grad():
        dense(images.batch(slice(None)))
    for name, change in changes(gated, images).items():
        assert torch.allclose(change, F.relu(-seen[name]).mean(0), atol=1e-5)


def test_preactivation_keeps_the_largest_changes_and_linearizing_the_smallest_changes_little(
    gated, images
):
    linear = preactivation(gated, relus=400, data=images)
    values = torch.cat([change.flatten() for change in changes(gated, images).values()])
    chosen = torch.cat([mask.flatten() for mask in gates.read_gates(linear).values()])
    assert int(chosen.sum()) == 400 and values[chosen].min() >= values[~chosen].max()
    inputs = images.batch(slice(None))
    gentle, blind = preactivation(gated, relus=2000, data=images), random(gated, relus=2000, seed=0)
    with torch.no_grad():
        original = gated(inputs)
        assert (gentle(inputs) - original).norm() < 0.5 * (blind(inputs) - original).norm()


def test_a_network_without_training_sees_normalized_inputs(images):
    """As after a training of no epoch, which fills the normalization."""
    fresh = fairlib.build("tiny-resnet", num_classes=3, in_channels=1, image_size=8, seed=0)
    known = gate(fairlib.fit(fresh, images, epochs=0))
    found, expected = changes(gate(fresh), images), changes(known, images)
    assert all(torch.allclose(found[name], expected[name], atol=1e-5) for name in expected)
    with torch.no_grad():
        plain = gate(fresh)(images.batch(slice(None)))
    assert not torch.allclose(plain, known(images.batch(slice(None))), atol=1e-3)


@pytest.mark.parametrize("granularity", ["channel", "layer"])
def test_what_is_kept_as_a_whole(gated, images, granularity):
    for linear in (
        random(gated, relus=1000, granularity=granularity),
        preactivation(gated, relus=1000, data=images, granularity=granularity),
    ):
        for mask in gates.read_gates(linear).values():
            rows = mask.flatten(1) if granularity == "channel" else mask.flatten()[None]
            assert torch.equal(rows.any(1), rows.all(1))
        assert 700 <= count(linear).attrs["total"] <= 1000
