from __future__ import annotations

import copy
import inspect
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import fairlib
from fairlib.network import channels, masks
from fairlib.pruning import epochs_within
from fairlib.pruning.bifp import TRAIN as DEFAULTS
from fairlib.training.group_losses import AccuracyDifference

TRAIN = dict(epochs=3, lr=0.05, batch_size=30)


@pytest.fixture
def dense(cnn, images):
    return fairlib.fit(cnn, images, seed=0, epochs=3, lr=0.05)


@pytest.fixture
def vectors() -> fairlib.GroupedDataset:
    generator = np.random.default_rng(0)
    inputs, groups = generator.normal(size=(40, 6)), np.repeat([0, 1], [28, 12])
    return fairlib.GroupedDataset(inputs, ((inputs[:, 0] > 0) ^ (groups == 1)).astype(int), groups)


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)).double()


class Reference:
    """Bi-level pruning of ``network`` by full batches, written out: one step of both levels an
    epoch."""

    def __init__(self, data, val, *, sparsity, terms=None, rounds):
        nothing = AccuracyDifference(0.0)
        self.data, self.val, self.terms = data, val, terms or (nothing, nothing)
        self.sparsity, self.rounds, self.history = sparsity, rounds, []
        self.state = {name: tensor.clone() for name, tensor in network().state_dict().items()}
        self.sizes = [self.state[name].numel() for name in ("0.weight", "2.weight")]
        flat = self.flat(self.state).abs()
        self.scores, self.speed, self.epoch = flat / flat.mean(), torch.zeros_like(flat), 0
        self.mask = self.chosen()

    def flat(self, state):
        return torch.cat([state[name].flatten() for name in ("0.weight", "2.weight")])

    def chosen(self):
        kept = torch.zeros_like(self.scores)
        kept[
            self.scores.argsort(descending=True)[: len(kept) - round(self.sparsity * len(kept))]
        ] = 1
        return kept

    def objective(self, products, biases, data, term):
        parts = zip(products.split(self.sizes), [(5, 6), (2, 5)], strict=True)
        first, second = (part.reshape(shape) for part, shape in parts)
        logits = torch.tanh(data.inputs @ first.T + biases[0]) @ second.T + biases[1]
        return cross_entropy(logits, data.targets) + term(
            logits, data.targets, data.groups, data.num_groups
        )

    def step(self):
        theta, biases = self.flat(self.state), [self.state[name] for name in ("0.bias", "2.bias")]
        w = (self.mask * theta).requires_grad_()
        leaves = [bias.clone().requires_grad_() for bias in biases]
        lower, *moves = torch.autograd.grad(
            self.objective(w, leaves, self.data, self.terms[1]), [w, *leaves]
        )
        before = self.mask
        if self.epoch < self.rounds:
            value = self.objective(w, biases, self.val, self.terms[0])
            (upper,) = torch.autograd.grad(value, w)
            slope = (theta - before * lower) * upper
            self.speed = 0.9 * self.speed + slope / slope.square().mean().sqrt()
            self.scores = self.scores - 0.01 * self.speed
            self.mask = self.chosen()
            self.history.append(value.item())
        theta = theta - 0.1 * before * lower
        biases = [bias - 0.1 * move for bias, move in zip(biases, moves, strict=True)]
        self.epoch += 1
        parts = theta.split(self.sizes)
        self.state |= {"0.weight": parts[0].reshape(5, 6), "2.weight": parts[1].reshape(2, 5)}
        self.state |= {"0.bias": biases[0], "2.bias": biases[1]}

    def run(self, epochs):
        for _ in range(epochs):
            self.step()


def pruned(data, val, epochs, model=None, **settings):
    """The same by the library."""
    train = dict(
        epochs=epochs,
        lr=0.1,
        batch_size=len(data),
        momentum=0.0,
        weight_decay=0.0,
        schedule="constant",
    )
    return fairlib.prune(model or network(), "bifp", data=data, val=val, train=train, **settings)


