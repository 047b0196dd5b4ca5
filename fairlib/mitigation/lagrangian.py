r"""Lagrangian duality for constraints on groups: gaps, violations and multipliers, which several
mitigations share.

A constraint is a gap :math:`h_a(\theta)` for every group :math:`a`: some quantity of the group
minus that of the population. Training descends on :math:`J + \sum_a \lambda_a \nu_a`, with a
violation :math:`\nu_a` of the gap and a multiplier :math:`\lambda_a`, which is zero at first; a
dual update moves the multiplier by the violation.

``cooper-optim`` (1.0) has such multipliers for signed equalities and for inequalities. It is not
used, since its optimizers take both the primal and the dual step, and :func:`fairlib.fit` takes the
primal one: what would be left is the update of a vector, a line of arithmetic, while the absolute
violations of [T], gaps between groups, moving averages and groups that a batch lacks would still
have to be written here."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fairlib._validation import check_number, lookup
from fairlib.data import GroupedDataset


@dataclass(frozen=True)
class Lagrangian:
    r"""The settings of a Lagrangian: what a violation is, and how multipliers follow it.

    Args:
        step: Dual step :math:`s`, positive.
        violation: ``"absolute"``: :math:`\nu = \max(|h| - \tau, 0)`, whose multipliers never fall
            (Fioretto et al., [T]). ``"signed"``: :math:`\nu = h` with multipliers of either sign,
            the dual ascent of an equality. ``"one-sided"``: :math:`\nu = h - \tau`, :math:`\lambda
            \leftarrow \max(\lambda + s \nu, 0)`, the projected dual ascent of :math:`h \le \tau`:
            only groups that are worse off than the population are held. It is negative where the
            constraint is met.
        tolerance: Tolerance :math:`\tau`, at least 0; a signed violation has none.
        population: Value that a group is compared with: the mean over ``"all"`` samples, the mean
            over all ``"groups"``, each counting once, or the mean over the samples of the
            ``"others"``. A large group makes up much of all samples, so that comparing it with
            these hardly constrains it.
        cap: Largest absolute value of a multiplier, positive.
        restart: Whether a multiplier returns to 0 when its constraint is met; not with signed
            violations.

    Raises:
        TypeError: If a number is none.
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
        lookup("violation", self.violation, dict.fromkeys(("absolute", "signed", "one-sided")))
        check_number("tolerance", self.tolerance, 0)
        if self.violation == "signed" and (self.tolerance or self.restart):
            name = "tolerance" if self.tolerance else "restart"
            raise ValueError(
                f"a signed violation has no {name}; take violation 'absolute' or 'one-sided'"
            )
        lookup("population", self.population, dict.fromkeys(("all", "groups", "others")))
        check_number("cap", self.cap, 0, low_open=True, high_closed=True)

    def gaps(self, values: Tensor, sizes: Tensor) -> Tensor:
        """Compute each group's value minus that of the population.

        Args:
            values: Value of each group, ``(k,)``.
            sizes: Weight of each group in the population, ``(k,)``.

        Returns:
            Gaps ``(k,)``; 0, with gradient 0, for a group of size 0 and for one that has no others
            to compare with.
        """
        present = sizes > 0
        weights = present.to(values) if self.population == "groups" else sizes.to(values)
        total, weight = (weights * values).sum(), weights.sum()
        if self.population == "others":
            total, weight = total - weights * values, weight - weights
        means = total / weight.clamp(min=torch.finfo(values.dtype).tiny)
        return torch.where(present & (weight > 0), values - means, 0.0)

    def violations(self, gaps: Tensor) -> Tensor:
        r"""Compute the violations :math:`\nu_a` of gaps :math:`h_a`, both ``(k,)``."""
        if self.violation == "absolute":
            return (gaps.abs() - self.tolerance).clamp(min=0)
        return gaps - self.tolerance

    def weights(self, multipliers: Tensor, gaps: Tensor) -> Tensor:
        r"""Compute the factors :math:`\lambda_a \, d\nu_a / dh_a` of the gaps' gradients in the
        penalty's, ``(k,)``."""
        if self.violation != "absolute":
            return multipliers
        return multipliers * gaps.sign() * (gaps.abs() > self.tolerance)

    def follow(self, multipliers: Tensor, violations: Tensor, step: float | None = None) -> Tensor:
        """Return the multipliers ``(k,)`` after a dual step on violations ``(k,)``; ``step``
        replaces the own one."""
        after = multipliers + (self.step if step is None else step) * violations
        after = after.clamp(-self.cap if self.violation == "signed" else 0.0, self.cap)
        return after * (violations > 0) if self.restart else after


class MovingAverage:
    """Exponential moving averages by group; an absent group keeps its average.

    Args:
        start: Initial averages ``(..., k)``.
        decay: Weight of the old average in an update, in [0, 1).
    """

    def __init__(self, start: Tensor, decay: float) -> None:
        self.values, self.decay = start.clone(), decay

    def update(self, values: Tensor, present: Tensor) -> None:
        """Update ``values``, the averages ``(..., k)``, by those of the groups that are present."""
        mixed = self.decay * self.values + (1 - self.decay) * values.detach()
        self.values = torch.where(present, mixed, self.values)


def named(data: GroupedDataset, **columns: Tensor) -> dict[str, float]:
    """Name each group's value as the history of a training does: ``"violation[group]"``."""
    return {
        f"{what.replace('_', ' ')}[{name}]": value
        for what, values in columns.items()
        for name, value in zip(data.group_names, values.tolist(), strict=True)
    }


def sizes_of(data: GroupedDataset, what: str) -> Tensor:
    """Count the members of each group, int64 ``(k,)`` on the device of the data.

    Args:
        data: Training set.
        what: Name of the constraint in the error message.

    Raises:
        ValueError: If fewer than two groups have a member.
    """
    sizes = torch.bincount(data.groups, minlength=data.num_groups)
    if (sizes > 0).sum() < 2:
        present = (
            name for name, size in zip(data.group_names, sizes.tolist(), strict=True) if size
        )
        raise ValueError(
            f"{what} needs at least two groups with members, got only: {', '.join(present)}"
        )
    return sizes
