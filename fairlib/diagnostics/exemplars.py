"""Pruning-identified exemplars: the samples about which dense and compressed networks, as populations, disagree."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from torch import nn

from fairlib.data import GroupedDataset
from fairlib.network.evaluation import predict
from fairlib.statistics import group_means


def exemplars(dense: Sequence[nn.Module], compressed: Sequence[nn.Module], data: GroupedDataset) -> np.ndarray:
    r"""Samples whose most frequent predicted class differs between two populations of networks.

    With :math:`\hat y_i^{(m)}` the class that network m predicts for sample i, sample i is an exemplar if
    :math:`\operatorname{mode}_{m \in \text{dense}} \hat y_i^{(m)} \neq
    \operatorname{mode}_{m \in \text{compressed}} \hat y_i^{(m)}`; of equally frequent classes the first counts.
    A single pair of networks disagrees about many samples by the chance of its initial weights; over a population that
    chance averages out, but not entirely: compare with two populations of dense networks.

    Args:
        dense: Networks of one training recipe that differ in their seed; at least one.
        compressed: Likewise, compressed.
        data: What they are asked about; best a test set that none was trained on.

    Returns:
        bool ``(N,)``.

    Raises:
        ValueError: If a population is empty, or outputs do not match the classes of the data.

    Source:
        Hooker, Courville, Clark, Dauphin, Frome, What do compressed deep neural networks forget? (2019), Section 3.
    """
    return _modal_class("dense", dense, data) != _modal_class("compressed", compressed, data)


def group_exemplars(dense: Sequence[nn.Module], compressed: Sequence[nn.Module], data: GroupedDataset) -> pd.DataFrame:
    """The share of :func:`exemplars` in every group.

    Returns:
        Indexed by group in the order of the codes, columns ``size exemplars share``; a group without samples has NaN.

    Raises:
        ValueError: As :func:`exemplars`.
    """
    found = exemplars(dense, compressed, data)
    share = group_means(found[:, None].astype(float), data.groups.cpu().numpy(), data.num_groups)[:, 0]
    sizes = data.group_sizes
    return pd.DataFrame({"size": sizes, "exemplars": share * sizes, "share": share})


def _modal_class(name: str, population: Sequence[nn.Module], data: GroupedDataset) -> np.ndarray:
    if not len(population):
        raise ValueError(f"the population of {name} networks is empty")
    votes = np.zeros((len(data), data.num_classes), dtype=np.int64)
    for model in population:
        votes[np.arange(len(data)), predict(model, data).logits.argmax(axis=1)] += 1
    return votes.argmax(axis=1)
