"""Bi-level pruning, plain (BiP) and fair (BiFP): mask and weights are learned together.

The search itself is in :mod:`fairlib.pruning.bilevel`.
"""

import math
from typing import Any

from torch import nn

from fairlib import environment
from fairlib._validation import check_number, lookup
from fairlib.data import GroupedDataset
from fairlib.network.copying import copied
from fairlib.pruning.bilevel import BiLevel, search_epochs
from fairlib.pruning.granularity import GRANULARITIES
from fairlib.pruning.masked_product import join_weights, split_weights
from fairlib.training import fit
from fairlib.training.compressors import Settings
from fairlib.training.group_losses import AccuracyDifference

CONSTRAIN = {
    "both": (True, True),
    "masks": (True, False),
    "weights": (False, True),
    "neither": (False, False),
}
"""Levels that include the fairness term: the upper one (masks), the lower one (weights)."""

TRAIN = {"epochs": 10, "batch_size": 64, "device": "auto"}
"""Defaults of those arguments of :func:`fairlib.fit` on which the steps of the mask depend."""

SET_BY_BIFP = ("constraint", "keep", "val")
"""Arguments of :func:`fairlib.fit` that bi-level pruning sets itself."""


def bifp(
    model: nn.Module,
    *,
    sparsity: float,
    data: GroupedDataset,
    train: Settings,
    val: GroupedDataset | None = None,
    held_out: float = 0.25,
    fairness: float = 1.0,
    constrain: str = "both",
    granularity: str = "weight",
    seed: int = 0,
) -> nn.Module:
    r"""Prune by bi-level optimization with a penalty on the difference of groups' accuracies.

    With weights :math:`w = m \odot \theta` and the objective :math:`U(w) = J(w) + \nu \, |F(w)|`,
    cross-entropy and penalty (:class:`fairlib.training.group_losses.AccuracyDifference`), it solves

    .. math::
        \min_{m, \, \|m\|_0 \le k} U(m \odot \theta^*(m); D_2) , \qquad
        \theta^*(m) = \operatorname{argmin}_\theta
        U(m \odot \theta; D_1) + \tfrac{\gamma}{2} \|\theta\|^2 .

    The lower level is a training by :func:`fairlib.fit` on :math:`D_1`. Before each of its steps
    the mask takes a step on a batch of :math:`D_2`, along the gradient of the upper level
    (:mod:`fairlib.pruning.hypergradient`, with :math:`\gamma = 1`); both steps start from the same
    mask and weights. The mask keeps the k weights of highest score; scores start as the magnitudes
    of the weights (or the norms of filters) divided by their mean, and move by gradient descent
    with momentum, on a gradient that is divided by its root mean square. The gradient with respect
    to the mask is used as that with respect to the scores (straight-through), as in BiP. A weight
    that is not kept has no gradient; apart from momentum and decay it does not change, and it may
    return. The search for the mask takes three quarters of the epochs. In those after it the mask
    is fixed and training goes on.

    In the hypergradient only the prunable weights follow the mask; biases and normalization are
    constants. Both levels run in training mode, and the upper one does not update the statistics of
    batch normalization. The upper level uses the cross-entropy, without augmentation and in the
    dtype of the weights, whatever ``objective``, ``augment`` and ``precision`` of ``train`` are.
    :math:`\gamma` is not the weight decay of ``train``, which is so small that :math:`g_1 / \gamma`
    would dominate everywhere but at a minimum.

    Args:
        model: The trained model; not changed.
        sparsity: Share of zeros among the prunable weights, in [0, 1); of ``granularity="filter"``
            the smallest share.
        data: The training set.
        train: Arguments of :func:`fairlib.fit` for the lower level; at least one epoch, by default
            10.
        val: Data :math:`D_2` of the upper level. By default a random part of ``data`` is held out,
            the same share of every crossing of target and group. On training data a difference of
            accuracies closes by overfitting and says nothing. The held-out part is new to the lower
            level, but not to a dense model trained on all ``data``.
        held_out: Share of ``data`` that is held out if ``val`` is not given, in (0, 1).
        fairness: Weight :math:`\nu` of the fairness term; with 0 the method is BiP.
        constrain: Levels that include the fairness term: ``"both"``, ``"masks"`` (the paper's "w/o
            w"), ``"weights"`` ("w/o m") or ``"neither"``.
        granularity: ``"weight"``: single weights, ranked over all layers together. ``"filter"``:
            channels, at one rate in all layers (:func:`fairlib.network.channels.lowest`); the
            search masks the weights that read a channel, and in the end those that make it are
            pruned as well.
        seed: Seed of the split and of the training.

    Returns:
        A trained masked copy in eval mode. :func:`fairlib.history` has, by epoch of the search, the
        mean ``upper_objective``.

    Raises:
        ValueError: If a setting is out of range or unknown; ``val`` has other groups or targets
            than ``data``; the penalty has a weight, and fewer than two groups have members or a
            group has members in one level only; the sparsity cannot be reached by filters (an
            earlier mask can be the reason); the model is already sparser; or ``train`` holds
            something that the method decides, such as a constraint.
        DivergenceError: If the training diverges or the gradient of the scores becomes infinite or
            NaN.

    Source:
        Dai et al., Integrating fairness and model pruning through bi-level optimization ([B]),
        Sections 4.2 and 4.3, corrected; Zhang et al., Advancing model pruning via bi-level
        optimization (NeurIPS 2022). Steps of both levels from one point: Dagréou et al., A
        framework for bilevel optimization that enables stochastic and global variance reduction
        algorithms (NeurIPS 2022). [B] gives no settings, only the form of both levels; the settings
        are our choice.
    """
    check_number("sparsity", sparsity, 0, 1)
    check_number("held_out", held_out, 0, 1, low_open=True)
    check_number("fairness", fairness, 0)
    in_upper, in_lower = lookup("level to constrain", constrain, CONSTRAIN)
    make = lookup("granularity", granularity, GRANULARITIES)
    settings = _training(train, seed)
    if val is None:
        data, val = data.hold_out(held_out, seed)
    _check_levels(data, val, fairness)
    device = environment.resolve_device(settings["device"])
    units = make(copied(model).to(device), data)
    # A sparsity that is out of reach is refused before anything is trained.
    units.final(units.start(), sparsity)
    split, prefixes = split_weights(units.model)
    penalty = AccuracyDifference(fairness) if fairness else None
    search = BiLevel(
        granularity=units,
        prefixes=prefixes,
        sparsity=sparsity,
        val=val,
        upper=penalty if in_upper else None,
        lower=penalty if in_lower else None,
        rounds=search_epochs(settings["epochs"]),
        batch_size=settings["batch_size"],
    )
    trained = fit(split, data, constraint=search, **settings)
    return join_weights(trained, prefixes, search.keep)


