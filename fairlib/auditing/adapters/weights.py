"""Weights in ``.safetensors`` as torch modules."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from fairlib.data import GroupedDataset


def load_weights(
    path: Path, test: GroupedDataset, model: str | None, factory: str | None
) -> nn.Module:
    """Put the weights of a file into the model they belong to, in their dtype.

    Args:
        path: Path of the file.
        test: Data set whose classes and pictures the model fits.
        model: Name of a model of :func:`fairlib.build`, or None.
        factory: ``"package.module:function"`` that makes the model otherwise.

    Raises:
        ValueError: If the file is no ``.safetensors``, does not fit the model, or there is no such
            function.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from fairlib.models import build
    from fairlib.network.restore import restore

    try:
        state = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"cannot read {str(path)!r} as safetensors: {error}") from error
    module = restore(build(model, like=test) if model else _call(str(factory)), state)
    # A module is built in float32: weights saved in half precision would otherwise be audited as
    # float32, which is not the model that is going to be used.
    dtypes = {tensor.dtype for tensor in state.values() if tensor.is_floating_point()}
    return module.to(dtypes.pop()) if len(dtypes) == 1 else module


def _call(factory: str) -> nn.Module:
    """Import a function, from the working directory too, and call it."""
    module, _, function = factory.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        make = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"--factory must be package.module:function, got {factory!r}: {error}"
        ) from error
    finally:
        sys.path.pop(0)
    return make()
