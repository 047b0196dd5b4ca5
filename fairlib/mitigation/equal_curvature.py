"""Equal gradients and curvature: norms and largest eigenvalues of all groups are held together ([T] Eq. 7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fairlib._validation import check_number, lookup
from fairlib.data import GroupedDataset
from fairlib.diagnostics.curvature import Eigensearch, extremes
from fairlib.diagnostics.frozen import Pattern
from fairlib.diagnostics.objective import MeanLoss, check_parameters
from fairlib.diagnostics.vectors import Parts, dot, moved, parts_norm, parts_unit
from fairlib.mitigation.lagrangian import Lagrangian, MovingAverage, named, sizes_of
from fairlib.network import masks
from fairlib.network.evaluation import aliases, evaluate, evaluation_mode, full_precision, placement
from fairlib.training import Batch, Constraint, Objective, with_gradient


@dataclass(frozen=True)
class EqualCurvature(Lagrangian, Constraint):
    r"""Constrain :math:`\|g_a\|` and :math:`\lambda_{\max}(H_a)` of every group to those of the population, with the
    gradient and the Hessian of the group's mean cross-entropy.

    Each step descends on :math:`J(B) + \sum_a \mu_a \nu(\|g_a\|) + \kappa_a \nu(\lambda_a)`. With unit vectors
    :math:`u_a = g_a / \|g_a\|` and :math:`v_a`, the top eigenvector,

    .. math:: \nabla \|g_a\| = H_a u_a, \qquad \nabla \lambda_a = D^2 g_a[v_a, v_a],

    and both come from two gradients beside the group's own: with the kinks of the network held
    (:mod:`fairlib.diagnostics.frozen`) and :math:`\eta` of the order :math:`\epsilon^2`,

    .. math::
       g_a(\theta + \epsilon v + \eta u) + g_a(\theta - \epsilon v + \eta u) - 2 g_a
       \approx 2 \eta H_a u + \epsilon^2 D^2 g_a[v, v],

    where :math:`\eta` is chosen such that the two terms have the ratio that the multipliers ask for; where it asks for
    an :math:`\eta` beyond :math:`10 \epsilon^2` the first term takes a gradient of its own. Their difference
    gives :math:`H_a v`, by which :math:`v_a` follows the weights: each step it is replaced by :math:`H_a v + \sigma v`,
    normalized, with a shift :math:`\sigma` of the largest magnitude that was met at the last epoch, so that a negative
    eigenvalue does not take it over. After each epoch the eigenvectors are computed anew on the whole training set, by
    a Lanczos process into which the group's gradient and noise are mixed, so that it does not stay with an eigenvalue
    that another one has overtaken. A network without kinks is differentiated exactly, by automatic differentiation.

    The constraint's own passes are in eval mode: a batch normalization uses its running statistics there, which only
    the pass for the loss updates. In train mode a group's gradient would depend on the whole batch, and be another one:
    for a tiny ResNet on the digits (batches of 150, after 5 and 20 epochs, three seeds) norms are .6 of those in eval
    mode in the median (.2 to 1.0), eigenvalues .35 (.1 to .9), and the cosine of the two gradients is .6 (.35 to .75).
    What is differentiated are the norm and the eigenvalue of the batch's members of a group, of their cross-entropy
    whatever the objective of the training is; for a group absent from the batch nothing is asked, and it keeps its
    averages. The numbers after an epoch come from frozen products, to a hundredth of an eigenvalue.

    Args:
        step: The dual step of the gradient norms, positive.
        violation, tolerance, cap, restart: Of :class:`fairlib.mitigation.lagrangian.Lagrangian`, the same for norms and
            eigenvalues, although these have other units.
        population: What a group is compared with: the mean of the numbers of all ``"groups"``, or of the ``"others"``
            by their sizes. ``"all"`` is the gradient and the Hessian of all samples, as Eq. 7 is printed. At a minimum
            that gradient is zero, so it asks every group's to vanish; and it takes twice the time.
        eigenvalue_step: The dual step of the eigenvalues; by default ``step``, and with 0 only norms are constrained.
            Eigenvalues are larger numbers than norms, and bend further: on the digits a hundredth of ``step`` or less
            served.
        every: The part of the eigenvalues is computed every so many steps, that many times as large, and left out in
            between.
        dual: What the multipliers follow after an epoch: the ``"full"`` training set, or the moving ``"average"`` of
            the batches' numbers. Norms of batch gradients are biased upward, those of small groups most.
        primal: Which numbers say on which side of the population a group is, and so which way an absolute violation
            pushes: those in the ``"full"`` training set after the epoch before, or the moving ``"average"``, which is
            nearer to the weights and biased like the batches' numbers.
        products: ``"frozen"`` as above, ``"exact"`` by automatic differentiation, or ``"auto"``: exact where the
            network has no kinks.
        decay: Share of the old value in the moving averages, by the step.

    Raises:
        ValueError: If a setting is out of range or unknown; at the start of a training, if there is one group only.

    Source:
        [T] Eq. 7 and section 6.
    """

    population: str = "groups"
    eigenvalue_step: float | None = None
    every: int = 1
    dual: str = "full"
    primal: str = "full"
    products: str = "auto"
    decay: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eigenvalue_step is not None:
            check_number("eigenvalue_step", self.eigenvalue_step, 0)
        check_number("every", self.every, 1, whole=True)
        for estimate in (self.primal, self.dual):
            lookup("estimate", estimate, dict.fromkeys(("full", "average")))
        lookup("kind of products", self.products, dict.fromkeys(("auto", "frozen", "exact")))
        check_number("decay", self.decay, 0, 1)

    def start(self, model: nn.Module, data: GroupedDataset, objective: Objective) -> _EqualCurvatureRun:
        return _EqualCurvatureRun(self, model, data)


class _EqualCurvatureRun:
    """Numbers of the groups are ``(2, k)``, gradient norms and eigenvalues; those of all samples come last."""

    def __init__(self, settings: EqualCurvature, model: nn.Module, data: GroupedDataset) -> None:
        self.settings, self.model, self.data = settings, model, data
        self.sizes = sizes_of(data, "equal curvature")
        self.names = check_parameters(model, None)
        self.aliases = aliases(model)
        self.codes = [code for code, size in enumerate(self.sizes.tolist()) if size]
        if settings.population == "all":
            self.codes.append(data.num_groups)
        self.multipliers = torch.zeros(2, data.num_groups, dtype=torch.float64, device=self.sizes.device)
        self.vectors: dict[int, Parts] = {}
        self.shifts: dict[int, float] = {}
        self.gradients = 0
        self.full = self._full_numbers()
        self.average = MovingAverage(self.full, settings.decay)
        self.exact = settings.products == "exact" or (settings.products == "auto" and self._smooth())
        self.steps, self.active = 0, settings.dual == "average"
        self._read_masks()

    def _read_masks(self) -> None:
        """Masks may change between epochs (:class:`fairlib.training.Sparsifier`)."""
        kept = masks.read(self.model)
        self.kept = [kept.get(name) for name in self.names]
        self.vectors = {code: parts_unit(self._project(vector)) for code, vector in self.vectors.items()}
        self.fresh = True

    def loss(self, batch: Batch) -> Tensor:
        loss = batch.losses.mean()
        if self.active:
            with evaluation_mode(self.model), full_precision(), torch.enable_grad():
                value, direction = self._penalty(batch)
            parameters = dict(self.model.named_parameters())
            loss = with_gradient(loss + value.to(loss), direction, [parameters[name] for name in self.names])
        self.steps += 1
        return loss

    def _penalty(self, batch: Batch) -> tuple[Tensor, Parts]:
        """The value of the penalty, and its gradient."""
        if not self.fresh:
            self._read_masks()
        weights = [self.model.get_parameter(name).detach() for name in self.names]
        needed = self.settings.dual == "average" or bool(self.multipliers[1].any())
        curved = needed and self.steps % self.settings.every == 0
        groups, members, present = {}, {}, torch.zeros_like(self.average.values, dtype=torch.bool)
        for code in self.codes:
            chosen = slice(None) if code == self.data.num_groups else batch.groups == code
            members[code] = len(batch.targets[chosen])
            if members[code]:
                kind = _Exact if self.exact else _Frozen
                groups[code] = kind(self._gradient_of(batch.inputs[chosen], batch.targets[chosen]), weights)
                present[:, code] = True
        norms = torch.stack([parts_norm(group.gradient) for group in groups.values()])
        seen = self.average.values.clone()
        seen[0, list(groups)] = norms.to(seen)
        present[1] = False
        self.average.update(seen, present)
        here = torch.tensor([code in groups for code in range(self.data.num_groups)], device=self.sizes.device)
        multipliers = self.multipliers * here  # Nothing is asked for a group that is absent.
        factors = self._factors(self._believed(), multipliers)
        direction: Parts = [torch.zeros_like(weight) for weight in weights]
        for code, group in groups.items():
            slope, bend = factors[:, code].tolist()
            bend *= self.settings.every  # For the steps that leave it out.
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

    def _believed(self) -> Tensor:
        """The numbers that decide which way an absolute violation pushes."""
        return self.full if self.settings.primal == "full" else self.average.values

    def _gaps(self, numbers: Tensor) -> Tensor:
        if self.settings.population == "all":
            return torch.where(self.sizes > 0, numbers[:, :-1] - numbers[:, -1:], 0.0)
        return torch.stack([self.settings.gaps(row, self.sizes) for row in numbers])

    def _factors(self, numbers: Tensor, multipliers: Tensor) -> Tensor:
        """The derivatives of the penalty by the numbers."""
        point = numbers.clone().requires_grad_()
        gaps = self._gaps(point)
        weights = self.settings.weights(multipliers, gaps.detach())
        return torch.autograd.grad((weights * gaps).sum(), point)[0]

    def _gradient_of(self, inputs: Tensor, targets: Tensor) -> Callable[..., tuple[Parts, Parts]]:
        """From weights to the leaves at which they were taken and the gradient there of the mean cross-entropy."""
        inputs, targets = inputs.detach(), targets.detach()

        def gradient(weights: Parts, *, create_graph: bool = False) -> tuple[Parts, Parts]:
            leaves = [weight.detach().requires_grad_() for weight in weights]
            logits = evaluate(self.model, dict(zip(self.names, leaves, strict=True)), inputs, self.aliases)
            loss = cross_entropy(logits, targets)
            found = torch.autograd.grad(loss, leaves, create_graph=create_graph, materialize_grads=True)
            self.gradients += len(targets)
            return leaves, self._project(found)

        return gradient

    def _project(self, vector: Parts) -> Parts:
        """Zeros at the pruned weights."""
        return [part if kept is None else part * kept for part, kept in zip(vector, self.kept, strict=True)]

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
        """Gradient norms and eigenvalues ``(2, k)`` in the training set; the eigenvectors are kept."""
        columns = max(*self.codes, self.data.num_groups - 1) + 1
        numbers = torch.zeros(2, columns, dtype=torch.float64, device=self.sizes.device)
        for code in self.codes:
            index = None if code == self.data.num_groups else (self.data.groups == code).nonzero().flatten().cpu()
            loss = MeanLoss(self.model, self.data, index)
            previous = self.vectors.get(code)
            flat = None if previous is None else torch.cat([part.flatten() for part in previous])
            found = extremes(loss, Eigensearch("largest", tol=1e-2), flat)
            pair = found.pairs[-1]
            self.gradients += len(loss.index) * (1 + 2 * found.hvps)
            self.vectors[code] = list(loss.split(pair.vector).values())
            self.shifts[code] = found.scale
            numbers[0, code], numbers[1, code] = loss.gradient().norm(), pair.value
        return numbers

    def end_epoch(self) -> dict[str, float]:
        self.fresh = False
        try:
            self.full = self._full_numbers()
        except FloatingPointError:  # The report will show it, and the training stop.
            self.full = torch.full_like(self.full, torch.nan)
        if not self.active:
            self.average.values = self.full.clone()
        gaps = self._gaps(self.full if self.settings.dual == "full" else self.average.values)
        violations = torch.where(self.sizes > 0, self.settings.violations(gaps), 0.0)
        if violations.isfinite().all():
            steps = self.settings.step, self.settings.eigenvalue_step
            rows = zip(self.multipliers, violations, steps, strict=True)
            self.multipliers = torch.stack([self.settings.follow(*row) for row in rows])
        self.active = self.settings.dual == "average" or bool(self.multipliers.any())
        taken, self.gradients = self.gradients, 0
        return {"gradients": taken} | named(
            self.data,
            norm_violation=violations[0],
            eigenvalue_violation=violations[1],
            norm_multiplier=self.multipliers[0],
            eigenvalue_multiplier=self.multipliers[1],
        )


class _Frozen:
    """A group's derivatives by differences of gradients, the kinks held where they are at the weights."""

    taken = 0  # Beside the gradients that it asks for.

    def __init__(self, gradient: Callable[..., tuple[Parts, Parts]], weights: Parts) -> None:
        self._gradient, self.weights, self.pattern = gradient, weights, Pattern()
        self.gradient = self._at(0.0, weights)
        # A difference errs by the rounding of gradients over the step, a second difference over its square.
        double = weights[0].dtype == torch.float64
        self.once, self.twice = (1e-6, 1e-4) if double else (1e-3, 3e-3)

    def _at(self, *shifts: Any) -> Parts:
        """The gradient at the weights moved by ``length, direction, length, direction, ...``."""
        point = self.weights
        for length, direction in zip(shifts[::2], shifts[1::2], strict=True):
            if length:
                point = [torch.add(a, b, alpha=length) for a, b in zip(point, direction, strict=True)]
        with self.pattern:
            return self._gradient(point)[1]

    def combine(self, slope: float, bend: float, v: Parts | None) -> tuple[Parts, Parts | None]:
        """``slope`` times the gradient of the norm plus ``bend`` times that of the eigenvalue, and v's image.

        Without v only the first.
        """
        u, step = parts_unit(self.gradient), self.twice
        if v is None:
            return self._slope(slope, u), None
        shift = step**2 * slope / (2 * bend) if bend else float("inf")
        joint = abs(shift) <= 10 * step**2
        ahead, behind = (self._at(sign * step, v, shift if joint else 0.0, u) for sign in (1, -1))
        image = [(a - b) / (2 * step) for a, b in zip(ahead, behind, strict=True)]
        scale = bend / step**2
        second = [scale * (a + b - 2 * g) for a, b, g in zip(ahead, behind, self.gradient, strict=True)]
        if joint:
            return second, image
        return [a + b for a, b in zip(second, self._slope(slope, u), strict=True)], image

    def _slope(self, slope: float, u: Parts) -> Parts:
        if not slope:
            return [torch.zeros_like(part) for part in u]
        ahead = self._at(self.once, u)
        return [slope / self.once * (a - g) for a, g in zip(ahead, self.gradient, strict=True)]


class _Exact:
    """The same by automatic differentiation."""

    def __init__(self, gradient: Callable[..., tuple[Parts, Parts]], weights: Parts) -> None:
        self.leaves, self._graph = gradient(weights, create_graph=True)
        self.gradient, self.taken = [part.detach() for part in self._graph], 0

    def combine(self, slope: float, bend: float, v: Parts | None) -> tuple[Parts, Parts | None]:
        total, image = slope * dot(self._graph, parts_unit(self.gradient)), None
        if v is not None:
            graph = self._derivative(dot(self._graph, v), create_graph=True)
            total = total + bend * dot(graph, v)
            image = [part.detach() for part in graph]
        return self._derivative(total), image

    def _derivative(self, value: Tensor, *, create_graph: bool = False) -> Parts:
        self.taken += 2
        return torch.autograd.grad(
            value, self.leaves, create_graph=create_graph, retain_graph=True, materialize_grads=True
        )
