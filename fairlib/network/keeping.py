"""Kept weights: masked ones stay zero and rounded ones rounded, whoever trains or reads them.

What is kept of a parameter ``weight`` stands in buffers beside it: ``weight_mask``, uint8, 1 where
the weight is not held at zero; and ``weight_bits``, ``weight_scale`` and ``weight_residual`` of a
rounded one (:mod:`fairlib.network.masks`, :mod:`fairlib.network.quantizers`). Under
``torch.func.functional_call`` the weights are the caller's, and so are their gradients.
"""

from __future__ import annotations

import threading
import traceback
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, stateless

# Hooks do the work, on the layers and on the model, and not a parametrization of torch's. That
# would keep the dense weight under another name: the keys of every state_dict would change, each
# forward pass would multiply by the mask, and weight decay would work on numbers nobody sees.
#
# 1. A tensor hook on the weight masks its gradient (_GradientMask). Such hooks get lost: deepcopy,
#    pickling and load_state_dict(assign=True) make a parameter without them.
# 2. Hooks of modules survive all of these. So before each forward pass one of them (Keeper) zeroes
#    and rounds the weight again and gives it its gradient mask if it has none. It is on each layer,
#    and on the model, because a parent may read the weight of a layer that it never calls.
# 3. Writing every weight in every pass would cost a fifth of an evaluation. So each weight is known
#    by when it was last written (_Memory), and is left alone until torch has counted a change.

MASK, BITS, SCALE, RESIDUAL = NAME_ENDS = "_mask", "_bits", "_scale", "_residual"
"""Ends of the names of the buffers beside a kept parameter."""


_CHAIN = "parametrizations."  # Begins the names of the modules that compute a weight.


class _Thread(threading.local):
    """Forward pass of a model, with gradients on, that a thread is in: a new object, or None."""

    forward: object = None


_thread = _Thread()
_writing = threading.Lock()


