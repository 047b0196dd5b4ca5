"""Bi-level pruning, plain (BiP) and fair (BiFP): mask and weights are learned together, each for its own objective."""

from __future__ import annotations

import copy
import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parametrize

from fairlib import environment
from fairlib._validation import check_number, lookup
from fairlib.data import GroupedDataset
from fairlib.data.splitting import stratified_parts
from fairlib.diagnostics.objective import aliases, evaluate
from fairlib.network import masks
from fairlib.network.evaluation import placement
from fairlib.pruning.granularity import GRANULARITIES, Form
from fairlib.pruning.hypergradient import direct, hessian_free, implicit
from fairlib.pruning.selection import ramped
from fairlib.training import Batch, DivergenceError, Objective, fit, taken_gradient
from fairlib.training.group_losses import AccuracyDifference

CONSTRAIN: dict[str, tuple[bool, bool]] = {
    "both": (True, True),
    "masks": (True, False),
    "weights": (False, True),
    "neither": (False, False),
}
"""Which levels the fairness term is part of: (upper, masks; lower, weights)."""

_FIT = {name: parameter.default for name, parameter in inspect.signature(fit).parameters.items()}

HYPERGRADIENTS = ("hessian-free", "conjugate-gradient", "direct")
INITS = ("magnitude", "random")


