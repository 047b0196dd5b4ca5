"""SENet-style linearization: a budget for each layer, then places by mismatch of activations."""

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

DENSITY = 0.1
"""Share of the weights kept at the end of the sparse training of step 1."""

MISMATCH_WEIGHT = 1.0
"""Weight beta of the mismatch of activations in the loss of step 3."""

SETTLED = 0.05
"""Share of a layer's ReLUs that may still move when it is settled in step 3."""


def senet(
    model: nn.Module,
    *,
    relus: int,
    data: GroupedDataset,
    objective: Objective,
    train: Settings,
    seed: int = 0,
) -> nn.Module:
    r"""Give each layer a budget, find the places of its ReLUs, and train the network with them.

    1. *Sensitivity.* In the course of one training the weights are pruned by magnitude; the share
       that is kept falls by the same amount each epoch, to a tenth. A layer that keeps a share
       :math:`d_l` of its weights has the ReLU sensitivity :math:`\eta_l = 1 - d_l`: where few
       weights matter, ReLUs do.
    2. *Budget.* A layer's budget :math:`r_l` is proportional to :math:`\eta_l n_l` and at most
       :math:`n_l`, its number of ReLUs; what exceeds the limit goes to other layers, and
       :math:`\sum_l r_l` is exactly ``relus`` (:func:`fairlib.linearization.budgets`).
    3. *Location.* Starting with ReLUs at random places, the partial-ReLU network is trained on the
       loss

       .. math:: \ell + \frac12 \sum_l \left\| \frac{\psi^{PR}_l}{\|\psi^{PR}_l\|}
                 - \frac{\psi^{AR}_l}{\|\psi^{AR}_l\|} \right\|_2

       averaged over the batch, where :math:`\psi_l` are the outputs of a layer's activation in this
       network (PR, partial ReLU) and in ``model`` (AR, all ReLUs). After each epoch the layer's
       ReLUs move to the :math:`r_l` places with the largest mean :math:`|\psi^{PR} - \psi^{AR}|`.
       Once no more than a twentieth of its ReLUs moves, the layer is settled and its places stay.

    Args:
        model: A trained model with gates; not changed.
        relus: Number of ReLUs to keep.
        data: The training set.
        objective: Per-sample losses :math:`\ell`; in SENet cross-entropy plus divergence from
            ``model``.
        train: Arguments of :func:`fairlib.fit` for the trainings of steps 1 and 3.
        seed: Seed of the trainings and of the first places.

    Returns:
        The trained copy in eval mode with binary gates; :func:`fairlib.history` has, by epoch, the
        ``mismatch`` and the number of ``settled`` layers.

    Raises:
        ValueError: If a setting is out of range.
        DivergenceError: If a training diverges.

    Source:
        Kundu, Lu, Zhang, Liu, Beerel, Learning to linearize deep neural networks for secure and
        efficient private inference (ICLR 2023). The authors released no code, and we know the
        method second-hand. Our choices are: how the sparse network is trained, the rounding, the
        layer that belongs to an activation (:func:`fairlib.linearization.feeding_layers`), and
        the numbers.
    """
    check_number("train['epochs']", train.get("epochs", 1), 1, whole=True)
    settings: dict[str, Any] = {"objective": objective, "seed": seed, **train}
    capacities = {name: int(keep.sum()) for name, keep in gates.read_gates(model).items()}
    shares = budgets(sensitivity(model, data, settings), capacities, relus)
    places: dict[str, Tensor] = {}
    for name, scores in gates.drawn(model, "pixel", seed).items():
        places |= gates.keep_relus(model, {name: scores}, shares[name])
    with ExitStack() as hooks:
        location = Location(model, shares, hooks)
        return fit(gates.with_gates(model, places), data, constraint=location, **settings)


