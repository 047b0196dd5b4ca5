"""SNIP: zero the weights whose removal would change the loss least, to first order."""

from collections.abc import Iterable

import torch
from torch import nn

from fairlib.data import GroupedDataset
from fairlib.network import masks
from fairlib.network.memory import add_gradients
from fairlib.pruning.gradients import mean_gradient, scored_copy
from fairlib.pruning.selection import keep_highest_within


def snip(
    model: nn.Module,
    *,
    sparsity: float,
    data: GroupedDataset,
    granularity: str = "weight",
    exclude: Iterable[str] = (),
) -> nn.Module:
    r"""Zero the weights of smallest connection sensitivity, without retraining.

    With a factor :math:`c_j` on every weight, the sensitivity is the gradient of the mean
    cross-entropy with respect to the factor,

    .. math::
        s_j = \left| \partial L(c \odot w) / \partial c_j \right|_{c = 1}
            = | w_j \, \partial L / \partial w_j |.

    Dividing by the sum of all, as the paper does, changes no rank. All weights (convolution and
    linear; never biases, which the authors' code prunes as well, nor normalization) are ranked
    together, and exactly ``round(sparsity * n)`` of them are pruned, equal ones in the order of the
    parameters; the most sensitive of every layer stays.

    The paper scores *at initialization* and then trains: ``fit(prune(build(...), "snip", ...),
    ...)``. [B] applies the same formula to a *trained* network, which makes it another method:
    there the gradient is nearly zero, and what is left of it comes from noise and from samples that
    are not fitted. Which of the two it is depends on ``model``.

    Args:
        model: A model at initialization, or a trained one; not changed. It is scored in eval mode,
            except that batch normalizations that have seen no batch normalize by the batch (up to
            256 samples).
        sparsity: Share of zeros among the prunable weights, in [0, 1).
        data: The samples to score with, usually the training set. The paper takes one batch: 100
            samples on MNIST, 128 on CIFAR-10.
        granularity, exclude: Those of :func:`fairlib.pruning.magnitude`.

    Returns:
        A masked copy in eval mode.

    Raises:
        ValueError: If a score is NaN, all scores are zero (every sample is fitted to the last
            digit), the model is already sparser than asked, a name is unknown, or a layer cannot
            take the pattern.

    Source:
        Lee, Ajanthan, Torr, SNIP: single-shot network pruning based on connection sensitivity (ICLR
        2019).
    """
    scored = scored_copy(model, data)
    gradients = mean_gradient(scored, data, torch.arange(len(data)))
    weights = masks.prunable(scored, exclude)
    # The magnitude, not the signed product: a weight matters to the loss whether its removal would
    # raise the loss or lower it.
    scores = {name: (weight * gradients[name]).abs() for name, weight in weights.items()}
    keep = keep_highest_within(model, scores, sparsity, "global", granularity)
    return add_gradients(masks.with_masks(model, keep), len(data))
