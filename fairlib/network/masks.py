"""Weight masks: which weights of a module are zero, and how they stay so.

A pruned weight *is* zero in ``module.weight``, under its ordinary name, so evaluating a pruned
model costs what evaluating the dense one costs. It stays zero because its gradient is masked,
whatever loop trains it: with a zero gradient, a zero weight has zero momentum and zero decay. What
comes from elsewhere, momentum of a dense training or a re-initialization, is zeroed in the next
forward pass, and before fairlib measures the model (``zero_masked``). Under ``torch.func.functional_call``
the weights are the caller's, and so are their gradients. The mask is the buffer ``weight_mask``
beside the weight: uint8, 1 where the weight is kept, since torch cannot average buffers of bools.
It may be changed or replaced, by anything that torch counts as a change: not through
``weight_mask.data``."""

import copy
import threading
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from fairlib._validation import check_type, lookup

BUFFER = "weight_mask"

_Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d

_HELD = "_mask_held"  # Where a layer keeps its _Held.


class _Thread(threading.local):
    """``opened`` is the pass of a root with gradients on that the thread is in, an object of its
    own; else None."""

    opened: object = None


_thread = _Thread()


def prunable(model: nn.Module) -> dict[str, nn.Parameter]:
    """List the weights that pruning may zero: those of convolutions and linear layers, never biases
    or normalization.

    Returns: Parameter name, as in ``named_parameters``, to parameter, in the order of the model's
        modules. What a mask prunes is zero (``zero_masked``).

    Raises: TypeError: If the model is no module. ValueError: If there are none; if a layer shares
        its weight with another module; or if a weight is computed from
            others, by ``torch.nn.utils.prune`` or a parametrization, so that zeroing it would not
            hold.

    Example:
        >>> from torch import nn
        >>> from fairlib.network import masks
        >>> model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 2))
        >>> list(masks.prunable(model))
        ['0.weight', '3.weight']
    """
    check_type("model", model, nn.Module, "a torch.nn.Module")
    zero_masked(model)
    weights = {}
    owned = [
        (f"{prefix}.{own}".removeprefix("."), parameter)
        for prefix, module in model.named_modules()
        for own, parameter in module._parameters.items()
    ]
    for name, layer in _layers(model):
        weight = layer._parameters.get("weight")
        if hasattr(layer, "weight_orig"):
            raise ValueError(
                f"{name} is pruned by torch.nn.utils.prune; call prune.remove(module, 'weight') first"
            )
        if parametrize.is_parametrized(layer, "weight"):
            raise ValueError(
                f"{name} is parametrized; call parametrize.remove_parametrizations(module, 'weight')"
            )
        if weight is None:
            raise ValueError(
                f"{name} is computed from other parameters (weight_norm?); make it a parameter first"
            )
        tied = [other for other, parameter in owned if parameter is weight and other != name]
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

    Returns: Parameter name to bool tensor of the weight's shape, True where the weight is kept;
        layers without a mask are left out. The other weights are zero (``zero_masked``).
    """
    zero_masked(model)
    found = {
        name: mask
        for name, layer in _layers(model)
        if (mask := layer._buffers.get(BUFFER)) is not None
    }
    return {
        name: mask.view(torch.bool) if mask.dtype == torch.uint8 else mask
        for name, mask in found.items()
    }


def zero_masked(model: nn.Module) -> None:
    """Zero the masked weights of a model, in place, before they are read or measured.

    Every forward pass does so too when it begins: with gradients on always, without them where a
    weight has changed. What it cannot see without gradients is a change through ``weight.data`` or
    NumPy after which there was no backward pass; and never one by the network itself, through
    ``weight.data``, between its beginning and the layer."""
    for layer, weight, mask in _masked(model):
        if _is_guarded(layer):  # Else a buffer of this name is somebody else's.
            _known(layer).fill(weight, mask, None)


def with_masks(model: nn.Module, keep: Mapping[str, Tensor]) -> nn.Module:
    """Copy a model, in eval mode, with the weights outside ``keep`` zero; they stay zero in any
    training.

    Args: model: Left as it is. keep: Parameter name to bool tensor of the weight's shape, True
        where the weight is kept. Weights not named
            keep the mask they have.

    Raises:
        ValueError: If a name is no prunable weight or a shape differs.

    Example:
        A mask of one's own:

        >>> import torch
        >>> from fairlib.network import masks
        >>> model = torch.nn.Linear(3, 1)
        >>> masks.with_masks(model, {"weight": torch.tensor([[True, False, True]])}).weight.tolist()[0][1]
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
    known, layers = prunable(model), dict(_layers(model))
    for name, mask in keep.items():
        check_mask(name, mask, lookup("prunable weight", name, known).shape)
    for name, mask in keep.items():
        layer = layers[name]
        before = layer._buffers.get(BUFFER)
        if before is not None:
            before.copy_(mask)
        else:
            layer.register_buffer(BUFFER, mask.detach().to(layer.weight.device, torch.uint8))
            layer.register_load_state_dict_post_hook(_zero)
            layer.register_state_dict_pre_hook(_hold)
            layer.register_forward_pre_hook(_guard)
        _zero(layer)
    if keep and not _is_guarded(model):
        model.register_forward_pre_hook(_guard)
        model.register_forward_hook(_leave, always_call=True)
    _guard(model)
    _leave()