def agree(small, reference):
    masks_, state = reference.mask.split(reference.sizes), reference.state
    for name, mask in zip(("0.weight", "2.weight"), masks_, strict=True):
        assert torch.equal(masks.read_masks(small)[name].flatten(), mask > 0)
        assert torch.allclose(
            small.state_dict()[name].flatten(), mask * state[name].flatten(), atol=1e-9
        )
    for name in ("0.bias", "2.bias"):
        assert torch.allclose(small.state_dict()[name], state[name], atol=1e-9)


@pytest.fixture
def levels(vectors):
    return vectors.subset(range(0, 40, 2)), vectors.subset(range(1, 40, 2))


@pytest.mark.parametrize("constrain", ["both", "masks", "weights", "neither"])
def test_both_levels_by_hand(levels, constrain):
    """Fifteen steps with momentum, and five behind the search. The weights follow the old mask;
    what the new one lets back is what the weight was."""
    term, nothing = AccuracyDifference(2.0), AccuracyDifference(0.0)
    terms = (
        term if constrain in ("both", "masks") else nothing,
        term if constrain in ("both", "weights") else nothing,
    )
    reference = Reference(*levels, terms=terms, sparsity=0.6, rounds=15)
    start = reference.mask
    reference.run(20)
    assert not torch.equal(reference.mask, start)
    small = pruned(*levels, 20, sparsity=0.6, fairness=2.0, constrain=constrain)
    agree(small, reference)
    history = fairlib.history(small)
    assert history["upper_objective"].iloc[:15].tolist() == pytest.approx(reference.history)
    assert history["upper_objective"].iloc[15:].isna().all()


def test_three_groups_by_hand(vectors):
    three = fairlib.GroupedDataset(vectors.inputs, vectors.targets, torch.arange(40) % 3)
    parts = three.subset(range(20)), three.subset(range(20, 40))
    term = AccuracyDifference(4.0)
    reference = Reference(*parts, terms=(term, term), sparsity=0.6, rounds=15)
    reference.run(20)
    agree(pruned(*parts, 20, fairness=4.0, sparsity=0.6), reference)


def test_channels_follow_a_step_of_their_scores(levels):
    """By hand: at first the norms of rows; the gradient of a channel is the sum over the weights
    that read it."""
    data, val = levels
    model = network()
    with torch.no_grad():  # Norms of 1 to 1.004, so that one step of 0.01 changes their order.
        rows = model[0].weight
        rows.mul_((1 + torch.arange(5) / 1000)[:, None] / rows.norm(dim=1, keepdim=True))
    first, bias, second, last = (tensor.clone() for tensor in model.state_dict().values())
    scores = first.norm(dim=1) / first.norm(dim=1).mean()

    def best(scores):
        return torch.isin(torch.arange(5), scores.argsort(descending=True)[:2])

    start = best(scores)
    gradients = []
    for part in levels:
        columns = (second * start).requires_grad_()
        logits = torch.tanh(part.inputs @ first.T + bias) @ columns.T + last
        gradients += torch.autograd.grad(cross_entropy(logits, part.targets), columns)
    lower, upper = gradients
    slope = ((second - start * lower) * upper).sum(0)
    kept = best(scores - 0.01 * slope / slope.square().mean().sqrt())
    assert not torch.equal(kept, start)
    small = pruned(data, val, 1, model, sparsity=0.6, granularity="filter", fairness=0.0)
    assert torch.equal(masks.read_masks(small)["0.weight"], kept[:, None].expand(5, 6))
    assert torch.equal(masks.read_masks(small)["2.weight"], kept[None].expand(2, 5))


