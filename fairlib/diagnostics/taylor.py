"""Effect of a compression step on the loss of every group: the Taylor expansion, and the bound of
Theorem 1."""

import math
import warnings
from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor, nn

from fairlib.data import GroupedDataset
from fairlib.diagnostics.computable import NotFinite
from fairlib.diagnostics.curvature import Eigensearch, Found, extremes, warn_of_doubtful
from fairlib.diagnostics.objective import MeanLoss, by_group, check_parameters
from fairlib.diagnostics.vectors import inner, norm
from fairlib.network import masks

TERMS = ("first", "second", "taylor", "excessive_loss", "remainder")
BOUND = ("norm", "largest", "step", "bound", "excessive_loss")


def taylor_terms(
    model: nn.Module,
    compressed: nn.Module,
    data: GroupedDataset,
    *,
    parameters: Sequence[str] | None = None,
    dtype: torch.dtype | None = None,
) -> pd.DataFrame:
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

    Args: model: The network before compression: any differentiable classifier. Its mode, buffers
        and ``.grad`` are left
            as they were; it is evaluated in eval mode.
        compressed: The same architecture after it. Only its parameters are read: :math:`J(\theta +
            d)` is the loss of ``model`` with these parameters, and with ``model``'s buffers, since
            otherwise it would be no function of d alone. Where other buffers than masks differ, as
            the statistics of BatchNorm do after finetuning, ``excessive_loss`` is not that of
            ``compressed``, and a warning says so.
        data: The losses are mean cross-entropies on this set.
        parameters: Names of the parameters that move; by default all. The others stay where
            ``model`` has them, also for ``excessive_loss``.
        dtype: The floating type of the computation; by default that of the parameters. The
            remainder of a small step is a difference of nearly equal numbers: take
            ``torch.float64``.

    Returns: Indexed by group in the order of the codes, columns ``first second taylor
        excessive_loss remainder`` (float64). A group without samples has NaN.

    Raises: ValueError: If the two differ in the name or the shape of a parameter, a name is
        unknown, or a weight outside
            the masks of ``model`` is not zero in ``compressed``.
        NotComputable: If there is nothing to differentiate, torch cannot differentiate it twice, or
            (NotFinite) a loss or a term is NaN or infinite.

    Warns:
        UserWarning: If a buffer other than a mask differs between the two models.

    Source: [T] Theorem 1 (Eqs 4 and 9) before its inequalities. That the terms follow R(a) and the
        bound does not is our finding.

    Example: A step that takes the probability of one class from 0.9 to 0.91, and of the other from
        0.1 to 0.09, gives to the many and takes from the few. So short a step is described by its
        first two terms.

        >>> import torch, fairlib
        >>> data = fairlib.GroupedDataset(torch.zeros(10, 1), [0] * 9 + [1], [0] * 9 + [1], group_names=["many", "few"])
        >>> dense, small = torch.nn.Linear(1, 2), torch.nn.Linear(1, 2)
        >>> dense.bias.data, small.bias.data = torch.tensor([0.9, 0.1]).log(), torch.tensor([0.91, 0.09]).log()
        >>> small.weight.data = dense.weight.data
        >>> fairlib.diagnostics.taylor_terms(dense, small, data)[["first", "second", "excessive_loss"]].round(3)
               first  second  excessive_loss
        group
        many  -0.012   0.001          -0.011
        few    0.105   0.001           0.105
    """
    _check_pair(model, compressed)
    names = _moving(model, parameters)

    def row(name: str, index: Tensor) -> Sequence[float]:
        loss = MeanLoss(model, data, index, parameters=names, dtype=dtype)
        gradient, target = loss.gradient(), _target(compressed, loss)
        step = target - loss.theta
        first, second = inner(gradient, step), inner(loss.product(step), step) / 2
        excess = loss.value(target) - loss.value()
        return _finite(
            name, TERMS, (first, second, first + second, excess, excess - first - second)
        )

    return by_group(data, TERMS, row)


def excessive_loss_bound(
    model: nn.Module,
    compressed: nn.Module,
    data: GroupedDataset,
    *,
    parameters: Sequence[str] | None = None,
    dtype: torch.dtype | None = None,
    products: str = "frozen",
    tol: float = 1e-5,
    limit: int = 100,
    seed: int = 0,
) -> pd.DataFrame:
    r"""Bound what every group can lose by a compression step, to second order: Theorem 1 without
    its remainder.

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
        model, compressed, data, parameters, dtype: Arguments of :func:`taylor_terms`.
        products, limit, seed: Arguments of :func:`fairlib.diagnostics.group_eigenvalues`.
        tol: Estimated error of the largest eigenvalue to aim at, as in
            :func:`fairlib.diagnostics.group_eigenvalues`; the default is smaller, so that the
            residual adds little.

    Returns: Indexed by group in the order of the codes, columns ``norm largest step bound
        excessive_loss`` (float64). A group without samples has NaN.

    Raises: ValueError: If the two models differ in the name or the shape of a parameter, a name is
        unknown, a setting is
            out of range, or a weight outside the masks of ``model`` is not zero in ``compressed``.
        NotComputable: If there is nothing to differentiate, torch cannot differentiate it twice, or
            (NotFinite) a loss or a column is NaN or infinite.

    Warns:
        UserWarning: If a buffer other than a mask differs between the two models.
        ConvergenceWarning: If the error estimate of a largest eigenvalue exceeds ``tol``.

    Source: [T] Theorem 1 (Eqs 4 and 9). It needs three continuous derivatives on the segment
        between the two parameters; the text says two.

    Example:
        >>> import torch, fairlib
        >>> data = fairlib.GroupedDataset(torch.zeros(10, 1), [0] * 9 + [1], [0] * 9 + [1], group_names=["many", "few"])
        >>> dense, small = torch.nn.Linear(1, 2), torch.nn.Linear(1, 2)
        >>> dense.bias.data, small.bias.data = torch.tensor([0.9, 0.1]).log(), torch.tensor([0.5, 0.5]).log()
        >>> small.weight.data = dense.weight.data
        >>> bound = fairlib.diagnostics.excessive_loss_bound(dense, small, data)
        >>> terms = fairlib.diagnostics.taylor_terms(dense, small, data)
        >>> bool((bound["bound"] >= terms["taylor"]).all())
        True
    """
    _check_pair(model, compressed)
    names, search = _moving(model, parameters), Eigensearch("largest", products, tol, limit, seed)
    found: dict[str, Found] = {}

    def row(name: str, index: Tensor) -> Sequence[float]:
        loss = MeanLoss(model, data, index, parameters=names, dtype=dtype)
        gradient, target = loss.gradient(), _target(compressed, loss)
        step = target - loss.theta
        length = norm(step)
        along = inner(loss.product(step), step) / length**2 if length else -math.inf
        found[name] = extremes(loss, search)
        top = found[name].pairs[-1]
        largest = max(top.value + top.residual, along)
        bound = norm(gradient) * length + largest * length**2 / 2
        return _finite(
            name, BOUND, (norm(gradient), largest, length, bound, loss.value(target) - loss.value())
        )

    table = by_group(data, BOUND, row)
    warn_of_doubtful(found, tol, stacklevel=3)
    return table


def _moving(model: nn.Module, parameters: Sequence[str] | None) -> list[str]:
    return check_parameters(
        model, [name for name, _ in model.named_parameters()] if parameters is None else parameters
    )


def _target(compressed: nn.Module, loss: MeanLoss) -> Tensor:
    r"""The parameters :math:`\bar\theta` of the compressed model that move, as a flat vector;
    pruned weights are 0."""
    weights, kept = (
        {name: weight.detach() for name, weight in compressed.named_parameters()},
        masks.read_masks(compressed),
    )
    parts = (
        weights[name].masked_fill(~kept[name], 0) if name in kept else weights[name]
        for name in loss.names
    )
    target = torch.cat([part.flatten() for part in parts]).to(loss.theta)
    if loss.kept is not None and (target - loss.theta)[loss.kept == 0].any():
        raise ValueError(
            "the compressed model has weights that the mask of the model holds at zero"
        )
    return target


def _check_pair(model: nn.Module, compressed: nn.Module) -> None:
    """Refuse two models between which there is no step; warn if they differ in more than their
    parameters."""
    ours = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    theirs = {name: tuple(weight.shape) for name, weight in compressed.named_parameters()}
    for name in ours | theirs:
        if ours.get(name) != theirs.get(name):
            shapes = f"{ours.get(name, 'missing')} in the model and {theirs.get(name, 'missing')} in the compressed one"
            raise ValueError(f"the models must have the same parameters; {name} is {shapes}")
    one, other = _buffers(model), _buffers(compressed)
    for name in one | other:
        if (
            name not in one
            or name not in other
            or not torch.equal(one[name], other[name].to(one[name]))
        ):
            said = (
                "the excessive loss is that of the model's buffers with the compressed parameters"
            )
            warnings.warn(
                f"the buffer {name} of the compressed model differs from the model's; {said}",
                stacklevel=3,
            )
            return


def _buffers(model: nn.Module) -> dict[str, Tensor]:
    """The buffers that change outputs in eval mode, except masks."""
    skipped = (*(f"{name}_mask" for name in masks.read_masks(model)), "num_batches_tracked")
    return {name: buffer for name, buffer in model.named_buffers() if not name.endswith(skipped)}


def _finite(group: str, columns: Sequence[str], row: Sequence[float]) -> Sequence[float]:
    for column, value in zip(columns, row, strict=True):
        if not math.isfinite(value):
            raise NotFinite(f"{column} of group {group!r} is {value}")
    return row