def check_scores(scores: Mapping[str, Tensor]) -> None:
    """Refuse scores, by the name of what they are of, that hold NaN.

    Raises:
        ValueError: If some do.
    """
    for name, score in scores.items():
        if score.isnan().any():
            raise ValueError(f"the scores of {name} hold NaN; has training diverged?")


def check_mask(name: str, mask: Tensor, shape: torch.Size) -> None:
    """Refuse a mask of another dtype than bool or of another shape.

    Raises:
        ValueError: Naming what is masked, the shape that is needed, and dtype and shape of the
            mask.
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
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU(), torch.nn.Linear(2, 3))
        >>> _ = model[0].weight.data.zero_()
        >>> fairlib.sparsity(model)
        0.5
    """
    weights = prunable(model).values()
    return 1 - sum(int(weight.count_nonzero()) for weight in weights) / sum(
        weight.numel() for weight in weights
    )


def _layers(model: nn.Module) -> Iterator[tuple[str, _Layer]]:
    """The layers whose weights can be pruned, by the name of the weight."""
    for prefix, layer in model.named_modules():
        if isinstance(layer, _Layer):
            yield f"{prefix}.weight".removeprefix("."), layer


def _zero(layer: _Layer, *_: object) -> None:
    """Zero the masked weights; as a hook, after whatever ``load_state_dict`` brought."""
    # Out of place: after load_state_dict(assign=True) the tensor is the caller's.
    layer.weight.data = layer.weight.data.masked_fill(layer.get_buffer(BUFFER) == 0, 0)


def _hold(layer: nn.Module, *_: object) -> None:
    """Hold a layer, as a hook before its ``state_dict`` is taken."""
    zero_masked(layer)


def _masked(model: nn.Module) -> Iterator[tuple[nn.Module, nn.Parameter, Tensor]]:
    """Layers with a mask, their weights and masks; none where the weight is a caller's."""
    modules: list[nn.Module | None] = [model]
    while modules:  # ``model.modules()`` takes three times as long, in every pass.
        layer = modules.pop()
        if layer is None or isinstance(
            layer, torch.jit.ScriptModule
        ):  # It has other dictionaries, and no masks.
            continue
        mask = layer._buffers.get(BUFFER)
        if mask is not None and isinstance(weight := layer._parameters.get("weight"), nn.Parameter):
            yield layer, weight, mask
        modules += layer._modules.values()


class _Held:
    """What is known of a layer's mask and masked weights; a copy or an unpickled layer begins with
    nothing."""

    mask: Tensor | None = None  # The buffer, its version and where it is zero.
    mask_version = -1
    complement: Tensor
    # Weak references to the weight and its storage, and its version, when it was last zeroed.
    weight: Any = None
    storage: Any = None
    version = -1
    opened: object = None  # The pass that zeroed it.
    hooked: Any = None  # Weak reference to the weight that has a gradient mask.

    def __reduce__(self) -> tuple[type["_Held"], tuple[()]]:
        return _Held, ()

    def holds(self, weight: nn.Parameter, mask: Tensor) -> bool:
        """Whether weights and mask are those of the last :meth:`fill`."""
        known = self.storage is not None and self.storage() is weight.untyped_storage()
        return known and self.version == weight._version and self.knows(mask)

    def knows(self, mask: Tensor) -> bool:
        """Whether :attr:`complement` is that of the mask as it is."""
        return mask is self.mask and mask._version == self.mask_version

    def is_foreign(self, weight: nn.Parameter) -> bool:
        """Whether the layer computes with another parameter than its own, under
        ``functional_call``."""
        own = self.weight and self.weight()
        return own is not None and own is not weight

    def fill(self, weight: nn.Parameter, mask: Tensor, opened: object) -> None:
        """Zero the masked weights in place, and note of which weights and in which pass this was
        done."""
        if weight.is_inference():  # It tells no version.
            weight.data.masked_fill_(mask == 0, 0)
            return
        weight.data.masked_fill_(self.complement if self.knows(mask) else self.read(mask), 0)
        self.weight, self.storage = weakref.ref(weight), weakref.ref(weight.untyped_storage())
        self.version, self.opened = weight._version, opened

    def read(self, mask: Tensor) -> Tensor:
        """Find where a mask is zero, and keep it for as long as the mask is not changed."""
        complement = mask == 0
        wrapped = type(complement) is not Tensor or torch._C._functorch.is_functorch_wrapped_tensor(
            complement
        )
        if not (
            wrapped or complement.is_inference() or mask.is_inference()
        ):  # Else it is of no use later.
            self.complement, self.mask, self.mask_version = complement, mask, mask._version
        return complement


