"""Properties that only torch modules have: diagnostics, cost, sparsity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from fairlib import environment
from fairlib._validation import lookup
from fairlib.auditing.adapters.models import held, is_module
from fairlib.auditing.report import Report

if TYPE_CHECKING:
    from torch import nn

    from fairlib.data import GroupedDataset


def with_modules(
    report: Report,
    models: Mapping[str, Any],
    test: GroupedDataset,
    diagnostics: Sequence[str],
    seed: int,
) -> Report:
    """Add to a report what only torch modules tell; the reasons for NaN go into its notes.

    Args:
        report: Report on the two models.
        models: Models of any kind, by role.
        test: Samples.
        diagnostics: Names of :data:`fairlib.diagnostics.DIAGNOSTICS`.
        seed: Seed of a module that draws.
    """
    from fairlib.diagnostics import DIAGNOSTICS, diagnose
    from fairlib.network import masks, quantizers

    modules = {role: model for role, model in models.items() if is_module(model)}
    report.provenance.update(_provenance(modules, test))
    for role, model in modules.items():
        if masks.read_masks(model) or quantizers.read_bits(model):
            with suppress(ValueError):  # A parametrized weight is nobody's to count.
                if said := masks.uncovered(model):
                    report.notes.append(f"the model {role} compression: {said}")
    table, kind = report.table, report.provenance["scores"]["before"]
    for name in diagnostics:
        wanted = lookup("diagnostic", name, DIAGNOSTICS)
        if "before" in modules and kind == "logits":
            with held(modules["before"], "before", seed, report.notes):
                columns, reason = diagnose(name, modules["before"], test)
        else:
            # Gradients of probabilities would be those of another loss.
            why = f"its scores are {kind}" if "before" in modules else "no torch module"
            reason = f"{name}: could not be computed for the model before compression ({why})"
            names = [f"{name}_{column}" for column in wanted.columns if column != name]
            columns = pd.DataFrame(columns=names)
        table = table.join(columns.astype(float))
        report.notes.extend([reason] if reason else [])
    cost = _cost(report, modules, test) if len(modules) == 2 else pd.DataFrame()
    return replace(report, table=table, cost=cost)


def _cost(report: Report, modules: dict[str, nn.Module], test: GroupedDataset) -> pd.DataFrame:
    from fairlib.network.cost import cost

    with (
        held(modules["before"], "before", 0, report.notes),
        held(modules["after"], "after", 0, report.notes),
    ):
        try:
            table = cost(modules, test, latency=False)
        except Exception as error:
            # A module from elsewhere may fail in any way when it is copied or traced; the groups'
            # accuracies do not depend on its cost, and the reason is shown.
            report.notes.append(f"the cost of the models could not be computed: {error}")
            return pd.DataFrame()
    # A count that fails is NaN in the table: the reason would be lost with it.
    for number, why in table.attrs.get("reasons", {}).items():
        report.notes.append(f"the {number} cannot be computed: {why}")
    return table


def _provenance(modules: dict[str, nn.Module], test: GroupedDataset) -> dict[str, Any]:
    """Describe the form of the inputs, and of modules their sparsity and hardware."""
    import torch

    from fairlib.network import masks
    from fairlib.network.evaluation import placement

    scale = f"{test.inputs.dtype} as they are"
    if test.inputs.dtype == torch.uint8:
        scale = "uint8 divided by 255"
    if test.normalize:
        scale += f"; then mean {test.normalize[0]}, std {test.normalize[1]}"
    about: dict[str, Any] = {"input": f"{tuple(test.inputs.shape[1:])}, {scale}"}
    if not modules:
        return about
    sparsity: dict[str, float | str] = {}
    for role, model in modules.items():
        try:
            sparsity[role] = masks.sparsity(model)
        except ValueError as error:
            sparsity[role] = f"unknown: {error}"
    device, _ = placement(next(iter(modules.values())))
    return about | {"sparsity": sparsity} | environment.describe(str(device))
