"""Weight quantizers: weights of few values, which stay so in any training.

A quantized weight *is* rounded in ``module.weight``, under its ordinary name, so any code that
reads it sees the values that the network computes with. The difference to the weight before
rounding is the buffer ``weight_residual``. An optimizer moves the weight off its values; the next
forward pass adds the residual and rounds again. With gradient :math:`g` at the rounded weights
:math:`Q(\\theta)`, learning rate :math:`\\eta` and scale :math:`s` this is the straight-through
estimator :math:`\\theta \\leftarrow \\theta - \\eta g(Q(\\theta))`, in any loop and with any
optimizer. Two further buffers are ``weight_scale``, one number for each output channel, and
``weight_bits``. A weight that is exactly zero, such as a pruned one, stays zero."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from fairlib.network.masks import prunable

BITS, SCALE, RESIDUAL = "weight_bits", "weight_scale", "weight_residual"

# Weak references to the weights that belong to quantized layers. A copy or an unpickled layer is
# not in here: a reference copied along with it would lead to the weight of the original.
_weights: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()


def rounded(weight: Tensor, scale: Tensor, bits: int) -> Tensor:
    r"""Round weights to the nearest of :math:`2^b - 1` multiples of a scale, and with one bit to
    their sign.

    .. math::
        Q(w) = s \, \mathrm{clip}(\mathrm{round}(w / s), -(2^{b - 1} - 1), 2^{b - 1} - 1), \quad
        Q(w) = s \, \mathrm{sign}(w) \text{ for } b = 1 .

    Args:
        weight: ``(O, ...)``, one row for each output channel.
        scale: Positive, broadcasts to ``weight``.
        bits: Number of bits :math:`b` of a weight.

    Example:
        >>> import torch
        >>> from fairlib.network.quantizers import rounded
        >>> weight = torch.tensor([0.9, 0.4, 0.0, -7.0])
        >>> rounded(weight, torch.tensor(0.5), bits=3).tolist()  # Up to three steps away.
        [1.0, 0.5, 0.0, -1.5]
    """
    if bits == 1:
        return scale * weight.sign()
    top = 2 ** (bits - 1) - 1
    return (weight / scale).round_().clamp_(-top, top).mul_(scale)


def with_quantizers(model: nn.Module, scales: Mapping[str, Tensor], bits: int) -> nn.Module:
    """Copy a model, in eval mode, with rounded weights; they stay rounded in any training.

    Args:
        model: Not changed.
        scales: Name of a prunable weight (:func:`fairlib.network.masks.prunable`) to its scales
            ``(O, 1, ...)``.
        bits: Number of bits of each of these weights.
    """
    quantized = copy.deepcopy(model)
    known = prunable(quantized)
    for name, scale in scales.items():
        layer, weight = quantized.get_submodule(name.rpartition(".")[0]), known[name]
        layer.register_buffer(BITS, torch.tensor(bits, dtype=torch.uint8).to(weight.device))
        layer.register_buffer(SCALE, scale.detach().to(weight.device))
        layer.register_buffer(RESIDUAL, torch.zeros_like(weight).detach())
        layer.register_forward_pre_hook(_round)
        layer.register_state_dict_pre_hook(_round)
        # nn.MultiheadAttention reads the weight of this layer and never calls it, so that no hook
        # of the layer would run; the hook of the root rounds it in time.
        if isinstance(layer, nn.modules.linear.NonDynamicallyQuantizableLinear):
            quantized.register_forward_pre_hook(round_quantized)
    # The first rounding leaves a residual, and weight + residual is rounded itself as a sum of
    # floats. The second starts from that sum; from then on rounding again changes no bit, so that
    # evaluating a model twice, or saving it, leaves it as it is.
    round_quantized(quantized)
    round_quantized(quantized)
    return quantized.eval()


def insert_quantizers(model: nn.Module, state_dict: Mapping[str, Tensor]) -> nn.Module:
    """Copy a dense model with the quantizers that a saved state has, for its values to be
    loaded."""
    # A scale without bits beside it is a buffer of another library.
    scales = {
        key.removesuffix("_scale"): scale
        for key, scale in state_dict.items()
        if key.endswith(SCALE) and key.removesuffix(SCALE) + BITS in state_dict
    }
    # Loading the state replaces the bits, as it does all buffers.
    return with_quantizers(model, scales, 8) if scales else model


def read_bits(model: nn.Module) -> dict[str, int]:
    """Read the bits of quantized weights: parameter name to number; other weights are left out."""
    return {
        f"{name}.weight".removeprefix("."): int(layer.get_buffer(BITS))
        for name, layer in _quantized(model)
    }


def round_quantized(model: nn.Module, *_: object) -> None:
    """Round the quantized weights of a model, in place, before they are read; every forward pass
    does so too."""
    for _name, layer in _quantized(model):
        _round(layer)


def _quantized(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, module in model.named_modules():
        # A buffer of the same name alone may be another library's.
        if _round in module._forward_pre_hooks.values():
            yield name, module


def _is_foreign(layer: nn.Module, weight: nn.Parameter) -> bool:
    """Return True if a layer computes with another parameter than its own, under
    ``functional_call``."""
    own = _weights.get(layer, lambda: None)()
    if own is None:
        _weights[layer] = ref(weight)
    return own is not None and own is not weight


def _round(layer: nn.Module, *_: object) -> None:
    """Round the weight that an optimizer has moved; as a hook before a forward pass and before a
    ``state_dict`` is taken."""
    weight = layer._parameters.get("weight")
    # Under functional_call the weight is the caller's: rounding it would overwrite the point at
    # which a diagnostic differentiates, and add its residual to a weight it does not belong to.
    if torch.compiler.is_exporting() or not isinstance(weight, nn.Parameter):
        return
    if not torch.compiler.is_compiling() and _is_foreign(layer, weight):
        return
    # weight + residual is the weight that training has reached. A step smaller than half the scale
    # changes no rounded value, and without the residual it would be forgotten at every pass: no
    # number of small steps could ever move a weight. All three lines work in place, since an
    # optimizer and its momentum know the weight by identity.
    residual = layer.get_buffer(RESIDUAL)
    residual.add_(weight.data)
    weight.data.copy_(rounded(residual, layer.get_buffer(SCALE), int(layer.get_buffer(BITS))))
    residual.sub_(weight.data)
