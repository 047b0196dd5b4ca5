"""ONNX models as functions from a batch to scores, run by onnxruntime on the CPU."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fairlib.environment import sha256

INPUTS = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(uint8)": np.uint8,
}
"""Types of inputs that can be fed, as ONNX calls them."""

RUNS_CODE = (".pt", ".pth", ".pt2", ".ckpt", ".bin", ".pkl", ".pickle", ".joblib", ".npz", ".npy")
"""Files that may hold pickles, which can run any code when they are read."""


def check_model(path: str | Path, kinds: tuple[str, ...] = (".onnx",)) -> Path:
    """Refuse the path of a file that is no model.

    Args:
        path: Path of the file.
        kinds: Suffixes that are accepted.

    Raises:
        ValueError: If the suffix is another one; says how to write such a file.
        FileNotFoundError: If there is no such file.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in kinds:
        remedy = ""
        if suffix in RUNS_CODE:
            remedy = (
                ". It may run code when it is read: load it where you trust it, write it by "
                "torch.onnx.export(model, ...), or its weights by "
                "safetensors.torch.save_file(model.state_dict(), ...)"
            )
        raise ValueError(f"a model must be a file {' or '.join(kinds)}, got {str(path)!r}{remedy}")
    if not path.is_file():
        raise FileNotFoundError(f"found no model file {str(path)!r}")
    return path


def open_model(path: str | Path) -> tuple[Callable[[Any], np.ndarray], dict[str, Any]]:
    """Open an ONNX model.

    Args:
        path: Path of the file ``.onnx``. Files of weights that it names belong to it.

    Returns:
        A function from a batch ``(N, C, H, W)`` or ``(N, D)``, an array or a tensor on the CPU, to
        scores ``(N, C)`` or labels ``(N,)``; and a description of the model, with the bytes and the
        SHA-256 of its file (followed by the files of weights that it names). Inputs are rounded to
        the model's type; for uint8 those in [0, 1] are multiplied by 255. If it takes channels
        last, they are moved there; a batch of fixed size is filled up. Of several outputs the first
        matrix of floats is taken.

    Raises:
        ImportError: If onnxruntime is missing; says how to install it.
        ValueError: If the file is no ONNX model that onnxruntime can run, or it has several inputs;
            when it is called, if inputs have another shape than it takes; says how to make them
            fit.
        FileNotFoundError: If there is no such file.

    Warns:
        UserWarning: If several outputs could be scores.
    """
    from fairlib.network.export import open_session

    path = check_model(path)
    try:
        model = open_session(path, extra="audit")
    except ImportError:
        raise
    except Exception as error:  # The errors of onnxruntime have no class in common.
        raise ValueError(f"cannot run {str(path)!r} as an ONNX model: {error}") from error
    inputs, output = model.get_inputs(), _output_of_scores(path.name, model.get_outputs())
    if len(inputs) != 1 or inputs[0].type not in INPUTS:
        found = ", ".join(f"{one.name} {one.type}" for one in inputs)
        raise ValueError(
            f"{path.name} must have one input, of type {', '.join(INPUTS)}; it has {found}"
        )
    (taken,) = inputs
    fixed = taken.shape[0] if taken.shape and isinstance(taken.shape[0], int) else None

    def call(batch: Any) -> np.ndarray:
        values = _fitted(np.asarray(batch), taken, path.name)
        count = fixed or len(values)
        parts = []
        for start in range(0, len(values), count):
            part = values[start : start + count]
            # A model that was exported for batches of 16 refuses the last one of 7: it is filled
            # up with copies of its last sample, whose answers are dropped.
            full = np.concatenate([part, part[-1:].repeat(count - len(part), axis=0)])
            try:
                (answers,) = model.run([output], {taken.name: full})
            except Exception as error:
                raise ValueError(
                    f"{path.name} failed on inputs {full.shape}, it takes {tuple(taken.shape)}: "
                    f"--size (image_size=) scales pictures, or export it again; {error}"
                ) from error
            parts.append(answers[: len(part)])
        found = np.concatenate(parts)
        return found.reshape(len(found), -1) if found.ndim > 2 else found

    files = [path, *_weights_beside(path)]
    about = {
        "model": path.name,
        "bytes": sum(file.stat().st_size for file in files),
        "sha256": sha256(*files),
        "producer": model.get_modelmeta().producer_name,
        "output": output,
    }
    return call, about


def _weights_beside(path: Path) -> list[Path]:
    """Find the files of weights that a model names: its digest would not change with theirs."""
    # An entry of external data is a message with the text "location" as field 1 and the name as
    # field 2, each after its length; a length above 127 takes two bytes. The package onnx, which
    # would read it, is not needed for an audit.
    content, names = path.read_bytes(), set()
    for entry in re.finditer(rb"\x0a\x08location\x12([\x80-\xff]?[\x00-\x7f])", content):
        low, *high = entry[1]
        end = entry.end() + low % 128 + 128 * sum(high)
        names.add(content[entry.end() : end].decode(errors="replace"))
    return [path.parent / name for name in sorted(names) if (path.parent / name).is_file()]


def _output_of_scores(name: str, outputs: list) -> str:
    """Choose the output that holds scores.

    Classifiers often give labels and hidden layers beside their scores: the first matrix of floats
    is most likely the scores, else the first floats, else the first tensor (labels).
    """
    floats = [one for one in outputs if one.type in INPUTS and one.type != "tensor(uint8)"]
    matrices = [one for one in floats if len(one.shape) == 2]
    tensors = [one for one in outputs if one.type.startswith("tensor")]
    candidates = matrices or floats or tensors
    if not candidates:
        raise ValueError(
            f"{name} must give a tensor of scores or labels, it gives "
            f"{[one.type for one in outputs]}"
        )
    if len(candidates) > 1:
        several = ", ".join(one.name for one in candidates)
        warnings.warn(
            f"{name} has several outputs that could be scores ({several}): the first is taken",
            stacklevel=3,
        )
    return candidates[0].name


def _fitted(values: np.ndarray, wanted: Any, name: str) -> np.ndarray:
    """Give a batch the layout and the type that a model takes."""
    shape = wanted.shape
    # Channels go last if the model has as many there as the batch has first. A model whose channels
    # fit where they are is left alone: images of 3 pixels height and width would fit both ways.
    if values.ndim == len(shape) == 4 and shape[3] == values.shape[1] != shape[1]:
        values = np.moveaxis(values, 1, 3)
    kind = INPUTS[wanted.type]
    if kind is np.uint8:
        # A batch has x / 255. Normalized numbers would be cut off at 0 and 255 without a word.
        if values.min() < 0 or values.max() > 1:
            raise ValueError(f"{name} takes uint8, 0 to 255: leave out --normalize (normalize=)")
        values = np.rint(values * 255)
    return np.ascontiguousarray(values, dtype=kind)
