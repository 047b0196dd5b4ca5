"""Bi-level pruning, plain (BiP) and fair (BiFP): mask and weights are learned together, each for
its own objective."""

import copy
import itertools
import math
from typing import Any

from torch import nn

from fairlib import environment
from fairlib._validation import check_names, check_number, lookup
from fairlib.data import GroupedDataset
from fairlib.pruning.bilevel import BiLevel, MaskSearch, closed, opened
from fairlib.pruning.granularity import GRANULARITIES
from fairlib.training import fit
from fairlib.training.compressors import Settings
from fairlib.training.group_losses import AccuracyDifference

CONSTRAIN = {
    "both": (True, True),
    "masks": (True, False),
    "weights": (False, True),
    "neither": (False, False),
}
"""Whether the fairness term is part of the upper level (masks), and whether of the lower one
(weights)."""

TRAIN = {"epochs": 10, "batch_size": 64, "device": "auto"}
"""Defaults of those arguments of :func:`fairlib.fit` on which the steps of the mask depend."""


def bifp(
    model: nn.Module,
    *,
    sparsity: float,
    data: GroupedDataset,
    train: Settings,
    val: GroupedDataset | None = None,
    held_out: float = 0.25,
    penalty: AccuracyDifference = AccuracyDifference(1.0),
    mask: MaskSearch = MaskSearch(),
    constrain: str = "both",
    granularity: str = "weight",
    seed: int = 0,
) -> nn.Module:
    r"""Prune by bi-level optimization, with a penalty on the difference of the groups' accuracies
    in both levels.

    With weights :math:`w = m \odot \theta` and the objective :math:`U(w) = J(w) + \nu \,
    \varphi(F(w))`, cross-entropy and penalty
    (:class:`fairlib.training.group_losses.AccuracyDifference`), it solves

    .. math:: \min_{m, \, \|m\|_0 \le k} U(m \odot \theta^*(m); D_2) , \qquad \theta^*(m) =
        \operatorname{argmin}_\theta U(m \odot \theta; D_1) + \tfrac{\gamma}{2} \|\theta\|^2 .

    The lower level is a training by :func:`fairlib.fit` on :math:`D_1`. Before each of its steps
    the mask takes a step on a batch of :math:`D_2`, along the gradient of the upper level
    (:mod:`fairlib.pruning.hypergradient`); both steps start from the same mask and weights. The
    mask keeps the k weights of highest score; scores start as the magnitudes of the weights (or the
    norms of filters) divided by their mean. The gradient with respect to the mask is used as that
    with respect to the scores (straight-through), as in BiP. A weight that is not kept has no
    gradient; apart from momentum and decay it does not change, and it may return. A *relaxed* mask
    is the projection of the scores onto :math:`m \in [0, 1]^p`, :math:`\sum_j m_j \le k`; at the
    end of the search the weights are multiplied by it, and the k highest scores are kept. In the
    epochs after the search the mask is fixed and training goes on.

    In the hypergradient only the prunable weights follow the mask; biases and normalization are
    constants. Both levels run in training mode, and the upper one does not update the statistics of
    batch normalization. The upper level uses the cross-entropy, without augmentation and in the
    dtype of the weights, whatever ``objective``, ``augment`` and ``precision`` of ``train`` are.
    :math:`\gamma` is not the weight decay of ``train``, which is so small that :math:`g_1 / \gamma`
    would dominate everywhere but at a minimum.

    Args: model: The trained model; not changed. sparsity: Share of zeros among the prunable
        weights, in [0, 1); of ``granularity="filter"`` the smallest share. data: The training set.
        train: Arguments of :func:`fairlib.fit` for the lower level; at least one epoch, by default
        10. val: Data :math:`D_2` of the upper level. By default a random part of ``data`` is held
        out, the same share of
            every crossing of target and group. On training data a difference of accuracies closes
            by overfitting and says nothing. The held-out part is new to the lower level, but not to
            a dense model trained on all ``data``.
        held_out: Share of ``data`` that is held out if ``val`` is not given, in (0, 1).
        penalty: Fairness term :math:`\nu \, \varphi(F)`; with a weight :math:`\nu` of 0 the method
            is BiP.
        mask: Settings of the search for the mask.
        constrain: Levels that include the fairness term: ``"both"``, ``"masks"`` (the paper's "w/o
            w"), ``"weights"`` ("w/o m") or ``"neither"``.
        granularity: ``"weight"``: single weights, ranked over all layers together. ``"filter"``:
            channels, at one rate in all layers (:func:`fairlib.network.channels.lowest`); the
            search masks the weights that read a channel, and in the end those that make it are
            pruned as well.
        seed: Seed of the split and of the training.

    Returns: A trained masked copy in eval mode. :func:`fairlib.history` has, by epoch, the mean
        ``upper_objective`` (during the search), the mean ``penalty`` of the lower level, and
        ``moved``, the share of the kept weights that were not kept one epoch before.

    Raises: ValueError: If a setting is out of range or unknown; ``val`` has other groups or targets
        than ``data``; the
            penalty has a weight, and fewer than two groups have members or a group has members in
            one level only; the sparsity cannot be reached by filters (an earlier mask can be the
            reason); the model is already sparser; or ``train`` holds something that the method
            decides, such as a constraint.
        DivergenceError: If the training diverges or the gradient of the scores becomes infinite or
            NaN.

    Source: Dai et al., Integrating fairness and model pruning through bi-level optimization ([B]),
        Sections 4.2 and 4.3, corrected; Zhang et al., Advancing model pruning via bi-level
        optimization (NeurIPS 2022). Steps of both levels from one point: Dagréou et al., A
        framework for bilevel optimization that enables stochastic and global variance reduction
        algorithms (NeurIPS 2022). [B] gives no settings, only the form of both levels; the settings
        are our choice.
    """
    check_number("sparsity", sparsity, 0, 1)
    check_number("held_out", held_out, 0, 1, low_open=True)
    in_upper, in_lower = lookup("level to constrain", constrain, CONSTRAIN)
    form_of = lookup("granularity", granularity, GRANULARITIES)
    penalty.refuse_without_gradient()
    settings = _training(train, seed)
    if val is None:
        data, val = data.hold_out(held_out, seed)
    _check_levels(data, val, penalty)
    form = form_of(copy.deepcopy(model).to(environment.resolve_device(settings["device"])), data)
    scores = form.start()
    form.final(
        scores, sparsity
    )  # A sparsity that is out of reach is refused before anything is trained.
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
        batch_size=settings["batch_size"],
    )
    trained = fit(masked, data, constraint=levels, **settings)
    return closed(trained, products, form.kept)


