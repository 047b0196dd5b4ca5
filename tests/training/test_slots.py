"""Replayed steps: on a GPU a CUDA graph, here a tape that repeats torch's operations alone."""

from __future__ import annotations

import gc
import random
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import fairlib
from fairlib.linearization import gate
from fairlib.linearization.snl import Lasso
from fairlib.network import gates
from fairlib.network.memory import memory_of
from fairlib.training import LoopSettings, Training, fit_all, loop, slots, together
from fairlib.training.distillation import Distillation

WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "lift_fresh", "scalar_tensor"}
"""Operations that read a number from a device, or send one, and so wait for a GPU."""


class Tape(TorchDispatchMode):
    """Record operations with the tensors they read and wrote; replay without the Python between."""

    def __init__(self):
        super().__init__()
        self.entries = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name().removeprefix("aten::").split(".")[0]
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        by_mask = name.startswith("index") and any(t.dtype == torch.bool for t in given[1:])
        assert name not in WAITS and not by_mask, f"{name} waits for the device"
        found = function(*args, **(kwargs or {}))
        known = {tensor.untyped_storage().data_ptr() for tensor in given}
        new = [
            isinstance(out, torch.Tensor) and out.untyped_storage().data_ptr() not in known
            for out in tree_leaves(found)
        ]
        self.entries.append((partial(function, *args, **(kwargs or {})), tree_leaves(found), new))
        return found

    @torch.no_grad()
    def replay(self):
        for operation, outs, new in self.entries:
            for out, again, is_new in zip(outs, tree_leaves(operation()), new, strict=True):
                if is_new:
                    # A squeeze_() may have changed the shape since.
                    out.copy_(again.reshape_as(out))


def taped(step):
    tape = Tape()
    with tape:
        step()
    return tape.replay


@pytest.fixture(autouse=True)
def recorder(monkeypatch):
    """The CPU in the place of a GPU."""
    monkeypatch.setitem(slots.RECORDERS, "cpu", taped)
    monkeypatch.setattr(loop, "FUSED", {"cpu"})
    monkeypatch.setattr(slots, "_say", lambda sentence: pytest.fail(sentence))


def same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs) and (
        fairlib.history(one).equals(fairlib.history(other))
    )


def replayed(trainings: list[Training]) -> list[nn.Module]:
    return fit_all([Training(t.model, t.data, t.settings, t.loop, place=0) for t in trainings])


def called(training: Training) -> nn.Module:
    (trained,) = loop.train([training])
    return trained


CONSTRAINTS = [
    None,
    fairlib.EqualLoss(step=0.1),
    fairlib.EqualLoss(step=0.1, dual="batch"),
    fairlib.EqualLoss(step=0.1, as_published=True),
    fairlib.GroupDRO(step=0.1),
    fairlib.Reweight(),
    fairlib.EqualAccuracy(),
    fairlib.EqualizedOdds(step=0.5),
    fairlib.AccuracyGap(step=0.1),
]


@pytest.mark.parametrize("augment", ["none", "crop+flip"])
@pytest.mark.parametrize("name", ["mlp", "cnn", "tiny-resnet"])
def test_replayed_is_called_to_the_bit(name, augment, images):
    model = fairlib.build(name, like=images, seed=1)
    settings = dict(epochs=2, batch_size=50, augment=augment, seed=3, keep=[1, 4], val=images)
    training = Training(model, images, settings)
    (trained,) = replayed([training])
    expected = called(training)
    assert same(trained, expected) and not trained.training
    for step in (1, 4):
        kept, wanted = (fairlib.weights_at(each, step) for each in (trained, expected))
        assert all(torch.equal(value, kept[key]) for key, value in wanted.items())


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=repr)
def test_a_constraint_is_replayed_with_its_state(constraint, images, cnn):
    training = Training(cnn, images, dict(epochs=6, lr=0.1, batch_size=40, constraint=constraint))
    assert same(*replayed([training]), called(training))


def test_what_is_kept_of_weights_is_kept(images, cnn):
    trained = fairlib.fit(cnn, images, epochs=1)
    pruned = fairlib.prune(trained, "magnitude", sparsity=0.8)
    lower = fairlib.prune(trained, "magnitude", sparsity=0.4)
    small = [pruned, lower, fairlib.quantize(trained, "weights", bits=2), trained]
    small += [fairlib.quantize(pruned, "weights", bits=3)]
    trainings = [Training(each, images, dict(epochs=2, lr=0.01)) for each in small]
    for found, training in zip(replayed(trainings), trainings, strict=True):
        assert same(found, called(training))
        assert fairlib.sparsity(found) == fairlib.sparsity(training.model)


