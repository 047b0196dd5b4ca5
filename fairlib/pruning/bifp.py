"""Bi-level pruning, plain (BiP) and fair (BiFP): mask and weights are learned together, each for its own objective."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy
from torch.nn.utils import parametrize

from fairlib import channels, masks
from fairlib._validation import check_number, lookup
from fairlib.data import GroupedDataset
from fairlib.data.splitting import stratified_parts
from fairlib.diagnostics.evaluation import placement
from fairlib.groups import AccuracyDifference
from fairlib.pruning.hypergradient import direct, hessian_free, implicit
from fairlib.pruning.selection import keep_highest
from fairlib.training import Batch, DivergenceError, Objective, fit, taken_gradient

CONSTRAIN: dict[str, tuple[bool, bool]] = {
    "both": (True, True),
    "masks": (True, False),
    "weights": (False, True),
    "neither": (False, False),
}
"""Which levels the fairness term is part of: (upper, masks; lower, weights)."""

HYPERGRADIENTS = ("hessian-free", "conjugate-gradient", "direct")


def bifp(
    model: nn.Module,
    *,
    sparsity: float,
    data: GroupedDataset,
    train: Mapping[str, object],
    val: GroupedDataset | None = None,
    held_out: float = 0.25,
    fairness: float = 1.0,
    surrogate: str = "sigmoid",
    temperature: float = 1.0,
    penalty: str = "absolute",
    tau: float = 0.0,
    pairs: str = "max",
    constrain: str = "both",
    granularity: str = "weight",
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

    With :math:`U(w) = J(w) + \nu \, \varphi(F(w))` (:class:`fairlib.groups.AccuracyDifference`) of weights
    :math:`w = m \odot \theta`,

    .. math::
        \min_{m, \, \|m\|_0 \le k} U(m \odot \theta^*(m); D_2) , \qquad
        \theta^*(m) = \operatorname{argmin}_\theta U(m \odot \theta; D_1) + \tfrac{\gamma}{2} \|\theta\|^2 .

    The lower level is a training by :func:`fairlib.fit` on :math:`D_1`. Before each of its steps, or before every so
    many, the mask takes one on a batch of :math:`D_2`, along the gradient of the upper level
    (:mod:`fairlib.pruning.hypergradient`), and both start from the same mask and weights. Scores :math:`s`, at first
    the magnitudes of the weights over their mean, decide the mask: it keeps the k highest, and the gradient in the mask
    is taken for that in the scores (straight-through), as BiP does. A weight that is not kept stays what it was, and
    may return. Or the mask itself is *relaxed*: it moves within :math:`m \in [0, 1]^p`, :math:`\sum_j m_j \le k`, and
    when the search is over the k largest entries become 1, their factors part of the weights. In the epochs after the
    search the mask is fixed and the weights are trained on.

    Gradients of both levels are taken in training mode; those of the upper one leave the statistics of batch
    normalization alone. Its :math:`\gamma` is apart from the decay of ``train``: were it that small, the answer of the
    weights, :math:`g_1 / \gamma`, would drown everything away from a minimum.

    Args:
        model: The trained model; left as it is.
        sparsity: Share of zeros among the prunable weights, in [0, 1); by filters, that is at least reached.
        data: The training set.
        train: Arguments of :func:`fairlib.fit` for the lower level; at least one epoch.
        val: :math:`D_2`. Without it a part of ``data`` is split off, drawn by ``seed`` from every cell of target and
            group. On data that are trained on, a difference of accuracies closes by overfitting and says nothing.
        held_out: The share of that part, in (0, 1).
        fairness: :math:`\nu`; 0 is BiP.
        surrogate, temperature, penalty, tau, pairs: Of :class:`fairlib.groups.AccuracyDifference`.
        constrain: Which levels have the fairness term: ``"both"``, ``"masks"`` (the paper's "w/o w"), ``"weights"``
            ("w/o m") or ``"neither"``.
        granularity: ``"weight"``, ranked among all; or ``"filter"``, channels with the weights that read them, at one
            rate in all layers (:func:`fairlib.channels.lowest`).
        relaxed: Relaxed masks instead of scores.
        hypergradient: ``"hessian-free"``, ``"conjugate-gradient"``, or ``"direct"``: without the weights' answer.
        gamma: :math:`\gamma`, positive.
        mask_lr: Step of the scores or of the relaxed mask, by gradient descent with momentum on a gradient that is
            divided by its root mean square: in units of a mean score.
        mask_momentum: In [0, 1).
        every: Steps of the weights to one of the mask.
        val_batch_size: Samples of a step of the mask; 0 takes as many as a step of the weights has.
        search: The share of the epochs, in (0, 1], in which the mask is learned.
        gradual: Let the sparsity grow during the search, after a share t of it to :math:`1 - (1 - t)^3` of its end.
        seed: Of the split and of the training.

    Returns:
        A masked copy in eval mode, trained; :func:`fairlib.history` tells by epoch the mean ``upper_objective`` and
        ``penalty``, and ``moved``, the share of the kept weights that were not kept an epoch before.

    Raises:
        ValueError: If a setting is out of range or unknown, fewer than two groups have members while ``fairness`` is
            positive, filters cannot reach the sparsity, or the model is already sparser.
        DivergenceError: If the training diverges or a score becomes NaN.

    Source:
        Dai et al., Integrating fairness and model pruning through bi-level optimization ([B]), Sections 4.2 and 4.3,
        corrected; Zhang et al., Advancing model pruning via bi-level optimization (NeurIPS 2022). Steps of both levels
        from one point: Dagréou et al., A framework for bilevel optimization that enables stochastic and global variance
        reduction algorithms (NeurIPS 2022). What [B] leaves open, which is all settings but the form of both levels, is
        our choice.
    """
    check_number("sparsity", sparsity, 0, 1)
    check_number("held_out", held_out, 0, 1, beyond=True)
    upper, lower = lookup("level to constrain", constrain, CONSTRAIN)
    shape = lookup("granularity", granularity, GRANULARITIES)
    lookup("hypergradient", hypergradient, dict.fromkeys(HYPERGRADIENTS))
    for name, number in (("gamma", gamma), ("mask_lr", mask_lr)):
        check_number(name, number, 0, beyond=True)
    check_number("mask_momentum", mask_momentum, 0, 1)
    check_number("every", every, 1, whole=True)
    check_number("val_batch_size", val_batch_size, 0, whole=True)
    check_number("search", search, 0, 1, beyond=True, upto=True)
    if train.get("constraint") is not None:
        raise ValueError("bi-level pruning has a fairness term of its own (fairness=), so train has no constraint")
    check_number("train['epochs']", train.get("epochs", 10), 1, whole=True)
    term = AccuracyDifference(
        fairness, surrogate=surrogate, temperature=temperature, penalty=penalty, tau=tau, pairs=pairs
    )
    if val is None:
        data, val = _split_off(data, held_out, seed)
    if fairness:
        _refuse_single_group(data, val)
    dense = copy.deepcopy(model)
    form = shape(dense, data)
    form.choose(form.start(), sparsity)  # A sparsity that is out of reach is refused before anything is trained.
    problem = _BiLevel(
        form=form,
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
        val_batch_size=val_batch_size or train.get("batch_size", 64),
        rounds=max(1, math.ceil(search * train.get("epochs", 10))),
        gradual=gradual,
    )
    trained = fit(_opened(model), data, constraint=problem, **{"seed": seed} | dict(train))
    keep = {name: layer.mask > 0 for name, layer in _masked(trained).items()}
    for name in keep:
        owner = trained.get_submodule(name.rpartition(".")[0])
        parametrize.remove_parametrizations(owner, "weight", leave_parametrized=False)
    masks.impose(trained, keep)
    return trained


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