def sensitivity(model: nn.Module, data: GroupedDataset, settings: Settings) -> dict[str, float]:
    r"""Compute the ReLU sensitivity :math:`\eta_l = 1 - d_l` of every gate (:func:`senet`, 1).

    The layer before the gate (:func:`fairlib.linearization.feeding_layers`) keeps a share
    :math:`d_l` of its weights when the network is pruned by magnitude in the course of a training,
    all layers together: after a share :math:`t` of the epochs the smallest :math:`0.9 t` of the
    weights are zero.

    Args:
        model: A trained model with gates; not changed.
        data: The training set.
        settings: Arguments of :func:`fairlib.fit`.

    Returns:
        Name of a gate to its sensitivity, in [0, 1].

    Source:
        Kundu et al., Learning to linearize deep neural networks (ICLR 2023); how the share falls is
        our choice.
    """

    def sparser(network: nn.Module, progress: float) -> dict[str, Tensor]:
        weights = masks.prunable(network)
        flat = torch.cat([weight.detach().abs().flatten() for weight in weights.values()])
        threshold = flat.kthvalue(max(1, round((1 - DENSITY) * progress * flat.numel()))).values
        return {name: weight.detach().abs() > threshold for name, weight in weights.items()}

    sparse = carry_out(Training(model, data, settings, LoopSettings(sparsify=sparser)))
    shares = {name: float(mask.float().mean()) for name, mask in masks.read_masks(sparse).items()}
    layers = feeding_layers(model, data)
    return {gate: 1 - shares[f"{layer}.weight"] for gate, layer in layers.items()}


def feeding_layers(model: nn.Module, data: GroupedDataset) -> dict[str, str]:
    """Find for every gate the layer that makes its input.

    It is the last convolution or linear layer after the previous gate. A layer is left out if
    another one has read its input before the previous gate. This leaves out the 1x1 convolution in
    the shortcut of a residual block: the gate after the sum belongs to the block's last
    convolution.

    Args:
        model: A model with gates; not changed.
        data: The training set; only the shape of its inputs is used.

    Returns:
        Name of a gate to the name of its layer, in the order of the gates.

    Raises:
        ValueError: If a gate comes before any layer.
    """
    layers = {name.removesuffix(".weight") for name in masks.prunable(model)}
    calls = _calls(model, layers | set(gates.gates(model)), gates.example(model, data))
    feeding: dict[str, str] = {}
    read: set[int] = set()
    since: list[tuple[str, Tensor]] = []
    layer = None
    for name, inputs in calls:
        if name in layers:
            since.append((name, inputs))
            continue
        # A gate. In a residual block the shortcut's convolution is called last, just before the
        # sum, but its input was read before, by the block's first convolution: it starts a side
        # branch, and the layer on the main path is the one that reads something new.
        if since:
            fresh = [candidate for candidate, source in since if id(source) not in read]
            layer = fresh[-1] if fresh else since[-1][0]
        if layer is None:
            raise ValueError(
                f"{name} comes before any layer with weights, "
                "from which its sensitivity is computed"
            )
        feeding[name] = layer
        read |= {id(source) for _, source in since}
        since = []
    return {name: feeding[name] for name in gates.gates(model)}


def _calls(model: nn.Module, watched: set[str], example: Tensor) -> list[tuple[str, Tensor]]:
    """Run a model and list the calls of the watched modules: name and input, in order."""
    calls: list[tuple[str, Tensor]] = []
    with ExitStack() as hooks, torch.no_grad():
        for name, module in model.named_modules():
            if name in watched:
                # Inputs are compared by identity, and the list holds on to them: a tensor that was
                # freed could hand its identity to a later one.
                hooks.enter_context(
                    module.register_forward_pre_hook(
                        lambda _, inputs, name=name: calls.append((name, inputs[0]))
                    )
                )
        model(example)
    return calls


