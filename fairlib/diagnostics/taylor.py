r"""What a compression step does to the loss of every group: its expansion, and the bound of Theorem 1."""

import math
import warnings
from collections.abc import Iterator, Sequence

import pandas as pd
import torch
from torch import Tensor, nn

from fairlib.data import GroupedDataset
from fairlib.diagnostics.computable import NotFinite
from fairlib.diagnostics.curvature import Eigensearch, extremes, warn_of_doubtful
from fairlib.diagnostics.objective import MeanLoss, check_parameters, members
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
    r"""The first two terms of every group's excessive loss, expanded in the compression step.

    With :math:`d = \bar\theta - \theta`, the parameters of ``compressed`` minus those of ``model``, the weights that
    were removed included, and :math:`g_a`, :math:`H_a` the gradient and the Hessian of :math:`J(\theta; D_a)`:

    - ``first`` is :math:`g_a^\top d`, and ``second`` is :math:`\frac12 d^\top H_a d`, from one exact Hessian-vector
      product;
    - ``taylor`` is their sum;
    - ``excessive_loss`` is :math:`R(a) = J(\theta + d; D_a) - J(\theta; D_a)`;
    - ``remainder`` is ``excessive_loss`` minus ``taylor``: :math:`O(\|d\|^3)` if the loss has three continuous
      derivatives on the segment between the two, and of any size for a step as long as pruning at 90 % takes.

    Unlike a bound the terms have a sign, and they can tell which group pays.

    Args:
        model: The network before compression: any differentiable classifier. Its mode, buffers and ``.grad`` are left
            as they were; it is evaluated in eval mode.
        compressed: The same architecture after it. Only its parameters are read: :math:`J(\theta + d)` is the loss of
            ``model`` with these parameters, and with ``model``'s buffers, since otherwise it would be no function of d
            alone. Where other buffers than masks differ, as the statistics of BatchNorm do after finetuning,
            ``excessive_loss`` is not that of ``compressed``, and a warning says so.
        data: The losses are mean cross-entropies on this set.
        parameters: Names of the parameters that move; by default all. The others stay where ``model`` has them, also
            for ``excessive_loss``.
        dtype: The floating type of the computation; by default that of the parameters. The remainder of a small step
            is a difference of nearly equal numbers: take ``torch.float64``.

    Returns:
        Indexed by group in the order of the codes, columns ``first second taylor excessive_loss remainder`` (float64).
        A group without samples has NaN.

    Raises:
        ValueError: If the two differ in the name or the shape of a parameter, a name is unknown, or a weight outside
            the masks of ``model`` is not zero in ``compressed``.
        NotComputable: If there is nothing to differentiate, torch cannot differentiate it twice, or (NotFinite) a loss
            or a term is NaN or infinite.

    Warns:
        UserWarning: If a buffer that is no mask differs.

    Source:
        [T] Theorem 1 (Eqs 4 and 9) before its inequalities; that the terms themselves follow R(a), and the bound does
        not, is ours to report.
    """
    _check_pair(model, compressed)
    names = _moving(model, parameters)
    rows = {}
    for name, objective, target in _steps(model, compressed, data, names, dtype):
        rows[name] = dict.fromkeys(TERMS, math.nan)
        if objective is not None:
            gradient, step = objective.gradient(), target - objective.theta
            first, second = inner(gradient, step), inner(objective.product(step), step) / 2
            excess = objective.value(target) - objective.value()
            terms = (first, second, first + second, excess, excess - first - second)
            rows[name] = _finite(name, dict(zip(TERMS, terms, strict=True)))
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("group")


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
    r"""Theorem 1 without its remainder: what every group can lose by a compression step, to second order.

    With d, :math:`g_a`, :math:`H_a` and R(a) as in :func:`taylor_terms`,

    .. math:: R(a) \le \|g_a\| \, \|d\| + \tfrac12 \lambda_{\max}(H_a) \, \|d\|^2 + O(\|d\|^3).

    ``norm`` is :math:`\|g_a\|`, ``step`` is :math:`\|d\|`, the same for all groups, and ``bound`` is
    ``norm * step + largest * step ** 2 / 2``. ``largest`` is an upper estimate of :math:`\lambda_{\max}(H_a)`: what
    :func:`group_eigenvalues` finds, with its residual on top, or :math:`d^\top H_a d / \|d\|^2` should that be more. So
    ``bound`` is never below ``taylor`` of :func:`taylor_terms`, even if the largest eigenvalue was missed.

    The remainder is left out, and :math:`R(a)` may exceed ``bound`` by it. In our runs it did so in no case on ordinary
    networks, and in 3 to 15 % of the cases on interpolating ones that were pruned by 90 % and more. Mostly the bound is
    far too large (16 to :math:`10^7` times): it says how much a group could lose, not how much it does.

    Args:
        model: As in :func:`taylor_terms`.
        compressed: As in :func:`taylor_terms`.
        data: As in :func:`taylor_terms`.
        parameters: As in :func:`taylor_terms`.
        dtype: As in :func:`taylor_terms`.
        products: As in :func:`group_eigenvalues`.
        tol: As in :func:`group_eigenvalues`, but smaller, so that the residual adds little.
        limit: As in :func:`group_eigenvalues`.
        seed: As in :func:`group_eigenvalues`.

    Returns:
        Indexed by group in the order of the codes, columns ``norm largest step bound excessive_loss`` (float64). A
        group without samples has NaN.

    Raises:
        ValueError: As :func:`taylor_terms`.
        NotComputable: As :func:`taylor_terms`.

    Warns:
        UserWarning: As :func:`taylor_terms`.
        ConvergenceWarning: As :func:`group_eigenvalues`.

    Source:
        [T] Theorem 1 (Eqs 4 and 9). It needs three continuous derivatives on the segment between the two parameters;
        the text says two.
    """
    _check_pair(model, compressed)
    names = _moving(model, parameters)
    rows, pairs = {}, {}
    for name, objective, target in _steps(model, compressed, data, names, dtype):
        rows[name] = dict.fromkeys(BOUND, math.nan)
        if objective is not None:
            step, gradient = target - objective.theta, objective.gradient()
            length = norm(step)
            along = inner(objective.product(step), step) / length**2 if length else -math.inf
            found = extremes(objective, Eigensearch("largest", products, tol, limit, seed))
            pairs[name] = found
            top = found.pairs[-1]
            largest = max(top.value + top.residual, along)
            bound = norm(gradient) * length + largest * length**2 / 2
            row = (norm(gradient), largest, length, bound, objective.value(target) - objective.value())
            rows[name] = _finite(name, dict(zip(BOUND, row, strict=True)))
    warn_of_doubtful(pairs, tol, stacklevel=3)
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("group")


