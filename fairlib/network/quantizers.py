"""Weight quantizers: weights of few values, which stay so in any training.

A quantized weight *is* rounded in ``module.weight``, under its ordinary name, so any code that
reads it sees what the network computes with. What rounding took away is the buffer
``weight_residual``. An optimizer moves the weight off its values; the next forward pass adds the
residual and rounds again. With gradient :math:`g` at the rounded weights :math:`Q(\\theta)`,
learning rate :math:`\\eta` and scale :math:`s` this is the straight-through estimator
:math:`\\theta \\leftarrow \\theta - \\eta g(Q(\\theta))`, in any loop and with any optimizer.
Beside it stand the buffers ``weight_scale``, one number for each output channel, and
``weight_bits``. A weight that is exactly zero, such as a pruned one, stays zero."""

import copy
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fairlib.network.masks import prunable

BITS, SCALE, RESIDUAL = "weight_bits", "weight_scale", "weight_residual"

_OWN = "_quantizer_own"  # Where a quantized layer keeps its _Own.
_NEVER_CALLED = (
    nn.modules.linear.NonDynamicallyQuantizableLinear
)  # nn.MultiheadAttention reads its weight.


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
        >>> rounded(torch.tensor([0.9, 0.4, 0.0, -7.0]), torch.tensor(0.5), 3).tolist()  # Up to three steps away.
        [1.0, 0.5, 0.0, -1.5]
    """
    if bits == 1:
        return scale * weight.sign()
    top = 2 ** (bits - 1) - 1
    return (weight / scale).round_().clamp_(-top, top).mul_(scale)


def with_quantizers(
    model: nn.Module, scales: Mapping[str, Tensor], bits: Mapping[str, int]
) -> nn.Module:
    """Copy a model, in eval mode, with rounded weights; they stay rounded in any training.

    Args: model: Left as it is. scales: Name of a prunable weight
        (:func:`fairlib.network.masks.prunable`) to its scales ``(O, 1, ...)``. bits: Number of bits
        of each of these weights, by the same names.
    """
    quantized = copy.deepcopy(model)
    known = prunable(quantized)
    for name, scale in scales.items():
        layer = quantized.get_submodule(name.rpartition(".")[0])
        tensors = {BITS: torch.tensor(bits[name], dtype=torch.uint8), SCALE: scale}
        tensors |= {RESIDUAL: torch.zeros_like(known[name])}
        for buffer, tensor in tensors.items():
            layer.register_buffer(buffer, tensor.detach().to(known[name].device))
        layer.register_forward_pre_hook(_round)
        layer.register_state_dict_pre_hook(_round)
        layer.__dict__[_OWN] = _Own()
        if isinstance(layer, _NEVER_CALLED):
            quantized.register_forward_pre_hook(round_quantized)
    round_quantized(quantized)
    round_quantized(quantized)  # From here on rounding again changes no bit.
    return quantized.eval()


def insert_quantizers(model: nn.Module, state_dict: Mapping[str, Tensor]) -> nn.Module:
    """Copy a dense model with the quantizers that a saved state has, for its values to be
    loaded."""
    scales, bits = (
        {
            key.replace(buffer, "weight"): tensor
            for key, tensor in state_dict.items()
            if key.endswith(buffer)
        }
        for buffer in (SCALE, BITS)
    )
    ours = {
        name: scales[name] for name in scales.keys() & bits.keys()
    }  # Else they are somebody else's.
    return with_quantizers(model, ours, {name: int(bits[name]) for name in ours}) if ours else model


def read_bits(model: nn.Module) -> dict[str, int]:
    """Read the bits of quantized weights: parameter name to number; other weights are left out."""
    return {
        f"{name}.weight".removeprefix("."): int(layer.get_buffer(BITS))
        for name, layer in _quantized(model)
    }


def round_quantized(model: nn.Module, *_: object) -> None:
    """Round the quantized weights of a model, in place, before they are read; every forward pass
    does so too."""
    for layer in dict(_quantized(model)).values():
        _round(layer)


def _quantized(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, module in model.named_modules():
        if _OWN in module.__dict__:  # Else a buffer of such a name is somebody else's.
            yield name, module


class _Own:
    """A weak reference to a layer's own weight; a copy or an unpickled layer begins without."""

    weight: Any = None

    def __reduce__(self) -> tuple[type["_Own"], tuple[()]]:
        return _Own, ()

    def is_foreign(self, weight: nn.Parameter) -> bool:
        """Whether the layer computes with another parameter than its own, under
        ``functional_call``."""
        own = self.weight and self.weight()
        if own is None:
            self.weight = weakref.ref(weight)
        return own is not None and own is not weight


def _round(layer: nn.Module, *_: object) -> None:
    """Round what an optimizer has moved; as a hook before a forward pass and before a
    ``state_dict`` is taken."""
    weight = layer._parameters.get("weight")
    if torch.compiler.is_exporting() or not isinstance(
        weight, nn.Parameter
    ):  # A caller's, under functional_call.
        return
    if not torch.compiler.is_compiling() and layer.__dict__[_OWN].is_foreign(weight):
        return
    residual = layer.get_buffer(RESIDUAL)
    residual.add_(weight.data)
    weight.data.copy_(rounded(residual, layer.get_buffer(SCALE), int(layer.get_buffer(BITS))))
    residual.sub_(weight.data)
