"""FPGM: remove the channels whose filters are replaced best by the others of their layer."""

import torch
from torch import Tensor, nn

from fairlib.data import GroupedDataset
from fairlib.network import masks
from fairlib.network.channels import select_channels


def fpgm(model: nn.Module, *, sparsity: float, data: GroupedDataset | Tensor | None) -> nn.Module:
    r"""Remove the channels whose filters are nearest to the geometric median of their layer.

    Nothing is trained.

    A channel's score is the sum of the Euclidean distances of its filter to the others,
    :math:`\sum_j \|F_i - F_j\|_2`; the geometric median is the point that makes this sum smallest.
    Tied channels are scored by the concatenation of their filters. The channels of lowest score are
    removed at one rate in all layers, together with the weights that read them
    (:func:`fairlib.network.channels.select_channels`).

    [B] describes it as removing "filters with the smallest geometric median", which is not the
    method: a filter has no geometric median, a layer has one. Torch-Pruning's importance of this
    name applies :math:`|w|^p` before it takes distances, so that with its default p = 2 they are
    not those of the filters.

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
        He et al. (2019), "Filter pruning via geometric median for deep convolutional neural
        networks acceleration", its "FPGM-only"; its "FPGM-mix", which prunes by norm as well, is
        not offered.
    """
    chosen = select_channels(model, data, lambda filters: _distances(filters).sum(dim=1), sparsity)
    return masks.with_masks(model, chosen)


def _distances(points: Tensor) -> Tensor:
    """Compute the Euclidean distances ``(n, n)`` between rows; between equal rows exactly 0."""
    rows, columns = torch.triu_indices(len(points), len(points), offset=1, device=points.device)
    distances = points.new_zeros(len(points), len(points))
    # pdist works on differences: the expanded square would not give 0 for equal rows, and cdist
    # without it is 15 times as slow. It does not take half precision.
    distances[rows, columns] = torch.pdist(points.float() if points.itemsize < 4 else points).to(
        points.dtype
    )
    return distances + distances.T