_OF_FAIRNESS = ("fairness", "surrogate", "temperature", "penalty", "tau", "pairs", "constrain")
bip.__signature__ = inspect.Signature(
    [parameter for name, parameter in inspect.signature(bifp).parameters.items() if name not in _OF_FAIRNESS]
)


class Form(Protocol):
    """What is kept or not: from scores to masks of the weights, and from gradients in these to gradients in scores."""

    def start(self) -> list[Tensor]:
        """The scores of the dense model, with a mean of 1."""
        ...

    def choose(self, scores: Sequence[Tensor], sparsity: float) -> list[Tensor]:
        """1 for the highest scores and 0 for the others, in the shapes of the scores."""
        ...

    def project(self, scores: Sequence[Tensor], sparsity: float) -> list[Tensor]:
        """The nearest relaxed masks: entries in [0, 1] whose sum is at most what ``choose`` keeps."""
        ...

    def expand(self, scores: Sequence[Tensor]) -> list[Tensor]:
        """Masks of the weights from entries in [0, 1] in the shapes of the scores; differentiable."""
        ...


class Weights:
    """Every weight has a score, and all are ranked together."""

    def __init__(self, model: nn.Module, data: GroupedDataset) -> None:
        self.model, self.weights = model, masks.prunable(model)

    def start(self) -> list[Tensor]:
        sizes = [weight.detach().abs() for weight in self.weights.values()]
        mean = torch.cat([size.flatten() for size in sizes]).mean()
        return [size / mean for size in sizes]

    def choose(self, scores: Sequence[Tensor], sparsity: float) -> list[Tensor]:
        keep = keep_highest(self.model, dict(zip(self.weights, scores, strict=True)), sparsity)
        return [keep[name].to(score.dtype) for name, score in zip(self.weights, scores, strict=True)]

    def project(self, scores: Sequence[Tensor], sparsity: float) -> list[Tensor]:
        kept = sum(part.sum() for part in self.choose(scores, sparsity))
        flat = capped_simplex(torch.cat([score.flatten() for score in scores]), float(kept))
        parts = flat.split([score.numel() for score in scores])
        return [part.reshape(score.shape) for part, score in zip(parts, scores, strict=True)]

    def expand(self, scores: Sequence[Tensor]) -> list[Tensor]:
        return list(scores)


