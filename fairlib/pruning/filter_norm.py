"""Filter-norm pruning: remove the channels whose filters have the smallest norm."""

from functools import partial

import torch
from torch import Tensor, nn

from fairlib.data import GroupedDataset
from fairlib.network import masks
from fairlib.network.channels import select_channels


def filter_norm(
    model: nn.Module, *, sparsity: float, data: GroupedDataset | Tensor | None
) -> nn.Module:
    r"""Remove the channels whose filters have the smallest norm, without retraining.

    A channel's score is :math:`\|F_i\|_2`, the norm of the weights that produce it, without its
    bias; where a residual sum or a depthwise convolution ties channels of several layers,
    :math:`F_i` is the concatenation of their filters. The channels of lowest score are removed at
    one rate in all layers, together with the weights that read them
    (:func:`fairlib.network.channels.select_channels`).

    Args:
        model: The trained model; not changed.
        sparsity: Smallest share of zeros among the prunable weights, in [0, 1).
        data: The training set, or a tensor of inputs; only the shape of its inputs is used.

    Returns:
        A masked copy in eval mode.

    Raises:
        ValueError: If ``data`` is missing, or the model has no removable channels or too few of
            them.

    Source:
        Li et al. (2017), "Pruning filters for efficient ConvNets", with the sum of absolute values
        as the norm; in the paper one layer of a residual sum decides for the others.
    """
    scores = partial(torch.linalg.vector_norm, dim=1)
    return masks.with_masks(model, select_channels(model, data, scores, sparsity))
