from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

import fairlib
from fairlib.linearization import gate
from fairlib.linearization.preactivation import mean_changes, preactivation
from fairlib.linearization.random import random_gates
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
    for name, change in mean_changes(gated, images).items():
        assert torch.allclose(change, F.relu(-seen[name]).mean(0), atol=1e-5)


def test_preactivation_keeps_the_largest_changes_and_linearizing_the_smallest_changes_little(
    gated, images
):
    linear = preactivation(gated, relus=400, data=images)
    values = torch.cat([change.flatten() for change in mean_changes(gated, images).values()])
    chosen = torch.cat([mask.flatten() for mask in gates.read_gates(linear).values()])
    assert int(chosen.sum()) == 400 and values[chosen].min() >= values[~chosen].max()
    inputs = images.batch(slice(None))
    gentle, blind = (
        preactivation(gated, relus=2000, data=images),
        random_gates(gated, relus=2000, seed=0),
    )
    with torch.no_grad():
        original = gated(inputs)
        assert (gentle(inputs) - original).norm() < 0.5 * (blind(inputs) - original).norm()


def test_a_network_without_training_sees_normalized_inputs(images):
    """As after a training of no epoch, which fills the normalization."""
    fresh = fairlib.build("tiny-resnet", num_classes=3, in_channels=1, image_size=8, seed=0)
    known = gate(fairlib.fit(fresh, images, epochs=0))
    found, expected = mean_changes(gate(fresh), images), mean_changes(known, images)
    assert all(torch.allclose(found[name], expected[name], atol=1e-5) for name in expected)
    with torch.no_grad():
        plain = gate(fresh)(images.batch(slice(None)))
    assert not torch.allclose(plain, known(images.batch(slice(None))), atol=1e-3)
