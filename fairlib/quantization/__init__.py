"""Post-training quantization, one method a file. :func:`quantize` calls them by name.

>>> from fairlib.quantization import METHODS
>>> list(METHODS)
['weights', 'int8-static', 'int8-dynamic']
"""

from types import NoneType
from typing import Any

from torch import nn

from fairlib._validation import check_number, check_type, lookup
from fairlib.data import GroupedDataset
from fairlib.quantization.int8 import int8_dynamic, int8_static
from fairlib.quantization.weights import weights
from fairlib.training.compressors import Compressor, Method
from fairlib.training.loop import check_arguments

__all__ = ["METHODS", "Quantization", "check", "quantize"]

METHODS: dict[str, Method] = {
    "weights": Method(weights),
    "int8-static": Method(int8_static, takes=("data", "seed")),
    "int8-dynamic": Method(int8_dynamic, takes=("data",)),
}


def quantize(
    model: nn.Module,
    method: str,
    *,
    bits: int = 8,
    data: GroupedDataset | None = None,
    seed: int = 0,
    **settings,
) -> nn.Module:
    """Quantize a trained model by a method of the registry :data:`fairlib.quantization.METHODS`.

    Args: model: Any module with convolutions or linear layers; not changed. method: ``"weights"``
        (the weights alone, 1 to 16 bits), ``"int8-static"`` (weights and activations, whose
            ranges are measured on calibration data) or ``"int8-dynamic"`` (ranges of activations as
            they come).
        bits: Number of bits; 8 for the two methods of int8.
        data: The training set, from which ``"int8-static"`` draws its calibration data;
            ``"int8-dynamic"`` uses only the shape of its inputs, and ``"weights"`` needs none.
        seed: Seed of the draw of calibration data.
        **settings: Further arguments of the method, such as ``stratified=True`` of
            ``"int8-static"``.

    Returns: A copy in eval mode that is not finetuned. By ``"weights"`` it can be trained on, and
        stays rounded; by int8 it is a module that onnxruntime runs on the CPU, without parameters.

    Raises: ValueError: If the name is unknown, ``bits`` is out of range, ``data`` is missing, or
        the method cannot take the
            model.
        TypeError: If a setting is unknown, or an argument is of another type.
        ImportError: If int8 is asked for and onnx or onnxruntime is missing.

    Warns:
        UserWarning: If the calibration data lack a group that the data have.

    Example: Three values are left of each row's weights, and training moves them from one of these
        to another:

        >>> import torch, fairlib
        >>> model = torch.nn.Linear(4, 1, bias=False)
        >>> model.weight.data = torch.tensor([[1.0, -3.0, 0.25, 2.0]])
        >>> ternary = fairlib.quantize(model, "weights", bits=2)
        >>> ternary.weight.tolist()
        [[0.0, -2.5, 0.0, 2.5]]
        >>> optimizer = torch.optim.SGD(ternary.parameters(), lr=0.6)
        >>> ternary(torch.ones(1, 4)).sum().neg().backward()
        >>> optimizer.step()
        >>> fairlib.network.quantizers.round_quantized(ternary)  # As the next forward pass does.
        >>> ternary.weight.tolist()
        [[2.5, -2.5, 0.0, 2.5]]
    """
    check(method, **settings)
    check_arguments({"model": model, "seed": seed})
    check_type("data", data, (GroupedDataset, NoneType), "a GroupedDataset")
    quantizer = METHODS[method]
    arguments = quantizer.arguments(
        f"quantization method {method!r}", {"data": data, "seed": seed}, settings
    )
    return quantizer.function(model, bits=bits, **arguments)


def check(method: str, **settings) -> None:
    """Check the arguments of :func:`quantize` before anything is trained.

    Raises:
        ValueError: If the name is unknown.
        TypeError: If a setting is unknown.
    """
    lookup("quantization method", method, METHODS).check(
        f"quantization method {method!r}", settings, level="bits"
    )


class Quantization(Compressor):
    """Quantization, for a study: the level is the number of bits, and ``kept`` is the share of
    bytes."""

    level, control, inherits, methods, place = "bits", 32.0, False, METHODS, 3

    def check(self, name: str, **settings: Any) -> None:
        check(name, **settings)

    def check_level(self, name: str, level: float) -> None:
        check_number("levels", level, 1, 16, high_closed=True)
        if level != int(level) or (name != "weights" and level != 8):
            wanted = "whole numbers of bits" if name == "weights" else "8, the bits of int8"
            raise ValueError(f"levels must be {wanted}, got {level}")

    def finetunes(self, name: str) -> bool:
        return name == "weights"

    def compress(self, model: nn.Module, name: str, level: float, **settings: Any) -> nn.Module:
        return quantize(model, name, bits=int(level), **settings)