class Filters:
    """Every channel has a score, and the same share of each layer's is kept."""

    def __init__(self, model: nn.Module, data: GroupedDataset) -> None:
        self.model, self.weights = model, masks.prunable(model)
        self.sets = channels.coupled_channels(model, channels.example_inputs(model, data))
        self.sparsity, self.gone = -1.0, []

    def start(self) -> list[Tensor]:
        norms = channels.channel_scores(self.model, self.sets, lambda filters: filters.norm(dim=1))
        return [norm / norm[norm.isfinite()].mean() for norm in norms]

    def choose(self, scores: Sequence[Tensor], sparsity: float) -> list[Tensor]:
        if sparsity != self.sparsity:  # How many channels go depends on nothing else.
            removed = channels.lowest(self.model, self.sets, scores, sparsity)
            self.sparsity, self.gone = sparsity, [int(part.sum()) for part in removed]
        kept = []
        for score, gone in zip(scores, self.gone, strict=True):
            entries = torch.ones_like(score)
            entries[score.argsort(stable=True)[:gone]] = 0
            kept.append(entries)
        return kept

    def project(self, scores: Sequence[Tensor], sparsity: float) -> list[Tensor]:
        kept = self.choose(scores, sparsity)
        return [capped_simplex(score, float(part.sum())) for score, part in zip(scores, kept, strict=True)]

    def expand(self, scores: Sequence[Tensor]) -> list[Tensor]:
        ends = [{name: weight.new_ones(weight.shape[axis]) for name, weight in self.weights.items()} for axis in (0, 1)]
        for coupled, score in zip(self.sets, scores, strict=True):
            for factors, end in zip(ends, (coupled.producers, coupled.readers), strict=True):
                for name, (of, positions) in end.items():
                    factors[name] = factors[name].index_put((positions,), score[of])
        rows, columns = ends
        crosses = [rows[name][:, None] * columns[name] for name in self.weights]
        weights = self.weights.values()
        return [
            cross.reshape(*cross.shape, *[1] * (weight.ndim - 2)).expand(weight.shape)
            for cross, weight in zip(crosses, weights, strict=True)
        ]


GRANULARITIES: dict[str, type[Form]] = {"weight": Weights, "filter": Filters}


def capped_simplex(point: Tensor, total: float) -> Tensor:
    r"""The point of :math:`\{m \in [0, 1]^n : \sum_j m_j \le t\}` that is nearest to a point.

    It is :math:`\operatorname{clip}(p_j - \mu, 0, 1)` with the smallest :math:`\mu \ge 0` that meets the sum, which is
    found by bisection.

    Args:
        point: ``(n,)``.
        total: :math:`t`, at least 0.
    """
    clipped = point.clamp(0, 1)
    if float(clipped.sum()) <= total:
        return clipped
    low, high = 0.0, float(point.max())
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if float((point - middle).clamp(0, 1).sum()) > total else (low, middle)
    return (point - high).clamp(0, 1)


