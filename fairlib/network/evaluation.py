"""What a model does to every sample, and to every group on average."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from fairlib.data import GroupedDataset

CHUNK = 1024  # Samples of one pass at most.
NUMBERS = 2**20  # Numbers in the inputs of one pass at most: activations take about a thousand times their memory.
NUMBERS_CPU = 2**18  # The same on a processor, where larger activations took a small network twice the time.


@dataclass(frozen=True)
class Predictions:
    """Per sample, ``logits`` ``(N, C)``, cross-entropy ``loss`` in nats ``(N,)`` (float64) and ``correct`` ``(N,)``."""

    logits: np.ndarray
    loss: np.ndarray
    correct: np.ndarray


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[nn.Module]:
    """Within the block the model is in eval mode; afterwards every submodule has the mode it had."""
    training = [module for module in model.modules() if getattr(module, "training", False)]  # A frozen script has none.
    if training:
        model.eval()
    try:
        yield model
    finally:
        for module in training:
            module.training = True


@contextmanager
def full_precision() -> Iterator[None]:
    """Within the block a GPU computes in float32 what is float32: TF32, the default of convolutions, keeps 10 bits."""
    if not torch.cuda.is_available():
        yield
        return
    cudnn, before = torch.backends.cudnn, torch.get_float32_matmul_precision()
    others = {"enabled": cudnn.enabled, "benchmark": cudnn.benchmark, "deterministic": cudnn.deterministic}
    torch.set_float32_matmul_precision("highest")
    try:
        with cudnn.flags(**others, benchmark_limit=cudnn.benchmark_limit, allow_tf32=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def placement(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Device and floating dtype of a model's parameters; CPU and float32 where it has none."""
    for tensor in model.parameters():
        if tensor.is_floating_point():
            return tensor.device, tensor.dtype
    return torch.device("cpu"), torch.float32


def passes(data: GroupedDataset, device: torch.device) -> tuple[Tensor, ...]:
    """The positions of all samples, dealt to forward passes on a device."""
    return chunks(data, CHUNK, NUMBERS_CPU if device.type == "cpu" else NUMBERS)


def chunks(data: GroupedDataset, samples: int, numbers: int) -> tuple[Tensor, ...]:
    """The positions of all samples, dealt to passes of so many samples and numbers in their inputs at most."""
    return torch.arange(len(data)).split(max(1, min(samples, numbers // data.inputs[0].numel())))


def check_logits(logits: Tensor, data: GroupedDataset) -> None:
    """Refuse outputs that are not one logit per class of the data.

    Raises:
        TypeError: If the output is no tensor.
        ValueError: If it is not ``(N, num_classes)``.
    """
    if not isinstance(logits, Tensor):
        raise TypeError(f"the model must give a tensor of logits, it gives {type(logits).__name__}")
    if logits.ndim != 2 or logits.shape[1] != data.num_classes:
        raise ValueError(
            f"the model must give logits (N, {data.num_classes}), one for each class of the data "
            f"({', '.join(data.target_names)}); it gives {tuple(logits.shape)}"
        )


def evaluate(model: nn.Module, state: Mapping[str, Tensor], inputs: Tensor, names: Mapping[str, str]) -> Tensor:
    """The model's outputs with other parameters and buffers, those of ``state``; ``names`` are the model's ``aliases``.

    Every owner of a tied parameter gets it, and a module that goes by several names gets it once:
    ``torch.func.functional_call`` with its own tying would leave such a module damaged. What is not in ``state`` stays.
    """
    tensors = {alias: state[name] for alias, name in names.items() if name in state}
    return functional_call(model, tensors, (inputs,), tie_weights=False)


def aliases(model: nn.Module) -> dict[str, str]:
    """Every name of a parameter or buffer -> the one under which ``named_parameters`` or ``named_buffers`` gives it."""
    canonical = {id(tensor): name for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    return {
        f"{prefix}.{own}" if prefix else own: canonical[id(tensor)]
        for prefix, module in model.named_modules()
        for own, tensor in (*module._parameters.items(), *module._buffers.items())
        if tensor is not None
    }


def predict(model: nn.Module, data: GroupedDataset) -> Predictions:
    """Evaluate a classifier on every sample, in eval mode and without gradients.

    The model's mode, buffers and gradients are left as they were. Inputs reach it as
    :meth:`fairlib.GroupedDataset.batch` feeds them, in the dtype of its parameters and on their device.

    Raises:
        ValueError: If the outputs do not match the classes of the data.
        FloatingPointError: If outputs are NaN or infinite.
    """
    device, dtype = placement(model)
    logits = []
    with evaluation_mode(model), torch.inference_mode():
        for index in passes(data, device):
            batch = model(data.batch(index, dtype=dtype, device=device))
            check_logits(batch, data)
            logits.append(batch.double().cpu())
    outputs = torch.cat(logits)
    broken = int((~outputs.isfinite()).any(1).sum())
    if broken:
        raise FloatingPointError(f"the model's outputs are NaN or infinite on {broken} of {len(data)} samples")
    targets = data.targets.cpu()
    loss = cross_entropy(outputs, targets, reduction="none")
    return Predictions(outputs.numpy(), loss.numpy(), (outputs.argmax(1) == targets).numpy())
