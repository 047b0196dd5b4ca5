"""Pruning, one method a file. :func:`prune` calls them by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from torch import nn

from fairlib._validation import check_number, check_settings, lookup
from fairlib.data import GroupedDataset
from fairlib.pruning.magnitude import magnitude

__all__ = ["METHODS", "prune"]

METHODS: dict[str, Callable[..., nn.Module]] = {
    "magnitude": magnitude,
}


def prune(
    model: nn.Module,
    method: str,
    *,
    sparsity: float,
    data: GroupedDataset | None = None,
    seed: int = 0,
    **settings,
) -> nn.Module:
    """Prune a model by a method of the registry :data:`fairlib.pruning.METHODS`, without finetuning.

    Args:
        model: Any module with convolutions or linear layers; left as it is.
        method: ``"magnitude"``.
        sparsity: Share of zeros among the prunable weights (convolution and linear), in [0, 1).
        data: The training set; ``"magnitude"`` needs none.
        seed: Of what a method draws; ``"magnitude"`` draws nothing.
        **settings: The method's own, such as ``scope="layer"`` of ``"magnitude"``.

    Returns:
        A copy in eval mode whose pruned weights are zero and stay zero in any further training
        (:mod:`fairlib.masks`).

    Raises:
        ValueError: If the method is unknown or ``sparsity`` is outside [0, 1).
        TypeError: If a setting is unknown.
    """
    function = lookup("pruning method", method, METHODS)
    offered = {"data": data, "seed": seed}
    check_settings(f"pruning method {method!r}", function, settings, given=("sparsity", *offered))
    check_number("sparsity", sparsity, 0, 1)
    wanted = inspect.signature(function).parameters
    return function(
        model,
        sparsity=sparsity,
        **{name: value for name, value in offered.items() if name in wanted},
        **settings,
    )
