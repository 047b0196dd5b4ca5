"""Accuracy and loss of every group."""

import numpy as np
import pandas as pd
from torch import nn

from fairlib.data import GroupedDataset
from fairlib.network.evaluation import predict
from fairlib.statistics import group_means


def group_performance(model: nn.Module, data: GroupedDataset) -> pd.DataFrame:
    r"""Compute size, accuracy and mean cross-entropy :math:`J(\theta; D_a)`, in nats, of every group.

    Returns:
        Indexed by group in the order of the codes, columns ``size accuracy loss``. A group without samples has NaN.
    """
    predictions = predict(model, data)
    values = np.stack([predictions.correct, predictions.loss], axis=1)
    means = group_means(values, data.groups.cpu().numpy(), data.num_groups)
    return pd.DataFrame({"size": data.group_sizes, "accuracy": means[:, 0], "loss": means[:, 1]})
