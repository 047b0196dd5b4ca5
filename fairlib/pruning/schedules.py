"""Schedules of pruning: all weights at once, in rounds, or in the course of a training."""

from collections.abc import Callable

from torch import Tensor, nn

from fairlib._validation import check_number
from fairlib.data import GroupedDataset
from fairlib.network import masks
from fairlib.network.memory import add_gradients, gradient_evaluations
from fairlib.pruning.selection import ramped, shrinking
from fairlib.training import LoopSettings, Training, carry_out, fit
from fairlib.training.compressors import Method, Settings

Once = Callable[[nn.Module, float], nn.Module]
"""A pruning method whose other arguments are set: takes a model and a sparsity, returns the pruned
copy."""


def one_shot(once: Once, model: nn.Module, sparsity: float) -> nn.Module:
    """Prune all weights at once; nothing is trained."""
    return once(model, sparsity)


def iterative(
    once: Once,
    model: nn.Module,
    sparsity: float,
    *,
    data: GroupedDataset,
    train: Settings,
    rate: float = 0.2,
) -> nn.Module:
    r"""Prune in rounds, each a share r of the weights left, and train between the rounds.

    From the model's sparsity :math:`s_0`, round i ends at :math:`s_i = 1 - (1 - s_0)(1 - r)^i`.
    Each training continues from the weights as they are; there is none after the last round.

    Args:
        once: The pruning method.
        model: The model to prune; not changed.
        sparsity: Sparsity after the last round.
        data: The training set.
        train: Arguments of :func:`fairlib.fit` for each training between two rounds.
        rate: Share r of the weights left that each round prunes, in (0, 1); 0.2 in Frankle and
            Carbin (2019), 0.1 in FairGRAPE.
    """
    # A sparsity that is out of reach is refused before anything is trained. The trial costs what
    # the method's scores cost, and is counted.
    spent = gradient_evaluations(once(model, sparsity)) - gradient_evaluations(model)
    for level in shrinking(sparsity, rate, start=masks.sparsity(model))[:-1]:
        model = fit(once(model, level), data, **train)
    return add_gradients(once(model, sparsity), spent)


def gradual(
    once: Once,
    model: nn.Module,
    sparsity: float,
    *,
    data: GroupedDataset,
    train: Settings,
    ramp: float = 0.75,
) -> nn.Module:
    r"""Prune more weights after each epoch of one training, most of them early.

    With :math:`s_0` the model's sparsity and :math:`s` the one asked for, the sparsity after a
    share t of the epochs is :math:`s + (s_0 - s) (1 - \min(1, t / t_1))^3`.

    Args:
        once: The pruning method.
        model: The model to prune; not changed.
        sparsity: Sparsity that is reached after a share :math:`t_1` of the epochs.
        data: The training set.
        train: Arguments of :func:`fairlib.fit`; at least one epoch.
        ramp: Share :math:`t_1` of the epochs, in (0, 1]; in the epochs after it the masks are fixed
            (finetuning).

    Source:
        Zhu, Gupta, To prune, or not to prune (ICLR workshop 2018), Eq. 1.
    """
    check_number("ramp", ramp, 0, 1, low_open=True, high_closed=True)
    check_number("train['epochs']", train.get("epochs", 1), 1, whole=True)
    start, spent = masks.sparsity(model), 0.0

    def scored(dense: nn.Module, level: float) -> nn.Module:
        nonlocal spent
        pruned = once(dense, level)
        spent += gradient_evaluations(pruned) - gradient_evaluations(dense)
        return pruned

    # A sparsity that is out of reach is refused before anything is trained.
    scored(model, sparsity)

    def sparsify(network: nn.Module, progress: float) -> dict[str, Tensor]:
        return masks.read_masks(scored(network, ramped(start, sparsity, progress / ramp)))

    trained = carry_out(Training(model, data, train, LoopSettings(sparsify=sparsify)))
    return add_gradients(trained, spent)


SPARSITY_SCHEDULES: dict[str, Method] = {
    "one-shot": Method(one_shot),
    "iterative": Method(iterative, takes=("data", "train")),
    "gradual": Method(gradual, takes=("data", "train")),
}
"""Schedules by name. Each takes a pruning method, a model, a sparsity and settings, and returns the
pruned copy."""
