"""Bi-level pruning, plain (BiP) and fair (BiFP): mask and weights are learned together, each for its own objective."""

import copy
import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from fairlib import environment
from fairlib._validation import check_names, check_number, lookup
from fairlib.data import GroupedDataset
from fairlib.data.splitting import stratified_parts
from fairlib.pruning.bilevel import BiLevel, MaskSearch, closed, opened
from fairlib.pruning.granularity import GRANULARITIES
from fairlib.training import fit
from fairlib.training.group_losses import AccuracyDifference

CONSTRAIN: dict[str, tuple[bool, bool]] = {
    "both": (True, True),
    "masks": (True, False),
    "weights": (False, True),
    "neither": (False, False),
}
"""Which levels the fairness term is part of: (upper, masks; lower, weights)."""

TRAIN = {"epochs": 10, "batch_size": 64, "device": "auto"}
"""Arguments of :func:`fairlib.fit` on which the steps of the mask depend, where they are not given."""


def bifp(
    model: nn.Module,
    *,
    sparsity: float,
    data: GroupedDataset,
    train: Mapping[str, Any],
    val: GroupedDataset | None = None,
    held_out: float = 0.25,
    penalty: AccuracyDifference = AccuracyDifference(1.0),
    mask: MaskSearch = MaskSearch(),
    constrain: str = "both",
    granularity: str = "weight",
    seed: int = 0,
) -> nn.Module:
    r"""Prune by bi-level optimization, with the difference of the groups' accuracies in both levels.

    With :math:`U(w) = J(w) + \nu \, \varphi(F(w))` (:class:`fairlib.training.group_losses.AccuracyDifference`) of
    weights :math:`w = m \odot \theta`,

    .. math::
        \min_{m, \, \|m\|_0 \le k} U(m \odot \theta^*(m); D_2) , \qquad
        \theta^*(m) = \operatorname{argmin}_\theta U(m \odot \theta; D_1) + \tfrac{\gamma}{2} \|\theta\|^2 .

    The lower level is a training by :func:`fairlib.fit` on :math:`D_1`. Before each of its steps, or before every so
    many, the mask takes one on a batch of :math:`D_2`, along the gradient of the upper level
    (:mod:`fairlib.pruning.hypergradient`), and both start from the same mask and weights. Scores :math:`s`, at first
    the magnitudes of the weights (or the norms of filters) over their mean, decide the mask: it keeps the k highest,
    and the gradient in the mask is taken for that in the scores (straight-through), as BiP does. A weight that is not
    kept has no gradient; momentum and decay aside it stays what it was, and it may return. Or the mask is *relaxed*:
    the point of :math:`m \in [0, 1]^p`, :math:`\sum_j m_j \le k`, that is nearest to the scores (a lazy projection);
    when the search is over, the k highest scores become 1, and their factors a part of the weights. In the epochs after
    the search the mask is fixed and the weights are trained on.

    What answers to the mask in the hypergradient are the prunable weights; biases and normalization are held. Both
    levels are in training mode, and the upper one leaves the statistics of batch normalization alone. It takes the
    cross-entropy, without augmentation and in the dtype of the weights, whatever ``objective``, ``augment`` and
    ``precision`` of ``train`` are. :math:`\gamma` is apart from the decay of ``train``: were it that small, the answer
    of the weights, :math:`g_1 / \gamma`, would drown everything away from a minimum.

    Args:
        model: The trained model; left as it is.
        sparsity: Share of zeros among the prunable weights, in [0, 1); by filters, that is at least reached.
        data: The training set.
        train: Arguments of :func:`fairlib.fit` for the lower level; at least one epoch, by default 10.
        val: :math:`D_2`. Without it a part of ``data`` is split off, drawn by ``seed`` from every cell of target and
            group. On data that are trained on, a difference of accuracies closes by overfitting and says nothing; such
            a part is new to the lower level, though not to a dense model that was trained on all of ``data``.
        held_out: The share of that part, in (0, 1).
        penalty: :math:`\nu \, \varphi(F)`; with a weight :math:`\nu` of 0 the method is BiP.
        mask: How the mask is learned.
        constrain: Which levels have the fairness term: ``"both"``, ``"masks"`` (the paper's "w/o w"), ``"weights"``
            ("w/o m") or ``"neither"``.
        granularity: ``"weight"``, ranked among all; or ``"filter"``, channels, at one rate in all layers
            (:func:`fairlib.network.channels.lowest`). In the search the mask of a channel multiplies the weights that
            read it, and in the end those that make it go as well. What an earlier mask has left may make a sparsity
            impossible, which shows when the channels are chosen.
        seed: Seed of the split, of random scores and of the training.

    Returns:
        A masked copy in eval mode, trained; :func:`fairlib.history` tells by epoch the mean ``upper_objective``, while
        the mask is learned, the mean ``penalty`` of the lower level, and ``moved``, the share of the kept weights that
        were not kept an epoch before.

    Raises:
        ValueError: If a setting is out of range or unknown, ``val`` has other groups or targets than ``data``, fewer
            than two groups have members or one has them in one level only while the penalty has a weight, filters
            cannot reach the sparsity, the model is already sparser, or ``train`` has what the method decides: a
            constraint, masks, data of another level, or where to start and stop.
        DivergenceError: If the training diverges or the gradient in the scores becomes infinite or NaN.

    Source:
        Dai et al., Integrating fairness and model pruning through bi-level optimization ([B]), Sections 4.2 and 4.3,
        corrected; Zhang et al., Advancing model pruning via bi-level optimization (NeurIPS 2022). Steps of both levels
        from one point: Dagréou et al., A framework for bilevel optimization that enables stochastic and global variance
        reduction algorithms (NeurIPS 2022). What [B] leaves open, which is all settings but the form of both levels, is
        our choice.
    """
    check_number("sparsity", sparsity, 0, 1)
    check_number("held_out", held_out, 0, 1, low_open=True)
    in_upper, in_lower = lookup("level to constrain", constrain, CONSTRAIN)
    form_of = lookup("granularity", granularity, GRANULARITIES)
    penalty.refuse_without_gradient()
    settings = _training(train, seed)
    data, val = _levels(data, val, held_out, seed)
    if penalty.weight:
        _refuse_missing_groups(data, val)
    form = form_of(copy.deepcopy(model).to(environment.resolve(settings["device"])), data)
    scores = mask.start(form, seed)
    form.final(scores, sparsity)  # A sparsity that is out of reach is refused before anything is trained.
    masked, products = opened(form.model, mask.relaxed)
    levels = BiLevel(
        form=form,
        products=products,
        scores=scores,
        sparsity=sparsity,
        val=val,
        upper=penalty if in_upper and penalty.weight else None,
        lower=penalty if in_lower and penalty.weight else None,
        search=mask,
        rounds=mask.rounds(settings["epochs"]),
        batch_size=mask.val_batch_size or settings["batch_size"],
    )
    trained = fit(masked, data, constraint=levels, **settings)
    return closed(trained, products, form.kept)


