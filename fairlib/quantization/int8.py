"""Quantization to 8-bit integers that are computed with, by onnxruntime: static and dynamic."""

import copy
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from fairlib._validation import check_number, check_seed, check_type, lookup
from fairlib.data import GroupedDataset
from fairlib.network.cost import numbers
from fairlib.network.export import Int8, quiet, to_onnx
from fairlib.network.memory import inherit

CALIBRATIONS = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}
"""How ranges of activations are chosen, by name; as onnxruntime calls them."""

_BATCH = 32  # Calibration samples of one pass: histograms keep all activations of it.


def int8_static(
    model: nn.Module,
    *,
    bits: int = 8,
    data: GroupedDataset,
    samples: int = 256,
    stratified: bool = False,
    calibration: str = "minmax",
    seed: int = 0,
) -> Int8:
    r"""Quantize weights and activations to 8-bit integers, with ranges of activations that are
    fixed by calibration.

    A number :math:`x` becomes :math:`q = \mathrm{round}(x / s) + z`, cut off at the ends of its
    range, and stands for :math:`s \, (q - z)`. An activation is uint8, with one scale :math:`s` and
    zero :math:`z` for each tensor, which the calibration set chooses: what lies outside the range
    that it spans is cut off. A weight is int8 with :math:`z = 0` and a scale for each output
    channel, so that a pruned weight stays zero. BatchNorm is folded into the convolution before it.
    Products are summed in 32-bit integers; the outputs of linear layers are not rounded, so that
    logits do not tie.

    Weights take the integers -64 to 64 alone, 7 of the 8 bits (``reduce_range``). Without VNNI an
    x86 CPU adds two products in 16 bits, and :math:`2 \cdot 255 \cdot 127` does not fit: the result
    would depend on the CPU, where :math:`2 \cdot 255 \cdot 64` always fits. Weights of full range
    in uint8 are exact as well, at a third more time: on ResNet-18 at 32 pixels and a CPU with AVX2
    the logits' error is 4.4 % of their spread with 7 bits and 2.3 % with 8, and the time 0.45 and
    0.62 of float32's.

    Args: model: Any module that torch can export to ONNX; left as it is. Masks and gates hold.
        bits: 8. For fewer there is no arithmetic; :func:`fairlib.quantize` with ``"weights"``
        stores fewer. data: The training set, from which the calibration set is drawn. samples: Size
        of the calibration set; all of the data if they have fewer. stratified: Whether it holds
        equally many samples of each group, as far as the groups have them; else it is
            drawn from all samples alike.
        calibration: ``"minmax"`` (the range of all activations), ``"entropy"`` (the range with the
            least Kullback-Leibler divergence) or ``"percentile"`` (99.999 % of them);
            onnxruntime's.
        seed: Seed of the draw.

    Returns:
        A module in eval mode that gives float32 logits; it runs on the CPU and cannot be trained.

    Raises: ImportError: If onnx, onnxscript or onnxruntime is missing: ``pip install
        'who-pays[compact]'``. ValueError: If ``bits`` is not 8, a setting is out of range or
        unknown, a weight is NaN or infinite, or the
            model cannot be exported; the message names the operator that ONNX lacks and the module
            that calls it.
        TypeError: If an argument is of another type.

    Warns:
        UserWarning: If a group has no sample in the calibration set; names it.

    Source: Jacob et al. (2018), "Quantization and training of neural networks for efficient
        integer-arithmetic-only inference"; onnxruntime's ``quantize_static``.

    Example:
        >>> import fairlib
        >>> from fairlib.network.cost import stored_bytes
        >>> from fairlib.quantization.int8 import int8_static
        >>> digits = fairlib.load("digits")
        >>> dense = fairlib.fit(fairlib.build("cnn", like=digits), digits.train, epochs=2)
        >>> small = int8_static(dense, data=digits.train, stratified=True)
        >>> stored_bytes(small) < 0.4 * stored_bytes(dense)
        True
    """
    _check(model, bits)
    check_type("data", data, GroupedDataset, "a GroupedDataset")
    check_number("samples", samples, 1, whole=True)
    check_seed("seed", seed)
    method = lookup("calibration", calibration, CALIBRATIONS)
    drawn = _drawn(data, samples, stratified, seed)
    missing = [
        name
        for code, name in enumerate(data.group_names)
        if not (data.groups.cpu()[drawn] == code).any()
    ]
    if missing:
        warnings.warn(
            f"the calibration set has no sample of {', '.join(missing)}: ranges are those of other groups; "
            "take more samples, or stratified=True",
            stacklevel=2,
        )
    inputs = data.batch(drawn)

    def quantize(source: str, target: str) -> None:
        from onnxruntime import quantization as of

        settings: dict[str, Any] = {
            "calibrate_method": getattr(of.CalibrationMethod, method),
            "per_channel": True,
        }
        settings |= {
            "activation_type": of.QuantType.QUInt8,
            "weight_type": of.QuantType.QInt8,
            "reduce_range": True,
        }
        # Batch by batch, since all at once take gigabytes; and logits of 256 values would tie.
        settings["extra_options"] = {
            "CalibStridedMinMax": 1,
            "OpTypesToExcludeOutputQuantization": ["Gemm", "MatMul"],
        }
        of.quantize_static(source, target, _Batches(inputs), **settings)

    return _quantized(model, data, quantize)


