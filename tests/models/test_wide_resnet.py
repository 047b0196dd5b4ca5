from __future__ import annotations

import pytest
import torch
from torch import nn

import fairlib
from fairlib.models.wide_resnet import PreactivationBlock


def test_relu_counts_of_the_wide_network_are_snls():
    sizes = []
    with torch.device("meta"):
        model = fairlib.build("wrn-22-8", num_classes=10, image_size=32)
        for module in model.modules():
            if isinstance(module, nn.ReLU):
                module.register_forward_hook(lambda _, __, output: sizes.append(output.numel()))
        model(torch.rand(1, 3, 32, 32))
    assert sizes.pop() == 32_768  # The final one, which SNL's network lacks.
    assert sum(sizes) == 1_359_872


def test_preactivation_block_by_hand():
    """One channel, one pixel: a 3x3 convolution is the product with its central weight."""
    block = PreactivationBlock(1, 1, 1).eval()
    block.bn1.running_mean.fill_(1.0)
    block.bn2.running_mean.fill_(-2.0)
    for layer, weight in ((block.conv1, 3.0), (block.conv2, 5.0)):
        nn.init.constant_(layer.weight, weight)
    outputs = block(torch.tensor([4.0, 0.5]).view(2, 1, 1, 1)).flatten()
    # relu(4 - 1) = 3, relu(3 * 3 + 2) = 11, 5 * 11 + 4; relu(0.5 - 1) = 0, relu(0 + 2) = 2, 5 * 2 +
    # 0.5.
    torch.testing.assert_close(outputs, torch.tensor([59.0, 10.5]), rtol=1e-4, atol=0)
    strided = PreactivationBlock(1, 1, 2).eval()
    nn.init.zeros_(strided.conv2.weight)
    nn.init.constant_(strided.downsample.weight, 7.0)
    outputs = strided(torch.tensor([4.0, -1.0]).view(2, 1, 1, 1)).flatten()
    torch.testing.assert_close(outputs, torch.tensor([28.0, 0.0]), rtol=1e-4, atol=0)


@pytest.mark.parametrize(("size", "kernel"), [(64, 3), (65, 7)])
def test_blocks_channels_and_stem_of_the_wide_network(size, kernel):
    with torch.device("meta"):
        model = fairlib.build("wrn-22-8", num_classes=2, image_size=size)
    stages = (model.layer1, model.layer2, model.layer3)
    assert [len(stage) for stage in stages] == [3, 3, 3]
    assert [stage[-1].conv2.out_channels for stage in stages] == [128, 256, 512]
    assert model.conv1.kernel_size == (kernel, kernel)
    assert isinstance(model.maxpool, nn.Identity) == (kernel == 3)
