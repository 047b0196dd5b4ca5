"""Weight masks: which weights of a module are zero, and how they stay so.

A pruned weight *is* zero in ``module.weight``, under its ordinary name, so evaluating a pruned
model costs what evaluating the dense one costs. It stays zero because its gradient is masked,
whatever loop trains it: with a zero gradient, a zero weight has zero momentum and zero decay. Other
changes, such as the momentum of a dense training or a re-initialization, are zeroed in the next
forward pass, and before fairlib measures the model (:func:`fairlib.network.keeping.settle`). Under
``torch.func.functional_call`` the weights are the caller's, and so are their gradients.

The mask is the buffer ``weight_mask`` beside the weight: uint8, 1 where the weight is kept, since
torch cannot average buffers of bools. It may be changed or replaced, by anything that torch counts
as a change: not through ``weight_mask.data``.
"""

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from fairlib._validation import check_many, check_type, lookup
from fairlib.network import keeping
from fairlib.network.copying import copied, refuse_lazy
from fairlib.network.keeping import MASK

ATTENTION = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
"""Names of the input weights of ``nn.MultiheadAttention``."""

LAYERS = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
"""Layers whose ``weight`` has the axes output, input, and those of a kernel."""


def prunable(model: nn.Module, exclude: Iterable[str] = ()) -> dict[str, nn.Parameter]:
    """List the weights that pruning may zero: those of convolutions and linear layers.

    Biases and normalization are never among them.

    Args:
        model: Any module.
        exclude: Names of weights to leave out.

    Returns:
        Parameter name, as in ``named_parameters``, to parameter, in the order of the model's
        modules. Weights outside a mask are zero (:func:`fairlib.network.keeping.settle`).

    Raises:
        TypeError: If the model is no module, or ``exclude`` is a single name.
        ValueError: If there are none; if a name is unknown; if a layer shares its weight with
            another module; or if a weight is computed from others, by ``torch.nn.utils.prune`` or a
            parametrization, so that zeroing it would not hold.

    Example:
        >>> from torch import nn
        >>> from fairlib.network import masks
        >>> convolution = nn.Conv2d(1, 2, 3)
        >>> model = nn.Sequential(convolution, nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 2))
        >>> list(masks.prunable(model))
        ['0.weight', '3.weight']
    """
    check_type("model", model, nn.Module, "a torch.nn.Module")
    refuse_lazy(model)
    keeping.settle(model)
    # named_parameters would name a tied weight once.
    names: dict[int, list[str]] = {}
    for prefix, module in model.named_modules():
        for name, parameter in module._parameters.items():
            names.setdefault(id(parameter), []).append(f"{prefix}.{name}".removeprefix("."))
    weights = {}
    for name, layer, own in _places(model):
        weight = layer._parameters.get(own)
        if weight is None:
            how = (
                keeping.owner(layer, own)
                or "computed from other parameters; make it a parameter first"
            )
            raise ValueError(f"{name} is {how}")
        tied = [other for other in names[id(weight)] if other != name]
        if tied:
            raise ValueError(f"{name} and {tied[0]} are one tied weight; untie them before pruning")
        weights[name] = weight
    if not weights:
        raise ValueError(
            f"{type(model).__name__} has no prunable weight: no convolution and no linear layer"
        )
    excluded = check_many("exclude", exclude)
    for name in excluded:
        lookup("prunable weight", name, weights)
    left = {name: weight for name, weight in weights.items() if name not in excluded}
    if not left:
        raise ValueError(f"exclude must leave a weight to prune, got all: {', '.join(excluded)}")
    return left


def read_masks(model: nn.Module) -> dict[str, Tensor]:
    """Read the masks of a model.

    Returns:
        Parameter name to bool tensor of the weight's shape, True where the weight is kept; layers
        without a mask are left out. The other weights are zero
        (:func:`fairlib.network.keeping.settle`).
    """
    keeping.settle(model)
    # Bytes of uint8 are those of bools; masks of edition 0.1 are bools themselves.
    return {name: mask.view(torch.bool) for name, mask in keeping.kept(model, MASK).items()}


