"""Cost of a network: parameters, bytes, multiply-accumulates, ReLUs and latency."""

import math
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from fairlib._validation import check_number, check_type
from fairlib.data import GroupedDataset
from fairlib.network import gates, keeping
from fairlib.network.channels import example_inputs
from fairlib.network.evaluation import evaluation_mode, open_operators
from fairlib.network.export import Int8, run_onnx, to_onnx
from fairlib.randomness import seeded

_NOT_STORED = {keeping.RESIDUAL: keeping.BITS, keeping.BITS: keeping.SCALE, keeping.MASK: ""}
"""Ends of the names of buffers that a stored network does not need, or has in the bitmap, to the
ends of names beside which they are fairlib's."""

_UNCOUNTABLE = (RuntimeError, TypeError, ValueError)
"""Errors by which a model refuses to be copied, run or gated: its count is NaN. Others are bugs."""


def cost(
    models: nn.Module | Mapping[str, nn.Module],
    data: GroupedDataset | Tensor,
    *,
    latency: bool = True,
    batch_size: int = 64,
    repeats: int = 11,
) -> pd.DataFrame:
    """Measure the cost of models: parameters, bytes, multiply-accumulates, ReLUs and latency.

    Latency is measured on the models' ONNX exports, in eval mode on one CPU thread of onnxruntime,
    wherever the models are; this needs the extra ``compact``. The models take turns, so that a
    disturbance meets all of them.

    Args:
        models: Name to model, such as ``{"dense": dense, "compact": small}``, the first being what
            the others are compared with; or one model, called ``"model"``.
        data: A data set, or a tensor of inputs ``(N, ...)``; only the shape of its inputs is used.
        latency: False leaves the latency out, which takes seconds.
        batch_size: Number of inputs of a timed pass.
        repeats: Number of timed passes of each model, after an untimed one.

    Returns:
        Indexed by model: ``parameters``, zeros included; ``bytes``
        (:func:`fairlib.network.cost.stored_bytes`); ``macs``, the multiply-accumulates of
        convolutions and matrix products for one input, zeros included; ``relus``, the ReLUs that
        gates keep, or all (:func:`fairlib.linearization.count`). Parameters and
        multiply-accumulates of an :class:`fairlib.network.export.Int8` are those of the network it
        was made from. With ``latency`` also ``latency``, the median seconds of a pass of a batch,
        its quartiles ``latency_low`` and ``latency_high``, and ``ratio``, the median over the turns
        of a model's seconds to those of the first model. What cannot be computed is NaN: the ReLUs
        of a model without or of one that gates cannot follow, the latency of one that cannot be
        exported. ``attrs`` has ``batch_size``, ``threads``, and the ``reasons`` of every NaN, each
        by a text such as "relus of 'dense'".

    Raises:
        TypeError: If a model is no module.
        ValueError: If ``data`` is missing, or a setting is out of range.

    Warns:
        UserWarning: If a latency is NaN; says why.

    Example:
        >>> import torch
        >>> from fairlib.network.cost import cost
        >>> wide = torch.nn.Sequential(torch.nn.Linear(100, 10), torch.nn.ReLU())
        >>> narrow = torch.nn.Sequential(torch.nn.Linear(100, 5), torch.nn.ReLU())
        >>> cost({"wide": wide, "narrow": narrow}, torch.zeros(1, 100), latency=False)
                parameters  bytes  macs  relus
        model
        wide          1010   4040  1000     10
        narrow         505   2020   500      5
    """
    check_number("batch_size", batch_size, 1, whole=True)
    check_number("repeats", repeats, 1, whole=True)
    models = {"model": models} if isinstance(models, nn.Module) else models
    check_type("models", models, Mapping, "a torch.nn.Module, or several by name")
    for name, model in models.items():
        check_type(f"model {name!r}", model, nn.Module, "a torch.nn.Module")
    for model in models.values():
        example_inputs(model, data)  # Raises early if data has the wrong type.
    reasons: dict[str, str] = {}
    rows = [_counts(name, model, data, reasons) for name, model in models.items()]
    table = pd.DataFrame(rows, index=pd.Index(models, name="model"))
    if latency:
        seconds = _seconds(models, data, batch_size, repeats, reasons)
        low, median, high = np.quantile(seconds, [0.25, 0.5, 0.75], axis=0)
        ratio = np.median(seconds / seconds[:, :1], axis=0)
        table = table.assign(latency=median, latency_low=low, latency_high=high, ratio=ratio)
    table.attrs |= {"batch_size": batch_size, "threads": 1, "reasons": reasons}
    return table


