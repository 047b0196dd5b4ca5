"""Removal for real: from structured masks to a smaller module, what that saves, and its export."""

import copy
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from fairlib._validation import check_number
from fairlib.data import GroupedDataset
from fairlib.network import gates, masks
from fairlib.network.channels import Coupled, coupled_channels, example_inputs, kept, trace
from fairlib.network.evaluation import evaluation_mode
from fairlib.network.memory import remember


def compact(model: nn.Module, data: GroupedDataset | Tensor) -> nn.Module:
    """A physically smaller module with the same outputs: every channel that nothing reads is removed.

    A channel is removed when all the weights that read it are zero, which makes it exact whatever produces it; the
    structured methods of :func:`fairlib.prune` leave such channels, an unstructured one hardly ever does. What removed
    channels alone have read is then read by nothing, and goes too. One channel of a layer always stays. Where nothing
    can be removed, the result is a copy.

    The remaining weights keep their masks, so that training goes on as it would have in the masked model. The history
    of a training is kept, the weights that ``fit(..., keep=)`` kept are not: their shapes are those of the wide model.

    Args:
        model: Any module that Torch-Pruning can trace; left as it is.
        data: A data set, or a tensor of inputs ``(N, ...)``: removal needs the shape of the inputs, and only that.

    Returns:
        A module in eval mode, of the same class and parameter names.

    Raises:
        ValueError: If ``data`` is missing, the channels of the model cannot be removed
            (:func:`fairlib.network.channels.coupled_channels`), it was linearized before, or the smaller module does
            not give the same outputs, to 1e-5 of their size: then it holds something of a channel's shape that is
            neither a weight nor a normalization.

    Source:
        Fang et al. (2023), "DepGraph: towards any structural pruning", whose Torch-Pruning removes the channels.
    """
    inputs = example_inputs(model, data, count=2)
    sets = coupled_channels(model, inputs)
    removed = _unread(model, sets)
    if gates.gates(model) and any(gone.any() for gone in removed):
        raise ValueError(
            "the gates of a linearized model have the shapes of all its channels: compact first, linearize then"
        )
    small = copy.deepcopy(model)
    graph = trace(small, inputs)
    try:
        for coupled, gone in zip(sets, removed, strict=True):
            root = small.get_submodule(next(iter(coupled.producers)).removesuffix("weight").removesuffix("."))
            if gone.any():
                prune = graph.get_pruner_of_module(root).prune_out_channels
                graph.get_pruning_group(root, prune, gone.nonzero().flatten().tolist()).prune()
        _restore_state(model, small, kept(sets, removed, model))
        same = _agree(_in_double(small, inputs), _in_double(model, inputs))
    except (RuntimeError, IndexError) as error:
        raise ValueError(f"{type(model).__name__} does not run without its unread channels: {error}") from error
    if not same:
        raise ValueError(f"{type(model).__name__} gives other outputs without its unread channels")
    if any(gone.any() for gone in removed):
        remember(small, kept={}, recipe=None)  # Both are of the wide network.
    return small.eval()


def cost(
    models: Mapping[str, nn.Module], data: GroupedDataset | Tensor, *, batch_size: int = 64, repeats: int = 11
) -> pd.DataFrame:
    """What models need: parameters, multiply-accumulates and measured latency.

    Args:
        models: By name, such as ``{"dense": dense, "compact": small}``, each on the device where it is measured.
        data: A data set, or a tensor of inputs ``(N, ...)``; only the shape of its inputs is used.
        batch_size: Of the timed passes.
        repeats: How many passes of each model are timed, in turns, so that a disturbance meets all of them; one more
            goes before.

    Returns:
        Indexed by model: ``parameters``; ``macs``, the multiply-accumulates of convolutions and matrix products for one
        input, zeros included; ``latency``, the median seconds of a forward pass of a batch in eval mode, and its
        quartiles ``latency_low`` and ``latency_high``. ``attrs`` has ``batch_size`` and ``threads``.
    """
    check_number("batch_size", batch_size, 1, whole=True)
    check_number("repeats", repeats, 1, whole=True)
    batches = {name: example_inputs(model, data, count=batch_size) for name, model in models.items()}
    seconds = {name: [] for name in models}
    for _ in range(repeats + 1):
        for name, model in models.items():
            seconds[name].append(_seconds(model, batches[name]))
    rows = {}
    for name, model in models.items():
        low, median, high = np.quantile(seconds[name][1:], [0.25, 0.5, 0.75])
        rows[name] = {
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "macs": _macs(model, batches[name][:1]),
            "latency": median,
            "latency_low": low,
            "latency_high": high,
        }
    table = pd.DataFrame.from_dict(rows, orient="index").astype({"parameters": "int64", "macs": "int64"})
    table.index.name = "model"
    table.attrs |= {"batch_size": batch_size, "threads": torch.get_num_threads()}
    return table


