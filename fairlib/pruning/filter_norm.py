"""Filter-norm pruning: remove the channels whose filters have the smallest norm."""

from functools import partial

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

    A channel's score is :math:`\|F_i\|_p`, the norm of the weights that produce it, without its
    bias; where a residual sum or a depthwise convolution ties channels of several layers,
    :math:`F_i` is the concatenation of their filters. The channels of lowest score are removed at
    one rate in all layers, together with the weights that read them
    (:func:`fairlib.network.channels.select_channels`).

    Args:
        model: The trained model; not changed.
        sparsity: Smallest share of zeros among the prunable weights, in [0, 1).
        data: The training set, or a tensor of inputs; only the shape of its inputs is used.
        norm: Order p of the norm, above 0.

    Returns:
        A masked copy in eval mode.

    Raises:
        ValueError: If ``data`` is missing, ``norm`` is out of range, or the model has no removable
            channels or too few of them.

    Source:
        Li et al. (2017), "Pruning filters for efficient ConvNets", with ``norm=1``; in the paper
        one layer of a residual sum decides for the others.
    """
    check_number("norm", norm, 0, low_open=True)
    scores = partial(torch.linalg.vector_norm, ord=norm, dim=1)
    return masks.with_masks(model, select_channels(model, data, scores, sparsity))