def budgets(
    sensitivities: Mapping[str, float], capacities: Mapping[str, int], relus: int
) -> dict[str, int]:
    r"""Split a budget of ReLUs over the layers, in proportion to :math:`\eta_l n_l`.

    The shares are integers :math:`r_l \le n_l` with the sum ``relus``. What exceeds a layer's limit
    :math:`n_l` is spread over the other layers in the same proportion, until nothing exceeds;
    rounding is by the largest remainders. Layers of sensitivity 0 get ReLUs only when all others
    are full.

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
    shares, unfilled = dict.fromkeys(capacities, 0.0), set(capacities)
    # Water filling. A layer that its share would overfill is cut off at its capacity; the rest is
    # split anew over the layers with room. Each round fills a layer or spends everything.
    while (rest := relus - sum(shares.values())) > 1e-9 * relus and unfilled:
        weights = {name: sensitivities[name] * capacities[name] for name in unfilled}
        if not any(weights.values()):
            weights = {name: capacities[name] for name in unfilled}
        total = sum(weights.values())
        for name in sorted(unfilled):
            shares[name] = min(capacities[name], shares[name] + rest * weights[name] / total)
        unfilled = {name for name in unfilled if shares[name] < capacities[name]}
    # Rounding to the nearest could miss the sum. Rounded down, with one more for the largest
    # remainders, it is exact. The tolerance keeps 42.99999999 from becoming 42.
    whole = {name: math.floor(share + 1e-9) for name, share in shares.items()}
    by_remainder = sorted(
        shares, key=lambda name: (whole[name] - shares[name], whole[name] == capacities[name])
    )
    for name in by_remainder[: relus - sum(whole.values())]:
        whole[name] += 1
    return whole


@dataclass
class Location(Constraint):
    """The search for places, as a constraint of :func:`fairlib.fit`, for one training.

    Args:
        reference: The network with all ReLUs.
        shares: Name of a gate to its budget.
        hooks: Stack that removes the hooks from the networks when it closes.
    """

    reference: nn.Module = field(repr=False)
    shares: Mapping[str, int] = field(repr=False)
    hooks: ExitStack = field(repr=False)

    def start(self, model: nn.Module, data: GroupedDataset, objective: Objective) -> Location:
        self.partial = model
        self.full = gates.with_gates(self.reference, {}).to(next(model.parameters()).device)
        self.partial_outputs = self._recorded(self.partial)
        self.full_outputs = self._recorded(self.full)
        self.settled: set[str] = set()
        self._reset()
        return self

    def _recorded(self, network: nn.Module) -> dict[str, Tensor]:
        """Return a dictionary that each pass of a network fills with the outputs of its gates."""
        outputs: dict[str, Tensor] = {}

        def record(name: str, gate: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
            outputs[name] = output

        for name, gate in gates.gates(network).items():
            self.hooks.enter_context(gate.register_forward_hook(partial(record, name)))
        return outputs

    def _reset(self) -> None:
        self.differences = {
            name: torch.zeros_like(mask, dtype=torch.float32)
            for name, mask in gates.read_gates(self.full).items()
        }
        self.mismatch: Tensor | float = 0.0
        self.batches = 0

    def loss(self, batch: Batch) -> Tensor:
        # The training step has just run the partial network; the full one sees the same batch.
        with torch.no_grad():
            self.full(batch.inputs)
        mismatch = batch.losses.new_zeros(())
        for name, target in self.full_outputs.items():
            output = self.partial_outputs[name]
            self.differences[name] += (output.detach() - target).abs().sum(0)
            apart = normalize(output.flatten(1)) - normalize(target.flatten(1))
            mismatch = mismatch + apart.norm(dim=1).mean()
        self.mismatch = self.mismatch + mismatch.detach()
        self.batches += 1
        return batch.losses.mean() + MISMATCH_WEIGHT / 2 * mismatch

    def end_epoch(self) -> dict[str, float]:
        mismatch = float(self.mismatch / self.batches)
        # NaN means that the training has diverged. It ends with a message about that, which scores
        # that are NaN would preempt.
        if math.isfinite(mismatch):
            self._move_places()
        self._reset()
        return {"mismatch": mismatch, "settled": float(len(self.settled))}

    def _move_places(self) -> None:
        """Move the ReLUs of each layer that is not settled to the places of largest difference."""
        for name, before in gates.read_gates(self.partial).items():
            if name in self.settled:
                continue
            budget = self.shares[name]
            after = gates.keep_relus(self.full, {name: self.differences[name]}, budget)
            # A place that loses its ReLU starts to differ, and may get it back in the next epoch:
            # without settling, ReLUs could swap for ever and the weights never adapt to them.
            moved = int((after[name] & ~before).sum())
            if moved <= SETTLED * budget:
                self.settled.add(name)
            gates.set_gates(self.partial, after)
