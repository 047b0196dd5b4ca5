"""Accuracy and loss of every group."""

import numpy as np
import pandas as pd
from torch import nn

from fairlib.data import GroupedDataset
from fairlib.network.evaluation import predict
from fairlib.statistics import group_means


def group_performance(model: nn.Module, data: GroupedDataset) -> pd.DataFrame:
    r"""Compute every group's size, accuracy and mean cross-entropy :math:`J(\theta; D_a)` in nats.

    Returns:
        Indexed by group in the order of the codes, columns ``size accuracy loss``. A group without
        samples has NaN.

    Example:
        >>> import torch, fairlib
        >>> groups, names = [0] * 9 + [1], ["many", "few"]
        >>> data = fairlib.GroupedDataset(torch.zeros(10, 1), groups, groups, group_names=names)
        >>> model = torch.nn.Linear(1, 2)
        >>> model.bias.data = torch.tensor([9.0, 1.0]).log()  # Probabilities 0.9 and 0.1.
        >>> fairlib.diagnostics.group_performance(model, data).round(2)
               size  accuracy  loss
        group
        many      9       1.0  0.11
        few       1       0.0  2.30
    """
    predictions = predict(model, data)
    values = np.stack([predictions.correct, predictions.loss], axis=1)
    means = group_means(values, data.groups.cpu().numpy(), data.num_groups)
    return pd.DataFrame({"size": data.group_sizes, "accuracy": means[:, 0], "loss": means[:, 1]})


def constant_accuracy(data: GroupedDataset) -> pd.DataFrame:
    r"""Compute every group's accuracy of a model that gives the same answer to all samples.

    With :math:`k` the most frequent class of the data, the first of several, this is the share
    :math:`\frac{1}{|D_a|} \sum_{i \in D_a} 1(y_i = k)` of the group's samples that are of this
    class. A network that is no more accurate in a group has learned nothing about it
    (:func:`whopays.effects.at_floor`).

    Returns:
        Indexed by group in the order of the codes, column ``constant``. A group without samples has
        NaN.
    """
    targets = data.targets.cpu().numpy()
    right = targets == np.bincount(targets, minlength=1).argmax()
    means = group_means(right, data.groups.cpu().numpy(), data.num_groups)
    return pd.DataFrame({"constant": means}, index=pd.Index(data.group_names, name="group"))
