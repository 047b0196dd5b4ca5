"""ONNX models as functions from a batch to scores, run by onnxruntime on the CPU; and which files
are models."""

import glob
import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

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
    if path.suffix.lower() not in kinds:
        why = "may run code when it is read" if path.suffix.lower() in RUNS_CODE else "is none"
        raise ValueError(
            f"a model must be a file {' or '.join(kinds)}; {str(path)!r} {why}: load it where you trust it, write it "
            "by torch.onnx.export(model, ...), or its weights by safetensors.torch.save_file(model.state_dict(), ...)"
        )
    if not path.is_file():
        raise FileNotFoundError(f"found no model {str(path)!r}")
    return path


def session(path: str | Path) -> tuple[Callable[[Any], np.ndarray], dict[str, Any]]:
    """Open an ONNX model.

    Args:
        path: Path of the file ``.onnx``. Weights beside it (``.onnx.data``) belong to it.

    Returns: A function from a batch ``(N, C, H, W)`` or ``(N, D)``, an array or a tensor on the
        CPU, to what the model says, ``(N, C)`` or ``(N,)``; and a description of the model, with
        the bytes and the SHA-256 of its file (with weights beside it, of both in a row). Inputs are
        rounded to the model's type; for uint8 those in [0, 1] are multiplied by 255. Where it takes
        channels last, they are moved there; a batch of fixed size is filled up. Of several outputs
        the first matrix of floats is taken.

    Raises: ImportError: If onnxruntime is missing; says how to install it. ValueError: If the file
        is no ONNX model that onnxruntime can run, or it has several inputs; when it is called,
            if inputs have another shape than it takes; says how to make them fit.
        FileNotFoundError: If there is no such file.

    Warns:
        UserWarning: If several outputs could be scores.
    """
    path = check_model(path)
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError(
            f"to run {str(path)!r} needs onnxruntime: pip install 'who-pays[audit]'"
        ) from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # What it logs below it raises, too.
    try:
        model = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # Its errors have no class in common.
        raise ValueError(f"cannot run {str(path)!r} as an ONNX model: {error}") from error
    inputs, output = model.get_inputs(), _scores(path.name, model.get_outputs())
    if len(inputs) != 1 or inputs[0].type not in INPUTS:
        found = ", ".join(f"{one.name} {one.type}" for one in inputs)
        raise ValueError(
            f"{path.name} must have one input, of type {', '.join(INPUTS)}; it has {found}"
        )
    size = inputs[0].shape[0] if inputs[0].shape else None

    def call(batch: Any) -> np.ndarray:
        values = _fitted(np.asarray(batch), inputs[0], path.name)
        count = size if isinstance(size, int) else len(values)
        parts = []
        for start in range(0, len(values), count):
            part = values[start : start + count]
            whole = np.concatenate([part, part[-1:].repeat(count - len(part), axis=0)])
            try:
                parts.append(model.run([output], {inputs[0].name: whole})[0][: len(part)])
            except Exception as error:
                raise ValueError(f"{path.name} failed on inputs {whole.shape}: {error}") from error
        found = np.concatenate(parts)
        return found.reshape(len(found), -1) if found.ndim > 2 else found

    return call, {
        **_described(path),
        "producer": model.get_modelmeta().producer_name,
        "output": output,
    }


def _scores(name: str, outputs: list) -> str:
    """Choose the output that is scores: a matrix of floats, else floats, else the first tensor
    (labels)."""
    floats = [one for one in outputs if one.type in INPUTS and one.type != "tensor(uint8)"]
    matrices = [one for one in floats if len(one.shape) == 2]
    candidates = matrices or floats or [one for one in outputs if one.type.startswith("tensor")]
    if not candidates:
        raise ValueError(
            f"{name} must give a tensor of scores or labels, it gives {[one.type for one in outputs]}"
        )
    if len(candidates) > 1:
        several = ", ".join(one.name for one in candidates)
        warnings.warn(
            f"{name} has several outputs that could be scores ({several}): the first is taken",
            stacklevel=3,
        )
    return candidates[0].name


def _fitted(values: np.ndarray, wanted: Any, name: str) -> np.ndarray:
    """Give a batch the form that a model takes."""
    shape, kind = wanted.shape, INPUTS[wanted.type]
    if values.ndim == len(shape) == 4 and shape[3] == values.shape[1] != shape[1]:
        values = np.moveaxis(values, 1, 3)
    pairs = [*zip(shape[1:], values.shape[1:], strict=False)]
    wrong = [isinstance(one, int) and one != other for one, other in pairs]
    if len(shape) != values.ndim or any(wrong):
        takes, got = (f"(N, {', '.join(map(str, sizes[1:]))})" for sizes in (shape, values.shape))
        scaled = len(shape) == values.ndim == 4 and not wrong[0] and shape[2] == shape[3]
        hint = (
            f"give --size {shape[2]} (image_size={shape[2]})"
            if scaled
            else "export it for such inputs"
        )
        raise ValueError(f"{name} takes inputs {takes}, got {got}: {hint}")
    if kind is np.uint8:
        if values.min() < 0 or values.max() > 1:
            raise ValueError(f"{name} takes uint8, 0 to 255: leave out --normalize (normalize=)")
        values = np.rint(values * 255)
    return np.ascontiguousarray(values, dtype=kind)


def _described(path: Path) -> dict[str, Any]:
    """Name, bytes and SHA-256 of a model, with the weights that exporters write beside it."""
    files = [path, *sorted(path.parent.glob(f"{glob.escape(path.name)}[._]data"))]
    content = b"".join(file.read_bytes() for file in files)
    return {
        "model": path.name,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