def _steps(
    model: nn.Module, compressed: nn.Module, data: GroupedDataset, names: Sequence[str], dtype: torch.dtype | None
) -> Iterator[tuple[str, MeanLoss | None, Tensor | None]]:
    r"""For each group its loss as a function of the parameters, and :math:`\bar\theta`, flat; None where empty."""
    for code, name in enumerate(data.group_names):
        index = members(data, code)
        if not len(index):
            yield name, None, None
            continue
        objective = MeanLoss(model, data, index, parameters=names, dtype=dtype)
        target = _flat(compressed, names).to(objective.theta)
        if objective.kept is not None and (target - objective.theta)[objective.kept == 0].any():
            raise ValueError("the compressed model has weights that the mask of the model holds at zero")
        yield name, objective, target


def _moving(model: nn.Module, parameters: Sequence[str] | None) -> list[str]:
    return check_parameters(model, [name for name, _ in model.named_parameters()] if parameters is None else parameters)


def _flat(model: nn.Module, names: Sequence[str]) -> Tensor:
    """Some parameters of a model in one vector, the pruned weights as the zeros that they are."""
    weights, kept = {name: weight.detach() for name, weight in model.named_parameters()}, masks.read(model)
    parts = (weights[name].masked_fill(~kept[name], 0) if name in kept else weights[name] for name in names)
    return torch.cat([part.flatten() for part in parts])


def _check_pair(model: nn.Module, compressed: nn.Module) -> None:
    """Refuse two models between which there is no step; warn if they differ in more than their parameters."""
    ours = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    theirs = {name: tuple(weight.shape) for name, weight in compressed.named_parameters()}
    for name in ours | theirs:
        if ours.get(name) != theirs.get(name):
            raise ValueError(
                f"the models must have the same parameters; {name} is {ours.get(name, 'missing')} in the model and "
                f"{theirs.get(name, 'missing')} in the compressed one"
            )
    ours, theirs = _buffers(model), _buffers(compressed)
    for name in ours | theirs:
        if name not in ours or name not in theirs or not torch.equal(ours[name], theirs[name].to(ours[name])):
            warnings.warn(
                f"the buffer {name} of the compressed model differs from the model's; the excessive loss is that of "
                "the model's buffers with the compressed parameters",
                stacklevel=3,
            )
            return


def _buffers(model: nn.Module) -> dict[str, Tensor]:
    """The buffers that have a say in eval mode, but for masks."""
    skipped = {f"{name}_mask" for name in masks.read(model)}
    buffers = dict(model.named_buffers()).items()
    return {
        name: buffer for name, buffer in buffers if name not in skipped and not name.endswith("num_batches_tracked")
    }


def _finite(name: str, row: dict[str, float]) -> dict[str, float]:
    broken = [column for column, value in row.items() if not math.isfinite(value)]
    if broken:
        raise NotFinite(f"{broken[0]} of group {name!r} is {row[broken[0]]}")
    return row
