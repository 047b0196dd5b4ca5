"""DeepReDuce: cull the ReLUs of the least critical stages, thin the others, then reshape."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from fairlib._validation import check_number
from fairlib.data import GroupedDataset
from fairlib.models import build
from fairlib.network import gates, masks
from fairlib.network.evaluation import predict
from fairlib.network.memory import memory_of
from fairlib.training import Objective, fit
from fairlib.training.compressors import Settings
from fairlib.training.loop import check_training

EXPONENT = 0.07
"""Exponent W of the criticality."""


def deepreduce(
    model: nn.Module,
    *,
    relus: int,
    data: GroupedDataset,
    objective: Objective,
    train: Settings,
    val: GroupedDataset | None = None,
    widths: Sequence[float] = (1.0,),
    from_scratch: Settings | None = None,
    seed: int = 0,
) -> nn.Module:
    r"""Cull, thin and reshape a network, with a training by distillation after each step.

    The *criticality* of stage k is :math:`C_k = (A_k - \min_j A_j) / n_k^W`, where :math:`A_k` is
    the accuracy of the network that has ReLUs in this stage only, and :math:`n_k` is their number.
    *Culling* removes the ReLUs of the least critical stages, *thinning* every second ReLU layer of
    the other stages (of a basic residual block the one after the sum). The stem's ReLUs are always
    removed. The candidates are the networks with m = 0, 1, ... culled stages, thinned or not; the
    one with the most ReLUs within the budget is chosen. If none fits at the first of the
    ``widths``, the next width is tried: the network is *reshaped*, that is built anew with scaled
    widths of its layers and trained from scratch.

    Args:
        model: A trained model with gates; not changed.
        relus: Largest number of ReLUs to keep. Only a few numbers are possible;
            :func:`fairlib.linearization.count` gives the one that was reached.
        data: The training set.
        objective: Per-sample losses of every training; in DeepReDuce those of a distillation from
            the full network.
        train: Arguments of :func:`fairlib.fit` for every training: one for each stage's
            criticality, one for each step.
        val: Data on which accuracies for the criticality are measured. By default a random fifth of
            ``data``, which is held out of the trainings of the stages' networks, but not of that of
            ``model`` or of the teacher: these know it, and so do the weights from which those
            networks start. Accuracies on it then say little: on digits 1.00 for the dense network,
            whose test accuracy is .9.
        widths: Factors on the widths of the layers, in the order in which they are tried. Factors
            other than 1 need a model of :func:`fairlib.build` that was neither pruned nor
            linearized.
        from_scratch: Arguments of :func:`fairlib.fit` that replace those of ``train`` for a
            reshaped network, which starts with new weights: usually the epochs and learning rate
            with which the model was trained.
        seed: Seed of the trainings, of the held-out part and of new weights.

    Returns:
        The trained network in eval mode, with binary gates.

    Raises:
        ValueError: If the model has fewer than two stages, no network meets the budget (the message
            names the smallest), or a model would be reshaped that :func:`fairlib.build` did not
            build or that has changed since.
        DivergenceError: If a training diverges.

    Source:
        Jha, Ghodsi, Garg, Reagen, DeepReDuce: ReLU reduction for fast private inference (ICML
        2021), which we know second-hand. Our choices: every training starts from the weights of the
        model unless it is reshaped; the stem's ReLUs belong to no stage; and the other way of
        reshaping, a scaled resolution, is left out.
    """
    check_training("from_scratch=", from_scratch or {}, given=("objective", "constraint"))
    if not (isinstance(widths, Sequence) and widths):
        raise ValueError(f"widths must be a sequence of factors, got {widths!r}")
    for width in widths:
        check_number("widths", width, 0, 1, low_open=True, high_closed=True)
    stages = gates.stages(model)
    if len(stages) < 2:
        raise ValueError(
            f"{type(model).__name__} has {len(stages)} stage of ReLUs; "
            "DeepReDuce chooses between stages"
        )
    settings: dict[str, Any] = {"objective": objective, "seed": seed, **train}
    importance = criticality(model, data, val, EXPONENT, settings, seed)
    order = sorted(stages, key=importance.__getitem__)
    width, thinned = _choose(model, order, relus, widths)
    # A reshaped network has new weights. Culling and thinning it step by step would adapt weights
    # that know nothing yet: it gets its final gates at once, and one training from scratch.
    if width != 1:
        small = reshape(model, thinned, width, seed)
        return fit(small, data, **settings | dict(from_scratch or {}))
    culled = tuple(name for names in stages.values() if set(names) & set(thinned) for name in names)
    network, every_gate = gates.with_gates(model, {}), set(gates.gates(model))
    # Stage by stage with a training after each: the network recovers from the culling before the
    # thinning takes more. A step that removes nothing, or the same as the last, has no training.
    for left in dict.fromkeys((culled, thinned)):
        if set(left) != every_gate:
            network = fit(gates.with_gates(network, masks_of(network, left)), data, **settings)
    return network


def criticality(
    model: nn.Module,
    data: GroupedDataset,
    val: GroupedDataset | None,
    exponent: float,
    settings: Settings,
    seed: int,
) -> dict[str, float]:
    """Compute the criticality :math:`C_k` of every stage; 0 for the least critical one.

    Args:
        model: A trained model with gates; not changed.
        data: The training set.
        val: Data on which accuracies are measured; if None, a random fifth of ``data``, held out of
            the trainings.
        exponent: Exponent W of the criticality.
        settings: Arguments of :func:`fairlib.fit` for the training of each stage's network.
        seed: Seed of the held-out part.

    Returns:
        Name of a stage to its criticality.
    """
    rest, judged_on = (data, val) if val is not None else data.hold_out(0.2, seed)
    accuracy, relus = {}, {}
    for stage, names in gates.stages(model).items():
        single = gates.with_gates(model, masks_of(model, names))
        relus[stage] = gates.count(single).attrs["total"]
        trained = fit(single, rest, **settings)
        accuracy[stage] = float(predict(trained, judged_on).correct.mean())
    # Relative to the worst stage, so that the least critical one gets 0 whatever its size, and is
    # culled first.
    lowest = min(accuracy.values())
    return {
        stage: (value - lowest) / max(1, relus[stage]) ** exponent
        for stage, value in accuracy.items()
    }


def reshape(model: nn.Module, left: Collection[str], width: float, seed: int) -> nn.Module:
    """Build a new network of the model's architecture with other widths and fewer ReLUs.

    Args:
        model: A model of :func:`fairlib.build` with gates; not changed.
        left: Names of the gates that keep their ReLUs.
        width: Factor on the widths of the model's layers.
        seed: Seed of the new weights.

    Raises:
        ValueError: If :func:`fairlib.build` did not build the model, or it was compacted, pruned or
            linearized since.
    """
    recipe = memory_of(model).recipe
    relus = gates.read_gates(model).values()
    changed = masks.read_masks(model) or not all(mask.all() for mask in relus)
    if recipe is None or changed:
        raise ValueError(
            f"a {type(model).__name__} cannot be reshaped unless it is as fairlib.build gave it: "
            "not compacted, with all its weights and ReLUs"
        )
    scaled = {**recipe, "width": recipe.get("width", 1.0) * width}
    gated = gates.gate(build(**scaled, seed=seed).to(next(model.parameters())))
    return gates.with_gates(gated, masks_of(gated, left))


def masks_of(model: nn.Module, left: Collection[str]) -> dict[str, torch.Tensor]:
    """Make masks with which the named gates keep their ReLUs, and the other gates none."""
    return {name: mask & (name in left) for name, mask in gates.read_gates(model).items()}


def culled_and_thinned(
    model: nn.Module, order: Sequence[str], relus: int
) -> Iterator[tuple[str, ...]]:
    """Yield the gates left by culling stages in order, thinned or not.

    All stages are culled only if ``relus`` is 0.
    """
    stages = gates.stages(model)
    for culled in range(len(order) if relus else len(order) + 1):
        left = [stage for stage in stages if stage in order[culled:]]
        # Thinning keeps every second gate from the first on. In a basic residual block this takes
        # away the ReLU after the sum, as the paper does.
        for step in (1, 2):
            yield tuple(name for stage in left for name in stages[stage][::step])


def _choose(
    model: nn.Module, order: Sequence[str], relus: int, widths: Sequence[float]
) -> tuple[float, tuple[str, ...]]:
    """Choose the first width at which a network meets the budget, and of its networks the largest.

    Returns:
        The width, and the names of the gates that keep their ReLUs.
    """
    smallest = []
    for width in widths:
        scaled = model if width == 1 else reshape(model, gates.gates(model), width, seed=0)
        sizes = {
            left: sum(int(mask.sum()) for mask in masks_of(scaled, left).values())
            for left in culled_and_thinned(model, order, relus)
        }
        # A stage can have lost its ReLUs to an earlier linearization. A network without any ReLU
        # fits every budget, and is not meant unless it was asked for.
        fitting = [left for left in sizes if sizes[left] <= relus and (sizes[left] or not relus)]
        if fitting:
            return width, max(fitting, key=sizes.__getitem__)
        smallest.append(min(sizes.values()))
    raise ValueError(
        f"DeepReDuce cannot come down to {relus} ReLUs: the smallest network that it reaches here "
        f"has {min(smallest)}; give widths= to reshape it"
    )