class _Mask(nn.Module):
    """A weight as a product with its mask; what the mask sets to zero stays in the parameter."""

    mask: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones_like(weight))

    def forward(self, weight: Tensor) -> Tensor:
        return self.mask * weight


def _opened(model: nn.Module) -> nn.Module:
    """A copy in which every prunable weight is a product of a parameter and a mask."""
    opened = copy.deepcopy(model)
    for name, weight in masks.prunable(opened).items():
        owner = opened.get_submodule(name.rpartition(".")[0])
        parametrize.register_parametrization(owner, "weight", _Mask(weight.detach()))
    return opened


def _masked(model: nn.Module) -> dict[str, _Mask]:
    """The masks of an opened model by the names of the weights, in their order."""
    found = ((name, module) for name, module in model.named_modules() if isinstance(module, _Mask))
    return {name.removesuffix("parametrizations.weight.0") + "weight": module for name, module in found}


def _split_off(data: GroupedDataset, share: float, seed: int) -> tuple[GroupedDataset, GroupedDataset]:
    """The rest, and a part that has its share of every cell of target and group."""
    cells = (data.targets * data.num_groups + data.groups).cpu().numpy()
    parts = stratified_parts(cells, (1 - share, share), np.random.default_rng([seed, 0]))
    return tuple(data.subset(torch.from_numpy(np.flatnonzero(parts == part))) for part in (0, 1))


def _refuse_single_group(data: GroupedDataset, val: GroupedDataset) -> None:
    for role, part in (("data", data), ("the held-out data", val)):
        present = [name for name, size in part.group_sizes.items() if size]
        if len(present) < 2:
            raise ValueError(
                f"a difference of accuracies needs at least two groups with members; {role} have only: "
                f"{', '.join(present) or 'none'}"
            )


