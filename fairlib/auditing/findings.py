"""Findings of an audit: its tables, provenance and notes, and verdicts of fairness."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pandas as pd

from fairlib._validation import check_number


@dataclass(frozen=True)
class Findings:
    """Tables and notes of an audit, which :class:`fairlib.Report` shows and describes."""

    table: pd.DataFrame
    contrasts: pd.DataFrame
    violations: pd.DataFrame
    rates: pd.DataFrame
    flips: pd.DataFrame
    calibration: pd.DataFrame
    too_small: tuple[str, ...]
    provenance: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    train: Self | None = None
    attributes: dict[str, Self] = field(default_factory=dict)
    cost: pd.DataFrame = field(default_factory=pd.DataFrame)

    @property
    def level(self) -> float:
        """Coverage of the intervals."""
        return self.provenance.get("level", 0.95)

    @property
    def beyond_chance(self) -> list[str]:
        """Groups that fared worse than all others together, beyond chance.

        Beyond chance is a corrected p-value of at most 1 minus the level of the intervals.
        """
        worse = self.contrasts["difference"] > 0
        found = self.contrasts["p_holm"] <= 1 - self.level
        return list(self.contrasts.index[worse & found])

    def fairness(self, tau: float = 0.05) -> pd.DataFrame:
        r"""Decide if the groups are treated alike, up to a tolerance, by the definitions of [B].

        - *Performance* fairness (Definition 1): the accuracies :math:`A_a` after compression differ
          by at most :math:`\tau`.
        - *Degradation* fairness (Definition 3): the drops :math:`R_a = A_a^{before} - A_a`
          (Definition 2, the column ``drop`` of the table) do.

        The definitions are about two groups. With more, the largest difference decides (the mean
        over all pairs is in ``violations``). Nothing is called fair while a group is too small to
        be judged.

        Args:
            tau: Tolerance :math:`\tau`, at least 0.

        Returns:
            Indexed by ``performance`` and ``degradation``: ``difference low high`` and ``verdict``:
            ``"fair"`` if the whole interval is at most :math:`\tau`, ``"unfair"`` if it is above,
            ``"not computable"`` without two groups that are judged, else ``"undecided"``.

        Raises:
            ValueError: If ``tau`` is negative.
        """
        check_number("tau", tau, 0)
        rows = self.violations.loc[["accuracy_after", "drop"], ["estimate", "low", "high"]]
        rows = rows.set_axis(["difference", "low", "high"], axis=1)
        rows.index = pd.Index(["performance", "degradation"], name="fairness")
        # An interval that holds tau decides nothing. And a group of five people may be treated in
        # any way: the interval, which leaves them out, cannot say that everybody is treated alike.
        conditions = [
            rows["difference"].isna(),
            rows["low"] > tau,
            (rows["high"] <= tau) & (not self.too_small),
        ]
        verdicts = ["not computable", "unfair", "fair"]
        return rows.assign(verdict=np.select(conditions, verdicts, "undecided"))
