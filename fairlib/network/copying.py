"""Copies of models, whatever hangs on them."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fairlib._validation import check_type


def copied(model: nn.Module) -> nn.Module:
    """Copy a model with all that hangs on it; activations that it has kept are constants there.

    Raises:
        ValueError: If a layer is lazy (:func:`refuse_lazy`).
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


def check_module(name: str, model: nn.Module) -> None:
    """Refuse a model that cannot be changed: no module, TorchScript, or lazy (`refuse_lazy`).

    Raises:
        TypeError: If it is no module, or has a part of TorchScript.
        ValueError: If it has lazy layers that no batch has reached yet.
    """
    check_type(name, model, nn.Module, "a torch.nn.Module")
    if any(isinstance(part, torch.jit.ScriptModule) for part in model.modules()):
        raise TypeError(
            f"{name} must be a module of Python, got TorchScript, whose code cannot be changed: "
            "give the model from which it was made"
        )
    refuse_lazy(model)


def refuse_lazy(model: nn.Module) -> None:
    """Refuse a model with parameters or buffers that get their shapes from the first batch.

    Raises:
        ValueError: If it has some; names the first such layer.
    """
    for path, part in model.named_modules():
        if any(map(is_lazy, (*part.parameters(False), *part.buffers(False)))):
            raise ValueError(
                f"{path} of the model is a lazy {type(part).__name__}, which has no shape: call "
                "the model on a batch first"
            )
