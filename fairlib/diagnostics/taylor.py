"""Effect of a compression step on every group's loss: Taylor expansion and Theorem 1."""

import math
import warnings
from collections.abc import Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from fairlib.data import GroupedDataset
from fairlib.diagnostics.computable import NotFinite
from fairlib.diagnostics.curvature import Eigensearch, extreme_eigenpairs, warn_of_doubtful
from fairlib.diagnostics.lanczos import Eigenpairs
from fairlib.diagnostics.objective import MeanLoss, group_table
from fairlib.diagnostics.vectors import inner, norm
from fairlib.network import masks

TERMS = ("first", "second", "taylor", "excessive_loss", "remainder")
BOUND = ("norm", "largest", "step", "bound", "excessive_loss")


def taylor_terms(model: nn.Module, compressed: nn.Module, data: GroupedDataset) -> pd.DataFrame:
    r"""Expand every group's excessive loss in the compression step, to second order.

    With :math:`d = \bar\theta - \theta`, the parameters of ``compressed`` minus those of ``model``,
    the weights that were removed included, and :math:`g_a`, :math:`H_a` the gradient and the
    Hessian of :math:`J(\theta; D_a)`:

    - ``first`` is :math:`g_a^\top d`, and ``second`` is :math:`\frac12 d^\top H_a d`, from one
      exact Hessian-vector product;
    - ``taylor`` is their sum;
    - ``excessive_loss`` is :math:`R(a) = J(\theta + d; D_a) - J(\theta; D_a)`;
    - ``remainder`` is ``excessive_loss`` minus ``taylor``: :math:`O(\|d\|^3)` if the loss has three
      continuous derivatives on the segment between the two, and of any size for a step as long as
      pruning at 90 % takes.

    Unlike a bound the terms have a sign, and they can tell which group pays.

    Args:
        model: The network before compression: any differentiable classifier. Its mode, buffers and
            ``.grad`` are left as they were; it is evaluated in eval mode.
        compressed: The same architecture after it. Only its parameters are read: :math:`J(\theta +
            d)` is the loss of ``model`` with these parameters, and with ``model``'s buffers, since
            otherwise it would be no function of d alone. Where other buffers than masks differ, as
            the statistics of BatchNorm do after finetuning, ``excessive_loss`` is not that of
            ``compressed``, and a warning says so.
        data: The losses are mean cross-entropies on this set.

    Returns:
        Indexed by group in the order of the codes, columns ``first second taylor excessive_loss
        remainder`` (float64). A group without samples has NaN. The remainder of a small step is a
        difference of nearly equal numbers: compute it of models in ``torch.float64``.

    Raises:
        ValueError: If the two differ in the name or the shape of a parameter, or a weight outside
            the masks of ``model`` is not zero in ``compressed``.
        NotComputable: If there is nothing to differentiate, torch cannot differentiate it twice, or
            (NotFinite) a loss or a term is NaN or infinite.

    Warns:
        UserWarning: If a buffer other than a mask differs between the two models.

    Source:
        [T] Theorem 1 (Eqs 4 and 9) before its inequalities. That the terms follow R(a) and the
        bound does not is our finding.

    Example:
        A step that takes the probability of one class from 0.9 to 0.91, and of the other from 0.1
        to 0.09, gives to the many and takes from the few. So short a step is described by its first
        two terms.

        >>> import torch, fairlib
        >>> groups = [0] * 9 + [1]
        >>> data = fairlib.GroupedDataset(torch.zeros(10, 1), groups, groups)
        >>> dense, small = torch.nn.Linear(1, 2), torch.nn.Linear(1, 2)
        >>> dense.bias.data = torch.tensor([0.9, 0.1]).log()
        >>> small.bias.data, small.weight.data = torch.tensor([0.91, 0.09]).log(), dense.weight.data
        >>> terms = fairlib.diagnostics.taylor_terms(dense, small, data)
        >>> terms[["first", "second", "excessive_loss"]].round(3)
               first  second  excessive_loss
        group
        0     -0.012   0.001          -0.011
        1      0.105   0.001           0.105
    """
    _check_pair(model, compressed)

    def row(name: str, index: Tensor) -> list[float]:
        loss, step, excess = _step(model, compressed, data, index)
        first, second = inner(loss.gradient(), step), inner(loss.product(step), step) / 2
        return _finite(name, TERMS, first, second, first + second, excess, excess - first - second)

    return group_table(data, TERMS, row)