def test_gates_are_learned_until_a_stop(images, cnn):
    soft = gates.with_gates(gate(cnn), {})
    gates.relax(soft)
    end = LoopSettings(optimizer="adam", stop=lambda row: row["epoch"] == 2)
    settings = dict(epochs=4, lr=0.01, constraint=Lasso(0.01, 1.1, 0))
    training = Training(soft, images, settings, end)
    (found,) = replayed([training])
    assert same(found, called(training)) and len(fairlib.history(found)) == 2


def test_each_of_several_jobs_has_its_own_teacher_data_seed_and_start(images, cnn):
    models = [fairlib.build("cnn", like=images, seed=seed) for seed in range(3)]
    datas = [images, images.subset(range(119, -1, -1)), images]
    teachers = [
        fairlib.fit(model, data, epochs=30) for model, data in zip(models, datas, strict=True)
    ]
    trainings = [
        Training(
            model,
            data,
            dict(
                epochs=2,
                seed=seed,
                objective=Distillation(teacher, data),
                constraint=fairlib.EqualLoss(step=0.1, as_published=seed == 2),
            ),
            LoopSettings(start=seed),
        )
        for seed, (model, data, teacher) in enumerate(zip(models, datas, teachers, strict=True))
    ]
    before = [teacher.state_dict() for teacher in teachers], [data.inputs.clone() for data in datas]
    expected = list(map(called, trainings))
    assert all(map(same, replayed(trainings), expected))
    assert all(torch.equal(a.inputs, b) for a, b in zip(datas, before[1], strict=True))


@pytest.mark.parametrize("most", [1, 2, 8])
def test_slots_in_turn_are_one_after_the_other(most, images, monkeypatch):
    monkeypatch.setattr(slots, "SLOTS", most)
    built, made = [], slots.Slot.__init__

    def counted(self, *arguments):
        built.append(arguments)
        made(self, *arguments)

    monkeypatch.setattr(slots.Slot, "__init__", counted)
    models = [fairlib.build("cnn", like=images, seed=seed) for seed in range(3)]
    trainings = [
        Training(model, images, dict(epochs=1 + seed, lr=0.01 * (1 + seed), seed=seed))
        for seed, model in enumerate(models)
    ]
    found = replayed(trainings)
    assert all(map(same, found, map(called, trainings))) and len(built) == min(most, 3)


def test_dropout_draws_as_it_does_alone(images):
    layers = nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.5), nn.Linear(16, 3)
    trainings = [Training(nn.Sequential(*layers), images, dict(seed=seed)) for seed in range(3)]
    # On a GPU the order of batches comes from another generator than dropout.
    expected = []
    for training in trainings:
        with loop.seeded(training.settings["seed"]):
            member = loop.Member(training, images, "cpu")
            alone = loop.Loop([member], False, [loop.generator(training.settings["seed"])])
            alone.begin()
            for _ in range(10):
                alone.launch()
                alone.finish()
            expected += alone.end()
    assert all(map(same, replayed(trainings), expected))


def test_fit_replays_and_is_timed_where_it_is_alone(images, cnn):
    settings = dict(epochs=2, constraint=fairlib.EqualLoss(step=0.1))
    trained = fairlib.fit(cnn, images, **settings)
    timing = memory_of(trained).timing
    assert same(trained, called(Training(cnn, images, settings)))
    assert 0 < timing["dual_seconds"] < timing["seconds"]


class Counts(nn.Module):
    """A layer whose Python counts."""

    def __init__(self):
        super().__init__()
        self.passes = 0

    def forward(self, inputs):
        self.passes += self.training
        return inputs


class Reads(nn.Module):
    """A layer that reads a number of its inputs."""

    def forward(self, inputs):
        return inputs / max(1.0, float(inputs.detach().abs().max()))


class Alternates(nn.Module):
    """A layer whose Python does something else from step to step, out of sight."""

    def __init__(self):
        super().__init__()
        self.state = iter(range(10**6))

    def forward(self, inputs):
        return inputs * (1 + next(self.state) % 2)


class Own(fairlib.GroupDRO):
    """A constraint of somebody else."""

    by_batch = True


class Draws(nn.Module):
    """A layer that is left out by a draw of Python's."""

    def forward(self, inputs):
        return inputs * (random.random() > 0.001)


class Blows(nn.Module):
    """A layer after which no weight stays finite."""

    def forward(self, inputs):
        return inputs * float("inf")


class Rebinds(fairlib.GroupDRO):
    """A constraint that puts a new tensor in the place of its state."""

    by_batch = True
    __module__ = "fairlib.tests"

    def start(self, model, data, objective):
        run = super().start(model, data, objective)
        before = run.loss

        def loss(batch):
            run.logs = run.logs.clone()
            return before(batch)

        run.loss = loss
        return run


