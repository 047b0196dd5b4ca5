"""Wanda: zero the weights whose product with the size of their input is smallest."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from fairlib.data import GroupedDataset
from fairlib.network import masks
from fairlib.network.evaluation import full_precision, open_operators, outputs
from fairlib.pruning.gradients import scored_copy
from fairlib.pruning.selection import keep_highest_within


def wanda(
    model: nn.Module,
    *,
    sparsity: float,
    data: GroupedDataset,
    granularity: str = "weight",
    exclude: Iterable[str] = (),
) -> nn.Module:
    r"""Zero the weights of smallest magnitude times input norm, without retraining.

    The score of the weight from input j to output i of a layer is

    .. math:: s_{ij} = |w_{ij}| \, \|x_j\|_2,

    the norm taken over all samples and, where a layer acts at several places (pixels, tokens), over
    these as well. A convolution is the linear layer of its patches: j is an input channel at one
    position of the kernel. Scores are compared within one output: of each output's n weights
    exactly ``min(round(sparsity * n), n - 1)`` are pruned. The inputs are those in the model as it
    is; the paper prunes block by block, and takes them behind the blocks that are pruned already.

    Args:
        model: A trained model; not changed. It is run in eval mode and single precision.
        sparsity: Share of zeros among the weights of each output, in [0, 1).
        data: The samples whose inputs are measured, usually the training set; their answers are not
            used. The paper takes 128 texts.
        granularity: ``"weight"``; or ``"2:4"``, for which the scores of four successive inputs are
            compared (:func:`fairlib.pruning.selection.keep_two_of_four`).
        exclude: Names of weights to leave as they are.

    Returns:
        A masked copy in eval mode.

    Raises:
        ValueError: If a weight is not that of a layer that is called (attention and recurrent
            layers hold theirs), a score is NaN, all scores are zero, an output is already sparser
            than asked, a name is unknown, or a layer cannot take the pattern.

    Source:
        Sun, Liu, Bair, Kolter, A simple and effective pruning approach for large language models
        (ICLR 2024), Eq. 1 and section 3.
    """
    # Squares of half-precision inputs overflow, and all scores would be infinite.
    scored = scored_copy(model, data).float()
    scored.zero_grad()
    for layer in scored.modules():
        if isinstance(layer, masks.LAYERS):
            layer.register_forward_pre_hook(_add_squares, with_kwargs=True)
    with full_precision(), open_operators(scored):
        outputs(scored, data)
    weights = masks.prunable(scored, exclude)
    squares = {name: weight.grad for name, weight in weights.items() if weight.grad is not None}
    unseen = [name for name in weights if name not in squares]
    if unseen:
        raise ValueError(
            "'wanda' needs the inputs of each layer, which its call shows; "
            f"exclude={unseen} leaves out the weights that are used without one"
        )
    scores = {name: weights[name].abs() * square.sqrt() for name, square in squares.items()}
    keep = keep_highest_within(model, scores, sparsity, "output", granularity)
    return masks.with_masks(model, keep)


def _add_squares(layer: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
    """Add to the gradient of a layer's weight the squared input that each weight meets."""
    # A layer is linear in its weights: the gradient of the sum of its outputs is, for each weight,
    # the sum of the inputs that it meets. So strides, padding, groups and dilation are the layer's
    # own. Its method forward is called, since calling the layer would call this hook again.
    with torch.enable_grad():
        (values,) = inputs or named.values()
        layer.forward(values.detach().square()).sum().backward()
