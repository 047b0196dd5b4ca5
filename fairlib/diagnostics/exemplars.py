"""Pruning-identified exemplars: samples about which populations of networks disagree."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from torch import nn

from fairlib.data import GroupedDataset
from fairlib.network.evaluation import predict
from fairlib.statistics import group_means


def exemplars(
    dense: Sequence[nn.Module], compressed: Sequence[nn.Module], data: GroupedDataset
) -> np.ndarray:
    r"""Find samples whose most frequent predicted class differs between two populations.

    With :math:`\hat y_i^{(m)}` the class that network m predicts for sample i, sample i is an
    exemplar if :math:`\operatorname{mode}_{m \in \text{dense}} \hat y_i^{(m)} \neq
    \operatorname{mode}_{m \in \text{compressed}} \hat y_i^{(m)}`; of equally frequent classes the
    first counts. A single pair of networks disagrees about many samples by the chance of its
    initial weights; over a population that chance averages out, but not entirely: compare with two
    populations of dense networks.

    Args:
        dense: Networks of one training recipe that differ in their seed; at least one.
        compressed: Compressed networks of one training recipe that differ in their seed; at least
            one.
        data: Samples to predict, best a test set on which no network was trained.

    Returns:
        True for each sample that is an exemplar, bool ``(N,)``.

    Raises:
        ValueError: If a population is empty, or outputs do not match the classes of the data.

    Source:
        Hooker, Courville, Clark, Dauphin, Frome, What do compressed deep neural networks forget?
        (2019), Section 3.

    Example:
        >>> import torch, fairlib
        >>> data = fairlib.GroupedDataset(torch.tensor([[1.0], [-1.0]]), [1, 0], [0, 1])
        >>> def network(weight):
        ...     model = torch.nn.Linear(1, 2, bias=False)
        ...     model.weight.data = torch.tensor([[0.0], [weight]])
        ...     return model
        >>> dense = [network(1.0), network(2.0), network(-1.0)]
        >>> compressed = [network(1.0), network(0.0), network(0.0)]
        >>> fairlib.diagnostics.exemplars(dense, compressed, data).tolist()
        [True, False]
    """
    return _modal_class("dense", dense, data) != _modal_class("compressed", compressed, data)


def group_exemplars(
    dense: Sequence[nn.Module], compressed: Sequence[nn.Module], data: GroupedDataset
) -> pd.DataFrame:
    """Count the pruning-identified exemplars in every group (:func:`exemplars`).

    Args:
        dense, compressed, data: Arguments of :func:`exemplars`.

    Returns:
        Indexed by group in the order of the codes, columns ``size``, ``exemplars`` (their number)
        and ``share`` (of the group's samples, in [0, 1]); a group without samples has NaN.

    Raises:
        ValueError: If a population is empty, or outputs do not match the classes of the data.
    """
    found = exemplars(dense, compressed, data)
    share = group_means(found, data.groups.cpu().numpy(), data.num_groups)
    sizes = data.group_sizes
    return pd.DataFrame({"size": sizes, "exemplars": share * sizes, "share": share})


def _modal_class(name: str, population: Sequence[nn.Module], data: GroupedDataset) -> np.ndarray:
    """Return the class that most networks of a population predict, ``(N,)``."""
    from scipy.stats import mode

    if not len(population):
        raise ValueError(f"{name} must hold at least one network, got none")
    return mode([predict(model, data).logits.argmax(axis=1) for model in population]).mode
