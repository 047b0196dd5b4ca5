"""Weight quantizers: weights of few values, which stay so in any training.

A quantized weight *is* rounded in ``module.weight``, under its ordinary name, so any code that
reads it sees the values that the network computes with. The difference to the weight before
rounding is the buffer ``weight_residual``. An optimizer moves the weight off its values; the next
forward pass adds the residual and rounds again. With gradient :math:`g` at the rounded weights
:math:`Q(\\theta)`, learning rate :math:`\\eta` and scale :math:`s` this is the straight-through
estimator :math:`\\theta \\leftarrow \\theta - \\eta g(Q(\\theta))`, in any loop and with any
optimizer. Two further buffers are ``weight_scale``, one number for each output channel, and
``weight_bits``. A weight that is exactly zero, such as a pruned one, stays zero."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fairlib.network.copying import copied
from fairlib.network.keeping import BITS, RESIDUAL, SCALE, keep, kept, rounded, settle
from fairlib.network.masks import prunable

__all__ = ["read_bits", "round_quantized", "rounded", "with_quantizers"]

round_quantized = settle


def with_quantizers(model: nn.Module, scales: Mapping[str, Tensor], bits: int) -> nn.Module:
    """Copy a model, in eval mode, with rounded weights; they stay rounded in any training.

    Args:
        model: Not changed.
        scales: Name of a prunable weight (:func:`fairlib.network.masks.prunable`) to its scales
            ``(O, 1, ...)``.
        bits: Number of bits of each of these weights.
    """
    quantized = copied(model)
    weights = prunable(quantized)
    keep(
        quantized,
        {
            name: {
                BITS: torch.tensor(bits, dtype=torch.uint8).to(weights[name].device),
                SCALE: scale.detach().to(weights[name].device),
                RESIDUAL: torch.zeros_like(weights[name]).detach(),
            }
            for name, scale in scales.items()
        },
    )
    # The first rounding leaves a residual, and weight + residual is rounded itself as a sum of
    # floats. The second starts from that sum; from then on rounding again changes no bit, so that
    # evaluating a model twice, or saving it, leaves it as it is.
    settle(quantized)
    return quantized.eval()


def read_bits(model: nn.Module) -> dict[str, int]:
    """Read the bits of quantized weights: parameter name to number; other weights are left out."""
    return {name: int(bits) for name, bits in kept(model, BITS).items()}
