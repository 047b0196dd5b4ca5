"""Diagnostics of a model by group: performance, gradients, curvature, distance to the boundary.

Nothing here trains. By name, as :func:`fairlib.audit` and :func:`fairlib.study` take them:

>>> from fairlib.diagnostics import DIAGNOSTICS
>>> list(DIAGNOSTICS)
['gradient', 'curvature', 'boundary', 'constant', 'rate']
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pandas as pd
from torch import nn

from fairlib._validation import check_settings, lookup
from fairlib.data import GroupedDataset
from fairlib.diagnostics.boundary import MEASURES, boundary_distance, sample_boundary_distance
from fairlib.diagnostics.computable import NotComputable, NotFinite, SlowWarning
from fairlib.diagnostics.curvature import ConvergenceWarning, group_eigenvalues, sweep_eigenvalues
from fairlib.diagnostics.exemplars import exemplars, group_exemplars
from fairlib.diagnostics.gradients import group_gradients
from fairlib.diagnostics.hessian_bound import hessian_bound
from fairlib.diagnostics.lanczos import LEAST
from fairlib.diagnostics.performance import constant_accuracy, error_rates, group_performance
from fairlib.diagnostics.sample_gradients import sample_gradient_norms
from fairlib.diagnostics.taylor import excessive_loss_bound, taylor_terms
from fairlib.network.evaluation import ModelOutputs, predict

__all__ = [
    "DIAGNOSTICS", "MEASURES", "ConvergenceWarning", "ModelOutputs", "NotComputable", "NotFinite",
    "SlowWarning", "boundary_distance", "diagnose", "error_rates", "excessive_loss_bound",
    "exemplars", "group_eigenvalues", "group_exemplars", "group_gradients", "group_performance",
    "hessian_bound", "predict", "sample_boundary_distance", "sample_gradient_norms",
    "sweep_eigenvalues", "taylor_terms",
]  # fmt: skip


class Diagnostic(NamedTuple):
    """A function from model and data to a table by group, and the columns of its table.

    Settings are the keyword-only arguments of the function."""

    function: Callable[..., pd.DataFrame]
    columns: tuple[str, ...]


def _largest_eigenvalues(
    model: nn.Module, data: GroupedDataset, *, least: int = LEAST
) -> pd.DataFrame:
    return group_eigenvalues(model, data, ends="largest", least=least)[["largest", "residual"]]


DIAGNOSTICS: dict[str, Diagnostic] = {
    "gradient": Diagnostic(group_gradients, ("norm", "noise_floor", "debiased_square")),
    "curvature": Diagnostic(_largest_eigenvalues, ("largest", "residual")),
    "boundary": Diagnostic(lambda model, data: boundary_distance(model, data)[["mean"]], ("mean",)),
    "constant": Diagnostic(lambda _, data: constant_accuracy(data), ("constant",)),
    "rate": Diagnostic(error_rates, ("true_positive", "false_positive", "positives")),
}


def diagnose(
    name: str, model: nn.Module, data: GroupedDataset, **settings: Any
) -> tuple[pd.DataFrame, str | None]:
    """Compute a diagnostic by its name, which becomes the prefix of its columns.

    Args:
        name: Name of a diagnostic in ``DIAGNOSTICS``.
        model: Any classifier.
        data: Samples with groups.
        settings: Settings of the diagnostic: ``least`` of ``"curvature"``
            (:func:`group_eigenvalues`).

    Returns:
        The table by group and None; if the diagnostic raises :class:`NotComputable` or the model's
        outputs are not finite, a table of NaN and the reason. A column with the name of the
        diagnostic keeps it.

    Raises:
        ValueError: If the name is unknown.
        TypeError: If a setting is unknown.
        Exception: Whatever else the diagnostic raises, from bad input or a bug.
    """
    diagnostic = lookup("diagnostic", name, DIAGNOSTICS)
    check_settings(f"diagnostic {name!r}", diagnostic.function, settings)
    try:
        table, reason = diagnostic.function(model, data, **settings), None
    except (NotComputable, FloatingPointError) as error:
        index = pd.Index(data.group_names, name="group")
        table = pd.DataFrame(float("nan"), index=index, columns=list(diagnostic.columns))
        reason = f"{name}: could not be computed for this model ({error})"
    prefixed = {column: f"{name}_{column}" for column in table if column != name}
    return table.rename(columns=prefixed), reason
