from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import fairlib
from fairlib.network import masks
from fairlib.pruning.fairgrape import importance, in_turn, published_importance


def _sequential(scores: np.ndarray, count: int) -> list[int]:
    """The rule of the paper, word by word, a weight at a time."""
    target = scores.sum(1) / scores.sum()
    kept: list[int] = []
    for _ in range(count):
        share = scores[:, kept].sum(1)
        share = share / share.sum() if share.any() else share
        group = int(np.argmax(target - share))
        kept.append(
            max(
                (i for i in range(scores.shape[1]) if i not in kept),
                key=lambda i: (scores[group, i], -i),
            )
        )
    return kept


def _heavy_tailed(groups: int, n: int, seed: int) -> np.ndarray:
    """Importances that the groups share in part, each group at a scale of its own."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=n)
    own = rng.normal(size=(groups, n))
    return np.exp(1.5 * (common + own)) * np.exp(rng.normal(size=(groups, 1)))


def _order(scores: np.ndarray) -> np.ndarray:
    return np.argsort(-scores, axis=1, kind="stable")


@pytest.mark.parametrize(("groups", "count"), [(2, 10), (5, 30), (9, 117)])
def test_small_layers_follow_the_sequential_rule_exactly(groups, count):
    scores = _heavy_tailed(groups, 120, seed=groups)
    assert in_turn(scores, _order(scores), count).tolist() == _sequential(scores, count)


@pytest.mark.parametrize("kept", [0.02, 0.1, 0.5])
def test_blocks_move_the_shares_by_less_than_a_thousandth(kept):
    scores = _heavy_tailed(5, 60_000, seed=1)
    count = round(kept * scores.shape[1])
    order = _order(scores)
    shares = []
    for block in (count + 1, 1000):  # One weight at a time, and as in use.
        chosen = in_turn(scores, order, count, block=block)
        assert len(set(chosen.tolist())) == count
        shares.append(scores[:, chosen].sum(1) / scores[:, chosen].sum())
    assert np.abs(shares[0] - shares[1]).max() < 1e-3


def test_the_kept_shares_are_the_targets_where_they_can_be():
    scores = _heavy_tailed(4, 20_000, seed=2)
    target = scores.sum(1) / scores.sum()
    chosen = in_turn(scores, _order(scores), 2_000)
    by_mean = np.argsort(-scores.sum(0))[:2_000]
    reached = np.abs(scores[:, chosen].sum(1) / scores[:, chosen].sum() - target).max()
    assert (
        reached < 1e-2 < np.abs(scores[:, by_mean].sum(1) / scores[:, by_mean].sum() - target).max()
    )


def test_importance_is_the_squared_product_of_weight_and_group_gradient(cnn, images):
    cnn = fairlib.fit(cnn, images, epochs=0)
    found = importance(cnn, images, batch_size=50)
    weight = cnn.classifier[2].weight
    for group, parts in enumerate(([40, 40], [30], [10])):
        members = (images.groups == group).nonzero().flatten()
        expected = torch.zeros_like(weight)
        for index in members.split(parts[0]):
            inputs = images.batch(index, dtype=torch.float32)
            (gradient,) = torch.autograd.grad(
                cross_entropy(cnn(inputs), images.targets[index]), [weight]
            )
            expected += (weight * gradient).square() / len(parts)
        torch.testing.assert_close(
            found["classifier.2.weight"][group], expected.detach(), rtol=1e-4, atol=1e-12
        )


def test_the_order_of_the_groups_does_not_matter(cnn, images):
    renamed = fairlib.GroupedDataset(
        images.inputs, images.targets, 2 - images.groups, group_names=images.group_names[::-1]
    )
    for name, score in importance(cnn, images, 64).items():
        assert torch.equal(score, importance(cnn, renamed, 64)[name].flip(0))
    one, other = (
        fairlib.prune(cnn, "fairgrape", sparsity=0.7, data=data) for data in (images, renamed)
    )
    assert all(
        torch.equal(mask, masks.read_masks(other)[name])
        for name, mask in masks.read_masks(one).items()
    )


@pytest.mark.parametrize("as_published", [False, True])
def test_scoring_leaves_the_model_alone_and_every_layer_loses_its_share(cnn, images, as_published):
    before = copy.deepcopy(cnn.state_dict())
    pruned = fairlib.prune(cnn, "fairgrape", sparsity=0.7, data=images, as_published=as_published)
    assert all(torch.equal(value, before[name]) for name, value in cnn.state_dict().items())
    assert all(parameter.grad is None for parameter in cnn.parameters())
    for mask in masks.read_masks(pruned).values():
        assert int((~mask).sum()) == round(0.7 * mask.numel())


def test_the_published_scores_depend_on_the_order_of_the_groups(cnn, images):
    """Gradients that are never cleared and a model that moves: the counterexample to the released
    routine."""
    renamed = fairlib.GroupedDataset(images.inputs, images.targets, 2 - images.groups)
    one, other = (
        masks.read_masks(
            fairlib.prune(cnn, "fairgrape", sparsity=0.7, data=data, as_published=True)
        )
        for data in (images, renamed)
    )
    assert not all(torch.equal(mask, other[name]) for name, mask in one.items())


def test_published_scores_by_hand(cnn, images):
    """Gradients pile up, Adam moves the weights between batches, and only the last group is
    averaged."""
    cnn = fairlib.fit(cnn, images, epochs=0)
    found = published_importance(cnn, images, 20, 1e-2)["classifier.4.weight"]
    model = copy.deepcopy(cnn)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    expected = torch.zeros_like(found)
    for group, size in enumerate((80, 30, 10)):
        members = (images.groups == group).nonzero().flatten()
        batches = members.tensor_split(-(-size // 20))
        for index in batches:
            logits = model(images.batch(index, dtype=torch.float32))
            cross_entropy(logits, images.targets[index]).backward()
            weight = model.classifier[4].weight
            expected[group] += (weight.detach() * weight.grad).square()
            optimizer.step()
    torch.testing.assert_close(found, expected)  # The last group has a single batch.
    few_last = fairlib.GroupedDataset(images.inputs, images.targets, 2 - images.groups)
    last = published_importance(cnn, few_last, 20, 0.0)["classifier.4.weight"][2]
    alone = fairlib.GroupedDataset(images.inputs[:80], images.targets[:80], images.groups[:80] * 0)
    assert not torch.equal(
        last, published_importance(cnn, alone, 20, 0.0)["classifier.4.weight"][0]
    )
    four = published_importance(cnn, alone, 20, 0.0)["classifier.4.weight"][0]
    unaveraged = torch.zeros_like(four)
    total = torch.zeros_like(cnn.classifier[4].weight)
    for index in torch.arange(80).tensor_split(4):
        inputs = alone.batch(index, dtype=torch.float32)
        total += torch.autograd.grad(
            cross_entropy(cnn(inputs), alone.targets[index]), [cnn.classifier[4].weight]
        )[0]
        unaveraged += (cnn.classifier[4].weight.detach() * total).square()
    torch.testing.assert_close(four, unaveraged / 4)


def test_half_precision_scores_do_not_vanish(cnn, images):
    trained = fairlib.fit(cnn, images, epochs=3)
    scores = importance(trained.bfloat16(), images, 64)
    assert all(score.dtype == torch.float32 and score.any() for score in scores.values())


def test_goes_on_from_a_pruned_model(cnn, images):
    half = fairlib.prune(cnn, "fairgrape", sparsity=0.5, data=images)
    most = fairlib.prune(half, "fairgrape", sparsity=0.9, data=images)
    for name, mask in masks.read_masks(most).items():
        assert bool((masks.read_masks(half)[name] | ~mask).all())
    with pytest.raises(ValueError, match="are not pruned already"):
        fairlib.prune(most, "fairgrape", sparsity=0.5, data=images)


def test_bad_input(cnn, images):
    with pytest.raises(ValueError, match="group 'few' has no sample in the data"):
        fairlib.prune(cnn, "fairgrape", sparsity=0.5, data=images.subset(range(110)))
    with torch.no_grad():
        cnn.features[0].weight[0] = torch.nan
    with pytest.raises(ValueError, match="not all finite"):
        fairlib.prune(cnn, "fairgrape", sparsity=0.5, data=images)