def keep(model: nn.Module, buffers: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Keep parameters of a model, in place, by what stands in buffers beside them.

    Args:
        model: Its passes keep the weights as those of their layers do.
        buffers: Name of a parameter, as in ``named_parameters``, to buffers by the ends of their
            names.
    """
    for name, beside in buffers.items():
        prefix, _, own = name.rpartition(".")
        layer = model.get_submodule(prefix)
        for end, tensor in beside.items():
            layer.register_buffer(own + end, tensor)
        _keeper(layer).memories.setdefault(own, _Memory())
    if buffers:
        if _end_forward not in model._forward_hooks.values():
            model.register_forward_hook(_end_forward, always_call=True)
        _keeper(model)(model)
        _end_forward()


def settle(model: nn.Module, *_: object) -> None:
    """Zero the masked weights of a model and round its quantized ones, in place, before they are
    read or measured.

    Every forward pass does so too when it begins: with gradients on always, without them where a
    weight has changed. Without gradients it cannot see a change through ``weight.data`` or NumPy
    after which there was no backward pass; and it never sees one by the network itself, through
    ``weight.data``, between its beginning and the layer.
    """
    for layer, name, memory, weight in _weights(model):
        memory.write(layer, name, weight)


def forget(model: nn.Module) -> None:
    """Forget what is known of the masks of a model, so that the next pass looks at them."""
    for _layer, _name, memory, _weight in _weights(model):
        memory.mask = None


def kept(model: nn.Module, end: str) -> dict[str, Tensor]:
    """Read a buffer of every kept parameter that has one, by the parameter's name."""
    found = {}
    for prefix, module in model.named_modules():
        # A buffer of such a name beside a parameter that is not kept is somebody else's.
        for name in getattr(_keeper_of(module), "memories", ()):
            if name + end in module._buffers:
                found[f"{prefix}.{name}".removeprefix(".")] = module.get_buffer(name + end)
    return found


def rounded(weight: Tensor, scale: Tensor, bits: int) -> Tensor:
    r"""Round weights to the nearest of :math:`2^b - 1` multiples of a scale, and with one bit to
    their sign.

    .. math::
        Q(w) = s \, \mathrm{clip}(\mathrm{round}(w / s), -(2^{b - 1} - 1), 2^{b - 1} - 1), \quad
        Q(w) = s \, \mathrm{sign}(w) \text{ for } b = 1 .

    Args:
        weight: ``(O, ...)``, one row for each output channel.
        scale: Positive, broadcasts to ``weight``.
        bits: Number of bits :math:`b` of a weight.

    Example:
        >>> import torch
        >>> from fairlib.network.quantizers import rounded
        >>> weight = torch.tensor([0.9, 0.4, 0.0, -7.0])
        >>> rounded(weight, torch.tensor(0.5), bits=3).tolist()  # Up to three steps away.
        [1.0, 0.5, 0.0, -1.5]
    """
    if bits == 1:
        return scale * weight.sign()
    top = 2 ** (bits - 1) - 1
    return (weight / scale).round_().clamp_(-top, top).mul_(scale)


def owner(layer: nn.Module, name: str) -> str | None:
    """Say what of torch computes a weight that is no parameter of its layer, and how to end that;
    None where nothing does."""
    if parametrize.is_parametrized(layer, name):
        kinds = ", ".join(
            type(one).__name__ for one in layer.get_submodule(_CHAIN + name).children()
        )
        return (
            f"parametrized by {kinds}; call torch.nn.utils.parametrize."
            f"remove_parametrizations(module, {name!r}) first"
        )
    for hook in layer._forward_pre_hooks.values():
        if name in (getattr(hook, "name", None), getattr(hook, "_tensor_name", None)):
            kind = type(hook).__name__
            end = {"WeightNorm": "remove_weight_norm", "SpectralNorm": "remove_spectral_norm"}
            return (
                f"computed by {kind} of torch.nn.utils; call "
                f"torch.nn.utils.{end.get(kind, 'prune.remove')}(module, {name!r}) first"
            )
    return None


class Keeper:
    """Forward pre-hook of a module that keeps the weights of this module and of those below it.

    Args:
        buffers: The buffers of the module.

    Attributes:
        memories: What is known of the kept parameters of the module itself, by name.
    """

    def __init__(self, buffers: dict[str, Any]):
        self.buffers, self.memories = buffers, dict[str, _Memory]()

    def __call__(self, module: nn.Module, *_: object) -> None:
        grad, forward = torch.is_grad_enabled(), _thread.forward
        if torch.compiler.is_compiling():
            # In a graph tensors tell no version; and a model that is exported needs none of this.
            if not torch.compiler.is_exporting():
                for layer, name, memory, weight in _weights(module):
                    mask = layer._buffers.get(name + MASK)
                    _write(layer, name, weight, None if mask is None else mask == 0)
                    _mask_gradient(layer, name, memory, weight)
            return
        if forward is not None and self.memories:
            # The model has kept this layer in this pass of this thread: once is enough.
            for name, memory in self.memories.items():
                own = module._parameters.get(name)
                if (
                    own is None
                    or memory.forward is not forward
                    or not memory.holds(module, name, own)
                ):
                    break
            else:
                return
        if grad and _end_forward in module._forward_hooks.values():
            _thread.forward = forward = object()
        for layer, name, memory, weight in _weights(module):
            # With gradients on without looking: training loops write to weight.data, which torch
            # does not count.
            if not memory.is_foreign(weight):
                if grad or not memory.holds(layer, name, weight):
                    memory.write(layer, name, weight, forward if grad else None)
                _mask_gradient(layer, name, memory, weight)


class Kept(nn.Module):
    """Parametrization that keeps a weight which other parametrizations compute.

    Args:
        mask: 1 where the weight is not held at zero, or None.
        *grid: Scale and bits of a rounded weight.
    """

    mask: Tensor
    scale: Tensor
    bits: Tensor

    def __init__(self, mask: Tensor | None, *grid: Tensor | None):
        super().__init__()
        for name, tensor in zip(("mask", "scale", "bits"), (mask, *grid, None, None), strict=False):
            self.register_buffer(name, tensor, persistent=False)

    def forward(self, weight: Tensor) -> Tensor:
        # Filled, not multiplied: 0 times the NaN that weight_norm makes of a row of zeros is NaN.
        weight = weight if self.mask is None else weight.masked_fill(self.mask == 0, 0)
        if self.scale is None:
            return weight
        # Straight through: the gradient of the rounded weight is that of the weight.
        return weight + (rounded(weight, self.scale, int(self.bits)) - weight).detach()

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Accept an assigned weight as it is."""
        return weight


class _Memory:
    """A kept weight when it was last written."""

    # The mask, its version, and where it is zero: comparing in each pass would cost as much as
    # filling.
    mask: Tensor | None = None
    mask_version = -1
    zeros: Tensor
    bits_read: Tensor | None = None  # The buffer of bits, its version, and its number.
    bits_version = -1
    bits = 0
    # The weight and its storage, as weak references, and its version. The storage as well, since
    # ``parameter.data = tensor`` and vector_to_parameters change neither object nor version; and
    # not its address, at which a freed one may be followed by the next.
    weight: Any = None
    storage: Any = None
    version = -1
    forward: object = None  # The pass of the model (_thread.forward) in which it was written.
    rows: Tensor | None = None  # Of a copy: the largest rounded weight of each row.

    def __reduce__(self) -> tuple[type[_Memory], tuple[()]]:
        return _Memory, ()  # Weak references cannot be pickled.

    def __deepcopy__(self, memo: dict[int, Any]) -> _Memory:
        twin, own = _Memory(), self.weight and self.weight()
        # Torch fuses a normalization into a copy of the layer, whose weight is another one then.
        if own is not None and id(own) in memo:
            twin.weight, twin.rows = weakref.ref(memo[id(own)]), _rows(own)
        return twin

    def knows(self, mask: Tensor) -> bool:
        """Return True if :attr:`zeros` is where this mask, as it is now, is zero."""
        return mask is self.mask and mask._version == self.mask_version

    def holds(self, layer: nn.Module, name: str, weight: nn.Parameter) -> bool:
        """Return True if torch has counted no change since this weight was last written."""
        if self.storage is None or self.storage() is not weight.untyped_storage():
            return False
        mask = layer._buffers.get(name + MASK)
        return self.version == weight._version and (mask is None or self.knows(mask))

    def is_foreign(self, weight: nn.Parameter) -> bool:
        """Return True if ``functional_call`` has put the weight there for the pass that is on."""
        # A parameter that is new here may as well have replaced the old one for good. Nothing on
        # the module tells, but the stack does: this one is an argument of torch's function.
        return not (self.weight and self.weight() is weight) and any(
            id(weight) in map(id, frame.f_locals["parameters_and_buffers"].values())
            for frame, _ in traceback.walk_stack(None)
            if frame.f_code is stateless._functional_call.__code__
        )

    def write(
        self, layer: nn.Module, name: str, weight: nn.Parameter, forward: object = None
    ) -> None:
        """Zero and round the weight in place, and remember that it was done."""
        mask, scale = layer._buffers.get(name + MASK), layer._buffers.get(name + SCALE)
        if scale is not None and self.weight and self.weight() is not weight:
            self._scale_rows(layer, name, weight, scale)
        # Two threads that add a residual before one takes it off again would move the weight.
        zeros = None if mask is None else self.zeros_of(mask)
        bits = self.bits_of(layer, name) if name + RESIDUAL in layer._buffers else None
        with _writing:
            _write(layer, name, weight, zeros, bits)
        self.rows = None
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

    def bits_of(self, layer: nn.Module, name: str) -> int:
        """Read the bits of a weight, which a GPU would be waited for, as long as none changes."""
        buffer = layer.get_buffer(name + BITS)
        if buffer.is_inference():
            return int(buffer)
        if buffer is not self.bits_read or buffer._version != self.bits_version:
            self.bits_read, self.bits_version = buffer, buffer._version
            self.bits = int(buffer)
        return self.bits

    def _scale_rows(self, layer: nn.Module, name: str, weight: nn.Parameter, scale: Tensor) -> None:
        """Scale the grid of a weight that another has followed, row by row as the weight was.

        Raises:
            ValueError: If the weight is on no such grid.
        """
        rows = _rows(weight)
        if self.rows is not None and not torch.equal(rows, self.rows):
            scale.mul_(torch.where(self.rows > 0, rows / self.rows, 1))
            steps = weight / scale
            if ((steps - steps.round()).abs() > 1e-2).any():
                raise ValueError(
                    f"the quantized {name} of this {type(layer).__name__} was replaced by one that "
                    "is on no grid of its scales: quantize the model after that"
                )
        layer.get_buffer(name + RESIDUAL).zero_()


_Weights = list[tuple[nn.Module, str, _Memory, nn.Parameter]]


class _GradientMask:
    """A tensor hook that zeroes the gradient of masked weights."""

    # torch.save leaves it out: it has a weak reference, and an unpickled module gets its own.
    __torch_unserializable__ = True

    def __init__(self, layer: nn.Module, name: str, memory: _Memory):
        self.layer, self.name, self.memory = weakref.ref(layer), name, memory

    def __call__(self, gradient: Tensor | None) -> Tensor | None:
        layer = self.layer()
        mask = None if layer is None else layer._buffers.get(self.name + MASK)
        if gradient is None:  # Undefined: no gradient reaches the weight.
            return None
        if torch.compiler.is_compiling():
            return gradient if mask is None else gradient.masked_fill(mask == 0, 0)
        # A step follows, and fused optimizers change a weight without counting it as a change.
        self.memory.version = -1
        return gradient if mask is None else gradient.masked_fill(self.memory.zeros_of(mask), 0)


def _mask_gradient(layer: nn.Module, name: str, memory: _Memory, weight: nn.Parameter) -> None:
    """Give a weight its gradient mask if it needs one and has none."""
    if torch.is_grad_enabled() and weight.requires_grad:
        hooks = (weight._backward_hooks or {}).values()
        if not any(isinstance(hook, _GradientMask) and hook.layer() is layer for hook in hooks):
            weight.register_hook(_GradientMask(layer, name, memory))


def _keeper_of(module: nn.Module) -> Keeper | None:
    hooks = module._forward_pre_hooks.values()
    return next((hook for hook in hooks if isinstance(hook, Keeper)), None)


def _keeper(module: nn.Module) -> Keeper:
    """Return the keeper of a module, which gets one if it has none."""
    keeper = _keeper_of(module)
    if keeper is None:
        keeper = Keeper(module._buffers)
        module.register_forward_pre_hook(keeper)
        module.register_state_dict_pre_hook(settle)
        module.register_load_state_dict_post_hook(_settle_loaded)
    return keeper


def _weights(model: nn.Module) -> _Weights:
    """List the modules with kept parameters, name, memory and parameter."""
    # ``model.modules()`` takes three times as long, in every pass. A ScriptModule has other
    # dictionaries, and nothing that is kept.
    found: _Weights = []
    modules: list[nn.Module | None] = [model]
    while modules:
        module = modules.pop()
        if module is None or isinstance(module, torch.jit.ScriptModule):
            continue
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, Keeper) and hook.memories:
                found += _weights_of(module, hook)
        modules += module._modules.values()
    return found


def _weights_of(layer: nn.Module, keeper: Keeper) -> _Weights:
    """List the kept parameters of a module itself; none where the weight is a caller's tensor."""
    found: _Weights = []
    for name, memory in keeper.memories.items():
        weight = layer._parameters.get(name)
        if isinstance(weight, nn.Parameter):
            if layer._buffers is not keeper.buffers:
                # Torch has put the module in the place of the layer, with its hooks alone.
                for end in NAME_ENDS:
                    buffer = keeper.buffers.get(name + end)
                    if buffer is not None and name + end not in layer._buffers:
                        layer.register_buffer(name + end, buffer.to(weight.device))
            found.append((layer, name, memory, weight))
        elif weight is None:
            _follow(layer, name)
    return found


def _follow(layer: nn.Module, name: str) -> None:
    """Keep a weight that is computed since, by a parametrization behind those that compute it.

    Raises:
        ValueError: If something else than parametrizations computes it.
    """
    if parametrize.is_parametrized(layer, name):
        chain = layer.get_submodule(_CHAIN + name)
        if not any(isinstance(one, Kept) for one in chain.children()):
            kept = Kept(*(layer._buffers.get(name + end) for end in (MASK, SCALE, BITS)))
            parametrize.register_parametrization(layer, name, kept, unsafe=True)
    elif found := owner(layer, name):
        raise ValueError(
            f"torch.nn.utils has overwritten fairlib's mask of this {type(layer).__name__}, or its "
            f"rounding: the {name} is {found}, and compress with fairlib alone"
        )


def _write(
    layer: nn.Module,
    name: str,
    weight: nn.Parameter,
    zeros: Tensor | None,
    bits: int | None = None,
) -> None:
    """Zero a weight and round it, in place, since an optimizer and its momentum know it by
    identity."""
    if zeros is not None:
        weight.data.masked_fill_(zeros, 0)
    residual = layer._buffers.get(name + RESIDUAL)
    if residual is not None:
        # weight + residual is the weight that training has reached. A step smaller than half the
        # scale changes no rounded value, and without the residual it would be forgotten at every
        # pass: no number of small steps could ever move a weight.
        scale = layer.get_buffer(name + SCALE)
        bits = int(layer.get_buffer(name + BITS)) if bits is None else bits
        residual.add_(weight.data)
        weight.data.copy_(rounded(residual, scale, bits))
        residual.sub_(weight.data)


def _rows(weight: Tensor) -> Tensor:
    """Return the largest absolute value of each row of a weight, ``(O, 1, ...)``."""
    return weight.detach().abs().amax(tuple(range(1, weight.ndim)), keepdim=True)


def _settle_loaded(layer: nn.Module, *_: object) -> None:
    """Zero the masked weights out of place after ``load_state_dict`` has brought others."""
    for _layer, name, memory, weight in _weights_of(layer, _keeper(layer)):
        mask = layer._buffers.get(name + MASK)
        memory.weight = None
        # After load_state_dict(assign=True) the tensor is the caller's, whose model may be dense.
        if mask is not None:
            weight.data = weight.data.masked_fill(mask == 0, 0)


def _end_forward(*_: object) -> None:
    """End the forward pass of a model, also where it fails; as a forward hook."""
    if not torch.compiler.is_compiling():
        _thread.forward = None
