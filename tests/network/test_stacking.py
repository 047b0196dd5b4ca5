"""Stacked networks compute what each of them computes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from zoo import SIZES, different, far, of_the_zoo, zoo_model

import fairlib
from fairlib.network import masks, stacking


@pytest.mark.parametrize("training", [False, True])
@of_the_zoo(sorted(set(SIZES) - {"mobilenetv2", "vit-tiny"}))
def test_a_stack_computes_what_its_members_compute(name, training):
    inputs = torch.cat([zoo_model(name)[1] + shift for shift in (0.0, 0.1, -0.1)]).double()
    members = [
        model.double().train(training)
        for model in different([zoo_model(name)[0] for _ in range(3)])
    ]
    alone = copy.deepcopy(members)
    expected = torch.cat([model(part) for model, part in zip(alone, inputs.split(2), strict=True)])
    assert not any(map(stacking.obstacle, members))
    assert all(stacking.form(member) == stacking.form(members[0]) for member in members)
    stack = stacking.Stack(members).train(training)
    seen = stack(inputs)
    torch.testing.assert_close(seen, expected, rtol=1e-9, atol=1e-12)
    stack.release()
    assert all(far(one, other) < 1e-9 for one, other in zip(members, alone, strict=True))
    assert len({tensor.untyped_storage().data_ptr() for tensor in members[1].parameters()}) == len(
        list(members[1].parameters())
    )


def test_members_that_went_other_ways_are_no_stack():
    first, second = (
        fairlib.build("tiny-resnet", num_classes=3, in_channels=1, image_size=8, seed=s)
        for s in range(2)
    )
    assert stacking.form(first) == stacking.form(second)
    second.bn1(torch.rand(2, 8, 4, 4))  # It counts the passes of training.
    differing = [
        name for name, value in stacking.form(first).items() if value != stacking.form(second)[name]
    ]
    assert differing == ["they were trained for different numbers of steps"]


def test_a_mask_that_one_member_has_is_no_mask_of_the_others():
    models = [nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)) for _ in range(3)]
    keep = {"0.weight": torch.eye(3, 4).bool(), "2.weight": torch.eye(2, 3).bool()}
    members = [
        models[0],
        *(masks.with_masks(models[i], {n: keep[n]}) for i, n in ((1, "0.weight"), (2, "2.weight"))),
    ]
    inputs = torch.rand(6, 4)
    expected = torch.cat(
        [model(part) for model, part in zip(members, inputs.split(2), strict=True)]
    )
    stack = stacking.Stack(members)
    torch.testing.assert_close(stack(inputs), expected)
    stack(inputs).sum().backward()
    torch.optim.SGD(stack.parameters(), lr=1.0).step()
    assert members[0][0].weight.count_nonzero() == 12 and members[2][0].weight.count_nonzero() == 12
    assert (
        not members[1][0].weight[~keep["0.weight"]].any()
        and not members[2][2].weight[~keep["2.weight"]].any()
    )
    stack.release()
    assert [list(masks.read_masks(member)) for member in members] == [
        [],
        ["0.weight"],
        ["2.weight"],
    ]
