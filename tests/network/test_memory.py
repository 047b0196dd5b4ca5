from __future__ import annotations

import copy
import io
import math
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

import fairlib
from fairlib.network.memory import TrainingMemory, add_gradients, inherit, memory_of, remember


def _own() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))


@pytest.fixture
def trained(cnn, images) -> nn.Module:
    return fairlib.fit(cnn, images, epochs=2, keep=3)


def _saved_and_loaded(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "copied",
    [
        copy.deepcopy,
        copy.copy,
        lambda module: pickle.loads(pickle.dumps(module)),
        _saved_and_loaded,
    ],
    ids=["deepcopy", "copy", "pickle", "torch.save"],
)
def test_a_copy_remembers_and_its_memory_is_its_own(trained, copied):
    twin = copied(trained)
    assert fairlib.gradient_evaluations(twin) == 240 and fairlib.history(twin).equals(
        fairlib.history(trained)
    )
    for name, value in fairlib.weights_at(trained, 3).items():
        assert torch.equal(fairlib.weights_at(twin, 3)[name], value)
    assert memory_of(twin).recipe == memory_of(trained).recipe and memory_of(twin).input_shape == (
        1,
        8,
        8,
    )
    add_gradients(twin, 5)
    assert (fairlib.gradient_evaluations(twin), fairlib.gradient_evaluations(trained)) == (245, 240)
    twin.load_state_dict(trained.state_dict())
    assert (
        math.isnan(fairlib.gradient_evaluations(twin))
        and fairlib.gradient_evaluations(trained) == 240
    )


def test_loaded_weights_are_weights_of_which_nothing_is_known_but_their_shapes(cnn, trained):
    assert fairlib.gradient_evaluations(cnn) == 0
    cnn.load_state_dict(trained.state_dict())
    assert math.isnan(fairlib.gradient_evaluations(cnn))
    other = copy.deepcopy(trained)
    other.load_state_dict(trained.state_dict(), assign=True)
    with pytest.raises(
        ValueError, match=r"this CNN was not trained by .* or has other weights since"
    ):
        fairlib.history(other)
    with pytest.raises(
        ValueError, match=r"this CNN was not trained by .* or has other weights since"
    ):
        fairlib.weights_at(other, 3)
    empty = TrainingMemory(recipe=memory_of(cnn).recipe, input_shape=(1, 8, 8))
    assert memory_of(cnn) == memory_of(other) == empty
    assert (
        fairlib.linearization.count(other).attrs["total"] == 864
    )  # The shape of its inputs is what it was.


def test_weights_that_reach_a_network_through_a_wrapper_are_loaded_weights(cnn):
    wrapped = nn.Sequential(cnn, nn.Identity())
    wrapped.load_state_dict(wrapped.state_dict())
    assert math.isnan(fairlib.gradient_evaluations(cnn))


def test_the_price_of_a_restored_model_is_unknown_whatever_is_trained_on_it(cnn, images, trained):
    sparse = fairlib.prune(trained, "snip", sparsity=0.5, data=images)
    assert fairlib.gradient_evaluations(sparse) == 240 + 120
    restored = fairlib.restore(cnn, sparse.state_dict())
    tuned = fairlib.fit(restored, images, epochs=1)
    assert math.isnan(fairlib.gradient_evaluations(restored)) and math.isnan(
        fairlib.gradient_evaluations(tuned)
    )
    assert fairlib.gradient_evaluations(cnn) == 0 and fairlib.history(tuned)[
        "gradients"
    ].tolist() == [120]


def test_the_price_of_a_users_own_module_is_unknown_unless_they_say_that_it_is_fresh(images):
    assert (
        math.isnan(fairlib.gradient_evaluations(_own())) and memory_of(_own()) == TrainingMemory()
    )
    tuned = fairlib.fit(_own(), images, epochs=1)
    assert math.isnan(fairlib.gradient_evaluations(tuned)) and fairlib.history(tuned)[
        "gradients"
    ].tolist() == [120]
    for schedule in ("one-shot", "iterative", "gradual"):
        train = {} if schedule == "one-shot" else {"train": {"epochs": 1}}
        small = fairlib.prune(tuned, "snip", sparsity=0.5, data=images, schedule=schedule, **train)
        assert math.isnan(fairlib.gradient_evaluations(small))
    fresh = fairlib.fit(remember(_own(), price=0), images, epochs=1)
    assert (
        fairlib.gradient_evaluations(fairlib.prune(fresh, "snip", sparsity=0.5, data=images)) == 240
    )


def test_a_ticket_that_begins_anew_has_a_price_even_if_the_model_had_none(images):
    anew = fairlib.prune(
        _own(), "lottery", sparsity=0.5, data=images, train={"epochs": 1}, rate=0.5
    )
    assert (
        fairlib.gradient_evaluations(anew) == 240
    )  # The dense training, and that of the one round.


def test_what_is_inherited_can_be_replaced_in_part(trained):
    heir = inherit(_own(), trained, price=7)
    assert (
        memory_of(heir).history == memory_of(trained).history
        and fairlib.gradient_evaluations(heir) == 7
    )
    with pytest.raises(TypeError, match="prize"):
        remember(heir, prize=7)


def test_only_the_memory_knows_where_it_is_kept():
    files = [
        path
        for path in Path(fairlib.__file__).parent.rglob("*.py")
        if "_fairlib_" in path.read_text()
    ]
    assert [path.name for path in files] == ["memory.py"]
