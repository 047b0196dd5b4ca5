r"""Lagrangian duality for constraints on groups: gaps, violations and the dual step.

Several mitigations share it. A constraint is a gap :math:`h_a(\theta)` for every group :math:`a`:
some quantity of the group minus that of the population. Training descends on :math:`J + \sum_a
\lambda_a \nu_a`, with a violation :math:`\nu_a` of the gap and a multiplier :math:`\lambda_a`,
which is zero at first; a dual step moves the multiplier by the violation.

``cooper-optim`` (1.0) has such multipliers for signed equalities and for inequalities. It is not
used, since its optimizers take both the primal and the dual step, and :func:`fairlib.fit` takes the
primal one. Only the update of a vector would be left to it, a line of arithmetic. The absolute
violations of [T], gaps between groups and groups that a batch lacks would still have to be written
here.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fairlib._validation import check_number, lookup
from fairlib.data import GroupedDataset


@dataclass(frozen=True)
class Lagrangian:
    r"""Settings of a Lagrangian: the kind of violation, and how multipliers follow it.

    Args:
        step: Dual step :math:`s`, positive.
        violation: ``"absolute"``: :math:`\nu = \max(|h| - \tau, 0)`, whose multipliers never fall
            (Fioretto et al., [T]). ``"signed"``: :math:`\nu = h` with multipliers of either sign,
            the dual ascent of an equality. ``"one-sided"``: :math:`\nu = h - \tau`, :math:`\lambda
            \leftarrow \max(\lambda + s \nu, 0)`, the projected dual ascent of :math:`h \le \tau`:
            only groups that are worse off than the population are constrained. It is negative where
            the constraint is met.
        tolerance: Tolerance :math:`\tau`, at least 0; a signed violation has none.
        population: Value that a group is compared with: the mean over ``"all"`` samples, the mean
            over all ``"groups"``, each counting once, or the mean over the samples of the
            ``"others"``. A large group makes up much of all samples, so that comparing it with
            these hardly constrains it.
        cap: Largest absolute value of a multiplier, positive.
        restart: Whether a multiplier returns to 0 when its constraint is met; not with signed
            violations.

    Raises:
        TypeError: If a numeric argument is not a number.
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
        # A group without others has the weight 0. Divided by it, NaN would reach the gradient even
        # though torch.where drops the value: its backward pass multiplies the NaN by zero.
        means = total / weight.clamp(min=torch.finfo(values.dtype).tiny)
        return (values - means).masked_fill(~(present & (weight > 0)), 0)

    def violations(self, gaps: Tensor) -> Tensor:
        r"""Compute the violations :math:`\nu_a` of gaps :math:`h_a`, both ``(k,)``."""
        if self.violation == "absolute":
            return (gaps.abs() - self.tolerance).clamp(min=0)
        return gaps - self.tolerance

    def weights(self, multipliers: Tensor, gaps: Tensor) -> Tensor:
        r"""Compute the weights ``(k,)`` of the gaps' gradients.

        .. math:: \lambda_a \, d\nu_a / dh_a
        """
        if self.violation != "absolute":
            return multipliers
        return multipliers * gaps.sign() * (gaps.abs() > self.tolerance)

    def dual_step(
        self, multipliers: Tensor, violations: Tensor, step: Tensor | float | None = None
    ) -> Tensor:
        """Return the multipliers ``(k,)`` after a step along violations ``(k,)``.

        Args:
            multipliers: Multipliers before the step.
            violations: Violations of the constraints, by :meth:`violations`.
            step: Dual step; by default that of the settings.
        """
        after = multipliers + (self.step if step is None else step) * violations
        # An inequality's multiplier may not turn negative: it would push a group that is well off
        # towards the others. Those of signed violations enforce an equality, and may.
        after = after.clamp(-self.cap if self.violation == "signed" else 0.0, self.cap)
        return after * (violations > 0) if self.restart else after


def group_columns(data: GroupedDataset, **columns: Tensor) -> dict[str, float]:
    """Name each group's value as the history of a training does: ``"violation[group]"``."""
    named = {}
    for column, values in columns.items():
        for group, value in zip(data.group_names, values.tolist(), strict=True):
            named[f"{column.replace('_', ' ')}[{group}]"] = value
    return named


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
