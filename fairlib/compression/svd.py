"""Factorization by the singular value decomposition: each layer becomes two thin ones."""

import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fairlib._validation import check_number, check_settings, check_type, lookup
from fairlib.network import masks, quantizers
from fairlib.network.copying import copied
from fairlib.network.factors import Factorized, factors, replace, splits
from fairlib.network.memory import remember
from fairlib.training.compressors import Kind, Method, check_positive_share


def factorize(
    model: nn.Module, method: str, *, kept: float, by: str = "share", last: str = "whole"
) -> nn.Module:
    r"""Replace layers by two of smaller rank, as near to the layer as possible, without retraining.

    The weight of a layer, as a matrix :math:`W` of O rows, one for each output, and I columns (the
    input channels times the size of the kernel), has the singular values :math:`\sigma_1 \ge
    \sigma_2 \ge \dots` and vectors :math:`u, v`. Of all matrices of rank r

    .. math:: \hat W = \sum_{i \le r} \sigma_i \, u_i v_i^\top, \qquad \|W - \hat W\|^2 = \sum_{i >
        r} \sigma_i^2

    is nearest to it (Eckart and Young). Its factors :math:`\sqrt{\sigma_i} \, v_i^\top` and
    :math:`\sqrt{\sigma_i} \, u_i` are the weights of a convolution to r channels, with the kernel,
    stride, padding and dilation of the layer, and of a 1x1 convolution; or of two linear layers.
    Together they have r (O + I) weights. A layer stays whole where its two
    factors would not have fewer weights, and so does one with groups or a padding other than zeros.

    Args:
        model: Any module with convolutions or linear layers that is neither pruned nor quantized;
            not changed. A parent that reads the weight of a layer, instead of calling the layer,
            reads the product of the two.
        method: ``"svd"``.
        kept: Share of the prunable weights (convolution and linear) that are left, in (0, 1]; all
            weights of a layer that stays whole count. With 1 the result is a plain copy.
        by: Rule for the ranks, each at least 1. ``"share"``: every layer has the largest rank with
            at most a share of its weights, and stays whole only at share 1. ``"energy"``: every
            layer has the smallest rank whose squared singular values sum to a share of the layer's,
            and stays whole if that rank saves nothing. The share is one number for all layers, the
            largest with which no more than ``kept`` is left.
        last: ``"whole"`` to leave the last layer with prunable weights, ``"split"`` to replace it
            like the others. It is the last that the model registers, as a rule the one whose
            outputs are the logits. Factorized to rank r, it would give
            logits in r dimensions only, however many the classes are.

    Returns:
        A factorized copy in eval mode, which is smaller as it is, and can be trained, pruned,
        linearized and quantized. It is not finetuned. :func:`fairlib.restore` puts its
        ``state_dict`` into a freshly built model.

    Raises:
        ValueError: If the method, ``by`` or ``last`` is unknown, ``kept`` is out of range, rank one
            in all these layers leaves more than ``kept``, as in a network whose only layer is the
            last one, a weight is NaN or infinite, or the model is pruned, quantized, factorized or
            a single layer.
        TypeError: If an argument is of another type.

    Source:
        Eckart and Young, The approximation of one matrix by another of lower rank (1936); Zhang et
        al., Accelerating very deep convolutional networks for classification and detection (2015),
        for convolutions.

    Example:
        A layer of 64 times 64 weights becomes two of 9 times 64:

        >>> import fairlib
        >>> model = fairlib.build("mlp", num_classes=2, in_channels=1, image_size=8)
        >>> fairlib.factorize(model, "svd", kept=0.3).classifier[1]
        Factorized(
          (0): Linear(in_features=64, out_features=9, bias=False)
          (1): Linear(in_features=9, out_features=64, bias=True)
        )

        A 4x4 layer with singular values 4, 3, 2 and 1. Half of its 16 weights allow rank one, which
        keeps the value 4 alone:

        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False))
        >>> model[0].weight.data = torch.diag(torch.tensor([1.0, 3.0, 4.0, 2.0]))
        >>> small = fairlib.factorize(model, "svd", kept=0.5, last="split")
        >>> small(torch.eye(4)).diag().abs().round(decimals=4).tolist()
        [0.0, 0.0, 4.0, 0.0]
    """
    _check(method)
    check_number("kept", kept, 0, 1, low_open=True, high_closed=True)
    check_type("model", model, nn.Module, "a torch.nn.Module")
    rule = lookup("value of by", by, {"share": _by_share, "energy": _by_energy})
    end = lookup("value of last", last, {"split": None, "whole": -1})
    small = copied(model).eval()
    weights = {
        name: weight.detach().cpu().double().flatten(1)
        for name, weight in masks.prunable(small).items()
    }
    _refuse(small, weights)
    layers = {name: small.get_submodule(name.rpartition(".")[0]) for name in [*weights][:end]}
    steps = {}
    for name, layer in layers.items():
        if splits(layer):
            # The largest rank whose factors have fewer weights than the layer.
            most = (weights[name].numel() - 1) // sum(weights[name].shape)
            steps[name] = rule(weights[name], most)
    if said := masks.uncovered(small):
        warnings.warn(f"kept is a share of what can be pruned: {said}", stacklevel=2)
    ranks = _ranks(weights, steps, kept, last)
    for name, rank in ranks.items():
        left, values, right = torch.linalg.svd(weights[name], full_matrices=False)
        root = values[:rank].sqrt()
        pair = factors(layers[name], rank)
        first, second = (factor.get_parameter("weight") for factor in pair)
        first.data.copy_((root[:, None] * right[:rank]).view_as(first))
        second.data.copy_((left[:, :rank] * root).view_as(second))
        replace(small, layers[name], pair)
    if ranks:
        remember(small, snapshots={}, recipe=None)  # Both describe the dense network.
    return small


