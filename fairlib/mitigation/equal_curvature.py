"""Equal gradients and curvature: each group's gradient norm and largest eigenvalue are constrained
([T] Eq. 7)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fairlib._validation import check_number, lookup
from fairlib.data import GroupedDataset
from fairlib.diagnostics.curvature import Eigensearch, extreme_eigenpairs
from fairlib.diagnostics.frozen import Pattern
from fairlib.diagnostics.objective import MeanLoss, check_parameters
from fairlib.diagnostics.vectors import Parts, dot, moved, parts_norm, parts_unit
from fairlib.mitigation.lagrangian import Lagrangian, MovingAverage, named, sizes_of
from fairlib.network import masks
from fairlib.network.evaluation import aliases, evaluate, evaluation_mode, full_precision, placement
from fairlib.training import Batch, Constraint, ConstraintRun, Objective, with_gradient


@dataclass(frozen=True)
class EqualCurvature(Lagrangian, Constraint):
    r"""Constrain :math:`\|g_a\|` and :math:`\lambda_{\max}(H_a)` of every group to those of the
    population, where :math:`g_a` and :math:`H_a` are the gradient and the Hessian of the group's
    mean cross-entropy.

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
    it finds an eigenvalue that has overtaken the previous one. A smooth network is differentiated
    exactly, by automatic differentiation.

    The constraint's own passes are in eval mode: batch normalization uses its running statistics
    there, which only the pass for the loss updates. In train mode a group's gradient would depend
    on the whole batch and differ: for a tiny ResNet on the digits (batches of 150, after 5 and 20
    epochs, three seeds) norms are .6 of those in eval mode in the median (.2 to 1.0), eigenvalues
    .35 (.1 to .9), and the cosine of the two gradients is .6 (.35 to .75). Norm and eigenvalue are
    those of the cross-entropy of the group's members in the batch, whatever the objective of the
    training is. A group absent from the batch adds nothing and keeps its averages. The values after
    an epoch come from frozen products, with eigenvalues to a relative error of a hundredth.

    Args: step: Dual step of the gradient norms, positive. violation, tolerance, cap, restart:
        Arguments of :class:`fairlib.mitigation.lagrangian.Lagrangian`; the same
            values apply to norms and to eigenvalues, although their units differ.
        population: Values that a group is compared with: the mean over all ``"groups"``, or the
            mean over the ``"others"`` weighted by size; ``"all"`` takes gradient and Hessian of all
            samples, as Eq. 7 is printed. At a minimum that gradient is zero, so that every group's
            would have to vanish, and it takes twice the time.
        eigenvalue_step: Dual step of the eigenvalues, at least 0; by default ``step``. With 0 only
            norms are constrained. Eigenvalues are larger numbers than norms; on the digits a
            hundredth of ``step`` or less worked.
        every: Number of steps between two that include the eigenvalues' part of the penalty, whose
            gradient is multiplied by this number.
        dual: Values that the multipliers follow after an epoch: those of the ``"full"`` training
            set, or the moving ``"average"`` over batches. Norms of batch gradients are biased
            upward, most for small groups.
        products: Hessian products: ``"frozen"`` as above, ``"exact"`` by automatic differentiation,
            or ``"auto"``, which is exact for a smooth network and frozen for others.
        decay: Weight of the old value in the moving averages, in [0, 1), at each step.

    Raises: TypeError: If a number is none. ValueError: If a setting is out of range or unknown; at
        the start of a training, if fewer than two groups have
            members.

    Source:
        [T] Eq. 7 and section 6.

    Example: Nine samples of one group have class 0, one of another group has class 1, and all look
        alike. At probabilities :math:`p` and :math:`1 - p` the groups' gradient norms are
        :math:`\sqrt{2} (1 - p)` and :math:`\sqrt{2} p`: equal at 0.5, not at the 0.9 of plain
        training.

        >>> import torch, fairlib
        >>> data = fairlib.GroupedDataset(torch.zeros(10, 1), [0] * 9 + [1], [0] * 9 + [1], group_names=["many", "few"])
        >>> model = torch.nn.Linear(1, 2)
        >>> constraint = fairlib.EqualCurvature(step=0.1, eigenvalue_step=0)  # Of the norms only.
        >>> settings = dict(epochs=40, lr=0.5, momentum=0, weight_decay=0)
        >>> fair = fairlib.fit(model, data, **settings, constraint=constraint)
        >>> fair(torch.zeros(1, 1)).softmax(1).round(decimals=1).tolist()
        [[0.5, 0.5]]
    """

    population: str = "groups"
    eigenvalue_step: float | None = None
    every: int = 1
    dual: str = "full"
    products: str = "auto"
    decay: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eigenvalue_step is not None:
            check_number("eigenvalue_step", self.eigenvalue_step, 0)
        check_number("every", self.every, 1, whole=True)
        lookup("estimate", self.dual, dict.fromkeys(("full", "average")))
        lookup("kind of products", self.products, dict.fromkeys(("auto", "frozen", "exact")))
        check_number("decay", self.decay, 0, 1)

    def start(self, model: nn.Module, data: GroupedDataset, objective: Objective) -> ConstraintRun:
        return _EqualCurvatureRun(self, model, data)


class _EqualCurvatureRun:
    """Numbers are ``(2, k)``: gradient norms and eigenvalues by group, and in a last column those
    of all samples."""

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
        self.vectors: dict[int, Parts] = {}
        self.shifts: dict[int, float] = {}
        self.gradients = 0
        self.full = self._full_numbers()
        self.average = MovingAverage(self.full, settings.decay)
        self.exact = settings.products == "exact" or (
            settings.products == "auto" and self._smooth()
        )
        self.steps, self.active = 0, settings.dual == "average"
        self.shared: bool | None = None
        self._read_masks()

    def _read_masks(self) -> None:
        """Masks may change between epochs (:class:`fairlib.training.Sparsifier`)."""
        self.kept = list(map(masks.read_masks(self.model).get, self.names))
        self.vectors = {
            code: parts_unit(self._project(vector)) for code, vector in self.vectors.items()
        }
        self.fresh = True

    def loss(self, batch: Batch) -> Tensor:
        loss = batch.losses.mean()
        if self.active:
            with evaluation_mode(self.model), full_precision(), torch.enable_grad():
                value, direction = self._penalty(batch)
            weights = [self.model.get_parameter(name) for name in self.names]
            if self._is_of_groups(loss, weights):
                loss, direction = loss.detach(), moved(direction, 1, self.whole[1])
            loss = with_gradient(loss + value.to(loss), direction, weights)
        self.steps += 1
        return loss

    def _is_of_groups(self, loss: Tensor, weights: Parts) -> bool:
        """Whether the gradient of the loss is the groups' weighted sum, which spares a backward
        pass.

        It is for the cross-entropy of a network in which no sample depends on the others of its
        batch or on chance. The values tell in every step, and the gradients in the first one of an
        epoch."""
        value, gradient, scale = self.whole
        tolerance = torch.finfo(loss.dtype).eps ** (2 / 3)
        if self.shared is False or not abs(loss.item() - value) <= tolerance * (1 + abs(value)):
            return False
        if self.shared is None:
            own = torch.autograd.grad(loss, weights, retain_graph=True, materialize_grads=True)
            self.shared = bool(
                parts_norm(moved(self._project(own), -1, gradient)) <= tolerance * scale
            )
        return self.shared

    def _penalty(self, batch: Batch) -> tuple[Tensor, Parts]:
        """Value and gradient of the penalty."""
        if not self.fresh:
            self._read_masks()
        weights = [self.model.get_parameter(name).detach() for name in self.names]
        needed = self.settings.dual == "average" or bool(self.multipliers[1].any())
        curved = needed and self.steps % self.settings.every == 0
        kind = _Exact if self.exact else _Frozen
        groups, members, present = {}, {}, torch.zeros_like(self.average.values, dtype=torch.bool)
        for code in self.codes:
            chosen = slice(None) if code == self.data.num_groups else batch.groups == code
            members[code] = len(batch.targets[chosen])
            if members[code]:
                groups[code] = kind(
                    self._gradient_of(batch.inputs[chosen], batch.targets[chosen]), weights
                )
                present[:, code] = True
        norms = torch.stack([parts_norm(group.gradient) for group in groups.values()])
        self.whole = self._whole(groups, members, norms)
        seen = self.average.values.clone()
        seen[0, list(groups)] = norms.to(seen)
        present[1] = False
        self.average.update(seen, present)
        multipliers = (
            self.multipliers * present[0, : self.data.num_groups]
        )  # An absent group adds nothing.
        factors = self._factors(self.full, multipliers)
        direction: Parts = [torch.zeros_like(weight) for weight in weights]
        for code, group in groups.items():
            slope, bend = factors[:, code].tolist()
            bend *= self.settings.every  # Stands for the steps that leave it out.
            part, image = group.combine(slope, bend, self.vectors[code] if curved else None)
            self.gradients += group.taken * members[code]
            direction = [a + b for a, b in zip(direction, self._project(part), strict=True)]
            if image is not None:
                image = self._project(image)
                seen[1, code], present[1, code] = dot(self.vectors[code], image), True
                self._follow(code, image)
        present[0] = False
        self.average.update(seen, present)
        violations = self.settings.violations(self._gaps(self.average.values))
        return (multipliers * violations).sum(), direction

    def _whole(
        self, groups: dict[int, Any], members: dict[int, int], norms: Tensor
    ) -> tuple[float, Parts, float]:
        """Mean cross-entropy of the batch and its gradient, by those of the groups, whose mean norm
        says its scale."""
        shares = torch.tensor(
            [members[code] * (code < self.data.num_groups) for code in groups]
        ).to(norms)
        shares = shares / shares.sum()
        gradient = [torch.zeros_like(part) for part in next(iter(groups.values())).gradient]
        for share, group in zip(shares.tolist(), groups.values(), strict=True):
            gradient = moved(gradient, share, group.gradient)
        losses = torch.stack([group.loss for group in groups.values()])
        return float(shares @ losses), gradient, float(shares @ norms)

    def _gaps(self, numbers: Tensor) -> Tensor:
        if self.settings.population == "all":
            return torch.where(self.sizes > 0, numbers[:, :-1] - numbers[:, -1:], 0.0)
        return torch.stack([self.settings.gaps(row, self.sizes) for row in numbers])

    def _factors(self, numbers: Tensor, multipliers: Tensor) -> Tensor:
        """Derivatives of the penalty by the numbers."""
        point = numbers.clone().requires_grad_()
        gaps = self._gaps(point)
        weights = self.settings.weights(multipliers, gaps.detach())
        return torch.autograd.grad((weights * gaps).sum(), point)[0]

    def _gradient_of(
        self, inputs: Tensor, targets: Tensor
    ) -> Callable[..., tuple[Parts, Parts, Tensor]]:
        """Function from weights to the leaves made of them, and gradient and value of the mean
        cross-entropy there."""
        inputs, targets = inputs.detach(), targets.detach()

        def gradient(weights: Parts, *, create_graph: bool = False) -> tuple[Parts, Parts, Tensor]:
            leaves = [weight.detach().requires_grad_() for weight in weights]
            logits = evaluate(
                self.model, dict(zip(self.names, leaves, strict=True)), inputs, self.aliases
            )
            loss = cross_entropy(logits, targets)
            found = torch.autograd.grad(
                loss, leaves, create_graph=create_graph, materialize_grads=True
            )
            self.gradients += len(targets)
            return leaves, self._project(found), loss.detach()

        return gradient

    def _project(self, vector: Parts) -> Parts:
        """Zeros at the pruned weights."""
        return [
            part if kept is None else part * kept
            for part, kept in zip(vector, self.kept, strict=True)
        ]

    def _follow(self, code: int, image: Parts) -> None:
        """Replace the eigenvector by its image, shifted."""
        shifted = moved(image, self.shifts[code], self.vectors[code])
        if parts_norm(shifted) > 0:
            self.vectors[code] = parts_unit(shifted)

    def _smooth(self) -> bool:
        device, dtype = placement(self.model)
        with evaluation_mode(self.model), torch.no_grad(), Pattern() as pattern:
            self.model(self.data.batch(slice(0, 1), dtype=dtype, device=device))
        return pattern.nbytes == 0

    def _full_numbers(self) -> Tensor:
        """Gradient norms and eigenvalues in the training set; their eigenvectors are stored."""
        columns = max(*self.codes, self.data.num_groups - 1) + 1
        numbers = torch.zeros(2, columns, dtype=torch.float64, device=self.sizes.device)
        for code in self.codes:
            index = (
                None
                if code == self.data.num_groups
                else (self.data.groups == code).nonzero().flatten().cpu()
            )
            loss = MeanLoss(self.model, self.data, index)
            previous = self.vectors.get(code)
            flat = None if previous is None else torch.cat([part.flatten() for part in previous])
            # One step may do here: the vector goes on turning in the steps of the next epoch, from
            # the one of the last.
            found = extreme_eigenpairs(loss, Eigensearch("largest", tol=1e-2, least=1), flat)
            self.gradients += len(loss.index) * (1 + 2 * found.products)
            self.vectors[code] = list(loss.split(found.pairs[-1].vector).values())
            self.shifts[code] = found.scale
            numbers[0, code], numbers[1, code] = loss.gradient().norm(), found.pairs[-1].value
        return numbers

    def end_epoch(self) -> dict[str, float]:
        self.fresh, self.shared = False, None
        try:
            self.full = self._full_numbers()
        except FloatingPointError:  # The report shows NaN, and the training stops.
            self.full = torch.full_like(self.full, torch.nan)
        if not self.active:
            self.average.values = self.full.clone()
        gaps = self._gaps(self.full if self.settings.dual == "full" else self.average.values)
        violations = torch.where(self.sizes > 0, self.settings.violations(gaps), 0.0)
        if violations.isfinite().all():
            rows = zip(
                self.multipliers,
                violations,
                (self.settings.step, self.settings.eigenvalue_step),
                strict=True,
            )
            self.multipliers = torch.stack([self.settings.follow(*row) for row in rows])
        self.active = self.settings.dual == "average" or bool(self.multipliers.any())
        taken, self.gradients = self.gradients, 0
        seen = named(self.data, norm_violation=violations[0], eigenvalue_violation=violations[1])
        held = named(
            self.data,
            norm_multiplier=self.multipliers[0],
            eigenvalue_multiplier=self.multipliers[1],
        )
        return {"gradients": taken} | seen | held


class _Frozen:
    """A group's derivatives by differences of gradients, on the pieces of the network at the
    weights."""

    taken = 0  # Gradients per sample beside those that ``gradient`` counts.

    def __init__(
        self, gradient: Callable[..., tuple[Parts, Parts, Tensor]], weights: Parts
    ) -> None:
        self._gradient, self.weights, self.pattern = gradient, weights, Pattern()
        with self.pattern:
            _, self.gradient, self.loss = gradient(weights)
        # A difference errs by the rounding of gradients over the step, a second difference over its
        # square.
        double = weights[0].dtype == torch.float64
        self.once, self.twice = (1e-6, 1e-4) if double else (1e-3, 3e-3)

    def _at(self, *shifts: Any) -> Parts:
        """The gradient at the weights moved by ``length, direction, length, direction, ...``."""
        point = self.weights
        for length, direction in zip(shifts[::2], shifts[1::2], strict=True):
            if length:
                point = [
                    torch.add(a, b, alpha=length) for a, b in zip(point, direction, strict=True)
                ]
        with self.pattern:
            return self._gradient(point)[1]

    def combine(self, slope: float, bend: float, v: Parts | None) -> tuple[Parts, Parts | None]:
        """``slope`` times the gradient of the norm plus ``bend`` times that of the eigenvalue, and
        the image of v.

        Without v only the norm's part, and None.
        """
        u, step = parts_unit(self.gradient), self.twice
        if v is None:
            return self._slope(slope, u), None
        shift = step**2 * slope / (2 * bend) if bend else float("inf")
        joint = abs(shift) <= 10 * step**2
        ahead, behind = (self._at(sign * step, v, shift if joint else 0.0, u) for sign in (1, -1))
        image = [(a - b) / (2 * step) for a, b in zip(ahead, behind, strict=True)]
        scale = bend / step**2
        second = [
            scale * (a + b - 2 * g) for a, b, g in zip(ahead, behind, self.gradient, strict=True)
        ]
        if joint:
            return second, image
        return [a + b for a, b in zip(second, self._slope(slope, u), strict=True)], image

    def _slope(self, slope: float, u: Parts) -> Parts:
        if not slope:
            return [torch.zeros_like(part) for part in u]
        ahead = self._at(self.once, u)
        return [slope / self.once * (a - g) for a, g in zip(ahead, self.gradient, strict=True)]


class _Exact:
    """A group's derivatives by automatic differentiation."""

    def __init__(
        self, gradient: Callable[..., tuple[Parts, Parts, Tensor]], weights: Parts
    ) -> None:
        self.leaves, self._graph, self.loss = gradient(weights, create_graph=True)
        self.gradient, self.taken = [part.detach() for part in self._graph], 0

    def combine(self, slope: float, bend: float, v: Parts | None) -> tuple[Parts, Parts | None]:
        total, image = slope * dot(self._graph, parts_unit(self.gradient)), None
        if v is not None:
            graph = self._derivative(dot(self._graph, v), graph=True)
            total = total + bend * dot(graph, v)
            image = [part.detach() for part in graph]
        return self._derivative(total), image

    def _derivative(self, value: Tensor, *, graph: bool = False) -> Parts:
        self.taken += 2
        return torch.autograd.grad(
            value, self.leaves, create_graph=graph, retain_graph=True, materialize_grads=True
        )
