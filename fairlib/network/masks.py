"""Weight masks: which weights of a module are zero, and how they stay so.

A pruned weight *is* zero in ``module.weight``, under its ordinary name, so evaluating a pruned
model costs what evaluating the dense one costs. It stays zero because its gradient is masked,
whatever loop trains it: with a zero gradient, a zero weight has zero momentum and zero decay. Other
changes, such as the momentum of a dense training or a re-initialization, are zeroed in the next
forward pass, and before fairlib measures the model (``zero_masked``). Under
``torch.func.functional_call`` the weights are the caller's, and so are their gradients.

The mask is the buffer ``weight_mask`` beside the weight: uint8, 1 where the weight is kept, since
torch cannot average buffers of bools. It may be changed or replaced, by anything that torch counts
as a change: not through ``weight_mask.data``.
"""

import copy
import threading
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from fairlib._validation import check_type, lookup

# Hooks do the work, on the layers and on the model, and not a parametrization of torch's. That
# would keep the dense weight under another name: the keys of every state_dict would change, each
# forward pass would multiply by the mask, and weight decay would work on numbers nobody sees.
#
# 1. A tensor hook on the weight masks its gradient (_GradientMask). Such hooks get lost: deepcopy,
#    pickling and load_state_dict(assign=True) make a parameter without them.
# 2. Hooks of modules survive all of these. So before each forward pass one of them (_guard) zeroes
#    the weight again and gives it its gradient mask if it has none. It is on each layer, and on the
#    model, because nn.MultiheadAttention reads the weight of a layer that it never calls.
# 3. Writing every weight in every pass would cost a fifth of an evaluation. So each layer remembers
#    when it was last zeroed (_Memory), and is left alone until torch has counted a change.

BUFFER = "weight_mask"

_MEMORY = "_mask_memory"  # Name under which a layer has its _Memory.

_Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d


class _Thread(threading.local):
    """Forward pass of a model, with gradients on, that a thread is in: a new object, or None."""

    forward: object = None


_thread = _Thread()


def prunable(model: nn.Module) -> dict[str, nn.Parameter]:
    """List the weights that pruning may zero: those of convolutions and linear layers.

    Biases and normalization are never among them.

    Returns:
        Parameter name, as in ``named_parameters``, to parameter, in the order of the model's
        modules. Weights outside a mask are zero (``zero_masked``).

    Raises:
        TypeError: If the model is no module.
        ValueError: If there are none; if a layer shares its weight with another module; or if a
            weight is computed from others, by ``torch.nn.utils.prune`` or a parametrization, so
            that zeroing it would not hold.

    Example:
        >>> from torch import nn
        >>> from fairlib.network import masks
        >>> convolution = nn.Conv2d(1, 2, 3)
        >>> model = nn.Sequential(convolution, nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 2))
        >>> list(masks.prunable(model))
        ['0.weight', '3.weight']
    """
    check_type("model", model, nn.Module, "a torch.nn.Module")
    zero_masked(model)
    # named_parameters would name a tied weight once.
    parameters = [
        (f"{prefix}.{name}".removeprefix("."), parameter)
        for prefix, module in model.named_modules()
        for name, parameter in module._parameters.items()
    ]
    weights = {}
    for name, layer in _layers(model):
        if hasattr(layer, "weight_orig"):
            raise ValueError(
                f"{name} is pruned by torch.nn.utils.prune; call prune.remove(module, 'weight') "
                "first"
            )
        if parametrize.is_parametrized(layer, "weight"):
            raise ValueError(
                f"{name} is parametrized; call "
                "parametrize.remove_parametrizations(module, 'weight')"
            )
        weight = layer._parameters.get("weight")
        if weight is None:
            raise ValueError(
                f"{name} is computed from other parameters (weight_norm?); make it a parameter "
                "first"
            )
        tied = [other for other, one in parameters if one is weight and other != name]
        if tied:
            raise ValueError(f"{name} and {tied[0]} are one tied weight; untie them before pruning")
        weights[name] = weight
    if not weights:
        raise ValueError(
            f"{type(model).__name__} has no prunable weight: no convolution and no linear layer"
        )
    return weights


