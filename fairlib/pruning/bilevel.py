"""Bi-level pruning as a constraint of :func:`fairlib.fit`: a mask that is updated between the steps
of a training."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parametrize

from fairlib._validation import check_number
from fairlib.data import GroupedDataset
from fairlib.diagnostics.vectors import Parts
from fairlib.network import masks
from fairlib.network.evaluation import aliases, evaluate, placement
from fairlib.pruning.granularity import Form
from fairlib.pruning.hypergradient import hessian_free
from fairlib.training import Batch, Constraint, DivergenceError, Objective, taken_gradient
from fairlib.training.group_losses import AccuracyDifference


@dataclass(frozen=True)
class MaskSearch:
    r"""Settings of the search for a mask in :func:`fairlib.pruning.bifp`.

    Args:
        relaxed: Whether masks have entries in [0, 1] during the search, instead of zeros and ones.
        gamma: Weight decay :math:`\gamma` of the lower level in the gradient of the mask
            (:mod:`fairlib.pruning.hypergradient`), positive; the larger, the less of how the
            weights follow is in it.
        lr: Step size of the scores, in units of the mean initial score: gradient descent with
            momentum on a gradient that is divided by its root mean square.
        momentum: Momentum of the gradient descent on the scores, in [0, 1).
        search: Share of the epochs, in (0, 1], rounded up, in which the mask is learned.

    Raises:
        TypeError: If a setting is not a number where one is needed.
        ValueError: If a setting is out of range.
    """

    relaxed: bool = False
    gamma: float = 1.0
    lr: float = 0.01
    momentum: float = 0.9
    search: float = 0.75

    def __post_init__(self) -> None:
        check_number("gamma", self.gamma, 0, low_open=True)
        check_number("lr of the mask", self.lr, 0, low_open=True)
        check_number("momentum of the mask", self.momentum, 0, 1)
        check_number("search", self.search, 0, 1, low_open=True, high_closed=True)

    def rounds(self, epochs: int) -> int:
        """Compute the number of the ``epochs`` in which the mask is learned."""
        return max(1, math.ceil(self.search * epochs - 1e-9))


class _Mask(nn.Module):
    """A parametrization: the weight is mask times parameter; where the mask is zero the parameter
    is kept."""

    mask: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones_like(weight))

    def forward(self, weight: Tensor) -> Tensor:
        return self.mask * weight


@dataclass(frozen=True)
class Product:
    """A weight that is mask times parameter: names of its ``layer``, of the parameter and of the
    mask's buffer."""

    layer: str
    original: str
    mask: str


def opened(model: nn.Module, relaxed: bool) -> tuple[nn.Module, list[Product]]:
    """Copy a model such that every prunable weight is a product of a parameter and a mask.

    Raises:
        ValueError: If a relaxed mask would change a frozen weight.
    """
    model, products = copy.deepcopy(model), []
    for name, weight in masks.prunable(model).items():
        if relaxed and not weight.requires_grad:
            raise ValueError(
                f"{name} is frozen, and a relaxed mask would change it; take relaxed=False"
            )
        layer = name.rpartition(".")[0]
        inside = f"{name.removesuffix('weight')}parametrizations.weight."
        parametrize.register_parametrization(
            model.get_submodule(layer), "weight", _Mask(weight.detach())
        )
        products.append(Product(layer, f"{inside}original", f"{inside}0.mask"))
    return model, products


def closed(model: nn.Module, products: Sequence[Product], keep: Mapping[str, Tensor]) -> nn.Module:
    """Turn an opened model (``opened``) back into an ordinary masked one, in place, and return
    it."""
    for product in products:
        owner = model.get_submodule(product.layer)
        order = ["weight", *owner._parameters]
        parametrize.remove_parametrizations(owner, "weight", leave_parametrized=False)
        owner._parameters = {
            own: owner._parameters[own] for own in order
        }  # The order of the dense model.
    masks.set_masks(model, keep)
    return model


@dataclass(frozen=True)
class BiLevel(Constraint):
    """The steps of the mask, as a constraint of :func:`fairlib.fit` on an opened model
    (``opened``).

    Args:
        form: What has a score, weights or channels.
        products: Names of the prunable weights, their parameters and masks.
        scores: Scores at the start.
        sparsity: Share of zeros at the end of the search.
        val: Data of the upper level.
        upper: Fairness term of the upper level, if any.
        lower: Fairness term of the lower level, if any.
        search: Settings of the search for the mask.
        rounds: Number of epochs in which the mask is learned.
        batch_size: Number of samples per step of the mask.
    """

    form: Form = field(repr=False)
    products: list[Product] = field(repr=False)
    scores: list[Tensor] = field(repr=False)
    sparsity: float
    val: GroupedDataset = field(repr=False)
    upper: AccuracyDifference | None
    lower: AccuracyDifference | None
    search: MaskSearch
    rounds: int
    batch_size: int

    def start(self, model: nn.Module, data: GroupedDataset, objective: Objective) -> _BiLevelRun:
        return _BiLevelRun(self, model, data)


