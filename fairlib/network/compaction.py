"""Compaction: from structured masks to a physically smaller module, what that saves, and its export to ONNX."""

import copy
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from fairlib._validation import check_number, check_type
from fairlib.data import GroupedDataset
from fairlib.network import gates, masks
from fairlib.network.channels import Coupled, coupled_channels, example_inputs, kept, trace
from fairlib.network.evaluation import evaluation_mode
from fairlib.network.memory import remember


def compact(model: nn.Module, data: GroupedDataset | Tensor) -> nn.Module:
    """Copy a model without the channels that nothing reads: a physically smaller module with the same outputs.

    A channel is removed when all the weights that read it are zero, which makes it exact whatever produces it; the
    structured methods of :func:`fairlib.prune` leave such channels, an unstructured one hardly ever does. Channels that
    removed channels alone have read are then removed too. One channel of a layer always stays. Where nothing can be
    removed, the result is a plain copy.

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
        TypeError: If the model is no module.

    Source:
        Fang et al. (2023), "DepGraph: towards any structural pruning", whose Torch-Pruning removes the channels.

    Example:
        >>> import torch, fairlib
        >>> images = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
        >>> model = fairlib.build("cnn", num_classes=10, in_channels=1, image_size=8)
        >>> pruned = fairlib.prune(model, "filter-norm", sparsity=0.75, data=images)  # Zeros, which save nothing.
        >>> small = fairlib.compact(pruned, images)
        >>> count = lambda module: sum(parameter.numel() for parameter in module.parameters())
        >>> count(pruned) == count(model), count(small) < 0.3 * count(model)
        (True, True)
        >>> torch.allclose(small(images), pruned(images), atol=1e-5)
        True
    """
    check_type("model", model, nn.Module, "a torch.nn.Module")
    inputs = example_inputs(model, data, count=2)
    sets = coupled_channels(model, inputs)
    removed = _unread(model, sets)
    smaller = any(gone.any() for gone in removed)
    if smaller and gates.gates(model):
        raise ValueError("the gates of a linearized model need all of its channels: compact first, linearize then")
    small = copy.deepcopy(model)
    graph = trace(small, inputs)
    try:
        for coupled, gone in zip(sets, removed, strict=True):
            root = small.get_submodule(next(iter(coupled.producers)).rpartition(".")[0])
            if gone.any():
                prune = graph.get_pruner_of_module(root).prune_out_channels
                graph.get_pruning_group(root, prune, gone.nonzero().flatten().tolist()).prune()
        _restore_state(model, small, kept(sets, removed, model))
        same = _agree(_in_double(small, inputs), _in_double(model, inputs))
    except (RuntimeError, IndexError) as error:
        raise ValueError(f"{type(model).__name__} does not run without its unread channels: {error}") from error
    if not same:
        raise ValueError(f"{type(model).__name__} gives other outputs without its unread channels")
    if smaller:
        remember(small, kept={}, recipe=None)  # Both are of the wide network.
    return small.eval()


def cost(
    models: Mapping[str, nn.Module], data: GroupedDataset | Tensor, *, batch_size: int = 64, repeats: int = 11
) -> pd.DataFrame:
    """Measure what models need: parameters, multiply-accumulates and latency.

    Args:
        models: Name to model, such as ``{"dense": dense, "compact": small}``, each on the device where it is measured.
        data: A data set, or a tensor of inputs ``(N, ...)``; only the shape of its inputs is used.
        batch_size: Number of inputs of a timed pass.
        repeats: Number of timed passes of each model, after an untimed one. The models take turns, so that a
            disturbance meets all of them.

    Returns:
        Indexed by model: ``parameters``; ``macs``, the multiply-accumulates of convolutions and matrix products for one
        input, zeros included; ``latency``, the median seconds of a forward pass of a batch in eval mode, and its
        quartiles ``latency_low`` and ``latency_high``. ``attrs`` has ``batch_size`` and ``threads``.

    Example:
        >>> import torch, fairlib
        >>> from fairlib.network.compaction import cost
        >>> wide, narrow = torch.nn.Linear(100, 10), torch.nn.Linear(100, 5)
        >>> table = cost({"wide": wide, "narrow": narrow}, torch.zeros(1, 100), repeats=3)
        >>> table[["parameters", "macs"]]
                parameters  macs
        model
        wide          1010  1000
        narrow         505   500
    """
    check_number("batch_size", batch_size, 1, whole=True)
    check_number("repeats", repeats, 1, whole=True)
    batches = {name: example_inputs(model, data, count=batch_size) for name, model in models.items()}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(repeats + 1):
        for name, model in models.items():
            start = _now(batches[name].device)
            _outputs(model, batches[name])
            seconds[name].append(_now(batches[name].device) - start)
    low, median, high = np.quantile([times[1:] for times in seconds.values()], [0.25, 0.5, 0.75], axis=1)
    columns = {
        "parameters": [sum(parameter.numel() for parameter in model.parameters()) for model in models.values()],
        "macs": [_macs(model, batches[name][:1]) for name, model in models.items()],
    }
    columns |= {"latency": median, "latency_low": low, "latency_high": high}
    table = pd.DataFrame(columns, index=pd.Index(models, name="model"))
    table.attrs |= {"batch_size": batch_size, "threads": torch.get_num_threads()}
    return table


def export_onnx(model: nn.Module, path: str | Path, data: GroupedDataset | Tensor) -> None:
    """Write a model as ONNX, in eval mode, and check that onnxruntime computes the same with it.

    The input is called ``inputs`` and the output ``logits``; the first dimension of both is free. This needs the extra
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
    masks.hold(twin)
    settings: dict[str, Any] = {"dynamo": True, "external_data": False, "verbose": False}
    settings |= {"input_names": ["inputs"], "output_names": ["logits"]}
    settings["dynamic_shapes"] = ({0: torch.export.Dim("batch")},)
    with warnings.catch_warnings(), torch.no_grad():
        # Torch and onnxscript warn about their own internals; the outputs are checked below.
        warnings.simplefilter("ignore")
        torch.onnx.export(twin, (example_inputs(twin, data, count=2),), path, **settings)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for count in (1, 3):
        inputs = example_inputs(twin, data, count=count)
        (found,) = session.run(["logits"], {"inputs": inputs.numpy()})
        if not _agree(torch.from_numpy(found), _outputs(twin, inputs)):
            Path(path).unlink()
            raise ValueError(f"onnxruntime gives other outputs than {type(model).__name__}: the export is wrong")


def _unread(model: nn.Module, sets: Sequence[Coupled]) -> list[Tensor]:
    """For each set a bool vector, True at channels that only zeros read; where that is all of them, one stays."""
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
    unread = torch.ones(coupled.size, dtype=torch.bool, device=next(iter(alive.values())).device)
    for name, (channels, columns) in coupled.readers.items():
        read = alive[name].transpose(0, 1).flatten(1).any(1)
        unread[channels[read[columns]]] = False
    if unread.all():
        unread[0] = False
    return unread


def _restore_state(model: nn.Module, small: nn.Module, left: Mapping[str, tuple[Tensor, Tensor]]) -> None:
    """Give the smaller module what Torch-Pruning does not know of: masks and frozen parameters."""
    for name, mask in masks.read(model).items():
        if name in left:
            rows, columns = left[name]
            small.get_submodule(name.rpartition(".")[0]).weight_mask = mask[rows][:, columns].to(torch.uint8)
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


def _now(device: torch.device) -> float:
    """Timestamp in seconds, after all work on the device. Subtract two."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _macs(model: nn.Module, inputs: Tensor) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        _outputs(model, inputs)
    return counter.get_total_flops() // 2
