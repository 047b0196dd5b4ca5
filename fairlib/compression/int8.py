"""Quantization to 8-bit integers that are computed with, by onnxruntime."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
import torch
from torch import Tensor, nn

from fairlib._validation import check_number
from fairlib.data import GroupedDataset
from fairlib.network.copying import copied
from fairlib.network.cost import count_macs, count_parameters
from fairlib.network.export import Int8, quiet, to_onnx
from fairlib.network.memory import inherit
from fairlib.randomness import generator

_BATCH = 32  # Calibration samples of one pass, whose activations are all in memory at once.


def int8(
    model: nn.Module,
    *,
    bits: int = 8,
    data: GroupedDataset,
    samples: int = 256,
    stratified: bool = False,
    seed: int = 0,
) -> Int8:
    r"""Quantize weights and activations to 8-bit integers; calibration fixes the ranges.

    A number :math:`x` becomes :math:`q = \mathrm{round}(x / s) + z`, cut off at the ends of its
    range, and represents :math:`s \, (q - z)`. An activation is uint8, with one scale :math:`s` and
    zero :math:`z` for each tensor, from the smallest and the largest value that the calibration set
    gives it: values outside this range are cut off. A weight is int8 with :math:`z = 0` and a scale
    for each output channel, so that a pruned weight stays zero. BatchNorm is folded into the
    convolution before it. Products are summed in 32-bit integers; the outputs of linear layers are
    not rounded, so that logits do not tie.

    Weights take the integers -64 to 64 alone, 7 of the 8 bits (``reduce_range``). Without VNNI an
    x86 CPU adds two products in 16 bits, and :math:`2 \cdot 255 \cdot 127` does not fit: the result
    would depend on the CPU, where :math:`2 \cdot 255 \cdot 64` always fits. Weights of full range
    in uint8 are exact as well, at a third more time: on ResNet-18 at 32 pixels and a CPU with AVX2
    the logits' error is 4.4 % of their spread with 7 bits and 2.3 % with 8, and the time 0.45 and
    0.62 of float32's.

    Args:
        model: Any module that torch can export to ONNX; not changed. Masks and gates hold.
        bits: 8. There is no arithmetic for fewer; :func:`fairlib.quantize` with ``"weights"``
            stores fewer.
        data: The training set, from which the calibration set is drawn.
        samples: Size of the calibration set; all of the data if they have fewer.
        stratified: Draw equally many samples of each group, as far as the groups have them, instead
            of a random sample of the data.
        seed: Seed of the draw.

    Returns:
        A module in eval mode that gives float32 logits; it runs on the CPU and cannot be trained.

    Raises:
        ImportError: If onnx, onnxscript or onnxruntime is missing: ``pip install
            'who-pays[compact]'``.
        ValueError: If ``bits`` is not 8, ``samples`` is out of range, a weight is NaN or infinite,
            or the model cannot be exported; the message names the operator that ONNX lacks and the
            module that calls it.

    Warns:
        UserWarning: If a group has no sample in the calibration set; names it.

    Source:
        Jacob et al. (2018), "Quantization and training of neural networks for efficient
        integer-arithmetic-only inference"; onnxruntime's ``quantize_static``.

    Example:
        >>> import fairlib
        >>> from fairlib.network.cost import stored_bytes
        >>> digits = fairlib.load("digits")
        >>> dense = fairlib.fit(fairlib.build("cnn", like=digits), digits.train, epochs=2)
        >>> small = fairlib.quantize(dense, "int8-static", data=digits.train, stratified=True)
        >>> stored_bytes(small) < 0.4 * stored_bytes(dense)
        True
    """
    if bits != 8:
        raise ValueError(
            f"bits of int8 must be 8, got {bits!r}; for fewer use "
            "quantize(model, 'weights', bits=...)"
        )
    if isinstance(model, Int8):
        raise ValueError(
            "the model is in int8 already; quantize the float network that it was made from"
        )
    check_number("samples", samples, 1, whole=True)
    drawn = calibration_set(data, samples, stratified, seed)
    present = set(data.groups.cpu()[drawn].tolist())
    missing = [name for code, name in enumerate(data.group_names) if code not in present]
    if missing:
        warnings.warn(
            f"the calibration set has no sample of {', '.join(missing)}: ranges are those of other "
            "groups; take more samples, or stratified=True",
            stacklevel=3,
        )
    content = to_onnx(copied(model).float(), data)
    counts = {"parameters": count_parameters(model), "macs": count_macs(model, data)}
    found = Int8(_in_integers(content, data.batch(drawn)), counts)
    inherit(found, model, snapshots={}, recipe=None)
    return found.eval()


def calibration_set(data: GroupedDataset, samples: int, stratified: bool, seed: int) -> Tensor:
    """Draw the positions of calibration samples, int64, in random order."""
    order = torch.randperm(len(data), generator=generator(seed))
    if stratified:
        groups = pd.Series(data.groups.cpu()[order].numpy())
        rank = groups.groupby(groups).cumcount().to_numpy()
        # The stable sort takes the first sample of every group, then the second of every group, and
        # so on. A prefix of it has equally many of each group until the small groups are used up;
        # only then the large ones fill the rest. Without stability the order of the draw, and with
        # it the result for a seed, would depend on the sorting algorithm.
        order = order[rank.argsort(kind="stable")]
    return order[:samples]


def _in_integers(content: bytes, inputs: Tensor) -> bytes:
    """Quantize an ONNX model, with the ranges of activations that the inputs give."""
    with TemporaryDirectory() as folder, quiet():
        import onnx
        from onnxruntime import quantization
        from onnxruntime.quantization.shape_inference import quant_pre_process

        source, prepared, target = (Path(folder, name) for name in ("source", "prepared", "target"))
        graph = onnx.load_from_string(content)
        # The exporter notes the shape of every intermediate tensor. onnxruntime transposes the
        # weight of a Gemm but not the note, and then refuses the graph for the contradiction;
        # without notes it infers the shapes itself.
        del graph.graph.value_info[:]
        onnx.save(graph, source)
        quant_pre_process(source, prepared, skip_symbolic_shape=True)
        quantization.quantize_static(
            prepared,
            target,
            _Batches(batch.numpy() for batch in inputs.split(_BATCH)),
            per_channel=True,
            reduce_range=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            # onnxruntime keeps the activations of all batches until it has read the last, which is
            # gigabytes; with a stride of one batch it merges the ranges after each. Logits are the
            # output of a Gemm or MatMul: rounded to 256 values, many would tie, and the predicted
            # class would be the one with the smaller number.
            extra_options={
                "CalibStridedMinMax": 1,
                "OpTypesToExcludeOutputQuantization": ["Gemm", "MatMul"],
            },
        )
        return target.read_bytes()


class _Batches(list):
    """Calibration inputs as onnxruntime reads them: a range of batches, one at a time."""

    left: Iterator = iter(())

    def set_range(self, start_index: int, end_index: int) -> None:
        self.left = iter(self[start_index:end_index])

    def get_next(self) -> dict | None:
        batch = next(self.left, None)
        return None if batch is None else {"inputs": batch}
