"""What a model does to each group: performance and gradients. Nothing here trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pandas as pd
from torch import nn

from fairlib._validation import lookup
from fairlib.data import GroupedDataset
from fairlib.diagnostics.evaluation import Predictions, group_performance, predict
from fairlib.diagnostics.exemplars import exemplars, group_exemplars
from fairlib.diagnostics.gradients import group_gradients

__all__ = [
    "DIAGNOSTICS",
    "Predictions",
    "diagnose",
    "exemplars",
    "group_exemplars",
    "group_gradients",
    "group_performance",
    "predict",
]


class Diagnostic(NamedTuple):
    """A function of model and data that gives a table by group, and that table's columns."""

    function: Callable[[nn.Module, GroupedDataset], pd.DataFrame]
    columns: tuple[str, ...]


DIAGNOSTICS: dict[str, Diagnostic] = {
    "gradient": Diagnostic(group_gradients, ("norm", "noise_floor", "debiased_square")),
}


def diagnose(name: str, model: nn.Module, data: GroupedDataset) -> tuple[pd.DataFrame, str | None]:
    """A diagnostic of ``DIAGNOSTICS`` by name, its name before those of its columns.

    Returns:
        The table by group, and None; where it cannot be computed, a table of NaN and the reason.

    Raises:
        ValueError: If the name is unknown.
    """
    diagnostic = lookup("diagnostic", name, DIAGNOSTICS)
    try:
        table, reason = diagnostic.function(model, data), None
    except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
        index = pd.Index(data.group_names, name="group")
        table = pd.DataFrame(float("nan"), index=index, columns=list(diagnostic.columns))
        reason = f"{name}: could not be computed for this model ({error})"
    return table.add_prefix(f"{name}_"), reason