def test_without_a_gradient_the_scores_stay(levels):
    """Inputs of zero and no biases: nothing reaches the masks, and nothing is divided by."""
    data, _ = levels
    nothing = fairlib.GroupedDataset(torch.zeros_like(data.inputs), data.targets, data.groups)
    model = network()
    with torch.no_grad():
        model[0].bias.zero_()
    train = dict(
        epochs=1, lr=0.1, batch_size=20
    )  # One step: later the biases are not zero any more.
    small = fairlib.prune(model, "bip", sparsity=0.6, data=data, val=nothing, train=train)
    same = masks.read_masks(fairlib.prune(model, "magnitude", sparsity=0.6))
    assert all(torch.equal(mask, same[name]) for name, mask in masks.read_masks(small).items())


def test_what_the_loss_does_not_read_is_left_alone(levels):
    """Weight decay included, as in a plain training."""
    model = network()
    model[1].register_parameter("unread", nn.Parameter(torch.ones(2).double()))
    train = dict(epochs=3, lr=0.1, weight_decay=0.1)
    small = fairlib.prune(model, "bip", sparsity=0.5, data=levels[0], val=levels[1], train=train)
    assert small[1].unread.tolist() == [1, 1]


def test_bip_is_bifp_without_fairness(dense, images):
    one = fairlib.prune(dense, "bip", sparsity=0.8, data=images, train=TRAIN)
    other = fairlib.prune(dense, "bifp", sparsity=0.8, data=images, train=TRAIN, fairness=0.0)
    fair = fairlib.prune(dense, "bifp", sparsity=0.8, data=images, train=TRAIN)
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
    assert any(
        not torch.equal(a, b) for a, b in zip(one.parameters(), fair.parameters(), strict=True)
    )
    with pytest.raises(TypeError, match="unknown setting 'fairness' for pruning method 'bip'"):
        fairlib.prune(dense, "bip", sparsity=0.8, data=images, train=TRAIN, fairness=1.0)


def test_epochs_and_batches_that_are_not_given_are_those_of_a_training():
    of_fit = inspect.signature(fairlib.fit).parameters
    assert {name: of_fit[name].default for name in DEFAULTS} == DEFAULTS


def test_exactly_as_many_weights_are_kept(dense, images):
    state = {name: tensor.clone() for name, tensor in dense.state_dict().items()}
    train = TRAIN | {"epochs": 4}
    small = fairlib.prune(dense, "bifp", sparsity=0.9, data=images, train=train)
    total = sum(mask.numel() for mask in masks.read_masks(small).values())
    assert sum(int((~mask).sum()) for mask in masks.read_masks(small).values()) == round(
        0.9 * total
    )
    assert (
        small.state_dict().keys()
        == fairlib.prune(dense, "magnitude", sparsity=0.9).state_dict().keys()
    )
    assert not small.training and all(
        torch.equal(state[name], tensor) for name, tensor in dense.state_dict().items()
    )
    history = fairlib.history(small)
    assert history["upper_objective"].isna().tolist() == [False, False, False, True]
    assert np.isfinite(history.drop(columns="upper_objective")).all(axis=None)


def test_whole_channels_go_at_one_rate(images):
    model = fairlib.fit(
        fairlib.build("tiny-resnet", num_classes=3, in_channels=1, image_size=8), images, epochs=2
    )
    settings = dict(data=images, train=TRAIN, granularity="filter")
    small = fairlib.prune(model, "bifp", sparsity=0.7, **settings)
    same = masks.read_masks(fairlib.prune(model, "filter-norm", sparsity=0.7, data=images))
    kept = masks.read_masks(small)
    assert fairlib.sparsity(small) >= 0.7
    assert {name: int(mask.sum()) for name, mask in kept.items()} == {
        n: int(mask.sum()) for n, mask in same.items()
    }
    sets = channels.coupled_channels(model, channels.example_inputs(model, images))
    gone = [
        ~torch.stack(
            [kept[name].flatten(1).any(1)[rows] for name, (_, rows) in one.producers.items()]
        ).any(0)
        for one in sets
    ]
    expected = channels.masks_for(sets, gone, model)
    assert all(torch.equal(kept[name], mask) for name, mask in expected.items())


