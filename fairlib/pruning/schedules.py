"""When the weights go: at once, in rounds with training between, or in the course of one training."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from fairlib._validation import check_number
from fairlib.data import GroupedDataset
from fairlib.network import masks
from fairlib.network.memory import add_gradients, gradient_evaluations
from fairlib.pruning.selection import ramped, shrinking
from fairlib.training import fit
from fairlib.training.compressors import Method

Once = Callable[[nn.Module, float], nn.Module]
"""A pruning method with all it needs: from a model and a sparsity to the pruned copy."""


def one_shot(once: Once, model: nn.Module, sparsity: float) -> nn.Module:
    """All weights at once; nothing is trained."""
    return once(model, sparsity)


def iterative(
    once: Once,
    model: nn.Module,
    sparsity: float,
    *,
    data: GroupedDataset,
    train: Mapping[str, Any],
    rate: float = 0.2,
) -> nn.Module:
    r"""Rounds that each prune a share r of the weights left, with a training between two.

    From the model's sparsity :math:`s_0`, round i ends at :math:`s_i = 1 - (1 - s_0)(1 - r)^i`. The weights go on from
    where they are. After the last round nothing is trained.

    Args:
        once: The method.
        model: Left as it is.
        sparsity: After the last round.
        data: The training set.
        train: Arguments of :func:`fairlib.fit` between two rounds.
        rate: Share r, in (0, 1); 0.2 as in Frankle and Carbin (2019), 0.1 in FairGRAPE.
    """
    tried = once(model, sparsity)  # A sparsity that is out of reach is refused before anything is trained.
    spent = gradient_evaluations(tried) - gradient_evaluations(model)
    *between, last = shrinking(sparsity, rate, start=masks.sparsity(model))
    for level in between:
        model = fit(once(model, level), data, **train)
    return add_gradients(once(model, last), spent)


def gradual(
    once: Once,
    model: nn.Module,
    sparsity: float,
    *,
    data: GroupedDataset,
    train: Mapping[str, Any],
    ramp: float = 0.75,
) -> nn.Module:
    r"""One training in which the masks grow after each epoch, fast at first.

    From the model's sparsity :math:`s_0`, after a share t of the epochs it is
    :math:`s + (s_0 - s) (1 - \min(1, t / t_1))^3`.

    Args:
        once: The method.
        model: Left as it is.
        sparsity: From :math:`t_1` on.
        data: The training set.
        train: Arguments of :func:`fairlib.fit`; at least one epoch.
        ramp: The share :math:`t_1` of the epochs after which the masks stay, in (0, 1]; the rest is finetuning.

    Source:
        Zhu, Gupta, To prune, or not to prune (ICLR workshop 2018), Eq. 1.
    """
    if not 0 < ramp <= 1:
        raise ValueError(f"ramp must lie in (0, 1], got {ramp}")
    check_number("train['epochs']", train.get("epochs", 1), 1, whole=True)
    start, spent = masks.sparsity(model), 0

    def scored(dense: nn.Module, level: float) -> nn.Module:
        nonlocal spent
        pruned = once(dense, level)
        spent += gradient_evaluations(pruned) - gradient_evaluations(dense)
        return pruned

    scored(model, sparsity)  # A sparsity that is out of reach is refused before anything is trained.
    trained = fit(
        model,
        data,
        sparsify=lambda model, progress: masks.read(scored(model, ramped(start, sparsity, progress / ramp))),
        **train,
    )
    return add_gradients(trained, spent)


SCHEDULES: dict[str, Method] = {
    "one-shot": Method(one_shot),
    "iterative": Method(iterative, takes=("data", "train")),
    "gradual": Method(gradual, takes=("data", "train")),
}
"""By name: from a method, a model, a sparsity and a schedule's own settings to the pruned copy."""
