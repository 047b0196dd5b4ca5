"""Factorization by the singular value decomposition: the product of two small layers nearest to
each layer."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from fairlib._validation import lookup
from fairlib.network import masks, quantizers
from fairlib.network.factors import Factorized, factors, replace, splits
from fairlib.network.gates import example
from fairlib.network.memory import memory_of, remember


def svd(model: nn.Module, *, kept: float, by: str = "share", last: str = "split") -> nn.Module:
    r"""Replace layers by two of smaller rank, as near to the layer as possible, without retraining.

    The weight of a layer, as a matrix :math:`W` of O rows, one for each output, and I columns (the
    input channels times the size of the kernel), has the singular values :math:`\sigma_1 \ge
    \sigma_2 \ge \dots` and vectors :math:`u, v`. Of all matrices of rank r

    .. math:: \hat W = \sum_{i \le r} \sigma_i \, u_i v_i^\top, \qquad \|W - \hat W\|^2 = \sum_{i >
        r} \sigma_i^2

    is nearest to it (Eckart and Young). Its factors :math:`\sqrt{\sigma_i} \, v_i^\top` and
    :math:`\sqrt{\sigma_i} \, u_i` are the weights of a convolution to r channels, with the kernel,
    stride, padding and dilation of the layer, and of a 1x1 convolution; or of two linear layers.
    Together they have r (O + I) weights. A layer stays as it is where that would not be fewer than
    its own, and so does one with groups or with a padding other than zeros.

    Args: model: The trained model; not changed. kept: Share of the prunable weights (convolution
        and linear) that are left, in (0, 1]. Of what stays as it is
            all weights count. With 1 the result is a plain copy.
        by: How the ranks are chosen, each at least 1. ``"share"``: every layer has the largest rank
            with at most a share of its weights, and stays as it is only at share 1. ``"energy"``:
            every layer has the smallest rank whose squared singular values sum to a share of the
            layer's, and stays as it is if that rank saves nothing. The share is one number for all
            layers, the largest with which no more than ``kept`` is left.
        last: Whether the last layer with prunable weights, as a rule the one that gives the logits
            of the classes, is replaced like the others, ``"split"``, or stays as it is,
            ``"whole"``. It is the last that the model registers. Of rank r, its logits vary in r
            dimensions, however many the classes are.

    Returns:
        A factorized copy in eval mode.

    Raises: ValueError: If ``by`` or ``last`` is unknown, rank one in all these layers leaves more
        than ``kept``, a weight
            is NaN or infinite, the model is pruned, quantized or factorized, it is a single layer,
            or it does not run with two layers in the place of one.

    Source: Eckart and Young, The approximation of one matrix by another of lower rank (1936); Zhang
        et al., Accelerating very deep convolutional networks for classification and detection
        (2015), for convolutions.

    Example:
        A matrix of singular values 4, 3, 2 and 1, of which rank one leaves 4 of 8 rows and columns:

        >>> import torch
        >>> from fairlib.factorization import factorize
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False))
        >>> model[0].weight.data = torch.diag(torch.tensor([1.0, 3.0, 4.0, 2.0]))
        >>> small = factorize(model, "svd", kept=0.5)
        >>> small(torch.eye(4)).diag().abs().round(decimals=4).tolist()
        [0.0, 0.0, 4.0, 0.0]
    """
    rule = lookup("value of by", by, {"share": _by_share, "energy": _by_energy})
    end = lookup(
        "value of last", last, {"split": None, "whole": -1}
    )  # Of the layers that may be replaced.
    small = copy.deepcopy(model).eval()
    weights = {
        name: weight.detach().cpu().double().flatten(1)
        for name, weight in masks.prunable(small).items()
    }
    _refuse(small, weights)
    layers = {name: small.get_submodule(name.rpartition(".")[0]) for name in weights}
    ranks = _ranks(weights, [name for name in [*layers][:end] if splits(layers[name])], kept, rule)
    for name, rank in ranks.items():
        pair = factors(layers[name], rank)
        left, values, right = torch.linalg.svd(weights[name], full_matrices=False)
        root = values[:rank].sqrt()
        for factor, matrix in zip(
            pair, (root[:, None] * right[:rank], left[:, :rank] * root), strict=True
        ):
            weight = factor.get_parameter("weight")
            weight.data.copy_(matrix.view_as(weight))
        replace(small, layers[name], pair)
    if ranks:
        remember(small, snapshots={}, recipe=None)  # Both are of the dense network.
        _refuse_failure(small)
    return small


def _ranks(
    weights: Mapping[str, Tensor],
    splitting: Sequence[str],
    kept: float,
    rule: Callable[[Tensor, int], Tensor],
) -> dict[str, int]:
    """Rank of each layer that does not stay as it is.

    All begin with rank one. A rule gives each step to the next rank, of which the last restores the
    layer, a key; steps are taken in the order of their keys, those of one key together, as long as
    the weights suffice."""
    total = sum(weight.numel() for weight in weights.values())
    limit = math.floor(
        kept * total * (1 + 1e-12)
    )  # A share that is a rounded quotient gives back its dividend.
    if limit == total:
        return {}
    one = {
        name: sum(weight.shape) for name, weight in weights.items()
    }  # Weights of two factors of rank one.
    most = {name: (weights[name].numel() - 1) // one[name] for name in splitting}
    most = {name: rank for name, rank in most.items() if rank}
    least = total - sum(weights[name].numel() - one[name] for name in most)
    if least > limit:
        share = math.ceil(1e4 * least / total) / 1e4
        raise ValueError(
            f"{kept=} asks for a rank below one; with rank one in every layer the least is {share:g}"
        )
    keys = {name: rule(weights[name], rank) for name, rank in most.items()}
    last = {name: weights[name].numel() - rank * one[name] for name, rank in most.items()}
    steps = [torch.tensor([one[name]] * (rank - 1) + [last[name]]) for name, rank in most.items()]
    key, order = torch.cat(list(keys.values())).sort(stable=True)
    left = least + torch.cat(steps)[order].cumsum(0)
    first = key[left > limit][0]  # Of the steps that cannot be taken.
    ranks = {name: 1 + int((own < first).sum()) for name, own in keys.items()}
    return {name: rank for name, rank in ranks.items() if rank <= most[name]}


def _by_share(weight: Tensor, most: int) -> Tensor:
    """Shares of the weights from which on a layer has rank 2, 3 and so on, and from which on it
    stays as it is."""
    return (
        torch.arange(2, most + 2, dtype=torch.float64) * sum(weight.shape) / weight.numel()
    ).clamp(max=1)


def _by_energy(weight: Tensor, most: int) -> Tensor:
    """Minus the shares of the squared singular values that rank 1, 2 and so on drop: below, the
    next is needed."""
    squares = torch.linalg.svdvals(weight).square()
    dropped = squares.flip(0).cumsum(0).flip(0)[1 : most + 1]
    return -dropped / squares.sum().clamp(min=torch.finfo(torch.float64).tiny)


def _refuse(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Refuse what has no dense, finite layers.

    Raises:
        ValueError: Naming the first weight that is masked, quantized, factorized, NaN or infinite.
    """
    again = (name for name, module in model.named_modules() if isinstance(module, Factorized))
    for name in (*masks.read_masks(model), *quantizers.read_bits(model), *again):
        why = "its factors would be dense and not rounded: factorize the dense model first, then prune and quantize"
        raise ValueError(f"{name} is pruned, quantized or factorized already, and {why}")
    for name, weight in weights.items():
        if not weight.isfinite().all():
            raise ValueError(f"{name} holds NaN or infinite weights; has training diverged?")
    if "weight" in weights:
        raise ValueError(
            f"the model is a {type(model).__name__} and nothing else; put it into a Sequential"
        )


def _refuse_failure(model: nn.Module) -> None:
    """Refuse a model that does not run, as far as the shape of its inputs is known."""
    if memory_of(model).input_shape is None:
        return
    try:
        with torch.no_grad():
            model(example(model, None))
    except (AttributeError, RuntimeError, TypeError) as error:
        raise ValueError(
            f"{type(model).__name__} does not run with two layers for one: {error}"
        ) from error