def read_masks(model: nn.Module) -> dict[str, Tensor]:
    """Read the masks of a model.

    Returns:
        Parameter name to bool tensor of the weight's shape, True where the weight is kept; layers
        without a mask are left out. The other weights are zero (``zero_masked``).
    """
    zero_masked(model)
    buffers = {name: layer._buffers.get(BUFFER) for name, layer in _layers(model)}
    # Masks of torch.nn.utils.prune have the same name and are floats, whose bytes are no booleans.
    return {
        name: mask.view(torch.bool) if mask.dtype == torch.uint8 else mask
        for name, mask in buffers.items()
        if mask is not None
    }


def zero_masked(model: nn.Module) -> None:
    """Zero the masked weights of a model, in place, before they are read or measured.

    Every forward pass does so too when it begins: with gradients on always, without them where a
    weight has changed. Without gradients it cannot see a change through ``weight.data`` or NumPy
    after which there was no backward pass; and it never sees one by the network itself, through
    ``weight.data``, between its beginning and the layer.
    """
    for layer, weight, mask in _masked(model):
        # A module without the hook has a buffer of this name that is somebody else's.
        if _is_guarded(layer):
            _memory(layer).zero(weight, mask)


def with_masks(model: nn.Module, keep: Mapping[str, Tensor]) -> nn.Module:
    """Copy a model, in eval mode, with the weights outside ``keep`` zero in any training.

    Args:
        model: Left as it is.
        keep: Parameter name to bool tensor of the weight's shape, True where the weight is kept.
            Weights not named keep the mask they have.

    Raises:
        ValueError: If a name is no prunable weight or a shape differs.

    Example:
        >>> import torch
        >>> from fairlib.network import masks
        >>> model = torch.nn.Linear(3, 1)
        >>> keep = {"weight": torch.tensor([[True, False, True]])}
        >>> masks.with_masks(model, keep).weight.tolist()[0][1]
        0.0
    """
    masked = copy.deepcopy(model)
    set_masks(masked, keep)
    return masked.eval()


def set_masks(model: nn.Module, keep: Mapping[str, Tensor]) -> None:
    """Mask a model in place, for a training loop whose optimizer holds its parameters.

    Args:
        model: Its masked weights become zero and stay so.
        keep: Parameter name to bool tensor of the weight's shape, True where the weight is kept.
            Weights not named keep the mask they have.

    Raises:
        ValueError: If a name is no prunable weight or a shape differs; then the model is as it was.
    """
    weights, layers = prunable(model), dict(_layers(model))
    for name, mask in keep.items():
        check_mask(name, mask, lookup("prunable weight", name, weights).shape)
    for name, mask in keep.items():
        layer = layers[name]
        buffer = layer._buffers.get(BUFFER)
        if buffer is not None:
            buffer.copy_(mask)
        else:
            layer.register_buffer(BUFFER, mask.detach().to(layer.weight.device, torch.uint8))
            layer.register_load_state_dict_post_hook(_zero_out_of_place)
            layer.register_state_dict_pre_hook(_zero_before_saving)
            layer.register_forward_pre_hook(_guard)
        _zero_out_of_place(layer)
    if keep and not _is_guarded(model):
        model.register_forward_pre_hook(_guard)
        model.register_forward_hook(_end_forward, always_call=True)
    _guard(model)
    _end_forward()


def check_scores(scores: Mapping[str, Tensor]) -> None:
    """Refuse scores, given by name of the scored layer, that hold NaN.

    Raises:
        ValueError: If some do.
    """
    for name, score in scores.items():
        if score.isnan().any():
            raise ValueError(f"the scores of {name} hold NaN; has training diverged?")


def check_mask(name: str, mask: Tensor, shape: torch.Size) -> None:
    """Refuse a mask of another dtype than bool or of another shape.

    Raises:
        ValueError: If it is one; names the layer, and dtype and shape of both masks.
    """
    if mask.shape != shape or mask.dtype != torch.bool:
        raise ValueError(
            f"the mask of {name} must be bool {tuple(shape)}, got {mask.dtype} {tuple(mask.shape)}"
        )


