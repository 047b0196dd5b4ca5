"""Weight quantization: round the weights of every output channel to few values."""

import warnings

import torch
from torch import Tensor, nn

from fairlib._validation import check_number
from fairlib.network import masks, quantizers

_CANDIDATES = 200  # Scales that are tried for each channel.
_IMPROVEMENTS = 20  # Steps from the best of them.


def weights(model: nn.Module, *, bits: int) -> nn.Module:
    r"""Round every layer's weights to :math:`2^b - 1` multiples of a scale for each output channel.

    With weights :math:`w` of one output channel the scale is the one of least squared error,

    .. math::
        s = \arg\min_s \sum_i (w_i - Q_s(w_i))^2, \quad
        Q_s(w) = s \, \mathrm{clip}(\mathrm{round}(w / s), -(2^{b - 1} - 1), 2^{b - 1} - 1) ,

    and with one bit :math:`Q_s(w) = s \, \mathrm{sign}(w)`, :math:`s` the mean of :math:`|w|`. It
    is searched for among 200 scales up to :math:`2 \max |w| / (2^{b - 1} - 1)`, then improved by
    turns: values for the scale, and the scale :math:`\langle w, q \rangle / \langle q, q \rangle`
    for the values :math:`q`. No data are needed. Layers are convolutions and linear layers; biases
    and normalization keep their precision, pruned weights stay zero, and gates do not change.

    The copy can be trained, its gradients taken at the rounded weights and applied to those behind
    them (:mod:`fairlib.network.quantizers`); the scales stay.

    Args:
        model: The trained model; not changed.
        bits: Number of bits :math:`b` of a weight, 1 to 16.

    Returns:
        A copy in eval mode, with rounded values in ``module.weight``.

    Raises:
        ValueError: If ``bits`` is out of range, a weight is NaN or infinite, or the model is
            quantized already.

    Source:
        Rastegari et al., XNOR-Net (2016), for one bit; Choukroun et al. (2019) for the least
        squared error; Bengio et al. (2013) for the straight-through estimator.
    """
    check_number("bits", bits, 1, 16, high_closed=True, whole=True)
    found = masks.prunable(model)
    if quantizers.read_bits(model):
        raise ValueError("the model is quantized already: quantize the one that it was made from")
    for name, weight in found.items():
        if not weight.isfinite().all():
            raise ValueError(
                f"the scale of {name} would be NaN: it has NaN or infinite weights; "
                "has training diverged?"
            )
    if said := masks.uncovered(model):
        warnings.warn(f"not all weights are rounded: {said}", stacklevel=3)
    scales = {name: scale(weight.detach(), bits) for name, weight in found.items()}
    return quantizers.with_quantizers(model, scales, bits)


def scale(weight: Tensor, bits: int) -> Tensor:
    """Find the scales of least squared error.

    Args:
        weight: ``(O, ...)``.
        bits: Number of bits of a weight.

    Returns:
        ``(O, 1, ...)``, positive, in the dtype of ``weight``; 1 for a channel that is all zero.
    """
    size = weight.flatten(1).abs().double()
    if bits == 1:
        # Zeros are left out of the mean: they stay zero (a pruned weight), whatever the scale.
        best = size.sum(1, keepdim=True) / (size > 0).sum(1, keepdim=True).clamp(min=1)
    else:
        # The error as a function of the scale has many local minima, one near each scale at which a
        # weight passes from one value to the next, so no descent finds the least. A grid finds its
        # neighbourhood. From there each turn of the loop can only lower the error: values are the
        # nearest for the scale, and the scale is the least-squares one for the values. Beyond the
        # grid's end no weight takes more than half of the levels, and half of a scale does as well.
        most = 2 * size.amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
        errors = []
        for step in range(1, _CANDIDATES + 1):
            tried = quantizers.rounded(size, most * step / _CANDIDATES, bits)
            errors.append((size - tried).square().sum(1))
        best = most * (torch.stack(errors, 1).argmin(1, keepdim=True) + 1) / _CANDIDATES
        for _ in range(_IMPROVEMENTS):
            values = quantizers.rounded(size, best, bits) / best
            best = (size * values).sum(1, keepdim=True) / values.square().sum(1, keepdim=True)
    # A channel that is all zero has no best scale: 0 / 0 above, which would spread as NaN.
    best = torch.where(best > 0, best, 1.0)
    return best.to(weight.dtype).reshape(-1, *[1] * (weight.ndim - 1))