def test_without_val_a_part_of_every_cell_is_held_out(dense, images, monkeypatch):
    seen = {}

    def watch(model, data, *, constraint, **settings):
        seen.update(train=data, val=constraint.val)
        return fairlib.fit(model, data, constraint=constraint, **settings)

    monkeypatch.setattr(sys.modules["fairlib.pruning.bifp"], "fit", watch)
    fairlib.prune(dense, "bifp", sparsity=0.5, data=images, train=TRAIN, held_out=0.3, seed=4)
    assert len(seen["val"]) == 36 and len(seen["train"]) == 84
    assert seen["val"].group_sizes.tolist() == [24, 9, 3]
    cells = [
        torch.bincount(part.targets * 3 + part.groups, minlength=9)
        for part in (seen["val"], images)
    ]
    assert ((cells[0] - 0.3 * cells[1]).abs() < 1).all()
    both = torch.cat([seen["train"].inputs, seen["val"].inputs]).flatten(1)
    assert torch.equal(both.sort(0).values, images.inputs.flatten(1).sort(0).values)
    fairlib.prune(dense, "bifp", sparsity=0.5, data=images, val=images, train=TRAIN)
    assert seen["train"] is images and seen["val"] is images


def test_the_gradients_of_both_levels_are_counted(dense, images):
    """A fit of 4 epochs of 90 samples; of 3 batches an epoch, 9 in the search, each with one of 30
    held out."""
    before, train = fairlib.gradient_evaluations(dense), TRAIN | {"epochs": 4}
    small = fairlib.prune(dense, "bifp", sparsity=0.5, data=images, train=train)
    assert fairlib.history(small)["gradients"].tolist() == [180, 180, 180, 90]
    assert fairlib.gradient_evaluations(small) == before + 630


@pytest.mark.parametrize("held_out", [0.25, 0.5])
def test_a_budget_of_epochs_is_spent_and_not_exceeded(dense, images, held_out):
    size = len(images)

    def cost(epochs):
        train = TRAIN | {"epochs": epochs}
        small = fairlib.prune(
            dense, "bifp", sparsity=0.5, data=images, train=train, held_out=held_out
        )
        return (fairlib.gradient_evaluations(small) - fairlib.gradient_evaluations(dense)) / size

    for budget in (3, 6):
        own, left = epochs_within(budget, held_out=held_out)
        assert left >= 1
        slack = budget - left - cost(own)
        assert -0.05 * own <= slack < 1  # A last batch is smaller below, and full above.
        assert cost(own + 1) > budget - 1


def test_a_budget_below_one_epoch_of_both_levels_is_refused():
    assert epochs_within(12) == (8, 1)  # 0.75 * (8 + 6) = 10.5.
    assert epochs_within(3) == (1, 1)
    # 0.3 * (11 + 9) = 6, and a little more in floating point.
    assert epochs_within(7, held_out=0.7) == (11, 1)
    with pytest.raises(ValueError, match=r"budget must be at least 2\.5 epochs, got 2"):
        epochs_within(2)
    with pytest.raises(ValueError, match="budget must"):
        epochs_within(1)


