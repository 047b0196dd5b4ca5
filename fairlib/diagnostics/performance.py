"""Accuracy and loss of every group."""

import numpy as np
import pandas as pd
from torch import nn

from fairlib.data import GroupedDataset
from fairlib.diagnostics.computable import NotComputable
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


def error_rates(model: nn.Module, data: GroupedDataset) -> pd.DataFrame:
    r"""Compute every group's true and false positive rate; class 1 of two is positive.

    These are the shares :math:`P(\hat y = 1 \mid y = 1, a)` and :math:`P(\hat y = 1 \mid y = 0,
    a)`. Where one answer is rare in a group, the group's accuracy hardly moves when a model stops
    giving that answer; its true positive rate does (Hardt, Price, Srebro, Equality of Opportunity
    in Supervised Learning, NeurIPS 2016).

    Returns:
        Indexed by group in the order of the codes, columns ``true_positive false_positive`` in [0,
        1] and ``positives``, the number of samples of class 1. A group without positives has no
        true positive rate, one without negatives no false positive rate: NaN.

    Raises:
        NotComputable: If there are not two classes.
    """
    if data.num_classes != 2:
        raise NotComputable(f"rates of errors need two classes, got {data.num_classes}")
    groups, targets = data.groups.cpu().numpy(), data.targets.cpu().numpy()
    # A right answer to a positive and a wrong one to a negative are both class 1.
    answers = predict(model, data).correct == targets
    rates = group_means(answers, 2 * groups + targets, 2 * data.num_groups).reshape(-1, 2)
    positives = np.bincount(groups[targets == 1], minlength=data.num_groups)
    columns = {"true_positive": rates[:, 1], "false_positive": rates[:, 0], "positives": positives}
    return pd.DataFrame(columns, index=data.group_sizes.index)
