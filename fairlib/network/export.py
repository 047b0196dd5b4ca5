"""Models outside torch: their export to ONNX, and modules that onnxruntime runs."""

import logging
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from fairlib._validation import check_type
from fairlib.data import GroupedDataset
from fairlib.network import keeping
from fairlib.network.channels import example_inputs
from fairlib.network.copying import copied


class Int8(nn.Module):
    """A network in integers that onnxruntime runs, on the CPU and on one thread.

    It gives float32 logits of a batch of any size, as the network it was made from does. It has a
    parameter without a number, since an optimizer refuses a module without any: ``fairlib.fit(...,
    epochs=0)`` passes it on, and training it is refused. A copy and an unpickled one open a session
    of their own.

    Args:
        content: The model as ONNX, with one input ``inputs`` and one output.
        of_float: Cost of the float network: ``"parameters"`` and ``"macs"``
            (:func:`fairlib.network.cost.cost`).

    Attributes:
        content: The model as ONNX.
        of_float: Cost of the float network.
        stored_bytes: Bytes of the weights and scales: elements times their size, over all
            initializers.
    """

    def __init__(self, content: bytes, of_float: Mapping[str, int]):
        super().__init__()
        self.content, self.of_float = content, dict(of_float)
        onnx = _package("onnx")
        tensors = map(onnx.numpy_helper.to_array, onnx.load_from_string(content).graph.initializer)
        self.stored_bytes = sum(tensor.nbytes for tensor in tensors)
        self.nothing = nn.Parameter(torch.empty(0))
        self._run: Callable[[Tensor], Tensor] | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute logits ``(N, C)`` of inputs ``(N, ...)``, without gradients.

        Raises:
            ValueError: If it is trained.
        """
        if self.training and torch.is_grad_enabled():
            raise ValueError("int8 is not trainable: use quantize(model, 'weights', bits=8)")
        if self._run is None:
            self._run = run_onnx(self.content)
        return self._run(inputs.float()).to(inputs.device)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_run": None}


def export_onnx(model: nn.Module, path: str | Path, data: GroupedDataset | Tensor) -> None:
    """Write a model as ONNX, in eval mode, and check that onnxruntime computes the same with it.

    The input is called ``inputs`` and the output ``logits``; the first dimension of both is free.
    This needs the extra ``compact``: ``pip install 'who-pays[compact]'``.

    Args:
        model: Left as it is. An :class:`Int8` is written as it runs.
        path: The file to write, weights included.
        data: A data set, or a tensor of inputs ``(N, ...)``; only the shape of its inputs is used.

    Raises:
        ImportError: If onnx, onnxscript or onnxruntime is missing.
        ValueError: If the model cannot be exported (:func:`to_onnx`), or the outputs differ by more
            than 1e-5 of their size; then no file is left.
    """
    Path(path).write_bytes(to_onnx(model, data))


def to_onnx(model: nn.Module, data: GroupedDataset | Tensor) -> bytes:
    """Export a model, in eval mode, to the bytes of an ONNX file that onnxruntime agrees with.

    Args:
        model: Left as it is.
        data: A data set, or a tensor of inputs ``(N, ...)``; only the shape of its inputs is used.

    Raises:
        ImportError: If onnx, onnxscript or onnxruntime is missing.
        ValueError: If a weight is NaN or infinite, ONNX has no such operator (the message names it
            and the module that calls it), torch cannot export the model for any other reason, or
            the outputs differ by more than 1e-5 of their size.
    """
    check_type("model", model, nn.Module, "a torch.nn.Module")
    if isinstance(model, Int8):
        return model.content
    _package("onnxscript")
    twin = copied(model).cpu().eval()
    keeping.settle(twin)
    for name, tensor in (*twin.named_parameters(), *twin.named_buffers()):
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise ValueError(f"{name} holds NaN or infinite numbers; has training diverged?")
    batch = torch.export.Dim("batch")
    try:
        with quiet(), torch.no_grad():
            program: Any = torch.onnx.export(
                twin,
                (example_inputs(twin, data, count=2),),
                dynamo=True,
                verbose=False,
                input_names=["inputs"],
                output_names=["logits"],
                dynamic_shapes=({0: batch},),
            )
    except torch.onnx.OnnxExporterError as error:
        raise ValueError(
            f"{type(model).__name__} cannot be exported to ONNX: {_reason(error)}"
        ) from error
    content = program.model_proto.SerializeToString()
    run = run_onnx(content)
    # One sample and three: the export was traced with two, and what depends on their number, such
    # as a reshape with a constant, is right for that number alone.
    for count in (1, 3):
        inputs = example_inputs(twin, data, count=count)
        with torch.no_grad():
            expected = twin(inputs.clone())
        if not agree(run(inputs), expected):
            raise ValueError(
                f"onnxruntime gives other outputs than {type(model).__name__}: the export is wrong"
            )
    return content


def run_onnx(content: bytes) -> Callable[[Tensor], Tensor]:
    """Open an ONNX model with one input ``inputs``, on the CPU and on one thread.

    Returns:
        A function from a batch of inputs to the first output, a tensor on the CPU.

    Raises:
        ImportError: If onnxruntime is missing.
    """
    opened = open_session(content, threads=1)

    def run(inputs: Tensor) -> Tensor:
        return torch.from_numpy(
            opened.run(None, {"inputs": inputs.detach().cpu().contiguous().numpy()})[0]
        )

    return run


def open_session(model: bytes | Path, *, threads: int = 0, extra: str = "compact") -> Any:
    """Open an ONNX model in onnxruntime, on the CPU.

    Args:
        model: Bytes of the model, or path of its file, which may have its weights beside it.
        threads: Number of threads; 0 for one a core.
        extra: Extra of the installation that the error names if onnxruntime is missing.

    Raises:
        ImportError: If onnxruntime is missing.
        Exception: If onnxruntime cannot run the model; its errors have no class in common.
    """
    onnxruntime = _package("onnxruntime", extra)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    options.log_severity_level = 4  # "Fatal": everything below is raised as an exception anyway.
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def agree(found: Tensor, expected: Tensor) -> bool:
    """Tell whether outputs are the expected ones up to 1e-5 of the largest of these, or of 1."""
    scale = max(1.0, float(expected.abs().max()))
    return found.shape == expected.shape and bool(((found - expected).abs() <= 1e-5 * scale).all())


@contextmanager
def quiet() -> Iterator[None]:
    """Silence all that torch's exporter and onnxruntime's quantizer warn of, log and print."""
    root = logging.getLogger()
    disabled, level, handlers = root.manager.disable, root.level, [*root.handlers]
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        root.setLevel(level)  # The quantizer configures the root logger when it is imported.
        root.handlers[:] = handlers


def _package(name: str, extra: str = "compact") -> ModuleType:
    try:
        with quiet():
            return import_module(name)
    except ImportError as error:
        raise ImportError(f"this needs {name}: pip install 'who-pays[{extra}]'") from error


def _reason(error: BaseException) -> str:
    """Tell why an export failed: the operator that ONNX lacks and the module that calls it."""
    # The exporter's message names neither. The node at which it failed does, and is a local
    # variable of some frame of the exceptions behind this one.
    while error.__cause__ is not None:
        for frame, _ in traceback.walk_tb(error.__cause__.__traceback__):
            node: Any = frame.f_locals.get("node")
            stack = getattr(node, "meta", {}).get("nn_module_stack")
            if stack:
                path, kind = [*stack.values()][-1]
                caller = kind if isinstance(kind, str) else kind.__qualname__
                return (
                    f"ONNX has no operator {node.target}, which {path or 'the model'} ({caller}) "
                    "calls"
                )
        error = error.__cause__
    return str(error).strip().split("\n")[0]