def export_onnx(model: nn.Module, path: str | Path, data: GroupedDataset | Tensor) -> None:
    """Write a model as ONNX, in eval mode, and check that onnxruntime computes the same with it.

    Its input is called ``inputs``, its output ``logits``; the first dimension of both is free. Needs the extra
    ``compact``: ``pip install 'who-pays[compact]'``.

    Args:
        model: Left as it is.
        path: The file to write, weights included.
        data: A data set, or a tensor of inputs ``(N, ...)``; only the shape of its inputs is used.

    Raises:
        ImportError: If onnx, onnxscript or onnxruntime is missing.
        ValueError: If the outputs differ by more than 1e-5 of their size; then no file is left.
    """
    import onnxruntime

    twin = copy.deepcopy(model).cpu().eval()
    with warnings.catch_warnings(), torch.no_grad():
        # Of torch and onnxscript about their own insides; what counts is checked below.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            twin,
            (example_inputs(twin, data, count=2),),
            path,
            dynamo=True,
            external_data=False,
            verbose=False,
            input_names=["inputs"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
        )
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for count in (1, 3):
        inputs = example_inputs(twin, data, count=count)
        (found,) = session.run(["logits"], {"inputs": inputs.numpy()})
        if not _agree(torch.from_numpy(found), _outputs(twin, inputs)):
            Path(path).unlink()
            raise ValueError(f"onnxruntime gives other outputs than {type(model).__name__}: the export is wrong")


def _unread(model: nn.Module, sets: Sequence[Coupled]) -> list[Tensor]:
    """For each set the channels that only zeros read, but one where that is all of them; as for ``kept``."""
    alive = {name: weight.detach() != 0 for name, weight in masks.prunable(model).items()}
    removed: list[Tensor] = []
    while True:
        before, removed = removed, [_read_by_zeros(coupled, alive) for coupled in sets]
        if before and all(map(torch.equal, before, removed)):
            return removed
        for coupled, gone in zip(sets, removed, strict=True):
            for name, (channels, rows) in coupled.producers.items():
                alive[name][rows[gone[channels]]] = False


def _read_by_zeros(coupled: Coupled, alive: Mapping[str, Tensor]) -> Tensor:
    unread = None
    for name, (channels, columns) in coupled.readers.items():
        if unread is None:
            unread = torch.ones(coupled.size, dtype=torch.bool, device=channels.device)
        read = alive[name].transpose(0, 1).flatten(1).any(1)
        unread[channels[read[columns]]] = False
    if unread.all():
        unread[0] = False
    return unread


def _restore_state(model: nn.Module, small: nn.Module, left: Mapping[str, tuple[Tensor, Tensor]]) -> None:
    """Give the smaller module what Torch-Pruning does not know of: masks and frozen parameters."""
    for name, mask in masks.read(model).items():
        layer = small.get_submodule(name.removesuffix("weight").removesuffix("."))
        if name in left:
            rows, columns = left[name]
            layer.weight_mask = mask[rows][:, columns]
    for name, parameter in model.named_parameters():
        small.get_parameter(name).requires_grad_(parameter.requires_grad)


def _outputs(model: nn.Module, inputs: Tensor) -> Tensor:
    with evaluation_mode(model), torch.no_grad():
        return model(inputs)


def _in_double(model: nn.Module, inputs: Tensor) -> Tensor:
    """Outputs in double precision on the CPU, where rounding hides nothing."""
    return _outputs(copy.deepcopy(model).cpu().double(), inputs.cpu().double())


def _agree(found: Tensor, expected: Tensor) -> bool:
    scale = max(1.0, float(expected.abs().max()))
    return found.shape == expected.shape and bool(((found - expected).abs() <= 1e-5 * scale).all())


def _seconds(model: nn.Module, inputs: Tensor) -> float:
    if inputs.is_cuda:
        torch.cuda.synchronize(inputs.device)
    start = time.perf_counter()
    _outputs(model, inputs)
    if inputs.is_cuda:
        torch.cuda.synchronize(inputs.device)
    return time.perf_counter() - start


def _macs(model: nn.Module, inputs: Tensor) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        _outputs(model, inputs)
    return counter.get_total_flops() // 2