def sparsity(model: nn.Module) -> float:
    """Compute the share of exact zeros among the prunable weights, in [0, 1].

    Raises:
        TypeError: If the model is no module.
        ValueError: If the model has no prunable weight.

    Example:
        Each layer has six weights, and the first layer's are zero; biases do not count.

        >>> import torch, fairlib
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 3))
        >>> _ = model[0].weight.data.zero_()
        >>> fairlib.sparsity(model)
        0.5
    """
    weights = prunable(model).values()
    nonzero = sum(int(weight.count_nonzero()) for weight in weights)
    return 1 - nonzero / sum(weight.numel() for weight in weights)


def _layers(model: nn.Module) -> Iterator[tuple[str, _Layer]]:
    """Yield the layers whose weights can be pruned, by the name of the weight."""
    for prefix, layer in model.named_modules():
        if isinstance(layer, _Layer):
            yield f"{prefix}.weight".removeprefix("."), layer


def _masked(model: nn.Module) -> Iterator[tuple[nn.Module, nn.Parameter, Tensor]]:
    """Yield layers with a mask, their weights and masks; none where the weight is a caller's."""
    # ``model.modules()`` takes three times as long, in every pass. A ScriptModule has other
    # dictionaries, and no masks.
    modules: list[nn.Module | None] = [model]
    while modules:
        layer = modules.pop()
        if layer is None or isinstance(layer, torch.jit.ScriptModule):
            continue
        mask, weight = layer._buffers.get(BUFFER), layer._parameters.get("weight")
        if mask is not None and isinstance(weight, nn.Parameter):
            yield layer, weight, mask
        modules += layer._modules.values()


def _is_guarded(module: nn.Module) -> bool:
    return any(hook is _guard for hook in module._forward_pre_hooks.values())


def _zero_out_of_place(layer: _Layer, *_: object) -> None:
    """Zero the masked weights; as a hook, after ``load_state_dict`` has brought others."""
    # After load_state_dict(assign=True) the tensor is the caller's, whose model may be dense.
    layer.weight.data = layer.weight.data.masked_fill(layer.get_buffer(BUFFER) == 0, 0)


def _zero_before_saving(layer: nn.Module, *_: object) -> None:
    zero_masked(layer)


class _Memory:
    """Mask and weight of a layer when it was last zeroed."""

    # The mask, its version, and where it is zero: comparing in each pass would cost as much as
    # filling.
    mask: Tensor | None = None
    mask_version = -1
    zeros: Tensor
    # The weight and its storage, as weak references, and its version. The storage as well, since
    # ``parameter.data = tensor`` and vector_to_parameters change neither object nor version; and
    # not its address, at which a freed one may be followed by the next.
    weight: Any = None
    storage: Any = None
    version = -1
    forward: object = None  # The pass of the model (_thread.forward) in which it was zeroed.

    def __reduce__(self) -> tuple[type["_Memory"], tuple[()]]:
        return _Memory, ()  # A copy has other tensors, and weak references cannot be pickled.

    def knows(self, mask: Tensor) -> bool:
        """Return True if :attr:`zeros` is where this mask, as it is now, is zero."""
        return mask is self.mask and mask._version == self.mask_version

    def holds(self, weight: nn.Parameter, mask: Tensor) -> bool:
        """Return True if torch has counted no change since this weight was last zeroed."""
        same = self.storage is not None and self.storage() is weight.untyped_storage()
        return same and self.version == weight._version and self.knows(mask)

    def is_foreign(self, weight: nn.Parameter) -> bool:
        """Return True if the weight is another parameter, put there by ``functional_call``."""
        own = self.weight and self.weight()
        return own is not None and own is not weight

    def zero(self, weight: nn.Parameter, mask: Tensor, forward: object = None) -> None:
        """Zero the masked weights in place, and remember that it was done."""
        weight.data.masked_fill_(self.zeros_of(mask), 0)
        if not weight.is_inference():  # Its tensors tell no version.
            self.weight, self.storage = weakref.ref(weight), weakref.ref(weight.untyped_storage())
            self.version, self.forward = weight._version, forward

    def zeros_of(self, mask: Tensor) -> Tensor:
        """Return where a mask is zero, from memory as long as the mask is not changed."""
        if self.knows(mask):
            return self.zeros
        zeros = mask == 0
        # A tensor of inference mode cannot be used in a training later, and one of vmap or grad
        # not outside of them; a subclass is a fake tensor of the compiler.
        wrapped = torch._C._functorch.is_functorch_wrapped_tensor(zeros)
        passing = wrapped or type(zeros) is not Tensor or zeros.is_inference()
        if not (passing or mask.is_inference()):
            self.zeros, self.mask, self.mask_version = zeros, mask, mask._version
        return zeros