def test_statistics_of_batch_normalization_come_from_the_lower_level_alone(images):
    """With a held-out part of other brightness they are those that a plain training of the same
    masks has."""
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)
    torch.manual_seed(0)
    model = nn.Sequential(*layers)
    bright = fairlib.GroupedDataset(
        torch.full_like(images.inputs, 255),
        images.targets,
        images.groups,
        group_names=images.group_names,
    )
    kinds = [
        fairlib.prune(
            model, "bifp", sparsity=0.0, data=images, val=val, train=TRAIN, constrain="weights"
        )
        for val in (images, bright)
    ]
    one, other = (kind.state_dict() for kind in kinds)
    assert one["1.num_batches_tracked"] == other["1.num_batches_tracked"] == 12
    assert all(
        torch.allclose(one[name], other[name], atol=1e-5)
        for name in ("1.running_mean", "1.running_var")
    )


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        (dict(sparsity=1.0), ValueError, "sparsity must lie in"),
        (dict(held_out=0.0), ValueError, "held_out must lie in"),
        (dict(held_out=0.001), ValueError, "a share of 0.001 of 120 samples leaves a part without"),
        (dict(fairness=-1.0), ValueError, "fairness must lie in"),
        (dict(tau=0.1), TypeError, "unknown setting 'tau' for pruning method 'bifp'; known: held_"),
        (dict(constrain="mask"), ValueError, "unknown level to constrain 'mask'"),
        (dict(granularity="layer"), ValueError, "unknown granularity 'layer'"),
        (
            dict(train=TRAIN | {"val": None}),
            ValueError,
            "train has val=, .*val= is an argument beside",
        ),
        (dict(train=dict(epochs=0)), ValueError, r"train\['epochs'\] must lie in"),
        (
            dict(granularity="filter", sparsity=0.9999),
            ValueError,
            "out of reach: with one channel left",
        ),
        (
            dict(train=TRAIN | {"constraint": fairlib.EqualLoss()}),
            ValueError,
            "train has constraint=, which bi-level",
        ),
        (
            dict(train=TRAIN | {"lr": 1e30}),
            fairlib.DivergenceError,
            "the gradient of the mask's scores is nan",
        ),
    ],
)
def test_what_cannot_be_done_is_refused(dense, images, settings, error, message):
    with pytest.raises(error, match=message):
        fairlib.prune(dense, "bifp", **dict(sparsity=0.5, data=images, train=TRAIN) | settings)


def test_a_single_group_is_refused_unless_nothing_is_asked_of_it(dense, images):
    alone = images.subset((images.groups == 0).nonzero().flatten())
    with pytest.raises(ValueError, match="the same two or more; data have many, the held-out"):
        fairlib.prune(dense, "bifp", sparsity=0.5, data=alone, train=TRAIN)
    with pytest.raises(ValueError, match="the held-out data many"):
        fairlib.prune(dense, "bifp", sparsity=0.5, data=images, val=alone, train=TRAIN)
    assert (
        fairlib.sparsity(fairlib.prune(dense, "bip", sparsity=0.5, data=alone, train=TRAIN)) >= 0.49
    )


def test_a_group_in_one_level_only_is_refused(dense, images):
    last = (images.groups == 2).nonzero().flatten()
    single = images.subset(torch.cat([(images.groups != 2).nonzero().flatten(), last[:1]]))
    with pytest.raises(ValueError, match="groups, of which data and held-out data need the same"):
        fairlib.prune(dense, "bifp", sparsity=0.5, data=single, train=TRAIN)
    without = images.subset((images.groups != 2).nonzero().flatten())
    with pytest.raises(ValueError, match="data have many, some, few, the held-out data many, some"):
        fairlib.prune(dense, "bifp", sparsity=0.5, data=images, val=without, train=TRAIN)


def test_scores_that_are_no_number_are_refused(dense, images):
    broken = fairlib.restore(dense, dense.state_dict())
    with torch.no_grad():
        next(iter(masks.prunable(broken).values())).flatten()[0] = torch.nan
    with pytest.raises(ValueError, match="hold NaN"):
        fairlib.prune(broken, "bifp", sparsity=0.5, data=images, train=TRAIN)
    with torch.no_grad():
        for weight in masks.prunable(broken).values():
            weight.zero_()
    with pytest.raises(ValueError, match="are zero"):
        fairlib.prune(broken, "bifp", sparsity=0.5, data=images, train=TRAIN)


