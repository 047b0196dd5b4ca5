"""Equal gradients and curvature: constraints on each group's gradient norm and top eigenvalue.

[T] Eq. 7. The derivatives of both are in :mod:`fairlib.mitigation.eigenvalue_gradient`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fairlib._validation import check_number
from fairlib.data import GroupedDataset
from fairlib.diagnostics.curvature import Eigensearch, extreme_eigenpairs
from fairlib.diagnostics.objective import MeanLoss, check_parameters, members
from fairlib.diagnostics.vectors import Parts, moved, parts_norm, parts_unit
from fairlib.mitigation.eigenvalue_gradient import FrozenDifferences, Gradient
from fairlib.mitigation.lagrangian import Lagrangian, group_columns, sizes_of
from fairlib.network import masks
from fairlib.network.evaluation import (
    aliases,
    evaluate,
    evaluation_mode,
    full_precision,
    open_operators,
)
from fairlib.training import Batch, Constraint, ConstraintRun, Objective, with_gradient


@dataclass(frozen=True)
class EqualCurvature(Lagrangian, Constraint):
    r"""Constrain each group's gradient norm and largest eigenvalue to those of the population.

    They are :math:`\|g_a\|` and :math:`\lambda_{\max}(H_a)`, where :math:`g_a` and :math:`H_a` are
    the gradient and the Hessian of the group's mean cross-entropy.

    Each step descends on :math:`J(B) + \sum_a \mu_a \nu(\|g_a\|) + \kappa_a \nu(\lambda_a)`. With
    unit vectors :math:`u_a = g_a / \|g_a\|` and :math:`v_a`, the top eigenvector,

    .. math:: \nabla \|g_a\| = H_a u_a, \qquad \nabla \lambda_a = D^2 g_a[v_a, v_a],

    and both come from two gradients beside the group's own: with each unit kept on its piece of the
    activation (:mod:`fairlib.diagnostics.frozen`) and :math:`\eta` of the order :math:`\epsilon^2`,

    .. math::
       g_a(\theta + \epsilon v + \eta u) + g_a(\theta - \epsilon v + \eta u) - 2 g_a
       \approx 2 \eta H_a u + \epsilon^2 D^2 g_a[v, v],

    where :math:`\eta` is chosen such that the two terms have the ratio that the multipliers give;
    if that needs an :math:`\eta` beyond :math:`10 \epsilon^2`, the first term takes a gradient of
    its own. The difference of the two gradients gives :math:`H_a v`, by which :math:`v_a` follows
    the weights: each step it is replaced by :math:`H_a v + \sigma v`, normalized. The shift
    :math:`\sigma`, the largest magnitude of an eigenvalue at the last epoch, prevents convergence
    to a negative eigenvalue. After each epoch the eigenvectors are computed anew on the whole
    training set, by a Lanczos process whose start includes the group's gradient and noise, so that
    it finds an eigenvalue that has overtaken the previous one.

    The constraint's own passes are in eval mode: batch normalization uses its running statistics
    there, which only the pass for the loss updates. In train mode a group's gradient would depend
    on the whole batch and differ: for a tiny ResNet on the digits (batches of 150, after 5 and 20
    epochs, three seeds) norms are .6 of those in eval mode in the median (.2 to 1.0), eigenvalues
    .35 (.1 to .9), and the cosine of the two gradients is .6 (.35 to .75). Norm and eigenvalue are
    those of the cross-entropy of the group's members in the batch, whatever the objective of the
    training is. A group absent from the batch adds nothing. Multipliers follow the values in the
    whole training set after each epoch, which come from frozen products, with eigenvalues to a
    relative error of a hundredth. Norms of batch gradients would be biased upward, most for small
    groups.

    Args:
        step: Dual step of the gradient norms, positive.
        violation, tolerance, cap, restart: Arguments of
            :class:`fairlib.mitigation.lagrangian.Lagrangian`; the same values apply to norms and to
            eigenvalues, although their units differ.
        population: Values that a group is compared with: the mean over all ``"groups"``, or the
            mean over the ``"others"`` weighted by size; ``"all"`` takes gradient and Hessian of all
            samples, as Eq. 7 is printed. At a minimum that gradient is zero, so that every group's
            would have to vanish, and it takes twice the time.
        eigenvalue_step: Dual step of the eigenvalues, at least 0; by default ``step``. With 0 only
            norms are constrained. Eigenvalues are larger numbers than norms; on the digits a
            hundredth of ``step`` or less worked.
        every: Number of steps between two that include the eigenvalues' part of the penalty, whose
            gradient is multiplied by this number.

    Raises:
        TypeError: If a numeric argument is not a number.
        ValueError: If a setting is out of range or unknown; at the start of a training, if fewer
            than two groups have members.

    Source:
        [T] Eq. 7 and section 6.

    Example:
        Nine samples of one group have class 0, one of another group has class 1, and all look
        alike. At probabilities :math:`p` and :math:`1 - p` the groups' gradient norms are
        :math:`\sqrt{2} (1 - p)` and :math:`\sqrt{2} p`: equal at 0.5, not at the 0.9 of plain
        training.

        >>> import torch, fairlib
        >>> few = [0] * 9 + [1]
        >>> data = fairlib.GroupedDataset(
        ...     torch.zeros(10, 1), few, few, group_names=["many", "few"]
        ... )
        >>> model = torch.nn.Linear(1, 2)
        >>> constraint = fairlib.EqualCurvature(step=0.1, eigenvalue_step=0)  # Norms alone.
        >>> settings = dict(epochs=40, lr=0.5, momentum=0, weight_decay=0)
        >>> fair = fairlib.fit(model, data, **settings, constraint=constraint)
        >>> fair(torch.zeros(1, 1)).softmax(1).round(decimals=1).tolist()
        [[0.5, 0.5]]
    """

    population: str = "groups"
    eigenvalue_step: float | None = None
    every: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eigenvalue_step is not None:
            check_number("eigenvalue_step", self.eigenvalue_step, 0)
        check_number("every", self.every, 1, whole=True)

    def start(self, model: nn.Module, data: GroupedDataset, objective: Objective) -> ConstraintRun:
        return _EqualCurvatureRun(self, model, data)


class _EqualCurvatureRun:
    """One training under the constraint.

    Tables of numbers are ``(2, k)``, gradient norms and eigenvalues by group; with the population
    ``"all"`` they have one more column, for all samples.
    """

    def __init__(self, settings: EqualCurvature, model: nn.Module, data: GroupedDataset) -> None:
        self.settings, self.model, self.data = settings, model, data
        self.sizes = sizes_of(data, "equal curvature")
        self.names = check_parameters(model, None)
        self.aliases = aliases(model)
        self.codes = [code for code, size in enumerate(self.sizes.tolist()) if size]
        if settings.population == "all":
            self.codes.append(data.num_groups)
        self.multipliers = torch.zeros(
            2, data.num_groups, dtype=torch.float64, device=self.sizes.device
        )
        second = settings.step if settings.eigenvalue_step is None else settings.eigenvalue_step
        self.dual_steps = self.multipliers.new_tensor([[settings.step], [second]])
        # By group: the top eigenvector, and the largest magnitude of an eigenvalue.
        self.vectors: dict[int, Parts] = {}
        self.shifts: dict[int, float] = {}
        self.gradients, self.steps = 0, 0
        self.full = self._full_numbers()
        # True if the loss is known, False if it is known not, to be the groups' weighted sum.
        self.is_sum: bool | None = None
        self._read_masks()

    def _read_masks(self) -> None:
        """Read the masks and cut the eigenvectors down to the weights that they leave."""
        by_name = masks.read_masks(self.model)
        self.weight_masks = [by_name.get(name) for name in self.names]
        self.vectors = {
            code: parts_unit(self._project(vector)) for code, vector in self.vectors.items()
        }
        self.masks_are_read = True

    def loss(self, batch: Batch) -> Tensor:
        loss = batch.losses.mean()
        if self.multipliers.any():
            with evaluation_mode(self.model), open_operators(self.model), torch.enable_grad():
                value, direction = self._penalty(batch)
            weights = [self.model.get_parameter(name) for name in self.names]
            if self._is_sum_of_groups(loss, weights):
                loss, direction = loss.detach(), moved(direction, 1, self.batch_gradient)
            loss = with_gradient(loss + value.to(loss), direction, weights)
        self.steps += 1
        return loss

    def _is_sum_of_groups(self, loss: Tensor, weights: Parts) -> bool:
        """Tell whether the gradient of the loss is the groups' weighted sum.

        It is for the cross-entropy of a network in which no sample depends on the others of its
        batch or on chance. The gradients of the groups are there already, so that their sum spares
        the backward pass of the loss.
        """
        # Equal values alone prove nothing: another objective may have the same value and another
        # gradient. So the first step of an epoch compares gradients, at the price of the pass that
        # later steps spare; these compare values only, which tells when dropout sets in, say.
        tolerance = torch.finfo(loss.dtype).eps ** (2 / 3)
        error = abs(loss.item() - self.batch_loss)
        if self.is_sum is False or not error <= tolerance * (1 + abs(self.batch_loss)):
            return False
        if self.is_sum is None:
            gradient = torch.autograd.grad(loss, weights, retain_graph=True, materialize_grads=True)
            difference = moved(self._project(gradient), -1, self.batch_gradient)
            self.is_sum = bool(parts_norm(difference) <= tolerance * self.gradient_scale)
        return self.is_sum

    @full_precision()
    def _penalty(self, batch: Batch) -> tuple[Tensor, Parts]:
        """Compute the penalty and its gradient.

        The gradient is that on the batch, the value that of the training set after the last epoch,
        which is there without another pass.
        """
        # Masks may have changed at the end of the epoch (fairlib.training.Sparsifier), after
        # end_epoch has run. An eigenvector with entries at pruned weights would bring these in.
        if not self.masks_are_read:
            self._read_masks()
        weights = [self.model.get_parameter(name).detach() for name in self.names]
        groups = self._derivatives(batch, weights)
        self._sum_groups(groups)
        present = torch.zeros_like(self.sizes, dtype=torch.bool)
        present[[code for code in groups if code < self.data.num_groups]] = True
        multipliers = self.multipliers * present
        factors = self._factors(self.full, multipliers)
        curved = bool(self.multipliers[1].any()) and self.steps % self.settings.every == 0
        direction: Parts = [torch.zeros_like(weight) for weight in weights]
        for code, group in groups.items():
            slope, bend = factors[:, code].tolist()
            # Steps that leave the eigenvalues out are made up for by those that do not.
            bend *= self.settings.every
            part, image = group.combine(slope, bend, self.vectors[code] if curved else None)
            direction = moved(direction, 1, self._project(part))
            if image is not None:
                self._follow(code, self._project(image))
        violations = self.settings.violations(self._gaps(self.full))
        return (multipliers * violations).sum(), direction

    def _derivatives(self, batch: Batch, weights: Parts) -> dict[int, FrozenDifferences]:
        """Differentiate the loss of each group that is in the batch, by the code of the group."""
        groups: dict[int, FrozenDifferences] = {}
        for code in self.codes:
            chosen = slice(None) if code == self.data.num_groups else batch.groups == code
            inputs, targets = batch.inputs[chosen], batch.targets[chosen]
            if len(targets):
                gradient = self._gradient_of(inputs, targets)
                groups[code] = FrozenDifferences(gradient, weights, len(targets))
        return groups

    def _sum_groups(self, groups: dict[int, FrozenDifferences]) -> None:
        """Sum the groups of a batch: its mean cross-entropy, gradient, and the scale of the latter.

        The scale is the mean norm of the groups' gradients: where these cancel, near a minimum, the
        norm of the sum would make any difference look large.
        """
        first = next(iter(groups.values())).gradient
        norms = torch.stack([parts_norm(group.gradient) for group in groups.values()])
        sizes = [group.samples * (code < self.data.num_groups) for code, group in groups.items()]
        shares = torch.tensor(sizes).to(norms)
        shares = shares / shares.sum()
        self.batch_gradient = [torch.zeros_like(part) for part in first]
        for share, group in zip(shares.tolist(), groups.values(), strict=True):
            self.batch_gradient = moved(self.batch_gradient, share, group.gradient)
        losses = torch.stack([group.loss for group in groups.values()])
        self.batch_loss, self.gradient_scale = float(shares @ losses), float(shares @ norms)

    def _gaps(self, numbers: Tensor) -> Tensor:
        if self.settings.population == "all":
            return torch.where(self.sizes > 0, numbers[:, :-1] - numbers[:, -1:], 0.0)
        return torch.stack([self.settings.gaps(row, self.sizes) for row in numbers])

    def _factors(self, numbers: Tensor, multipliers: Tensor) -> Tensor:
        """Differentiate the penalty by the numbers."""
        point = numbers.clone().requires_grad_()
        gaps = self._gaps(point)
        weights = self.settings.weights(multipliers, gaps.detach())
        return torch.autograd.grad((weights * gaps).sum(), point)[0]

    def _gradient_of(self, inputs: Tensor, targets: Tensor) -> Gradient:
        """Make the function from weights to gradient and value of the mean cross-entropy there."""

        def gradient(weights: Parts) -> tuple[Parts, Tensor]:
            leaves = [weight.detach().requires_grad_() for weight in weights]
            state = dict(zip(self.names, leaves, strict=True))
            loss = cross_entropy(evaluate(self.model, state, inputs, self.aliases), targets)
            slopes = torch.autograd.grad(loss, leaves, materialize_grads=True)
            self.gradients += len(targets)
            return self._project(slopes), loss.detach()

        return gradient

    def _project(self, vector: Parts) -> Parts:
        """Set a vector to zero at the pruned weights."""
        return [
            part if mask is None else part * mask
            for part, mask in zip(vector, self.weight_masks, strict=True)
        ]

    def _follow(self, code: int, image: Parts) -> None:
        r"""Replace an eigenvector v by its image, :math:`H v + \sigma v`, normalized.

        One power iteration a step suffices, since the weights move little from step to step.
        """
        # Without the shift the iteration would turn to the eigenvalue of largest magnitude. That is
        # a negative one where training has overfitted a group, and the penalty would push it up.
        shifted = moved(image, self.shifts[code], self.vectors[code])
        if parts_norm(shifted) > 0:
            self.vectors[code] = parts_unit(shifted)

    def _full_numbers(self) -> Tensor:
        """Compute gradient norms and eigenvalues in the training set; keep the eigenvectors."""
        columns = self.data.num_groups + (self.settings.population == "all")
        numbers = torch.zeros(2, columns, dtype=torch.float64, device=self.sizes.device)
        for code in self.codes:
            index = members(self.data, code) if code < self.data.num_groups else None
            loss = MeanLoss(self.model, self.data, index)
            previous = self.vectors.get(code)
            flat = None if previous is None else torch.cat([part.flatten() for part in previous])
            # A single Lanczos step may do, unlike in a diagnosis: the search starts from the last
            # epoch's eigenvector, and the vector goes on turning in the steps of the next epoch.
            search = Eigensearch("largest", tol=1e-2, least=1)
            top = extreme_eigenpairs(loss, search, flat)
            self.gradients += len(loss.index) * (1 + 2 * top.products)
            pair = top.pairs[-1]
            self.vectors[code] = list(loss.split(pair.vector).values())
            self.shifts[code] = top.scale
            numbers[0, code], numbers[1, code] = loss.gradient().norm(), pair.value
        return numbers

    def end_epoch(self) -> dict[str, float]:
        self.masks_are_read, self.is_sum = False, None
        try:
            self.full = self._full_numbers()
        except FloatingPointError:  # The report shows NaN, and the training stops.
            self.full = torch.full_like(self.full, torch.nan)
        violations = self.settings.violations(self._gaps(self.full))
        violations = torch.where(self.sizes > 0, violations, 0.0)
        if violations.isfinite().all():
            self.multipliers = self.settings.dual_step(
                self.multipliers, violations, self.dual_steps
            )
        gradients, self.gradients = self.gradients, 0
        columns = group_columns(
            self.data,
            norm_violation=violations[0],
            eigenvalue_violation=violations[1],
            norm_multiplier=self.multipliers[0],
            eigenvalue_multiplier=self.multipliers[1],
        )
        return {"gradients": gradients} | columns