def bifp(
    model: nn.Module,
    *,
    sparsity: float,
    data: GroupedDataset,
    train: Mapping[str, object],
    val: GroupedDataset | None = None,
    held_out: float = 0.25,
    fairness: float = 1.0,
    surrogate: str | Callable[[Tensor], Tensor] = "sigmoid",
    temperature: float = 1.0,
    penalty: str = "absolute",
    tau: float = 0.0,
    pairs: str = "max",
    as_published: bool = False,
    constrain: str = "both",
    granularity: str = "weight",
    init: str = "magnitude",
    relaxed: bool = False,
    hypergradient: str = "hessian-free",
    gamma: float = 1.0,
    mask_lr: float = 0.01,
    mask_momentum: float = 0.9,
    every: int = 1,
    val_batch_size: int = 0,
    search: float = 0.75,
    gradual: bool = False,
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
        train: Arguments of :func:`fairlib.fit` for the lower level; at least one epoch.
        val: :math:`D_2`. Without it a part of ``data`` is split off, drawn by ``seed`` from every cell of target and
            group. On data that are trained on, a difference of accuracies closes by overfitting and says nothing; such
            a part is new to the lower level, though not to a dense model that was trained on all of ``data``.
        held_out: The share of that part, in (0, 1).
        fairness: :math:`\nu`; 0 is BiP.
        surrogate, temperature, penalty, tau, pairs, as_published: Of
            :class:`fairlib.training.group_losses.AccuracyDifference`.
        constrain: Which levels have the fairness term: ``"both"``, ``"masks"`` (the paper's "w/o w"), ``"weights"``
            ("w/o m") or ``"neither"``.
        granularity: ``"weight"``, ranked among all; or ``"filter"``, channels, at one rate in all layers
            (:func:`fairlib.network.channels.lowest`). In the search the mask of a channel multiplies the weights that
            read it, and in the end those that make it go as well. What an earlier mask has left may make a sparsity
            impossible, which shows when the channels are chosen.
        init: The scores at the start, ``"magnitude"`` as above, or ``"random"``: uniform with a mean of 1, drawn by
            ``seed``.
        relaxed: Relaxed masks instead of scores.
        hypergradient: ``"hessian-free"``, ``"conjugate-gradient"``, or ``"direct"``: without the weights' answer.
        gamma: :math:`\gamma`, positive.
        mask_lr: Step of the scores or of the relaxed mask, by gradient descent with momentum on a gradient that is
            divided by its root mean square: in units of a mean score.
        mask_momentum: In [0, 1).
        every: Steps of the weights to one of the mask.
        val_batch_size: Samples of a step of the mask; 0 takes as many as a step of the weights has.
        search: The share of the epochs, in (0, 1], rounded up, in which the mask is learned.
        gradual: Let the sparsity grow during the search from that of the model, as the schedule
            :func:`fairlib.pruning.gradual` does.
        seed: Of the split and of the training.

    Returns:
        A masked copy in eval mode, trained; :func:`fairlib.history` tells by epoch the mean ``upper_objective``, while
        the mask is learned, the mean ``penalty`` of the lower level, and ``moved``, the share of the kept weights that
        were not kept an epoch before.

    Raises:
        ValueError: If a setting is out of range or unknown, ``val`` has other groups or targets than ``data``, fewer
            than two groups have members or one has them in one level only while ``fairness`` is positive, filters
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
    upper, lower = lookup("level to constrain", constrain, CONSTRAIN)
    shape = lookup("granularity", granularity, GRANULARITIES)
    lookup("hypergradient", hypergradient, dict.fromkeys(HYPERGRADIENTS))
    lookup("init", init, dict.fromkeys(INITS))
    check_number("held_out", held_out, 0, 1, beyond=True)
    for name, number in (("gamma", gamma), ("mask_lr", mask_lr)):
        check_number(name, number, 0, beyond=True)
    check_number("mask_momentum", mask_momentum, 0, 1)
    check_number("every", every, 1, whole=True)
    check_number("val_batch_size", val_batch_size, 0, whole=True)
    check_number("search", search, 0, 1, beyond=True, upto=True)
    check_number("fairness", fairness, 0)
    term = AccuracyDifference(
        fairness,
        surrogate=surrogate,
        temperature=temperature,
        penalty=penalty,
        tau=tau,
        pairs=pairs,
        as_published=as_published,
    )
    term.refuse_without_gradient()
    settings = _of_fit(train)
    check_number("train['epochs']", settings["epochs"], 1, whole=True)
    data, val = _levels(data, val, held_out, seed)
    if fairness:
        _refuse_missing_groups(data, val)
    model = copy.deepcopy(model).to(environment.resolve(settings["device"]))
    form = shape(model, data)
    scores = form.start() if init == "magnitude" else _random(form.start(), seed)
    form.final(scores, sparsity)  # A sparsity that is out of reach is refused before anything is trained.
    opened, names = _opened(model, relaxed)
    problem = _BiLevel(
        form=form,
        scores=scores,
        names=names,
        sparsity=sparsity,
        val=val,
        upper=term if upper and fairness else None,
        lower=term if lower and fairness else None,
        relaxed=relaxed,
        hypergradient=hypergradient,
        gamma=gamma,
        mask_lr=mask_lr,
        mask_momentum=mask_momentum,
        every=every,
        val_batch_size=val_batch_size or settings["batch_size"],
        rounds=_search_epochs(settings["epochs"], search),
        gradual=gradual,
    )
    trained = fit(opened, data, constraint=problem, **{"seed": seed} | dict(train))
    return _closed(trained, names, form.kept)


def bip(model: nn.Module, **settings: object) -> nn.Module:
    """Prune by bi-level optimization, without a fairness term: :func:`fairlib.pruning.bifp` with ``fairness=0``.

    The released code of BiP differs: its upper level takes the batches of the training set in reverse order; its
    implicit term has a learning rate, 1e-4, in the place of the inverse of gamma, and the square of one gradient in the
    place of a product of two, so that it is a thousandth of the direct one; and its masks have an optimizer of their
    own, without a unit.

    Args:
        model: The trained model; left as it is.
        **settings: Of :func:`fairlib.pruning.bifp`, but for those of its fairness term.

    Returns:
        A masked copy in eval mode, trained.

    Raises:
        ValueError: As :func:`fairlib.pruning.bifp`.
        DivergenceError: If the training diverges or a score becomes NaN.

    Source:
        Zhang et al., Advancing model pruning via bi-level optimization (NeurIPS 2022).
    """
    return bifp(model, fairness=0.0, **settings)


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
    check_number("held_out", held_out, 0, 1, beyond=True)
    check_number("search", search, 0, 1, beyond=True, upto=True)

    def cost(epochs: int) -> float:
        return (1 - held_out) * (epochs + _search_epochs(epochs, search))

    if cost(1) > budget - 1 + 1e-9:
        raise ValueError(f"a budget of {budget} epochs is less than {cost(1) + 1:g}, the least that both levels take")
    own = next(epochs for epochs in itertools.count(1) if cost(epochs + 1) > budget - 1 + 1e-9)
    return own, math.floor(budget - cost(own) + 1e-9)


def _search_epochs(epochs: int, search: float) -> int:
    """In how many of the epochs the mask is learned."""
    return max(1, math.ceil(search * epochs - 1e-9))


_OF_FAIRNESS = ("fairness", "surrogate", "temperature", "penalty", "tau", "pairs", "as_published", "constrain")
bip.__signature__ = inspect.Signature(
    [parameter for name, parameter in inspect.signature(bifp).parameters.items() if name not in _OF_FAIRNESS]
)


class _Mask(nn.Module):
    """A weight as a product with its mask; what the mask sets to zero stays in the parameter."""

    mask: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones_like(weight))

    def forward(self, weight: Tensor) -> Tensor:
        return self.mask * weight


@dataclass(frozen=True)
class _Names:
    """Where a prunable weight is found: ``layer``, its names before and while it is a product."""

    layer: str
    weight: str
    original: str
    mask: str


def _opened(model: nn.Module, relaxed: bool) -> tuple[nn.Module, list[_Names]]:
    """A copy in which every prunable weight is a product of a parameter and a mask."""
    opened, names = copy.deepcopy(model), []
    for name, weight in masks.prunable(opened).items():
        if relaxed and not weight.requires_grad:
            raise ValueError(f"{name} is frozen, and a relaxed mask would change it; take relaxed=False")
        layer = name.rpartition(".")[0]
        inside = f"{name.removesuffix('weight')}parametrizations.weight."
        parametrize.register_parametrization(opened.get_submodule(layer), "weight", _Mask(weight.detach()))
        names.append(_Names(layer, name, f"{inside}original", f"{inside}0.mask"))
    return opened, names


def _closed(trained: nn.Module, names: Sequence[_Names], keep: Mapping[str, Tensor]) -> nn.Module:
    """The trained model, in place, with parameters and masks as everywhere else."""
    for name in names:
        owner = trained.get_submodule(name.layer)
        order = ["weight", *owner._parameters]
        parametrize.remove_parametrizations(owner, "weight", leave_parametrized=False)
        owner._parameters = {own: owner._parameters[own] for own in order}  # As in the dense model.
    masks.impose(trained, keep)
    return trained


def _of_fit(train: Mapping[str, object]) -> dict[str, object]:
    """The arguments of ``fit``, those given and else its own.

    Raises:
        ValueError: If one is given that the method decides itself.
    """
    own = [name for name in ("constraint", "sparsify", "stop", "start", "keep") if name in train]
    if own:
        raise ValueError(
            f"train has {own[0]}=, and bi-level pruning constrains, masks, begins and stops by a rule of its own"
        )
    if "val" in train:
        raise ValueError("train has val=; the data of the upper level are val= of the method itself")
    return _FIT | dict(train)


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
    return tuple(data.subset(torch.from_numpy(np.flatnonzero(parts == part))) for part in (0, 1))


def _random(scores: Sequence[Tensor], seed: int) -> list[Tensor]:
    """Uniform scores with a mean of 1; what a mask has emptied stays lowest."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [2 * torch.rand(score.shape, generator=generator).to(score) for score in scores]
    return [torch.where(score.isfinite(), new, score) for score, new in zip(scores, drawn, strict=True)]


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


@dataclass(frozen=True)
class _BiLevel:
    """The steps of the mask, as a constraint of :func:`fairlib.fit`."""

    form: Form = field(repr=False)
    scores: list[Tensor] = field(repr=False)
    names: list[_Names] = field(repr=False)
    sparsity: float
    val: GroupedDataset = field(repr=False)
    upper: AccuracyDifference | None
    lower: AccuracyDifference | None
    relaxed: bool
    hypergradient: str
    gamma: float
    mask_lr: float
    mask_momentum: float
    every: int
    val_batch_size: int
    rounds: int
    gradual: bool

    def start(self, model: nn.Module, data: GroupedDataset, objective: Objective) -> _BiLevelRun:
        return _BiLevelRun(self, model, data, objective)


class _BiLevelRun:
    def __init__(self, settings: _BiLevel, model: nn.Module, data: GroupedDataset, objective: Objective) -> None:
        self.settings, self.model, self.objective = settings, model, objective
        self.device, self.dtype = placement(model)
        self.samples, self.groups, self.val = len(data), data.num_groups, settings.val.to(self.device)
        self.theta = [model.get_parameter(name.original) for name in settings.names]
        self.masks = [model.get_submodule(name.mask.removesuffix(".mask")) for name in settings.names]
        self.aliases = aliases(model)
        self.scores = settings.scores
        self.velocity = [torch.zeros_like(score) for score in self.scores]
        self.begin = masks.sparsity(settings.form.model) if settings.gradual else settings.sparsity
        self.epochs, self.steps, self.passed, self.gradients = 0, 0, 0, 0
        self.seen: dict[str, list[Tensor]] = {"penalty": [], "upper_objective": []}
        self.batches = self._batches()
        self._impose()
        self.before = self._kept()

    def loss(self, batch: Batch) -> Tensor:
        value = batch.losses.mean()
        if self.settings.lower:
            penalty = self.settings.lower(batch.logits, batch.targets, batch.groups, self.groups)
            value = value + penalty
            self.seen["penalty"].append(penalty.detach())
        if self.epochs < self.settings.rounds and self.steps % self.settings.every == 0:
            value = self._step(batch, value)
        self.steps, self.passed = self.steps + 1, self.passed + len(batch.targets)
        return value

    def end_epoch(self) -> dict[str, float]:
        self.epochs, self.passed = self.epochs + 1, 0
        if self.epochs == self.settings.rounds:
            self._settle()
        kept, before = self._kept(), self.before
        moved = sum(int((now & ~then).sum()) for now, then in zip(kept, before, strict=True))
        report = {"gradients": self.gradients, "moved": moved / max(1, sum(int(now.sum()) for now in kept))}
        report |= {name: float(sum(values)) / len(values) for name, values in self.seen.items() if values}
        self.before, self.gradients, self.seen = kept, 0, {name: [] for name in self.seen}
        return report

    def _step(self, batch: Batch, value: Tensor) -> Tensor:
        """A step of the mask; the loss of the weights' step, whose gradient may have been taken on the way."""
        upper = self._upper_gradient()
        mask, theta = [module.mask for module in self.masks], [part.detach() for part in self.theta]
        if self.settings.hypergradient == "hessian-free":
            # The gradient in theta is the mask times that in the product, which is what the formula asks for.
            value, gradient = taken_gradient(value, self.model)
            lower = [gradient.get(id(part), torch.zeros_like(part)) for part in self.theta]
            found = hessian_free(theta, lower, upper, self.settings.gamma)
        elif self.settings.hypergradient == "conjugate-gradient":
            lower, product = self._lower_derivatives(batch)
            found, products = implicit(theta, mask, lower, upper, self.settings.gamma, product=product)
            self.gradients += len(batch.targets) * (1 + 2 * products)
        else:
            found = direct(theta, upper)
        self._move(found)
        return value

    def _move(self, found: Sequence[Tensor]) -> None:
        """From the gradient in the masks of the weights to new scores and masks."""
        entries = [entry.clone().requires_grad_() for entry in self.entries]
        with torch.enable_grad():
            expanded = self.settings.form.expand(entries)
        moving = [(mask, part) for mask, part in zip(expanded, found, strict=True) if mask.requires_grad]
        outputs, gradients = zip(*moving, strict=True)
        found = torch.autograd.grad(outputs, entries, grad_outputs=gradients, materialize_grads=True)
        size = math.sqrt(sum(part.numel() for part in found))
        scale = torch.stack([part.norm() for part in found]).norm() / size
        if not scale.isfinite():
            raise DivergenceError(
                f"the gradient in the scores of the mask is {float(scale)} after {self.steps} steps; lower "
                f"train['lr'], mask_lr ({self.settings.mask_lr}) or fairness"
            )
        scale = scale.clamp(min=torch.finfo(scale.dtype).tiny)
        for speed, part in zip(self.velocity, found, strict=True):
            speed.mul_(self.settings.mask_momentum).add_(part / scale)
        step = self.settings.mask_lr
        self.scores = [score - step * speed for score, speed in zip(self.scores, self.velocity, strict=True)]
        self._impose()

    @torch.no_grad()
    def _impose(self) -> None:
        """Masks that follow from the scores."""
        form = self.settings.form
        self._mask((form.project if self.settings.relaxed else form.choose)(self.scores, self._sparsity()))

    def _mask(self, entries: list[Tensor]) -> None:
        self.entries = entries
        # Not in place: the step of the weights that is under way has the old masks in its graph.
        for module, mask in zip(self.masks, self.settings.form.expand(entries), strict=True):
            module.mask = mask.to(module.mask.dtype).contiguous()

    @torch.no_grad()
    def _settle(self) -> None:
        """The end of the search: a relaxed mask becomes one of zeros and ones, its factors a part of the weights."""
        if self.settings.relaxed:
            self._impose()
            for theta, module in zip(self.theta, self.masks, strict=True):
                theta.mul_(module.mask)
        self._mask(self.settings.form.final(self.scores, self.settings.sparsity))

    def _sparsity(self) -> float:
        progress = (self.epochs + self.passed / self.samples) / self.settings.rounds
        return ramped(self.begin, self.settings.sparsity, progress)

    def _kept(self) -> list[Tensor]:
        return [module.mask > 0 for module in self.masks]

    def _batches(self) -> Iterator[Tensor]:
        """Batches of the held-out data, without end; what is left of a pass is left out."""
        size = min(len(self.val), self.settings.val_batch_size)
        while True:
            order = torch.randperm(len(self.val)).to(self.device)
            yield from order[: len(order) // size * size].split(size)

    def _call(self, weights: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """The model's logits at products of masks and weights; its buffers are left as they are."""
        state = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        for name, weight in zip(self.settings.names, weights, strict=True):
            state[name.original], state[name.mask] = weight, torch.ones_like(weight)
        return evaluate(self.model, state, inputs, self.aliases)

    def _products(self) -> list[Tensor]:
        pairs = zip(self.theta, self.masks, strict=True)
        return [(theta.detach() * module.mask).requires_grad_() for theta, module in pairs]

    def _upper_gradient(self) -> tuple[Tensor, ...]:
        """Of the upper objective on the next batch, in the products."""
        index = next(self.batches)
        targets = self.val.targets[index]
        with torch.enable_grad():
            products = self._products()
            logits = self._call(products, self.val.batch(index, dtype=self.dtype, device=self.device))
            value = cross_entropy(logits, targets)
            if self.settings.upper:
                value = value + self.settings.upper(logits, targets, self.val.groups[index], self.groups)
        self.seen["upper_objective"].append(value.detach())
        self.gradients += len(index)
        return torch.autograd.grad(value, products, materialize_grads=True)

    def _lower_derivatives(self, batch: Batch) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], tuple[Tensor, ...]]]:
        """Of the lower objective on a batch: its gradient in the products, and the product with its Hessian."""
        with torch.enable_grad():
            products = self._products()
            logits = self._call(products, batch.inputs)
            value = self.objective(batch.inputs, logits, batch.targets).mean()
            if self.settings.lower:
                value = value + self.settings.lower(logits, batch.targets, batch.groups, self.groups)
            gradient = torch.autograd.grad(value, products, create_graph=True, materialize_grads=True)
        parts = [part for part in gradient if part.requires_grad]

        def product(x: Sequence[Tensor]) -> tuple[Tensor, ...]:
            chosen = [part for part, whole in zip(x, gradient, strict=True) if whole.requires_grad]
            return torch.autograd.grad(parts, products, grad_outputs=chosen, retain_graph=True, materialize_grads=True)

        return [part.detach() for part in gradient], product