def int8_dynamic(model: nn.Module, *, bits: int = 8, data: GroupedDataset | Tensor) -> Int8:
    """Quantize linear layers to 8-bit integers, with ranges of their inputs that each batch
    chooses.

    Weights are int8 as in :func:`int8_static`, with a scale for each output. The inputs of a layer
    are rounded to uint8 when it is computed, by the smallest and largest of the batch: an answer
    may depend a little on the rest of its batch. Convolutions stay as they are: in dynamic integers
    (``ConvInteger``) onnxruntime has no scale for each channel, and ResNet-18 at half its width
    takes 1.3 times (uint8 weights) to 4.9 times (int8) the time of float32.

    Args: model: Any module with linear layers that torch can export to ONNX; left as it is. Masks
        and gates hold. bits: 8. For fewer there is no arithmetic; :func:`fairlib.quantize` with
        ``"weights"`` stores fewer. data: A data set, or a tensor of inputs ``(N, ...)``; only the
        shape of its inputs is used.

    Returns:
        A module in eval mode that gives float32 logits; it runs on the CPU and cannot be trained.

    Raises: ImportError: If onnx, onnxscript or onnxruntime is missing: ``pip install
        'who-pays[compact]'``. ValueError: If ``bits`` is not 8, there is no linear layer, a weight
        is NaN or infinite, or the model cannot be
            exported; the message names the operator that ONNX lacks and the module that calls it.
        TypeError: If an argument is of another type.

    Source:
        onnxruntime's ``quantize_dynamic``.

    Example:
        >>> import torch
        >>> from fairlib.quantization.int8 import int8_dynamic
        >>> model = torch.nn.Linear(4, 2)
        >>> inputs = torch.rand(8, 4, generator=torch.Generator().manual_seed(0))
        >>> bool((int8_dynamic(model, data=inputs)(inputs) - model(inputs)).abs().max() < 0.05)
        True
    """
    _check(model, bits)

    def quantize(source: str, target: str) -> None:
        from onnxruntime import quantization as of

        settings: dict[str, Any] = {
            "op_types_to_quantize": ["MatMul", "Gemm"],
            "weight_type": of.QuantType.QInt8,
        }
        of.quantize_dynamic(source, target, per_channel=True, reduce_range=True, **settings)

    found = _quantized(model, data, quantize)
    if b"MatMulInteger" not in found.content:
        raise ValueError(
            f"{type(model).__name__} has no linear layer to quantize; take int8_static"
        )
    return found


class _Batches:
    """Calibration inputs as onnxruntime reads them: a range of batches, one at a time."""

    def __init__(self, inputs: Tensor):
        self.batches = [batch.numpy() for batch in inputs.split(_BATCH)]
        self.left: Iterator = iter(())

    def __len__(self) -> int:
        return len(self.batches)

    def set_range(self, start_index: int, end_index: int) -> None:
        self.left = iter(self.batches[start_index:end_index])

    def get_next(self) -> dict[str, Any] | None:
        batch = next(self.left, None)
        return None if batch is None else {"inputs": batch}


def _check(model: nn.Module, bits: int) -> None:
    check_type("model", model, nn.Module, "a torch.nn.Module")
    if bits != 8:
        raise ValueError(
            f"bits of int8 must be 8, got {bits!r}; for fewer use quantize(model, 'weights', bits=...)"
        )
    if isinstance(model, Int8):
        raise ValueError(
            "the model is in int8 already; quantize the float network that it was made from"
        )


def _drawn(data: GroupedDataset, samples: int, stratified: bool, seed: int) -> Tensor:
    """Positions of a calibration set, int64, in the order of the draw."""
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    if stratified:
        groups, rank = data.groups.cpu()[order], torch.empty_like(order)
        for code in range(data.num_groups):
            members = groups == code
            rank[members] = torch.arange(int(members.sum()))
        order = order[rank.argsort(stable=True)]  # The first of every group, then the second, ...
    return order[:samples]


def _quantized(
    model: nn.Module, data: GroupedDataset | Tensor, quantize: Callable[[str, str], None]
) -> Int8:
    """Export a model, prepare it and quantize it from one file to another."""
    content = to_onnx(copy.deepcopy(model).float(), data)
    with TemporaryDirectory() as folder, quiet():
        import onnx
        from onnxruntime.quantization.shape_inference import quant_pre_process

        source, prepared, target = (
            str(Path(folder, name)) for name in ("source", "prepared", "target")
        )
        graph = onnx.load_from_string(content)
        del graph.graph.value_info[:]  # Of a Gemm's weights too, which onnxruntime transposes.
        onnx.save(graph, source)
        quant_pre_process(source, prepared, skip_symbolic_shape=True)
        quantize(prepared, target)
        content = Path(target).read_bytes()
    found = Int8(content, numbers(model, data))
    inherit(found, model, snapshots={}, recipe=None)
    return found.eval()