def bip(
    model: nn.Module, *, sparsity: float, data: GroupedDataset, train: Mapping[str, Any], seed: int = 0, **settings: Any
) -> nn.Module:
    """Prune by bi-level optimization, without a fairness term: :func:`fairlib.pruning.bifp` with a weight of 0.

    The released code of BiP differs: its upper level takes the batches of the training set in reverse order; its
    implicit term has a learning rate, 1e-4, in the place of the inverse of gamma, and the square of one gradient in the
    place of a product of two, so that it is a thousandth of the direct one; and its masks have an optimizer of their
    own, without a unit.

    Args:
        model: The trained model; left as it is.
        sparsity, data, train, seed: As in :func:`fairlib.pruning.bifp`.
        **settings: The ``val``, ``held_out``, ``mask`` and ``granularity`` of :func:`fairlib.pruning.bifp`.

    Returns:
        A masked copy in eval mode, trained.

    Raises:
        ValueError: As :func:`fairlib.pruning.bifp`.
        DivergenceError: As :func:`fairlib.pruning.bifp`.

    Source:
        Zhang et al., Advancing model pruning via bi-level optimization (NeurIPS 2022).
    """
    term = AccuracyDifference(0.0)
    return bifp(model, sparsity=sparsity, data=data, train=train, seed=seed, penalty=term, **settings)


_PENALTY = {"fairness": "weight"} | {
    name: name for name in ("surrogate", "temperature", "penalty", "tau", "pairs", "as_published")
}
_MASK = {"mask_lr": "lr", "mask_momentum": "momentum"} | {
    name: name for name in ("init", "relaxed", "hypergradient", "gamma", "every", "val_batch_size", "search", "gradual")
}
_OWN = ("val", "held_out", "granularity", "constrain")
FLAT = (*_PENALTY, *_MASK, *_OWN)
"""Settings of :func:`bifp` as ``fairlib.prune(model, "bifp", fairness=2.0, mask_lr=0.1)`` and papermill take them.

``fairness`` is the weight of the penalty, ``mask_lr`` and ``mask_momentum`` are those of :class:`MaskSearch`; what else
penalty and mask have goes by its own name."""

BIP_FLAT = (*_MASK, *_OWN[:-1])
"""Settings of :func:`bip`, likewise."""


def from_flat(**settings: Any) -> dict[str, Any]:
    """The arguments of :func:`bifp` that flat settings stand for.

    >>> from_flat(fairness=2.0, mask_lr=0.1, val=None)["mask"].lr
    0.1

    Raises:
        TypeError: If a name is not in :data:`FLAT`; the message lists the known ones.
        ValueError: If a setting of the penalty or of the mask is out of range or unknown.
    """
    check_names("pruning method 'bifp'", settings, FLAT)
    check_number("fairness", settings.get("fairness", 1.0), 0)
    return _gathered(settings) | {"penalty": AccuracyDifference(**_renamed(settings, _PENALTY))}


