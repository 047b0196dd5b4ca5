"""SENet-style linearization: each layer's budget from the sensitivity of its weights, places by
activation mismatch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from fairlib._validation import check_number
from fairlib.data import GroupedDataset
from fairlib.network import gates, masks
from fairlib.training import (
    Batch,
    Constraint,
    LoopSettings,
    Objective,
    Training,
    carry_out,
    fit,
)
from fairlib.training.compressors import Settings


def senet(
    model: nn.Module,
    *,
    relus: int,
    data: GroupedDataset,
    objective: Objective,
    train: Settings,
    density: float = 0.1,
    beta: float = 1.0,
    epsilon: float = 0.05,
    granularity: str = "pixel",
    seed: int = 0,
) -> nn.Module:
    r"""Give each layer a budget, find the places of its ReLUs, and train the network with them.

    1. *Sensitivity.* In the course of one training the weights are pruned by magnitude; the share
       that is kept falls by the same amount each epoch, to ``density``. A layer that keeps a share
       :math:`d_l` of its weights has the ReLU sensitivity :math:`\eta_l = 1 - d_l`: where few
       weights matter, ReLUs do.
    2. *Budget.* A layer's budget :math:`r_l` is proportional to :math:`\eta_l n_l` and at most
       :math:`n_l`, its number of ReLUs; what exceeds the limit goes to other layers, and
       :math:`\sum_l r_l` is exactly ``relus`` (:func:`fairlib.linearization.budgets`).
    3. *Location.* Starting with ReLUs at random places, the partial-ReLU network is trained on the
    loss

       .. math:: \ell + \frac\beta2 \sum_l \left\| \frac{\psi^{PR}_l}{\|\psi^{PR}_l\|}
                 - \frac{\psi^{AR}_l}{\|\psi^{AR}_l\|} \right\|_2

       averaged over the batch, where :math:`\psi_l` are the outputs of a layer's activation in this
       network (PR, partial ReLU) and in ``model`` (AR, all ReLUs). After each epoch the layer's
       ReLUs move to the :math:`r_l` places with the largest mean :math:`|\psi^{PR} - \psi^{AR}|`.
       Once no more than a share ``epsilon`` of its ReLUs moves, the layer is settled and its places
       stay.

    Args: model: A trained model with gates; not changed. relus: Largest number of ReLUs to keep;
        single pixels are kept to exactly this number. data: The training set. objective: Per-sample
        losses :math:`\ell`; in SENet cross-entropy plus divergence from ``model``. train: Arguments
        of :func:`fairlib.fit` for the trainings of steps 1 and 3. density: Share of the weights
        kept at the end of step 1, in (0, 1). beta: Weight :math:`\beta` of the mismatch. epsilon:
        Share of a layer's ReLUs that may still move when it is settled. granularity: What is kept
        as a whole: ``"pixel"`` or ``"channel"``. A channel that does not fit into the rest of
            its layer's budget is skipped.
        seed: Seed of the trainings and of the first places.

    Returns: The trained copy in eval mode with binary gates; :func:`fairlib.history` has, by epoch,
        the ``mismatch`` and the number of ``settled`` layers.

    Raises:
        ValueError: If a setting is out of range.
        DivergenceError: If a training diverges.

    Source: Kundu, Lu, Zhang, Liu, Beerel, Learning to linearize deep neural networks for secure and
        efficient private inference (ICLR 2023). The authors released no code, and we know the
        method second-hand. Our choices are: how the sparse network is trained, the rounding, the
        layer that belongs to an activation (:func:`fairlib.linearization.feeding_layers`), ``beta``
        and ``epsilon``.
    """
    check_number("density", density, 0, 1, low_open=True)
    check_number("beta", beta, 0)
    check_number("epsilon", epsilon, 0)
    if granularity not in ("pixel", "channel"):
        raise ValueError(
            f"granularity must be 'pixel' or 'channel', got {granularity!r}: every layer has a budget"
        )
    check_number("train['epochs']", train.get("epochs", 1), 1, whole=True)
    settings: dict[str, Any] = {"objective": objective, "seed": seed, **train}
    capacities = {name: int(keep.sum()) for name, keep in gates.read_gates(model).items()}
    shares = budgets(sensitivity(model, data, density, settings), capacities, relus)
    places: dict[str, Tensor] = {}
    for name, scores in gates.drawn(model, granularity, seed).items():
        places |= gates.keep_relus(model, {name: scores}, shares[name])
    with ExitStack() as hooks:
        location = _Location(model, shares, beta, epsilon, granularity, hooks)
        return fit(gates.with_gates(model, places), data, constraint=location, **settings)


def sensitivity(
    model: nn.Module, data: GroupedDataset, density: float, settings: Settings
) -> dict[str, float]:
    r"""Compute the ReLU sensitivity :math:`\eta_l = 1 - d_l` of every gate, step 1 of
    :func:`senet`.

    The layer before the gate (:func:`fairlib.linearization.feeding_layers`) keeps a share
    :math:`d_l` of its weights when the network is pruned by magnitude in the course of a training,
    all layers together: after a share :math:`t` of the epochs the smallest :math:`t (1 -
    \mathrm{density})` of the weights are zero.

    Args:
        model: A trained model with gates; not changed.
        data: The training set.
        density: Share of the weights kept at the end of the training, in (0, 1).
        settings: Arguments of :func:`fairlib.fit`.

    Returns:
        Name of a gate to its sensitivity, in [0, 1].

    Source: Kundu et al., Learning to linearize deep neural networks (ICLR 2023); how the share
        falls is our choice.
    """

    def sparser(network: nn.Module, progress: float) -> dict[str, Tensor]:
        weights = masks.prunable(network)
        flat = torch.cat([weight.detach().abs().flatten() for weight in weights.values()])
        threshold = flat.kthvalue(max(1, round((1 - density) * progress * flat.numel()))).values
        return {name: weight.detach().abs() > threshold for name, weight in weights.items()}

    sparse = carry_out(Training(model, data, settings, LoopSettings(sparsify=sparser)))
    kept = {name: float(mask.float().mean()) for name, mask in masks.read_masks(sparse).items()}
    return {
        gate: 1 - kept[f"{layer}.weight"] for gate, layer in feeding_layers(model, data).items()
    }


def feeding_layers(model: nn.Module, data: GroupedDataset) -> dict[str, str]:
    """Find for every gate the layer that makes its input: the last convolution or linear layer
    after the previous gate.

    A layer is left out if another one has read its input before the previous gate. This leaves out
    the 1x1 convolution in the shortcut of a residual block: the gate after the sum belongs to the
    block's last convolution.

    Args:
        model: A model with gates; not changed.
        data: The training set; only the shape of its inputs is used.

    Returns:
        Name of a gate to the name of its layer, in the order of the gates.

    Raises:
        ValueError: If a gate comes before any layer.
    """
    ran: list[
        tuple[str, Tensor]
    ] = []  # With inputs: while they are referenced, no other tensor has their identity.
    layers = {name.removesuffix(".weight") for name in masks.prunable(model)}
    watched = layers | set(gates.gates(model))
    with ExitStack() as hooks, torch.no_grad():
        for name, module in model.named_modules():
            if name in watched:
                hook = module.register_forward_pre_hook(
                    lambda _, inputs, name=name: ran.append((name, inputs[0]))
                )
                hooks.callback(hook.remove)
        model(gates.example(model, data))
    feeding: dict[str, str] = {}
    read: list[Tensor] = []
    since: list[tuple[str, Tensor]] = []
    layer = None
    for name, inputs in ran:
        if name in layers:
            since.append((name, inputs))
            continue
        new = [each for each, what in since if not any(what is other for other in read)]
        layer = new[-1] if new else since[-1][0] if since else layer
        if layer is None:
            raise ValueError(
                f"{name} comes before any layer with weights, from which its sensitivity is computed"
            )
        feeding[name] = layer
        read += [what for _, what in since]
        since = []
    return {name: feeding[name] for name in gates.gates(model)}


def budgets(
    sensitivities: Mapping[str, float], capacities: Mapping[str, int], relus: int
) -> dict[str, int]:
    r"""Split a budget: integers :math:`r_l \le n_l` with sum ``relus``, proportional to
    :math:`\eta_l n_l`.

    What exceeds a layer's limit :math:`n_l` is spread over the other layers in the same proportion,
    until nothing exceeds; rounding is by the largest remainders. Layers of sensitivity 0 get ReLUs
    only when all others are full.

    >>> budgets({"a": 0.5, "b": 1.0}, {"a": 100, "b": 20}, relus=60)
    {'a': 43, 'b': 17}
    >>> budgets({"a": 0.1, "b": 1.0}, {"a": 100, "b": 20}, relus=60)
    {'a': 40, 'b': 20}

    Args:
        sensitivities: Name of a layer to its sensitivity :math:`\eta_l \ge 0`.
        capacities: Name of a layer to its number of ReLUs :math:`n_l`.
        relus: Number of ReLUs to keep, between 0 and the sum of the capacities.

    Returns:
        Name of a layer to its budget :math:`r_l`.

    Raises:
        ValueError: If ``relus`` is negative or more than the sum of the capacities.
    """
    gates.check_relus(relus, sum(capacities.values()))
    given, open_ = dict.fromkeys(capacities, 0.0), set(capacities)
    while (left := relus - sum(given.values())) > 1e-9 * relus and open_:
        weights = {name: sensitivities[name] * capacities[name] for name in open_}
        if not any(weights.values()):
            weights = {name: capacities[name] for name in open_}
        total = sum(weights.values())
        for name in sorted(open_):
            given[name] = min(capacities[name], given[name] + left * weights[name] / total)
        open_ = {name for name in open_ if given[name] < capacities[name]}
    whole = {name: math.floor(value + 1e-9) for name, value in given.items()}
    rest = sorted(
        given, key=lambda name: (whole[name] - given[name], whole[name] == capacities[name])
    )
    for name in rest[: relus - sum(whole.values())]:
        whole[name] += 1
    return whole


@dataclass(frozen=True)
class _Location(Constraint):
    """The search for places, as a constraint of :func:`fairlib.fit`."""

    full: nn.Module = field(repr=False)
    shares: Mapping[str, int] = field(repr=False)
    beta: float
    epsilon: float
    granularity: str
    hooks: ExitStack = field(repr=False)  # Removes the hooks from the networks when it closes.

    def start(self, model: nn.Module, data: GroupedDataset, objective: Objective) -> _LocationRun:
        return _LocationRun(self, model)


class _LocationRun:
    mismatch: Tensor | float
    batches: int

    def __init__(self, settings: _Location, model: nn.Module) -> None:
        self.settings, self.partial = settings, model
        self.full = gates.with_gates(settings.full, {}).to(next(model.parameters()).device)
        self.outputs: dict[nn.Module, dict[str, Tensor]] = {self.partial: {}, self.full: {}}
        for network, outputs in self.outputs.items():
            for name, gate in gates.gates(network).items():
                settings.hooks.enter_context(
                    gate.register_forward_hook(partial(_keep_output, outputs, name))
                )
        self.settled: set[str] = set()
        self._forget()

    def loss(self, batch: Batch) -> Tensor:
        with torch.no_grad():
            self.full(batch.inputs)
        mismatch = batch.losses.new_zeros(())
        for name, wanted in self.outputs[self.full].items():
            output = self.outputs[self.partial][name]
            self.differences[name] += (output.detach() - wanted).abs().sum(0)
            mismatch = (
                mismatch
                + (normalize(output.flatten(1)) - normalize(wanted.flatten(1))).norm(dim=1).mean()
            )
        self.mismatch = self.mismatch + mismatch.detach()
        self.batches += 1
        return batch.losses.mean() + self.settings.beta / 2 * mismatch

    def end_epoch(self) -> dict[str, float]:
        places = gates.read_gates(self.partial)
        for name in places.keys() - self.settled:
            budget = self.settings.shares[name]
            scores = gates.pooled(self.differences[name], self.settings.granularity)
            if scores.isnan().any():  # The training has diverged, and ends.
                return {"mismatch": math.nan, "settled": float(len(self.settled))}
            after = gates.keep_relus(self.full, {name: scores}, budget)
            moved = int((after[name] & ~places[name]).sum())
            if moved <= self.settings.epsilon * budget:
                self.settled.add(name)
            gates.set_gates(self.partial, after)
        seen = {
            "mismatch": float(self.mismatch / self.batches),
            "settled": float(len(self.settled)),
        }
        self._forget()
        return seen

    def _forget(self) -> None:
        full = gates.read_gates(self.full)
        self.differences = {
            name: torch.zeros(mask.shape, device=mask.device) for name, mask in full.items()
        }
        self.mismatch, self.batches = 0.0, 0


def _keep_output(
    outputs: dict[str, Tensor], name: str, gate: nn.Module, inputs: tuple[Tensor], output: Tensor
) -> None:
    outputs[name] = output
