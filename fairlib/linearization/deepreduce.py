"""DeepReDuce: whole stages lose their ReLUs, the least critical first, then every second ReLU, then width."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import nn

from fairlib._validation import check_number, check_settings
from fairlib.data import GroupedDataset
from fairlib.models import build
from fairlib.network import gates, masks
from fairlib.network.evaluation import predict
from fairlib.network.memory import memory_of, remember
from fairlib.training import Objective, fit


@dataclass(frozen=True)
class Plan:
    """What is done to a network: the gates that keep their ReLUs, and the scaling."""

    gates: tuple[str, ...]
    width: float = 1.0
    resolution: float = 1.0


def deepreduce(
    model: nn.Module,
    *,
    relus: int,
    data: GroupedDataset,
    objective: Objective,
    train: Mapping[str, Any],
    val: GroupedDataset | None = None,
    exponent: float = 0.07,
    widths: Sequence[float] = (1.0,),
    resolutions: Sequence[float] = (1.0,),
    from_scratch: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> nn.Module:
    r"""Cull, thin and reshape, with a training by distillation after each step.

    The *criticality* of stage k, with the accuracy :math:`A_k` of the network that has ReLUs in this stage only and
    :math:`n_k` of them, is :math:`C_k = (A_k - \min_j A_j) / n_k^W`. *Culling* takes the ReLUs of the least critical
    stages, *thinning* every second ReLU layer of each other stage: of a basic residual block the one after the sum. The
    stem has none from the start. Of the networks that culling m = 0, 1, ... stages gives, thinned or not, the one with
    the most ReLUs within the budget is chosen. If there is none at the first of the ``widths`` and ``resolutions``, by
    default 1 and all there is, the next are tried: the network is *reshaped*, built anew with scaled widths of its
    layers and a scaled resolution, and trained from scratch.

    Args:
        model: With gates, trained; left as it is.
        relus: How many to keep at most. Few numbers can be met; :func:`fairlib.linearization.count` tells what was.
        data: The training set.
        objective: Per-sample losses of every training, those of the full network as a teacher.
        train: Arguments of :func:`fairlib.fit` for every training: one for each stage's criticality, one for each step.
        val: Where accuracies for the criticality are measured; a fifth of ``data`` by default, held out by ``seed``.
        exponent: :math:`W`.
        widths: Factors on the widths to try, in this order; they need a model as :func:`fairlib.build` gives it,
            neither pruned nor linearized.
        resolutions: Factors 1/r on the resolution, r a whole number: by r times the stride of the first convolution.
        from_scratch: What of ``train`` is different for a reshaped network, which begins with new weights: the epochs
            and the learning rate with which the model was trained, as a rule.
        seed: Of trainings, of the held-out part and of new weights.

    Returns:
        The trained network in eval mode, with binary gates.

    Raises:
        ValueError: If the model has fewer than two stages, no network meets the budget (the message names the
            smallest), or a model is to be reshaped that :func:`fairlib.build` did not build, that has changed since, or
            that does not work at the scaled resolution.
        DivergenceError: If a training diverges.

    Source:
        Jha, Ghodsi, Garg, Reagen, DeepReDuce: ReLU reduction for fast private inference (ICML 2021). Our choices where
        we know it second-hand: the weights of every training are those of the model unless it is reshaped, and the
        stem's ReLUs count in no stage.
    """
    check_number("exponent", exponent, 0)
    check_settings("from_scratch=", fit, from_scratch or {}, given=("objective", "constraint", "stop"))
    scalings = _scalings(widths, resolutions)
    found = gates.stages(model)
    if len(found) < 2:
        raise ValueError(f"{type(model).__name__} has {len(found)} stage of ReLUs; DeepReDuce chooses between stages")
    settings = {"objective": objective, "seed": seed} | dict(train)
    importance = criticality(model, data, val, exponent, settings, seed)
    order = sorted(found, key=importance.get)
    plan = _choose(model, order, relus, scalings)
    if (plan.width, plan.resolution) != (1.0, 1.0):
        return fit(reshape(model, plan, seed), data, **settings | dict(from_scratch or {}))
    network, everything = gates.apply(model, {}), set(gates.gates(model))
    unthinned = tuple(name for names in found.values() if set(names) & set(plan.gates) for name in names)
    for left in dict.fromkeys((unthinned, plan.gates)):
        if set(left) != everything:
            network = fit(gates.apply(network, masks_of(network, left)), data, **settings)
    return network


def criticality(
    model: nn.Module,
    data: GroupedDataset,
    val: GroupedDataset | None,
    exponent: float,
    settings: Mapping[str, Any],
    seed: int,
) -> dict[str, float]:
    """:math:`C_k` of every stage; 0 for the least critical one."""
    rest, held = (data, val) if val is not None else data.hold_out(0.2, seed)
    accuracy, sizes = {}, {}
    for stage, names in gates.stages(model).items():
        single = gates.apply(model, masks_of(model, names))
        sizes[stage] = gates.count(single).attrs["total"]
        accuracy[stage] = float(predict(fit(single, rest, **settings), held).correct.mean())
    lowest = min(accuracy.values())
    return {stage: (value - lowest) / max(1, sizes[stage]) ** exponent for stage, value in accuracy.items()}


def reshape(model: nn.Module, plan: Plan, seed: int) -> nn.Module:
    """A new network of the model's architecture with the plan's width, resolution and gates.

    Raises:
        ValueError: If :func:`fairlib.build` did not build the model, it was compacted, reshaped, pruned or linearized
            since, or it does not work at the plan's resolution.
    """
    recipe = memory_of(model).recipe
    changed = masks.read(model) or not all(mask.all() for mask in gates.read(model).values())
    if recipe is None or changed:
        raise ValueError(
            f"a {type(model).__name__} cannot be reshaped unless it is as fairlib.build gave it: not compacted, nor "
            "built for another resolution, with all its weights and ReLUs"
        )
    small = build(**{**recipe, "width": recipe.get("width", 1.0) * plan.width}, seed=seed)
    if plan.resolution != 1:
        first = next((module for module in small.modules() if isinstance(module, nn.Conv2d)), None)
        if first is None:
            raise ValueError(f"a {type(model).__name__} has no convolution whose stride would scale its resolution")
        first.stride = tuple(stride * round(1 / plan.resolution) for stride in first.stride)
        remember(small, recipe=None)  # It no longer tells how to build the network.
    like = next(model.parameters())
    try:
        gated = gates.gate(small.to(like.device, like.dtype))
    except ValueError as error:
        raise ValueError(f"a {type(model).__name__} at {plan.resolution:g} of its resolution: {error}") from error
    return gates.apply(gated, masks_of(gated, plan.gates))


def masks_of(model: nn.Module, left: Collection[str]) -> dict[str, torch.Tensor]:
    """Masks with which the gates named keep what they have, and the others nothing."""
    return {name: mask & (name in left) for name, mask in gates.read(model).items()}


def culled_and_thinned(model: nn.Module, order: Sequence[str], relus: int) -> Iterator[tuple[str, ...]]:
    """The gates that culling stages in an order leaves, thinned or not; none only where no ReLU is asked for."""
    found = gates.stages(model)
    for culled in range(len(order) if relus else len(order) + 1):
        for every in (1, 2):
            yield tuple(name for stage in found if stage in order[culled:] for name in found[stage][::every])


def _scalings(widths: Sequence[float], resolutions: Sequence[float]) -> list[tuple[float, float]]:
    for name, values in (("widths", widths), ("resolutions", resolutions)):
        if not (isinstance(values, Sequence) and values):
            raise ValueError(f"{name} must be a sequence of factors, got {values!r}")
    for width, resolution in product(widths, resolutions):
        check_number("widths", width, 0, 1, low_open=True, high_closed=True)
        check_number("resolutions", resolution, 0, 1, low_open=True, high_closed=True)
        if abs(1 / resolution - round(1 / resolution)) > 1e-6:
            raise ValueError(f"resolutions must be 1, 1/2, 1/3, ..., got {resolution}")
    return list(product(widths, resolutions))


def _choose(model: nn.Module, order: Sequence[str], relus: int, scalings: Sequence[tuple[float, float]]) -> Plan:
    """The first scaling at which a network meets the budget, and of its networks the one with the most ReLUs."""
    smallest = None
    for width, resolution in scalings:
        scaled = model
        if (width, resolution) != (1.0, 1.0):
            scaled = reshape(model, Plan(tuple(gates.gates(model)), width, resolution), seed=0)
        sizes = {
            left: sum(int(mask.sum()) for mask in masks_of(scaled, left).values())
            for left in culled_and_thinned(model, order, relus)
        }
        fitting = {left: size for left, size in sizes.items() if size <= relus and (size or not relus)}
        if fitting:
            return Plan(max(fitting, key=fitting.get), width, resolution)
        smallest = min([*sizes.values(), *([] if smallest is None else [smallest])])
    raise ValueError(
        f"DeepReDuce cannot come down to {relus} ReLUs: the smallest network that it reaches here has {smallest}; give "
        "widths= and resolutions= to reshape it"
    )