@pytest.mark.parametrize(
    ("layer", "constraint", "settings", "reason"),
    [
        (Counts(), None, LoopSettings(), "numbers that Python holds change"),
        (Reads(), None, LoopSettings(), "_local_scalar_dense waits for the device"),
        (Alternates(), None, LoopSettings(), "replayed, it leaves other numbers than called"),
        (Draws(), None, LoopSettings(), "numbers that Python holds change"),
        (nn.Identity(), Rebinds(step=0.1), LoopSettings(), "replayed, it leaves other numbers"),
        (nn.Identity(), Own(step=0.1), LoopSettings(), "Own is not one of fairlib's constraints"),
        (nn.Identity(), fairlib.EqualCurvature(step=0.1), LoopSettings(), "EqualCurvature looks"),
        (
            nn.Identity(),
            None,
            LoopSettings(sparsify=lambda m, p: {}),
            "masks change from epoch to epoch",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_step_that_cannot_be_replayed_is_called_and_the_reason_said(
    layer, constraint, settings, reason, images, monkeypatch
):
    said = []
    monkeypatch.setattr(slots, "_say", said.append)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), layer, nn.Linear(8, 3))
    training = Training(model, images, dict(epochs=2, constraint=constraint), settings)
    (found,) = replayed([training])
    (sentence,) = said
    assert reason in sentence and sentence.startswith("the steps of a training are launched one by")
    assert isinstance(found, nn.Module) and len(fairlib.history(found)) == 2


class Applies(nn.Module):
    """A layer whose function and number are attributes that no text of the module shows."""

    def __init__(self, function, *numbers):
        super().__init__()
        self.function, self.numbers, self.linear = function, numbers, nn.Linear(64, 3)

    def forward(self, inputs):
        return self.linear(self.function(inputs.flatten(1)) * self.numbers[0])


def test_models_that_look_alike_and_compute_something_else_share_no_slot(images, monkeypatch):
    monkeypatch.setattr(slots, "SLOTS", 1)
    parts = [(torch.relu, 1.0), (torch.tanh, 1.0), (torch.tanh, 3.0)]
    trainings = [Training(Applies(*part), images, dict(epochs=2)) for part in parts]
    assert all(map(same, replayed(trainings), map(called, trainings)))


def test_teachers_of_another_kind_share_no_slot(images, cnn, monkeypatch):
    monkeypatch.setattr(slots, "SLOTS", 1)
    teacher = fairlib.fit(cnn, images, epochs=25)
    pruned = fairlib.prune(teacher, "magnitude", sparsity=0.3)
    scaled = [fairlib.fit(Applies(torch.relu, k), images, epochs=25) for k in (1.0, 3.0)]
    trainings = [
        Training(cnn, images, dict(epochs=2, objective=Distillation(each, images)))
        for each in (teacher, pruned, *scaled)
    ]
    expected = list(map(called, trainings))
    assert all(map(same, replayed(trainings), expected))


def test_data_of_other_classes_share_no_slot_and_are_refused(images, cnn):
    five = fairlib.GroupedDataset(images.inputs, torch.arange(120) % 5, images.groups)
    with pytest.raises(ValueError, match="logits"):
        replayed([Training(cnn, data, dict(epochs=1)) for data in (images, five)])


def test_no_epoch_is_no_step(images, cnn):
    (found,) = replayed([Training(cnn, images, dict(epochs=0))])
    assert same(found, called(Training(cnn, images, dict(epochs=0))))


def test_weights_that_become_infinite_are_not_judged_by_a_trial(images, monkeypatch):
    said = []
    monkeypatch.setattr(slots, "_say", said.append)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3), Blows())
    (found,) = replayed([Training(model, images, dict(epochs=1))])
    assert isinstance(found, fairlib.DivergenceError) and "infinite or NaN at once" in said[0]


def test_nothing_of_a_training_stays_in_memory(images, cnn):
    gc.collect()
    gc.disable()
    try:
        replayed([Training(cnn, images, dict(epochs=1))])
        assert not {loop.Loop, slots._Job} & set(map(type, gc.get_objects()))
    finally:
        gc.enable()


def test_hooks_of_others_and_the_environment_are_obstacles(images, cnn, monkeypatch):
    assert slots.why_called(Training(cnn, images)) is None
    cnn.register_forward_hook(lambda *_: None)
    assert "hooks" in slots.why_called(Training(cnn, images))
    assert together.replays("cpu")
    monkeypatch.setenv("FAIRLIB_AUTO", "0")
    assert not together.replays("cpu")


