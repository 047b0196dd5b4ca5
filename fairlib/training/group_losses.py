"""Group losses and differences of accuracies that can be differentiated."""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot, softplus

from fairlib._validation import check_number, lookup

SURROGATES: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "affine": lambda margins: 0.5 + margins / 4,
    "hinge": lambda margins: (1 + margins).clamp(min=0),
    "logistic": lambda margins: softplus(margins) / math.log(2),
    "indicator": lambda margins: (margins > 0).to(margins.dtype),
}
r"""Surrogates :math:`u` of :math:`1(z > 0)` by name. The sigmoid and the affine one are
*consistent*, :math:`u(z) + u(-z) = 1`; the hinge and the logistic one are convex upper bounds. The
indicator has no gradient."""


def means_and_counts(values: Tensor, groups: Tensor, num_groups: int) -> tuple[Tensor, Tensor]:
    r"""Compute the mean of ``values`` over each group, :math:`\frac{1}{|D_a|} \sum_{i \in D_a}
    v_i`, and its size.

    Args:
        values: Floating ``(N,)``; gradients flow through.
        groups: int64 ``(N,)`` codes below ``num_groups``.
        num_groups: Number of groups k.

    Returns:
        Means ``(k,)`` and counts int64 ``(k,)``. The mean of a group without samples is 0, with
        gradient 0.
    """
    # A product sums in a fixed order; scattering on CUDA does not.
    member = (groups[:, None] == torch.arange(num_groups, device=groups.device)).to(values.dtype)
    counts = member.sum(0)
    return (values @ member) / counts.clamp(min=1), counts.to(torch.int64)


def margins(logits: Tensor, targets: Tensor) -> Tensor:
    r"""Compute the margins :math:`z_y - \max_{j \ne y} z_j`, positive where the prediction is
    right.

    With two classes a margin is :math:`y f(x)` for labels :math:`y = \pm 1` and :math:`f = z_1 -
    z_0`.

    Args:
        logits: ``(N, C)``.
        targets: int64 ``(N,)``.

    Returns:
        Margins ``(N,)``, differentiable in the logits.
    """
    own = logits.gather(1, targets[:, None])
    others = logits.masked_fill(one_hot(targets, logits.shape[1]).bool(), -torch.inf)
    return own.squeeze(1) - others.amax(1)


@dataclass(frozen=True)
class AccuracyDifference:
    r"""A penalty on the differences between groups' accuracies, corrected from [B] Eq. 4.

    With margins :math:`r_i` (:func:`margins`) and a surrogate :math:`u` of :math:`1(r > 0)`, a
    group's accuracy is estimated by :math:`A_a = \frac{1}{|D_a|} \sum_{i \in D_a} u(r_i / T)`, and
    a pair of groups differs by :math:`F_{ab} = A_a - A_b`. The penalty is :math:`\nu`, the weight,
    times the largest or the mean of :math:`\varphi(F_{ab})` over the pairs whose two groups are
    present; without such a pair it is 0.

    For two groups and a consistent :math:`u`, this :math:`F` is :math:`\frac{1}{N} \sum_i u(s_i \,
    r_i) / P(S = s_i) - 1`, the printed formula with the sign :math:`s_i` of the group put back,
    where :math:`P(S = s)` is the group's share of the samples.

    Args:
        weight: Weight :math:`\nu` of the penalty, at least 0.
        surrogate: A name of :data:`fairlib.training.group_losses.SURROGATES`, or a function of
            margins ``(N,)`` that gives as many values and can be differentiated. A convex one that
            is not affine is no consistent estimate of an accuracy; the difference of two is, at
            least, 0 where the margins of both groups are distributed alike.
        temperature: :math:`T`, positive: the width over which the surrogate smooths the step at
            margin 0.
        penalty: The function :math:`\varphi`: ``"absolute"``, :math:`|F|`; ``"square"``,
            :math:`F^2`; ``"hinge"``, :math:`\max(|F| - \tau, 0)`.
        tau: Difference :math:`\tau` that the hinge tolerates, at least 0.
        pairs: ``"max"`` for the largest cost of a pair of groups, ``"mean"`` for the mean over the
            pairs; with two groups both are the same.
        as_published: Whether to compute Eq. 4 as it is printed, times :math:`\nu`:
            :math:`\frac{1}{N} \sum_i u(r_i / T) / P(S_i) - 1`, where :math:`P` is the group's share
            of the samples at hand. For the indicator that is the sum of two accuracies minus 1. It
            is signed, for two groups only, and without :math:`\varphi`.

    Raises:
        ValueError: If a name is unknown, a number out of range, ``tau`` given without the hinge, or
            a penalty with ``as_published``.

    Source:
        [B] Eqs. 2 to 4 and Section 4.3; Wu, Zhang, Wu (2019) for surrogates of constraints.
    """

    weight: float = 1.0
    _: KW_ONLY
    surrogate: str | Callable[[Tensor], Tensor] = "sigmoid"
    temperature: float = 1.0
    penalty: str = "absolute"
    tau: float = 0.0
    pairs: str = "max"
    as_published: bool = False

    def __post_init__(self) -> None:
        check_number("weight", self.weight, 0)
        self._function()
        check_number("temperature", self.temperature, 0, low_open=True)
        lookup("penalty", self.penalty, dict.fromkeys(("absolute", "square", "hinge")))
        check_number("tau", self.tau, 0)
        lookup("choice of pairs", self.pairs, dict.fromkeys(("max", "mean")))
        if self.tau and self.penalty != "hinge":
            raise ValueError(
                f"tau = {self.tau} is the tolerance of penalty 'hinge', and penalty is {self.penalty!r}"
            )
        if self.as_published and (self.penalty, self.pairs) != ("absolute", "max"):
            raise ValueError(
                "as_published=True is Eq. 4 as printed, signed: it has no penalty and no pairs to choose"
            )

    def refuse_without_gradient(self) -> None:
        """Refuse a surrogate without a gradient, with which nothing can be trained.

        Raises:
            ValueError: If the surrogate is the indicator.
        """
        if self.surrogate == "indicator":
            raise ValueError(
                "surrogate 'indicator' has no gradient: it can measure, not train; take 'sigmoid'"
            )

    def _function(self) -> Callable[[Tensor], Tensor]:
        return (
            self.surrogate
            if callable(self.surrogate)
            else lookup("surrogate", self.surrogate, SURROGATES)
        )

    def __call__(self, logits: Tensor, targets: Tensor, groups: Tensor, num_groups: int) -> Tensor:
        """Compute the penalty of N samples: a scalar, differentiable in the logits ``(N, C)``."""
        values = self._function()(margins(logits, targets) / self.temperature)
        accuracies, counts = means_and_counts(values, groups, num_groups)
        present = accuracies[counts > 0]
        if self.as_published:
            if num_groups != 2:
                raise ValueError(
                    f"as_published=True (Eq. 4 of [B]) is about two groups, and these are {num_groups}"
                )
            return self.weight * (present.sum() - 1)
        if len(present) < 2:
            return self.weight * 0 * values.sum()
        first, second = torch.triu_indices(
            len(present), len(present), offset=1, device=present.device
        )
        gaps = (present[first] - present[second]).abs()
        costs = gaps.square() if self.penalty == "square" else (gaps - self.tau).clamp(min=0)
        return self.weight * (costs.max() if self.pairs == "max" else costs.mean())
