"""Weights in few bits, integer arithmetic, thin layers and smaller students.

>>> from fairlib.compression import QUANTIZERS
>>> list(QUANTIZERS)
['weights', 'int8-static']
"""

from types import NoneType
from typing import Any

from torch import nn

from fairlib._validation import check_number, check_type, lookup
from fairlib.compression.int8 import int8
from fairlib.compression.student import DISTILLATION, distil
from fairlib.compression.svd import FACTORIZATION, factorize
from fairlib.compression.weights import weights
from fairlib.data import GroupedDataset
from fairlib.training.compressors import Kind, Method
from fairlib.training.loop import check_arguments

__all__ = [
    "DISTILLATION",
    "FACTORIZATION",
    "QUANTIZATION",
    "QUANTIZERS",
    "distil",
    "factorize",
    "quantize",
]

QUANTIZERS: dict[str, Method] = {
    "weights": Method(weights),
    "int8-static": Method(int8, takes=("data", "seed"), finetunes=False),
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
    """Quantize a trained model by a method of the registry :data:`fairlib.compression.QUANTIZERS`.

    Args:
        model: Any module with convolutions or linear layers; not changed.
        method: ``"weights"`` (the weights alone, 1 to 16 bits) or ``"int8-static"`` (weights and
            activations, whose ranges are measured on calibration data).
        bits: Number of bits; 8 for ``"int8-static"``.
        data: The training set, from which ``"int8-static"`` draws its calibration data;
            ``"weights"`` needs none.
        seed: Seed of the draw of calibration data.
        **settings: Further arguments of ``"int8-static"``: ``samples``, ``stratified``.

    Returns:
        A copy in eval mode that is not finetuned. By ``"weights"`` it can be trained on, and stays
        rounded; by int8 it is a module that onnxruntime runs on the CPU, without parameters.

    Raises:
        ValueError: If the name is unknown, ``bits`` is out of range, ``data`` is missing, or the
            method cannot take the model.
        TypeError: If a setting is unknown, or an argument is of another type.
        ImportError: If int8 is asked for and onnx or onnxruntime is missing.

    Warns:
        UserWarning: If the calibration data lack a group that the data have.

    Example:
        Three values are left of each row's weights, and training moves them from one of these to
        another:

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
    _check(method, **settings)
    check_arguments({"model": model, "seed": seed})
    check_type("data", data, (GroupedDataset, NoneType), "a GroupedDataset")
    quantizer, offered = QUANTIZERS[method], {"data": data, "seed": seed}
    arguments = quantizer.arguments(f"quantization method {method!r}", offered, settings)
    return quantizer.function(model, bits=bits, **arguments)


def _check(method: str, **settings: Any) -> None:
    """Refuse a method or settings that :func:`quantize` does not know."""
    quantizer = lookup("quantization method", method, QUANTIZERS)
    quantizer.check(f"quantization method {method!r}", settings, level="bits")


def _check_bits(name: str, level: float) -> None:
    """Refuse a number of bits, a level of a study, that the method cannot store."""
    check_number("levels", level, 1, 16, high_closed=True)
    if level != int(level) or (name != "weights" and level != 8):
        wanted = "whole numbers of bits" if name == "weights" else "8, the bits of int8"
        raise ValueError(f"levels must be {wanted}, got {level}")


def _quantized(model: nn.Module, name: str, *, bits: float, **settings: Any) -> nn.Module:
    """Quantize for a study, whose levels are floats."""
    return quantize(model, name, bits=int(bits), **settings)


QUANTIZATION = Kind(
    _quantized,
    level="bits",
    control=32.0,
    methods=QUANTIZERS,
    check=_check,
    place=3,
    check_level=_check_bits,
)
"""Quantization, for a study: the level is the number of bits."""
