"""Filter-norm pruning: the channels of smallest filters go."""

import torch
from torch import Tensor, nn

from fairlib._validation import check_number
from fairlib.data import GroupedDataset
from fairlib.network import masks
from fairlib.network.channels import select_channels


def filter_norm(
    model: nn.Module, *, sparsity: float, data: GroupedDataset | Tensor | None, norm: float = 2
) -> nn.Module:
    r"""Remove the channels whose filters have the smallest norm, without retraining.

    A channel's score is :math:`\|F_i\|_p`, the norm of the weights that produce it, without its bias; where a residual
    sum or a depthwise convolution ties channels of several layers, :math:`F_i` is the concatenation of their filters.
    The lowest go at one rate in all layers, with the weights that read them, as
    :func:`fairlib.network.channels.select_channels` says.

    Args:
        model: The trained model; left as it is.
        sparsity: Share of zeros among the prunable weights, in [0, 1), that is at least reached.
        data: The training set, or a tensor of inputs; only the shape of its inputs is used.
        norm: The p of the norm, above 0.

    Returns:
        A masked copy in eval mode.

    Raises:
        ValueError: If ``data`` is missing, ``norm`` is out of range, the channels of the model cannot be removed, or
            not as many as asked for.

    Source:
        Li et al. (2017), "Pruning filters for efficient ConvNets", with ``norm=1``; one layer of a residual sum decides
        there for the others.
    """
    check_number("norm", norm, 0, low_open=True)

    def scores(filters: Tensor) -> Tensor:
        return torch.linalg.vector_norm(filters, ord=norm, dim=1)

    return masks.apply(model, select_channels(model, data, scores, sparsity))
