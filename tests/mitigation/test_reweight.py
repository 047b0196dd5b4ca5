import numpy as np
import pytest
import torch
from constrained import batch_of, linear, losses_by_group, opposed, plain

import fairlib

DATA = opposed()


def loss(power):
    run = fairlib.Reweight(power=power).start(linear(), DATA, plain)
    return run, run.loss(batch_of(linear(), DATA)).item()


def test_every_group_counts_alike():
    run, value = loss(1.0)
    assert value == pytest.approx(losses_by_group(linear(), DATA).mean(), rel=1e-6)
    assert list(run.end_epoch().values()) == pytest.approx([60 / (3 * n) for n in (40, 15, 5)])


def test_it_is_what_upsampling_minimizes():
    """Each group repeated to 120 samples, and the plain loss."""
    copies = np.concatenate(
        [np.repeat(np.flatnonzero(DATA.groups.numpy() == c), r) for c, r in enumerate((3, 8, 24))]
    )
    assert loss(1.0)[1] == pytest.approx(
        batch_of(linear(), DATA, copies).losses.mean().item(), rel=1e-6
    )


def test_other_powers():
    assert loss(0.0)[1] == pytest.approx(batch_of(linear(), DATA).losses.mean().item(), rel=1e-6)
    run, _ = loss(0.5)
    weights = np.array(list(run.end_epoch().values()))
    assert weights @ [40, 15, 5] == pytest.approx(60)
    assert weights[2] / weights[0] == pytest.approx(8**0.5)


def test_a_batch_without_a_group_and_an_empty_group():
    data = fairlib.GroupedDataset(
        DATA.inputs, DATA.targets, DATA.groups * 2
    )  # Codes 1 and 3 have no member.
    run = fairlib.Reweight().start(linear(), data, plain)
    assert torch.isfinite(run.loss(batch_of(linear(), data, np.arange(4))))
    assert list(run.end_epoch().values())[1] == 0


def test_errors():
    with pytest.raises(ValueError, match="power must lie"):
        fairlib.Reweight(power=-1)
    one = fairlib.GroupedDataset(DATA.inputs, DATA.targets, np.zeros(60, dtype=int))
    with pytest.raises(ValueError, match="reweighting needs at least two groups"):
        fairlib.fit(linear(), one, constraint=fairlib.Reweight())
