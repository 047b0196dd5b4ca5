r"""Lagrangian duality for constraints on groups: gaps, multipliers, and how they move. Shared by the methods.

A constraint is a gap :math:`h_a(\theta)` for every group :math:`a`: some quantity of the group minus that of the
population. Training descends on :math:`J + \sum_a \lambda_a \nu_a`; a dual update lets the multiplier
:math:`\lambda_a`, zero at first, follow the violation :math:`\nu_a`.

Written here and not taken from ``cooper-optim`` (1.0), whose multipliers do the same for signed equalities and for
inequalities: its optimizers own both steps of a training, :func:`fairlib.fit` owns the first, and what would be left to
use is the update of a vector, a line of arithmetic. Absolute violations as in [T], gaps between groups, moving averages
and groups that a batch lacks would be ours with it, too.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fairlib._validation import check_number, lookup
from fairlib.data import GroupedDataset

VIOLATIONS = ("absolute", "signed", "one-sided")
POPULATIONS = ("all", "groups", "others")


@dataclass(frozen=True)
class Lagrangian:
    r"""How violations count and multipliers move.

    Args:
        step: The dual step :math:`s`, positive.
        violation: ``"absolute"``: :math:`\nu = \max(|h| - \tau, 0)`, whose multipliers never fall (Fioretto et al.,
            [T]). ``"signed"``: :math:`\nu = h` with multipliers of either sign, the dual ascent of an equality.
            ``"one-sided"``: :math:`\nu = h - \tau`, :math:`\lambda \leftarrow \max(\lambda + s \nu, 0)`, the projected
            dual ascent of :math:`h \le \tau`: only groups that are worse off than the population are held. It is
            negative where the constraint is met.
        tolerance: :math:`\tau`, at least 0; a signed violation has none.
        population: What a group is compared with: the mean over ``"all"`` samples, that of all ``"groups"``, each
            counting once, or that of the ``"others"``. Of all samples a large group is a large part, and its
            constraint all but empty.
        cap: Multipliers stay within [-cap, cap].
        restart: A multiplier returns to 0 where its constraint is met; not with signed violations.

    Raises:
        ValueError: If a setting is out of range or unknown.
    """

    step: float = 0.02
    violation: str = "absolute"
    tolerance: float = 0.0
    population: str = "all"
    cap: float = math.inf
    restart: bool = False

    def __post_init__(self) -> None:
        check_number("step", self.step, 0, low_open=True)
        lookup("violation", self.violation, dict.fromkeys(VIOLATIONS))
        check_number("tolerance", self.tolerance, 0)
        if self.violation == "signed" and self.tolerance:
            raise ValueError("a signed violation has no tolerance; take 'absolute' or 'one-sided'")
        if self.violation == "signed" and self.restart:
            raise ValueError("a signed violation has no restart; take 'absolute' or 'one-sided'")
        lookup("population", self.population, dict.fromkeys(POPULATIONS))
        if not self.cap > 0:
            raise ValueError(f"cap must be positive, got {self.cap}")

    def gaps(self, values: Tensor, sizes: Tensor) -> Tensor:
        """:func:`gaps` from this population."""
        return gaps(values, sizes, self.population)

    def violations(self, gaps: Tensor) -> Tensor:
        r""":math:`\nu_a` of gaps ``(k,)``."""
        if self.violation == "absolute":
            return (gaps.abs() - self.tolerance).clamp(min=0)
        return gaps - self.tolerance

    def weights(self, multipliers: Tensor, gaps: Tensor) -> Tensor:
        r"""The factors :math:`\lambda_a \, d\nu_a / dh_a` ``(k,)`` that the gaps have in the penalty's gradient."""
        if self.violation != "absolute":
            return multipliers
        return multipliers * gaps.sign() * (gaps.abs() > self.tolerance)

    def ascend(self, multipliers: Tensor, gaps: Tensor) -> Tensor:
        """The multipliers ``(k,)`` after a dual step on gaps ``(k,)``."""
        return self.follow(multipliers, self.violations(gaps))

    def follow(self, multipliers: Tensor, violations: Tensor, step: float | None = None) -> Tensor:
        """The multipliers ``(k,)`` after a dual step on violations ``(k,)``."""
        after = multipliers + (self.step if step is None else step) * violations
        after = after.clamp(-self.cap if self.violation == "signed" else 0.0, self.cap)
        return after * (violations > 0) if self.restart else after


def gaps(values: Tensor, sizes: Tensor, population: str) -> Tensor:
    """Each group's value minus that of a population; 0, with gradient 0, for a group of size 0.

    Args:
        values: ``(k,)``, of each group.
        sizes: ``(k,)``, what each group counts in the population.
        population: ``"all"``, ``"groups"`` or ``"others"`` (:class:`Lagrangian`). Where there are no others the gap
            is 0.
    """
    present = sizes > 0
    weights = present.to(values) if population == "groups" else sizes.to(values)
    total, weight = (weights * values).sum(), weights.sum()
    if population == "others":
        total, weight = total - weights * values, weight - weights
    return torch.where(present & (weight > 0), values - total / weight.clamp(min=torch.finfo(values.dtype).tiny), 0.0)


class MovingAverage:
    """Exponential moving averages by group; a group that is absent keeps its own.

    Args:
        start: Values ``(..., k)`` before anything was seen.
        decay: Share of the old value, in [0, 1).
    """

    def __init__(self, start: Tensor, decay: float) -> None:
        self.values, self.decay = start.clone(), decay

    def update(self, values: Tensor, present: Tensor) -> Tensor:
        """Take in values ``(..., k)`` of the groups that are present; returns the averages ``(..., k)``."""
        mixed = self.decay * self.values + (1 - self.decay) * values.detach()
        self.values = torch.where(present, mixed, self.values)
        return self.values


def named(data: GroupedDataset, **columns: Tensor) -> dict[str, float]:
    """What a constraint reports to the history: ``"violation[group]"`` and the like."""
    return {
        f"{what.replace('_', ' ')}[{name}]": value
        for what, values in columns.items()
        for name, value in zip(data.group_names, values.tolist(), strict=True)
    }


def sizes_of(data: GroupedDataset, what: str) -> Tensor:
    """The numbers of members ``(k,)`` of the groups, on the device of the data.

    Raises:
        ValueError: If fewer than two groups have a member.
    """
    sizes = torch.bincount(data.groups, minlength=data.num_groups)
    if (sizes > 0).sum() < 2:
        present = (name for name, size in zip(data.group_names, sizes.tolist(), strict=True) if size)
        raise ValueError(f"{what} needs at least two groups with members, got only: {', '.join(present)}")
    return sizes
