"""Bi-level pruning as a constraint of :func:`fairlib.fit`: a mask updated between its steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fairlib.data import GroupedDataset
from fairlib.diagnostics.vectors import Parts
from fairlib.network.evaluation import aliases, evaluate, placement
from fairlib.network.keeping import Kept
from fairlib.pruning.granularity import Granularity
from fairlib.pruning.hypergradient import hessian_free
from fairlib.training import Batch, Constraint, DivergenceError, Objective, taken_gradient
from fairlib.training.group_losses import AccuracyDifference

GAMMA = 1.0
"""Weight decay of the lower level in the gradient of the mask
(:mod:`fairlib.pruning.hypergradient`)."""

MASK_LR = 0.01
"""Step size of the scores, in units of the mean initial score."""

MASK_MOMENTUM = 0.9
"""Momentum of the gradient descent on the scores."""

SEARCH = 0.75
"""Share of the epochs in which the mask is learned."""


def search_epochs(epochs: int) -> int:
    """Compute how many of the ``epochs`` of bi-level pruning learn the mask.

    >>> [search_epochs(epochs) for epochs in (1, 3, 4, 10)]
    [1, 3, 3, 8]
    """
    return max(1, math.ceil(SEARCH * epochs - 1e-9))


@dataclass
class BiLevel(Constraint):
    """The steps of the mask, as a constraint of :func:`fairlib.fit`, for one training.

    The model that is trained is one of masked products (:mod:`fairlib.pruning.masked_product`).

    Args:
        granularity: The scored units, weights or channels.
        prefixes: Prefixes of the names of the weights' parameters and masks.
        sparsity: Share of zeros at the end of the search.
        val: Data of the upper level.
        upper: Fairness term of the upper level, if any.
        lower: Fairness term of the lower level, if any.
        rounds: Number of epochs in which the mask is learned.
        batch_size: Number of samples per step of the mask.

    Attributes:
        keep: Masks of the weights at the end of the search, by parameter name.
    """

    granularity: Granularity = field(repr=False)
    prefixes: list[str] = field(repr=False)
    sparsity: float
    val: GroupedDataset = field(repr=False)
    upper: AccuracyDifference | None
    lower: AccuracyDifference | None
    rounds: int
    batch_size: int
    keep: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)

    def start(self, model: nn.Module, data: GroupedDataset, objective: Objective) -> BiLevel:
        self.model, self.num_groups = model, data.num_groups
        self.device, self.dtype = placement(model)
        self.val = self.val.to(self.device)
        self.theta = [model.get_parameter(f"{prefix}original") for prefix in self.prefixes]
        modules = [model.get_submodule(f"{prefix}0") for prefix in self.prefixes]
        self.masks = [cast(Kept, module) for module in modules]
        self.aliases = aliases(model)
        self.scores = self.granularity.start()
        self.velocity = [torch.zeros_like(score) for score in self.scores]
        self.epochs, self.gradients = 0, 0
        self.upper_values: list[Tensor] = []
        self.batches = self._batches()
        self._choose_masks()
        return self

    def loss(self, batch: Batch) -> Tensor:
        value = batch.losses.mean()
        if self.lower:
            value = value + self.lower(batch.logits, batch.targets, batch.groups, self.num_groups)
        return self._step(value) if self.epochs < self.rounds else value

    def end_epoch(self) -> dict[str, float]:
        self.epochs += 1
        if self.epochs == self.rounds:
            # The steps keep about as many channels as asked; from here on the number is exact.
            entries, self.keep = self.granularity.final(self.scores, self.sparsity)
            self._set_masks(entries)
        row: dict[str, float] = {"gradients": self.gradients}
        if self.upper_values:
            row["upper_objective"] = float(sum(self.upper_values)) / len(self.upper_values)
        self.gradients, self.upper_values = 0, []
        return row

    def _step(self, value: Tensor) -> Tensor:
        """Take a step of the mask; return the loss for the step of the weights."""
        # Both levels step from the same point. The gradient of the lower level is taken before the
        # mask changes, and handed to the optimizer as it is; a backward pass after the change would
        # mix the weights' old graph with the new mask, and cost a second pass.
        upper, theta = self._upper_gradient(), [part.detach() for part in self.theta]
        value, gradient = taken_gradient(value, self.model)
        # With respect to theta the gradient is m * g_1, the mask times that of the product w.
        masked = [gradient.get(part, torch.zeros_like(part)) for part in self.theta]
        self._move_scores(hessian_free(theta, masked, upper, GAMMA))
        return value

    def _move_scores(self, mask_gradient: Parts) -> None:
        """Update scores and masks by the gradient with respect to the masks of the weights."""
        entries = [entry.clone().requires_grad_() for entry in self.entries]
        with torch.enable_grad():
            expanded = self.granularity.expand(entries)
        # Entries of 0 and 1 have no slope in the scores. Their gradient is used as that of the
        # scores (straight-through), also where an entry is 0: only so can a pruned weight return.
        pairs = zip(expanded, mask_gradient, strict=True)
        outputs, gradients = zip(*[pair for pair in pairs if pair[0].requires_grad], strict=True)
        slopes = torch.autograd.grad(
            outputs, entries, grad_outputs=gradients, materialize_grads=True
        )
        # Divided by its root mean square: the size of the gradient varies by orders of magnitude in
        # a training, and a fixed step would leave the mask alone or shuffle it.
        size = math.sqrt(sum(part.numel() for part in slopes))
        scale = torch.stack([part.norm() for part in slopes]).norm() / size
        if not scale.isfinite():
            raise DivergenceError(
                f"the gradient of the mask's scores is {float(scale)}; "
                "lower train['lr'] or the weight of the penalty"
            )
        scale = scale.clamp(min=torch.finfo(scale.dtype).tiny)
        for speed, part in zip(self.velocity, slopes, strict=True):
            speed.mul_(MASK_MOMENTUM).add_(part / scale)
        updates = zip(self.scores, self.velocity, strict=True)
        self.scores = [score - MASK_LR * speed for score, speed in updates]
        self._choose_masks()

    @torch.no_grad()
    def _choose_masks(self) -> None:
        """Set the masks that follow from the scores."""
        self._set_masks(self.granularity.choose(self.scores, self.sparsity))

    @torch.no_grad()
    def _set_masks(self, entries: list[Tensor]) -> None:
        self.entries = entries
        # Not in place: the current step of the weights has the old masks in its graph.
        for module, mask in zip(self.masks, self.granularity.expand(entries), strict=True):
            module.mask = mask.to(module.mask.dtype).contiguous()

    def _batches(self) -> Iterator[Tensor]:
        """Draw batches of the held-out data without end.

        The last, smaller batch of each pass is left out: a group may be absent from it, and its few
        samples would get a whole step of the mask.
        """
        size = min(len(self.val), self.batch_size)
        while True:
            order = torch.randperm(len(self.val)).to(self.device)
            yield from order[: len(order) // size * size].split(size)

    def _logits(self, weights: Parts, inputs: Tensor) -> Tensor:
        """Compute the model's logits for products of masks and weights; its buffers stay."""
        state = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        for prefix, weight in zip(self.prefixes, weights, strict=True):
            state[f"{prefix}original"], state[f"{prefix}0.mask"] = weight, torch.ones_like(weight)
        return evaluate(self.model, state, inputs, self.aliases)

    def _upper_gradient(self) -> Parts:
        """Compute the gradient of the upper objective on the next batch, by the products."""
        index = next(self.batches)
        inputs = self.val.batch(index, dtype=self.dtype, device=self.device)
        targets, groups = self.val.targets[index], self.val.groups[index]
        pairs = zip(self.theta, self.masks, strict=True)
        products = [(theta.detach() * module.mask).requires_grad_() for theta, module in pairs]
        with torch.enable_grad():
            logits = self._logits(products, inputs)
            value = cross_entropy(logits, targets)
            if self.upper:
                value = value + self.upper(logits, targets, groups, self.num_groups)
        self.upper_values.append(value.detach())
        self.gradients += len(index)
        return torch.autograd.grad(value, products, materialize_grads=True)
