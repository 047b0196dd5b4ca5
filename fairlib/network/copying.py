"""Copies of models, whatever hangs on them."""

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy


def copied(model: nn.Module) -> nn.Module:
    """Copy a model with all that hangs on it; activations that it has kept are constants there.

    Raises:
        ValueError: If a parameter is lazy (:func:`refuse_lazy`).
    """
    refuse_lazy(model)
    memo: dict[int, Any] = {}
    seen: set[int] = set()
    found: list[Any] = [vars(module) for module in model.modules()]
    while found:
        value = found.pop()
        if isinstance(value, Tensor) and not value.is_leaf:
            # Torch copies leaves alone: a copy of this one would need all that it came from.
            memo[id(value)] = value.detach().clone()
        elif isinstance(value, Mapping | list | tuple) and id(value) not in seen:
            seen.add(id(value))
            found += value.values() if isinstance(value, Mapping) else value
    return copy.deepcopy(model, memo)


def refuse_lazy(model: nn.Module) -> None:
    """Refuse a model with parameters that get their shapes from the first batch.

    Raises:
        ValueError: If it has some; names the first.
    """
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise ValueError(f"{name} is lazy and has no shape: call the model on a batch first")