@dataclass(frozen=True)
class _BiLevel:
    """The steps of the mask, as a constraint of :func:`fairlib.fit`."""

    form: Form
    sparsity: float
    val: GroupedDataset
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
        self.val = settings.val.to(self.device)
        self.masks = _masked(model)
        self.names = [name.removesuffix("weight") + "parametrizations.weight." for name in self.masks]
        self.theta = [model.get_parameter(f"{name}original") for name in self.names]
        self.scores = [score.to(self.device) for score in settings.form.start()]
        self.velocity = [torch.zeros_like(score) for score in self.scores]
        self.epochs, self.steps, self.gradients = 0, 0, 0
        self.totals, self.counts = torch.zeros(2, device=self.device), [0, 0]
        self.batches = self._batches()
        self._impose()
        self.before = self._kept()

    def loss(self, batch: Batch) -> Tensor:
        value = batch.losses.mean()
        if self.settings.lower:
            penalty = self.settings.lower(batch.logits, batch.targets, batch.groups, self.val.num_groups)
            value = value + penalty
            self._note(0, penalty)
        if self.epochs < self.settings.rounds and self.steps % self.settings.every == 0:
            value = self._step(batch, value)
        self.steps += 1
        return value

    def end_epoch(self) -> dict[str, float]:
        self.epochs += 1
        if self.epochs == self.settings.rounds:
            self._settle()
        elif self.epochs < self.settings.rounds:
            self._impose()
        kept, before = self._kept(), self.before
        moved = sum(int((now & ~then).sum()) for now, then in zip(kept, before, strict=True))
        means = [total / max(count, 1) for total, count in zip(self.totals.tolist(), self.counts, strict=True)]
        report = {"penalty": means[0], "upper_objective": means[1], "gradients": self.gradients}
        report["moved"] = moved / max(1, sum(int(now.sum()) for now in kept))
        self.before, self.totals, self.counts, self.gradients = kept, torch.zeros_like(self.totals), [0, 0], 0
        return report

    def _step(self, batch: Batch, value: Tensor) -> Tensor:
        """A step of the mask; the loss of the weights' step, whose gradient may have been taken on the way."""
        upper = self._upper_gradient()
        mask = [module.mask for module in self.masks.values()]
        theta = [part.detach() for part in self.theta]
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
        found = torch.autograd.grad(expanded, entries, grad_outputs=list(found))
        size = math.sqrt(sum(part.numel() for part in found))
        scale = torch.stack([part.norm() for part in found]).norm() / size
        if not scale.isfinite():
            raise DivergenceError(
                f"the gradient in the scores of the mask is {float(scale)} after {self.steps} steps; lower "
                f"train['lr'], mask_lr ({self.settings.mask_lr}), or fairness"
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
        form, sparsity = self.settings.form, self._sparsity()
        if self.settings.relaxed:
            self.scores = self.entries = form.project(self.scores, sparsity)
        else:
            self.entries = form.choose(self.scores, sparsity)
        self._mask(self.entries)

    def _mask(self, entries: Sequence[Tensor]) -> None:
        # Not in place: the step of the weights that is under way has the old masks in its graph.
        for module, mask in zip(self.masks.values(), self.settings.form.expand(entries), strict=True):
            module.mask = mask.to(module.mask.dtype).contiguous()

    @torch.no_grad()
    def _settle(self) -> None:
        """The end of the search: a relaxed mask becomes one of zeros and ones, its factors a part of the weights."""
        self._impose()
        if self.settings.relaxed:
            for theta, module in zip(self.theta, self.masks.values(), strict=True):
                theta.mul_(torch.where(module.mask > 0, module.mask, 1))
            self._mask(self.settings.form.choose(self.scores, self._sparsity()))

    def _sparsity(self) -> float:
        progress = min(1.0, self.epochs / self.settings.rounds)
        return self.settings.sparsity * (1 - (1 - progress) ** 3 if self.settings.gradual else 1)

    def _kept(self) -> list[Tensor]:
        return [module.mask > 0 for module in self.masks.values()]

    def _note(self, place: int, value: Tensor) -> None:
        self.totals[place] += value.detach()
        self.counts[place] += 1

    def _batches(self) -> Iterator[Tensor]:
        """Batches of the held-out data, without end; what is left of a pass is left out."""
        size = min(len(self.val), self.settings.val_batch_size)
        while True:
            order = torch.randperm(len(self.val)).to(self.device)
            yield from order[: len(order) // size * size].split(size)

    def _call(self, weights: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """The model's logits at products of masks and weights; its buffers are left as they are."""
        values = {name: buffer.clone() for name, buffer in self.model.named_buffers() if not name.endswith(".0.mask")}
        for name, weight, module in zip(self.names, weights, self.masks.values(), strict=True):
            values[f"{name}original"], values[f"{name}0.mask"] = weight, torch.ones_like(module.mask)
        return functional_call(self.model, values, (inputs,))

    def _products(self) -> list[Tensor]:
        pairs = zip(self.theta, self.masks.values(), strict=True)
        return [(theta.detach() * module.mask).requires_grad_() for theta, module in pairs]

    def _upper_gradient(self) -> list[Tensor]:
        """Of the upper objective on the next batch, in the products."""
        index = next(self.batches)
        targets = self.val.targets[index]
        with torch.enable_grad():
            products = self._products()
            logits = self._call(products, self.val.batch(index, dtype=self.dtype, device=self.device))
            value = cross_entropy(logits, targets)
            if self.settings.upper:
                value = value + self.settings.upper(logits, targets, self.val.groups[index], self.val.num_groups)
            self._note(1, value)
            self.gradients += len(index)
            return list(torch.autograd.grad(value, products))

    def _lower_derivatives(self, batch: Batch) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], list[Tensor]]]:
        """Of the lower objective on a batch: its gradient in the products, and the product with its Hessian."""
        with torch.enable_grad():
            products = self._products()
            logits = self._call(products, batch.inputs)
            value = self.objective(batch.inputs, logits, batch.targets).mean()
            if self.settings.lower:
                value = value + self.settings.lower(logits, batch.targets, batch.groups, self.val.num_groups)
            gradient = torch.autograd.grad(value, products, create_graph=True)

        def product(x: Sequence[Tensor]) -> list[Tensor]:
            return list(torch.autograd.grad(gradient, products, grad_outputs=list(x), retain_graph=True))

        return [part.detach() for part in gradient], product