def bip_from_flat(**settings: Any) -> dict[str, Any]:
    """The arguments of :func:`bip` that flat settings stand for.

    Raises:
        TypeError: If a name is not in :data:`BIP_FLAT`; the message lists the known ones.
        ValueError: If a setting of the mask is out of range or unknown.
    """
    check_names("pruning method 'bip'", settings, BIP_FLAT)
    return _gathered(settings)


def _gathered(settings: Mapping[str, Any]) -> dict[str, Any]:
    own = {name: settings[name] for name in _OWN if name in settings}
    return own | {"mask": MaskSearch(**_renamed(settings, _MASK))}


def _renamed(settings: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {own: settings[name] for name, own in names.items() if name in settings}


def epochs_within(budget: int, *, held_out: float = 0.25, search: float = 0.75) -> tuple[int, int]:
    r"""How many epochs of :func:`bifp`, and of finetuning after it, take no more gradients than plain epochs do.

    An epoch in which the mask is learned takes two gradients of each of the :math:`1 - h` of the data that are not held
    out, with steps of both levels in turn, batches of one size and no product with a Hessian; one after that, one. So e
    epochs cost :math:`(1 - h) (e + \lceil s e \rceil)` epochs of all data.

    Args:
        budget: Epochs of plain training on all data, at least 2. One is left for finetuning.
        held_out: h, the share of the upper level.
        search: s, the share of the epochs in which the mask is learned.

    Returns:
        The most epochs of :func:`bifp` that leave one for finetuning, at least 1; and all that are left, rounded down.

    Raises:
        ValueError: If a number is out of range, or the budget is too small for one epoch of both.
    """
    check_number("budget", budget, 2, whole=True)
    check_number("held_out", held_out, 0, 1, low_open=True)
    mask = MaskSearch(search=search)

    def cost(epochs: int) -> float:
        return (1 - held_out) * (epochs + mask.rounds(epochs))

    if cost(1) > budget - 1 + 1e-9:
        raise ValueError(f"a budget of {budget} epochs is less than {cost(1) + 1:g}, the least that both levels take")
    own = next(epochs for epochs in itertools.count(1) if cost(epochs + 1) > budget - 1 + 1e-9)
    return own, math.floor(budget - cost(own) + 1e-9)


def _training(train: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Arguments of ``fit`` for the lower level.

    Raises:
        ValueError: If one is given that the method decides itself, or there is no epoch.
    """
    own = [name for name in ("constraint", "sparsify", "stop", "start", "keep") if name in train]
    if own:
        raise ValueError(
            f"train has {own[0]}=, and bi-level pruning constrains, masks, begins and stops by a rule of its own"
        )
    if "val" in train:
        raise ValueError("train has val=; the data of the upper level are val= of the method itself")
    settings = TRAIN | {"seed": seed} | dict(train)
    check_number("train['epochs']", settings["epochs"], 1, whole=True)
    return settings


def _levels(
    data: GroupedDataset, val: GroupedDataset | None, held_out: float, seed: int
) -> tuple[GroupedDataset, GroupedDataset]:
    """The data of the lower level and of the upper one, which has its share of every cell of target and group."""
    if val is not None:
        if (val.group_names, val.target_names) != (data.group_names, data.target_names):
            raise ValueError(
                f"val must have the groups and targets of data, {data.group_names} and {data.target_names}, got "
                f"{val.group_names} and {val.target_names}"
            )
        return data, val
    cells = (data.targets * data.num_groups + data.groups).cpu().numpy()
    parts = stratified_parts(cells, (1 - held_out, held_out), np.random.default_rng([seed, 0]))
    sizes = np.bincount(parts, minlength=2)
    if not sizes.all():
        raise ValueError(f"held_out = {held_out} splits {len(data)} samples into {sizes[0]} and {sizes[1]}")
    lower, upper = (data.subset(torch.from_numpy(np.flatnonzero(parts == part))) for part in (0, 1))
    return lower, upper


def _refuse_missing_groups(data: GroupedDataset, val: GroupedDataset) -> None:
    for role, part in (("data", data), ("the held-out data", val)):
        present = [name for name, size in part.group_sizes.items() if size]
        if len(present) < 2:
            raise ValueError(
                f"a difference of accuracies needs at least two groups with members; {role} have only: "
                f"{', '.join(present) or 'none'}"
            )
    for name, here, there in zip(data.group_names, data.group_sizes, val.group_sizes, strict=True):
        if bool(here) != bool(there):
            raise ValueError(
                f"group {name!r} has {here} samples in the data of the weights and {there} in those of the mask, and a "
                "difference of accuracies needs it in both"
            )
