from __future__ import annotations

import itertools

import pytest
import torch

import fairlib
from fairlib.network import masks
from fairlib.pruning import gradual

TRAIN = dict(epochs=4, lr=0.05, batch_size=12)


def test_iterative_is_method_and_training_by_turns(cnn, images):
    by_hand = cnn
    for level in (0.5, 0.75):
        by_hand = fairlib.fit(
            fairlib.prune(by_hand, "magnitude", sparsity=level), images, seed=3, **TRAIN
        )
    by_hand = fairlib.prune(by_hand, "magnitude", sparsity=0.8)
    pruned = fairlib.prune(
        cnn,
        "magnitude",
        sparsity=0.8,
        data=images,
        train=TRAIN,
        schedule=("iterative", {"rate": 0.5}),
        seed=3,
    )
    assert all(
        torch.equal(a, b) for a, b in zip(pruned.parameters(), by_hand.parameters(), strict=True)
    )


def test_gradual_follows_the_cubic_ramp_and_nothing_comes_back(cnn, images):
    steps = []

    def once(model, level):
        pruned = fairlib.prune(model, "magnitude", sparsity=level)
        steps.append((level, masks.read_masks(pruned)["classifier.0.weight"]))
        return pruned

    pruned = gradual(once, cnn, 0.8, data=images, train=TRAIN | {"momentum": 0.99}, ramp=0.5)
    assert [level for level, _ in steps] == pytest.approx([0.8, 0.8 * (1 - 0.5**3), 0.8, 0.8, 0.8])
    assert steps.pop(0)[0] == 0.8  # Tried before anything is trained.
    assert all(
        bool((earlier | ~later).all()) for (_, earlier), (_, later) in itertools.pairwise(steps)
    )
    assert fairlib.sparsity(pruned) == pytest.approx(0.8, abs=1e-3)
    assert len(fairlib.history(pruned)) == 4
    by_name = dict(
        data=images, train=TRAIN | {"momentum": 0.99}, schedule=("gradual", {"ramp": 0.5})
    )
    again = fairlib.prune(cnn, "magnitude", sparsity=0.8, **by_name)
    assert all(
        torch.equal(a, b) for a, b in zip(pruned.parameters(), again.parameters(), strict=True)
    )


def test_schedules_go_on_from_a_pruned_model(cnn, images):
    half = fairlib.prune(cnn, "magnitude", sparsity=0.5)
    settings = dict(sparsity=0.8, data=images, train=TRAIN)
    for schedule in (("iterative", {"rate": 0.3}), "gradual"):
        pruned = fairlib.prune(half, "magnitude", schedule=schedule, **settings)
        assert fairlib.sparsity(pruned) == pytest.approx(0.8, abs=1e-3)
        assert all(
            bool((masks.read_masks(half)[name] | ~mask).all())
            for name, mask in masks.read_masks(pruned).items()
        )


@pytest.mark.parametrize("schedule", ["iterative", "gradual"])
def test_what_is_out_of_reach_is_refused_before_anything_is_trained(
    cnn, images, schedule, monkeypatch
):
    monkeypatch.setattr("fairlib.pruning.schedules.fit", None)
    with pytest.raises(ValueError, match="out of reach"):
        fairlib.prune(cnn, "fpgm", sparsity=0.9999, data=images, train=TRAIN, schedule=schedule)


def test_bad_input(cnn, images):
    with pytest.raises(
        ValueError, match="unknown schedule 'gradua'; known: one-shot, iterative, gradual"
    ):
        fairlib.prune(cnn, "magnitude", sparsity=0.5, schedule="gradua")
    with pytest.raises(
        TypeError, match="unknown setting 'rounds' for schedule 'iterative'; known: rate"
    ):
        fairlib.prune(
            cnn, "magnitude", sparsity=0.5, schedule=("iterative", {"rounds": 3}), data=images
        )
    with pytest.raises(ValueError, match="schedule 'gradual' needs data=, the training set"):
        fairlib.prune(cnn, "magnitude", sparsity=0.5, schedule="gradual")
    with pytest.raises(ValueError, match=r"ramp must lie in \(0, 1\], got 0"):
        fairlib.prune(
            cnn, "magnitude", sparsity=0.5, schedule=("gradual", {"ramp": 0}), data=images
        )
    with pytest.raises(ValueError, match=r"train\['epochs'\] must lie in \[1, inf\), got 0"):
        fairlib.prune(
            cnn, "magnitude", sparsity=0.5, schedule="gradual", data=images, train={"epochs": 0}
        )
    with pytest.raises(TypeError, match="unknown setting 'epoch' for train="):
        fairlib.prune(cnn, "magnitude", sparsity=0.5, schedule="gradual", train={"epoch": 1})
    with pytest.raises(
        ValueError, match="'magnitude' with schedule 'one-shot' trains nothing; leave out train="
    ):
        fairlib.prune(cnn, "magnitude", sparsity=0.5, train={"epochs": 1})
