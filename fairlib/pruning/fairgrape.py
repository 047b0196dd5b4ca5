"""FairGRAPE: every layer keeps each group's share of the importance of its weights."""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fairlib.data import GroupedDataset
from fairlib.network import masks
from fairlib.network.evaluation import check_logits, placement
from fairlib.network.memory import add_gradients
from fairlib.pruning.gradients import check_groups, mean_gradient, scored_copy

BATCH_SIZE = 64
"""Largest number of samples per gradient, as in the paper."""

TURN = 1000
"""A turn of a group takes 1 / TURN of the weights still to be kept, at least one."""


def fairgrape(
    model: nn.Module,
    *,
    sparsity: float,
    data: GroupedDataset,
    as_published: bool = False,
) -> nn.Module:
    r"""Prune so that no group loses a larger share of its important weights; nothing is trained.

    The importance of weight i for group a is :math:`I_{ia} = \frac1B \sum_b (w_i\, g_{iab})^2`,
    where :math:`g_{ab}` is the gradient of the mean cross-entropy over batch b of the group, and a
    layer's target share for the group is :math:`p_a = \sum_i I_{ia} / \sum_{a'} \sum_i I_{ia'}`.
    Each layer of n weights keeps exactly ``n - round(sparsity * n)`` of them, at least one. They
    are chosen in turns: the group whose share of the importance kept so far is furthest below its
    target takes the weight most important to it of those not yet kept (of equal ones the first in
    the order of the weights). Weights that a mask of the model holds at zero are never taken.

    While 2,000 or more weights are still to be kept in a layer, a turn takes a thousandth of them
    at once, which changes the final shares by less than 0.001; after that, one weight.

    A group is split into batches of equal size, give or take one, of at most 64 samples. The square
    of a batch's gradient contains its noise too, so groups that are smaller than a batch count for
    more than they should. The paper alternates scoring with retraining: ``schedule=("iterative",
    {"rate": 0.1})`` of :func:`fairlib.prune`.

    Args:
        model: The trained model; not changed. It is scored in eval mode, except for batch
            normalizations that have seen no batch.
        sparsity: Share of zeros in every layer, in [0, 1).
        data: The training set; each of its groups must have a sample.
        as_published: Score as the released code does: gradients are never cleared, so that each
            batch's gradient includes those of all batches and groups before it; an optimizer (Adam
            with a learning rate of 0.0001) changes the model between batches; and only the last
            group's importance is divided by its number of batches, which lowers its target. The
            order of the groups then matters.

    Returns:
        A masked copy in eval mode.

    Raises:
        ValueError: If a group has no sample, an importance is NaN or infinite, all importances are
            zero, or a layer is already sparser than asked.

    Source:
        Lin, Kim, Joo, FairGRAPE: fairness-aware gradient pruning method for face attribute
        classification (ECCV 2022).
    """
    check_groups(data)
    score = published_importance if as_published else importance
    scores = score(model, data, BATCH_SIZE)
    if not any(values.any() for values in scores.values()):
        raise ValueError(
            "all importances are zero: every sample is fitted exactly, or no signal passes the "
            "network"
        )
    before = masks.read_masks(model)
    keep = {
        name: _select(name, values, sparsity, before.get(name)) for name, values in scores.items()
    }
    return add_gradients(masks.with_masks(model, keep), len(data))


def importance(model: nn.Module, data: GroupedDataset, batch_size: int) -> dict[str, Tensor]:
    """Compute the importances ``(groups, *shape)`` of every prunable weight, by parameter name."""
    scored = scored_copy(model, data)
    weights = masks.prunable(scored)
    totals = _zeros(weights, data)
    for group, index, count in _batches(data, batch_size):
        gradients = mean_gradient(scored, data, index)
        for name, weight in weights.items():
            products = weight.detach().float() * gradients[name].float()
            totals[name][group] += products.square() / count
    return totals