def bip(
    model: nn.Module,
    *,
    sparsity: float,
    data: GroupedDataset,
    train: Settings,
    val: GroupedDataset | None = None,
    seed: int = 0,
    **settings: Any,
) -> nn.Module:
    """Prune by bi-level optimization without a fairness term: :func:`fairlib.pruning.bifp` with a
    penalty of weight 0.

    The released code of BiP differs: its upper level uses the batches of the training set in
    reverse order; its implicit term has a learning rate, 1e-4, instead of the inverse of gamma, and
    the square of one gradient instead of a product of two, which makes it a thousandth of the
    direct term; and an optimizer of their own, without normalization of the gradient, updates the
    masks.

    Args: model: The trained model; not changed. sparsity: Share of zeros among the prunable
        weights, in [0, 1). data: The training set. train: Arguments of :func:`fairlib.fit` for the
        lower level. val: Data of the upper level, apart from ``data``; by default a part of
        ``data`` (:func:`fairlib.pruning.bifp`). seed: Seed of the split and of the training.
        **settings: Arguments ``held_out``, ``mask`` and ``granularity`` of
        :func:`fairlib.pruning.bifp`.

    Returns:
        A trained masked copy in eval mode.

    Raises: ValueError: If a setting is out of range or unknown, or the sparsity cannot be reached.
        DivergenceError: If the training diverges or the gradient of the scores becomes infinite or
        NaN.

    Source:
        Zhang et al., Advancing model pruning via bi-level optimization (NeurIPS 2022).
    """
    plain = AccuracyDifference(0.0)
    return bifp(
        model,
        sparsity=sparsity,
        data=data,
        train=train,
        val=val,
        seed=seed,
        penalty=plain,
        **settings,
    )


_PENALTY = {"fairness": "weight"} | {
    name: name for name in ("surrogate", "temperature", "penalty", "tau", "pairs", "as_published")
}
_MASK = {"mask_lr": "lr", "mask_momentum": "momentum"} | {
    name: name for name in ("relaxed", "gamma", "search")
}
_OWN = ("val", "held_out", "granularity", "constrain")
FLAT = (*_PENALTY, *_MASK, *_OWN)
"""Flat settings of :func:`bifp`, for ``fairlib.prune(model, "bifp", fairness=2.0, mask_lr=0.1)``
and papermill.

``fairness`` is the weight of the penalty; ``mask_lr`` and ``mask_momentum`` are ``lr`` and
``momentum`` of :class:`MaskSearch`; the other settings of the penalty and of the mask have their
own names."""