def stored_bytes(model: nn.Module) -> int:
    r"""Count the bytes that a model's parameters and buffers take when they are stored packed.

    A weight of :math:`n` numbers, each of :math:`b` bits, takes :math:`\lceil nb / 8 \rceil` bytes;
    :math:`b` is the buffer ``weight_bits`` beside a quantized weight, whose scales count as well.
    Where a mask keeps :math:`k` of them, it takes a bitmap and those, :math:`\lceil n / 8 \rceil +
    \lceil kb / 8 \rceil` bytes, or the dense form if that is smaller. A gate takes one bit for each
    ReLU, or nothing if it keeps all of them or none. Whatever else there is takes its own size,
    except integer scalars, which only training needs; tied tensors count once.

    Args:
        model: Any module. A :class:`fairlib.network.export.Int8` takes what its ONNX file does: in
            int8 a pruned weight is stored like any other.

    Raises:
        TypeError: If the model is no module.

    Example:
        Of 800 weights of 4 bytes a mask keeps 80: a bitmap of 100 bytes, and 320 bytes.

        >>> import torch, fairlib
        >>> from fairlib.network.cost import stored_bytes
        >>> model = torch.nn.Linear(80, 10, bias=False)
        >>> stored_bytes(model), stored_bytes(fairlib.prune(model, "magnitude", sparsity=0.9))
        (3200, 420)
    """
    check_type("model", model, nn.Module, "a torch.nn.Module")
    keeping.settle(model)
    total, seen = 0, set()
    for module in model.modules():
        if isinstance(module, Int8):
            total += module.stored_bytes
        tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        for name, tensor in tensors:
            if id(tensor) not in seen:
                seen.add(id(tensor))
                total += math.ceil(_bits(module, name, tensor) / 8)
    return total


def count_parameters(model: nn.Module) -> int:
    """Count the parameters of a model, zeros included."""
    if isinstance(model, Int8):
        return model.of_float["parameters"]
    return sum(parameter.numel() for parameter in model.parameters())


def count_macs(model: nn.Module, data: GroupedDataset | Tensor) -> int:
    """Count the multiply-accumulates of a model for one input, zeros included."""
    from torch.utils.flop_counter import FlopCounterMode

    if isinstance(model, Int8):
        return model.of_float["macs"]
    inputs = example_inputs(model, data)
    # Torch's fast path for attention is one operator, which the counter takes for nothing.
    counter = FlopCounterMode(display=False)
    with evaluation_mode(model), open_operators(model), torch.no_grad(), counter:
        model(inputs)
    return counter.get_total_flops() // 2


def _counts(
    name: str, model: nn.Module, data: GroupedDataset | Tensor, reasons: dict[str, str]
) -> dict[str, float]:
    """Count the numbers of a row; NaN for those that cannot be, with the reason."""
    row: dict[str, float] = {"parameters": count_parameters(model), "bytes": stored_bytes(model)}
    for column in ("macs", "relus"):
        try:
            with seeded(0):
                row[column] = (
                    count_macs(model, data)
                    if column == "macs"
                    else gates.count(gates.gate(model, data)).attrs["total"]
                )
        except _UNCOUNTABLE as error:
            row[column] = math.nan
            reasons[f"{column} of {name!r}"] = f"{type(error).__name__}: {error}"
    return row


def _bits(module: nn.Module, name: str, tensor: Tensor) -> int:
    """Count the bits that a tensor of a module takes, to be filled up to bytes."""
    buffers = dict(module._buffers)  # TorchScript has another kind of mapping.
    beside, end = name[: name.rfind("_")], name[name.rfind("_") :]
    counted = beside + _NOT_STORED.get(end, ".") in {*buffers, *module._parameters}
    # A mask of another type is somebody else's, of this name.
    if counted and (end != keeping.MASK or tensor.dtype == torch.uint8):
        return 0
    if isinstance(module, gates.Gate) and name == "keep":
        return tensor.numel() if 0 < int(tensor.sum()) < tensor.numel() else 0
    if tensor.ndim == 0 and not tensor.is_floating_point():
        return 0
    bits, mask = buffers.get(name + keeping.BITS), buffers.get(name + keeping.MASK)
    width = 8 * tensor.element_size() if bits is None else int(bits)
    dense = tensor.numel() * width
    if mask is None or mask.dtype != torch.uint8:
        return dense
    # A bitmap in whole bytes, then the weights that are kept; the dense form if that is less.
    return min(dense, 8 * math.ceil(tensor.numel() / 8) + int(mask.count_nonzero()) * width)


def _seconds(
    models: Mapping[str, nn.Module],
    data: GroupedDataset | Tensor,
    batch_size: int,
    repeats: int,
    reasons: dict[str, str],
) -> np.ndarray:
    """Time a batch in each turn: ``(repeats, models)``, NaN for models without an export."""
    runs: dict[int, Callable[[], Tensor]] = {}
    for column, (name, model) in enumerate(models.items()):
        inputs = example_inputs(model, data, count=batch_size).cpu()
        try:
            runs[column] = partial(run_onnx(to_onnx(model, data)), inputs)
        except (ValueError, ImportError) as error:
            reasons[f"latency of {name!r}"] = str(error)
            warnings.warn(f"the latency of {name!r} is NaN: {error}", stacklevel=3)
    seconds = np.full((repeats + 1, len(models)), np.nan)
    for turn in seconds:
        for column, run in runs.items():
            start = time.perf_counter()
            run()
            turn[column] = time.perf_counter() - start
    return seconds[1:]  # The first pass of each allocates its memory.