def published_importance(
    model: nn.Module, data: GroupedDataset, batch_size: int, lr: float = 1e-4
) -> dict[str, Tensor]:
    """Compute importances as the released code does (``as_published`` of :func:`fairgrape`)."""
    scored = scored_copy(model, data)
    scored.zero_grad()  # Only here: the released code never clears the gradients.
    device, dtype = placement(scored)
    weights = masks.prunable(scored)
    optimizer = torch.optim.Adam(scored.parameters(), lr=lr)
    totals, batches = _zeros(weights, data), list(_batches(data, batch_size))
    for group, index, _ in batches:
        logits = scored(data.batch(index, dtype=dtype, device=device))
        check_logits(logits, data)
        cross_entropy(logits, data.labels(index, device)).backward()
        for name, weight in weights.items():
            if weight.grad is not None:  # None: the model does not use the weight.
                products = weight.detach().float() * weight.grad.float()
                totals[name][group] += products.square()
        optimizer.step()
    # Behind the loop, as in the released code: the number is that of the last group alone.
    for total in totals.values():
        total[-1] /= batches[-1][2]
    return totals


def _zeros(weights: dict[str, nn.Parameter], data: GroupedDataset) -> dict[str, Tensor]:
    """Make zeros ``(groups, *shape)`` for every weight, in single precision.

    Importances are squares, and those of half-precision numbers underflow.
    """
    return {
        name: torch.zeros(data.num_groups, *weight.shape, device=weight.device)
        for name, weight in weights.items()
    }


def _batches(data: GroupedDataset, batch_size: int) -> Iterator[tuple[int, Tensor, int]]:
    """Yield batches of equal size, give or take one: group, samples, and how many the group has."""
    for group in range(data.num_groups):
        members = (data.groups == group).nonzero().flatten().cpu()
        batches = members.tensor_split(math.ceil(len(members) / batch_size))
        yield from ((group, index, len(batches)) for index in batches)


def _select(name: str, score: Tensor, sparsity: float, mask: Tensor | None) -> Tensor:
    """Make the mask of a layer of this sparsity from importances ``(groups, *shape)``."""
    flat = score.flatten(1).double()
    size = flat.shape[1]
    count = max(1, size - round(sparsity * size))
    free = torch.ones_like(flat[0], dtype=torch.bool) if mask is None else mask.flatten()
    left = int(free.sum())
    if not score.isfinite().all():
        raise ValueError(f"the importances of {name} are not all finite; has training diverged?")
    if count > left:
        raise ValueError(
            f"{name} should keep {count} weights, but only {left} are not pruned already"
        )
    # Weights that are pruned already get an importance below any other and come last.
    ranked = flat.masked_fill(~free, -1).sort(dim=1, descending=True, stable=True).indices
    keep = torch.zeros_like(free)
    keep[in_turn(flat.cpu().numpy(), ranked[:, :count].cpu().numpy(), count)] = True
    return keep.reshape(score.shape[1:])


def in_turn(scores: np.ndarray, order: np.ndarray, count: int, block: int = TURN) -> np.ndarray:
    """Choose weights of a layer by letting the groups take them in turns.

    Args:
        scores: Importances of the weights, ``(groups, n)``, not negative.
        order: For each group the positions of the weights by falling importance, ``(groups,
            count)`` or more.
        count: Number of weights to take.
        block: A turn takes 1 / ``block`` of the weights still to be taken, at least one.

    Returns:
        Positions of the weights taken, int64 ``(count,)``.
    """
    totals = scores.sum(axis=1)
    target = totals / totals.sum() if totals.any() else np.full(len(totals), 1 / len(totals))
    taken = np.zeros(scores.shape[1], dtype=bool)
    share, position = np.zeros(len(totals)), np.zeros(len(totals), dtype=np.int64)
    chosen: list[np.ndarray] = []
    left = count
    while left:
        # The share of what is kept so far, not of all: at first every group has 0, and the one with
        # the largest target begins.
        behind = target - (share / share.sum() if share.any() else share)
        group = np.argmax(behind)
        turn = max(1, left // block)
        # Each group goes down its own ranking and skips what others have taken. Twice the turn is
        # looked at; where most of that is taken, the turn is shorter, and the next look goes on
        # behind it. A search for exactly ``turn`` fresh weights would make the loop quadratic.
        ahead = order[group, position[group] : position[group] + 2 * turn]
        fresh = np.flatnonzero(~taken[ahead])[:turn]
        position[group] += fresh[-1] + 1 if len(fresh) == turn else len(ahead)
        newly = ahead[fresh]
        taken[newly] = True
        share += scores[:, newly].sum(axis=1)
        chosen.append(newly)
        left -= len(newly)
    return np.concatenate(chosen)