BIP_FLAT = (*_MASK, *_OWN[:-1])
"""Flat settings of :func:`bip`, with the names of :data:`FLAT`."""


def from_flat(**settings: Any) -> dict[str, Any]:
    """Turn flat settings into arguments of :func:`bifp`.

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
    """Turn flat settings into arguments of :func:`bip`.

    Raises:
        TypeError: If a name is not in :data:`BIP_FLAT`; the message lists the known ones.
        ValueError: If a setting of the mask is out of range or unknown.
    """
    check_names("pruning method 'bip'", settings, BIP_FLAT)
    return _gathered(settings)


def _gathered(settings: Settings) -> dict[str, Any]:
    own = {name: settings[name] for name in _OWN if name in settings}
    return own | {"mask": MaskSearch(**_renamed(settings, _MASK))}


def _renamed(settings: Settings, names: dict[str, str]) -> dict[str, Any]:
    return {own: settings[name] for name, own in names.items() if name in settings}


def epochs_within(budget: int, *, held_out: float = 0.25, search: float = 0.75) -> tuple[int, int]:
    r"""Split a budget of epochs between :func:`bifp` and finetuning, by the number of gradients
    that they compute.

    A share :math:`1 - h` of the data is not held out. For each of these samples an epoch of the
    search computes two gradients (with steps of both levels in turn, batches of equal size and no
    products with a Hessian), and a later epoch one. So e epochs cost as much as :math:`(1 - h) (e +
    \lceil s e \rceil)` epochs on all data.

    Args: budget: Epochs of plain training on all data, at least 2; at least one of them is left for
        finetuning. held_out: Share h of the data that the upper level uses; 0 if it has data of its
        own (``val``). search: Share s of the epochs in which the mask is learned.

    Returns: The largest possible number of epochs of :func:`bifp`, and the number of whole epochs
        left for finetuning; both are at least 1.

    Raises:
        ValueError: If a number is out of range, or the budget is too small for one epoch of both.
    """
    check_number("budget", budget, 2, whole=True)
    check_number("held_out", held_out, 0, 1)
    mask = MaskSearch(search=search)

    def cost(epochs: int) -> float:
        return (1 - held_out) * (epochs + mask.rounds(epochs))

    if cost(1) > budget - 1 + 1e-9:
        raise ValueError(f"budget must be at least {cost(1) + 1:g} epochs, got {budget}")
    own = next(epochs for epochs in itertools.count(1) if cost(epochs + 1) > budget - 1 + 1e-9)
    return own, math.floor(budget - cost(own) + 1e-9)


def _training(train: Settings, seed: int) -> dict[str, Any]:
    """Complete the arguments of ``fit`` for the lower level, and refuse those that the method sets
    itself."""
    own = [
        name for name in ("constraint", "sparsify", "stop", "start", "keep", "val") if name in train
    ]
    if own:
        raise ValueError(
            f"train has {own[0]}=, which bi-level pruning sets itself (val= is an argument beside train=)"
        )
    settings = TRAIN | {"seed": seed} | dict(train)
    check_number("train['epochs']", settings["epochs"], 1, whole=True)
    return settings


def _check_levels(data: GroupedDataset, val: GroupedDataset, penalty: AccuracyDifference) -> None:
    """Refuse data whose groups and targets differ between the levels, or on which the penalty
    cannot be computed."""
    wanted, found = ((part.group_names, part.target_names) for part in (data, val))
    if found != wanted:
        raise ValueError(f"val must have the groups and targets of data, {wanted}, got {found}")
    if not penalty.weight:
        return
    for role, part in (("data", data), ("the held-out data", val)):
        present = [name for name, size in part.group_sizes.items() if size]
        if len(present) < 2:
            raise ValueError(
                f"bifp needs at least two groups with members; {role} have only: {', '.join(present)}"
            )
    for name, here, there in zip(data.group_names, data.group_sizes, val.group_sizes, strict=True):
        if bool(here) != bool(there):
            raise ValueError(
                f"group {name!r} must be in both data and held-out data, has {here} and {there} samples"
            )