def _known(layer: nn.Module) -> _Held:
    held = layer.__dict__.get(_HELD)
    if held is None:
        held = layer.__dict__[_HELD] = _Held()
    return held


def _hook(layer: nn.Module, weight: nn.Parameter) -> None:
    """Give a weight its gradient mask if it lacks one."""
    hooks = (weight._backward_hooks or {}).values()
    if not any(isinstance(hook, _GradientMask) and hook.layer() is layer for hook in hooks):
        weight.register_hook(_GradientMask(layer))


def _is_guarded(module: nn.Module) -> bool:
    return any(hook is _guard for hook in module._forward_pre_hooks.values())


class _GradientMask:
    """A tensor hook that zeroes the gradient of a layer's masked weights."""

    __torch_unserializable__ = (
        True  # It holds a weak reference; a copy or an unpickled module gets its own.
    )

    def __init__(self, layer: nn.Module):
        self.layer, self.held = weakref.ref(layer), _known(layer)

    def __call__(self, gradient: Tensor) -> Tensor:
        layer = self.layer()
        if layer is None or (mask := layer._buffers.get(BUFFER)) is None:
            return gradient
        if torch.compiler.is_compiling():
            return gradient.masked_fill(mask == 0, 0)
        held = self.held
        held.version = -1  # Fused optimizers leave the version as it is.
        return gradient.masked_fill(held.complement if held.knows(mask) else held.read(mask), 0)


def _guard(module: nn.Module, *_: object) -> None:
    """Zero every masked weight below ``module``, and give it its gradient mask if it lacks one.

    A forward pre-hook, because tensor hooks do not survive ``deepcopy``, pickling or
    ``load_state_dict(assign=True)``, while module hooks do. It stands on the layer and on the root:
    a root such as ``nn.MultiheadAttention`` reads the weight of a layer that it never calls. What
    the root has done in this pass the layers do not do again."""
    grad, compiling, opened = torch.is_grad_enabled(), torch.compiler.is_compiling(), None
    if not compiling:
        opened, held = _thread.opened, module.__dict__.get(_HELD)
        if held is not None and opened is not None and held.opened is opened:
            weight, mask = module._parameters.get("weight"), module._buffers.get(BUFFER)
            if mask is not None and held.weight() is weight and held.holds(weight, mask):
                return
        if grad and _leave in module._forward_hooks.values():
            _thread.opened = opened = object()
    if "weight_orig" in module._parameters:
        raise ValueError(
            f"torch.nn.utils.prune has overwritten fairlib's mask of this {type(module).__name__}, since both call it "
            "weight_mask; call torch.nn.utils.prune.remove(module, 'weight') and prune with fairlib alone"
        )
    if compiling:
        _guard_compiled(module)
        return
    for layer, weight, mask in _masked(module):
        held = _known(layer)
        if grad or not (held.holds(weight, mask) or held.is_foreign(weight)):
            held.fill(weight, mask, opened if grad else None)
        if (
            grad
            and weight.requires_grad
            and not (held.hooked and held.hooked() is weight and weight._backward_hooks)
        ):
            _hook(layer, weight)
            held.hooked = weakref.ref(weight)


def _guard_compiled(module: nn.Module) -> None:
    """Guard a module in the graph of a compiled one, where tensors tell no version; an exported one
    has no masks."""
    if torch.compiler.is_exporting():
        return
    for layer, weight, mask in _masked(module):
        weight.data.masked_fill_(mask == 0, 0)
        if torch.is_grad_enabled() and weight.requires_grad:
            _hook(layer, weight)


def _leave(*_: object) -> None:
    """End the pass of a root, as a forward hook, also where it fails."""
    if not torch.compiler.is_compiling():
        _thread.opened = None
