"""SENet-style linearization: budgets by layer from the sensitivity of its weights, places from activation mismatch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from fairlib._validation import check_number
from fairlib.data import GroupedDataset
from fairlib.network import gates, masks
from fairlib.training import Batch, Constraint, Objective, fit


def senet(
    model: nn.Module,
    *,
    relus: int,
    data: GroupedDataset,
    objective: Objective,
    train: Mapping[str, Any],
    density: float = 0.1,
    beta: float = 1.0,
    epsilon: float = 0.05,
    granularity: str = "pixel",
    seed: int = 0,
) -> nn.Module:
    r"""Give each layer a budget, find the places of its ReLUs, and train the network with them.

    1. *Sensitivity.* The weights are pruned by magnitude in the course of one training to the share ``density``, a
       share that falls evenly by the epoch. A layer that keeps a share :math:`d_l` of its weights has the ReLU
       sensitivity :math:`\eta_l = 1 - d_l`: where few weights matter, ReLUs do.
    2. *Budget.* :math:`r_l` is proportional to :math:`\eta_l n_l` and at most the number :math:`n_l` of the layer's
       ReLUs; what is above is spread again, and :math:`\sum_l r_l` is ``relus`` exactly
       (:func:`fairlib.linearization.budgets`).
    3. *Location.* From random places, the partial-ReLU network is trained by

       .. math:: \ell + \frac\beta2 \sum_l \left\| \frac{\psi^{PR}_l}{\|\psi^{PR}_l\|}
                 - \frac{\psi^{AR}_l}{\|\psi^{AR}_l\|} \right\|_2

       with :math:`\psi_l` the outputs of a layer's activation in this network (PR) and in the model that was given (AR:
       all ReLUs), the mean over the batch. After each epoch the layer's ReLUs go to the :math:`r_l` places with the
       largest mean :math:`|\psi^{PR} - \psi^{AR}|`; a layer is left alone once no more than a share ``epsilon`` of
       its ReLUs moves.

    Args:
        model: With gates, trained; left as it is.
        relus: How many to keep at most; of single pixels exactly so many.
        data: The training set.
        objective: Per-sample losses :math:`\ell`: cross-entropy and divergence from the model that was given.
        train: Arguments of :func:`fairlib.fit` for the trainings of steps 1 and 3.
        density: Share of the weights left at the end of step 1.
        beta: Weight of the mismatch.
        epsilon: When a layer's places are settled, a share of its ReLUs.
        granularity: ``"pixel"``, or ``"channel"``, whose ReLUs are kept as a whole where the layer's budget allows.
        seed: Of trainings and of the first places.

    Returns:
        The trained copy in eval mode with binary gates; :func:`fairlib.history` tells by epoch ``mismatch`` and
        ``settled``, the number of layers that are.

    Raises:
        ValueError: If a setting is out of range.
        DivergenceError: If a training diverges.

    Source:
        Kundu, Lu, Zhang, Liu, Beerel, Learning to linearize deep neural networks for secure and efficient private
        inference (ICLR 2023). There is no code of theirs, and we know the method second-hand: the way to the sparse
        network, the rounding, which layer belongs to which activation
        (:func:`fairlib.linearization.feeding_layers`), ``beta`` and ``epsilon`` are our choices.
    """
    check_number("density", density, 0, 1, low_open=True)
    check_number("beta", beta, 0)
    check_number("epsilon", epsilon, 0)
    if granularity not in ("pixel", "channel"):
        raise ValueError(
            f"granularity must be 'pixel' or 'channel', since SENet gives every layer a budget of its own; got "
            f"{granularity!r}"
        )
    settings: dict[str, Any] = {"objective": objective, "seed": seed, **train}
    if settings.get("epochs") == 0:
        raise ValueError("senet learns from its trainings; train= must have at least one epoch")
    capacities = {name: int(keep.sum()) for name, keep in gates.read(model).items()}
    shares = budgets(sensitivity(model, data, density, settings), capacities, relus)
    places: dict[str, Tensor] = {}
    for name, scores in gates.drawn(model, granularity, seed).items():
        places |= gates.keep_relus(model, {name: scores}, shares[name])
    with ExitStack() as hooks:
        location = _Location(model, shares, beta, epsilon, granularity, hooks)
        return fit(gates.apply(model, places), data, constraint=location, **settings)


def sensitivity(
    model: nn.Module, data: GroupedDataset, density: float, settings: Mapping[str, Any]
) -> dict[str, float]:
    r"""The ReLU sensitivity :math:`\eta_l = 1 - d_l` of every gate, step 1 of :func:`senet`.

    :math:`d_l` is the share of weights that the layer before the gate (:func:`fairlib.linearization.feeding_layers`)
    keeps when the network is pruned by magnitude, all layers together, in the course of a training: at a share
    :math:`t` of the epochs the smallest :math:`t (1 - \mathrm{density})` of the weights are zero.

    Source:
        Kundu et al., Learning to linearize deep neural networks (ICLR 2023); the course of the pruning is our choice.
    """

    def sparser(network: nn.Module, progress: float) -> dict[str, Tensor]:
        weights = masks.prunable(network)
        flat = torch.cat([weight.detach().abs().flatten() for weight in weights.values()])
        threshold = flat.kthvalue(max(1, round((1 - density) * progress * flat.numel()))).values
        return {name: weight.detach().abs() > threshold for name, weight in weights.items()}

    sparse = fit(model, data, sparsify=sparser, **settings)
    kept = {name: float(mask.float().mean()) for name, mask in masks.read(sparse).items()}
    return {gate: 1 - kept[f"{layer}.weight"] for gate, layer in feeding_layers(model, data).items()}


def feeding_layers(model: nn.Module, data: GroupedDataset) -> dict[str, str]:
    """For every gate the layer that makes its input: the last that ran since the gate before.

    Layers that read what some layer before that gate has read already are left out: the 1x1 convolution in the shortcut
    of a residual block, to which the sum does not belong, but to the last convolution of the block.

    Raises:
        ValueError: If a gate comes before any layer.
    """
    ran: list[tuple[str, Tensor]] = []  # The inputs too: while they are held, no other tensor is the same object.
    layers = {name.removesuffix(".weight") for name in masks.prunable(model)}
    watched = layers | set(gates.gates(model))
    handles = [
        module.register_forward_pre_hook(lambda _, inputs, name=name: ran.append((name, inputs[0])))
        for name, module in model.named_modules()
        if name in watched
    ]
    try:
        with torch.no_grad():
            model(gates.example(model, data))
    finally:
        for handle in handles:
            handle.remove()
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
            raise ValueError(f"{name} comes before any layer, so that no weights tell its sensitivity")
        feeding[name] = layer
        read += [what for _, what in since]
        since = []
    return {name: feeding[name] for name in gates.gates(model)}


def budgets(sensitivities: Mapping[str, float], capacities: Mapping[str, int], relus: int) -> dict[str, int]:
    r"""Whole numbers :math:`r_l \le n_l` with sum ``relus``, proportional to :math:`\eta_l n_l` below their limits.

    What a layer's limit cuts off is spread over the others in the same proportion until nothing is left; remainders go
    to the largest fractions. Layers without sensitivity come last.

    >>> budgets({"a": 0.5, "b": 1.0}, {"a": 100, "b": 20}, relus=60)
    {'a': 43, 'b': 17}
    >>> budgets({"a": 0.1, "b": 1.0}, {"a": 100, "b": 20}, relus=60)
    {'a': 40, 'b': 20}

    Args:
        sensitivities: :math:`\eta_l \ge 0`.
        capacities: :math:`n_l`.
        relus: Between 0 and their sum.
    """
    gates.check_count(relus, sum(capacities.values()))
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
    rest = sorted(given, key=lambda name: (whole[name] - given[name], whole[name] == capacities[name]))
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
    hooks: ExitStack = field(repr=False)  # Removes the hooks of the run from the network when it closes.

    def start(self, model: nn.Module, data: GroupedDataset, objective: Objective) -> _LocationRun:
        return _LocationRun(self, model)


class _LocationRun:
    mismatch: Tensor | float
    batches: int

    def __init__(self, settings: _Location, model: nn.Module) -> None:
        self.settings, self.partial = settings, model
        self.full = gates.apply(settings.full, {}).to(next(model.parameters()).device)
        self.outputs: dict[nn.Module, dict[str, Tensor]] = {self.partial: {}, self.full: {}}
        for network, outputs in self.outputs.items():
            for name, gate in gates.gates(network).items():
                handle = gate.register_forward_hook(_keep_output(outputs, name))
                settings.hooks.callback(handle.remove)
        self.settled: set[str] = set()
        self._forget()

    def loss(self, batch: Batch) -> Tensor:
        with torch.no_grad():
            self.full(batch.inputs)
        mismatch = batch.losses.new_zeros(())
        for name, wanted in self.outputs[self.full].items():
            output = self.outputs[self.partial][name]
            self.differences[name] += (output.detach() - wanted).abs().sum(0)
            mismatch = mismatch + (normalize(output.flatten(1)) - normalize(wanted.flatten(1))).norm(dim=1).mean()
        self.mismatch = self.mismatch + mismatch.detach()
        self.batches += 1
        return batch.losses.mean() + self.settings.beta / 2 * mismatch

    def end_epoch(self) -> dict[str, float]:
        places = gates.read(self.partial)
        for name in places.keys() - self.settled:
            budget = self.settings.shares[name]
            scores = gates.pooled(self.differences[name], self.settings.granularity)
            if scores.isnan().any():
                return {"mismatch": math.nan, "settled": float(len(self.settled))}  # Training has diverged, and ends.
            after = gates.keep_relus(self.full, {name: scores}, budget)
            moved = int((after[name] & ~places[name]).sum())
            if moved <= self.settings.epsilon * budget:
                self.settled.add(name)
            gates.impose(self.partial, after)
        seen = {"mismatch": float(self.mismatch / self.batches), "settled": float(len(self.settled))}
        self._forget()
        return seen

    def _forget(self) -> None:
        masks_ = gates.read(self.full)
        self.differences = {name: torch.zeros(mask.shape, device=mask.device) for name, mask in masks_.items()}
        self.mismatch, self.batches = 0.0, 0


def _keep_output(outputs: dict[str, Tensor], name: str) -> Callable[..., None]:
    def hook(gate: gates.Gate, inputs: tuple[Tensor], output: Tensor) -> None:
        outputs[name] = output

    return hook