def excessive_loss_bound(
    model: nn.Module, compressed: nn.Module, data: GroupedDataset, **settings: Any
) -> pd.DataFrame:
    r"""Bound every group's loss by a compression step: Theorem 1 without its remainder.

    With d, :math:`g_a`, :math:`H_a` and R(a) as in :func:`taylor_terms`,

    .. math:: R(a) \le \|g_a\| \, \|d\| + \tfrac12 \lambda_{\max}(H_a) \, \|d\|^2 + O(\|d\|^3).

    ``norm`` is :math:`\|g_a\|`, ``step`` is :math:`\|d\|`, the same for all groups, and ``bound``
    is ``norm * step + largest * step ** 2 / 2``. ``largest`` is an upper estimate of
    :math:`\lambda_{\max}(H_a)`: what :func:`group_eigenvalues` finds, with its residual on top, or
    :math:`d^\top H_a d / \|d\|^2` should that be more. So ``bound`` is never below ``taylor`` of
    :func:`taylor_terms`, even if the largest eigenvalue was missed.

    The remainder is left out, and :math:`R(a)` may exceed ``bound`` by it. In our runs it did so in
    no case on ordinary networks, and in 3 to 15 % of the cases on interpolating ones that were
    pruned by 90 % and more. Mostly the bound is far too large (16 to :math:`10^7` times): it says
    how much a group could lose, not how much it does.

    Args:
        model, compressed, data: Arguments of :func:`taylor_terms`.
        settings: ``products``, ``tol``, ``limit``, ``least`` and ``seed`` of
            :func:`fairlib.diagnostics.group_eigenvalues`; here ``tol`` is 1e-5 by default, so that
            the residual adds little.

    Returns:
        Indexed by group in the order of the codes, columns ``norm largest step bound
        excessive_loss`` (float64). A group without samples has NaN.

    Raises:
        ValueError: If the two models differ in the name or the shape of a parameter, a setting is
            out of range, or a weight outside the masks of ``model`` is not zero in ``compressed``.
        NotComputable: If there is nothing to differentiate, torch cannot differentiate it twice, or
            (NotFinite) a loss or a column is NaN or infinite.

    Warns:
        UserWarning: If a buffer other than a mask differs between the two models.
        ConvergenceWarning: If the error estimate of a largest eigenvalue exceeds ``tol``.

    Source:
        [T] Theorem 1 (Eqs 4 and 9). It needs three continuous derivatives on the segment between
        the two parameters; the text says two.

    Example:
        >>> import torch, fairlib
        >>> groups = [0] * 9 + [1]
        >>> data = fairlib.GroupedDataset(torch.zeros(10, 1), groups, groups)
        >>> dense, small = torch.nn.Linear(1, 2), torch.nn.Linear(1, 2)
        >>> dense.bias.data = torch.tensor([0.9, 0.1]).log()
        >>> small.bias.data, small.weight.data = torch.tensor([0.5, 0.5]).log(), dense.weight.data
        >>> bound = fairlib.diagnostics.excessive_loss_bound(dense, small, data)
        >>> terms = fairlib.diagnostics.taylor_terms(dense, small, data)
        >>> bool((bound["bound"] >= terms["taylor"]).all())
        True
    """
    _check_pair(model, compressed)
    search = Eigensearch("largest", **{"tol": 1e-5, **settings})
    found: dict[str, Eigenpairs] = {}

    def row(name: str, index: Tensor) -> list[float]:
        loss, step, excess = _step(model, compressed, data, index)
        slope, length = norm(loss.gradient()), norm(step)
        found[name] = extreme_eigenpairs(loss, search)
        top = found[name].pairs[-1]
        largest = top.value + top.residual
        # The curvature along the step is a Rayleigh quotient. It cannot exceed the largest
        # eigenvalue; where it does, the search has missed that one.
        if length:
            largest = max(largest, inner(loss.product(step), step) / length**2)
        bound = slope * length + largest * length**2 / 2
        return _finite(name, BOUND, slope, largest, length, bound, excess)

    table = group_table(data, BOUND, row)
    warn_of_doubtful(found, search.tol, stacklevel=3)
    return table


def _step(
    model: nn.Module, compressed: nn.Module, data: GroupedDataset, index: Tensor
) -> tuple[MeanLoss, Tensor, float]:
    r"""Return the loss of a group, the step :math:`\bar\theta - \theta` ``(P,)``, and its R(a).

    All parameters move, also those that require no gradient. Pruned weights are 0.
    """
    weights = {name: weight.detach() for name, weight in compressed.named_parameters()}
    # A masked weight counts as zero whatever value an optimizer has left in its place.
    for name, mask in masks.read_masks(compressed).items():
        weights[name] = weights[name].masked_fill(~mask, 0)
    loss = MeanLoss(model, data, index, parameters=list(weights))
    target = torch.cat([weights[name].flatten() for name in loss.names]).to(loss.theta)
    step = target - loss.theta
    if loss.kept is not None and step[loss.kept == 0].any():
        raise ValueError(
            "the compressed model has weights that the mask of the model holds at zero"
        )
    return loss, step, loss.value(target) - loss.value()


def _check_pair(model: nn.Module, compressed: nn.Module) -> None:
    """Refuse models between which there is no step; warn if more than their parameters differ."""
    ours, theirs = (
        {name: tuple(weight.shape) for name, weight in each.named_parameters()}
        for each in (model, compressed)
    )
    for name in ours | theirs:
        if ours.get(name) != theirs.get(name):
            raise ValueError(
                f"the models must have the same parameters; {name} is "
                f"{ours.get(name, 'missing')} in the model and {theirs.get(name, 'missing')} in "
                "the compressed one"
            )
    one, other = _buffers(model), _buffers(compressed)
    changed = one.keys() ^ other.keys()
    both = one.keys() & other.keys()
    changed |= {name for name in both if not torch.equal(one[name], other[name].to(one[name]))}
    if changed:
        warnings.warn(
            f"the buffer {min(changed)} of the compressed model differs from the model's; the "
            "excessive loss is that of the model's buffers with the compressed parameters",
            stacklevel=3,
        )


def _buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that change outputs in eval mode, except masks."""
    skipped = (*(f"{name}_mask" for name in masks.read_masks(model)), "num_batches_tracked")
    return {name: buffer for name, buffer in model.named_buffers() if not name.endswith(skipped)}


def _finite(group: str, columns: Sequence[str], *row: float) -> list[float]:
    """Return the numbers of a group's row if they are finite."""
    for column, value in zip(columns, row, strict=True):
        if not math.isfinite(value):
            raise NotFinite(f"{column} of group {group!r} is {value}")
    return list(row)