def test_what_a_mask_has_pruned_stays_pruned(dense, images):
    half = fairlib.prune(dense, "magnitude", sparsity=0.5)
    for settings in (dict(), dict(granularity="filter")):
        small = fairlib.prune(half, "bifp", sparsity=0.8, data=images, train=TRAIN, **settings)
        assert fairlib.sparsity(small) >= 0.799
        assert fairlib.sparsity(small) < 0.801 or "granularity" in settings
        assert all(
            not (masks.read_masks(small)[name] & ~mask).any()
            for name, mask in masks.read_masks(half).items()
        )
        assert all(
            not weight[~masks.read_masks(small)[name]].any()
            for name, weight in masks.prunable(small).items()
        )
    with pytest.raises(ValueError, match="are pruned already"):
        fairlib.prune(half, "bifp", sparsity=0.3, data=images, train=TRAIN)


class Awkward(nn.Module):
    """A layer inside a layer, one under two names, one that no output reads, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.outer = nn.Linear(6, 6)
        self.outer.inner = nn.Linear(6, 6)
        self.twin = self.outer.inner
        self.unused = nn.Linear(6, 6)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.last = nn.Linear(6, 2)

    def forward(self, x):
        return self.last(torch.tanh(self.frozen(torch.tanh(self.twin(torch.tanh(self.outer(x)))))))


def test_awkward_modules_come_back_as_they_were(vectors):
    torch.manual_seed(0)
    model = Awkward().double()
    with torch.no_grad():
        model.outer.inner.weight.mul_(
            0.01
        )  # All but the last of its weights go, and of no other layer so many.
    small = fairlib.prune(model, "bifp", sparsity=0.3, data=vectors, train=TRAIN | {"lr": 1e-3})
    same = fairlib.prune(model, "magnitude", sparsity=0.3)
    assert fairlib.sparsity(small) == fairlib.sparsity(same)
    assert masks.read_masks(small)["outer.inner.weight"].sum() == 1
    assert [name for name, _ in small.named_parameters()] == [
        name for name, _ in model.named_parameters()
    ]
    assert small.twin is small.outer.inner and not hasattr(small.last, "parametrizations")
    kept = masks.read_masks(small)["frozen.weight"]
    assert torch.equal(small.frozen.weight, model.frozen.weight * kept)
    again = copy.deepcopy(small)
    assert torch.equal(again(vectors.inputs), small(vectors.inputs))


def test_held_out_data_must_be_of_the_same_kind(dense, images):
    fewer = fairlib.GroupedDataset(images.inputs, images.targets, images.groups % 2)
    with pytest.raises(ValueError, match="val must have the groups and targets of data"):
        fairlib.prune(dense, "bifp", sparsity=0.5, data=images, val=fewer, train=TRAIN)


def test_a_network_of_one_layer_has_no_channels(vectors):
    with pytest.raises(ValueError, match="Linear has no channel that can be removed"):
        fairlib.prune(
            nn.Linear(6, 2).double(),
            "bifp",
            sparsity=0.3,
            data=vectors,
            train=TRAIN,
            granularity="filter",
        )


def test_the_split_follows_the_seed(dense, images):
    kinds = [
        fairlib.prune(dense, "bip", sparsity=0.5, data=images, train=TRAIN | {"seed": 0}, seed=s)
        for s in (0, 0, 1)
    ]
    weights = [torch.cat([p.flatten() for p in kind.parameters()]) for kind in kinds]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_before_it_only_the_dense_training_is_mitigated():
    table = fairlib.study(
        ("digits", {"size": 120}),
        ("cnn", {"channels": (4, 8), "hidden": (16, 8)}),
        "prune:bifp",
        [0.8],
        mitigation="equal-loss",
        when=["never", "before"],
        seeds=[0],
        train={"epochs": 2},
        finetune={"epochs": 1},
    )
    assert set(table["when"]) == {"never", "before"} and (table["kept"] < 0.21).any()