def _memory(layer: nn.Module) -> _Memory:
    # In __dict__ and not by setattr, which costs more: this runs for each layer in each pass.
    memory = layer.__dict__.get(_MEMORY)
    if memory is None:
        memory = layer.__dict__[_MEMORY] = _Memory()
    return memory


class _GradientMask:
    """A tensor hook that zeroes the gradient of a layer's masked weights."""

    # torch.save leaves it out: it has a weak reference, and an unpickled module gets its own.
    __torch_unserializable__ = True

    def __init__(self, layer: nn.Module):
        self.layer, self.memory = weakref.ref(layer), _memory(layer)

    def __call__(self, gradient: Tensor) -> Tensor:
        layer = self.layer()
        mask = None if layer is None else layer._buffers.get(BUFFER)
        if mask is None:
            return gradient
        if torch.compiler.is_compiling():
            return gradient.masked_fill(mask == 0, 0)
        # A step follows, and fused optimizers change a weight without counting it as a change.
        self.memory.version = -1
        return gradient.masked_fill(self.memory.zeros_of(mask), 0)


def _mask_gradient(layer: nn.Module, weight: nn.Parameter) -> None:
    """Give a weight its gradient mask if it needs one and has none."""
    if not (torch.is_grad_enabled() and weight.requires_grad):
        return
    for hook in (weight._backward_hooks or {}).values():
        if isinstance(hook, _GradientMask) and hook.layer() is layer:
            return
    weight.register_hook(_GradientMask(layer))


def _guard(module: nn.Module, *_: object) -> None:
    """Zero every masked weight below a module, and mask its gradient; as a forward pre-hook."""
    if "weight_orig" in module._parameters:
        raise ValueError(
            "torch.nn.utils.prune has overwritten fairlib's mask of this "
            f"{type(module).__name__}, since both call it weight_mask; call "
            "torch.nn.utils.prune.remove(module, 'weight') and prune with fairlib alone"
        )
    if torch.compiler.is_compiling():
        # In a graph tensors tell no version; and a model that is exported needs no masks.
        if not torch.compiler.is_exporting():
            for layer, weight, mask in _masked(module):
                weight.data.masked_fill_(mask == 0, 0)
                _mask_gradient(layer, weight)
        return
    grad, forward = torch.is_grad_enabled(), _thread.forward
    memory = module.__dict__.get(_MEMORY)
    if forward is not None and memory is not None and memory.forward is forward:
        # The model has zeroed this layer in this pass of this thread: once is enough.
        own, buffer = module._parameters.get("weight"), module._buffers.get(BUFFER)
        if buffer is not None and memory.weight() is own and memory.holds(own, buffer):
            return
    if grad and _end_forward in module._forward_hooks.values():
        _thread.forward = forward = object()
    for layer, weight, mask in _masked(module):
        memory = _memory(layer)
        # With gradients on without looking: training loops write to weight.data, which torch does
        # not count. Without, never the weights of another model under functional_call.
        if grad or not (memory.holds(weight, mask) or memory.is_foreign(weight)):
            memory.zero(weight, mask, forward if grad else None)
        _mask_gradient(layer, weight)


def _end_forward(*_: object) -> None:
    """End the forward pass of a model, also where it fails; as a forward hook."""
    if not torch.compiler.is_compiling():
        _thread.forward = None
