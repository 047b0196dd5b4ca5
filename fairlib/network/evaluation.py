"""Evaluation of a model: outputs, loss and hits of every sample, and the settings around it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy

from fairlib.data import GroupedDataset
from fairlib.network import keeping

SAMPLES_PER_PASS = 1024
"""Most samples of a forward pass."""

NUMBERS_PER_PASS = 2**20
"""Most numbers in its inputs: the activations take about a thousand times their memory."""

NUMBERS_PER_PASS_CPU = 2**18
"""Most numbers on a CPU: larger activations took a small network twice the time."""


@dataclass(frozen=True)
class ModelOutputs:
    """Outputs of a classifier for N samples, and how good they are.

    Attributes:
        logits: Float64 ``(N, C)``, one for each class.
        loss: Cross-entropy of each sample in nats, float64 ``(N,)``.
        correct: Bool ``(N,)``, True where the largest logit is that of the target.
    """

    logits: np.ndarray
    loss: np.ndarray
    correct: np.ndarray


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[nn.Module]:
    """Hold a model in eval mode within the block; then every submodule has the mode it had."""
    # A frozen script has no ``training``. Setting it by hand, since ``module.train()`` would set
    # the children as well, which may have another mode than their parent.
    training = [module for module in model.modules() if getattr(module, "training", False)]
    if training:
        model.eval()
    try:
        yield model
    finally:
        for module in training:
            module.training = True


@contextmanager
def full_precision() -> Iterator[None]:
    """Turn TF32 off within the block: a GPU's default for convolutions, of 10 bits of mantissa."""
    if not torch.cuda.is_available():
        yield
        return
    cudnn, before = torch.backends.cudnn, torch.get_float32_matmul_precision()
    others = {
        name: getattr(cudnn, name)
        for name in ("enabled", "benchmark", "benchmark_limit", "deterministic")
    }
    # By cudnn.flags and set_float32_matmul_precision alone: torch refuses to tell the precision
    # after somebody has mixed its old names for it with the new ones.
    torch.set_float32_matmul_precision("highest")
    try:
        with cudnn.flags(**others, allow_tf32=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def open_operators(model: nn.Module) -> Iterator[None]:
    """Compute attention and recurrent layers within the block without the fused operators for them.

    These cannot be differentiated twice, call no activation module, and some count as nothing. The
    switches are those of the process: two threads would leave them as the other one had them.
    """
    mha, cudnn = torch.backends.mha, torch.backends.cudnn
    fast, enabled = mha.get_fastpath_enabled(), cudnn.enabled
    mha.set_fastpath_enabled(False)
    # Convolutions would be slower without cuDNN: it goes only where there is a recurrent layer.
    cudnn.enabled = enabled and not any(isinstance(each, nn.RNNBase) for each in model.modules())
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        mha.set_fastpath_enabled(fast)
        cudnn.enabled = enabled


def placement(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Tell device and floating dtype of a model's parameters; CPU and float32 where it has none."""
    like = next((tensor for tensor in model.parameters() if tensor.is_floating_point()), None)
    return (torch.device("cpu"), torch.float32) if like is None else (like.device, like.dtype)


def passes(data: GroupedDataset, device: torch.device) -> tuple[Tensor, ...]:
    """Split the positions of all samples into passes for a device; int64 vectors, in order."""
    numbers = NUMBERS_PER_PASS_CPU if device.type == "cpu" else NUMBERS_PER_PASS
    return chunks(data, SAMPLES_PER_PASS, numbers)


def chunks(data: GroupedDataset, samples: int, numbers: int) -> tuple[Tensor, ...]:
    """Split the positions of all samples into passes.

    Args:
        data: The samples.
        samples: Most samples of one pass.
        numbers: Most numbers in the inputs of one pass; a pass has one sample at least.

    Returns:
        Int64 vectors, in order.
    """
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


def evaluate(
    model: nn.Module, state: Mapping[str, Tensor], inputs: Tensor, names: Mapping[str, str]
) -> Tensor:
    """Evaluate a model with other parameters and buffers.

    Every owner of a tied parameter gets it, and a module that goes by several names gets it once:
    ``torch.func.functional_call`` with its own tying would leave such a module damaged.

    Args:
        model: Left as it is.
        state: Name of a parameter or buffer to tensor; those not named are the model's own.
        inputs: ``(N, ...)``.
        names: The model's :func:`aliases`.

    Returns:
        The model's outputs.
    """
    tensors = {alias: state[name] for alias, name in names.items() if name in state}
    return functional_call(model, tensors, (inputs,), tie_weights=False)


def aliases(model: nn.Module) -> dict[str, str]:
    """Map every name of a parameter or buffer to its name in ``named_parameters`` or buffers."""
    canonical = {
        id(tensor): name for name, tensor in (*model.named_parameters(), *model.named_buffers())
    }
    return {
        f"{prefix}.{own}".removeprefix("."): canonical[id(tensor)]
        for prefix, module in model.named_modules()
        for own, tensor in (*module._parameters.items(), *module._buffers.items())
        if tensor is not None
    }


def outputs(model: nn.Module, data: GroupedDataset) -> Tensor:
    """Evaluate a classifier on every sample, in eval mode and without gradients.

    The model's mode, buffers and gradients are left as they were. Inputs reach it as
    :meth:`fairlib.GroupedDataset.batch` feeds them, in the dtype of its parameters and on their
    device.

    Returns:
        Its outputs, float64 ``(N, C)`` on the CPU.

    Raises:
        ValueError: If the outputs do not match the classes of the data.
    """
    keeping.settle(model)
    device, dtype = placement(model)
    batches = []
    # Not in inference mode: what a model keeps of its first pass could not be trained with later.
    with evaluation_mode(model), torch.no_grad():
        for index in passes(data, device):
            batch = model(data.batch(index, dtype=dtype, device=device))
            check_logits(batch, data)
            batches.append(batch.double().cpu())
    return torch.cat(batches)


def predict(model: nn.Module, data: GroupedDataset) -> ModelOutputs:
    """Evaluate a classifier that gives logits on every sample, as ``outputs`` does.

    Raises:
        ValueError: If the outputs do not match the classes of the data.
        FloatingPointError: If outputs are NaN or infinite.
    """
    logits, targets = outputs(model, data), data.targets.cpu()
    broken = int((~logits.isfinite()).any(1).sum())
    if broken:
        raise FloatingPointError(
            f"the model's outputs are NaN or infinite on {broken} of {len(data)} samples"
        )
    loss = cross_entropy(logits, targets, reduction="none")
    return ModelOutputs(logits.numpy(), loss.numpy(), (logits.argmax(1) == targets).numpy())
