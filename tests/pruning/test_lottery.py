from __future__ import annotations

import pytest
import torch
from torch import nn

import fairlib
from fairlib.network import masks
from fairlib.training import LoopSettings, Training, carry_out

TRAIN = dict(epochs=2, lr=0.1, batch_size=12)


@pytest.fixture
def dense(cnn, images):
    return fairlib.fit(cnn, images, seed=0, keep=[0, 7], **TRAIN)


@pytest.mark.parametrize("rewind", [0, 7])
def test_the_ticket_has_the_weights_of_the_dense_training_at_that_step(dense, images, rewind):
    winner = fairlib.prune(dense, "lottery", sparsity=0.6, data=images, train=TRAIN, rewind=rewind)
    start, ticket = fairlib.weights_at(dense, rewind), fairlib.weights_at(winner, rewind)
    kept = masks.read_masks(winner)
    assert fairlib.sparsity(winner) == pytest.approx(0.6, abs=1e-4)
    for name, value in start.items():
        expected = value * kept[name] if name in kept else value
        assert torch.equal(ticket[name], expected)


def test_is_what_the_rounds_by_hand_give(dense, images):
    """Two rounds at rate 0.5: prune the trained by magnitude, rewind, train from step 7 on."""
    trained = dense
    for level in (0.5, 0.75):
        keep = masks.read_masks(fairlib.prune(trained, "magnitude", sparsity=level))
        fresh = fairlib.build("cnn", num_classes=3, in_channels=1, image_size=8)
        fresh.load_state_dict(fairlib.weights_at(dense, 7))
        pruned, loop = masks.with_masks(fresh, keep), LoopSettings(start=7)
        trained = carry_out(Training(pruned, images, TRAIN, loop))
    winner = fairlib.prune(
        dense, "lottery", sparsity=0.75, data=images, train=TRAIN, rewind=7, rate=0.5
    )
    for ours, expected in zip(winner.parameters(), trained.parameters(), strict=True):
        assert torch.equal(ours, expected)


def test_the_schedule_is_rewound_too(dense, images):
    settings = TRAIN | {"schedule": "step"}  # 20 steps: the rate falls at 10 and at 15.
    winner = fairlib.prune(dense, "lottery", sparsity=0.2, data=images, train=settings, rewind=7)
    assert fairlib.history(winner)["lr"].tolist() == pytest.approx([0.1, 0.01])


def test_batch_statistics_are_rewound_and_a_pruned_model_goes_on(images):
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)
    dense = fairlib.fit(nn.Sequential(*layers), images, seed=0, keep=3, **TRAIN)
    settings = dict(data=images, train=TRAIN, rewind=3)
    half = fairlib.prune(dense, "lottery", sparsity=0.5, **settings)
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        assert torch.equal(fairlib.weights_at(half, 3)[name], fairlib.weights_at(dense, 3)[name])
        assert not torch.equal(half.state_dict()[name], fairlib.weights_at(dense, 3)[name])
    most = fairlib.prune(half, "lottery", sparsity=0.8, **settings)
    assert fairlib.sparsity(most) == pytest.approx(0.8, abs=1e-2)
    assert all(
        bool((masks.read_masks(half)[name] | ~mask).all())
        for name, mask in masks.read_masks(most).items()
    )


def test_without_kept_weights_it_trains_a_start_of_its_own(cnn, images):
    one = fairlib.prune(cnn, "lottery", sparsity=0.5, data=images, train=TRAIN, seed=4)
    other = fairlib.prune(
        fairlib.fit(cnn, images), "lottery", sparsity=0.5, data=images, train=TRAIN, seed=4
    )
    start = fairlib.weights_at(one, 0)["features.0.weight"]
    assert torch.equal(start, fairlib.weights_at(other, 0)["features.0.weight"])
    assert not torch.equal(
        start, cnn.features[0].weight * masks.read_masks(one)["features.0.weight"]
    )


def test_bad_input(cnn, images):
    with pytest.raises(ValueError, match=r"rate must lie in \(0, 1\)"):
        fairlib.prune(cnn, "lottery", sparsity=0.5, data=images, train=TRAIN, rate=1.0)
    other = fairlib.fit(cnn, images, keep=5, **TRAIN)
    with pytest.raises(ValueError, match=r"the weights at step 4 were not kept; kept: \[5\]"):
        fairlib.prune(other, "lottery", sparsity=0.5, data=images, train=TRAIN, rewind=4)
    with pytest.raises(ValueError, match=r"keep must lie in \[0, 21\), got 21"):
        fairlib.prune(cnn, "lottery", sparsity=0.5, data=images, train=TRAIN, rewind=21)
    with pytest.raises(ValueError, match="has its own schedule"):
        fairlib.prune(cnn, "lottery", sparsity=0.5, data=images, train=TRAIN, schedule="gradual")
    with pytest.raises(TypeError, match="unknown setting 'start' for train="):
        fairlib.prune(cnn, "lottery", sparsity=0.5, data=images, train={"start": 3})

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))
            self.layer = nn.Linear(64, 3)

        def forward(self, inputs):
            return self.layer(inputs.flatten(1)) * self.scale

    with pytest.raises(ValueError, match="Odd has parameters but no reset_parameters"):
        fairlib.prune(Odd(), "lottery", sparsity=0.5, data=images, train=TRAIN)


def test_what_a_pruner_trains_and_scores_is_counted(dense, images):
    """120 samples: 2 epochs dense and 2 for each of two rounds, or from step 7 of 20 on; one pass
    for a score.

    A schedule scores once before it begins, to see whether it can reach the sparsity.
    """

    def taken(method, **settings):
        small = fairlib.prune(dense, method, sparsity=0.75, data=images, **settings)
        return fairlib.gradient_evaluations(small) - fairlib.gradient_evaluations(dense)

    assert fairlib.gradient_evaluations(dense) == 240
    assert taken("lottery", train=TRAIN, rate=0.5) == 480
    assert taken("lottery", train=TRAIN, rate=0.5, rewind=7) == 480 - 2 * 7 * 12
    assert taken("magnitude") == 0
    assert taken("snip") == taken("fairgrape") == 120
    assert (
        taken("fairgrape", schedule=("iterative", {"rate": 0.5}), train=TRAIN)
        == 120 + 120 + 240 + 120
    )
    assert taken("snip", schedule="gradual", train=TRAIN) == 120 + 240 + 2 * 120
    plain = fairlib.fit(
        dense, images, **TRAIN
    )  # It kept no weights, so that the lottery begins anew.
    anew = fairlib.prune(plain, "lottery", sparsity=0.5, data=images, train=TRAIN, rate=0.5)
    assert fairlib.gradient_evaluations(plain) == 480 and fairlib.gradient_evaluations(anew) == 480