class _BiLevelRun:
    def __init__(self, settings: BiLevel, model: nn.Module, data: GroupedDataset) -> None:
        self.settings, self.search, self.form, self.model = (
            settings,
            settings.search,
            settings.form,
            model,
        )
        self.device, self.dtype = placement(model)
        self.groups, self.val = data.num_groups, settings.val.to(self.device)
        self.theta = [model.get_parameter(product.original) for product in settings.products]
        modules = (
            model.get_submodule(product.mask.removesuffix(".mask")) for product in settings.products
        )
        self.masks = [cast(_Mask, module) for module in modules]
        self.aliases = aliases(model)
        self.scores = settings.scores
        self.velocity = [torch.zeros_like(score) for score in self.scores]
        self.epochs, self.gradients = 0, 0
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
        return self._step(value) if self.epochs < self.settings.rounds else value

    def end_epoch(self) -> dict[str, float]:
        self.epochs += 1
        if self.epochs == self.settings.rounds:
            self._settle()
        kept, before = self._kept(), self.before
        moved = sum(int((now & ~then).sum()) for now, then in zip(kept, before, strict=True))
        report = {
            "gradients": self.gradients,
            "moved": moved / max(1, sum(int(now.sum()) for now in kept)),
        }
        report |= {
            name: float(sum(values)) / len(values) for name, values in self.seen.items() if values
        }
        self.before, self.gradients, self.seen = kept, 0, {name: [] for name in self.seen}
        return report

    def _step(self, value: Tensor) -> Tensor:
        """Take a step of the mask and return the loss for the step of the weights, with its
        gradient taken."""
        upper, theta = self._upper_gradient(), [part.detach() for part in self.theta]
        # The gradient with respect to theta is the mask times that with respect to the product: m *
        # g_1.
        value, gradient = taken_gradient(value, self.model)
        masked = [gradient.get(id(part), torch.zeros_like(part)) for part in self.theta]
        self._move(hessian_free(theta, masked, upper, self.search.gamma))
        return value

    def _move(self, found: Parts) -> None:
        """Update scores and masks, given the gradient with respect to the masks of the weights."""
        entries = [entry.clone().requires_grad_() for entry in self.entries]
        with torch.enable_grad():
            expanded = self.form.expand(entries)
        moving = [
            (mask, part) for mask, part in zip(expanded, found, strict=True) if mask.requires_grad
        ]
        outputs, gradients = zip(*moving, strict=True)
        slopes = torch.autograd.grad(
            outputs, entries, grad_outputs=gradients, materialize_grads=True
        )
        size = math.sqrt(sum(part.numel() for part in slopes))
        scale = torch.stack([part.norm() for part in slopes]).norm() / size
        if not scale.isfinite():
            advice = f"lower train['lr'], mask_lr = {self.search.lr} or the weight of the penalty"
            raise DivergenceError(f"the gradient of the mask's scores is {float(scale)}; {advice}")
        scale = scale.clamp(min=torch.finfo(scale.dtype).tiny)
        for speed, part in zip(self.velocity, slopes, strict=True):
            speed.mul_(self.search.momentum).add_(part / scale)
        step = self.search.lr
        self.scores = [
            score - step * speed for score, speed in zip(self.scores, self.velocity, strict=True)
        ]
        self._impose()

    @torch.no_grad()
    def _impose(self) -> None:
        """Set the masks that follow from the scores."""
        choose = self.form.project if self.search.relaxed else self.form.choose
        self._mask(choose(self.scores, self.settings.sparsity))

    def _mask(self, entries: list[Tensor]) -> None:
        self.entries = entries
        # Not in place: the current step of the weights has the old masks in its graph.
        for module, mask in zip(self.masks, self.form.expand(entries), strict=True):
            module.mask = mask.to(module.mask.dtype).contiguous()

    @torch.no_grad()
    def _settle(self) -> None:
        """End the search: multiply the weights by a relaxed mask, and set the final mask of zeros
        and ones."""
        if self.search.relaxed:
            self._impose()
            for theta, module in zip(self.theta, self.masks, strict=True):
                theta.mul_(module.mask)
        self._mask(self.form.final(self.scores, self.settings.sparsity))

    def _kept(self) -> list[Tensor]:
        return [module.mask > 0 for module in self.masks]

    def _batches(self) -> Iterator[Tensor]:
        """Draw batches of the held-out data without end; of each pass the last, smaller batch is
        left out."""
        size = min(len(self.val), self.settings.batch_size)
        while True:
            order = torch.randperm(len(self.val)).to(self.device)
            yield from order[: len(order) // size * size].split(size)

    def _call(self, weights: Parts, inputs: Tensor) -> Tensor:
        """Compute the model's logits for given products of masks and weights; its buffers are not
        changed."""
        state = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        for product, weight in zip(self.settings.products, weights, strict=True):
            state[product.original], state[product.mask] = weight, torch.ones_like(weight)
        return evaluate(self.model, state, inputs, self.aliases)

    def _upper_gradient(self) -> Parts:
        """Compute the gradient of the upper objective on the next batch, with respect to the
        products."""
        index = next(self.batches)
        targets = self.val.targets[index]
        pairs = zip(self.theta, self.masks, strict=True)
        products = [(theta.detach() * module.mask).requires_grad_() for theta, module in pairs]
        with torch.enable_grad():
            logits = self._call(
                products, self.val.batch(index, dtype=self.dtype, device=self.device)
            )
            value = cross_entropy(logits, targets)
            if self.settings.upper:
                value = value + self.settings.upper(
                    logits, targets, self.val.groups[index], self.groups
                )
        self.seen["upper_objective"].append(value.detach())
        self.gradients += len(index)
        return torch.autograd.grad(value, products, materialize_grads=True)