def _check(method: str, **settings: Any) -> None:
    """Refuse a method or settings that :func:`factorize` does not know."""
    if method != "svd":
        raise ValueError(f"unknown factorization method {method!r}; known: svd")
    check_settings("factorization method 'svd'", factorize, settings, given=["kept"])


def _compressed(
    model: nn.Module, name: str, *, data: Any = None, seed: int = 0, **settings: Any
) -> nn.Module:
    """Factorize for a study, which offers data and a seed to every kind of compression."""
    return factorize(model, name, **settings)


FACTORIZATION = Kind(
    _compressed,
    level="kept",
    control=1.0,
    methods={"svd": Method(factorize)},
    check=_check,
    place=1,
    check_level=check_positive_share,
)
"""Factorization, for a study: the level is the share of weights that are left."""


def _ranks(
    weights: Mapping[str, Tensor], steps: Mapping[str, Tensor], kept: float, last: str
) -> dict[str, int]:
    """Choose the rank of each layer that is factorized, by the largest common share.

    Args:
        weights: Matrix of each layer with prunable weights.
        steps: Shares, ascending, from which on a layer has rank 2, 3, ..., and at the last of which
            it is left whole.
        kept: Share of all weights that may be left.
        last: ``"whole"`` if the last layer has no steps, for the error message.
    """
    total = sum(weight.numel() for weight in weights.values())
    # A caller who wants n of the weights writes kept = n / total, and the product with total may be
    # rounded to just below n: without the tolerance, floor would then take a rank too many away.
    limit = math.floor(kept * total * (1 + 1e-12))
    # The number of weights left is a staircase that rises at the layers' own shares alone, so the
    # largest share that fits is one of them. Steps at the same share, as in layers of one shape,
    # are taken together or not at all: taking some would make the result depend on their order.
    shares = torch.cat([torch.tensor([-math.inf]), *steps.values()]).unique()
    ranks = {name: 1 + torch.searchsorted(own, shares, right=True) for name, own in steps.items()}
    left = torch.full(shares.shape, total)
    for name, rank in ranks.items():
        left -= (weights[name].numel() - rank * sum(weights[name].shape)).clamp(min=0)
    if left[0] > limit:
        least = math.ceil(1e4 * int(left[0]) / total) / 1e4
        layers = "every layer" if last == "split" else "every layer but the last"
        remedy = "" if last == "split" else "; last='split' includes it"
        raise ValueError(
            f"{kept=} is too small: rank one in {layers} leaves {least:g} of the weights{remedy}"
        )
    best = int((left <= limit).sum()) - 1
    found = {name: int(rank[best]) for name, rank in ranks.items()}
    return {name: rank for name, rank in found.items() if rank <= len(steps[name])}


def _by_share(matrix: Tensor, most: int) -> Tensor:
    """Return the shares of a layer's weights that rank 2, 3, ... and the whole layer take."""
    # Rank most + 1 has at least as many weights as the layer, which is left whole instead: a share
    # of more than 1 would never be reached.
    ranks = torch.arange(2, most + 2, dtype=torch.float64)
    return (ranks * sum(matrix.shape) / matrix.numel()).clamp(max=1)


def _by_energy(matrix: Tensor, most: int) -> Tensor:
    """Return minus the share of the energy, the sum of the squared singular values, that is lost at
    rank 1, 2, ...: a larger share than that needs the next rank."""
    # The lost share is summed from the smallest value up: as 1 minus the share that is held, the
    # small tails, which tell the ranks of a nearly low-rank layer apart, would be rounded to 0. The
    # sign makes the steps ascend, so that both rules share one search.
    squares = torch.linalg.svdvals(matrix).square()
    lost = squares.flip(0).cumsum(0).flip(0)[1 : most + 1]
    return -lost / squares.sum().clamp(min=torch.finfo(torch.float64).tiny)


def _refuse(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Refuse a model whose layers are not dense and finite.

    Raises:
        ValueError: Naming the first weight that is masked, quantized, factorized, NaN or infinite.
    """
    again = (name for name, module in model.named_modules() if isinstance(module, Factorized))
    for name in (*masks.read_masks(model), *quantizers.read_bits(model), *again):
        raise ValueError(
            f"{name} is pruned, quantized or factorized already, and its factors would be dense "
            "and not rounded: factorize the dense model first, then prune and quantize"
        )
    for name, weight in weights.items():
        if not weight.isfinite().all():
            raise ValueError(f"{name} holds NaN or infinite weights; has training diverged?")
    if "weight" in weights:
        raise ValueError(
            f"the model is a {type(model).__name__} and nothing else; put it into a Sequential"
        )