def bip(
    model: nn.Module,
    *,
    sparsity: float,
    data: GroupedDataset,
    train: Settings,
    val: GroupedDataset | None = None,
    held_out: float = 0.25,
    granularity: str = "weight",
    seed: int = 0,
) -> nn.Module:
    """Prune by bi-level optimization without a fairness term.

    This is :func:`fairlib.pruning.bifp` with ``fairness=0``.

    The released code of BiP differs: its upper level uses the batches of the training set in
    reverse order; its implicit term has a learning rate, 1e-4, instead of the inverse of gamma, and
    the square of one gradient instead of a product of two, which makes it a thousandth of the
    direct term; and an optimizer apart, without normalization of the gradient, updates the masks.

    Args:
        model, sparsity, data, train, val, held_out, granularity, seed: Arguments of
            :func:`fairlib.pruning.bifp`.

    Returns:
        A trained masked copy in eval mode.

    Raises:
        ValueError: If a setting is out of range or unknown, or the sparsity cannot be reached.
        DivergenceError: If the training diverges or the gradient of the scores becomes infinite or
            NaN.

    Source:
        Zhang et al., Advancing model pruning via bi-level optimization (NeurIPS 2022).
    """
    return bifp(
        model,
        sparsity=sparsity,
        data=data,
        train=train,
        val=val,
        held_out=held_out,
        fairness=0.0,
        granularity=granularity,
        seed=seed,
    )


def epochs_within(budget: int, *, held_out: float = 0.25) -> tuple[int, int]:
    r"""Split a budget of epochs between :func:`bifp` and finetuning, by the gradients they compute.

    A share :math:`1 - h` of the data is not held out. For each of these samples an epoch of the
    search computes two gradients (with steps of both levels in turn, batches of equal size and no
    products with a Hessian), and a later epoch one. So e epochs, of which the search takes
    :math:`\lceil \frac34 e \rceil`, cost as much as :math:`(1 - h) (e + \lceil \frac34 e \rceil)`
    epochs on all data.

    Args:
        budget: Epochs of plain training on all data, at least 2; at least one of them is left for
            finetuning.
        held_out: Share h of the data that the upper level uses; 0 if it has data of its own
            (``val``).

    Returns:
        The largest possible number of epochs of :func:`bifp`, and the number of whole epochs left
        for finetuning; both are at least 1.

    Raises:
        ValueError: If a number is out of range, or the budget is too small for one epoch of both.
    """
    check_number("budget", budget, 2, whole=True)
    check_number("held_out", held_out, 0, 1)

    def cost(epochs: int) -> float:
        return (1 - held_out) * (epochs + search_epochs(epochs))

    # The tolerance keeps a product such as 0.3 * 10 from exceeding 3 by a rounding error.
    most = budget - 1 + 1e-9
    if cost(1) > most:
        raise ValueError(f"budget must be at least {cost(1) + 1:g} epochs, got {budget}")
    epochs = 1
    while cost(epochs + 1) <= most:
        epochs += 1
    return epochs, math.floor(budget - cost(epochs) + 1e-9)


def _training(train: Settings, seed: int) -> dict[str, Any]:
    """Complete the arguments of ``fit`` for the lower level, and check them."""
    for name in SET_BY_BIFP:
        if name in train:
            raise ValueError(
                f"train has {name}=, which bi-level pruning sets itself "
                "(val= is an argument beside train=)"
            )
    settings = TRAIN | {"seed": seed} | dict(train)
    check_number("train['epochs']", settings["epochs"], 1, whole=True)
    return settings


def _check_levels(data: GroupedDataset, val: GroupedDataset, fairness: float) -> None:
    """Refuse levels with other groups or targets, or without what the fairness term compares."""
    expected, actual = ((part.group_names, part.target_names) for part in (data, val))
    if actual != expected:
        raise ValueError(f"val must have the groups and targets of data, {expected}, got {actual}")
    if not fairness:
        return
    present = [[name for name, size in part.group_sizes.items() if size] for part in (data, val)]
    if present[0] != present[1] or len(present[0]) < 2:
        lower, upper = (", ".join(names) for names in present)
        raise ValueError(
            "bifp compares groups, of which data and held-out data need the same two or more; "
            f"data have {lower}, the held-out data {upper}"
        )