def test_a_full_memory_means_fewer_slots(images, monkeypatch):
    said, made = [], slots.Slot.__init__
    monkeypatch.setattr(slots, "_say", said.append)
    built = []

    def limited(self, *arguments):
        if len(built) == 2:
            raise torch.OutOfMemoryError("no memory")
        built.append(self)
        made(self, *arguments)

    monkeypatch.setattr(slots.Slot, "__init__", limited)
    models = [fairlib.build("cnn", like=images, seed=seed) for seed in range(5)]
    trainings = [Training(model, images, dict(epochs=2)) for model in models]
    assert all(map(same, replayed(trainings), map(called, trainings)))
    assert said == ["2 networks are trained at a time, since the memory of the GPU is full"]


def test_no_memory_for_any_slot_means_steps_one_by_one(images, cnn, monkeypatch):
    said = []
    monkeypatch.setattr(slots, "_say", said.append)

    def refused(self, *arguments):
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(slots.Slot, "__init__", refused)
    training = Training(cnn, images, dict(epochs=2))
    assert same(*replayed([training]), called(training))
    (sentence,) = said
    assert sentence.endswith("launched one by one, since the memory of the GPU is full")


def test_a_training_that_diverges_leaves_the_others_alone(images, cnn):
    trainings = [Training(cnn, images, dict(lr=lr)) for lr in (0.01, 1e9, 0.02)]
    first, second, third = replayed(trainings)
    assert isinstance(second, fairlib.DivergenceError)
    assert same(first, called(trainings[0])) and same(third, called(trainings[2]))


def test_results_are_kept_as_each_training_ends(images, cnn, tmp_path, monkeypatch):
    settings = [dict(epochs=1, seed=0), dict(epochs=1, seed=1)]
    trainings = [Training(cnn, images, each, place=0) for each in settings]
    written, write = [], together.write_entry
    monkeypatch.setattr(slots, "SLOTS", 1)

    def interrupted(path, trained):
        write(path, trained)
        written.append(path)
        raise KeyboardInterrupt

    monkeypatch.setattr(together, "write_entry", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit_all(trainings, tmp_path)
    assert len(written) == 1 and written[0].exists()


def test_bad_arguments_are_refused_as_ever(images, cnn):
    with pytest.raises(ValueError, match="batch_size"):
        fairlib.fit(cnn, images, batch_size=0)
    with pytest.raises(ValueError, match="at least two groups"):
        alone = images.subset(range(80))
        fairlib.fit(cnn, alone, constraint=fairlib.EqualLoss(step=0.1))


@pytest.mark.slow
@pytest.mark.parametrize("clock", [False, True])
def test_a_study_is_carried_out_in_slots(clock, monkeypatch):
    settings = dict(data="digits", model="cnn", method="prune:magnitude", levels=[0.5, 0.9])
    settings |= dict(train={"epochs": 2}, finetune={"epochs": 1}, mitigation="equal-loss")
    settings |= dict(seeds=[3, 14], when=["never", "after"], device="cpu")
    run = fairlib.studies.RunSettings(cache=None, workers=1, clock=clock)
    table = fairlib.study(**settings, run=run)
    assert table.attrs["trainings"]["at once"] == (2 if clock else 2 * (1 + 2 + 4))
    monkeypatch.setenv("FAIRLIB_AUTO", "0")
    expected = fairlib.study(**settings, run=run)
    assert expected.attrs["trainings"]["at once"] == 0
    timed = [name for name in table if "seconds" in name]
    assert table.drop(columns=timed).equals(expected.drop(columns=timed))
    assert len(timed) == (2 if clock else 0)


def test_a_study_whose_networks_do_not_fit_is_carried_out_in_halves(monkeypatch):
    settings = dict(data="digits", model="mlp", levels=[0.5], seeds=range(3), device="cpu")
    settings |= dict(train={"epochs": 1}, finetune={"epochs": 1}, method="prune:magnitude")
    run = fairlib.studies.RunSettings(cache=None, workers=1)
    expected = fairlib.study(**settings, run=run)
    carry_out, asked = fairlib.studies.stages.fit_all, []

    def limited(trainings, *arguments):
        asked.append(len(trainings))
        if len(trainings) > 2:
            raise torch.OutOfMemoryError("no memory")
        return carry_out(trainings, *arguments)

    monkeypatch.setattr(fairlib.studies.stages, "fit_all", limited)
    with pytest.warns(UserWarning, match="not enough memory for 3 seeds"):
        assert fairlib.study(**settings, run=run).equals(expected)
    assert asked[:2] == [3, 1] and max(asked[1:]) == 2