def with_masks(model: nn.Module, keep: Mapping[str, Tensor]) -> nn.Module:
    """Copy a model, in eval mode, with the weights outside ``keep`` zero in any training.

    Args:
        model: Left as it is.
        keep: Parameter name to bool tensor of the weight's shape, True where the weight is kept.
            Weights not named keep the mask they have.

    Raises:
        ValueError: If a name is no prunable weight or a shape differs.

    Example:
        >>> import torch
        >>> from fairlib.network import masks
        >>> model = torch.nn.Linear(3, 1)
        >>> keep = {"weight": torch.tensor([[True, False, True]])}
        >>> masks.with_masks(model, keep).weight.tolist()[0][1]
        0.0
    """
    masked = copied(model)
    set_masks(masked, keep)
    return masked.eval()


def set_masks(model: nn.Module, keep: Mapping[str, Tensor]) -> None:
    """Mask a model in place, for a training loop whose optimizer holds its parameters.

    Args:
        model: Its masked weights become zero and stay so.
        keep: Parameter name to bool tensor of the weight's shape, True where the weight is kept.
            Weights not named keep the mask they have.

    Raises:
        ValueError: If a name is no prunable weight or a shape differs; then the model is as it was.
    """
    weights = prunable(model)
    for name, mask in keep.items():
        check_mask(name, mask, lookup("prunable weight", name, weights).shape)
    keeping.keep(
        model,
        {
            name: {MASK: mask.detach().to(weights[name].device, torch.uint8, copy=True)}
            for name, mask in keep.items()
        },
    )


def check_scores(scores: Mapping[str, Tensor]) -> None:
    """Refuse scores, given by name of the scored layer, that hold NaN.

    Raises:
        ValueError: If some do.
    """
    for name, score in scores.items():
        if score.isnan().any():
            raise ValueError(f"the scores of {name} hold NaN; has training diverged?")


def check_mask(name: str, mask: Tensor, shape: torch.Size) -> None:
    """Refuse a mask of another dtype than bool or of another shape.

    Raises:
        ValueError: If it is one; names the layer, and dtype and shape of both masks.
    """
    if mask.shape != shape or mask.dtype != torch.bool:
        raise ValueError(
            f"the mask of {name} must be bool {tuple(shape)}, got {mask.dtype} {tuple(mask.shape)}"
        )


def sparsity(model: nn.Module) -> float:
    """Compute the share of exact zeros among the prunable weights, in [0, 1].

    Raises:
        TypeError: If the model is no module.
        ValueError: If the model has no prunable weight.

    Example:
        Each layer has six weights, and the first layer's are zero; biases do not count.

        >>> import torch, fairlib
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 3))
        >>> _ = model[0].weight.data.zero_()
        >>> fairlib.sparsity(model)
        0.5
    """
    weights = prunable(model).values()
    nonzero = sum(int(weight.count_nonzero()) for weight in weights)
    return 1 - nonzero / sum(weight.numel() for weight in weights)


def uncovered(model: nn.Module) -> str | None:
    """Say what share of all weights, the parameters of two axes or more, a level of compression is
    a share of; None if it is 90 % or more."""
    every = {name: weight.numel() for name, weight in model.named_parameters() if weight.ndim > 1}
    rest = sorted(every.keys() - prunable(model).keys())
    total, left = sum(every.values()), sum(every[name] for name in rest)
    if 10 * left <= total:
        return None
    more = f" and {len(rest) - 3} more" if len(rest) > 3 else ""
    return (
        f"of {total:,} weights {total - left:,} ({1 - left / total:.1%}) can be compressed; "
        f"{', '.join(rest[:3])}{more} stay as they are"
    )


def _places(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Yield the places of weights that can be pruned: name in the model, module, and name in it."""
    for prefix, layer in model.named_modules():
        names: Iterable[str] = ()
        if isinstance(layer, LAYERS):
            names = ("weight",)
        elif isinstance(layer, nn.MultiheadAttention):
            names = (name for name in ATTENTION if getattr(layer, name, None) is not None)
        elif isinstance(layer, nn.RNNBase | nn.RNNCellBase):
            known = (*layer._parameters, *getattr(layer, "parametrizations", ()))
            names = (name for name in known if name.startswith("weight"))
        for name in names:
            yield f"{prefix}.{name}".removeprefix("."), layer, name
